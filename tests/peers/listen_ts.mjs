// Listens with the TypeScript client 2 in its 2026-07-28 mode: one resource, and what a tool makes of it.
//
//   node listen_ts.mjs URL RESOURCE TOOL
//
// prints `granted JSON`, `updated URI` for the first update, then waits for the server's end and prints
// `closed WHY`. TOOL is called, without arguments, once the stream is there.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const [url, resource, tool] = process.argv.slice(2);
if (tool === undefined) {
  console.error('usage: listen_ts.mjs URL RESOURCE TOOL');
  process.exit(2);
}

const client = new Client({ name: 'taskgate-peer', version: '1.0.0' }, { versionNegotiation: { mode: 'auto' } });
const updated = new Promise((resolve) => {
  client.setNotificationHandler('notifications/resources/updated', ({ params }) => resolve(params.uri));
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const subscription = await client.listen({ resourceSubscriptions: [resource], toolsListChanged: true });
console.log(`granted ${JSON.stringify(subscription.honoredFilter)}`);
await client.callTool({ name: tool, arguments: {} });
console.log(`updated ${await updated}`);
console.log(`closed ${await subscription.closed}`);
await client.close();
