// An MCP server that checks the tokens of login_issuer.mjs itself.
//
//   node login_server.mjs stateless|session ISSUER
//
// prints `ready URL` on stdout. It accepts tokens for the address of a gateway on this machine that has it as `up`. Tools: `whoami`,
// `slow` {ms}, and `job` {ms}, which a stateless server makes a task of.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { createRemoteJWKSet, jwtVerify } from 'jose';

const VERSION = '2026-07-28';
const AUDIENCE = /^http:\/\/127\.0\.0\.1:\d+\/up\/mcp$/;
const BODY_MAX = 64 * 1024;
/** So much too early is the `exp` of the authorization server's tokens. */
const EARLY_SECONDS = 58;

const [kind, issuer] = process.argv.slice(2);
if (!['stateless', 'session'].includes(kind) || issuer === undefined) {
  console.error('usage: login_server.mjs stateless|session ISSUER');
  process.exit(2);
}
const isStateless = kind === 'stateless';
const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));

const tools = ['whoami', 'slow', 'job'].map((name) => ({ name, inputSchema: { type: 'object' } }));
const sessions = new Map();
const jobs = new Map();

/** The subject of a token for the gateway in front of this server; undefined for any other token. */
async function subjectOf(request) {
  const token = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1];
  if (!token) return undefined;
  try {
    const { payload } = await jwtVerify(token, keys, { issuer, algorithms: ['RS256'], clockTolerance: EARLY_SECONDS });
    return AUDIENCE.test(payload.aud) && payload.scope === 'mcp' ? payload.sub : undefined;
  } catch {
    return undefined;
  }
}

const complete = (result) => (isStateless ? { ...result, resultType: 'complete', ttlMs: 0, cacheScope: 'private' } : result);
const text = (value) => ({ content: [{ type: 'text', text: value }] });

function taskOf(id, job) {
  const isDone = Date.now() >= job.due;
  const state = isDone ? { status: 'completed', result: { ...text(`done for ${job.subject}`), resultType: 'complete' } } : { status: 'working' };
  return { taskId: id, ttlMs: 600_000, pollIntervalMs: 200, createdAt: job.at, lastUpdatedAt: job.at, ...state };
}

async function resultOf({ method, params }, subject) {
  switch (method) {
    case 'tools/list':
      return complete({ tools });
    case 'server/discover':
      if (!isStateless) return undefined;
      return complete({
        supportedVersions: [VERSION],
        capabilities: { tools: {}, extensions: { 'io.modelcontextprotocol/tasks': {} } },
        _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'protected', version: '1' } },
      });
    case 'initialize':
      if (isStateless) return undefined;
      return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'protected', version: '1' } };
    case 'ping':
      return {};
    case 'tasks/get': {
      const job = jobs.get(params.taskId);
      return job?.subject === subject ? { ...taskOf(params.taskId, job), resultType: 'complete' } : undefined;
    }
    case 'tools/call': {
      const { name, arguments: { ms = 0 } = {} } = params;
      if (name === 'whoami') return complete(text(subject));
      if (name === 'job' && isStateless) {
        const [id, job] = [randomUUID(), { subject, due: Date.now() + ms, at: new Date().toISOString() }];
        jobs.set(id, job);
        return { ...taskOf(id, { ...job, due: Infinity }), resultType: 'task' };
      }
      await sleep(ms);
      return complete(text(`done for ${subject}`));
    }
    default:
      return undefined;
  }
}

function refusalOf({ method }) {
  if (isStateless && method === 'initialize') {
    return { status: 400, error: { code: -32022, message: 'no sessions here', data: { supported: [VERSION] } } };
  }
  return { status: 200, error: { code: -32601, message: 'Method not found' } };
}

async function bodyOf(request) {
  let body = '';
  for await (const piece of request) {
    body += piece;
    if (body.length > BODY_MAX) throw new Error('too large');
  }
  return JSON.parse(body);
}

async function serve(request, response) {
  const send = (status, value, headers = {}) => {
    response.writeHead(status, { ...(value && { 'content-type': 'application/json' }), ...headers });
    response.end(value && JSON.stringify(value));
  };
  const at = `http://${request.headers.host}`;
  if (request.url === '/.well-known/oauth-protected-resource/mcp') {
    return send(200, { resource: `${at}/mcp`, authorization_servers: [issuer], scopes_supported: ['mcp'], bearer_methods_supported: ['header'] });
  }
  if (request.url !== '/mcp') return send(404);
  const subject = await subjectOf(request);
  if (subject === undefined) {
    const error = request.headers.authorization ? ', error="invalid_token"' : '';
    const metadata = `${at}/.well-known/oauth-protected-resource/mcp`;
    return send(401, undefined, { 'www-authenticate': `Bearer resource_metadata="${metadata}", scope="mcp"${error}` });
  }
  if (request.method === 'DELETE') return send(200);
  if (request.method !== 'POST') return send(405, undefined, { allow: 'POST' });
  const message = await bodyOf(request);
  const session = request.headers['mcp-session-id'];
  // Only the subject that opened a session may use it.
  if (!isStateless && session !== undefined && sessions.get(session) !== subject) return send(404);
  if (message.id === undefined) return send(202);
  const result = await resultOf(message, subject);
  const answer = { jsonrpc: '2.0', id: message.id };
  if (result === undefined) {
    const { status, error } = refusalOf(message);
    return send(status, { ...answer, error });
  }
  const headers = {};
  if (message.method === 'initialize') {
    headers['mcp-session-id'] = randomUUID();
    sessions.set(headers['mcp-session-id'], subject);
  }
  return send(200, { ...answer, result }, headers);
}

const resourceServer = createServer((request, response) => {
  serve(request, response).catch((error) => {
    console.error('resource server:', error);
    response.destroy();
  });
});
resourceServer.listen(0, '127.0.0.1', () => console.log(`ready http://127.0.0.1:${resourceServer.address().port}/mcp`));
