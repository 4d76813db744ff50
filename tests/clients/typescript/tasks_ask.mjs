import { client, session } from './tasks.mjs';

const execution = await session.callTool('confirm_delete', { path: '/tmp/old' });
const { outcome } = await execution.settle();
console.log(outcome.status, outcome.error?.message ?? outcome.result?.content[0].text);
await client.close();
