//! Caches verified tokens, so that a poll costs one digest and no signature.
//! The digest is SipHash-2-4 with 128 bits, under a random key of this process: a client cannot compute digests, only
//! guess one. SHA-256 takes several times as long where the processor has no instructions for it. A full cache drops
//! expired tokens, then others down to half: a principal's flood costs others a verification.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::SharedClaims;
use super::claims::{TokenBinding, VerifiedToken};
use crate::random;
use crate::task::{Caller, Claims, Timestamp};

/// Tables grow by doubling: many small ones leave less memory behind, and make room for a moment each.
const SHARDS: usize = 64;
/// The most tokens of a shard: its table then has 2^11 slots. The slots of all shards take about 10 MiB.
const TOKENS_MAX: usize = (1 << 11) / 8 * 7;
/// The bytes that the entries of a shard refer to: 16 MiB in all shards, and at most one large entry more in each.
const BYTES_MAX: usize = (16 << 20) / SHARDS;
/// How long a token is accepted without another check against its issuer's keys.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// The header of a reference-counted value, with the allocator's rounding.
const SHARED_BYTES: usize = 32;
/// Larger claims count for each token that shares them, as the other tokens may be dropped first.
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

pub(super) struct RememberedTokens {
    shards: Box<[RwLock<TokenTable>]>,
    claims: SharedClaims,
    /// Computes digests; it contains the secret key.
    hasher: SipHasher24,
}

debug_members!(RememberedTokens, |tokens| claims: tokens.claims);

/// The digest of a token and of the endpoint where it is used, at which it may have another audience than elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenDigest(u128);

#[derive(Debug, Default)]
struct TokenTable {
    by_digest: HashMap<u128, RememberedToken>,
    bytes: usize,
}

impl RememberedToken {
    /// False also before `kept_at`, as the clock may be set back.
    fn is_kept(&self, now: Timestamp) -> bool {
        let until = self.caller.until.map_or(self.kept_at, |until| until.min(self.kept_at.after(KEPT_FOR)));
        self.kept_at <= now && now < until
    }
}

impl Default for RememberedTokens {
    fn default() -> Self {
        let (shards, claims) = ((0..SHARDS).map(|_| RwLock::default()).collect(), SharedClaims::default());
        Self { shards, claims, hasher: SipHasher24::new_with_key(&random::key()) }
    }
}

impl RememberedTokens {
    pub(super) fn digest(&self, token: &str, path: &str) -> TokenDigest {
        let mut hasher = self.hasher;
        // With the length of the token, so that the end of one and the beginning of the path are not mixed up.
        hasher.write(&(token.len() as u64).to_be_bytes());
        hasher.write(token.as_bytes());
        hasher.write(path.as_bytes());
        TokenDigest(hasher.finish128().into())
    }

    fn shard(&self, digest: TokenDigest) -> &RwLock<TokenTable> {
        // Digests are random. Below the number of shards.
        &self.shards[usize::from(digest.0.to_le_bytes()[0]) % SHARDS]
    }

    pub(super) fn get(&self, digest: TokenDigest, now: Timestamp) -> Option<RememberedToken> {
        self.shard(digest).read().by_digest.get(&digest.0).filter(|token| token.is_kept(now)).cloned()
    }

    pub(super) fn keep(
        &self,
        digest: TokenDigest,
        token: VerifiedToken,
        issuer: usize,
        now: Timestamp,
    ) -> RememberedToken {
        let remembered = self.entry(token, issuer, now);
        self.shard(digest).write().insert(digest, remembered.clone(), now);
        remembered
    }

