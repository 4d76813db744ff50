// The upstream that the official conformance suite is run against: a streamable HTTP server of the
// versions up to 2025-11-25 (`initialize`, sessions, no tasks), with every tool, resource and prompt
// that the suite's server scenarios name. Each tool is a plain synchronous one and does what it says.
//
//   node fixture.mjs [--port N]      prints `listening http://127.0.0.1:PORT/mcp`

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as mcp from '@modelcontextprotocol/sdk/types.js';
import { completions, findPrompt, listPrompts, listTemplates, readResource, resources } from './fixture_content.mjs';
import { findTool, listTools } from './fixture_tools.mjs';

const SESSIONS_MAX = 1024;
const EVENTS_PER_SESSION_MAX = 512;
const BODY_BYTES_MAX = 8 * 1024 * 1024;
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]']);
const LEVELS = mcp.LoggingLevelSchema.options;

/** What list-changing tools toggle; all sessions see the same lists and are told. */
const shown = { dynamicTool: false, dynamicPrompt: false };
const sessions = new Map();

/** Keeps the last events of one session, so that a client can resume a stream. */
class EventStore {
  #events = [];
  #next = 0;

  async storeEvent(streamId, message) {
    const id = `${streamId}/${this.#next++}`;
    this.#events.push({ id, streamId, message });
    if (this.#events.length > EVENTS_PER_SESSION_MAX) this.#events.shift();
    return id;
  }

  async getStreamIdForEventId(eventId) {
    return this.#events.find((event) => event.id === eventId)?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const from = this.#events.findIndex((event) => event.id === lastEventId);
    const streamId = this.#events[from]?.streamId ?? '';
    for (const event of this.#events.slice(from + 1)) {
      const priming = Object.keys(event.message).length === 0;
      if (event.streamId === streamId && !priming) await send(event.id, event.message);
    }
    return streamId;
  }
}

function newServer() {
  const server = new Server(
    { name: 'conformance-fixture', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true },
        completions: {},
        logging: {},
      },
      instructions: 'Every tool answers in the call itself.',
    },
  );
  let level = 'debug';
  const handle = (schema, handler) => server.setRequestHandler(schema, handler);

  /** What a tool or prompt may do besides returning: talk to the client on its own request's stream. */
  const context = (extra) => ({
    signal: extra.signal,
    progressToken: extra._meta?.progressToken,
    clientCapabilities: server.getClientCapabilities() ?? {},
    notify: (method, params) => extra.sendNotification({ method, params }),
    log: async (data) => {
      if (LEVELS.indexOf('info') < LEVELS.indexOf(level)) return;
      await extra.sendNotification({ method: 'notifications/message', params: { level: 'info', logger: 'fixture', data } });
    },
    elicit: (params) => extra.sendRequest({ method: 'elicitation/create', params }, mcp.ElicitResultSchema),
    sample: (params) => extra.sendRequest({ method: 'sampling/createMessage', params }, mcp.CreateMessageResultSchema),
    roots: () => extra.sendRequest({ method: 'roots/list' }, mcp.ListRootsResultSchema),
    closeStream: () => extra.closeSSEStream?.(),
    toggle: async (what) => {
      shown[what] = !shown[what];
      const told = [...sessions.values()].map(({ server: other }) =>
        what === 'dynamicTool' ? other.sendToolListChanged() : other.sendPromptListChanged(),
      );
      await Promise.allSettled(told);
      return shown[what];
    },
  });

  handle(mcp.ListToolsRequestSchema, () => ({ tools: listTools(shown) }));
  handle(mcp.CallToolRequestSchema, ({ params }, extra) => {
    const run = findTool(params.name, shown);
    if (!run) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    return run(params.arguments ?? {}, context(extra));
  });
  handle(mcp.ListPromptsRequestSchema, () => ({ prompts: listPrompts(shown) }));
  handle(mcp.GetPromptRequestSchema, async ({ params }, extra) => {
    const get = findPrompt(params.name, shown);
    if (!get) throw new mcp.McpError(mcp.ErrorCode.InvalidParams, `Unknown prompt: ${params.name}`);
    return { messages: await get(params.arguments ?? {}, context(extra)) };
  });
  handle(mcp.ListResourcesRequestSchema, () => ({ resources }));
  handle(mcp.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: listTemplates() }));
  handle(mcp.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const content = readResource(uri);
    if (!content) throw new mcp.McpError(-32002, 'Resource not found', { uri });
    return { contents: [{ uri, ...content }] };
  });
  // No resource ever changes, so a subscription leads to nothing.
  handle(mcp.SubscribeRequestSchema, () => ({}));
  handle(mcp.UnsubscribeRequestSchema, () => ({}));
  handle(mcp.CompleteRequestSchema, ({ params }) => ({ completion: completions(params) }));
  handle(mcp.SetLevelRequestSchema, ({ params }) => {
    level = params.level;
    return {};
  });
  return server;
}

