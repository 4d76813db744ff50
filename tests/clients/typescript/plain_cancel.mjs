import { client } from './plain.mjs';

const abort = new AbortController();
const onprogress = () => abort.abort('no longer needed');
const call = client.callTool({ name: 'slow_report', arguments: { seconds: 60, steps: 60 } }, { signal: abort.signal, onprogress });
await call.catch((error) => console.log('cancelled:', error.message));
await client.close();
