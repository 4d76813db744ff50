//! Selects the client headers that are forwarded: only headers that the operator names (SEC-04, SEC-08).

use std::fmt;
use std::sync::Arc;

use http::Response;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};
use parking_lot::Mutex;

use super::client_credential::{ClientCredential, CredentialRefusal};
use super::subject_token::{SubjectToken, SubjectTokens};
use crate::task::Caller;

/// Headers of one hop, of the protocol, or for authentication.
const NEVER: [&str; 24] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "cookie2",
    "dpop",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "last-event-id",
    "origin",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-taskgate-key",
];
const NEVER_BEGUN_WITH: [&str; 4] = ["mcp-", "proxy-", "sec-", "access-control-"];

pub fn may_be_forwarded(name: &HeaderName) -> bool {
    let name = name.as_str();
    !NEVER.contains(&name) && !NEVER_BEGUN_WITH.iter().any(|begin| name.starts_with(begin))
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardingRules {
    names: Arc<[HeaderName]>,
    /// The newest tokens of clients, if they are exchanged for credentials at the server.
    subjects: Option<SubjectTokens>,
}

impl ForwardingRules {
    /// With `authorization`, gateway and server are one resource, so that a credential for one is for the other.
    pub fn new(mut names: Vec<HeaderName>, authorization: bool) -> Self {
        names.retain(may_be_forwarded);
        if authorization {
            names.push(AUTHORIZATION);
        }
        names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
        names.dedup();
        Self { names: names.into(), subjects: None }
    }

    #[must_use]
    pub fn exchanging(self, subjects: Option<SubjectTokens>) -> Self {
        Self { subjects, ..self }
    }

    /// Whether each client has its own credential at the server: forwarded, or in exchange for its token.
    pub fn is_per_client(&self) -> bool {
        self.subjects.is_some() || self.has(&AUTHORIZATION)
    }

    pub const fn exchanges_tokens(&self) -> bool {
        self.subjects.is_some()
    }
    pub fn has(&self, name: &HeaderName) -> bool {
        self.names.contains(name)
    }

    /// The forwarded headers of a client's request. One for each request: it records the server's refusal of that request.
    pub fn of(&self, all: &HeaderMap, caller: &Caller) -> ForwardedHeaders {
        let mut picked = HeaderMap::new();
        for name in &*self.names {
            for value in all.get_all(name) {
                let mut value = value.clone();
                value.set_sensitive(value.is_sensitive() || *name == AUTHORIZATION);
                picked.append(name.clone(), value);
            }
        }
        let credential = match &self.subjects {
            Some(subjects) => {
                let token = SubjectToken::of(all, caller);
                token.iter().for_each(|token| subjects.saw(token));
                ClientCredential::exchanged(token)
            }
            None if self.has(&AUTHORIZATION) => ClientCredential::sent(picked.get(AUTHORIZATION)),
            None => ClientCredential::default(),
        };
        ForwardedHeaders::new(picked, credential)
    }
}

/// The forwarded headers of one client's request, and the upstream's refusal of their credential. Kept in memory only.
#[derive(Clone, Default)]
pub struct ForwardedHeaders(Option<Arc<ForwardedFields>>);

struct ForwardedFields {
    headers: HeaderMap,
    credential: ClientCredential,
    refusal: Arc<Mutex<Option<CredentialRefusal>>>,
}

impl ForwardedHeaders {
    fn new(headers: HeaderMap, credential: ClientCredential) -> Self {
        if headers.is_empty() && !credential.is_clients() {
            return Self::default();
        }
        Self(Some(Arc::new(ForwardedFields { headers, credential, refusal: Arc::default() })))
    }

    /// The credential alone, for the gateway's own requests in a session of this client.
    pub(crate) fn bearing(credential: &ClientCredential) -> Self {
        let headers = credential.value().map(|value| (AUTHORIZATION, value.clone())).into_iter().collect();
        Self::new(headers, credential.clone())
    }

    /// The credential alone, for the gateway's own requests that serve this one: a refusal counts as this request's.
    pub(crate) fn of_credential(&self) -> Self {
        let mut alone = Self::bearing(&self.credential());
        if let (Some(alone), Some(request)) = (alone.0.as_mut().and_then(Arc::get_mut), &self.0) {
            alone.refusal = Arc::clone(&request.refusal);
        }
        alone
    }

    /// The same headers for requests after the upstream has accepted this one: a refusal does not count as this request's.
    pub(super) fn detached(&self) -> Self {
        let request = self.0.as_ref();
        request.map_or_else(Self::default, |request| Self::new(request.headers.clone(), request.credential.clone()))
    }

    pub(crate) fn credential(&self) -> ClientCredential {
        self.0.as_ref().map(|request| request.credential.clone()).unwrap_or_default()
    }

    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if let Some(forwarded) = &self.0 {
            headers.extend(HeaderMap::clone(&forwarded.headers));
        }
    }

    pub(crate) fn note<B>(&self, response: &Response<B>) {
        if let Some(request) = self.0.as_ref().filter(|request| request.credential.is_forwarded()) {
            *request.refusal.lock() = CredentialRefusal::of_head(response.status(), response.headers());
        }
    }

    pub(crate) fn note_as(&self, other: &Self) {
        if let Some(request) = &self.0 {
            let refusal = other.refusal();
            *request.refusal.lock() = refusal;
        }
    }

    /// The upstream's refusal of the client's credential, if that was its last response to this request.
    pub fn refusal(&self) -> Option<CredentialRefusal> {
        self.0.as_ref().and_then(|request| request.refusal.lock().clone())
    }
}

/// Prints names only: a value may be a secret.
impl fmt::Debug for ForwardedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().flat_map(|request| request.headers.keys())).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::task::Principal;

    /// SEC-04, SEC-08.
    #[test]
    fn nothing_goes_on_that_is_not_named_and_no_credential_by_its_name() {
        let named = |names: &[&str]| names.iter().map(|name| HeaderName::try_from(*name).unwrap()).collect::<Vec<_>>();
        let all: HeaderMap = [
            ("x-request-id", "r-1"),
            ("traceparent", "t-1"),
            ("cookie", "c"),
            ("authorization", "Bearer secret"),
            ("proxy-authorization", "p"),
            ("dpop", "d"),
            ("x-taskgate-key", "tg_a1_secret"),
            ("mcp-session-id", "s"),
            ("connection", "x-request-id"),
        ]
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .into_iter()
        .collect();
        let caller = Caller::of(Principal::local());
        for (names, authorization, expected) in [
            (vec![], false, vec![]),
            (vec!["x-request-id"], false, vec!["x-request-id"]),
            (vec!["X-Request-Id", "traceparent", "absent"], false, vec!["traceparent", "x-request-id"]),
            (
                vec!["cookie", "authorization", "proxy-authorization", "dpop", "mcp-session-id", "x-taskgate-key"],
                false,
                vec![],
            ),
            (vec!["connection", "te", "host"], false, vec![]),
            (vec![], true, vec!["authorization"]),
        ] {
            let forwarded = ForwardingRules::new(named(&names), authorization).of(&all, &caller);
            let mut headers = HeaderMap::new();
            forwarded.add_to(&mut headers);
            let mut found: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{names:?}");
            assert!(!format!("{forwarded:?} {headers:?}").contains("secret"));
        }
    }
}
