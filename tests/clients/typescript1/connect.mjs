import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

export const client = new Client({ name: 'my-agent', version: '1.0.0' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  console.log('question:', params.message);
  return { action: 'accept', content: { confirm: true } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.TASKGATE_URL), {
  requestInit: { headers: { Authorization: `Bearer ${process.env.TASKGATE_KEY}` } },
}));
await client.listTools();
export const { tasks } = client.experimental;
