// An authorization server by oidc-provider.
//
//   node login_issuer.mjs jwt|opaque TOKEN_SECONDS [IDENTITY_PROVIDER]
//
// prints `signer PEM_JSON` (the private key of the client `signer`) and `as URL` on stdout, then `granted TYPE SUBJECT RESOURCE` for each
// token. It has no pages: a user is logged in as `login_hint` says, and consents. Clients register themselves, or have a metadata document,
// or are one of these, each with the password `NAME-password`:
//
//   machine          client credentials
//   machine-post     likewise, with its password in the request's body
//   signer           client credentials; it has no password and signs its assertions
//   app, taskgate    token exchange, introspection, and the identity assertions of IDENTITY_PROVIDER, which is another such server
//   app-post         `app` at the identity provider, with its password in the request's body
//   desk             the code flow, without a password
//
// The `exp` of a signed token is 58 s too early, as if this server's clock were late. Gateways accept a token for 60 s after its `exp`, so they
// refuse these tokens 2 s after TOKEN_SECONDS. Clients that read `expires_in` have renewed them by then.

import { createPrivateKey, generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createLocalJWKSet, createRemoteJWKSet, jwtVerify, SignJWT } from 'jose';
import { errors, Provider } from 'oidc-provider';
import { CLIENT_METADATA, REDIRECT } from './login_browser.mjs';

const LEEWAY_SECONDS = 60;
const EARLY_SECONDS = 58;
const DOCUMENT = 'https://client.example/taskgate-peer.json';
const RESOURCE = /^http:\/\/127\.0\.0\.1:\d+\/[a-z/]*$/;
const SCOPES = 'mcp reports:write';
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const TYPE = 'urn:ietf:params:oauth:token-type:';

const [format, tokenSeconds, identityProvider] = process.argv.slice(2);
if (!['jwt', 'opaque'].includes(format) || !(Number(tokenSeconds) > 0)) {
  console.error('usage: login_issuer.mjs jwt|opaque TOKEN_SECONDS [IDENTITY_PROVIDER]');
  process.exit(2);
}

const key = { ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), alg: 'RS256', use: 'sig', kid: 'one' };
const { d, p, q, dp, dq, qi, ...publicKey } = key;
const signingKey = createPrivateKey({ key, format: 'jwk' });
const keys = createLocalJWKSet({ keys: [publicKey] });
const signer = generateKeyPairSync('rsa', { modulusLength: 2048 });
const signerKey = { ...signer.publicKey.export({ format: 'jwk' }), alg: 'RS256', use: 'sig', kid: 'signer' };

const listen = (server) => new Promise((done) => server.listen(0, '127.0.0.1', () => done(`http://127.0.0.1:${server.address().port}`)));
let handleAuthorization;
const issuer = await listen(createServer((request, response) => handleAuthorization(request, response)));

const program = (client_id, grant_types, more = {}) => ({
  client_id,
  client_secret: `${client_id}-password`,
  token_endpoint_auth_method: 'client_secret_basic',
  grant_types,
  redirect_uris: [],
  response_types: [],
  ...more,
});
const bearerGrant = identityProvider ? [BEARER] : [];
const codeFlow = { redirect_uris: [REDIRECT], response_types: ['code'], application_type: 'native' };

/** The metadata document that a host would publish at its address. */
const document = { client_id: DOCUMENT, ...CLIENT_METADATA };

function resourceServer(resource) {
  if (!RESOURCE.test(resource)) throw new errors.InvalidTarget();
  return { scope: SCOPES, audience: resource, accessTokenTTL: Number(tokenSeconds), accessTokenFormat: format, jwt: { sign: { alg: 'RS256' } } };
}

const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  cookies: { keys: [randomUUID()] },
  scopes: ['openid', 'offline_access', ...SCOPES.split(' ')],
  clients: [
    { client_id: 'desk', ...CLIENT_METADATA },
    program('machine', ['client_credentials']),
    program('machine-post', ['client_credentials'], { token_endpoint_auth_method: 'client_secret_post' }),
    program('signer', ['client_credentials'], { client_secret: undefined, token_endpoint_auth_method: 'private_key_jwt', jwks: { keys: [signerKey] } }),
    program('app', [EXCHANGE, ...bearerGrant, 'authorization_code'], codeFlow),
    program('app-post', [EXCHANGE], { token_endpoint_auth_method: 'client_secret_post' }),
    program('taskgate', [EXCHANGE, ...bearerGrant]),
  ],
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  issueRefreshToken: () => true,
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
  fetch: (address, options) => (String(address) === DOCUMENT ? Response.json(document) : fetch(address, options)),
  formats: {
    customizers: {
      jwt: (_, __, { payload }) => {
        payload.exp -= EARLY_SECONDS;
      },
    },
  },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
    dPoP: { enabled: true },
    introspection: { enabled: true, allowedPolicy: (_, client, token) => client.clientId === 'taskgate' || client.clientId === token.clientId },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => resourceServer(resource),
    },
  },
});
provider.on('grant.success', ({ oidc }) => console.log(`granted ${oidc.params.grant_type} ${oidc.account?.accountId} ${oidc.params.resource}`));
for (const event of ['server_error', 'grant.error', 'authorization.error', 'registration_create.error', 'introspection.error']) {
  provider.on(event, (_, error) => console.error(event, error));
}

