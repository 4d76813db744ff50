// An upstream of both eras whose tools ask in mid-call: the server of the TypeScript SDK 2.
//
//   node asking_ts_server.mjs [--ledger FILE] [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
//
// With `--ledger` its tool `count` writes its argument into FILE, one a line: what ran twice stands there twice.
// Requests of 2026-07-28 go to the SDK's handler, all others to sessions, as its authors wire both.

import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { getRequestListener } from '@hono/node-server';
import {
  McpServer,
  WebStandardStreamableHTTPServerTransport,
  createMcpHandler,
  isLegacyRequest,
} from '@modelcontextprotocol/server';
import * as z from 'zod/v4';

const SESSIONS_MAX = 1024;
const { values } = parseArgs({ options: { port: { type: 'string', default: '0' }, ledger: { type: 'string' } } });
const sessions = new Map();
const say = (text) => ({ content: [{ type: 'text', text }] });

function newServer() {
  const server = new McpServer({ name: 'ts-asking', version: '1.0.0' });
  server.registerTool('greet', { inputSchema: z.object({ name: z.string() }) }, ({ name }) => say(`Hello, ${name}!`));
  server.registerTool('ask', { inputSchema: z.object({ question: z.string() }) }, async ({ question }, { mcpReq }) => {
    const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
    const { action, content = {} } = await mcpReq.elicitInput({ message: question, requestedSchema });
    return say(`${action}: ${content.name}`);
  });
  server.registerTool('complete', { inputSchema: z.object({ prompt: z.string() }) }, async ({ prompt }, { mcpReq }) => {
    const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
    const { content } = await mcpReq.requestSampling({ messages, maxTokens: 50 });
    return say(`model: ${content.text}`);
  });
  if (values.ledger) {
    server.registerTool('count', { inputSchema: z.object({ nonce: z.string() }) }, ({ nonce }) => {
      appendFileSync(values.ledger, `${nonce}\n`);
      return say(nonce);
    });
  }
  return server;
}

const modern = createMcpHandler(newServer, { legacy: 'reject' });

async function session(request) {
  const open = sessions.get(request.headers.get('mcp-session-id'));
  if (open) return open.handleRequest(request);
  if (request.headers.has('mcp-session-id')) return new Response('no such session', { status: 404 });
  if (sessions.size >= SESSIONS_MAX) return new Response('too many sessions', { status: 503 });
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await newServer().connect(transport);
  return transport.handleRequest(request);
}

const answer = async (request) => ((await isLegacyRequest(request)) ? session(request) : modern.fetch(request));
const listener = createServer(getRequestListener(answer));
listener.listen(Number(values.port), '127.0.0.1', () => {
  console.log(`listening http://127.0.0.1:${listener.address().port}/mcp`);
});
