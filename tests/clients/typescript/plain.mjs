import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

export const client = new Client({ name: 'my-agent', version: '1.0.0' }, {
  capabilities: { elicitation: {} }, versionNegotiation: { mode: 'auto' },
});
client.setRequestHandler('elicitation/create', async ({ params }) => {
  console.log('question:', params.message);
  return { action: 'accept', content: { confirm: true } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.TASKGATE_URL), {
  requestInit: { headers: { Authorization: `Bearer ${process.env.TASKGATE_KEY}` } },
}));
