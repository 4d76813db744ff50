// Logs in with the MCP client of the AI SDK, headless, and follows slow calls by the gateway's tools for tasks.
//
//   node login_ai_sdk.mjs JSON      {url, flow, user, steps}
//
// Steps and facts are those of login_ts.mjs; it has {"toolTask": TOOL, "ms": MS} alone. Flows: `registration`, and `known` for a client that
// was registered before.

import { auth, createMCPClient, UnauthorizedError } from '@ai-sdk/mcp';
import { Browser, CLIENT_METADATA, REDIRECT } from './login_browser.mjs';

const WAITS_MAX = 120;

const { url, flow, user, steps } = JSON.parse(process.argv[2]);
if (!['registration', 'known'].includes(flow)) throw new Error(`no flow ${flow}`);
const browser = new Browser(user);
const seen = { tokens: 0, scheme: undefined };
const kept = { client: flow === 'known' ? { client_id: 'desk' } : undefined };

const provider = {
  redirectUrl: REDIRECT,
  clientMetadata: CLIENT_METADATA,
  clientInformation: () => kept.client,
  isClientInformationDynamicallyRegistered: () => flow === 'registration',
  saveClientInformation: (client) => {
    if (flow === 'known') throw new Error('the client is registered already');
    kept.client = client;
  },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => {
    seen.tokens += 1;
    seen.scheme = tokens.token_type;
    kept.tokens = tokens;
  },
  authorizationServerInformation: () => kept.server,
  saveAuthorizationServerInformation: (server) => {
    kept.server = server;
  },
  redirectToAuthorization: (address) => browser.open(address),
  saveCodeVerifier: (verifier) => {
    kept.verifier = verifier;
  },
  codeVerifier: () => kept.verifier,
};

const isUnauthorized = (error) => error instanceof UnauthorizedError || (error.cause !== undefined && isUnauthorized(error.cause));

async function connect() {
  for (let attempt = 0; attempt < 2; attempt += 1) {
    try {
      return await createMCPClient({ transport: { type: 'http', url, authProvider: provider }, clientName: 'taskgate-peer' });
    } catch (error) {
      if (!isUnauthorized(error)) throw error;
      const { returned } = browser;
      await auth(provider, { serverUrl: url, authorizationCode: returned.get('code'), callbackIssuer: returned.get('iss') ?? undefined });
    }
  }
  throw new Error('refused after the login');
}

const client = await connect();
const call = (name, values) => client.callTool({ name, arguments: values });

for (const { toolTask: tool, ms } of steps) {
  let result = await call(tool, { ms });
  const id = result.structuredContent?.taskId;
  if (id === undefined) throw new Error(`no task: ${JSON.stringify(result)}`);
  let polls = 0;
  for (; result.structuredContent?.status === 'working' && polls < WAITS_MAX; polls += 1) {
    result = await call('task_result', { id, wait_seconds: 1 });
  }
  const status = result.isError ? 'failed' : 'completed';
  console.log(`facts ${JSON.stringify({ status, text: result.content[0].text, polls, logins: browser.logins, ...seen })}`);
}
process.exit(0);
