import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';

const client = new Client({ name: 'my-agent', version: '1.0.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.TASKGATE_URL), {
  requestInit: { headers: { Authorization: `Bearer ${process.env.TASKGATE_KEY}` } },
}));
const session = createTaskSessionFromClient(client, { endpointId: 'my-gateway' });
for (const { taskId, status } of (await session.listTasks()).tasks) console.log(taskId, status);
await client.close();
