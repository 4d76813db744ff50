//! Registers the cancellable requests of sessions in this process, by session and request id.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::recent_map::RecentMap;
use crate::waits::unless_cancelled;
use crate::wire::RequestId;

/// The most calls of the engine; further ones are refused. Permits, queues and connections limit other requests.
const CALLS_MAX: usize = 16_384;
/// The most remembered cancellations of requests and sessions.
const UNWANTED_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::face) enum RequestStage {
    /// Waits for a permit or a session: nothing was sent.
    Queued,
    /// Forwarded, and answered on one of the gateway's streams.
    Held,
    Driven,
}

impl RequestStage {
    const ALL: [Self; 3] = [Self::Queued, Self::Held, Self::Driven];
}

type InFlightKey = (u128, RequestId, RequestStage);

/// Keys have the session's nonce, so that sessions are isolated.
#[derive(Debug)]
pub(in crate::face) struct InFlight {
    requests: Mutex<InFlightIndex>,
    /// Cancelled requests, with their time. Cheaper than an entry for each request, and covers unregistered ones.
    unwanted: RecentMap<Instant>,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { requests: Mutex::default(), unwanted: RecentMap::new(UNWANTED_MAX) }
    }
}

#[derive(Debug, Default)]
struct InFlightIndex {
    next: u64,
    driven: usize,
    all: HashMap<u64, (u128, RequestStage, CancellationToken)>,
    /// The newest request under an id, which a client may not reuse concurrently.
    by_id: HashMap<InFlightKey, u64>,
}

impl InFlightIndex {
    fn find(&self, nonce: u128, id: &RequestId, stage: RequestStage) -> Option<&CancellationToken> {
        let number = self.by_id.get(&(nonce, id.clone(), stage))?;
        self.all.get(number).map(|(.., cancelled)| cancelled)
    }
}

impl InFlight {
    /// The request can be cancelled until the entry is dropped.
    pub(in crate::face) fn enter(self: &Arc<Self>, nonce: u128, id: &RequestId, stage: RequestStage) -> InFlightEntry {
        self.add(&mut self.requests.lock(), (nonce, id.clone(), stage))
    }

    /// As [`Self::enter`], for an engine call; cancelled at once if that came after `since`. `QueueFull`: nothing sent.
    pub(super) fn drive(
        self: &Arc<Self>,
        nonce: u128,
        id: &RequestId,
        since: Instant,
    ) -> Result<InFlightEntry, GatewayFault> {
        let mut requests = self.requests.lock();
        if requests.driven >= CALLS_MAX {
            return Err(GatewayFault::new(Reason::QueueFull, Executed::No));
        }
        let entry = self.add(&mut requests, (nonce, id.clone(), RequestStage::Driven));
        drop(requests);
        if !self.is_wanted(nonce, id, since) {
            entry.cancelled().cancel();
        }
        Ok(entry)
    }

    /// Awaits the preparation of a request that arrived at `since`; `None` if its client cancels it meanwhile. Cancel
    /// safe if `waiting` is. The caller pins the future: moved into another it takes twice the space.
    pub(in crate::face) async fn before_it_is_sent<T>(
        self: &Arc<Self>,
        nonce: u128,
        id: &RequestId,
        since: Instant,
        mut waiting: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        if let Some(ready) = waiting.as_mut().now_or_never() {
            return Some(ready);
        }
        let entry = self.enter(nonce, id, RequestStage::Queued);
        let cancelled = entry.cancelled().clone();
        if !self.is_wanted(nonce, id, since) {
            return None;
        }
        let ready = unless_cancelled(&cancelled, waiting).await;
        // Later cancels no longer find the request; one during the last poll was reported as successful.
        drop(entry);
        ready.filter(|_| !cancelled.is_cancelled() && self.is_wanted(nonce, id, since))
    }

    fn add(self: &Arc<Self>, requests: &mut InFlightIndex, key: InFlightKey) -> InFlightEntry {
        requests.next += 1;
        let (number, cancelled) = (requests.next, CancellationToken::new());
        requests.driven += usize::from(key.2 == RequestStage::Driven);
        requests.all.insert(number, (key.0, key.2, cancelled.clone()));
        requests.by_id.insert(key.clone(), number);
        InFlightEntry { in_flight: Arc::clone(self), key, number, cancelled }
    }

