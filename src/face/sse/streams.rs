//! Keeps the open HTTP+SSE streams within limits, with their owners and their inlets.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, PrincipalCounts, PrincipalLimits, Reason};

pub const STREAMS_MAX: usize = 4_096;

/// A message finds neither another principal's nor another upstream's stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SseStreamKey {
    pub(super) owner: Principal,
    pub(super) upstream: Arc<str>,
    /// 128 random bits.
    pub(super) nonce: u128,
}

pub(super) struct SseStreamTable<I> {
    open: Mutex<OpenSseStreams<I>>,
    limits: SharedLimits,
}

struct OpenSseStreams<I> {
    inlets: HashMap<SseStreamKey, I>,
    counts: PrincipalCounts,
}

impl<I> SseStreamTable<I> {
    pub(super) fn new(limits: SharedLimits) -> Self {
        let open = OpenSseStreams { inlets: HashMap::new(), counts: PrincipalCounts::default() };
        Self { open: Mutex::new(open), limits }
    }
}

impl<I> fmt::Debug for SseStreamTable<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SseStreamTable").field("streams", &self.open.lock().inlets.len()).finish_non_exhaustive()
    }
}

impl<I: Clone> SseStreamTable<I> {
    /// Takes a permit and registers the stream. The principal's limit is checked before the total (SEC-11): each stream
    /// is a session, and buffers its client's unread messages. The error is `TooManyListeners`.
    pub(super) fn open(
        self: &Arc<Self>,
        key: SseStreamKey,
        counted_as: Principal,
        inlet: impl FnOnce() -> I,
    ) -> Result<SseStreamPermit<I>, GatewayFault> {
        let upstream = Arc::clone(&key.upstream);
        let own_max = PrincipalLimits::SSE_STREAMS.saturating_mul(self.limits.of(&counted_as).streams_max);
        let mut open = self.open.lock();
        if open.counts.of(&counted_as) >= own_max || open.counts.all() >= STREAMS_MAX {
            metrics::counter!(metric::SSE_STREAMS_REFUSED, "upstream" => upstream).increment(1);
            if open.counts.of(&counted_as) >= own_max {
                self.limits.refused(&counted_as, "streams_per_principal_max", &own_max);
            }
            return Err(GatewayFault::new(Reason::TooManyListeners, Executed::No));
        }
        open.counts.add(&counted_as);
        open.inlets.insert(key.clone(), inlet());
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => upstream).increment(1.0);
        Ok(SseStreamPermit { table: Arc::clone(self), key, counted_as })
    }

    /// `None` unless the stream is open and this principal's.
    pub(super) fn find(&self, key: &SseStreamKey) -> Option<I> {
        self.open.lock().inlets.get(key).cloned()
    }
}

/// Dropping it releases the permit and unregisters the stream.
#[must_use]
pub(super) struct SseStreamPermit<I> {
    table: Arc<SseStreamTable<I>>,
    key: SseStreamKey,
    counted_as: Principal,
}

impl<I> Drop for SseStreamPermit<I> {
    fn drop(&mut self) {
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => Arc::clone(&self.key.upstream)).decrement(1.0);
        let mut open = self.table.open.lock();
        let inlet = open.inlets.remove(&self.key);
        open.counts.remove(&self.counted_as);
        drop(open);
        // Outside the lock: its drop may run any code.
        drop(inlet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(owner: &str, nonce: u128) -> SseStreamKey {
        SseStreamKey { owner: Principal::new(owner), upstream: Arc::from("reports"), nonce }
    }

    #[test]
    fn sec_02_a_stream_is_found_by_its_owner_at_its_upstream_while_it_is_open() {
        let table = Arc::new(SseStreamTable::<u8>::new(SharedLimits::default()));
        let permit = table.open(key("key:ada", 7), Principal::new("key:ada"), || 1).unwrap();
        assert_eq!(table.find(&key("key:ada", 7)), Some(1));
        let elsewhere = SseStreamKey { upstream: Arc::from("letters"), ..key("key:ada", 7) };
        for foreign in [key("key:bob", 7), key("key:ada", 8), elsewhere] {
            assert_eq!(table.find(&foreign), None, "{foreign:?}");
        }
        drop(permit);
        assert_eq!(table.find(&key("key:ada", 7)), None);
    }

    #[test]
    fn a_principal_meets_its_own_bound_and_all_meet_theirs() {
        let table = Arc::new(SseStreamTable::<()>::new(SharedLimits::default()));
        let of_each = PrincipalLimits::SSE_STREAMS * PrincipalLimits::default().streams_max;
        let owners = STREAMS_MAX / of_each;
        let keys =
            (0..owners).flat_map(|owner| (0..of_each).map(move |nonce| key(&format!("key:{owner}"), nonce as u128)));
        let open = |key: SseStreamKey| table.open(key.clone(), key.owner, || ());
        let mut places: Vec<_> = keys.map(|key| open(key).unwrap()).collect();
        let refused = |owner: &str| open(key(owner, u128::MAX)).map(drop).unwrap_err().reason;
        assert_eq!((places.len(), refused("key:another")), (STREAMS_MAX, Reason::TooManyListeners));
        places.pop();
        assert_eq!(refused("key:0"), Reason::TooManyListeners, "its own bound");
        drop(open(key("key:another", 1)).unwrap());
        places.clear();
        let open = table.open.lock();
        assert!(open.counts.is_empty() && open.inlets.is_empty());
    }
}
