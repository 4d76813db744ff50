// An MCP server behind OAuth: an authorization server by oidc-provider, and a resource server that checks its tokens.
//
//   node oauth_server.mjs stateless|session TOKEN_SECONDS
//
// prints `as URL` and `ready URL` on stdout, then `granted TYPE SUBJECT` for each token. Whoever asks for authorization
// is logged in as `login_hint` says, and consents: there is no page. Tokens are for the address of a gateway on this
// machine that has this server as `up`, and for no other. Tools: `whoami`, `slow` {ms}, and `job` {ms}, which a stateless
// server makes a task of.

import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { createLocalJWKSet, jwtVerify } from 'jose';
import { Provider } from 'oidc-provider';

const VERSION = '2026-07-28';
const AUDIENCE = /^http:\/\/127\.0\.0\.1:\d+\/up\/mcp$/;
const BODY_MAX = 64 * 1024;

const [kind, tokenSeconds] = process.argv.slice(2);
if (!['stateless', 'session'].includes(kind) || !(Number(tokenSeconds) > 0)) {
  console.error('usage: oauth_server.mjs stateless|session TOKEN_SECONDS');
  process.exit(2);
}
const isStateless = kind === 'stateless';

const key = { ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), alg: 'RS256', use: 'sig', kid: 'one' };
const { d, p, q, dp, dq, qi, ...publicKey } = key;
const keys = createLocalJWKSet({ keys: [publicKey] });

const listen = (server) => new Promise((done) => server.listen(0, '127.0.0.1', () => done(`http://127.0.0.1:${server.address().port}`)));

// --- the authorization server

let handleAuthorization;
const authorizationServer = createServer((request, response) => handleAuthorization(request, response));
const issuer = await listen(authorizationServer);

const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  cookies: { keys: [randomUUID()] },
  scopes: ['openid', 'offline_access', 'mcp'],
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  issueRefreshToken: () => true,
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
  features: {
    devInteractions: { enabled: false },
    dPoP: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: 'mcp',
        audience: resource,
        accessTokenTTL: Number(tokenSeconds),
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
});
provider.on('grant.success', ({ oidc }) => console.log(`granted ${oidc.params.grant_type} ${oidc.account?.accountId}`));
provider.on('server_error', (_, error) => console.error('authorization server:', error));

async function interact(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: params.login_hint } });
  }
  const ids = { accountId: session.accountId, clientId: params.client_id };
  const grant = (grantId && (await provider.Grant.find(grantId))) ?? new provider.Grant(ids);
  grant.addOIDCScope('openid offline_access mcp');
  grant.addResourceScope(params.resource, 'mcp');
  const consent = { grantId: await grant.save() };
  return provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

const callback = provider.callback();
handleAuthorization = (request, response) => {
  if (!request.url.startsWith('/interaction/')) return callback(request, response);
  return interact(request, response).catch((error) => {
    console.error('interaction:', error);
    response.writeHead(500).end(String(error));
  });
};

// --- the resource server

const tools = ['whoami', 'slow', 'job'].map((name) => ({ name, inputSchema: { type: 'object' } }));
const sessions = new Map();
const jobs = new Map();

/** Whose token this is, if it is one for the gateway in front of this server. */
async function subjectOf(request) {
  const token = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '')?.[1];
  if (!token) return undefined;
  try {
    const { payload } = await jwtVerify(token, keys, { issuer, algorithms: ['RS256'], clockTolerance: 0 });
    return AUDIENCE.test(payload.aud) && payload.scope === 'mcp' ? payload.sub : undefined;
  } catch {
    return undefined;
  }
}

const complete = (result) => (isStateless ? { ...result, resultType: 'complete', ttlMs: 0, cacheScope: 'private' } : result);
const text = (said) => ({ content: [{ type: 'text', text: said }] });

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
  // A session is its opener's.
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
console.log(`as ${issuer}`);
console.log(`ready ${await listen(resourceServer)}/mcp`);