    /// A new entry for a token. It is not kept yet.
    pub(super) fn entry(&self, token: VerifiedToken, issuer: usize, now: Timestamp) -> RememberedToken {
        let VerifiedToken { owner, claims, until, binding } = token;
        let of_binding = binding.as_ref().map_or(0, |_| SHARED_BYTES + size_of::<TokenBinding>());
        let of_claims = SHARED_BYTES + size_of::<Claims>() + claims.bytes();
        let shared = self.claims.of(claims);
        // The cache and this variable have the only copies: no other token has these claims yet.
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
    fn insert(&mut self, digest: TokenDigest, token: RememberedToken, now: Timestamp) {
        if self.by_digest.len() >= TOKENS_MAX || self.bytes + token.bytes as usize > BYTES_MAX {
            self.make_room(now);
        }
        self.bytes += token.bytes as usize;
        if let Some(before) = self.by_digest.insert(digest.0, token) {
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
            self.retain(|digest, _| digest >> bit & 1 == 0);
        }
        // A new table, as one with removed slots would double at its bound.
        self.by_digest.shrink_to_fit();
    }

    fn retain(&mut self, is_kept: impl Fn(u128, &RememberedToken) -> bool) {
        let Self { by_digest, bytes } = self;
        by_digest.retain(|digest, token| {
            let is_kept = is_kept(*digest, token);
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
        let claims = Claims { scopes, groups, issuer: Some(Arc::from("https://login.example")), ..Claims::default() };
        let owner = Principal::of_subject("https://login.example", &format!("user-{subject:08}@company.example"));
        VerifiedToken { owner, claims, until: Timestamp::from_millis(until), binding: None }
    }

    fn memory() -> RememberedTokens {
        RememberedTokens::default()
    }

    #[test]
    fn a_token_is_remembered_to_its_end_and_for_five_minutes_at_most() {
        let tokens = memory();
        for (until, last) in [(100_000, 99_999), (1_000_000, 309_999)] {
            let digest = tokens.digest("token", &until.to_string());
            tokens.keep(digest, token(1, until), 0, Timestamp::from_millis(10_000));
            let at = |millis| tokens.get(digest, Timestamp::from_millis(millis)).is_some();
            assert_eq!((at(9_999), at(10_000), at(last), at(last + 1)), (false, true, true, false), "{until}");
        }
        let elsewhere = tokens.digest("token", "elsewhere");
        assert!(tokens.get(elsewhere, Timestamp::from_millis(10_000)).is_none(), "of one endpoint alone");
    }

    #[test]
    fn each_pair_of_token_and_path_has_one_digest_in_each_process() {
        let (tokens, of_another_process) = (memory(), memory());
        let pairs = [("token", "/mcp"), ("token/", "mcp"), ("token/mcp", ""), ("", "token/mcp"), ("tokeN", "/mcp")];
        let digests = |tokens: &RememberedTokens| pairs.map(|(token, path)| tokens.digest(token, path).0);
        let different: BTreeSet<_> = digests(&tokens).into_iter().chain(digests(&of_another_process)).collect();
        assert_eq!(different.len(), 2 * pairs.len());
        assert_eq!(digests(&tokens), digests(&tokens));
    }

    #[test]
    fn a_hundred_thousand_tokens_are_remembered_at_once() {
        let tokens = memory();
        let now = Timestamp::from_millis(0);
        let digest = |subject: usize| tokens.digest(&format!("token {subject}"), "/mcp");
        for subject in 0..100_000 {
            tokens.keep(digest(subject), token(subject, 1_000_000), 0, now);
        }
        assert_eq!((0..100_000).filter(|&subject| tokens.get(digest(subject), now).is_some()).count(), 100_000);
        let claims: BTreeSet<_> = (0..100)
            .filter_map(|subject| tokens.get(digest(subject), now)?.caller.claims)
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

    /// By the growth of the process, and not by its own account.
    #[test]
    fn a_hundred_thousand_tokens_take_32_mib() {
        if !support::alone::is("server::tokens::remembered::tests::a_hundred_thousand_tokens_take_32_mib") {
            return;
        }
        let (tokens, other, now) = (memory(), memory(), Timestamp::from_millis(0));
        // Allocations that are made once come before the measurement.
        for subject in 0..1_000 {
            other.keep(other.digest(&format!("token {subject}"), "/mcp"), token(subject, 1_000_000), 0, now);
        }
        let before = resident();
        for subject in 0..100_000 {
            tokens.keep(tokens.digest(&format!("token {subject}"), "/mcp"), token(subject, 1_000_000), 0, now);
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
        let digest = |name: &str| tokens.digest(name, "/mcp");
        let counted = |table: &TokenTable| {
            assert!(table.bytes <= BYTES_MAX && table.by_digest.len() <= TOKENS_MAX);
            assert_eq!(table.bytes, table.by_digest.values().map(|token| token.bytes as usize).sum::<usize>());
            table.by_digest.len()
        };
        let at = Timestamp::from_millis;
        for subject in 0..TOKENS_MAX {
            let until = if subject % 2 == 0 { 1_000 } else { 900_000 };
            table.insert(digest(&subject.to_string()), tokens.entry(token(subject, until), 0, at(0)), at(0));
        }
        assert_eq!(counted(&table), TOKENS_MAX);
        table.insert(digest("another"), tokens.entry(token(0, 900_000), 0, at(1_000)), at(1_000));
        assert_eq!(counted(&table), TOKENS_MAX / 2 + 1, "the expired ones are gone, and no other");
        // By bytes: each person has other groups, and a refreshed token has the same groups again.
        let names: Vec<_> = (0..300).map(|n| format!("{n:036}")).collect();
        for person in 0..100 {
            let own = format!("{person}");
            let groups: Vec<_> = names.iter().map(String::as_str).chain([own.as_str()]).collect();
            for refreshed in 0..2 {
                let digest = digest(&format!("{person} {refreshed}"));
                let token = tokens.entry(with_groups(person, 900_000, &groups), 0, at(1_000));
                table.insert(digest, token, at(1_000));
                assert!(table.by_digest.contains_key(&digest.0), "the newest is kept");
            }
        }
        let many = counted(&table);
        assert!((3..TOKENS_MAX / 2).contains(&many), "{many}");
    }
}
