//! Authenticates requests. The only layer that knows credentials.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use parking_lot::Mutex;

use super::ListenSettings;
use super::api_keys::{ApiKeyRing, KEY_HEADER, shows_key};
use super::client_certificates::{CertificateRefusal, CertificateRing, PeerCertificate};
use super::forwarded::is_loopback;
use super::grant::Grant;
use super::head::{RareField, RareFields};
use super::host::names_this_machine;
use super::refusal::{ForwardRefusal, Refusal};
use super::tokens::claims::{HeldProofs, TokenError};
use super::tokens::dpop::{ProofError, ProvenRequest, UnverifiedProof};
use super::tokens::settings::ProofPolicy;
use super::tokens::{
    LookupWait, ProofRefusal, RefusalEvidence, SharedClaims, TokenLookup, TokenVerdict, TokenVerifier,
};
use crate::face::own_metadata::{ChallengeError, ChallengeScheme, challenge};
use crate::face::sealed::{ForwardToken, digest_of_request};
use crate::face::session_owners::{FORWARD, SessionOwners};
use crate::replica::{ForwardedNumberRefusal, ForwardedNumbers};
use crate::task::{Caller, Clock as _, Principal, SystemClock, Timestamp};

/// How clients are authenticated: by [`KEY_HEADER`] and `Authorization` alone. Others can only reduce rights (B73).
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
    /// Requires a client certificate, or one of the other credentials if some are accepted too.
    CertificateHolders(CertificateHolders),
    /// Serves requests that other replicas forward, with the principal that they authenticated.
    Replicas(ForwardedCallers),
}

#[derive(Clone, Debug)]
pub struct TokenHolders {
    pub tokens: TokenVerifier,
    /// Empty unless API keys are accepted too.
    pub keys: ApiKeyRing,
}

#[derive(Clone, Debug)]
pub struct CertificateHolders {
    pub certificates: CertificateRing,
    /// How holders of keys or tokens are authenticated, if there are some.
    pub others: Option<Box<Authenticator>>,
}

/// The challenge where certificates alone are accepted; no registered scheme is about them.
const CERTIFICATE_SCHEME: HeaderValue = HeaderValue::from_static("Certificate");
const BEARER_SCHEME: HeaderValue = HeaderValue::from_static("Bearer");

impl CertificateHolders {
    /// Whether a request has a credential beside its certificate, by its form. Another `Authorization` is a server's.
    fn has_other_credential<B>(&self, request: &Request<B>) -> bool {
        let (Some(others), headers) = (&self.others, request.headers()) else { return false };
        let mut authorizations = headers.get_all(AUTHORIZATION).iter();
        headers.contains_key(KEY_HEADER)
            || match others.tokens() {
                Some(_) => authorizations.next().is_some() || has_token_in_query(request),
                None => authorizations.any(|value| shows_key(value.as_bytes())),
            }
    }

    fn caller(&self, certificate: &PeerCertificate) -> Result<AuthenticatedCaller, CertificateRefusal> {
        let owner = self.certificates.owner(certificate)?;
        Ok(AuthenticatedCaller::of_this_listener(owner.caller, self.certificates.grant.clone()))
    }

    /// The caller with a certificate and another credential: both are one principal's by the configuration, or by the
    /// issuer of a token bound to the certificate. It is then the other credential's, without the certificate's rights.
    fn joined(
        &self,
        certificate: &PeerCertificate,
        mut known: AuthenticatedCaller,
    ) -> Result<AuthenticatedCaller, CertificateRefusal> {
        if known.has_certificate {
            return Ok(known);
        }
        if self.certificates.owner(certificate)?.same_as.as_ref() != Some(&known.caller.principal) {
            return Err(CertificateRefusal::OfAnother);
        }
        known.further.push(self.certificates.grant.clone());
        Ok(known)
    }
}

pub(super) const PROOF_HEADER: HeaderName = HeaderName::from_static("dpop");

const TOKEN_PARAMETER: &str = "access_token";

fn has_token_in_query<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    url::form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == TOKEN_PARAMETER)
}

