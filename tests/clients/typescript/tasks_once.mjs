import { client, session } from './tasks.mjs';

const report = async (options) => {
  const execution = await session.callTool('slow_report', { seconds: 4, steps: 4 }, options);
  await execution.detach();
  return execution.handle.taskId;
};
console.log('by header:', await report({ headers: { 'Idempotency-Key': 'report-7' } }));
console.log('by _meta:', await report({ metadata: { 'io.taskgate/idempotency-key': 'report-7' } }));
await client.close();
