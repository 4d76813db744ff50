//! Records used proofs of possession, so that none is used twice. Refuses proofs when it is full: an unrecorded proof
//! could be repeated. Gateways do not share their records.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::ProofRefusal;
use super::dpop::{ProofError, VerifiedProof};
use crate::task::{Principal, Timestamp};

/// The most proofs at one time: at most 32 MiB.
const PROOFS_MAX: usize = 400_000;
/// The most of one principal's proofs: 333 requests a second for as long as a proof is valid.
const SHARE_MAX: usize = PROOFS_MAX / 4;
const MINUTE: u64 = 60_000;

#[derive(Debug, Default)]
pub struct SeenProofs {
    by_minute: Mutex<BTreeMap<u64, SeenMinute>>,
    /// The minute after the last forgotten one. Proofs that end before may have been used: the clock may go back (SEC-99).
    forgotten: AtomicU64,
    principals: RandomState,
    max: Option<SeenMax>,
}

#[derive(Clone, Copy, Debug)]
struct SeenMax {
    all: usize,
    share: usize,
}

#[derive(Debug, Default)]
struct SeenMinute {
    /// Halves of digests: 128 bits.
    ids: HashSet<u128>,
    /// How many each principal has, by its hash.
    of: HashMap<u64, usize>,
}

impl SeenProofs {
    /// Remembers a proof until it is too old.
    pub(super) fn take(&self, owner: &Principal, proof: &VerifiedProof, now: Timestamp) -> Result<(), ProofRefusal> {
        let (half, owner) = (proof.id.0.first_chunk().copied(), self.principals.hash_one(owner));
        let id = u128::from_be_bytes(half.unwrap_or_default());
        let SeenMax { all, share } = self.max.unwrap_or(SeenMax { all: PROOFS_MAX, share: SHARE_MAX });
        let mut by_minute = self.by_minute.lock();
        while let Some(over) = by_minute.first_entry().filter(|first| (first.key() + 1) * MINUTE <= now.as_millis()) {
            self.forgotten.fetch_max(over.remove_entry().0 + 1, Ordering::Relaxed);
        }
        let last = proof.until.as_millis() / MINUTE;
        if last < self.forgotten.load(Ordering::Relaxed) || by_minute.values().any(|minute| minute.ids.contains(&id)) {
            return Err(ProofRefusal::Invalid(ProofError::Repeated));
        }
        let (count, own) = by_minute.values().fold((0, 0), |(count, own), minute| {
            (count + minute.ids.len(), own + minute.of.get(&owner).copied().unwrap_or_default())
        });
        if count >= all || own >= share {
            return Err(ProofRefusal::Full);
        }
        let minute = by_minute.entry(last).or_default();
        minute.ids.insert(id);
        *minute.of.entry(owner).or_default() += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::digest::digest;

    const REPEATED: Result<(), ProofRefusal> = Err(ProofRefusal::Invalid(ProofError::Repeated));

    fn proof(id: u64, until: u64) -> VerifiedProof {
        VerifiedProof { id: digest([&id.to_be_bytes()]), until: Timestamp::from_millis(until) }
    }

    #[test]
    fn a_proof_is_used_once_until_it_is_too_old() {
        let (seen, ada, bob) = (SeenProofs::default(), Principal::new("jwt:x:ada"), Principal::new("jwt:x:bob"));
        let at = Timestamp::from_millis;
        assert_eq!(seen.take(&ada, &proof(1, 300_000), at(0)), Ok(()));
        for (who, until, now) in
            [(&ada, 300_000, 0), (&bob, 300_000, 1), (&ada, 310_000, 10_000), (&ada, 599_000, 300_000)]
        {
            assert_eq!(seen.take(who, &proof(1, until), at(now)), REPEATED, "{now}");
        }
        assert_eq!(seen.take(&ada, &proof(2, 300_000), at(0)), Ok(()));
        assert_eq!(seen.take(&ada, &proof(1, 660_000), at(360_000)), Ok(()), "the first is too old for every request");
        assert_eq!(seen.by_minute.lock().values().map(|minute| minute.ids.len()).sum::<usize>(), 1);
    }

    #[test]
    fn sec_99_a_clock_that_goes_forward_and_back_lets_no_proof_be_used_twice() {
        let (seen, ada, at) = (SeenProofs::default(), Principal::new("jwt:x:ada"), Timestamp::from_millis);
        for (id, until, now, expected) in [
            (1, 300_000, 0, Ok(())),
            (2, 700_000, 400_000, Ok(())),
            (1, 300_000, 0, REPEATED),
            (3, 300_000, 0, REPEATED),
            (4, 360_000, 60_000, Ok(())),
            (2, 700_000, 400_000, REPEATED),
        ] {
            assert_eq!(seen.take(&ada, &proof(id, until), at(now)), expected, "{id} at {now}");
        }
    }

    #[test]
    fn a_full_memory_refuses_and_forgets_nothing_and_no_principal_fills_it_alone() {
        let seen = SeenProofs { max: Some(SeenMax { all: 10, share: 4 }), ..SeenProofs::default() };
        let at = Timestamp::from_millis;
        let who = |n: u64| Principal::new(&format!("jwt:x:{n}"));
        let taken = |id: u64, who: &Principal, now| seen.take(who, &proof(id, now + 300_000), at(now));
        let ada = who(0);
        assert_eq!((0..6).map(|id| taken(id, &ada, id)).filter(Result::is_ok).count(), 4);
        assert_eq!(taken(5, &ada, 10), Err(ProofRefusal::Full));
        assert_eq!((10..20).map(|id| taken(id, &who(id), 10)).filter(Result::is_ok).count(), 6);
        assert_eq!(taken(20, &who(20), 10), Err(ProofRefusal::Full));
        assert_eq!(taken(0, &ada, 10), REPEATED, "what it has, it knows");
        assert_eq!(taken(20, &who(20), 360_000), Ok(()), "time makes room");
    }
}
