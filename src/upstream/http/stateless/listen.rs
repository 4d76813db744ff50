//! Subscribes to a stateless server's notifications: one `subscriptions/listen` for clients with equal access.
//! It requests the union of their filters. A subscription cannot change (MOD-24), so a larger filter needs another
//! stream; the old one is read until just after the new one's acknowledgement, as duplicates are harmless and gaps are
//! not. A lost stream ends the [`ListenSource`]: its listeners subscribe again, as anything may have changed.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::stateless_sender::{DraftRequest, StatelessSender};
use crate::dialect::subscriptions::{ListKind, SubscriptionFilter, known_part, untagged};
use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::exchange::SubscriptionResult;
use crate::upstream::outgoing::HandedOver;
use crate::upstream::reply::{self, AcceptedResponse, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal};
use crate::upstream::session::{SessionKey, UpstreamLink, route};
use crate::upstream::{BeginError, NotificationSubscription, SUBSCRIBE_MAX, ServerNotification, own_ids};
use crate::waits::{at, or_pending};
use crate::wire::envelope::Notification;
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, MessageText, RequestId, RpcError, ScanLimits, envelope, method, one_line, rpc_error};

const SOURCES_MAX: usize = 1_024;
/// Most resources on one stream; more are not granted.
const RESOURCES_MAX: usize = 4_096;
const NEWS_MAX: usize = 256;
const OVERLAP: Duration = Duration::from_secs(1);
/// How long a filter stays too large before a smaller one replaces it: more clients may leave.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a failure is repeated for the same filter without another attempt.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Largest event: the acknowledgement names all resources.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Malformed events that one stream tolerates (U19).
const MALFORMED_MAX: u32 = 10;

/// The streams at one upstream, one for each key.
#[derive(Debug)]
pub(super) struct ListenSources {
    link: Arc<UpstreamLink>,
    sources: Mutex<HashMap<SessionKey, Arc<ListenSource>>>,
    /// Signals that cached tool lists are stale. A receiver that misses a signal sees the gap, so the buffer is small.
    pub(super) tool_changes: broadcast::Sender<ServerNotification>,
}

#[derive(Debug)]
struct ListenSource {
    sender: StatelessSender,
    news: broadcast::Sender<ServerNotification>,
    tool_changes: broadcast::Sender<ServerNotification>,
    wanted: Mutex<ListenDemand>,
    grown: Notify,
    shrunk: Notify,
    state: watch::Sender<ListenState>,
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct ListenDemand {
    holders: usize,
    lists: BTreeMap<ListKind, usize>,
    resources: HashMap<String, usize>,
}

#[derive(Clone, Debug, Default)]
struct ListenState {
    /// The filter that the server has decided about, and the part that the current stream grants.
    asked: SubscriptionFilter,
    granted: SubscriptionFilter,
    failures: u64,
    failed: Option<(Instant, SubscriptionFilter, GatewayFault)>,
}

/// Dropping the last lease ends the stream.
#[derive(Debug)]
#[must_use]
struct ListenLease {
    source: Arc<ListenSource>,
    wishes: SubscriptionFilter,
}

impl Drop for ListenLease {
    fn drop(&mut self) {
        let mut wanted = self.source.wanted.lock();
        wanted.leave(&self.wishes);
        if wanted.holders == 0 {
            self.source.ended.cancel();
        }
        drop(wanted);
        self.source.shrunk.notify_one();
    }
}

impl ListenSources {
    pub(super) fn new(link: Arc<UpstreamLink>) -> Arc<Self> {
        Arc::new(Self { link, sources: Mutex::default(), tool_changes: broadcast::Sender::new(1) })
    }

    /// Subscribes one client; `sender` has its key. Fails without a stream in [`SUBSCRIBE_MAX`], or with too many.
    pub(super) async fn listen(
        &self,
        key: SessionKey,
        sender: StatelessSender,
        wishes: SubscriptionFilter,
    ) -> SubscriptionResult {
        let held = self.enter(key, sender, wishes).map_err(BeginError::Gateway)?;
        // Before the stream is open, so that no notification is missed.
        let news = held.source.news.subscribe();
        let late = Err(GatewayFault::new(Reason::UpstreamTimeout, Executed::No));
        let granted = timeout(SUBSCRIBE_MAX, held.source.granted(&held.wishes)).await.unwrap_or(late);
        let granted = granted.map_err(BeginError::Gateway)?;
        Ok(NotificationSubscription { news, granted, ended: held.source.ended.clone(), kept: Box::new(held) })
    }

