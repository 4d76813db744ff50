//! Authenticates requests. The only layer that knows credentials.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, FORWARDED, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use parking_lot::Mutex;

use super::ListenSettings;
use super::api_keys::{ApiKeyRing, KEY_HEADER, shows_key};
use super::grant::Grant;
use super::host::{is_loopback, names_this_machine};
use super::refusal::{ForwardRefusal, Refusal};
use super::tokens::claims::TokenError;
use super::tokens::{KeyLookup, KeyWait, TokenVerdict, TokenVerifier};
use crate::face::own_metadata::{ChallengeError, challenge};
use crate::face::sealed::{ForwardToken, digest_of_request};
use crate::face::session_owners::{FORWARD, SessionOwners};
use crate::replica::{ForwardedNumberRefusal, ForwardedNumbers};
use crate::task::{Caller, Principal};

/// A proxy header with a name outside the common prefix, and that prefix.
const ADDRESS_OF_ANOTHER: &str = "x-real-ip";
const ADDED_BY_PROXIES: &str = "x-forwarded-";

/// How a listener authenticates its clients. Only [`KEY_HEADER`] and `Authorization` establish an identity; headers
/// such as `X-Forwarded-For` can only reduce a client's rights (B73).
#[derive(Clone, Debug)]
pub enum Authenticator {
    /// Serves every client as this principal: anonymous, where the operator serves everyone (T-22). Credentials are ignored.
    Everyone(Principal),
    /// Serves the one user of a loopback listener, unless there is a sign of other clients.
    OnePerson(LocalUser),
    /// Requires an API key, and serves its principal.
    KeyHolders(ApiKeyRing),
    /// Requires an access token, or an API key if there are some too. The form of a credential decides which it is.
    TokenHolders(TokenHolders),
    /// Serves requests that other replicas forward, with the principal that they authenticated.
    Replicas(ForwardedCallers),
}

#[derive(Clone, Debug)]
pub struct TokenHolders {
    pub tokens: TokenVerifier,
    /// Empty unless API keys are accepted too.
    pub keys: ApiKeyRing,
}

/// The parameter of a query that would hold a token.
const TOKEN_PARAMETER: &str = "access_token";

impl TokenHolders {
    fn identify<B>(&self, request: &Request<B>, asked: AskedPath<'_>) -> Result<Identity, Refusal> {
        let path = asked.endpoint;
        let (own, authorization) = (only(request.headers(), &KEY_HEADER)?, only(request.headers(), &AUTHORIZATION)?);
        let query = request.uri().query().unwrap_or_default();
        if url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == TOKEN_PARAMETER) {
            return Err(Refusal::TokenInQuery);
        }
        let credential = match (own, authorization) {
            (Some(_), Some(_)) => return Err(Refusal::CredentialsUnclear),
            (Some(own), None) => own.to_str().ok(),
            (None, Some(authorization)) => bearer(authorization),
            (None, None) => return Err(Refusal::LoginRequired(self.challenge(path, None))),
        };
        let invalid = |why| Refusal::CredentialRefused(self.challenge(path, Some(ChallengeError::InvalidToken)), why);
        let Some(credential) = credential else { return Err(invalid(Some(TokenError::Malformed))) };
        if own.is_some() || shows_key(credential.as_bytes()) {
            return AuthenticatedCaller::of_key(&self.keys, credential)
                .map(Identity::from)
                .ok_or_else(|| invalid(None));
        }
        match self.tokens.check(credential, path.unwrap_or_default(), asked.wait) {
            TokenVerdict::Valid { caller, grant, ends_in } => {
                let needed = &self.tokens.settings().scopes;
                if !needed.iter().all(|scope| caller.has_scope(scope)) {
                    let error = Some(ChallengeError::InsufficientScope);
                    return Err(Refusal::ScopesMissing(self.challenge(path, error)));
                }
                Ok(AuthenticatedCaller { ends_in, ..AuthenticatedCaller::of_this_listener(caller, grant) }.into())
            }
            TokenVerdict::Invalid(error) => Err(invalid(Some(error))),
            TokenVerdict::NeedsKeys(lookup) => Ok(Identity::NeedsKeys(lookup)),
            TokenVerdict::KeysAway => Err(Refusal::IssuerAway),
        }
    }

    fn challenge(&self, path: Option<&str>, error: Option<ChallengeError>) -> HeaderValue {
        self.challenge_with(path, error, &[])
    }

    /// A challenge that lists further scopes after those that every request needs.
    fn challenge_with(&self, path: Option<&str>, error: Option<ChallengeError>, further: &[Arc<str>]) -> HeaderValue {
        let settings = self.tokens.settings();
        let further = further.iter().filter(|scope| !settings.scopes.contains(scope));
        challenge(&settings.public_url, path, error, settings.scopes.iter().chain(further).map(|scope| &**scope))
    }
}