impl TokenHolders {
    fn identify<B>(&self, request: &Request<B>, asked: AskedPath<'_>) -> Result<Identity, Refusal> {
        let path = asked.endpoint;
        let (own, authorization) = (only(request.headers(), &KEY_HEADER)?, only(request.headers(), &AUTHORIZATION)?);
        if has_token_in_query(request) {
            return Err(Refusal::TokenInQuery);
        }
        let credential = match (own, authorization) {
            (Some(_), Some(_)) => return Err(Refusal::KeyAndToken),
            (Some(own), None) => own.to_str().ok().map(|own| (TokenScheme::Bearer, own)),
            (None, Some(authorization)) => self.credential_in(authorization),
            (None, None) => return Err(Refusal::LoginRequired(self.challenge(path, TokenScheme::Bearer, None))),
        };
        let invalid = |why| {
            let error = Some(ChallengeError::InvalidToken);
            let challenge = self.challenge(path, TokenScheme::Bearer, error);
            Refusal::CredentialRefused(challenge, why, RefusalEvidence::default())
        };
        let Some((scheme, credential)) = credential else { return Err(invalid(Some(TokenError::Malformed))) };
        if own.is_some() || (scheme == TokenScheme::Bearer && shows_key(credential.as_bytes())) {
            return AuthenticatedCaller::of_key(&self.keys, credential)
                .map(Identity::from)
                .ok_or_else(|| invalid(None));
        }
        self.by_token(request, asked, scheme, credential)
    }

    fn by_token<B>(
        &self,
        request: &Request<B>,
        asked: AskedPath<'_>,
        scheme: TokenScheme,
        token: &str,
    ) -> Result<Identity, Refusal> {
        let (path, settings) = (asked.endpoint, self.tokens.settings());
        let challenge = |error| self.challenge(path, scheme, Some(error));
        let invalid =
            |why, found| Refusal::CredentialRefused(challenge(ChallengeError::InvalidToken), Some(why), found);
        let proof = match scheme {
            TokenScheme::Bearer if settings.proofs == ProofPolicy::Require => {
                return Err(invalid(TokenError::NotProven, RefusalEvidence::default()));
            }
            TokenScheme::Bearer => None,
            TokenScheme::Dpop => {
                let read = proof_in(request.headers()).and_then(UnverifiedProof::read);
                Some(read.map_err(|why| Refusal::ProofRefused(challenge(ChallengeError::InvalidProof), why))?)
            }
        };
        let held = HeldProofs {
            certificate: asked.certificate.map(|certificate| &certificate.digest),
            key: proof.as_ref().map(UnverifiedProof::thumbprint),
        };
        match self.tokens.check(token, path.unwrap_or_default(), asked.wait, held) {
            TokenVerdict::Valid { caller, grant, has_certificate } => {
                if let Some(proof) = &proof {
                    let address = format!("{}{}", settings.public_url, request.uri().path());
                    let proven = ProvenRequest { method: request.method().as_str(), address: &address, token };
                    self.tokens.prove(proof, proven, &caller.principal).map_err(|refusal| match refusal {
                        ProofRefusal::Invalid(why) => {
                            Refusal::ProofRefused(challenge(ChallengeError::InvalidProof), why)
                        }
                        ProofRefusal::Full => Refusal::ProofsFull,
                    })?;
                }
                if !settings.scopes.iter().all(|scope| caller.has_scope(scope)) {
                    let challenge = challenge(ChallengeError::InsufficientScope);
                    let found = caller.claims.as_ref().map(|claims| RefusalEvidence {
                        issuer: claims.issuer.clone(),
                        value: Some(claims.scopes.iter().map(|scope| &**scope).collect::<Vec<_>>().join(" ").into()),
                    });
                    return Err(Refusal::ScopesMissing(challenge, caller.principal, found.unwrap_or_default()));
                }
                let known = AuthenticatedCaller::of_credential(caller, grant);
                Ok(AuthenticatedCaller { has_certificate, scheme, ..known }.into())
            }
            TokenVerdict::Invalid(error, found) => Err(invalid(error, found)),
            TokenVerdict::NeedsLookup(lookup) => Ok(Identity::NeedsLookup(lookup)),
            TokenVerdict::IssuerUnavailable(found) => Err(Refusal::IssuerUnavailable(found)),
        }
    }