    fn enter(
        &self,
        key: SessionKey,
        sender: StatelessSender,
        mut wishes: SubscriptionFilter,
    ) -> Result<ListenLease, GatewayFault> {
        let mut sources = self.sources.lock();
        if let Some(source) = sources.get(&key) {
            if let Some(held) = source.enter(&mut wishes) {
                return Ok(held);
            }
            if let Some(fault) = source.failed_lately(&wishes) {
                return Err(fault);
            }
        }
        sources.retain(|_, source| !source.ended.is_cancelled());
        if sources.len() >= SOURCES_MAX {
            self.link.dropped("too_many_listens");
            return Err(GatewayFault::new(Reason::QueueFull, Executed::No));
        }
        let source = Arc::new(ListenSource {
            sender,
            news: broadcast::Sender::new(NEWS_MAX),
            tool_changes: self.tool_changes.clone(),
            wanted: Mutex::default(),
            grown: Notify::new(),
            shrunk: Notify::new(),
            state: watch::Sender::default(),
            ended: self.link.stop.child_token(),
        });
        let held = source.enter(&mut wishes).ok_or(GatewayFault::new(Reason::Draining, Executed::No))?;
        self.link.tracker.spawn(Arc::clone(&source).run());
        sources.insert(key, source);
        Ok(held)
    }
}

impl ListenDemand {
    fn enter(&mut self, wishes: &SubscriptionFilter) {
        self.holders += 1;
        wishes.lists.iter().for_each(|list| *self.lists.entry(*list).or_default() += 1);
        wishes.resources.iter().flatten().for_each(|uri| *self.resources.entry(uri.clone()).or_default() += 1);
    }

    fn leave(&mut self, wishes: &SubscriptionFilter) {
        self.holders = self.holders.saturating_sub(1);
        for list in &wishes.lists {
            if let Some(count) = self.lists.get_mut(list) {
                *count = count.saturating_sub(1);
            }
        }
        for uri in wishes.resources.iter().flatten() {
            if let Some(count) = self.resources.get_mut(uri) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.resources.remove(uri);
                }
            }
        }
        self.lists.retain(|_, count| *count > 0);
    }

    fn wishes(&self) -> SubscriptionFilter {
        let resources = (!self.resources.is_empty()).then(|| self.resources.keys().cloned().collect());
        SubscriptionFilter { lists: self.lists.keys().copied().collect(), resources, tasks: None }
    }
}

type ListenOpening = Fuse<BoxFuture<'static, (SubscriptionFilter, Result<UpstreamListenStream, ListenError>)>>;

impl ListenSource {
    /// `None` if the source has ended. Removes resources beyond the limit from the wishes.
    fn enter(self: &Arc<Self>, wishes: &mut SubscriptionFilter) -> Option<ListenLease> {
        let mut wanted = self.wanted.lock();
        if self.ended.is_cancelled() {
            return None;
        }
        if let Some(uris) = &mut wishes.resources {
            let mut room = RESOURCES_MAX.saturating_sub(wanted.resources.len());
            uris.retain(|uri| {
                let is_known = wanted.resources.contains_key(uri);
                let fits = is_known || room > 0;
                room -= usize::from(fits && !is_known);
                fits
            });
        }
        wanted.enter(wishes);
        drop(wanted);
        if !self.state.borrow().asked.cover(wishes) {
            self.grown.notify_one();
        }
        Some(ListenLease { source: Arc::clone(self), wishes: wishes.clone() })
    }

    fn failed_lately(&self, wishes: &SubscriptionFilter) -> Option<GatewayFault> {
        let state = self.state.borrow();
        let (when, asked, fault) = state.failed.as_ref()?;
        (when.elapsed() < FAILED_FOR && asked.cover(wishes)).then_some(*fault)
    }