async function openSession() {
  const server = newServer();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new EventStore(),
    retryInterval: 500,
    onsessioninitialized: (id) => sessions.set(id, { server, transport }),
  });
  transport.onclose = () => sessions.delete(transport.sessionId);
  await server.connect(transport);
  return transport;
}

function refuse(response, status, code, message) {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ jsonrpc: '2.0', error: { code, message }, id: null }));
}

async function readBody(request) {
  const chunks = [];
  let bytes = 0;
  for await (const chunk of request) {
    bytes += chunk.length;
    if (bytes > BODY_BYTES_MAX) throw new Error('body too large');
    chunks.push(chunk);
  }
  return JSON.parse(Buffer.concat(chunks).toString('utf8'));
}

const hostName = (authority) => authority.replace(/:\d+$/, '').toLowerCase();

function isLocal({ host = '', origin }) {
  if (!LOOPBACK.has(hostName(host))) return false;
  return origin === undefined || LOOPBACK.has(hostName(origin.replace(/^https?:\/\//, '')));
}

async function serve(request, response) {
  if (!isLocal(request.headers)) return refuse(response, 403, -32000, 'Host or Origin is not allowed');
  if (new URL(request.url, 'http://localhost').pathname !== '/mcp') return refuse(response, 404, -32000, 'Not found');

  const id = request.headers['mcp-session-id'];
  const open = sessions.get(id);
  if (id !== undefined && !open) return refuse(response, 404, -32001, 'Session not found');
  if (request.method !== 'POST') {
    if (!open) return refuse(response, 400, -32000, 'Mcp-Session-Id is required');
    return open.transport.handleRequest(request, response);
  }

  let body;
  try {
    body = await readBody(request);
  } catch (error) {
    return refuse(response, 400, -32700, `Parse error: ${error.message}`);
  }
  if (open) return open.transport.handleRequest(request, response, body);
  if (!mcp.isInitializeRequest(body)) return refuse(response, 400, -32000, 'Mcp-Session-Id is required');
  if (sessions.size >= SESSIONS_MAX) return refuse(response, 503, -32000, 'Too many sessions');
  const transport = await openSession();
  return transport.handleRequest(request, response, body);
}

const { values } = parseArgs({ options: { port: { type: 'string', default: '0' } } });
const listener = createServer((request, response) => {
  serve(request, response).catch((error) => {
    console.error(error);
    if (!response.headersSent) refuse(response, 500, -32603, 'Internal error');
  });
});
listener.listen(Number(values.port), '127.0.0.1', () => {
  console.log(`listening http://127.0.0.1:${listener.address().port}/mcp`);
});

for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, async () => {
    listener.close();
    const closing = Promise.allSettled([...sessions.values()].map(({ transport }) => transport.close()));
    await Promise.race([closing, sleep(1000)]);
    process.exit(0);
  });
}
