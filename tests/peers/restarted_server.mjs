// A server whose sessions are lost when it is started again: any release of the TypeScript SDK 1 with streamable HTTP,
// written as the SDK's own example is.
//
//   node restarted_server.mjs --ledger FILE [--port N]      prints `listening http://127.0.0.1:PORT/mcp`
//
// Its tool `count` writes its argument into FILE, one a line: what ran twice stands there twice.

import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema, ListToolsRequestSchema, isInitializeRequest,
} from '@modelcontextprotocol/sdk/types.js';

const SESSIONS_MAX = 1024;
const { values } = parseArgs({ options: { port: { type: 'string', default: '0' }, ledger: { type: 'string' } } });
const sessions = new Map();

function newServer() {
  const server = new Server({ name: 'restarted', version: '1' }, { capabilities: { tools: {} } });
  const inputSchema = { type: 'object', properties: { nonce: { type: 'string' } }, required: ['nonce'] };
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [{ name: 'count', inputSchema }] }));
  server.setRequestHandler(CallToolRequestSchema, ({ params }) => {
    appendFileSync(values.ledger, `${params.arguments.nonce}\n`);
    return { content: [{ type: 'text', text: params.arguments.nonce }] };
  });
  return server;
}

async function answer(request, response) {
  const open = sessions.get(request.headers['mcp-session-id']);
  if (open) return open.handleRequest(request, response);
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = request.method === 'POST' ? JSON.parse(Buffer.concat(chunks).toString('utf8')) : undefined;
  if (!isInitializeRequest(body) || request.headers['mcp-session-id'] || sessions.size >= SESSIONS_MAX) {
    response.writeHead(400, { 'content-type': 'application/json' });
    const error = { code: -32000, message: 'Bad Request: No valid session ID provided' };
    return response.end(JSON.stringify({ jsonrpc: '2.0', error, id: null }));
  }
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => sessions.set(id, transport),
  });
  transport.onclose = () => sessions.delete(transport.sessionId);
  await newServer().connect(transport);
  return transport.handleRequest(request, response, body);
}

const listener = createServer((request, response) => {
  answer(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
listener.listen(Number(values.port), '127.0.0.1', () => {
  console.log(`listening http://127.0.0.1:${listener.address().port}/mcp`);
});
