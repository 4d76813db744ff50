import { client, session } from './tasks.mjs';

const [taskId] = process.argv.slice(2);
const reference = { endpointId: session.endpointId, generation: 'v2', taskId, originalOperation: 'tools/call' };
const execution = await session.resumeTask(reference);
const { outcome } = await execution.settle();
console.log(outcome.status, outcome.error?.message ?? outcome.result?.content[0].text);
await client.close();
