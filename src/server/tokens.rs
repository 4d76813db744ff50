//! Authenticates clients by access tokens of configured issuers: the gateway is an OAuth resource server (RFC 9728,
//! 6750). It issues no token and has no login page. Read [`claims`] first: the checks of a token. A token is checked
//! once, then remembered by its digest; a token with an unknown key waits for one fetch of its issuer's keys.

pub mod claims;
pub mod dpop;
mod introspection;
mod jws;
mod key_source;
mod keys;
mod question_budget;
pub mod readings;
mod remembered;
pub mod seen_proofs;
pub mod settings;

use std::mem::size_of;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use moka::sync::Cache;
use serde_json::Map;

use self::claims::{HeldProofs, TokenError, UnverifiedToken};
use self::dpop::{ProofError, ProvenRequest, UnverifiedProof};
use self::introspection::{IntrospectionAnswer, Introspector};
use self::key_source::IssuerKeys;
use self::remembered::{RememberedToken, RememberedTokens, TokenDigest};
use self::seen_proofs::SeenProofs;
use self::settings::{IssuerSettings, TokenSettings, normal_address};
use super::grant::Grant;
use crate::task::digest::digest;
use crate::task::{Caller, Claims, Clock, Principal, SystemClock, Timestamp};
use crate::upstream::TaskScope;

pub use self::key_source::{KeySourceError, check_file, is_trustworthy};

/// Verifies the tokens of a listener's clients. Clones share everything.
#[derive(Clone)]
pub struct TokenVerifier(Arc<VerifierState>);

struct VerifierState {
    settings: TokenSettings,
    issuers: Vec<TrustedIssuer>,
    remembered: RememberedTokens,
    /// Kept over reloads, so that no proof is accepted twice.
    seen: Arc<SeenProofs>,
    clock: Arc<dyn Clock>,
    /// Runs lookups whose clients have disconnected; set once the gateway serves.
    scope: Arc<OnceLock<TaskScope>>,
}

/// An issuer with its keys. Its grant ends the streams of its tokens when a reload changes or removes it.
#[derive(Clone)]
struct TrustedIssuer {
    settings: Arc<IssuerSettings>,
    keys: Arc<IssuerKeys>,
    introspector: Option<Arc<Introspector>>,
    grant: Grant,
}

/// The facts about a refused credential for the operator's log. Clients learn none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RefusalEvidence {
    pub(super) issuer: Option<Arc<str>>,
    /// The part of the credential that shows the fault. Never a secret.
    pub(super) value: Option<Box<str>>,
}

pub(super) enum TokenVerdict {
    Valid {
        caller: Caller,
        grant: Grant,
        /// Whether it is bound to the certificate of its connection.
        has_certificate: bool,
    },
    Invalid(TokenError, RefusalEvidence),
    NeedsLookup(TokenLookup),
    /// The issuer cannot be asked; or its keys are unknown or too old, and cannot be fetched.
    IssuerUnavailable(RefusalEvidence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofRefusal {
    Invalid(ProofError),
    /// No room to remember the proof, so it could be repeated.
    Full,
}

/// Whether a request may still wait for a lookup. It waits once; then the keys and answers in memory decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupWait {
    Allowed,
    Over,
}

struct TokenCheck<'t> {
    token: &'t str,
    digest: TokenDigest,
    now: Timestamp,
    wait: LookupWait,
    held: HeldProofs<'t>,
}

impl TrustedIssuer {
    /// The same, with the keys and answers that the issuer gave `before`.
    fn succeeding(&self, before: &Self) -> Self {
        self.keys.succeed(&before.keys);
        let is_asked_alike = self.settings.introspection == before.settings.introspection;
        let asked = if is_asked_alike { before } else { self };
        Self { introspector: asked.introspector.clone(), ..self.clone() }
    }

    fn takes_opaque(&self) -> bool {
        self.settings.introspection.as_ref().is_some_and(|one| one.tokens.has_opaque())
    }

