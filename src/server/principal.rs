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
use crate::face::sealed::{ForwardToken, digest_of_request};
use crate::face::session_owners::{FORWARD, SessionOwners};
use crate::replica::{ForwardedNumberRefusal, ForwardedNumbers};
use crate::task::Caller;
use crate::task::principal::Principal;

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
    /// Serves requests that other replicas forward, with the principal that they authenticated.
    Replicas(ForwardedCallers),
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

#[derive(Debug)]
pub(super) struct AuthenticatedCaller {
    pub(super) caller: Caller,
    pub(super) grant: Grant,
    /// The client's address, if another replica forwards the request and has counted it.
    pub(super) forwarded_from: Option<IpAddr>,
}

impl AuthenticatedCaller {
    const fn of_this_listener(principal: Principal, grant: Grant) -> Self {
        Self { caller: Caller::of(principal), grant, forwarded_from: None }
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
        if let (Authenticator::KeyHolders(before), Authenticator::KeyHolders(now)) = (&self.callers, &callers) {
            return Self::new(Authenticator::KeyHolders(now.clone().succeeding(before)));
        }
        match (&self.callers, &callers) {
            (Authenticator::Everyone(before), Authenticator::Everyone(now)) if before == now => return self.clone(),
            (Authenticator::OnePerson(before), Authenticator::OnePerson(now)) if before.is_shared == now.is_shared => {
                return self.clone();
            }
            // The replica that accepted the client holds its grant.
            (Authenticator::Replicas(_), Authenticator::Replicas(_)) => {
                return Self { callers, open: self.open.clone() };
            }
            (Authenticator::KeyHolders(before), _) => before.withdraw(),
            (Authenticator::Everyone(_) | Authenticator::OnePerson(_) | Authenticator::Replicas(_), _) => {
                self.open.withdraw();
            }
        }
        Self::new(callers)
    }

    pub(super) const fn asks_all(&self) -> bool {
        matches!(self.callers, Authenticator::KeyHolders(_))
    }

    /// Removes this gateway's keys, texts that look like one, and replicas' seals from an admitted request: no upstream receives
    /// them, with any other headers that are forwarded (SEC-04).
    pub(super) fn withhold_keys(&self, headers: &mut HeaderMap) {
        if self.asks_all() {
            headers.remove(KEY_HEADER);
            if headers.get(AUTHORIZATION).is_some_and(|value| shows_key(value.as_bytes())) {
                headers.remove(AUTHORIZATION);
            }
        }
        if matches!(self.callers, Authenticator::Replicas(_)) {
            headers.remove(FORWARD);
        }
    }

    pub(super) fn anybody(&self) -> AuthenticatedCaller {
        AuthenticatedCaller::of_this_listener(Principal::anonymous(), self.open.clone())
    }

    /// Authenticates a request; `forwards` tells whether a path's endpoint forwards credentials upstream. Fails with
    /// `CredentialsUnclear` for two credentials (B150), `Unauthorized` without a known key, `NotForwarded` on the
    /// replica listener for a request that no replica sealed.
    pub(super) fn identify<B>(
        &self,
        request: &Request<B>,
        forwards: impl FnOnce(&str) -> bool,
    ) -> Result<AuthenticatedCaller, Refusal> {
        let keyless = |principal| AuthenticatedCaller::of_this_listener(principal, self.open.clone());
        match &self.callers {
            Authenticator::Everyone(principal) => Ok(keyless(principal.clone())),
            Authenticator::OnePerson(person) => person.identify(request, forwards(request.uri().path())).map(keyless),
            Authenticator::KeyHolders(keys) => {
                let token = key_in(request.headers())?.ok_or(Refusal::Unauthorized)?;
                let (caller, grant) = keys.owner(token).ok_or(Refusal::Unauthorized)?;
                Ok(AuthenticatedCaller { caller: caller.clone(), grant: grant.clone(), forwarded_from: None })
            }
            Authenticator::Replicas(replicas) => {
                let token = replicas.identify(request).map_err(Refusal::NotForwarded)?;
                Ok(AuthenticatedCaller { caller: token.caller, grant: self.open.clone(), forwarded_from: token.client })
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
        guard.identify(request, |_| forwards).map(|caller| caller.caller.principal)
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
                guard.withhold_keys(request.headers_mut());
                let left = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap());
                assert_eq!((left, request.headers().contains_key(KEY_HEADER)), (goes_on, false), "{authorization:?}");
            }
        }
    }
}
