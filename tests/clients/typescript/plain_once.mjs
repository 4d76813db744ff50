import { client } from './plain.mjs';

const call = {
  name: 'slow_report', arguments: { seconds: 4, steps: 4 }, _meta: { 'io.taskgate/idempotency-key': 'report-8' },
};
console.log('calling');
const report = await client.callTool(call, { onprogress() {}, resetTimeoutOnProgress: true });
console.log(report.content[0].text);
await client.close();