    fn refuses(&self, error: TokenError, value: Option<Box<str>>) -> TokenVerdict {
        TokenVerdict::Invalid(error, RefusalEvidence { value, ..self.evidence() })
    }

    fn evidence(&self) -> RefusalEvidence {
        RefusalEvidence { issuer: Some(Arc::clone(&self.settings.issuer)), value: None }
    }
}

pub(super) struct TokenLookup {
    target: LookupTarget,
    scope: Arc<OnceLock<TaskScope>>,
}

enum LookupTarget {
    Keys(Arc<IssuerKeys>),
    Introspection(Arc<Introspector>, String),
}

impl TokenLookup {
    /// `client` has a share of the questions about tokens; fails with the time after which it may ask again.
    pub(super) async fn wait(self, client: IpAddr) -> Result<(), Duration> {
        match self.target {
            LookupTarget::Keys(keys) => {
                keys.ask(&self.scope).await;
                Ok(())
            }
            LookupTarget::Introspection(introspector, token) => introspector.ask(token, client, &self.scope).await,
        }
    }
}

debug_members!(TokenVerifier, |verifier| issuers: verifier.0.issuers.len());

impl TokenVerifier {
    /// Fetches nothing: see [`TokenVerifier::refresh`].
    pub fn new(settings: TokenSettings) -> Self {
        let issuers = settings.issuers.iter().map(|settings| TrustedIssuer {
            settings: Arc::clone(settings),
            keys: Arc::new(IssuerKeys::new(Arc::clone(settings))),
            introspector: settings.introspection.clone().map(|one| Arc::new(Introspector::new(one))),
            grant: Grant::default(),
        });
        let issuers = issuers.collect();
        Self::of(settings, issuers, Arc::default())
    }

    fn of(settings: TokenSettings, issuers: Vec<TrustedIssuer>, seen: Arc<SeenProofs>) -> Self {
        let (remembered, clock, scope) = (RememberedTokens::default(), Arc::new(SystemClock), Arc::default());
        Self(Arc::new(VerifierState { settings, issuers, remembered, seen, clock, scope }))
    }

    /// The same, with the proofs that earlier verifiers of this process have seen.
    #[must_use]
    pub fn with_seen(&self, seen: &Arc<SeenProofs>) -> Self {
        Self::of(self.0.settings.clone(), self.0.issuers.clone(), Arc::clone(seen))
    }

    /// Sets the scope in which lookups run. Without a scope there is no lookup.
    pub fn run_in(&self, scope: &TaskScope) {
        // Set already if an unchanged verifier is taken over.
        let _ = self.0.scope.set(scope.clone());
    }

    /// The verifier that replaces `before`. The streams of an unchanged issuer's tokens continue. A changed issuer, or each one if
    /// scopes, proofs or the address changed, keeps the keys that are known: its tokens are checked again, and their streams end.
    #[must_use]
    pub fn succeeding(self, before: &Self) -> Self {
        let (now, then) = (&self.0.settings, &before.0.settings);
        // A file of keys may have another content than before.
        let has_file = now.issuers.iter().any(|one| one.keys.file().is_some());
        if now == then && !has_file {
            return before.clone();
        }
        let is_equal = now.scopes == then.scopes && now.public_url == then.public_url && now.proofs == then.proofs;
        let kept = |one: &TrustedIssuer| {
            let before = before.0.issuers.iter().find(|other| other.settings.issuer == one.settings.issuer);
            match before {
                Some(before) if is_equal && before.settings == one.settings && before.keys.is_same_as(&one.keys) => {
                    before.clone()
                }
                Some(before) => one.succeeding(before),
                None => one.clone(),
            }
        };
        let issuers = self.0.issuers.iter().map(kept).collect();
        Self::of(now.clone(), issuers, Arc::clone(&before.0.seen))
    }

