//! Subscribes to resources in one session, with one request for all listeners, and unsubscribes after the last
//! listener. For each resource one request is in progress at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::UpstreamSession;
use crate::upstream::SUBSCRIBE_MAX;
use crate::upstream::outgoing::HandedOver;
use crate::upstream::own_ids;
use crate::upstream::reply::{self, AcceptedResponse, ReadLimits, ResponseRefusal};
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, RequestId, ScanLimits, envelope, method};

const SUBSCRIPTIONS_MAX: usize = 4_096;
/// Concurrent requests for one listener.
const AT_ONCE: usize = 8;
/// Largest response, which only grants or refuses.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const ANSWER_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct ResourceSubscriptions(Mutex<HashMap<Arc<str>, ResourceSubscription>>);

#[derive(Debug)]
struct ResourceSubscription {
    holders: usize,
    state: Arc<tokio::sync::Mutex<SubscriptionState>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SubscriptionState {
    #[default]
    No,
    /// The future was dropped during the request.
    Unknown,
    Yes,
}

#[derive(Debug)]
#[must_use]
pub(crate) struct SubscriptionLease {
    session: Arc<UpstreamSession>,
    uris: Vec<Arc<str>>,
}

impl SubscriptionLease {
    pub(crate) fn uris(&self) -> Vec<String> {
        self.uris.iter().map(|uri| uri.as_ref().to_owned()).collect()
    }
}

impl Drop for SubscriptionLease {
    fn drop(&mut self) {
        for uri in self.uris.drain(..) {
            release(&self.session, uri);
        }
    }
}

/// A lease that is not granted yet, so that a dropped future leaves nothing behind.
struct PendingSubscription {
    session: Arc<UpstreamSession>,
    uri: Option<Arc<str>>,
}

impl Drop for PendingSubscription {
    fn drop(&mut self) {
        if let Some(uri) = self.uri.take() {
            release(&self.session, uri);
        }
    }
}

impl UpstreamSession {
    /// Subscribes within [`SUBSCRIBE_MAX`]; late or refused resources are not held. Cancel safe: cancels pending ones.
    pub(crate) async fn hold(self: &Arc<Self>, uris: Vec<String>) -> SubscriptionLease {
        let until = Instant::now() + SUBSCRIBE_MAX;
        let mut held = SubscriptionLease { session: Arc::clone(self), uris: Vec::with_capacity(uris.len()) };
        let mut asking = stream::iter(uris).map(|uri| self.share(Arc::from(uri), until)).buffer_unordered(AT_ONCE);
        while let Some(share) = asking.next().await {
            held.uris.extend(share.and_then(|mut share| share.uri.take()));
        }
        held
    }

    async fn share(self: &Arc<Self>, uri: Arc<str>, until: Instant) -> Option<PendingSubscription> {
        if !self.subscriptions.enter(&uri) {
            self.link.dropped("too_many_subscriptions");
            return None;
        }
        let share = PendingSubscription { session: Arc::clone(self), uri: Some(Arc::clone(&uri)) };
        let settled = tokio::time::timeout_at(until, self.settle(&uri)).await;
        (settled == Ok(SubscriptionState::Yes)).then_some(share)
    }

    /// Makes the upstream's state of a resource follow the count; returns that state.
    async fn settle(&self, uri: &Arc<str>) -> SubscriptionState {
        let Some(state) = self.subscriptions.state(uri) else { return SubscriptionState::No };
        let mut state = state.lock().await;
        let is_wanted = self.subscriptions.is_wanted(uri);
        if is_wanted == (*state == SubscriptionState::Yes) && *state != SubscriptionState::Unknown {
            return *state;
        }
        *state = SubscriptionState::Unknown;
        let name = if is_wanted { method::RESOURCES_SUBSCRIBE } else { method::RESOURCES_UNSUBSCRIBE };
        let agreed = self.request_subscription(name, uri).await;
        *state = if is_wanted && agreed { SubscriptionState::Yes } else { SubscriptionState::No };
        *state
    }

