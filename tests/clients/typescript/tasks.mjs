import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';
import { CAPABILITIES, CLIENT, VERSION, rawDispatch } from './raw.mjs';

export const client = new Client(CLIENT, { capabilities: CAPABILITIES, versionNegotiation: { mode: 'auto' } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.TASKGATE_URL), {
  requestInit: { headers: { Authorization: `Bearer ${process.env.TASKGATE_KEY}` } },
}));
export const session = createTaskSessionFromClient(client, {
  endpointId: 'my-gateway',
  rawDispatch,
  v2RequestFraming: { protocolVersion: VERSION, clientInfo: CLIENT, clientCapabilities: CAPABILITIES },
  onInputRequest: async ({ params }) => {
    console.log('question:', params.message);
    return { action: 'accept', content: { confirm: true } };
  },
});