    /// Ends the streams of tokens that `successor` verifies differently.
    pub(super) fn withdraw_unless_in(&self, successor: Option<&Self>) {
        for one in &self.0.issuers {
            let is_same = |other: &TrustedIssuer| Arc::ptr_eq(&other.keys, &one.keys);
            let stays = successor.is_some_and(|successor| successor.0.issuers.iter().any(is_same));
            if !stays {
                one.grant.withdraw();
            }
        }
    }

    pub fn settings(&self) -> &TokenSettings {
        &self.0.settings
    }

    /// Fetches the keys that are due; returns when to call it again.
    pub async fn refresh(&self) -> Duration {
        let due = join_all(self.0.issuers.iter().map(|one| one.keys.refresh())).await;
        due.into_iter().min().unwrap_or(Duration::MAX)
    }

    /// Returns once keys were fetched for a token.
    pub async fn fetched(&self) {
        let fetches = self.0.issuers.iter().map(|one| Box::pin(one.keys.fetched()));
        futures_util::future::select_all(fetches).await;
    }

    pub fn issuers_without_current_keys(&self) -> impl Iterator<Item = &str> {
        let lacking = self.0.issuers.iter().filter(|one| !one.settings.needs_no_keys() && !one.keys.are_current());
        lacking.map(|one| &*one.settings.issuer)
    }

    /// Checks a token for the gateway's endpoint at `path`, and the proofs of its sender.
    pub(super) fn check(&self, token: &str, path: &str, wait: LookupWait, held: HeldProofs<'_>) -> TokenVerdict {
        let VerifierState { remembered, clock, settings, issuers, .. } = &*self.0;
        let check = TokenCheck { token, digest: remembered.digest(token, path), now: clock.now(), wait, held };
        let is_trusted = |index: u32| issuers.get(index as usize).is_some_and(|one| one.keys.are_current());
        if let Some(found) = remembered.get(check.digest, check.now).filter(|found| is_trusted(found.issuer)) {
            return self.valid(found, &check);
        }
        let endpoint = || normal_address(&format!("{}{path}", settings.public_url));
        // The form decides, not a trial.
        let opaque = if jws::is_signed_form(token) { None } else { self.position(TrustedIssuer::takes_opaque) };
        if let Some(index) = opaque {
            return self.introspect(&check, index, &endpoint());
        }
        let read = match UnverifiedToken::read(token) {
            Ok(read) => read,
            Err(error) => return refused(error, token),
        };
        match self.position(|one| *one.settings.issuer == *read.issuer) {
            None => refused(TokenError::UnknownIssuer, token),
            Some(index) if issuers.get(index).is_some_and(|one| one.settings.needs_no_keys()) => {
                self.introspect(&check, index, &endpoint())
            }
            Some(index) => self.verify(&read, &check, index, &endpoint()),
        }
    }

    fn position(&self, is_meant: impl Fn(&TrustedIssuer) -> bool) -> Option<usize> {
        self.0.issuers.iter().position(is_meant)
    }

    fn verify(&self, read: &UnverifiedToken<'_>, check: &TokenCheck<'_>, index: usize, endpoint: &str) -> TokenVerdict {
        let Some(issuer) = self.0.issuers.get(index) else {
            return TokenVerdict::IssuerUnavailable(RefusalEvidence::default());
        };
        let keys = &issuer.keys;
        let verified = match keys.current() {
            Some(set) => read.verify(&issuer.settings, &set, endpoint, check.now),
            None => Err(TokenError::UnknownKey),
        };
        match verified {
            Ok(token) => {
                let kept = self.0.remembered.keep(check.digest, token, index, check.now);
                self.valid(kept, check)
            }
            Err(TokenError::UnknownKey) if check.wait == LookupWait::Allowed && keys.may_be_asked() => {
                self.needs(LookupTarget::Keys(Arc::clone(keys)))
            }
            Err(TokenError::UnknownKey) if keys.is_unavailable() || !keys.are_current() => {
                TokenVerdict::IssuerUnavailable(issuer.evidence())
            }
            Err(error) => issuer.refuses(error, error.shown_in(check.token)),
        }
    }