// --- grants that oidc-provider does not have

/** Grants a new token for this subject and resource. */
async function tokenFor(ctx, subject, wanted) {
  const { client, params } = ctx.oidc;
  const resource = new provider.ResourceServer(params.resource, resourceServer(params.resource));
  const known = new Set(SCOPES.split(' '));
  const scope = (params.scope ?? wanted ?? 'mcp').split(' ').filter((name) => known.has(name)).join(' ');
  const token = new provider.AccessToken({ accountId: subject, client, gty: 'exchange', scope });
  token.resourceServer = resource;
  ctx.body = { access_token: await token.save(), token_type: 'Bearer', expires_in: token.expiration, scope };
}

async function verified(token, options, trusted = keys) {
  try {
    return (await jwtVerify(token, trusted, { issuer, clockTolerance: LEEWAY_SECONDS, ...options })).payload;
  } catch (error) {
    throw new errors.InvalidGrant(String(error));
  }
}

/** The subject of an access token or an identity token. */
async function subjectOf({ subject_token: token, subject_token_type: type }) {
  const kind = type?.startsWith(TYPE) ? type.slice(TYPE.length) : undefined;
  if (kind === 'id_token') return (await verified(token, {})).sub;
  if (kind !== 'access_token') throw new errors.InvalidRequest('an unknown subject_token_type');
  if (format === 'jwt') return (await verified(token, { typ: 'at+jwt' })).sub;
  const found = await provider.AccessToken.find(token);
  if (!found?.isValid) throw new errors.InvalidGrant('an unknown subject_token');
  return found.accountId;
}

/** RFC 8693, with an identity assertion (ID-JAG) as its second form. */
async function exchange(ctx) {
  const { client, params } = ctx.oidc;
  const subject = await subjectOf(params);
  ctx.oidc.entity('Account', { accountId: subject });
  if (params.requested_token_type !== `${TYPE}id-jag`) {
    await tokenFor(ctx, subject);
    ctx.body.issued_token_type = `${TYPE}access_token`;
    return;
  }
  if (!params.audience) throw new errors.InvalidRequest('no audience');
  const claims = { jti: randomUUID(), client_id: client.clientId.replace('-post', ''), resource: params.resource, scope: params.scope };
  const assertion = new SignJWT(claims).setProtectedHeader({ alg: 'RS256', kid: 'one', typ: 'oauth-id-jag+jwt' });
  const signed = assertion.setIssuer(issuer).setSubject(subject).setAudience(params.audience).setIssuedAt().setExpirationTime('5m');
  ctx.body = { issued_token_type: `${TYPE}id-jag`, access_token: await signed.sign(signingKey), token_type: 'N_A', expires_in: 300, scope: params.scope };
}

const identityKeys = identityProvider && createRemoteJWKSet(new URL(`${identityProvider}/jwks`));
const used = new Set();

/** RFC 7523, for identity assertions of the identity provider. It accepts each of them once. */
async function bearer(ctx) {
  const { client, params } = ctx.oidc;
  const wanted = { issuer: identityProvider, typ: 'oauth-id-jag+jwt', audience: issuer, requiredClaims: ['jti', 'sub', 'exp', 'client_id'] };
  const claims = await verified(params.assertion, wanted, identityKeys);
  if (claims.client_id !== client.clientId) throw new errors.InvalidGrant('of another client');
  if (used.has(claims.jti)) throw new errors.InvalidGrant('used before');
  used.add(claims.jti);
  ctx.oidc.entity('Account', { accountId: claims.sub });
  params.resource ??= claims.resource;
  if (claims.resource !== params.resource) throw new errors.InvalidTarget();
  await tokenFor(ctx, claims.sub, claims.scope);
}

provider.registerGrantType(EXCHANGE, exchange, ['subject_token', 'subject_token_type', 'requested_token_type', 'audience', 'resource', 'scope']);
if (identityProvider) provider.registerGrantType(BEARER, bearer, ['assertion', 'resource', 'scope']);

// --- logins and consent, without pages

async function interact(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: params.login_hint } });
  }
  const ids = { accountId: session.accountId, clientId: params.client_id };
  const grant = (grantId && (await provider.Grant.find(grantId))) ?? new provider.Grant(ids);
  grant.addOIDCScope('openid offline_access');
  if (params.resource) {
    grant.addOIDCScope(SCOPES);
    grant.addResourceScope(params.resource, params.scope);
  }
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
console.log(`signer ${JSON.stringify(signer.privateKey.export({ format: 'pem', type: 'pkcs8' }))}`);
console.log(`as ${issuer}`);
