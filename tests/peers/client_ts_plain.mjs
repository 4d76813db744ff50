// Drives a tool with the TypeScript client 2 as it comes: plain calls of 2026-07-28, no tasks. What it is asked
// in mid-call its own handlers answer.
//
//   node client_ts_plain.mjs URL call|decline TOOL ARGUMENTS_JSON
//
// prints one JSON line of facts on stdout.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { elicited, sampled } from './client_answers.mjs';

const TIME_LIMIT_MS = 150_000;

const [url, kind, tool, argumentsJson] = process.argv.slice(2);
if (argumentsJson === undefined || !['call', 'decline'].includes(kind)) {
  console.error('usage: client_ts_plain.mjs URL call|decline TOOL ARGUMENTS_JSON');
  process.exit(2);
}

const textOf = (content = []) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');

async function drive() {
  const client = new Client(
    { name: 'taskgate-peer', version: '1.0.0' },
    { capabilities: { elicitation: {}, sampling: {} }, versionNegotiation: { mode: 'auto' } },
  );
  client.setRequestHandler('elicitation/create', async ({ params }) => elicited(params, kind === 'decline'));
  client.setRequestHandler('sampling/createMessage', async () => sampled());
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { content, isError } = await client.callTool({ name: tool, arguments: JSON.parse(argumentsJson) });
  return { outcome: isError ? 'tool_error' : 'result', text: textOf(content) };
}

function factsOfError(error) {
  if (error instanceof ProtocolError) return { outcome: 'protocol_error', text: error.message, code: error.code };
  return { outcome: 'client_error', text: String(error.cause ? `${error}: ${error.cause}` : error) };
}

/** The client's own package.json, which its exports hide. */
function clientVersion() {
  const entry = createRequire(import.meta.url).resolve('@modelcontextprotocol/client');
  return JSON.parse(readFileSync(join(dirname(entry), '..', 'package.json'), 'utf8')).version;
}

const started = Date.now();
const late = sleep(TIME_LIMIT_MS, { outcome: 'client_error', text: `no end within ${TIME_LIMIT_MS} ms` });
const facts = await Promise.race([drive().catch(factsOfError), late]);
console.log(JSON.stringify({
  client: '@modelcontextprotocol/client', version: clientVersion(), outcome: null, text: '', code: null,
  task: false, polls: null, statuses: [], elapsed_ms: Date.now() - started,
  ...facts,
}));
process.exit(facts.outcome === 'client_error' ? 1 : 0);
