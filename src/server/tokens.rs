//! Authenticates clients by access tokens of configured issuers: the gateway is an OAuth resource server (RFC 9728, 6750).
//!
//! It issues no token and has no login page. Read [`claims`] first: what a token must say. A token is checked once, then
//! remembered by its digest; a token with an unknown key waits for one fetch of its issuer's keys.

pub(super) mod binding;
pub mod claims;
pub mod dpop;
mod jws;
mod key_source;
mod keys;
mod remembered;
mod seen_proofs;
pub mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use self::claims::{HeldProofs, TokenError, UnverifiedToken};
use self::dpop::{ProofError, ProvenRequest, UnverifiedProof};
use self::key_source::IssuerKeys;
pub use self::key_source::{KeySourceError, check_file, is_trustworthy};
use self::remembered::{RememberedToken, RememberedTokens, key_of};
use self::seen_proofs::{SeenError, SeenProofs};
use self::settings::{IssuerSettings, TokenSettings, normal_address};
use super::grant::Grant;
use crate::task::{Caller, Clock, Principal, SystemClock, Timestamp};

/// Verifies the tokens of a listener's clients. Clones share everything.
#[derive(Clone)]
pub struct TokenVerifier(Arc<VerifierState>);

struct VerifierState {
    settings: TokenSettings,
    issuers: Vec<TrustedIssuer>,
    remembered: RememberedTokens,
    /// Kept over reloads: a used proof stays used.
    seen: Arc<SeenProofs>,
    clock: Arc<dyn Clock>,
}

/// An issuer with its keys. Its grant ends the streams of its tokens when a reload changes or removes it.
#[derive(Clone)]
struct TrustedIssuer {
    settings: Arc<IssuerSettings>,
    keys: Arc<IssuerKeys>,
    grant: Grant,
}

/// The outcome for a credential with the form of a token.
pub(super) enum TokenVerdict {
    Valid {
        caller: Caller,
        grant: Grant,
        ends_in: Option<Duration>,
        /// Whether it is bound to the certificate of its connection.
        has_certificate: bool,
    },
    Invalid(TokenError),
    /// Its issuer's keys must be fetched first.
    NeedsKeys(KeyLookup),
    /// Its issuer's keys are unknown, or too old, and cannot be fetched.
    KeysAway,
}

/// Why a proof does not prove anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofRefusal {
    Invalid(ProofError),
    /// It cannot be remembered, so it could be repeated.
    Full,
}

/// Whether a request may still wait for keys: once it has waited, what is known decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyWait {
    Allowed,
    Over,
}

/// A fetch of keys that a request waits for.
pub(super) struct KeyLookup(Arc<IssuerKeys>);

impl KeyLookup {
    pub(super) async fn wait(self) {
        self.0.ask().await;
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.issuers.iter().map(|one| &one.settings.issuer)).finish()
    }
}

impl TokenVerifier {
    /// Fetches nothing: see [`TokenVerifier::refresh`].
    #[must_use]
    pub fn new(settings: TokenSettings) -> Self {
        let issuers = settings.issuers.iter().map(|settings| TrustedIssuer {
            settings: Arc::clone(settings),
            keys: Arc::new(IssuerKeys::new(Arc::clone(settings))),
            grant: Grant::default(),
        });
        let issuers = issuers.collect();
        Self::of(settings, issuers, Arc::default())
    }

    fn of(settings: TokenSettings, issuers: Vec<TrustedIssuer>, seen: Arc<SeenProofs>) -> Self {
        let (remembered, clock) = (RememberedTokens::new(), Arc::new(SystemClock));
        Self(Arc::new(VerifierState { settings, issuers, remembered, seen, clock }))
    }

