// Hears with the TypeScript client 1, which has sessions, what a server tells: one resource, and the list of tools.
//
//   node listen_ts1.mjs URL RESOURCE TOOL
//
// prints `offered JSON`, then `updated URI` and `changed` once both were heard. TOOL is called, without arguments, until
// then: nobody says when the client's own stream is there.

import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';

const [url, resource, tool] = process.argv.slice(2);
if (tool === undefined) {
  console.error('usage: listen_ts1.mjs URL RESOURCE TOOL');
  process.exit(2);
}

const TRIES_MAX = 60;
const PAUSE_MS = 250;

const client = new Client({ name: 'taskgate-peer', version: '1.0.0' });
let updated;
let changed = false;
client.setNotificationHandler(mcp.ResourceUpdatedNotificationSchema, ({ params }) => (updated = params.uri));
client.setNotificationHandler(mcp.ToolListChangedNotificationSchema, () => (changed = true));
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools, resources } = client.getServerCapabilities();
console.log(`offered ${JSON.stringify({ tools: tools.listChanged, resources: resources.subscribe })}`);
await client.subscribeResource({ uri: resource });
for (let n = 0; n < TRIES_MAX && !(updated && changed); n += 1) {
  await client.callTool({ name: tool, arguments: {} });
  await sleep(PAUSE_MS);
}
console.log(`updated ${updated}`);
console.log(changed ? 'changed' : 'unchanged');
await client.close();
