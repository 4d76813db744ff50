import { client, tasks } from './connect.mjs';

const stream = tasks.callToolStream({ name: 'slow_report', arguments: { seconds: 60 } });
const { value } = await stream.next();
const { status } = await tasks.cancelTask(value.task.taskId);
console.log('status:', status);
for (const task of (await tasks.listTasks()).tasks) console.log('listed:', task.taskId, task.status);
await client.close();
