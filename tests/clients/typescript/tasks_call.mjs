import { client, session } from './tasks.mjs';

const execution = await session.callTool('slow_report', { seconds: 4, steps: 4 });
if (execution.kind === 'task') console.log('task', execution.handle.taskId);
const onEvent = ({ task }) => { if (task?.statusMessage) console.log('progress:', task.statusMessage); };
const { outcome } = await execution.settle({ onEvent });
console.log(outcome.status, outcome.error?.message ?? outcome.result?.content[0].text);
await client.close();
