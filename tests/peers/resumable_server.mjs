// An upstream whose calls last until they are let go, and that counts them: a TypeScript SDK 1 server over streamable
// HTTP whose sessions keep their events. What it knows of calls belongs to the process, not to a session.
//
//   node resumable_server.mjs [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
//
// Each call bears a nonce. `release` lets calls go by it, from any session; `ledger` says what happened to each.

import { setTimeout as delay } from 'node:timers/promises';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { serve } from './session_http.mjs';

const NONCES_MAX = 4096;
const STEP_MS = 150;
const STEPS_MAX = 2000;

const string = { type: 'string' };
const object = (properties = {}) => ({ type: 'object', properties, required: Object.keys(properties) });
const say = (value) => ({ content: [{ type: 'text', text: value }] });

/** What happened to each call, by its nonce: `{ calls, cancelled, ended, isFree }`. */
const ledger = new Map();

function page(nonce) {
  if (!ledger.has(nonce)) {
    if (ledger.size >= NONCES_MAX) throw new mcp.McpError(mcp.ErrorCode.InternalError, 'too many nonces');
    ledger.set(nonce, { calls: 0, cancelled: 0, ended: 0, isFree: false });
  }
  return ledger.get(nonce);
}

/** Takes a step now and then, until the call is let go. */
async function held(nonce, signal, step = async () => {}) {
  for (let count = 1; count <= STEPS_MAX && !page(nonce).isFree; count += 1) {
    await delay(STEP_MS, undefined, { signal });
    await step(count);
  }
}

const tools = {
  work: ['Reports its progress until it is let go', async ({ nonce }, { signal, progress }) => {
    await held(nonce, signal, progress);
    return say(`${nonce}: worked`);
  }],
  quiet: ['Says nothing until it is let go', async ({ nonce }, { signal }) => {
    await held(nonce, signal);
    return say(`${nonce}: worked`);
  }],
  part: ['Closes its stream again and again until it is let go', async ({ nonce }, { signal, closeSSEStream }) => {
    if (!closeSSEStream) return { ...say('streams cannot be closed'), isError: true };
    await held(nonce, signal, async () => closeSSEStream());
    return say(`${nonce}: worked`);
  }],
  ask: ['Asks for a name between two reports', async ({ nonce }, { sendRequest, progress }) => {
    await progress(1);
    const params = { message: `${nonce}: who?`, requestedSchema: object({ name: string }) };
    const { action, content = {} } = await sendRequest({ method: 'elicitation/create', params },
      mcp.ElicitResultSchema, { timeout: STEP_MS * STEPS_MAX });
    await progress(2);
    return say(`${nonce}: ${action} ${content.name}`);
  }],
};

const controls = {
  release: [({ nonces }) => {
    for (const nonce of nonces) page(nonce).isFree = true;
    return say('released');
  }, object({ nonces: { type: 'array', items: string } })],
  ledger: [() => say(JSON.stringify(Object.fromEntries(ledger))), object()],
};

async function call(run, { nonce, ...rest }, extra) {
  const { signal, _meta, sendNotification } = extra;
  const progressToken = _meta?.progressToken;
  const progress = async (step) => {
    if (progressToken === undefined) return;
    await sendNotification({ method: 'notifications/progress', params: { progressToken, progress: step } });
  };
  const own = page(nonce);
  own.calls += 1;
  signal.addEventListener('abort', () => { own.cancelled += 1; }, { once: true });
  const result = await run({ nonce, ...rest }, { ...extra, progress });
  own.ended += 1;
  return result;
}

function newServer() {
  const server = new Server({ name: 'resumable', version: '1.0.0' }, { capabilities: { tools: {} } });
  server.setRequestHandler(mcp.ListToolsRequestSchema, () => ({
    tools: [
      ...Object.entries(tools).map(([name, [description]]) => (
        { name, description, inputSchema: object({ nonce: string }) })),
      ...Object.entries(controls).map(([name, [, inputSchema]]) => ({ name, inputSchema })),
    ],
  }));
  server.setRequestHandler(mcp.CallToolRequestSchema, ({ params: { name, arguments: given = {} } }, extra) => {
    if (Object.hasOwn(controls, name)) return controls[name][0](given);
    if (!Object.hasOwn(tools, name)) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown tool: ${name}`);
    return call(tools[name][1], given, extra);
  });
  return server;
}

serve(newServer);
