import { client } from './connect.mjs';

const options = { signal: AbortSignal.timeout(2000) };
const call = client.callTool({ name: 'slow_report', arguments: { seconds: 60 }, options });
await call.catch((error) => console.log('cancelled:', error.message));
await client.close();
