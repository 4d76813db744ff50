import { client, key } from './connect.mjs';

const call = { name: 'slow_report', arguments: { seconds: 4, steps: 4 } };
console.log('calling');
const report = await key.run('report-9', () => client.callTool(call));
console.log(report.content[0].text);
await client.close();