    /// The credential of an `Authorization`, and its scheme if that is one of this listener's.
    fn credential_in<'a>(&self, value: &'a HeaderValue) -> Option<(TokenScheme, &'a str)> {
        let (scheme, credential) = credential_of(value)?;
        let scheme = if scheme.eq_ignore_ascii_case("bearer") {
            TokenScheme::Bearer
        } else if scheme.eq_ignore_ascii_case("dpop") && self.tokens.settings().proofs != ProofPolicy::Off {
            TokenScheme::Dpop
        } else {
            return None;
        };
        Some((scheme, credential))
    }

    fn challenge(&self, path: Option<&str>, used: TokenScheme, error: Option<ChallengeError>) -> HeaderValue {
        self.challenge_with(path, used, error, &[])
    }

    /// A challenge that lists further scopes after those that every request needs.
    fn challenge_with(
        &self,
        path: Option<&str>,
        used: TokenScheme,
        error: Option<ChallengeError>,
        further: &[Arc<str>],
    ) -> HeaderValue {
        let settings = self.tokens.settings();
        let scheme = match (settings.proofs, used) {
            (ProofPolicy::Off, _) => ChallengeScheme::Bearer,
            (ProofPolicy::Accept, TokenScheme::Bearer) => ChallengeScheme::BearerOrDpop,
            (ProofPolicy::Accept, TokenScheme::Dpop) | (ProofPolicy::Require, _) => ChallengeScheme::Dpop,
        };
        let further = further.iter().filter(|scope| !settings.scopes.contains(scope));
        let scopes = settings.scopes.iter().chain(further).map(|scope| &**scope);
        challenge(&settings.public_url, path, scheme, error, scopes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenScheme {
    Bearer,
    /// A token that is bound to a key, with a proof beside it.
    Dpop,
}

/// The user of a loopback listener without authentication. A client behind a proxy is anonymous, or its credential's.
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
            Self::CertificateHolders(holders) => holders.others.as_ref()?.keys(),
            Self::Everyone(_) | Self::OnePerson(_) | Self::Replicas(_) => None,
        }
    }

    fn keys_mut(&mut self) -> Option<&mut ApiKeyRing> {
        match self {
            Self::KeyHolders(keys) | Self::TokenHolders(TokenHolders { keys, .. }) => Some(keys),
            Self::CertificateHolders(holders) => holders.others.as_mut()?.keys_mut(),
            Self::Everyone(_) | Self::OnePerson(_) | Self::Replicas(_) => None,
        }
    }

    const fn token_holders(&self) -> Option<&TokenHolders> {
        if let Self::CertificateHolders(CertificateHolders { others: Some(others), .. }) = self {
            return others.token_holders();
        }
        if let Self::TokenHolders(holders) = self { Some(holders) } else { None }
    }

    pub fn tokens(&self) -> Option<&TokenVerifier> {
        self.token_holders().map(|holders| &holders.tokens)
    }

    pub fn with_tokens(mut self, change: impl FnOnce(&TokenVerifier) -> TokenVerifier) -> Self {
        let mut inner = &mut self;
        while let Self::CertificateHolders(CertificateHolders { others: Some(others), .. }) = inner {
            inner = others;
        }
        if let Self::TokenHolders(holders) = inner {
            holders.tokens = change(&holders.tokens);
        }
        self
    }
}

impl LocalUser {
    /// Reads the listener's settings. Names other than loopback's indicate several people, and so do trusted proxies.
    pub fn new(settings: &ListenSettings) -> Self {
        let is_named = settings.allowed_hosts.iter().any(|name| !is_loopback(name));
        Self { is_shared: is_named || !settings.trusted_proxies.is_empty(), is_logged: Arc::default() }
    }