/// The one user of a loopback listener without authentication. A client behind a proxy may be another person and is
/// anonymous; a client is identified by a credential that is forwarded upstream.
#[derive(Clone, Debug)]
pub struct LocalUser {
    /// The operator serves a name that is not this machine's, or trusts a proxy: every request may be another person's.
    is_shared: bool,
    /// Whether the log already has the warning about requests through a proxy.
    is_logged: Arc<AtomicBool>,
}

impl Authenticator {
    fn keys(&self) -> Option<&ApiKeyRing> {
        match self {
            Self::KeyHolders(keys) | Self::TokenHolders(TokenHolders { keys, .. }) => Some(keys),
            Self::Everyone(_) | Self::OnePerson(_) | Self::Replicas(_) => None,
        }
    }

    #[must_use]
    pub const fn tokens(&self) -> Option<&TokenVerifier> {
        match self {
            Self::TokenHolders(holders) => Some(&holders.tokens),
            Self::Everyone(_) | Self::OnePerson(_) | Self::KeyHolders(_) | Self::Replicas(_) => None,
        }
    }
}

impl LocalUser {
    /// Reads the listener's settings. Names other than loopback's indicate several people, and so do trusted proxies.
    #[must_use]
    pub fn new(settings: &ListenSettings) -> Self {
        let is_named = settings.allowed_hosts.iter().any(|name| !is_loopback(name));
        Self { is_shared: is_named || !settings.trusted_proxies.is_empty(), is_logged: Arc::default() }
    }

    fn identify<B>(&self, request: &Request<B>, is_forwarded: bool) -> Result<Principal, Refusal> {
        if is_forwarded {
            return by_credential(request.headers());
        }
        if self.is_shared {
            return Ok(Principal::anonymous());
        }
        if names_this_machine(request) && !came_through_a_proxy(request) {
            return Ok(Principal::local());
        }
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "requests come through a proxy and no credentials are required: they are served as anonymous, without a \
                 list of tasks and for an hour at most; write in [auth] `anonymous = true` if that is intended, or \
                 `mode = \"api_keys\"`"
            );
        }
        Ok(Principal::anonymous())
    }
}

/// The principal by which an upstream knows the request's credential.
fn by_credential(headers: &HeaderMap) -> Result<Principal, Refusal> {
    let credential = only(headers, &AUTHORIZATION)?;
    Ok(credential.map_or_else(Principal::anonymous, |credential| Principal::bearing(credential.as_bytes())))
}

/// The key of a request. [`KEY_HEADER`] takes precedence, and `Authorization` is then the upstream's.
fn key_in(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let (own, authorization) = (only(headers, &KEY_HEADER)?, only(headers, &AUTHORIZATION)?);
    Ok(match own {
        Some(own) => own.to_str().ok(),
        None => authorization.and_then(bearer),
    })
}

/// The only value of a header, if any. Two values are refused, as either may be the intended one (B150).
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut fields = headers.get_all(name).iter();
    match (fields.next(), fields.next()) {
        (field, None) => Ok(field),
        (_, Some(_)) => Err(Refusal::CredentialsUnclear),
    }
}

/// No client uses HTTP/1.0, but nginx does by default, and may add no header.
fn came_through_a_proxy<B>(request: &Request<B>) -> bool {
    let is_added = |name: &str| name.starts_with(ADDED_BY_PROXIES) || name == ADDRESS_OF_ANOTHER;
    let headers = request.headers();
    request.version() < Version::HTTP_11
        || headers.contains_key(FORWARDED)
        || headers.contains_key(VIA)
        || headers.keys().any(|name| is_added(name.as_str()))
}