    /// Sends a subscribe or unsubscribe request; returns whether the upstream agreed.
    async fn request_subscription(&self, name: &str, uri: &str) -> bool {
        let id = own_ids::mint();
        let params = ObjectWriter::new().text("uri", uri).finish();
        let asking = self.agrees(&id, envelope::request(&id, name, Some(&params)));
        let agreed = tokio::time::timeout(ANSWER_MAX, asking).await.unwrap_or(false);
        if !agreed {
            self.link.dropped("subscription_failed");
        }
        agreed
    }

    async fn agrees(&self, id: &RequestId, message: bytes::Bytes) -> bool {
        let Ok(response) = self.post(message, &HandedOver::default()).await else { return false };
        let limits = ReadLimits::of_bytes(ANSWER_BYTES_MAX);
        match self.open(response, id, &limits).await {
            Ok(AcceptedResponse::Json(body)) => {
                reply::read_whole(body, &limits).await.is_ok_and(|text| self.answer_in(&text, id) == Some(true))
            }
            Ok(AcceptedResponse::Events(mut events)) => {
                while let Ok(Some(event)) = events.next().await {
                    if let Some(agreed) = reply::message_in(&event).and_then(|text| self.answer_in(text, id)) {
                        return agreed;
                    }
                }
                false
            }
            Err(ResponseRefusal::SessionLost) => {
                self.ended.cancel();
                false
            }
            Err(ResponseRefusal::Gateway(_) | ResponseRefusal::Rpc(_)) => false,
        }
    }

    /// Whether the response to `id` is a result, if it is there; notifications beside it are routed.
    fn answer_in(&self, text: &bytes::Bytes, id: &RequestId) -> Option<bool> {
        let mut agreed = None;
        for message in envelope::read_batch(text, ScanLimits::UPSTREAM, envelope::BATCH_MAX).ok()?.into_iter().flatten()
        {
            match message {
                Message::Response(response) if response.id.as_ref() == Some(id) => {
                    agreed = Some(response.outcome.is_ok());
                }
                Message::Notification(notification) => self.note(notification),
                Message::Response(_) | Message::Request(_) => self.link.dropped("stray_request"),
            }
        }
        agreed
    }
}

/// Releases one lease, and unsubscribes in the background if it was the last.
fn release(session: &Arc<UpstreamSession>, uri: Arc<str>) {
    if !session.subscriptions.leave(&uri) || session.ended.is_cancelled() {
        return;
    }
    let session = Arc::clone(session);
    session.link.tracker.clone().spawn(async move {
        let session_ended = session.ended.clone();
        let _ = session_ended.run_until_cancelled(session.settle(&uri)).await;
        session.subscriptions.remove(&uri);
    });
}

impl ResourceSubscriptions {
    /// Adds one holder; returns whether there was room.
    fn enter(&self, uri: &Arc<str>) -> bool {
        let mut all = self.0.lock();
        let is_full = all.len() >= SUBSCRIPTIONS_MAX;
        match all.entry(Arc::clone(uri)) {
            Entry::Occupied(mut subscription) => subscription.get_mut().holders += 1,
            Entry::Vacant(_) if is_full => return false,
            Entry::Vacant(free) => _ = free.insert(ResourceSubscription { holders: 1, state: Arc::default() }),
        }
        true
    }

    /// Removes one holder; returns whether it was the last.
    fn leave(&self, uri: &Arc<str>) -> bool {
        let mut all = self.0.lock();
        let Some(subscription) = all.get_mut(uri) else { return false };
        subscription.holders = subscription.holders.saturating_sub(1);
        subscription.holders == 0
    }

    fn is_wanted(&self, uri: &Arc<str>) -> bool {
        self.0.lock().get(uri).is_some_and(|subscription| subscription.holders > 0)
    }

    fn state(&self, uri: &Arc<str>) -> Option<Arc<tokio::sync::Mutex<SubscriptionState>>> {
        self.0.lock().get(uri).map(|subscription| Arc::clone(&subscription.state))
    }

    /// Removes a subscription without holders and without a request in progress.
    fn remove(&self, uri: &Arc<str>) {
        let mut all = self.0.lock();
        let is_done = |subscription: &ResourceSubscription| {
            subscription.holders == 0 && Arc::strong_count(&subscription.state) == 1
        };
        if all.get(uri).is_some_and(is_done) {
            all.remove(uri);
        }
    }
}
