//! Grants permits for requests to one replica; streams and waits may hold theirs indefinitely.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::shared_limits::SharedLimits;
use crate::task::{Principal, PrincipalCounts};

#[derive(Debug)]
pub(super) struct LinkPermits {
    max: usize,
    taken: Mutex<PrincipalCounts>,
    limits: SharedLimits,
}

impl LinkPermits {
    pub(super) fn new(max: usize, limits: SharedLimits) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default(), limits })
    }

    /// Takes a permit for `owner`; `None` if all are taken, or its share of them.
    pub(super) fn take(self: &Arc<Self>, owner: &Principal) -> Option<LinkPermit> {
        let share = self.limits.places(owner, self.max);
        let mut taken = self.taken.lock();
        if taken.of(owner) >= share {
            self.limits.refused(owner, "places_percent_max", &share);
            return None;
        }
        if taken.all() >= self.max {
            return None;
        }
        taken.add(owner);
        Some(LinkPermit { permits: Arc::clone(self), owner: owner.clone() })
    }
}

#[derive(Debug)]
pub(super) struct LinkPermit {
    permits: Arc<LinkPermits>,
    owner: Principal,
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        self.permits.taken.lock().remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_meets_its_share_and_all_meet_the_bound() {
        let permits = LinkPermits::new(8, SharedLimits::default());
        let [ada, bob] = ["ada", "bob"].map(Principal::holding);
        let mut hers: Vec<_> = (0..6).map(|_| permits.take(&ada).unwrap()).collect();
        assert!(permits.take(&ada).is_none(), "her share is three quarters");
        let his: Vec<_> = (0..2).map(|_| permits.take(&bob).unwrap()).collect();
        assert!(permits.take(&bob).is_none(), "there is no other");
        hers.pop();
        assert!(permits.take(&bob).is_some());
        drop((hers, his));
        assert!(permits.taken.lock().is_empty());
    }
}