/// The path that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedPath<'p> {
    /// That of the endpoint, if there is one that asks for credentials.
    pub(super) endpoint: Option<&'p str>,
    /// Whether it forwards clients' credentials upstream.
    pub(super) forwards: bool,
    pub(super) wait: KeyWait,
}

/// What an access token is for at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenUse {
    /// It identifies its client, and no more.
    Identity,
    /// The upstream gets a credential in exchange for it, too.
    Exchange,
}

/// What a request's credential says of its sender, perhaps after a lookup.
pub(super) enum Identity {
    Known(Box<AuthenticatedCaller>),
    /// The keys of the token's issuer must be fetched first.
    NeedsKeys(KeyLookup),
}

impl From<AuthenticatedCaller> for Identity {
    fn from(caller: AuthenticatedCaller) -> Self {
        Self::Known(Box::new(caller))
    }
}

#[derive(Debug)]
pub(super) struct AuthenticatedCaller {
    pub(super) caller: Caller,
    pub(super) grant: Grant,
    /// The rest of its credential's validity, if that ends.
    pub(super) ends_in: Option<Duration>,
    /// The client's address, if another replica forwards the request and has counted it.
    pub(super) forwarded_from: Option<IpAddr>,
}

impl AuthenticatedCaller {
    fn of_key(keys: &ApiKeyRing, credential: &str) -> Option<Self> {
        let (caller, grant, ends_in) = keys.owner(credential)?;
        Some(Self { ends_in, ..Self::of_this_listener(caller.clone(), grant.clone()) })
    }

    const fn of_this_listener(caller: Caller, grant: Grant) -> Self {
        Self { caller, grant, ends_in: None, forwarded_from: None }
    }
}

#[derive(Clone, Debug)]
pub(super) struct PrincipalGuard {
    callers: Authenticator,
    /// The grant of clients without a key.
    open: Grant,
}

impl PrincipalGuard {
    pub(super) fn new(callers: Authenticator) -> Self {
        Self { callers, open: Grant::default() }
    }

    /// The guard that replaces this one. Clients that remain valid keep their streams; all other streams end.
    pub(super) fn followed_by(&self, callers: Authenticator) -> Self {
        if let Some(before) = self.callers.tokens() {
            before.withdraw_beside(callers.tokens());
        }
        let callers = match (self.callers.keys(), callers) {
            (Some(before), Authenticator::KeyHolders(now)) => {
                return Self::new(Authenticator::KeyHolders(now.succeeding(before)));
            }
            (Some(before), Authenticator::TokenHolders(now)) => {
                let keys = now.keys.succeeding(before);
                return Self::new(Authenticator::TokenHolders(TokenHolders { keys, ..now }));
            }
            (Some(before), callers) => {
                before.withdraw();
                return Self::new(callers);
            }
            (None, callers) => callers,
        };
        match (&self.callers, &callers) {
            (Authenticator::Everyone(before), Authenticator::Everyone(now)) if before == now => return self.clone(),
            (Authenticator::OnePerson(before), Authenticator::OnePerson(now)) if before.is_shared == now.is_shared => {
                return self.clone();
            }
            // The replica that accepted the client holds its grant.
            (Authenticator::Replicas(_), Authenticator::Replicas(_)) => {
                return Self { callers, open: self.open.clone() };
            }
            (_, _) => self.open.withdraw(),
        }
        Self::new(callers)
    }

    pub(super) const fn takes_tokens(&self) -> bool {
        self.callers.tokens().is_some()
    }

    pub(super) fn asks_all(&self) -> bool {
        self.callers.keys().is_some()
    }

    /// Removes this gateway's keys, texts that look like one, and replicas' seals from an admitted request: no upstream receives
    /// them, with any other headers that are forwarded (SEC-04).
    /// An access token stays if the path's upstream gets a credential in exchange for it.
    pub(super) fn withhold_keys(&self, headers: &mut HeaderMap, token: TokenUse) {
        if self.asks_all() {
            headers.remove(KEY_HEADER);
            let is_withheld = self.callers.tokens().is_some() && token == TokenUse::Identity;
            let is_ours = |value: &HeaderValue| is_withheld || shows_key(value.as_bytes());
            if headers.get(AUTHORIZATION).is_some_and(is_ours) {
                headers.remove(AUTHORIZATION);
            }
        }
        if matches!(self.callers, Authenticator::Replicas(_)) {
            headers.remove(FORWARD);
        }
    }

