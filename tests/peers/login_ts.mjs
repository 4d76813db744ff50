// Logs in with the TypeScript client 2, headless, and calls tools as tasks with ext-tasks.
//
//   node login_ts.mjs JSON      {url, flow, user, steps; issuer, identity, signer, certificate, mode, key, cookie}
//
// Does each of `steps` in turn, and prints a line `facts JSON` for it. The facts hold the number of `logins` in the browser and of `tokens`
// until then, and the `scheme` of the last token; a step that fails has its code as `error`. Steps:
//
//   {"tools": true}             lists the tools
//   {"call": TOOL}              calls a tool, not as a task
//   {"stepUp": TOOL}            calls a tool that needs a further scope: logs in once more, and calls it again
//   {"task": TOOL, "ms": MS}    calls a tool as a task, and follows the task to its end
//   {"begin": TOOL, "ms": MS}   calls a tool as a task
//   {"finish": true}            follows the task that `begin` made to its end
//   {"peek": ID}                reads a task
//   {"refresh": true}           gets another token although the present one is good
//   {"sleep": MS}
//
// `flow` is a key of FLOWS. `identity` is the company's identity provider, `signer` a private key, `certificate` names files. `mode` is
// `legacy` for sessions. `key` is an API key of the gateway, `cookie` that of a user who is logged in at the authorization server.

import { setTimeout as sleep } from 'node:timers/promises';
import {
  auth, Client, ClientCredentialsProvider, CrossAppAccessProvider, discoverAndRequestJwtAuthGrant, discoverAuthorizationServerMetadata, DpopSession,
  exchangeAuthorization, PrivateKeyJwtProvider, startAuthorization, StreamableHTTPClientTransport, UnauthorizedError, withOAuth,
} from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';
import { fetchWithCertificate } from './certificate_fetch.mjs';
import { Browser, CLIENT_METADATA, REDIRECT } from './login_browser.mjs';

const VERSION = '2026-07-28';
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };
const CAPABILITIES = { extensions: { 'io.modelcontextprotocol/tasks': {} } };
const DOCUMENT = 'https://client.example/taskgate-peer.json';

const { url, issuer, identity, flow, user, signer, certificate, mode = 'auto', key, cookie, steps } = JSON.parse(process.argv[2]);
const browser = new Browser(user, cookie);
const counts = { tokens: 0, polls: 0 };
const keyHeader = key ? { 'X-Taskgate-Key': key } : {};

/** A person's login. It remembers what a host would keep. */
class Login {
  constructor(more) {
    Object.assign(this, more);
  }
  get redirectUrl() {
    return REDIRECT;
  }
  get clientMetadata() {
    return CLIENT_METADATA;
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
    this.kept = tokens;
  }
  async redirectToAuthorization(address) {
    await browser.open(address);
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

/** An identity token, as a host has it when its user is logged in at the company's identity provider. */
async function identityToken() {
  const metadata = await discoverAuthorizationServerMetadata(identity);
  const clientInformation = { client_id: 'app', client_secret: 'app-password' };
  const begun = await startAuthorization(identity, { metadata, clientInformation, redirectUrl: REDIRECT, scope: 'openid' });
  await browser.open(begun.authorizationUrl);
  const tokens = await exchangeAuthorization(identity, {
    metadata, clientInformation, redirectUri: REDIRECT, codeVerifier: begun.codeVerifier,
    authorizationCode: browser.returned.get('code'), iss: browser.returned.get('iss'),
  });
  return tokens.id_token;
}

/** A client that was registered before. */
const KNOWN = { information: { client_id: 'desk' } };

const FLOWS = {
  certificate: () => undefined,
  registration: () => new Login(),
  document: () => new Login({ clientMetadataUrl: DOCUMENT }),
  known: () => new Login(KNOWN),
  credentials: () => new ClientCredentialsProvider({ clientId: 'machine', clientSecret: 'machine-password', expectedIssuer: issuer }),
  signed: () => new PrivateKeyJwtProvider({ clientId: 'signer', privateKey: signer, algorithm: 'RS256', expectedIssuer: issuer }),
  assertion: async () => {
    const idToken = await identityToken();
    const assertion = async ({ authorizationServerUrl: audience, resourceUrl: resource, scope, fetchFn }) => {
      const known = { clientId: 'app-post', clientSecret: 'app-post-password' };
      return (await discoverAndRequestJwtAuthGrant({ idpUrl: identity, audience, resource, idToken, scope, fetchFn, ...known })).jwtAuthGrant;
    };
    return new CrossAppAccessProvider({ assertion, clientId: 'app', clientSecret: 'app-password', expectedIssuer: issuer });
  },
  dpop: async () => {
    const session = await DpopSession.create();
    return new Login({ dpop: () => session });
  },
  'known-dpop': async () => {
    const session = await DpopSession.create();
    return new Login({ ...KNOWN, dpop: () => session });
  },
};

const provider = await FLOWS[flow]();
if (provider) {
  const save = provider.saveTokens.bind(provider);
  provider.saveTokens = (tokens, ...more) => {
    counts.tokens += 1;
    counts.scheme = tokens.token_type;
    return save(tokens, ...more);
  };
}
const plainFetch = certificate ? fetchWithCertificate(certificate) : fetch;
const send = provider ? withOAuth(provider, new URL(url))(plainFetch) : plainFetch;

const isUnauthorized = (error) => error instanceof UnauthorizedError || (error.cause !== undefined && isUnauthorized(error.cause));

/** Returns the value of `act`; undefined if a login was necessary, so that it must be called again. */
async function loggedIn(transport, act) {
  try {
    return await act();
  } catch (error) {
    if (!isUnauthorized(error)) throw error;
    await transport.finishAuth(browser.returned);
    return undefined;
  }
}

async function connect() {
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const client = new Client(CLIENT, { capabilities: CAPABILITIES, versionNegotiation: { mode } });
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider, fetch: plainFetch, requestInit: { headers: keyHeader } });
    const isConnected = await loggedIn(transport, async () => {
      await client.connect(transport);
      return true;
    });
    if (isConnected) return { client, transport };
  }
  throw new Error('refused after the login');
}