    fn identify<B>(&self, request: &Request<B>, asked: AskedPath<'_>) -> Result<Principal, Refusal> {
        if asked.forwards {
            return by_credential(request.headers());
        }
        if self.is_shared {
            return Ok(Principal::anonymous());
        }
        if names_this_machine(request) && !came_through_a_proxy(request.version(), asked.rare) {
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
        (_, Some(_)) => Err(Refusal::CredentialsAmbiguous),
    }
}

/// No client uses HTTP/1.0, but nginx does by default, and may add no header.
fn came_through_a_proxy(version: Version, rare: RareFields) -> bool {
    version < Version::HTTP_11 || rare.has(RareField::Proxy)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AskedPath<'p> {
    /// The path of the endpoint, if there is one that asks for credentials.
    pub(super) endpoint: Option<&'p str>,
    /// Whether it forwards clients' credentials upstream.
    pub(super) forwards: bool,
    pub(super) wait: LookupWait,
    pub(super) certificate: Option<&'p PeerCertificate>,
    pub(super) rare: RareFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenUse {
    /// It identifies its client, and no more.
    Identity,
    /// The upstream gets a credential in exchange for it, too.
    Exchange,
}

/// The sender of a request by its credential, or the lookup that must come first.
pub(super) enum Identity {
    Known(AuthenticatedCaller),
    NeedsLookup(TokenLookup),
}

from_variant!(Identity::Known(AuthenticatedCaller));

#[derive(Debug)]
pub(super) struct AuthenticatedCaller {
    pub(super) caller: Caller,
    pub(super) grant: Grant,
    /// The end of its credential's validity, for its streams; `None` if another listener ends them.
    pub(super) ends_at: Option<Timestamp>,
    /// Whether its token is bound to its connection's certificate: the issuer says that both are one client's.
    pub(super) has_certificate: bool,
    pub(super) scheme: TokenScheme,
    /// Grants of its certificate, whose end also ends its streams.
    pub(super) further: Vec<Grant>,
    /// The client's address, if another replica forwards the request and has counted it.
    pub(super) forwarded_from: Option<IpAddr>,
}

impl AuthenticatedCaller {
    fn of_key(keys: &ApiKeyRing, credential: &str) -> Option<Self> {
        let (caller, grant) = keys.owner(credential)?;
        Some(Self::of_credential(caller.clone(), grant.clone()))
    }

    fn of_credential(caller: Caller, grant: Grant) -> Self {
        Self { ends_at: caller.until, ..Self::of_this_listener(caller, grant) }
    }

    const fn of_this_listener(caller: Caller, grant: Grant) -> Self {
        Self {
            caller,
            grant,
            ends_at: None,
            has_certificate: false,
            scheme: TokenScheme::Bearer,
            further: Vec::new(),
            forwarded_from: None,
        }
    }

    /// Ends it at the latest with its connection's certificate.
    fn within(mut self, certificate: &PeerCertificate, files: Grant) -> Self {
        let until = certificate.until;
        self.caller.until = Some(self.caller.until.map_or(until, |own| own.min(until)));
        self.ends_at = self.caller.until;
        self.further.push(files);
        self
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
    pub(super) fn followed_by(&self, mut callers: Authenticator) -> Self {
        if let Some(before) = self.callers.tokens() {
            before.withdraw_unless_in(callers.tokens());
        }
        if let Authenticator::CertificateHolders(CertificateHolders { certificates: before, .. }) = &self.callers {
            if let Authenticator::CertificateHolders(now) = &mut callers {
                now.certificates.succeed(before);
            } else {
                before.grant.withdraw();
            }
        }
        if let Some(before) = self.callers.keys() {
            match callers.keys_mut() {
                Some(now) => *now = now.clone().succeeding(before),
                None => before.withdraw(),
            }
        }
        if self.asks_all() {
            return Self::new(callers);
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
            (_, _) => self.open.withdraw(),
        }
        Self::new(callers)
    }

    pub(super) fn takes_tokens(&self) -> bool {
        self.callers.tokens().is_some()
    }

    pub(super) const fn asks_all(&self) -> bool {
        use Authenticator::{Everyone, OnePerson, Replicas};

        !matches!(&self.callers, Everyone(_) | OnePerson(_) | Replicas(_))
    }

    /// Removes this gateway's keys, texts that look like one, and replicas' seals from an admitted request: no upstream
    /// receives them (SEC-04). An access token stays if the path's upstream gets a credential in exchange.
    pub(super) fn withhold_keys(&self, headers: &mut HeaderMap, token: TokenUse) {
        if self.asks_all() {
            headers.remove(KEY_HEADER);
            headers.remove(PROOF_HEADER);
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
    pub(super) fn scope_challenge(
        &self,
        asked: AskedPath<'_>,
        used: TokenScheme,
        needed: &[Arc<str>],
    ) -> Option<HeaderValue> {
        let holders = self.callers.token_holders()?;
        Some(holders.challenge_with(asked.endpoint, used, Some(ChallengeError::InsufficientScope), needed))
    }

    fn certificate_refused(&self, asked: AskedPath<'_>, why: CertificateRefusal) -> Refusal {
        let challenge = match self.callers.token_holders() {
            Some(holders) => {
                let error = (why == CertificateRefusal::OfAnother).then_some(ChallengeError::InvalidToken);
                holders.challenge(asked.endpoint, TokenScheme::Bearer, error)
            }
            None if self.callers.keys().is_some() => BEARER_SCHEME,
            None => CERTIFICATE_SCHEME,
        };
        let is_about_names = matches!(why, CertificateRefusal::Unknown | CertificateRefusal::Ambiguous);
        let value = asked.certificate.filter(|_| is_about_names).and_then(PeerCertificate::names);
        Refusal::CertificateRefused(challenge, why, RefusalEvidence { issuer: None, value })
    }

    /// Authenticates a request. Fails with `CredentialsAmbiguous` or `KeyAndToken` for two credentials (B150), `Unauthorized`
    /// without a known key, a challenge without a valid token, `NotForwarded` on the replica listener for a request that no replica
    /// sealed. A connection's certificate that is no longer valid is refused beside every credential.
    pub(super) fn identify<B>(&self, request: &Request<B>, asked: AskedPath<'_>) -> Result<Identity, Refusal> {
        // Replicas verify each other in the handshake alone.
        let certificate = asked.certificate.filter(|_| !matches!(self.callers, Authenticator::Replicas(_)));
        let Some(certificate) = certificate else { return self.identify_by(&self.callers, request, asked) };
        let files = certificate.admitted(SystemClock.now());
        let files = files.ok_or_else(|| self.certificate_refused(asked, CertificateRefusal::Withdrawn))?;
        Ok(match self.identify_by(&self.callers, request, asked)? {
            Identity::Known(known) => Identity::Known(known.within(certificate, files)),
            waits @ Identity::NeedsLookup(_) => waits,
        })
    }

    fn identify_by<B>(
        &self,
        callers: &Authenticator,
        request: &Request<B>,
        asked: AskedPath<'_>,
    ) -> Result<Identity, Refusal> {
        let keyless =
            |principal| AuthenticatedCaller::of_this_listener(Caller::of(principal), self.open.clone()).into();
        match callers {
            Authenticator::Everyone(principal) => Ok(keyless(principal.clone())),
            Authenticator::OnePerson(person) => person.identify(request, asked).map(keyless),
            Authenticator::TokenHolders(holders) => holders.identify(request, asked),
            Authenticator::KeyHolders(keys) => {
                let token = key_in(request.headers())?.ok_or(Refusal::Unauthorized)?;
                AuthenticatedCaller::of_key(keys, token).map(Identity::from).ok_or(Refusal::Unauthorized)
            }
            Authenticator::CertificateHolders(holders) => {
                key_in(request.headers())?;
                let refused = |why| self.certificate_refused(asked, why);
                let known = match (asked.certificate, &holders.others) {
                    (Some(certificate), Some(others)) if holders.has_other_credential(request) => {
                        match self.identify_by(others, request, asked)? {
                            Identity::Known(known) => holders.joined(certificate, known),
                            waits @ Identity::NeedsLookup(_) => return Ok(waits),
                        }
                    }
                    (Some(certificate), _) => holders.caller(certificate),
                    (None, Some(others)) => return self.identify_by(others, request, asked),
                    (None, None) => Err(CertificateRefusal::Missing),
                };
                known.map(Identity::Known).map_err(refused)
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
    credential_of(value).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token)
}

fn credential_of(value: &HeaderValue) -> Option<(&str, &str)> {
    let (scheme, credential) = value.to_str().ok()?.split_once(' ')?;
    Some((scheme, credential.trim_start_matches(' ')))
}

/// The only proof of a request (RFC 9449, 4.3).
fn proof_in(headers: &HeaderMap) -> Result<&str, ProofError> {
    let mut fields = headers.get_all(PROOF_HEADER).iter();
    match (fields.next(), fields.next()) {
        (Some(proof), None) => proof.to_str().map_err(|_| ProofError::Malformed),
        (_, _) => Err(ProofError::NotOne),
    }
}

/// How far a request's seal may be in the past or the future: allows for clock skew between replicas and for transit.
const GOOD_FOR: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct ForwardedCallers(Arc<ForwardedCallersState>);

struct ForwardedCallersState {
    owners: Arc<SessionOwners>,
    numbers: Mutex<ForwardedNumbers>,
    claims: SharedClaims,
}

impl ForwardedCallers {
    pub fn new(owners: Arc<SessionOwners>) -> Self {
        Self(Arc::new(ForwardedCallersState { owners, numbers: Mutex::default(), claims: SharedClaims::default() }))
    }

    /// The principal and client of a forwarded request, which a replica sealed for this one, recently, and sent once.
    pub(super) fn identify<B>(&self, request: &Request<B>) -> Result<ForwardToken, ForwardRefusal> {
        let ForwardedCallersState { owners, numbers, claims } = &*self.0;
        let mut sealed = request.headers().get_all(FORWARD).iter();
        let (Some(sealed), None) = (sealed.next(), sealed.next()) else { return Err(ForwardRefusal::Unsealed) };
        let mut token = sealed.to_str().ok().and_then(|sealed| owners.open(sealed)).ok_or(ForwardRefusal::Unsealed)?;
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
        let taken = numbers.lock().take(token.sender, token.number, now, GOOD_FOR);
        token.caller.claims = token.caller.claims.map(|own| claims.of(Arc::unwrap_or_clone(own)));
        taken.map(|()| token).map_err(|refusal| match refusal {
            ForwardedNumberRefusal::Repeated => ForwardRefusal::Repeated,
            ForwardedNumberRefusal::TooManySenders => ForwardRefusal::TooManySenders,
        })
    }
}

debug_members!(ForwardedCallers, |callers| owners: callers.0.owners);

#[cfg(test)]
mod tests;