    /// Returns false if no request with this id is at this stage: its response may just have been sent.
    pub(in crate::face) fn cancel(&self, nonce: u128, id: &RequestId, stage: RequestStage) -> bool {
        let requests = self.requests.lock();
        let found = requests.find(nonce, id, stage);
        found.inspect(|cancelled| cancelled.cancel()).is_some()
    }

    /// Records the cancellation of a request, registered or not.
    pub(in crate::face) fn withdraw(&self, nonce: u128, counted_as: &Principal, id: &RequestId) {
        self.unwanted.insert(request_key(nonce, id), counted_as, Instant::now());
    }

    pub(in crate::face) fn mark_unwanted(&self, nonce: u128, counted_as: &Principal) {
        self.unwanted.insert(nonce, counted_as, Instant::now());
    }

    /// Unmarks a session that its server did not end.
    pub(super) fn goes_on(&self, nonce: u128) {
        self.unwanted.remove(nonce);
    }

    /// Whether the client waits for a request that arrived at `since`. An earlier cancellation was for another one with the id.
    pub(in crate::face) fn is_wanted(&self, nonce: u128, id: &RequestId, since: Instant) -> bool {
        let is_unwanted = |key| self.unwanted.get(key).is_some_and(|at| at >= since);
        !is_unwanted(nonce) && !is_unwanted(request_key(nonce, id))
    }

    pub(super) fn knows(&self, nonce: u128, id: &RequestId, stage: RequestStage) -> bool {
        self.requests.lock().find(nonce, id, stage).is_some()
    }

    pub(in crate::face) fn knows_any(&self, nonce: u128, id: &RequestId) -> bool {
        let requests = self.requests.lock();
        RequestStage::ALL.into_iter().any(|stage| requests.find(nonce, id, stage).is_some())
    }

    /// Cancels a session's requests; one that waits for a permit ends when it gets one.
    pub(super) fn end_session(&self, nonce: u128) {
        for (of, stage, cancelled) in self.requests.lock().all.values() {
            if *of == nonce && *stage != RequestStage::Queued {
                cancelled.cancel();
            }
        }
    }
}

/// The key of a session's request. Includes the random nonce, so sessions never collide.
pub(super) fn request_key(nonce: u128, id: &RequestId) -> u128 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    nonce ^ u128::from(hasher.finish())
}

#[derive(Debug)]
pub(in crate::face) struct InFlightEntry {
    in_flight: Arc<InFlight>,
    key: InFlightKey,
    number: u64,
    cancelled: CancellationToken,
}

