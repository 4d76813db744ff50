import { client, tasks } from './connect.mjs';

const report = async () => {
  const _meta = { 'io.taskgate/idempotency-key': 'report-7' };
  const stream = tasks.callToolStream({ name: 'slow_report', arguments: { seconds: 4, steps: 4 }, _meta });
  return (await stream.next()).value.task.taskId;
};
console.log('by _meta:', await report());
console.log('again:', await report());
await client.close();