    /// The granted part of the wishes, once the server has decided.
    async fn granted(&self, wishes: &SubscriptionFilter) -> Result<SubscriptionFilter, GatewayFault> {
        let mut state = self.state.subscribe();
        let failures = state.borrow().failures;
        loop {
            {
                let now = state.borrow_and_update();
                if now.asked.cover(wishes) {
                    return Ok(wishes.in_common(&SubscriptionFilter {
                        // A filter with resources is granted resources, even if none.
                        resources: Some(now.granted.resources.clone().unwrap_or_default()),
                        ..now.granted.clone()
                    }));
                }
                if let Some((_, asked, fault)) = &now.failed
                    && now.failures > failures
                    && asked.cover(wishes)
                {
                    return Err(*fault);
                }
            }
            tokio::select! {
                biased;
                changed = state.changed() => changed.map_err(|_| CLOSED)?,
                () = self.ended.cancelled() => return Err(CLOSED),
            }
        }
    }

    async fn run(self: Arc<Self>) {
        let ended = self.ended.clone();
        let _ = ended.run_until_cancelled(Box::pin(self.follow())).await;
        ended.cancel();
    }

    fn open(&self) -> ListenOpening {
        let (sender, wishes) = (self.sender.clone(), self.wanted.lock().wishes());
        let state = self.state.borrow().clone();
        let known = Some(wishes.clone().without_refused(&state.asked, &state.granted));
        let known = known.filter(SubscriptionFilter::concern_the_upstream).unwrap_or_else(|| wishes.clone());
        let opening = async move {
            let late = ListenError::Failed(GatewayFault::new(Reason::UpstreamTimeout, Executed::No));
            let opened = timeout(SUBSCRIBE_MAX, UpstreamListenStream::open_known(&sender, &known)).await;
            (wishes, opened.unwrap_or(Err(late)))
        };
        opening.boxed().fuse()
    }

    async fn follow(&self) {
        let mut current: Option<UpstreamListenStream> = None;
        let mut before: Option<(UpstreamListenStream, Instant)> = None;
        let mut opening = self.open();
        let mut settle: Option<Instant> = None;
        loop {
            let is_opening = !opening.is_terminated();
            let overlap_end = before.as_ref().map(|(_, until)| *until);
            tokio::select! {
                (asked, opened) = &mut opening, if is_opening => match self.opened(asked, opened) {
                    Some(Ok(spoken)) => before = current.replace(spoken).map(|old| (old, Instant::now() + OVERLAP)),
                    Some(Err(())) if current.is_none() => return,
                    Some(Err(())) | None => (),
                },
                news = or_pending(current.as_mut().map(UpstreamListenStream::next)) => match news {
                    Some(news) => self.publish(news),
                    None => return,
                },
                news = or_pending(before.as_mut().map(|(spoken, _)| spoken.next())) => match news {
                    Some(news) => self.publish(news),
                    None => before = None,
                },
                () = at(overlap_end) => before = None,
                () = self.grown.notified(), if !is_opening => {
                    if !self.state.borrow().asked.cover(&self.wanted.lock().wishes()) {
                        opening = self.open();
                    }
                }
                () = self.shrunk.notified() => settle = Some(Instant::now() + SETTLE),
                () = at(settle), if !is_opening => {
                    settle = None;
                    let wanted = self.wanted.lock().wishes();
                    let asked = &self.state.borrow().asked;
                    if current.is_some() && asked.cover(&wanted) && !wanted.cover(asked) {
                        opening = self.open();
                    }
                }
            }
        }
    }

    /// Returns `None` for a refusal.
    fn opened(
        &self,
        asked: SubscriptionFilter,
        opened: Result<UpstreamListenStream, ListenError>,
    ) -> Option<Result<UpstreamListenStream, ()>> {
        match opened {
            Ok(spoken) => {
                let granted = spoken.granted.clone();
                if !granted.cover(&asked) {
                    tracing::debug!(upstream = %self.sender.link.name, "the upstream granted fewer notifications than requested");
                }
                self.state.send_modify(|state| (state.asked, state.granted) = (asked, granted));
                // Caches from before this stream may be stale.
                self.tools_changed();
                Some(Ok(spoken))
            }
            Err(ListenError::Refused(reason) | ListenError::Params(reason)) => {
                tracing::warn!(upstream = %self.sender.link.name, %reason, "the upstream refused a subscription");
                self.state.send_modify(|state| state.asked.extend(&asked));
                None
            }
            Err(ListenError::Failed(fault)) => {
                tracing::debug!(upstream = %self.sender.link.name, reason = fault.reason.key(), "a subscription failed");
                self.state.send_modify(|state| {
                    state.failures += 1;
                    state.failed = Some((Instant::now(), asked, GatewayFault { executed: Executed::No, ..fault }));
                });
                Some(Err(()))
            }
        }
    }

