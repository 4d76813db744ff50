import { client, session } from './tasks.mjs';

const { handle } = await session.callTool('slow_report', { seconds: 60 });
await session.cancelTask(handle.taskId);
console.log('status:', (await session.task(handle.taskId).snapshot()).status);
await client.close();
