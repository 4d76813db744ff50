// Logs in at a gateway with the TypeScript client 2, headless, and follows a slow call with ext-tasks while its token expires.
//
//   node login_ts.mjs JSON      {url, issuer, identity, flow, user, tool, ms, signer}
//
// `identity` is the company's identity provider. It prints `facts JSON`: the `tools`, `status` and `text` of the task, how often it was polled, the number of `logins` in the browser and of
// `tokens`, the `scheme` of the last one. Flows: those of FLOWS.

import {
  Client, ClientCredentialsProvider, CrossAppAccessProvider, discoverAndRequestJwtAuthGrant, discoverAuthorizationServerMetadata, DpopSession,
  exchangeAuthorization, PrivateKeyJwtProvider, startAuthorization, StreamableHTTPClientTransport, UnauthorizedError, withOAuth,
} from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';
import { Browser, REDIRECT } from './login_browser.mjs';

const VERSION = '2026-07-28';
const CLIENT = { name: 'taskgate-peer', version: '1.0.0' };
const CAPABILITIES = { extensions: { 'io.modelcontextprotocol/tasks': {} } };
const DOCUMENT = 'https://client.example/taskgate-peer.json';

const { url, issuer, identity, flow, user, tool, ms, signer } = JSON.parse(process.argv[2]);
const browser = new Browser(user);
const seen = { tokens: 0, scheme: undefined };

/** A person's login, with what a host would keep. */
class Login {
  constructor(more) {
    Object.assign(this, more);
  }
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

/** An identity token, as a host has it whose user is logged in at the company's identity provider. */
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

const FLOWS = {
  registration: () => new Login(),
  document: () => new Login({ clientMetadataUrl: DOCUMENT }),
  'step-up': () => new Login({ clientMetadataUrl: DOCUMENT }),
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
};

const provider = await FLOWS[flow]();
const save = provider.saveTokens.bind(provider);
provider.saveTokens = (tokens, ...more) => {
  seen.tokens += 1;
  seen.scheme = tokens.token_type;
  return save(tokens, ...more);
};

/** Does something that may need the browser first. */
async function loggedIn(transport, act) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof UnauthorizedError) && !(error.cause instanceof UnauthorizedError)) throw error;
    await transport.finishAuth(browser.returned);
    return undefined;
  }
}

async function connected() {
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const client = new Client(CLIENT, { capabilities: CAPABILITIES, versionNegotiation: { mode: 'auto' } });
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
    const isConnected = await loggedIn(transport, async () => {
      await client.connect(transport);
      return true;
    });
    if (isConnected) return { client, transport };
  }
  throw new Error('logged in, and not let in');
}

let [polls, lastId] = [0, 0];
const send = withOAuth(provider, new URL(url))(fetch);

/** The host's own request path, which ext-tasks asks for: one POST for one request, with the SDK's login. */
async function rawDispatch(request, { signal } = {}) {
  const id = `raw-${lastId++}`;
  if (request.method === 'tasks/get') polls += 1;
  const response = await send(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': VERSION,
      'Mcp-Method': request.method,
      ...(request.method === 'tools/call' ? { 'Mcp-Name': request.params.name } : {}),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id, ...request }),
    signal,
  });
  const body = await response.text();
  const lines = body.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => JSON.parse(line.slice(5)));
  const answer = lines.find((message) => message.id === id) ?? JSON.parse(body);
  return answer.error ? { kind: 'error', error: answer.error } : { kind: 'result', result: answer.result };
}

const { client, transport } = await connected();
const tools = (await client.listTools()).tools.map(({ name }) => name);
if (flow === 'step-up') {
  const call = () => client.callTool({ name: tool, arguments: { ms: 0 } });
  if ((await loggedIn(transport, call)) !== undefined) throw new Error('the narrow token was enough');
  await call();
}
const session = createTaskSessionFromClient(client, {
  endpointId: 'taskgate-peer',
  rawDispatch,
  v2RequestFraming: { protocolVersion: VERSION, clientInfo: CLIENT, clientCapabilities: CAPABILITIES },
});
const execution = await session.callTool(tool, { ms });
if (execution.kind !== 'task') throw new Error('the call was not answered with a task');
const outcome = await execution.result();
const text = outcome.result?.content?.[0]?.text;
console.log(`facts ${JSON.stringify({ tools, status: outcome.status, text, polls, logins: browser.logins, ...seen })}`);
process.exit(0);
