import { client, tasks } from './connect.mjs';

for await (const message of tasks.callToolStream({ name: 'slow_report', arguments: { seconds: 4, steps: 4 } })) {
  if (message.type === 'taskCreated') console.log('task', message.task.taskId);
  if (message.type === 'taskStatus') console.log('progress:', message.task.statusMessage ?? message.task.status);
  if (message.type === 'result') console.log(message.result.content[0].text);
  if (message.type === 'error') throw message.error;
}
await client.close();
