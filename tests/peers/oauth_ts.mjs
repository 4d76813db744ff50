// Logs in with the TypeScript client 2, headless, and uses a server behind OAuth.
//
//   node oauth_ts.mjs URL USER legacy|auto STEPS_JSON
//
// Does each step in turn, and prints one JSON line of facts for each on stdout. Steps: {"tools": true}, {"whoami": true},
// {"sleep": MS}, {"task": TOOL, "ms": MS} (a call as a task of 2026-07-28, followed to its end), {"peek": ID} (whether
// the task with this id can be read), {"begin": TOOL, "ms": MS} (such a call, left to itself), {"refresh": true} (another
// token, though this one is good), {"finish": true} (the call that was begun, followed to its end). With PEER_KEY in the environment, that key of a gateway's goes along;
// with PEER_DPOP, its tokens are bound to a key, and each request has a proof. The facts have the number of logins and of refreshes until then.

import { setTimeout as sleep } from 'node:timers/promises';
import { auth, Client, DpopSession, StreamableHTTPClientTransport, UnauthorizedError, withDpopFromProvider } from '@modelcontextprotocol/client';

const VERSION = '2026-07-28';
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };
const REDIRECT = 'http://127.0.0.1:1/callback';
const HOPS_MAX = 12;
const POLLS_MAX = 1_500;

const [url, user, mode, steps] = process.argv.slice(2);
if (steps === undefined || !['legacy', 'auto'].includes(mode)) {
  console.error('usage: oauth_ts.mjs URL USER legacy|auto STEPS_JSON');
  process.exit(2);
}

const seen = { logins: 0, tokens: 0 };
const keyed = process.env.PEER_KEY ? { 'X-Taskgate-Key': process.env.PEER_KEY } : {};

/** Follows an authorization to its end, as a browser would whose user is known. */
async function browse(address) {
  const cookies = new Map();
  let at = new URL(address);
  at.searchParams.set('login_hint', user);
  for (let hop = 0; hop < HOPS_MAX; hop += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(at, { redirect: 'manual', headers: cookie ? { cookie } : {} });
    for (const line of response.headers.getSetCookie()) {
      const [name, value] = line.split(';')[0].split('=');
      if (value) cookies.set(name, value);
      else cookies.delete(name);
    }
    const location = response.headers.get('location');
    if (!location) throw new Error(`HTTP ${response.status} at ${at}: ${await response.text()}`);
    at = new URL(location, at);
    if (at.href.startsWith(REDIRECT)) return at.searchParams;
  }
  throw new Error('the authorization does not end');
}

class Login {
  get redirectUrl() {
    return REDIRECT;
  }
  get clientMetadata() {
    return {
      client_name: 'taskgate peer',
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      scope: 'mcp offline_access',
    };
  }
  clientInformation() {
    return this.information;
  }
  saveClientInformation(information) {
    this.information = information;
  }
  tokens() {
    return this.kept;
  }
  saveTokens(tokens) {
    seen.tokens += 1;
    this.kept = tokens;
  }
  async redirectToAuthorization(address) {
    seen.logins += 1;
    this.returned = await browse(address);
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
  saveDiscoveryState(state) {
    this.discovered = state;
  }
  discoveryState() {
    return this.discovered;
  }
}

const login = new Login();
if (process.env.PEER_DPOP) {
  const session = await DpopSession.create();
  login.dpop = () => session;
}
const send = process.env.PEER_DPOP ? withDpopFromProvider(login)(fetch) : fetch;
let begun;

async function connected() {
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const client = new Client(CLIENT, { capabilities: {}, versionNegotiation: { mode } });
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: login, requestInit: { headers: keyed } });
    try {
      await client.connect(transport);
      return client;
    } catch (error) {
      if (!(error instanceof UnauthorizedError) && !(error.cause instanceof UnauthorizedError)) throw error;
      await transport.finishAuth(login.returned);
    }
  }
  throw new Error('logged in, and not let in');
}

/** One request of 2026-07-28 by hand: the client knows no tasks. A 401 is answered as its transport does. */
async function ask(method, params) {
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method,
    params: {
      ...params,
      _meta: {
        'io.modelcontextprotocol/protocolVersion': VERSION,
        'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} } },
      },
    },
  });
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const response = await send(url, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        Accept: 'application/json, text/event-stream',
        Authorization: `Bearer ${login.kept.access_token}`,
        'MCP-Protocol-Version': VERSION,
        'Mcp-Method': method,
        'Mcp-Name': params.name ?? params.taskId,
        ...keyed,
      },
      body,
    });
    if (response.status !== 401) {
      const said = await response.text();
      const event = said.split('\n').findLast((line) => line.startsWith('data:'));
      return JSON.parse(event ? event.slice(5) : said);
    }
    await response.body?.cancel();
    if ((await auth(login, { serverUrl: url })) !== 'AUTHORIZED') throw new Error('a refresh was to do');
  }
  throw new Error('refreshed, and not let in');
}

async function begin(tool, ms) {
  const made = await ask('tools/call', { name: tool, arguments: { ms } });
  if (!made.result?.taskId) throw new Error(`no handle: ${JSON.stringify(made)}`);
  return made.result.taskId;
}

async function finish(taskId) {
  for (let poll = 0; poll < POLLS_MAX; poll += 1) {
    const { result } = await ask('tasks/get', { taskId });
    if (result.status !== 'working') {
      const { status, error } = result;
      return { taskId, status, text: result.result?.content?.[0]?.text, reason: error?.data?.reason, executed: error?.data?.executed };
    }
    await sleep(100);
  }
  throw new Error('the task does not end');
}

async function step(client, wanted) {
  if (wanted.tools) return { tools: (await client.listTools()).tools.map(({ name }) => name) };
  if (wanted.whoami) return { text: (await client.callTool({ name: 'whoami', arguments: {} })).content[0].text };
  if (wanted.task) return finish(await begin(wanted.task, wanted.ms));
  if (wanted.begin) return { taskId: (begun = await begin(wanted.begin, wanted.ms)) };
  if (wanted.finish) return finish(begun);
  if (wanted.refresh) {
    const before = login.kept.access_token;
    if ((await auth(login, { serverUrl: url })) !== 'AUTHORIZED') throw new Error('a refresh was to do');
    return { isNew: login.kept.access_token !== before };
  }
  if (wanted.peek) {
    const { result, error } = await ask('tasks/get', { taskId: wanted.peek });
    return { status: result?.status, code: error?.code, message: error?.message };
  }
  await sleep(wanted.sleep);
  return {};
}

const client = await connected();
for (const wanted of JSON.parse(steps)) {
  const facts = await step(client, wanted);
  console.log(`facts ${JSON.stringify({ ...facts, logins: seen.logins, refreshes: seen.tokens - seen.logins, scheme: login.kept?.token_type })}`);
}
await client.close();
process.exit(0);