    pub(super) fn prove(
        &self,
        proof: &UnverifiedProof<'_>,
        request: ProvenRequest<'_>,
        owner: &Principal,
    ) -> Result<(), ProofRefusal> {
        let now = self.0.clock.now();
        let verified = proof.verify(request, now).map_err(ProofRefusal::Invalid)?;
        self.0.seen.take(owner, &verified, now)
    }

    fn introspect(&self, check: &TokenCheck<'_>, index: usize, endpoint: &str) -> TokenVerdict {
        if check.token.len() > claims::TOKEN_BYTES_MAX {
            return refused(TokenError::TooLarge, check.token);
        }
        let issuer = self.0.issuers.get(index);
        let Some((issuer, introspector)) = issuer.and_then(|one| Some((one, one.introspector.as_ref()?))) else {
            return TokenVerdict::IssuerUnavailable(RefusalEvidence::default());
        };
        match introspector.known(&digest([check.token.as_bytes()])) {
            None if check.wait == LookupWait::Allowed => {
                self.needs(LookupTarget::Introspection(Arc::clone(introspector), check.token.to_owned()))
            }
            None | Some(IntrospectionAnswer::Unavailable) => TokenVerdict::IssuerUnavailable(issuer.evidence()),
            Some(IntrospectionAnswer::Inactive) => issuer.refuses(TokenError::Inactive, None),
            Some(IntrospectionAnswer::Active(found)) => {
                match claims::verify_introspected(&found, &issuer.settings, endpoint, check.now) {
                    Ok(token) => self.valid(self.0.remembered.entry(token, index, check.now), check),
                    Err(error) => issuer.refuses(error, error.shown(&Map::new(), &found)),
                }
            }
        }
    }

    fn needs(&self, target: LookupTarget) -> TokenVerdict {
        TokenVerdict::NeedsLookup(TokenLookup { target, scope: Arc::clone(&self.0.scope) })
    }

    fn valid(&self, token: RememberedToken, check: &TokenCheck<'_>) -> TokenVerdict {
        let RememberedToken { caller, issuer, binding, .. } = token;
        let known = self.0.issuers.get(issuer as usize);
        if let Err(error) = check.held.fit(binding.as_deref()) {
            return TokenVerdict::Invalid(error, known.map(TrustedIssuer::evidence).unwrap_or_default());
        }
        let has_certificate = binding.is_some_and(|binding| binding.certificate.is_some());
        let grant = known.map(|one| one.grant.clone()).unwrap_or_default();
        TokenVerdict::Valid { caller, grant, has_certificate }
    }
}

fn refused(error: TokenError, token: &str) -> TokenVerdict {
    TokenVerdict::Invalid(error, RefusalEvidence { issuer: None, value: error.shown_in(token) })
}

const WEIGHT_MAX: u64 = 4 << 20;
const ENTRY_BYTES: usize = 512;

/// Keeps one copy of equal claims: most tokens of an issuer have the same. Rules find callers by the claims' address.
pub(in crate::server) struct SharedClaims(Cache<Arc<Claims>, Arc<Claims>>);

impl Default for SharedClaims {
    fn default() -> Self {
        let weight = |claims: &Arc<Claims>, _: &Arc<Claims>| {
            u32::try_from(ENTRY_BYTES + size_of::<Claims>() + claims.bytes()).unwrap_or(u32::MAX)
        };
        Self(Cache::builder().max_capacity(WEIGHT_MAX).weigher(weight).build())
    }
}

debug_members!(SharedClaims, |claims| entries: claims.0.entry_count());

impl SharedClaims {
    /// The copy of these claims that earlier tokens have, if it is still known.
    pub(in crate::server) fn of(&self, claims: Claims) -> Arc<Claims> {
        self.0.get(&claims).unwrap_or_else(|| {
            let claims = Arc::new(claims);
            self.0.insert(Arc::clone(&claims), Arc::clone(&claims));
            claims
        })
    }
}