    fn publish(&self, news: ServerNotification) {
        if *news.0 == *method::TOOLS_CHANGED {
            self.tools_changed();
        }
        let _ = self.news.send(news);
    }

    fn tools_changed(&self) {
        // Without params, which are for authorised clients only.
        let _ = self.tool_changes.send((Arc::from(method::TOOLS_CHANGED), None));
    }
}

const CLOSED: GatewayFault = GatewayFault::new(Reason::UpstreamClosed, Executed::No);

#[derive(Debug)]
enum ListenError {
    /// A later attempt would be refused, too.
    Refused(String),
    /// The filter may name an unknown resource.
    Params(String),
    Failed(GatewayFault),
}

/// One open `subscriptions/listen`. Dropping it ends the stream at the upstream.
#[derive(Debug)]
struct UpstreamListenStream {
    link: Arc<UpstreamLink>,
    id: RequestId,
    events: EventStream,
    malformed: u32,
    granted: SubscriptionFilter,
}

enum ListenEvent {
    Nothing,
    Notified(Notification),
    End,
}

impl UpstreamListenStream {
    /// As [`Self::open`], without the resources for which the server refuses all wishes.
    async fn open_known(sender: &StatelessSender, wishes: &SubscriptionFilter) -> Result<Self, ListenError> {
        let search_end = Instant::now() + SUBSCRIBE_MAX / 2;
        let refusal = match Self::open(sender, wishes).await {
            Err(refusal @ ListenError::Params(_)) => refusal,
            opened => return opened,
        };
        let is_accepted = |part: SubscriptionFilter| async move {
            match Self::open(sender, &part).await {
                Ok(_) => Ok(true),
                Err(ListenError::Params(_)) => Ok(false),
                Err(failed @ (ListenError::Refused(_) | ListenError::Failed(_))) => Err(failed),
            }
        };
        match known_part(wishes, || Instant::now() >= search_end, is_accepted).await? {
            Some(known) => Self::open(sender, &known).await,
            None => Err(refusal),
        }
    }

    /// Subscribes and waits for the acknowledgement, without a time limit: before it the server promises nothing.
    async fn open(sender: &StatelessSender, wishes: &SubscriptionFilter) -> Result<Self, ListenError> {
        let id = own_ids::mint();
        let params = ObjectWriter::new().member("notifications", &wishes.written()).finish();
        let post = sender.post(&DraftRequest::new(method::LISTEN, Some(params)), &id);
        let response = sender.link.transport.send(&post, &HandedOver::default()).await.map_err(ListenError::Failed)?;
        let limits = ReadLimits::within(EVENT_BYTES_MAX, sender.answers());
        let events = match reply::open(response, ErrorAddressee::Handshake, &limits).await {
            Ok(AcceptedResponse::Events(events)) => events,
            Ok(AcceptedResponse::Json(body)) => {
                let text = reply::read_whole(body, &limits).await.map_err(ListenError::Failed)?;
                return Err(match envelope::read(&text, ScanLimits::UPSTREAM) {
                    Ok(Message::Response(response)) => response.outcome.err().map_or(MALFORMED, refused),
                    Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => MALFORMED,
                });
            }
            Err(ResponseRefusal::Rpc(error)) => return Err(refused(error)),
            Err(ResponseRefusal::Gateway(fault)) if matches!(fault.http_status, Some(404 | 405 | 501)) => {
                return Err(ListenError::Refused("the server has no such method".to_owned()));
            }
            Err(ResponseRefusal::Gateway(fault)) => return Err(ListenError::Failed(fault)),
            Err(ResponseRefusal::SessionLost) => return Err(MALFORMED),
        };
        metrics::gauge!(metric::UPSTREAM_LISTENS, "upstream" => Arc::clone(&sender.link.name)).increment(1.0);
        let link = Arc::clone(&sender.link);
        let mut spoken = Self { link, id, events, malformed: 0, granted: SubscriptionFilter::default() };
        spoken.granted = spoken.acknowledged(wishes).await?;
        Ok(spoken)
    }