let lastId = 0;

/** Sends a request by one POST with the SDK's login: ext-tasks asks its host for this. */
async function rawDispatch(request, { signal } = {}) {
  const id = `raw-${lastId++}`;
  if (request.method === 'tasks/get') counts.polls += 1;
  const response = await send(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': VERSION,
      'Mcp-Method': request.method,
      'Mcp-Name': request.params.name ?? request.params.taskId,
      ...keyHeader,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id, ...request }),
    signal,
  });
  const body = await response.text();
  const lines = body.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => JSON.parse(line.slice(5)));
  const answer = lines.find((message) => message.id === id) ?? JSON.parse(body);
  return answer.error ? { kind: 'error', error: answer.error } : { kind: 'result', result: answer.result };
}

const textOf = (result) => result?.content?.[0]?.text;
let [connection, taskSession, execution] = [];

async function begin(tool, ms) {
  taskSession ??= createTaskSessionFromClient(connection.client, {
    endpointId: 'taskgate-peer',
    rawDispatch,
    v2RequestFraming: { protocolVersion: VERSION, clientInfo: CLIENT, clientCapabilities: CAPABILITIES },
  });
  execution = await taskSession.callTool(tool, { ms });
  if (execution.kind !== 'task') throw new Error('the call was not answered with a task');
  return execution.handle.taskId;
}

async function finish() {
  const { taskId } = execution.handle;
  const { status, result, error } = await execution.result();
  return { taskId, status, text: textOf(result), reason: error?.data?.reason, executed: error?.data?.executed, polls: counts.polls };
}

async function peek(taskId) {
  const meta = { 'io.modelcontextprotocol/protocolVersion': VERSION, 'io.modelcontextprotocol/clientCapabilities': CAPABILITIES };
  const { result, error } = await rawDispatch({ method: 'tasks/get', params: { taskId, _meta: meta } });
  return { status: result?.status, code: error?.code, message: error?.message };
}

async function stepUp(tool) {
  const call = () => connection.client.callTool({ name: tool, arguments: { ms: 0 } });
  if ((await loggedIn(connection.transport, call)) !== undefined) throw new Error('the narrow token was enough');
  return { text: textOf(await call()) };
}

async function refresh() {
  const before = provider.tokens().access_token;
  if ((await auth(provider, { serverUrl: url })) !== 'AUTHORIZED') throw new Error('the token was not refreshed');
  return { isNew: provider.tokens().access_token !== before };
}

async function factsOf(step) {
  connection ??= await connect();
  if (step.tools) return { tools: (await connection.client.listTools()).tools.map(({ name }) => name) };
  if (step.call) return { text: textOf(await connection.client.callTool({ name: step.call, arguments: {} })) };
  if (step.stepUp) return stepUp(step.stepUp);
  if (step.begin) return { taskId: await begin(step.begin, step.ms) };
  if (step.finish) return finish();
  if (step.peek) return peek(step.peek);
  if (step.refresh) return refresh();
  if (step.sleep) return sleep(step.sleep, {});
  await begin(step.task, step.ms);
  return finish();
}

/** The code of the innermost cause, such as that of a TLS alert. */
const codeOf = (error) => (error.cause ? codeOf(error.cause) : (error.code ?? error.message));

for (const step of steps) {
  const facts = await factsOf(step).catch((error) => {
    console.error(error);
    return { error: codeOf(error) };
  });
  console.log(`facts ${JSON.stringify({ ...facts, logins: browser.logins, tokens: counts.tokens, scheme: counts.scheme })}`);
}
process.exit(0);
