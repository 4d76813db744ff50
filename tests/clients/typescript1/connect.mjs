import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

/** Tries a refused connection again for two minutes: the gateway may be restarting, and tasks continue. */
async function patientFetch(url, options) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await fetch(url, options);
    } catch (error) {
      if (error.cause?.code !== 'ECONNREFUSED' || tries === 120) throw error;
      await sleep(1000, undefined, { signal: options?.signal });
    }
  }
}
export const client = new Client({ name: 'my-agent', version: '1.0.0' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  console.log('question:', params.message);
  return { action: 'accept', content: { confirm: true } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.TASKGATE_URL), {
  requestInit: { headers: { Authorization: `Bearer ${process.env.TASKGATE_KEY}` } }, fetch: patientFetch,
}));
await client.listTools();
export const { tasks } = client.experimental;
