import { client } from './connect.mjs';

const options = { timeout: 24 * 60 * 60 * 1000 };
const report = await client.callTool({ name: 'slow_report', arguments: { seconds: 4, steps: 4 }, options });
console.log(report.content[0].text);
const deleted = await client.callTool({ name: 'confirm_delete', arguments: { path: '/tmp/old' }, options });
console.log(deleted.content[0].text);
await client.close();
