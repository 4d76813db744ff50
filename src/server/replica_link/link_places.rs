//! Grants permits for requests to one replica; streams and waits may hold theirs indefinitely.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::shared_limits::SharedLimits;
use crate::task::{Principal, PrincipalCounts};

/// The permits of one replica.
#[derive(Debug)]
pub(super) struct LinkPlaces {
    max: usize,
    taken: Mutex<PrincipalCounts>,
    limits: SharedLimits,
}

impl LinkPlaces {
    pub(super) fn new(max: usize, limits: SharedLimits) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default(), limits })
    }

    /// Takes a permit for `owner`; `None` if all are taken, or its share of them.
    pub(super) fn take(self: &Arc<Self>, owner: &Principal) -> Option<LinkPlace> {
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
        Some(LinkPlace { places: Arc::clone(self), owner: owner.clone() })
    }
}

/// The permit of one request; released when dropped.
#[derive(Debug)]
pub(super) struct LinkPlace {
    places: Arc<LinkPlaces>,
    owner: Principal,
}

impl Drop for LinkPlace {
    fn drop(&mut self) {
        self.places.taken.lock().remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_meets_its_share_and_all_meet_the_bound() {
        let places = LinkPlaces::new(8, SharedLimits::default());
        let [ada, bob] = ["ada", "bob"].map(Principal::holding);
        let mut hers: Vec<_> = (0..6).map(|_| places.take(&ada).unwrap()).collect();
        assert!(places.take(&ada).is_none(), "her share is three quarters");
        let his: Vec<_> = (0..2).map(|_| places.take(&bob).unwrap()).collect();
        assert!(places.take(&bob).is_none(), "there is no other");
        hers.pop();
        assert!(places.take(&bob).is_some());
        drop((hers, his));
        assert!(places.taken.lock().is_empty());
    }
}
