//! Remembers which tokens were verified, so that a poll costs one digest and no signature.
//!
//! A full memory forgets expired tokens, and others until it is half empty: a principal with many tokens costs the holder of
//! such a token one more verification.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::SharedClaims;
use super::claims::{TokenBinding, VerifiedToken};
use crate::task::digest::{Digest, digest};
use crate::task::{Caller, Claims, Timestamp};

/// Tables grow by doubling: many small ones leave less memory behind, and make room for a moment each.
const SHARDS: usize = 64;
/// The most tokens of a shard: its table then has 2^11 slots. The slots of all shards take about 10 MiB.
const TOKENS_MAX: usize = (1 << 11) / 8 * 7;
/// The bytes that the entries of a shard refer to: 16 MiB in all shards, and at most one large entry more in each.
const BYTES_MAX: usize = (16 << 20) / SHARDS;
/// How long a token is believed without another look at its issuer's keys.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// The header of a reference-counted value, with the allocator's rounding.
const SHARED_BYTES: usize = 32;
/// Each token counts larger claims as its own, as the tokens that it shares them with may be forgotten first.
const SHARED_CLAIMS_MAX: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct RememberedToken {
    pub(super) caller: Caller,
    pub(super) issuer: u32,
    bytes: u32,
    /// Shared, as most tokens have none.
    pub(super) binding: Option<Arc<TokenBinding>>,
    kept_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct RememberedTokens {
    shards: Box<[RwLock<TokenTable>]>,
    claims: Arc<SharedClaims>,
}

#[derive(Debug, Default)]
struct TokenTable {
    /// By half a digest: 128 bits.
    by_digest: HashMap<u128, RememberedToken>,
    bytes: usize,
}

impl RememberedToken {
    /// Also not before it was kept: the clock may be set back.
    fn is_kept(&self, now: Timestamp) -> bool {
        let until = self.caller.until.map_or(self.kept_at, |until| until.min(self.kept_at.after(KEPT_FOR)));
        self.kept_at <= now && now < until
    }
}

/// Identifies a token at one endpoint, where it may have another audience than elsewhere.
pub(super) fn key_of(token: &str, path: &str) -> Digest {
    digest([token.as_bytes(), path.as_bytes()])
}

fn half(key: &Digest) -> u128 {
    u128::from_be_bytes(key.0.first_chunk().copied().unwrap_or_default())
}

impl RememberedTokens {
    pub(super) fn new(claims: Arc<SharedClaims>) -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), claims }
    }

    fn shard(&self, key: u128) -> &RwLock<TokenTable> {
        // Digests are random. Below the number of shards.
        &self.shards[usize::from(key.to_le_bytes()[0]) % SHARDS]
    }

    pub(super) fn get(&self, key: &Digest, now: Timestamp) -> Option<RememberedToken> {
        let key = half(key);
        self.shard(key).read().by_digest.get(&key).filter(|token| token.is_kept(now)).cloned()
    }

    pub(super) fn keep(&self, key: Digest, token: VerifiedToken, issuer: usize, now: Timestamp) -> RememberedToken {
        let (key, remembered) = (half(&key), self.remembered(token, issuer, now));
        self.shard(key).write().insert(key, remembered.clone(), now);
        remembered
    }

    fn remembered(&self, token: VerifiedToken, issuer: usize, now: Timestamp) -> RememberedToken {
        let VerifiedToken { owner, claims, until, binding } = token;
        let of_binding = binding.as_ref().map_or(0, |_| SHARED_BYTES + size_of::<TokenBinding>());
        let of_claims = SHARED_BYTES + size_of::<Claims>() + claims.bytes();
        let shared = self.claims.of(claims);
        // The copy there, and this one: no other token has these claims yet.
        let is_first = Arc::strong_count(&shared) <= 3;
        let counted = if is_first || of_claims > SHARED_CLAIMS_MAX { of_claims } else { 0 };
        let bytes = SHARED_BYTES + owner.as_str().len() + of_binding + counted;
        RememberedToken {
            caller: Caller { claims: Some(shared), until: Some(until), ..Caller::of(owner) },
            issuer: u32::try_from(issuer).unwrap_or(u32::MAX),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            binding: binding.map(Arc::new),
            kept_at: now,
        }
    }
}

impl TokenTable {
    fn insert(&mut self, key: u128, token: RememberedToken, now: Timestamp) {
        if self.by_digest.len() >= TOKENS_MAX || self.bytes + token.bytes as usize > BYTES_MAX {
            self.make_room(now);
        }
        self.bytes += token.bytes as usize;
        if let Some(before) = self.by_digest.insert(key, token) {
            self.bytes -= before.bytes as usize;
        }
    }

    fn make_room(&mut self, now: Timestamp) {
        self.retain(|_, token| token.is_kept(now));
        // The digests differ outside the bits that choose the shard.
        for bit in 64..u128::BITS {
            if self.by_digest.len() <= TOKENS_MAX / 2 && self.bytes <= BYTES_MAX / 2 {
                break;
            }
            self.retain(|key, _| key >> bit & 1 == 0);
        }
        // A new table, as one with removed slots would double at its bound.
        self.by_digest.shrink_to_fit();
    }

