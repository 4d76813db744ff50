//! Remembers which tokens were verified, so that a poll costs one digest and no signature.

use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::binding::TokenBinding;
use super::claims::VerifiedToken;
use crate::task::digest::{Digest, digest};
use crate::task::{Caller, Claims, Timestamp};

const WEIGHT_MAX: u64 = 32 << 20;
/// How long a token is believed without another look at its issuer's keys.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// The bytes that the cache needs for an entry, and the header of a reference-counted text.
const ENTRY_BYTES: usize = 128;
const TEXT_BYTES: usize = 32;
/// The most different sets of claims that tokens share.
const CLAIMS_MAX: u64 = 1_000;

#[derive(Clone, Debug)]
pub(super) struct RememberedToken {
    pub(super) caller: Caller,
    /// The position of its issuer in the settings.
    pub(super) issuer: usize,
    /// Shared, as most tokens have none.
    pub(super) binding: Option<Arc<TokenBinding>>,
    kept_until: Timestamp,
    weight: u32,
}

#[derive(Debug)]
pub(super) struct RememberedTokens {
    by_digest: Cache<Digest, RememberedToken>,
    /// Most tokens of an issuer have the same scopes and groups, and share them.
    claims: Cache<Claims, Arc<Claims>>,
}

/// Identifies a token at one endpoint, where it may have another audience than elsewhere.
pub(super) fn key_of(token: &str, path: &str) -> Digest {
    digest([token.as_bytes(), path.as_bytes()])
}

impl RememberedTokens {
    pub(super) fn new() -> Self {
        let by_digest = Cache::builder().max_capacity(WEIGHT_MAX).weigher(|_, token: &RememberedToken| token.weight);
        Self { by_digest: by_digest.time_to_live(KEPT_FOR).build(), claims: Cache::new(CLAIMS_MAX) }
    }

    pub(super) fn get(&self, key: &Digest, now: Timestamp) -> Option<RememberedToken> {
        self.by_digest.get(key).filter(|token| now < token.kept_until)
    }

    pub(super) fn keep(&self, key: Digest, token: VerifiedToken, issuer: usize, now: Timestamp) -> RememberedToken {
        let VerifiedToken { owner, claims, until, binding } = token;
        let binding = binding.map(Arc::new);
        let of_binding = binding.as_ref().map_or(0, |_| TEXT_BYTES + size_of::<TokenBinding>());
        let mut weight =
            of_binding + ENTRY_BYTES + size_of::<(Digest, RememberedToken)>() + TEXT_BYTES + owner.as_str().len();
        let shared = self.claims.get(&claims).unwrap_or_else(|| {
            // Twice: as the key of the shared ones, too.
            weight += 2 * weight_of(&claims);
            let shared = Arc::new(claims.clone());
            self.claims.insert(claims, Arc::clone(&shared));
            shared
        });
        let caller = Caller { principal: owner, claims: Some(shared), until: Some(until) };
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let remembered =
            RememberedToken { caller, issuer, binding, kept_until: until.min(now.after(KEPT_FOR)), weight };
        self.by_digest.insert(key, remembered.clone());
        remembered
    }
}

fn weight_of(claims: &Claims) -> usize {
    let names = claims.scopes.iter().chain(&claims.groups);
    size_of::<Claims>() + names.map(|name| 2 * TEXT_BYTES + name.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::Principal;

    fn token(subject: usize, until: u64) -> VerifiedToken {
        let scopes = ["mcp", "reports:read"].into_iter().map(Arc::from).collect();
        let claims = Claims { scopes, issuer: Some(Arc::from("https://login.example")), ..Claims::default() };
        let owner = Principal::of_subject("https://login.example", &format!("user-{subject:08}@company.example"));
        VerifiedToken { owner, claims, until: Timestamp::from_millis(until), binding: None }
    }

    #[test]
    fn a_token_is_remembered_to_its_end_and_for_five_minutes_at_most() {
        let tokens = RememberedTokens::new();
        for (until, last) in [(100_000, 99_999), (1_000_000, 299_999)] {
            let key = key_of("token", &until.to_string());
            tokens.keep(key, token(1, until), 0, Timestamp::from_millis(0));
            let at = |millis| tokens.get(&key, Timestamp::from_millis(millis)).is_some();
            assert_eq!((at(last), at(last + 1)), (true, false), "{until}");
        }
        assert!(
            tokens.get(&key_of("token", "elsewhere"), Timestamp::from_millis(0)).is_none(),
            "of one endpoint alone"
        );
    }

    #[test]
    fn a_hundred_thousand_tokens_are_remembered_at_once() {
        let tokens = RememberedTokens::new();
        let now = Timestamp::from_millis(0);
        let key = |subject: usize| key_of(&format!("token {subject}"), "/mcp");
        for subject in 0..100_000 {
            tokens.keep(key(subject), token(subject, 1_000_000), 0, now);
        }
        tokens.by_digest.run_pending_tasks();
        assert!(tokens.by_digest.weighted_size() <= WEIGHT_MAX);
        assert_eq!((0..100_000).filter(|&subject| tokens.get(&key(subject), now).is_some()).count(), 100_000);
        let claims: BTreeSet<_> = (0..100)
            .filter_map(|subject| tokens.get(&key(subject), now)?.caller.claims)
            .map(|claims| Arc::as_ptr(&claims))
            .collect();
        assert_eq!(claims.len(), 1, "they share what is equal");
    }
}
