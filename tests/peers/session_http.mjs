// What the upstreams written with the TypeScript SDK 1 share: sessions over streamable HTTP on loopback,
// each with an event store, so that clients can resume.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js';

const SESSIONS_MAX = 1024;
const EVENTS_PER_SESSION_MAX = 512;
const BODY_BYTES_MAX = 8 * 1024 * 1024;
const RETRY_MS = 500;
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]']);

/** The open sessions by id, each `{ server, transport }`. */
export const sessions = new Map();

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

async function openSession(newServer) {
  const server = newServer();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new EventStore(),
    retryInterval: RETRY_MS,
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

async function answer(newServer, request, response) {
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
  if (!isInitializeRequest(body)) return refuse(response, 400, -32000, 'Mcp-Session-Id is required');
  if (sessions.size >= SESSIONS_MAX) return refuse(response, 503, -32000, 'Too many sessions');
  const transport = await openSession(newServer);
  return transport.handleRequest(request, response, body);
}

/** Serves `newServer()` for each session on the port of the command line, until a signal ends the process. */
export function serve(newServer) {
  const { values } = parseArgs({ options: { port: { type: 'string', default: '0' } } });
  const listener = createServer((request, response) => {
    answer(newServer, request, response).catch((error) => {
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
}