    fn retain(&mut self, is_kept: impl Fn(u128, &RememberedToken) -> bool) {
        let Self { by_digest, bytes } = self;
        by_digest.retain(|key, token| {
            let is_kept = is_kept(*key, token);
            if !is_kept {
                *bytes -= token.bytes as usize;
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::Principal;

    fn token(subject: usize, until: u64) -> VerifiedToken {
        with_groups(subject, until, &[])
    }

    fn with_groups(subject: usize, until: u64, groups: &[&str]) -> VerifiedToken {
        let names = |all: &[&str]| all.iter().copied().map(Arc::from).collect::<BTreeSet<_>>();
        let (scopes, groups) = (names(&["mcp", "reports:read"]), names(groups));
        let claims = Claims { scopes, groups, issuer: Some(Arc::from("https://login.example")), is_bound: false };
        let owner = Principal::of_subject("https://login.example", &format!("user-{subject:08}@company.example"));
        VerifiedToken { owner, claims, until: Timestamp::from_millis(until), binding: None }
    }

    fn memory() -> RememberedTokens {
        RememberedTokens::new(Arc::default())
    }

    #[test]
    fn a_token_is_remembered_to_its_end_and_for_five_minutes_at_most() {
        let tokens = memory();
        for (until, last) in [(100_000, 99_999), (1_000_000, 309_999)] {
            let key = key_of("token", &until.to_string());
            tokens.keep(key, token(1, until), 0, Timestamp::from_millis(10_000));
            let at = |millis| tokens.get(&key, Timestamp::from_millis(millis)).is_some();
            assert_eq!((at(9_999), at(10_000), at(last), at(last + 1)), (false, true, true, false), "{until}");
        }
        let elsewhere = key_of("token", "elsewhere");
        assert!(tokens.get(&elsewhere, Timestamp::from_millis(10_000)).is_none(), "of one endpoint alone");
    }

    #[test]
    fn a_hundred_thousand_tokens_are_remembered_at_once() {
        let tokens = memory();
        let now = Timestamp::from_millis(0);
        let key = |subject: usize| key_of(&format!("token {subject}"), "/mcp");
        for subject in 0..100_000 {
            tokens.keep(key(subject), token(subject, 1_000_000), 0, now);
        }
        assert_eq!((0..100_000).filter(|&subject| tokens.get(&key(subject), now).is_some()).count(), 100_000);
        let claims: BTreeSet<_> = (0..100)
            .filter_map(|subject| tokens.get(&key(subject), now)?.caller.claims)
            .map(|claims| Arc::as_ptr(&claims))
            .collect();
        assert_eq!(claims.len(), 1, "they share what is equal");
    }

    /// The memory that this process has allocated and uses, in bytes.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// By what the process grows, and not by its own account.
    #[test]
    fn a_hundred_thousand_tokens_take_32_mib() {
        if !support::alone::is("server::tokens::remembered::tests::a_hundred_thousand_tokens_take_32_mib") {
            return;
        }
        let (tokens, other, now) = (memory(), memory(), Timestamp::from_millis(0));
        // Allocations that are made once come before the measurement.
        for subject in 0..1_000 {
            other.keep(key_of(&format!("token {subject}"), "/mcp"), token(subject, 1_000_000), 0, now);
        }
        let before = resident();
        for subject in 0..100_000 {
            tokens.keep(key_of(&format!("token {subject}"), "/mcp"), token(subject, 1_000_000), 0, now);
        }
        let kept: usize = tokens.shards.iter().map(|shard| shard.read().by_digest.len()).sum();
        assert_eq!(kept, 100_000);
        let grown = resident() - before;
        println!("100,000 tokens take {} KiB", grown >> 10);
        assert!(grown <= 32 << 20, "{grown}");
    }

    #[test]
    fn a_full_memory_forgets_expired_tokens_first_and_then_some_of_the_others() {
        let (tokens, mut table) = (memory(), TokenTable::default());
        let key = |name: &str| half(&key_of(name, "/mcp"));
        let counted = |table: &TokenTable| {
            assert!(table.bytes <= BYTES_MAX && table.by_digest.len() <= TOKENS_MAX);
            assert_eq!(table.bytes, table.by_digest.values().map(|token| token.bytes as usize).sum::<usize>());
            table.by_digest.len()
        };
        let at = Timestamp::from_millis;
        for subject in 0..TOKENS_MAX {
            let until = if subject % 2 == 0 { 1_000 } else { 900_000 };
            table.insert(key(&subject.to_string()), tokens.remembered(token(subject, until), 0, at(0)), at(0));
        }
        assert_eq!(counted(&table), TOKENS_MAX);
        table.insert(key("another"), tokens.remembered(token(0, 900_000), 0, at(1_000)), at(1_000));
        assert_eq!(counted(&table), TOKENS_MAX / 2 + 1, "the expired ones are gone, and no other");
        // By bytes: each person has other groups, and a refreshed token has the same groups again.
        let names: Vec<_> = (0..300).map(|n| format!("{n:036}")).collect();
        for person in 0..100 {
            let own = format!("{person}");
            let groups: Vec<_> = names.iter().map(String::as_str).chain([own.as_str()]).collect();
            for refreshed in 0..2 {
                let key = key(&format!("{person} {refreshed}"));
                let token = tokens.remembered(with_groups(person, 900_000, &groups), 0, at(1_000));
                table.insert(key, token, at(1_000));
                assert!(table.by_digest.contains_key(&key), "the newest is kept");
            }
        }
        let many = counted(&table);
        assert!((3..TOKENS_MAX / 2).contains(&many), "{many}");
    }
}