    /// The verifier that replaces `before`: an unchanged issuer keeps its keys, and the streams of its tokens go on. With
    /// other scopes or another address, every token is checked again, and all streams end.
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
            let before = before.0.issuers.iter().find(|other| other.settings == one.settings && is_equal);
            before.filter(|before| before.keys.is_same_as(&one.keys)).unwrap_or(one).clone()
        };
        let issuers = self.0.issuers.iter().map(kept).collect();
        Self::of(now.clone(), issuers, Arc::clone(&before.0.seen))
    }

    /// Ends the streams of tokens that `now` does not verify as this did.
    pub(super) fn withdraw_beside(&self, now: Option<&Self>) {
        for one in &self.0.issuers {
            let stays = now.is_some_and(|now| now.0.issuers.iter().any(|other| Arc::ptr_eq(&other.keys, &one.keys)));
            if !stays {
                one.grant.withdraw();
            }
        }
    }

    #[must_use]
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

    /// The issuers without usable keys.
    pub fn unknown_issuers(&self) -> impl Iterator<Item = &str> {
        let unknown = self.0.issuers.iter().filter(|one| !one.keys.are_current());
        unknown.map(|one| &*one.settings.issuer)
    }

    /// Checks a token for the endpoint at `path`, which is one of the gateway's, and what its sender holds besides it.
    pub(super) fn check(&self, token: &str, path: &str, wait: KeyWait, held: HeldProofs<'_>) -> TokenVerdict {
        let VerifierState { remembered, clock, .. } = &*self.0;
        let (key, now) = (key_of(token, path), clock.now());
        let is_trusted = |index| self.0.issuers.get(index).is_some_and(|one: &TrustedIssuer| one.keys.are_current());
        if let Some(found) = remembered.get(&key, now).filter(|found| is_trusted(found.issuer)) {
            return self.valid(found, held, now);
        }
        let read = match UnverifiedToken::read(token) {
            Ok(read) => read,
            Err(error) => return TokenVerdict::Invalid(error),
        };
        let named = self.0.issuers.iter().position(|one| *one.settings.issuer == *read.issuer());
        let Some((index, issuer)) = named.and_then(|index| Some((index, self.0.issuers.get(index)?))) else {
            return TokenVerdict::Invalid(TokenError::UnknownIssuer);
        };
        let keys = &issuer.keys;
        let asked = normal_address(&format!("{}{path}", self.0.settings.public_url));
        let verified = match keys.current() {
            Some(set) => read.verify(&issuer.settings, &set, &asked, now),
            None => Err(TokenError::UnknownKey),
        };
        match verified {
            Ok(token) => {
                let kept = remembered.keep(key, token, index, now);
                self.valid(kept, held, now)
            }
            Err(TokenError::UnknownKey) if wait == KeyWait::Allowed && keys.may_be_asked() => {
                TokenVerdict::NeedsKeys(KeyLookup(Arc::clone(keys)))
            }
            Err(TokenError::UnknownKey) if keys.is_away() || !keys.are_current() => TokenVerdict::KeysAway,
            Err(error) => TokenVerdict::Invalid(error),
        }
    }

    /// Checks the proof beside a valid token, and remembers it.
    pub(super) fn prove(
        &self,
        proof: &UnverifiedProof<'_>,
        request: ProvenRequest<'_>,
        owner: &Principal,
    ) -> Result<(), ProofRefusal> {
        let now = self.0.clock.now();
        let verified = proof.verify(request, now).map_err(ProofRefusal::Invalid)?;
        self.0.seen.take(owner, &verified, now).map_err(|error| match error {
            SeenError::Repeated => ProofRefusal::Invalid(ProofError::Repeated),
            SeenError::Full => ProofRefusal::Full,
        })
    }

    fn valid(&self, token: RememberedToken, held: HeldProofs<'_>, now: Timestamp) -> TokenVerdict {
        let RememberedToken { caller, issuer, binding, .. } = token;
        if let Err(error) = held.fit(binding.as_deref()) {
            return TokenVerdict::Invalid(error);
        }
        let has_certificate = binding.is_some_and(|binding| binding.certificate.is_some());
        let ends_in = caller.until.map(|until| until.since(now));
        let grant = self.0.issuers.get(issuer).map(|one| one.grant.clone()).unwrap_or_default();
        TokenVerdict::Valid { caller, grant, ends_in, has_certificate }
    }
}
