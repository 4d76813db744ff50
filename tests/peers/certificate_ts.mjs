// Uses a server through the gateway with the TypeScript client 2, which comes with a certificate.
//
//   node certificate_ts.mjs URL CA_FILE CERTIFICATE_FILE|none KEY_FILE STEPS_JSON
//
// Does each step in turn, and prints one JSON line of facts for each on stdout. Steps: {"tools": true}, {"task": TOOL, "ms": MS}
// (a call as a task of 2026-07-28, followed to its end), {"peek": ID} (whether the task with this id can be read). A step
// that fails has {"error": CODE}.

import { readFileSync } from 'node:fs';
import { Agent, request as httpsRequest } from 'node:https';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const VERSION = '2026-07-28';
const POLLS_MAX = 1_500;

const [url, ca, certificate, key, steps] = process.argv.slice(2);
if (steps === undefined) {
  console.error('usage: certificate_ts.mjs URL CA_FILE CERTIFICATE_FILE|none KEY_FILE STEPS_JSON');
  process.exit(2);
}
const own = certificate === 'none' ? {} : { cert: readFileSync(certificate), key: readFileSync(key) };
const agent = new Agent({ ca: readFileSync(ca), servername: 'localhost', keepAlive: true, ...own });

/** `fetch` with the agent, since Node's own takes no certificate. */
const fetchWithCertificate = (address, { method = 'GET', headers, body, signal } = {}) =>
  new Promise((resolve, reject) => {
    const sent = httpsRequest(address, { agent, method, headers: Object.fromEntries(new Headers(headers)), signal }, (incoming) => {
      const isEmpty = [204, 304].includes(incoming.statusCode);
      const fields = Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]);
      resolve(new Response(isEmpty ? null : Readable.toWeb(incoming), { status: incoming.statusCode, headers: fields }));
    });
    sent.on('error', reject);
    sent.end(body ?? undefined);
  });

/** One request of 2026-07-28 by hand: the client knows no tasks. */
async function ask(method, params) {
  const meta = {
    'io.modelcontextprotocol/protocolVersion': VERSION,
    'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} } },
  };
  const response = await fetchWithCertificate(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': VERSION,
      'Mcp-Method': method,
      'Mcp-Name': params.name ?? params.taskId,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { ...params, _meta: meta } }),
  });
  const said = await response.text();
  const event = said.split('\n').findLast((line) => line.startsWith('data:'));
  return JSON.parse(event ? event.slice(5) : said);
}

async function follow(tool, ms) {
  const { result: made, error } = await ask('tools/call', { name: tool, arguments: { ms } });
  if (!made?.taskId) throw new Error(`no handle: ${JSON.stringify(error ?? made)}`);
  for (let poll = 0; poll < POLLS_MAX; poll += 1) {
    const { result } = await ask('tasks/get', { taskId: made.taskId });
    if (result.status !== 'working') {
      return { taskId: made.taskId, status: result.status, text: result.result?.content?.[0]?.text };
    }
    await sleep(100);
  }
  throw new Error('the task does not end');
}

async function tools() {
  const client = new Client({ name: 'taskgate-peer', version: '1.0.0' }, { capabilities: {}, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { fetch: fetchWithCertificate }));
  const { tools: listed } = await client.listTools();
  await client.close();
  return { tools: listed.map(({ name }) => name) };
}

async function step(wanted) {
  if (wanted.tools) return tools();
  if (wanted.task) return follow(wanted.task, wanted.ms);
  const { result, error } = await ask('tasks/get', { taskId: wanted.peek });
  return { status: result?.status, code: error?.code };
}

/** The code of the innermost cause, such as that of a TLS alert. */
function codeOf(error) {
  return error.cause ? codeOf(error.cause) : (error.code ?? error.message);
}

for (const wanted of JSON.parse(steps)) {
  const facts = await step(wanted).catch((error) => ({ error: codeOf(error) }));
  console.log(`facts ${JSON.stringify(facts)}`);
}
process.exit(0);
