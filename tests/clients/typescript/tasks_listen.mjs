import { client, session } from './tasks.mjs';

const execution = await session.callTool('slow_report', { seconds: 4, steps: 4 });
const ended = new Promise((resolve) => {
  client.fallbackNotificationHandler = async ({ method, params }) => {
    if (method !== 'notifications/tasks') return;
    console.log(params.status, params.statusMessage ?? '');
    if (params.status !== 'working') resolve();
  };
});
await client.listen({ taskIds: [execution.handle.taskId] });
await ended;
await client.close();