    pub(super) fn anybody(&self) -> AuthenticatedCaller {
        AuthenticatedCaller::of_this_listener(Caller::of(Principal::anonymous()), self.open.clone())
    }

    /// The challenge for an operation that needs more scopes than its token has, if clients have tokens.
    pub(super) fn scope_challenge(&self, asked: AskedPath<'_>, needed: &[Arc<str>]) -> Option<HeaderValue> {
        match &self.callers {
            Authenticator::TokenHolders(holders) => {
                Some(holders.challenge_with(asked.endpoint, Some(ChallengeError::InsufficientScope), needed))
            }
            Authenticator::Everyone(_)
            | Authenticator::OnePerson(_)
            | Authenticator::KeyHolders(_)
            | Authenticator::Replicas(_) => None,
        }
    }

    /// Authenticates a request. Fails with `CredentialsUnclear` for two credentials (B150), `Unauthorized` without a known
    /// key, a challenge without a valid token, `NotForwarded` on the replica listener for a request that no replica
    /// sealed.
    pub(super) fn identify<B>(&self, request: &Request<B>, asked: AskedPath<'_>) -> Result<Identity, Refusal> {
        let keyless =
            |principal| AuthenticatedCaller::of_this_listener(Caller::of(principal), self.open.clone()).into();
        match &self.callers {
            Authenticator::Everyone(principal) => Ok(keyless(principal.clone())),
            Authenticator::OnePerson(person) => person.identify(request, asked.forwards).map(keyless),
            Authenticator::TokenHolders(holders) => holders.identify(request, asked),
            Authenticator::KeyHolders(keys) => {
                let token = key_in(request.headers())?.ok_or(Refusal::Unauthorized)?;
                AuthenticatedCaller::of_key(keys, token).map(Identity::from).ok_or(Refusal::Unauthorized)
            }
            Authenticator::Replicas(replicas) => {
                let token = replicas.identify(request).map_err(Refusal::NotForwarded)?;
                let caller = AuthenticatedCaller::of_this_listener(token.caller, self.open.clone());
                Ok(AuthenticatedCaller { forwarded_from: token.client, ..caller }.into())
            }
        }
    }
}

/// The token in `Bearer TOKEN`; the scheme is written in any case (RFC 9110, 11.1).
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// How far a request's seal may be in the past or the future: allows for clock skew between replicas and for transit.
const GOOD_FOR: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct ForwardedCallers(Arc<ForwardedCallersState>);

struct ForwardedCallersState {
    owners: Arc<SessionOwners>,
    numbers: Mutex<ForwardedNumbers>,
}

impl ForwardedCallers {
    #[must_use]
    pub fn new(owners: Arc<SessionOwners>) -> Self {
        Self(Arc::new(ForwardedCallersState { owners, numbers: Mutex::default() }))
    }

    /// The principal of a forwarded request, and its client's address. Fails unless a replica sealed exactly this
    /// request for this replica, recently, and it arrives for the first time.
    pub(super) fn identify<B>(&self, request: &Request<B>) -> Result<ForwardToken, ForwardRefusal> {
        let ForwardedCallersState { owners, numbers } = &*self.0;
        let mut sealed = request.headers().get_all(FORWARD).iter();
        let (Some(sealed), None) = (sealed.next(), sealed.next()) else { return Err(ForwardRefusal::Unsealed) };
        let token = sealed.to_str().ok().and_then(|sealed| owners.open(sealed)).ok_or(ForwardRefusal::Unsealed)?;
        if token.target != owners.own() {
            return Err(ForwardRefusal::Misdirected);
        }
        let now = owners.clock().now();
        if now.since(token.issued_at) > GOOD_FOR || token.issued_at.since(now) > GOOD_FOR {
            return Err(ForwardRefusal::Untimely);
        }
        let uri = request.uri();
        if token.request != digest_of_request(request.method(), uri.path(), uri.query(), request.headers()) {
            return Err(ForwardRefusal::Altered);
        }
        // The last check, since it stores the token's number.
        let taken = numbers.lock().take((token.sender, token.number), now, GOOD_FOR);
        taken.map(|()| token).map_err(|refusal| match refusal {
            ForwardedNumberRefusal::Repeated => ForwardRefusal::Repeated,
            ForwardedNumberRefusal::TooManySenders => ForwardRefusal::Crowded,
        })
    }
}