impl InFlightEntry {
    /// Cancelled once the client no longer wants a response.
    pub(in crate::face) const fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for InFlightEntry {
    fn drop(&mut self) {
        let mut requests = self.in_flight.requests.lock();
        requests.all.remove(&self.number);
        requests.driven -= usize::from(self.key.2 == RequestStage::Driven);
        if requests.by_id.get(&self.key) == Some(&self.number) {
            requests.by_id.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::wire::{Payload, ScanLimits};

    fn is_empty(in_flight: &InFlight) -> bool {
        let requests = in_flight.requests.lock();
        requests.by_id.is_empty() && requests.all.is_empty() && requests.driven == 0
    }

    #[test]
    fn a_cancel_ends_the_request_that_it_names_and_leaves_nothing_behind() {
        let in_flight = Arc::new(InFlight::default());
        let id = RequestId::number(1);
        let entries = [1, 2].map(|nonce| in_flight.drive(nonce, &id, Instant::now()).unwrap());
        assert!(!in_flight.cancel(1, &RequestId::text("1"), RequestStage::Driven));
        assert!(!in_flight.cancel(1, &id, RequestStage::Queued), "nothing of this id waits for a place");
        assert!(in_flight.cancel(1, &id, RequestStage::Driven));
        assert_eq!(entries.each_ref().map(|entry| entry.cancelled().is_cancelled()), [true, false]);
        assert!(in_flight.knows_any(1, &id) && !in_flight.knows_any(3, &id));
        let again = in_flight.drive(1, &id, Instant::now()).unwrap();
        drop(entries);
        in_flight.end_session(1);
        assert!(again.cancelled().is_cancelled(), "the older one took only its own entry along");
        drop(again);
        assert!(is_empty(&in_flight));
    }

    #[test]
    fn a_cancel_is_kept_for_its_own_client_alone() {
        let (in_flight, began) = (InFlight::default(), Instant::now());
        let (id, other) = (RequestId::number(1), RequestId::text("1"));
        let is_wanted = |(nonce, id)| in_flight.is_wanted(nonce, id, began);
        in_flight.withdraw(1, &Principal::local(), &id);
        assert_eq!([(1, &id), (1, &other), (2, &id)].map(is_wanted), [false, true, true]);
        in_flight.mark_unwanted(2, &Principal::local());
        let wanted = [(1, &other), (2, &id), (2, &other)].map(is_wanted);
        assert_eq!(wanted, [true, false, false], "a session ends with all its requests");
        in_flight.goes_on(2);
        assert!(is_wanted((2, &id)), "its server did not end it");
        let later = Instant::now() + Duration::from_millis(1);
        assert!(in_flight.is_wanted(1, &id, later), "another request under the same id");
    }

    /// SEC-62: a client's answer finds the question of its server.
    #[test]
    fn sec_62_a_request_has_one_key_however_its_id_is_spelt() {
        let id = |id: &'static str| {
            let id = Payload::parse(&Bytes::from_static(id.as_bytes()), ScanLimits::CLIENT).unwrap();
            RequestId::from_payload(&id).unwrap()
        };
        let in_flight = Arc::new(InFlight::default());
        for (one, another) in [(id(r#""a""#), id(r#""\u0061""#)), (id("0"), id("-0"))] {
            assert_eq!(request_key(7, &one), request_key(7, &another));
            let entry = in_flight.enter(7, &one, RequestStage::Held);
            assert!(in_flight.cancel(7, &another, RequestStage::Held) && entry.cancelled().is_cancelled(), "{one:?}");
        }
        assert_ne!(request_key(7, &id("1")), request_key(7, &id(r#""1""#)), "T-62");
    }

    /// The wait ends in the same poll as the cancel, whose response said that nothing is sent.
    #[tokio::test]
    async fn a_request_that_is_cancelled_as_its_wait_ends_is_not_sent() {
        let in_flight = Arc::new(InFlight::default());
        let (id, mut looks) = (RequestId::number(1), 0);
        let waiting = std::future::poll_fn(|_| {
            looks += 1;
            match looks {
                1 => std::task::Poll::Pending,
                _ => std::task::Poll::Ready(in_flight.cancel(1, &id, RequestStage::Queued)),
            }
        });
        assert_eq!(in_flight.before_it_is_sent(1, &id, Instant::now(), std::pin::pin!(waiting)).await, None);
        assert_eq!(looks, 2);
        assert!(is_empty(&in_flight));
    }

    #[test]
    fn requests_of_one_id_are_as_many_as_there_are() {
        let in_flight = Arc::new(InFlight::default());
        let id = RequestId::number(1);
        let mut entries: Vec<_> = (0..CALLS_MAX).map(|_| in_flight.drive(1, &id, Instant::now()).unwrap()).collect();
        assert_eq!(in_flight.drive(1, &id, Instant::now()).unwrap_err().reason, Reason::QueueFull);
        drop(in_flight.enter(1, &id, RequestStage::Held));
        assert_eq!(
            in_flight.drive(1, &id, Instant::now()).unwrap_err().reason,
            Reason::QueueFull,
            "only calls of the engine's count"
        );
        assert!(!entries.pop().unwrap().cancelled().is_cancelled());
        assert!(in_flight.drive(2, &id, Instant::now()).is_ok(), "there is a place again");
        in_flight.end_session(1);
        assert!(entries.iter().all(|entry| entry.cancelled().is_cancelled()), "all end with their session");
        drop(entries);
        assert!(is_empty(&in_flight));
    }
}
