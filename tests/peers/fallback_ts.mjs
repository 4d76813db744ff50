// Drives calls of a client without tasks, the one of the TypeScript SDK 1.
//
//   fallback_ts.mjs hold URL TOOL JSON TIMEOUT_MS     waits, and lets progress reset its timeout
//   fallback_ts.mjs impatient URL TOOL JSON TIMEOUT_MS   the same without that, as is the default
//   fallback_ts.mjs tools URL TOOL JSON TIMEOUT_MS    goes on by the tools that the result names
//
// It prints `facts JSON`: `text` or `code` of the end, `progress` notifications, streams `resumed`, `waits` with
// task_result, `status` after task_status, the `names` of the tools that were listed.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpError } from '@modelcontextprotocol/sdk/types.js';

const [what, url, tool, json, timeoutMs] = process.argv.slice(2);
const WAITS_MAX = 60;
const timeout = Number(timeoutMs);
const facts = { text: null, code: null, progress: 0, resumed: 0, waits: 0, status: null, names: [] };

const reading = async (address, options = {}) => {
  const response = await fetch(address, options);
  if (new Headers(options.headers).has('last-event-id') && response.ok) facts.resumed += 1;
  return response;
};

const client = new Client({ name: 'taskgate-peer', version: '1.0.0' });
const transport = new StreamableHTTPClientTransport(new URL(url), { fetch: reading });
// A stream that is cut is an error on the way, not of the call.
transport.onerror = () => {};
await client.connect(transport);

const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, { timeout, ...options });
const text = (result) => result.content.map((block) => block.text).join('\n');

/** The tool list first: from then on the SDK checks every result against what it states. */
async function byTools() {
  facts.names = (await client.listTools()).tools.map(({ name }) => name);
  let result = await call(tool, JSON.parse(json));
  const id = result.structuredContent?.taskId;
  if (id === undefined) throw new Error(`no task: ${text(result)}`);
  facts.status = (await call('task_status', { id })).structuredContent.status;
  for (; result.structuredContent?.status === 'working' && facts.waits < WAITS_MAX; facts.waits += 1) {
    result = await call('task_result', { id, wait_seconds: 5 });
  }
  return result;
}

try {
  const onprogress = () => { facts.progress += 1; };
  const result = what === 'tools'
    ? await byTools()
    : await call(tool, JSON.parse(json), { onprogress, resetTimeoutOnProgress: what === 'hold' });
  facts.text = text(result);
} catch (error) {
  if (!(error instanceof McpError)) throw error;
  facts.code = error.code;
  facts.text = error.message;
}
console.log(`facts ${JSON.stringify(facts)}`);
await client.close();
