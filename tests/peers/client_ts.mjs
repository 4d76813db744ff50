// Drives a tool with the TypeScript client 2 and ext-tasks: extension tasks of 2026-07-28.
//
//   node client_ts.mjs URL call|decline|cancel TOOL ARGUMENTS_JSON
//
// prints one JSON line of facts on stdout. `call` drives the call to its end, through a task if the
// server answers with one, and answers what it is asked; `decline` does the same for a user who declines;
// `cancel` cancels the task after its first poll, then looks at it.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { elicited, sampled } from './client_answers.mjs';
import { createTaskSessionFromClient, JsonRpcResponseError, TaskFailedError } from '@modelcontextprotocol/ext-tasks/client';

const TIME_LIMIT_MS = 150_000;
const CANCEL_LIMIT_MS = 20_000;
const TERMINAL = new Set(['completed', 'failed', 'cancelled']);
const VERSION = '2026-07-28';
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };
const CAPABILITIES = { elicitation: {}, sampling: {}, extensions: { 'io.modelcontextprotocol/tasks': {} } };

const [url, kind, tool, argumentsJson] = process.argv.slice(2);
if (argumentsJson === undefined || !['call', 'decline', 'cancel'].includes(kind)) {
  console.error('usage: client_ts.mjs URL call|decline|cancel TOOL ARGUMENTS_JSON');
  process.exit(2);
}

const seen = { task: false, polls: 0, statuses: [] };
let lastId = 0;

/** The host's own request path, which ext-tasks asks for: one POST for one request. */
async function rawDispatch(request, { signal, context } = {}) {
  const id = `raw-${lastId++}`;
  const name = request.method === 'tools/call' ? { 'Mcp-Name': request.params.name } : {};
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': VERSION,
      'Mcp-Method': request.method,
      ...name,
      ...context?.headers,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id, ...request }),
    signal,
  });
  const answer = findAnswer(id, await response.text(), response.headers.get('content-type') ?? '');
  if (!answer) throw new Error(`HTTP ${response.status} without an answer to ${request.method}`);
  note(request.method, answer.result);
  return answer.error ? { kind: 'error', error: answer.error } : { kind: 'result', result: answer.result };
}

function findAnswer(id, body, type) {
  if (!type.startsWith('text/event-stream')) return body === '' ? undefined : JSON.parse(body);
  const data = body.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim());
  return data.filter(Boolean).map((line) => JSON.parse(line)).find((message) => message.id === id);
}

function note(method, result) {
  if (method === 'tasks/get') seen.polls += 1;
  if (result?.taskId === undefined || result.status === undefined) return;
  seen.task = true;
  if (seen.statuses.at(-1) !== result.status) seen.statuses.push(result.status);
}

const textOf = (content = []) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');

function factsOf(outcome) {
  if (outcome.status === 'failed') throw outcome.error;
  if (outcome.status === 'cancelled') return { outcome: 'cancelled' };
  const { content, isError } = outcome.result;
  return { outcome: isError ? 'tool_error' : 'result', text: textOf(content) };
}

async function cancelled(session, execution) {
  if (execution.kind !== 'task') throw new Error('the call was not answered with a task');
  const task = session.task(execution.handle.taskId);
  await task.snapshot();
  await task.cancel();
  const deadline = Date.now() + CANCEL_LIMIT_MS;
  while (Date.now() < deadline) {
    const { status, statusMessage } = await task.snapshot();
    if (TERMINAL.has(status)) return { outcome: status, text: statusMessage ?? '' };
    await sleep(100);
  }
  throw new Error('the task did not end after it was cancelled');
}

async function drive() {
  const client = new Client(CLIENT, { capabilities: CAPABILITIES, versionNegotiation: { mode: 'auto' } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const session = createTaskSessionFromClient(client, {
    endpointId: 'taskgate-peer',
    rawDispatch,
    onInputRequest: async ({ kind: question, params }) =>
      question === 'sampling' ? sampled() : elicited(params, kind === 'decline'),
    v2RequestFraming: { protocolVersion: VERSION, clientInfo: CLIENT, clientCapabilities: CAPABILITIES },
  });
  const execution = await session.callTool(tool, JSON.parse(argumentsJson));
  return kind === 'cancel' ? cancelled(session, execution) : factsOf(await execution.result());
}

function factsOfError(error) {
  const { code, message } = error;
  const isProtocol = [JsonRpcResponseError, TaskFailedError, ProtocolError].some((type) => error instanceof type);
  if (isProtocol) return { outcome: 'protocol_error', text: message, code: code ?? null };
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
  client: '@modelcontextprotocol/client + ext-tasks', version: clientVersion(),
  outcome: null, text: '', code: null,
  task: seen.task, polls: seen.task ? seen.polls : null, statuses: seen.statuses,
  elapsed_ms: Date.now() - started,
  ...facts,
}));
process.exit(facts.outcome === 'client_error' ? 1 : 0);