    /// The acknowledgement comes first (MOD-24); earlier messages are dropped.
    async fn acknowledged(&mut self, wishes: &SubscriptionFilter) -> Result<SubscriptionFilter, ListenError> {
        loop {
            let event = match self.events.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Err(ListenError::Failed(CLOSED)),
                Err(broken) => return Err(ListenError::Failed(broken.into_fault())),
            };
            let Some(text) = reply::message_in(&event) else { continue };
            if let Some(Message::Response(response)) = text.read(ScanLimits::UPSTREAM).ok().as_deref()
                && response.id.as_ref() == Some(&self.id)
            {
                return Err(response.outcome.clone().err().map_or(ListenError::Failed(CLOSED), refused));
            }
            match self.read(text) {
                ListenEvent::Notified(notification) if notification.method == method::LISTEN_ACKNOWLEDGED => {
                    return notification.params.object().map(|params| wishes.granted_by(params)).ok_or(MALFORMED);
                }
                ListenEvent::Notified(_) => self.link.dropped("before_acknowledgement"),
                ListenEvent::Nothing => (),
                ListenEvent::End => return Err(MALFORMED),
            }
        }
    }

    /// The next granted notification, without the subscription's id; `None` at the end. Cancel safe.
    async fn next(&mut self) -> Option<ServerNotification> {
        loop {
            let event = self.events.next().await.ok()??;
            let Some(text) = reply::message_in(&event) else { continue };
            match self.read(text) {
                ListenEvent::Notified(notification) => match self.news(&notification) {
                    Some(news) => return Some(news),
                    None => self.link.dropped("stray_notification"),
                },
                ListenEvent::Nothing => (),
                ListenEvent::End => return None,
            }
        }
    }

    fn read(&mut self, text: &MessageText) -> ListenEvent {
        match text.read(ScanLimits::UPSTREAM).map(Arc::unwrap_or_clone) {
            Ok(Message::Notification(notification)) => return ListenEvent::Notified(notification),
            // A regular end, if it is a result (MOD-25).
            Ok(Message::Response(response)) if response.id.as_ref() == Some(&self.id) => return ListenEvent::End,
            Ok(Message::Response(_)) => self.link.dropped("foreign_response"),
            Ok(Message::Request(_)) => self.link.dropped("stray_request"),
            Err(_) => {
                self.malformed += 1;
                self.link.dropped("malformed_event");
                if self.malformed > MALFORMED_MAX {
                    return ListenEvent::End;
                }
            }
        }
        ListenEvent::Nothing
    }

    /// The notification, if granted and of this subscription.
    fn news(&self, notification: &Notification) -> Option<ServerNotification> {
        let params = notification.params.object();
        if !self.granted.want(&notification.method, params) {
            return None;
        }
        let (params, tag) = untagged(params);
        let is_own = tag.is_none_or(|tag| RequestId::from_payload(&tag).as_ref() == Some(&self.id));
        is_own.then(|| (Arc::from(notification.method.as_str()), route::news_params(params)))
    }
}

impl Drop for UpstreamListenStream {
    fn drop(&mut self) {
        metrics::gauge!(metric::UPSTREAM_LISTENS, "upstream" => Arc::clone(&self.link.name)).decrement(1.0);
    }
}

const MALFORMED: ListenError = ListenError::Failed(GatewayFault::new(Reason::UpstreamMalformed, Executed::No));

/// An error about the request is permanent, any other may pass.
fn refused(error: RpcError) -> ListenError {
    match error.code {
        rpc_error::INVALID_PARAMS | rpc_error::RESOURCE_NOT_FOUND => {
            ListenError::Params(one_line::name(&error.message))
        }
        rpc_error::METHOD_NOT_FOUND
        | rpc_error::INVALID_REQUEST
        | rpc_error::MISSING_CLIENT_CAPABILITY
        | rpc_error::HEADER_MISMATCH
        | rpc_error::UNSUPPORTED_VERSION => ListenError::Refused(one_line::name(&error.message)),
        _ => ListenError::Failed(GatewayFault::new(Reason::UpstreamRefused, Executed::No)),
    }
}
