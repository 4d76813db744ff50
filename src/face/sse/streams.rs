//! Keeps the open streams of HTTP+SSE, within a bound: whose each is, and how a message reaches it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, PrincipalCounts, Reason};

/// Most open streams of one principal (SEC-11): each is a session, and holds what its client has not read yet.
pub const STREAMS_PER_PRINCIPAL_MAX: usize = 256;
/// Most open streams in all.
pub const STREAMS_MAX: usize = 4_096;

/// What a stream is found by: a message for one that is another principal's, or another upstream's, finds none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SseStreamKey {
    pub(super) owner: Principal,
    pub(super) upstream: Arc<str>,
    /// 128 random bits.
    pub(super) nonce: u128,
}

/// All open streams, whatever upstream they lead to; `I` takes messages in.
pub(super) struct SseStreamTable<I>(Mutex<OpenSseStreams<I>>);

struct OpenSseStreams<I> {
    inlets: HashMap<SseStreamKey, I>,
    counts: PrincipalCounts,
}

impl<I> Default for SseStreamTable<I> {
    fn default() -> Self {
        Self(Mutex::new(OpenSseStreams { inlets: HashMap::new(), counts: PrincipalCounts::default() }))
    }
}

impl<I> fmt::Debug for SseStreamTable<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("streams", &self.0.lock().inlets.len()).finish_non_exhaustive()
    }
}

impl<I: Clone> SseStreamTable<I> {
    /// Takes a place and makes the stream known. The principal's own bound is asked before the one of all.
    ///
    /// # Errors
    /// `TooManyListeners`.
    pub(super) fn open(
        self: &Arc<Self>,
        key: SseStreamKey,
        inlet: impl FnOnce() -> I,
    ) -> Result<SseStreamPermit<I>, GatewayFault> {
        let upstream = Arc::clone(&key.upstream);
        let mut open = self.0.lock();
        if open.counts.of(&key.owner) >= STREAMS_PER_PRINCIPAL_MAX || open.counts.all() >= STREAMS_MAX {
            metrics::counter!(metric::SSE_STREAMS_REFUSED, "upstream" => upstream).increment(1);
            return Err(GatewayFault::new(Reason::TooManyListeners, Executed::No));
        }
        open.counts.add(&key.owner);
        open.inlets.insert(key.clone(), inlet());
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => upstream).increment(1.0);
        Ok(SseStreamPermit { table: Arc::clone(self), key })
    }

    /// What takes messages in for a stream; `None` for one that is not open, or not this principal's.
    pub(super) fn find(&self, key: &SseStreamKey) -> Option<I> {
        self.0.lock().inlets.get(key).cloned()
    }
}

/// The place of one stream. Dropped, it is given back, and messages for the stream find none.
pub(super) struct SseStreamPermit<I> {
    table: Arc<SseStreamTable<I>>,
    key: SseStreamKey,
}

impl<I> Drop for SseStreamPermit<I> {
    fn drop(&mut self) {
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => Arc::clone(&self.key.upstream)).decrement(1.0);
        let mut open = self.table.0.lock();
        let inlet = open.inlets.remove(&self.key);
        open.counts.remove(&self.key.owner);
        drop(open);
        // Outside the lock: nobody knows what its end sets in motion.
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
        let table = Arc::<SseStreamTable<u8>>::default();
        let place = table.open(key("key:ada", 7), || 1).unwrap();
        assert_eq!(table.find(&key("key:ada", 7)), Some(1));
        let elsewhere = SseStreamKey { upstream: Arc::from("letters"), ..key("key:ada", 7) };
        for foreign in [key("key:bob", 7), key("key:ada", 8), elsewhere] {
            assert_eq!(table.find(&foreign), None, "{foreign:?}");
        }
        drop(place);
        assert_eq!(table.find(&key("key:ada", 7)), None);
    }

    #[test]
    fn a_principal_meets_its_own_bound_and_all_meet_theirs() {
        let table = Arc::<SseStreamTable<()>>::default();
        let owners = STREAMS_MAX / STREAMS_PER_PRINCIPAL_MAX;
        let keys = (0..owners).flat_map(|owner| {
            (0..STREAMS_PER_PRINCIPAL_MAX).map(move |nonce| key(&format!("key:{owner}"), nonce as u128))
        });
        let mut places: Vec<_> = keys.map(|key| table.open(key, || ()).unwrap()).collect();
        let refused = |owner: &str| table.open(key(owner, u128::MAX), || ()).map(drop).unwrap_err().reason;
        assert_eq!((places.len(), refused("key:another")), (STREAMS_MAX, Reason::TooManyListeners));
        places.pop();
        assert_eq!(refused("key:0"), Reason::TooManyListeners, "its own bound");
        drop(table.open(key("key:another", 1), || ()).unwrap());
        places.clear();
        let open = table.0.lock();
        assert!(open.counts.is_empty() && open.inlets.is_empty());
    }
}
