import { client } from './plain.mjs';

const patience = { onprogress: ({ message }) => console.log('progress:', message), resetTimeoutOnProgress: true };
const report = await client.callTool({ name: 'slow_report', arguments: { seconds: 4, steps: 4 } }, patience);
console.log(report.content[0].text);
const deleted = await client.callTool({ name: 'confirm_delete', arguments: { path: '/tmp/old' } });
console.log(deleted.content[0].text);
await client.close();