impl fmt::Debug for ForwardedCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardedCallers").field("owners", &self.0.owners).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::api_keys::{ApiKey, ApiKeys};

    fn who(guard: &PrincipalGuard, request: &Request<()>, forwards: bool) -> Result<Principal, Refusal> {
        let asked = AskedPath { endpoint: None, forwards, wait: KeyWait::Over };
        guard.identify(request, asked).map(|identity| match identity {
            Identity::Known(known) => known.caller.principal,
            Identity::NeedsKeys(_) => panic!("no token was sent"),
        })
    }

    /// B73.
    #[test]
    fn everyone_is_who_the_configuration_says_whatever_the_headers_say() {
        for everyone in [Principal::local(), Principal::anonymous()] {
            let request = Request::builder()
                .header("x-forwarded-for", "192.0.2.1")
                .header("authorization", "Bearer x")
                .body(())
                .unwrap();
            let guard = PrincipalGuard::new(Authenticator::Everyone(everyone.clone()));
            assert_eq!(who(&guard, &request, true), Ok(everyone));
        }
    }

    /// Plain nginx with only a `proxy_pass` shows by nothing else.
    #[test]
    fn a_request_of_http_1_0_came_through_a_proxy() {
        let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&[])));
        for (version, expected) in [(Version::HTTP_10, "anon"), (Version::HTTP_11, "local"), (Version::HTTP_2, "local")]
        {
            let request = Request::builder().version(version).header("host", "127.0.0.1:8080").body(()).unwrap();
            assert_eq!(who(&guard, &request, false).unwrap().as_str(), expected, "{version:?}");
        }
    }

    fn person(allowed: &[String]) -> LocalUser {
        LocalUser { is_shared: allowed.iter().any(|name| !is_loopback(name)), is_logged: Arc::default() }
    }

    /// The principal of a request on loopback: headers, allowed hosts, whether the path forwards credentials.
    #[test]
    fn one_person_is_alone_only_while_nothing_says_otherwise() {
        let (local, anonymous, ada) = ("local", "anon", Principal::bearing(b"Bearer ada"));
        let check = |allowed: &[&str], forwards: bool, headers: &[(&str, &str)], expected: &str| {
            let allowed: Vec<_> = allowed.iter().map(|&name| name.to_owned()).collect();
            let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&allowed)));
            let request = headers.iter().fold(Request::builder(), |built, (name, value)| built.header(*name, *value));
            let found = who(&guard, &request.body(()).unwrap(), forwards);
            assert_eq!(found.unwrap().as_str(), expected, "{allowed:?} {forwards} {headers:?}");
        };
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.0.0.2", "[::1]:9", "a.localhost"] {
            check(&[], false, &[("host", host)], local);
            check(&["localhost", "[::1]"], false, &[("host", host)], local);
            check(&["mcp.example", "localhost"], false, &[("host", host)], anonymous);
        }
        for host in ["mcp.example", "10.0.0.7:80", "localhost.example", "[2001:db8::1]", ""] {
            check(&[], false, &[("host", host)], anonymous);
        }
        for proxied in ["forwarded", "x-forwarded-for", "X-Forwarded-Proto", "x-real-ip", "via"] {
            check(&[], false, &[("host", "localhost"), (proxied, "127.0.0.1")], anonymous);
        }
        check(&[], false, &[("host", "localhost"), ("authorization", "Bearer ada")], local);
        for (allowed, host) in [(&[] as &[&str], "localhost"), (&["mcp.example"], "mcp.example")] {
            check(allowed, true, &[("host", host), ("authorization", "Bearer ada")], ada.as_str());
            check(
                allowed,
                true,
                &[("host", host), ("x-real-ip", "::1"), ("authorization", "Bearer ada")],
                ada.as_str(),
            );
            check(allowed, true, &[("host", host)], anonymous);
        }
        let absolute = Request::builder().uri("http://mcp.example/mcp").header("host", "localhost").body(()).unwrap();
        let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&[])));
        assert_eq!(who(&guard, &absolute, false), Ok(Principal::anonymous()));
        let twice = Request::builder().header("authorization", "a").header("authorization", "b").body(()).unwrap();
        assert_eq!(who(&guard, &twice, true), Err(Refusal::CredentialsUnclear));
    }

    const KEY: &str = "tg_a1_0123456789abcdef0123456789abcdef";

    #[track_caller]
    fn check(ring: &ApiKeyRing, fields: &[&str], expected: &Result<Principal, Refusal>) {
        let mut request = Request::new(());
        for field in fields {
            request.headers_mut().append(AUTHORIZATION, field.parse().unwrap());
        }
        let guard = PrincipalGuard::new(Authenticator::KeyHolders(ring.clone()));
        assert_eq!(who(&guard, &request, true), *expected, "{fields:?}");
    }

    #[test]
    fn b150_one_bearer_token_is_looked_at_and_nothing_else() {
        let ada = Principal::new("key:ada");
        let mut keys = ApiKeys::default();
        keys.add(ApiKey::read(KEY).unwrap(), &Caller::of(ada.clone())).unwrap();
        let ring = ApiKeyRing::new(keys);
        for scheme in ["Bearer ", "bearer ", "BEARER   "] {
            check(&ring, &[&format!("{scheme}{KEY}")], &Ok(ada.clone()));
        }
        let basic = format!("Basic {KEY}");
        for fields in [vec![], vec!["Bearer"], vec!["Bearer x"], vec![KEY], vec![basic.as_str()]] {
            check(&ring, &fields, &Err(Refusal::Unauthorized));
        }
        let good = format!("Bearer {KEY}");
        check(&ring, &[&good, &good], &Err(Refusal::CredentialsUnclear));
        check(&ApiKeyRing::new(ApiKeys::default()), &[&good], &Err(Refusal::Unauthorized));
    }

    /// The gateway's own header and `Authorization`; the principal, and the forwarded part of the latter.
    #[test]
    fn a_key_in_the_gateways_own_header_alone_decides_and_no_key_goes_on() {
        let ada = Principal::new("key:ada");
        let mut keys = ApiKeys::default();
        keys.add(ApiKey::read(KEY).unwrap(), &Caller::of(ada.clone())).unwrap();
        let guard = PrincipalGuard::new(Authenticator::KeyHolders(ApiKeyRing::new(keys)));
        let (bearer, long) = (format!("Bearer {KEY}"), "x".repeat(20_000));
        let (yes, unclear, no) = (Ok(ada), Err(Refusal::CredentialsUnclear), Err(Refusal::Unauthorized));
        let other = "Bearer tg_b1_0123456789abcdef0123456789abcdef";
        for (own, authorization, expected, goes_on) in [
            (vec![KEY.as_bytes()], vec![], &yes, None),
            (vec![], vec![bearer.as_str()], &yes, None),
            (vec![KEY.as_bytes()], vec!["Bearer theirs"], &yes, Some("Bearer theirs")),
            (vec![KEY.as_bytes()], vec!["Basic x"], &yes, Some("Basic x")),
            (vec![KEY.as_bytes()], vec![&bearer], &yes, None),
            (vec![KEY.as_bytes()], vec![other], &yes, None),
            (vec![KEY.as_bytes()], vec!["tg_slip"], &yes, None),
            (vec![b"tg_a1_0123456789abcdef0123456789abcdee"], vec![&bearer], &no, None),
            (vec![b""], vec![&bearer], &no, None),
            (vec![bearer.as_bytes()], vec![], &no, None),
            (vec![b"tg_a1_\xff"], vec![&bearer], &no, None),
            (vec![long.as_bytes()], vec![&bearer], &no, None),
            (vec![KEY.as_bytes(), KEY.as_bytes()], vec![], &unclear, None),
            (vec![KEY.as_bytes()], vec!["Bearer a", "Bearer b"], &unclear, None),
        ] {
            let mut request = Request::new(());
            for value in &own {
                request.headers_mut().append(KEY_HEADER, HeaderValue::from_bytes(value).unwrap());
            }
            for value in &authorization {
                request.headers_mut().append(AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(who(&guard, &request, true), *expected, "{own:?} {authorization:?}");
            if expected.is_ok() {
                guard.withhold_keys(request.headers_mut(), TokenUse::Identity);
                let left = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap());
                assert_eq!((left, request.headers().contains_key(KEY_HEADER)), (goes_on, false), "{authorization:?}");
            }
        }
    }
}
