//! Runs one connection of the adapter: sends messages over it, and routes incoming ones.

mod inbound;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call_table::{CallTable, ConnectionIdleness, EnteredRequest, RequestStartError, RequestTerms};
use super::{AdapterShared, ConnectionEnds, MessageReceiver, MessageRoom, MessageSender, events, refusal};
use crate::answer_budget::AnswerShare;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::ForwardedHeaders;
use crate::upstream::answer_body::{AnswerMessages, AnswerResult, BodyBreakError};
use crate::upstream::limits::CallPermit;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders, StreamPurpose};
use crate::upstream::upstream_health::UpstreamFailure;
use crate::wire::{Message, Request, RequestId, ScanLimits};

const REPLIES_MAX: usize = 32;
/// An unused session is ended after this: its client left without notice.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPurpose {
    Session,
    /// One call of a session that has another connection. `process` distinguishes the questions of several.
    Dedicated {
        process: String,
    },
    Stateless,
}

/// A session of the server, which is one connection.
pub(super) struct AdapterConnection {
    pub(super) shared: Arc<AdapterShared>,
    id: HeaderValue,
    kind: ConnectionPurpose,
    sender: OnceLock<Arc<dyn MessageSender>>,
    /// Of the client that opened the session, for the adapter's own messages.
    forwarded: OnceLock<ForwardedHeaders>,
    pub(super) table: Mutex<CallTable>,
    /// Until the connection has ended or passed its permit on.
    permit: Mutex<Option<CallPermit>>,
    /// Requests that open this connection, or another for the session: it is not idle, even with an empty table.
    openers: AtomicUsize,
    pub(super) origin: OnceLock<SessionTemplate>,
    /// For single calls of this session.
    pub(super) dedicated: Mutex<Vec<Arc<Self>>>,
    /// Calls that wait for their dedicated connection. A client's cancel cancels the call's token.
    pub(super) opening: Mutex<HashMap<RequestId, CancellationToken>>,
    pub(super) numbered: AtomicI64,
    /// Whether the server has responded with a result.
    pub(super) is_proven: AtomicBool,
    /// Whether a tool has returned a result.
    has_served: AtomicBool,
    replies: Arc<Semaphore>,
    /// Cancelled when nothing more is sent or received.
    closed: CancellationToken,
    server_ended: CancellationToken,
    /// The fault that ended it, unless the gateway did.
    why: OnceLock<GatewayFault>,
}

impl AdapterConnection {
    pub(super) fn new(
        shared: Arc<AdapterShared>,
        id: HeaderValue,
        kind: ConnectionPurpose,
        permit: CallPermit,
    ) -> Arc<Self> {
        let closed = shared.scope.stop.child_token();
        Arc::new(Self {
            shared,
            id,
            kind,
            sender: OnceLock::new(),
            forwarded: OnceLock::new(),
            table: Mutex::new(CallTable::new()),
            permit: Mutex::new(Some(permit)),
            openers: AtomicUsize::new(0),
            origin: OnceLock::new(),
            dedicated: Mutex::default(),
            opening: Mutex::default(),
            numbered: AtomicI64::new(0),
            is_proven: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            replies: Arc::new(Semaphore::new(REPLIES_MAX)),
            closed,
            server_ended: CancellationToken::new(),
            why: OnceLock::new(),
        })
    }

    /// The guard ends the session when dropped, unless disarmed.
    pub(super) fn ends_unless_kept(self: &Arc<Self>) -> UnopenedConnectionGuard {
        UnopenedConnectionGuard { session: Some(Arc::clone(self)), _opener: self.opener() }
    }

    /// The guard protects the session from eviction.
    pub(super) fn opener(self: &Arc<Self>) -> ConnectionUseGuard {
        self.openers.fetch_add(1, Ordering::Relaxed);
        ConnectionUseGuard(Arc::clone(self))
    }

    pub(super) fn start(self: &Arc<Self>, opened: ConnectionEnds, forwarded: ForwardedHeaders) {
        let _ = self.forwarded.set(forwarded);
        let _ = self.sender.set(opened.sender);
        self.shared.scope.tracker.spawn(Arc::clone(self).run(opened.receiver));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Ends the session; the server stops in the background.
    pub(super) fn end(&self) {
        self.closed.cancel();
    }

    pub(super) async fn server_ended(&self) {
        self.server_ended.cancelled().await;
    }

    /// `None` once another connection has the permit.
    pub(super) fn owner(&self) -> Option<Principal> {
        self.permit.lock().as_ref().map(|permit| permit.owner().clone())
    }

    pub(super) fn share(&self) -> AnswerShare {
        let owner = self.owner().unwrap_or_else(Principal::anonymous);
        self.shared.permits.answers_to(&owner)
    }

    pub(super) fn pass_to(&self, owner: &Principal) {
        if let Some(permit) = &mut *self.permit.lock() {
            permit.pass_to(owner);
        }
    }

    /// `None` while a request is in progress.
    pub(super) fn idle(&self) -> Option<ConnectionIdleness> {
        if self.is_closed() { None } else { self.idle_table()?.idle() }
    }

    /// The table, unless a connection is being opened or runs beside this one.
    fn idle_table(&self) -> Option<MutexGuard<'_, CallTable>> {
        let is_opening = self.openers.load(Ordering::Relaxed) > 0;
        let has_calls = self.dedicated.lock().iter().any(|other| !other.is_closed());
        (!is_opening && !has_calls).then(|| self.table.lock())
    }

    /// Time without a waiting reader.
    fn left_for(&self) -> Duration {
        self.looked_at().left_for()
    }

    /// The table, marked as used if a connection beside this one runs.
    fn looked_at(&self) -> MutexGuard<'_, CallTable> {
        let has_calls = self.dedicated.lock().iter().any(|other| !other.is_closed());
        let mut table = self.table.lock();
        if has_calls {
            table.touch();
        }
        table
    }

    /// Ends the session unless a request is in progress; returns its permit at once.
    pub(super) fn give_way(&self) -> Option<CallPermit> {
        let mut table = self.idle_table()?;
        table.idle()?;
        // Under the table's lock, so that no request begins.
        self.end();
        drop(table);
        self.permit.lock().take()
    }

    /// Ends the session unless a request or a task is in progress. The permit is released once the server has ended.
    pub(super) fn end_if_idle(&self) {
        if let Some(mut table) = self.idle_table()
            && table.idle().is_some_and(|idle| !idle.has_task)
        {
            // Under the table's lock, so that no request begins.
            self.end();
        }
    }

    pub(super) const fn id(&self) -> &HeaderValue {
        &self.id
    }

    pub(super) const fn kind(&self) -> &ConnectionPurpose {
        &self.kind
    }

    pub(super) fn end_guard(&self) -> DropGuard {
        self.closed.clone().drop_guard()
    }

    pub(super) fn listen(&self, purpose: Option<StreamPurpose>) -> AnswerMessages {
        self.table.lock().listen(purpose)
    }

    /// Sends `initialize`; returns the response, and whether it is a result.
    pub(super) async fn first(
        &self,
        request: &Request,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<(Bytes, bool), GatewayFault> {
        let mut begun = self.begin(request)?;
        self.send_request(outgoing, handed_over, &begun.request_ended).await?;
        while let Some(text) = begun.messages.recv().await {
            let text = text.map_err(|error| BodyBreakError::known_in(&error).unwrap_or_else(|| self.fault()))?;
            if let Some(Message::Response(response)) = text.read(ScanLimits::UPSTREAM).ok().as_deref() {
                let is_result = response.outcome.is_ok();
                return Ok((text.into_bytes(), is_result));
            }
        }
        Err(self.fault())
    }

    pub(super) async fn request_on(
        &self,
        request: &Request,
        outgoing: &OutgoingRequest,
        terms: RequestTerms,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let begun = match self.enter(request, RequestTerms { is_kept: outgoing.is_kept(), ..terms }) {
            Ok(begun) => begun,
            Err(RequestStartError::Over) => return Err(lost()),
            Err(RequestStartError::IdInUse) => return Ok(refusal(Some(&request.id), "this request id is in use")),
            Err(RequestStartError::TooMany) => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let unless_sent = UnsentRequestGuard { session: self, id: Some(&request.id) };
        tokio::select! {
            biased;
            sent = self.send_request(outgoing, handed_over, &begun.request_ended) => sent?,
            // Some servers confirm a request only once it is done. Messages before the hand-over are about another request, and a
            // `send` that is dropped then sends nothing.
            () = async {
                handed_over.wait().await;
                begun.first_message.notified().await;
            } => (),
        }
        unless_sent.disarm();
        Ok(events(begun.messages))
    }

    pub(super) async fn send_one_way(
        &self,
        message: &Message,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<(), GatewayFault> {
        self.send(outgoing, handed_over).await?;
        let mut table = self.table.lock();
        table.touch();
        match message {
            Message::Notification(notification) => {
                if let Some(id) = notification.cancelled() {
                    table.cancel(&id);
                }
            }
            Message::Response(response) => response.id.iter().for_each(|id| table.answered(id)),
            Message::Request(_) => (),
        }
        drop(table);
        Ok(())
    }

    pub(super) fn enter(&self, request: &Request, terms: RequestTerms) -> Result<EnteredRequest, RequestStartError> {
        let mut table = self.table.lock();
        if self.is_closed() { Err(RequestStartError::Over) } else { table.begin_on(request, terms) }
    }

    pub(super) fn begin(&self, request: &Request) -> Result<EnteredRequest, GatewayFault> {
        self.enter(request, RequestTerms::default()).map_err(|_| GatewayFault::new(Reason::Internal, Executed::No))
    }

    pub(super) fn own(&self, text: Bytes) -> OutgoingRequest {
        let forwarded = self.forwarded.get().cloned().unwrap_or_default();
        SessionHeaders::default().post(text).under_way().forwarding(forwarded)
    }

    pub(super) async fn send(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> Result<(), GatewayFault> {
        self.send_any(outgoing, handed_over, None).await
    }

    /// Sends a request that is in the table; `request_ended` is cancelled when it leaves the table.
    pub(super) async fn send_request(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        request_ended: &CancellationToken,
    ) -> Result<(), GatewayFault> {
        self.send_any(outgoing, handed_over, Some(request_ended)).await
    }

    async fn send_any(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        request_ended: Option<&CancellationToken>,
    ) -> Result<(), GatewayFault> {
        let Some(sender) = self.sender.get() else { return Err(GatewayFault::new(Reason::Internal, Executed::No)) };
        tokio::select! {
            biased;
            // If the gateway ends the connection, the server is not to blame.
            sent = sender.send(outgoing, handed_over, request_ended) => match sent {
                Ok(response) => {
                    response.iter().for_each(|text| self.take_refusal(text));
                    Ok(())
                }
                Err(_) if self.is_closed() => Err(self.unsent(handed_over)),
                Err(fault) => Err(fault),
            },
            () = self.closed.cancelled() => Err(self.unsent(handed_over)),
        }
    }

    fn unsent(&self, handed_over: &HandedOver) -> GatewayFault {
        let fault = self.fault();
        GatewayFault { executed: if handed_over.initialized() { fault.executed } else { Executed::No }, ..fault }
    }

    /// The gateway's shutdown is not the server's fault.
    fn fault(&self) -> GatewayFault {
        let is_stopping = self.shared.scope.stop.is_cancelled();
        let reason = if is_stopping { Reason::GatewayRestart } else { Reason::UpstreamClosed };
        self.why.get().copied().unwrap_or_else(|| GatewayFault::new(reason, Executed::Unknown))
    }

    pub(super) fn end_with_gateway(&self) {
        // Already set if the connection ended by itself.
        let _ = self.why.set(GatewayFault::new(Reason::GatewayRestart, Executed::Unknown));
        self.end();
    }

    async fn run(self: Arc<Self>, mut receiver: Box<dyn MessageReceiver>) {
        let began = Instant::now();
        let fault = self.receive_all(&mut *receiver).await;
        // The gateway may have ended the connection: then there is no failure to report.
        if let Some(fault) = fault.filter(|_| !self.is_closed()) {
            let _ = self.why.set(fault);
            let owner = self.owner().filter(|_| self.is_proven.load(Ordering::Relaxed));
            self.shared.backoff.note_end(owner, began.elapsed(), self.has_served.load(Ordering::Relaxed));
            self.shared.health.failed(UpstreamFailure::of(&fault));
        }
        self.closed.cancel();
        self.table.lock().end(self.fault());
        self.dedicated.lock().drain(..).for_each(|other| other.end());
        drop(receiver);
        if let Some(sender) = self.sender.get() {
            sender.close().await;
        }
        self.leave();
    }

    async fn receive_all(self: &Arc<Self>, receiver: &mut dyn MessageReceiver) -> Option<GatewayFault> {
        let connection = Arc::clone(self);
        let mut room = MessageRoom::new(move || connection.share());
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            // Polled across checks for idleness: it may wait for bytes of the budget, for a limited time.
            let next = room.next(receiver);
            tokio::pin!(next);
            let received = loop {
                tokio::select! {
                    () = self.closed.cancelled() => return None,
                    received = &mut next => break received,
                    _ = look.tick() => {
                        if self.left_for() >= IDLE_MAX {
                            return None;
                        }
                    }
                }
            };
            // Messages that were read together need no wait: other tokio tasks run between them.
            consume_budget().await;
            match received {
                Ok(Ok(text)) => self.take(&text),
                Ok(Err((text, fault))) => self.take_unaffordable(text, fault),
                Err(fault) => return Some(fault),
            }
        }
    }

    fn leave(&self) {
        let mut sessions = self.shared.sessions.lock();
        if sessions.get(&self.id).is_some_and(|session| std::ptr::eq(Arc::as_ptr(session), self)) {
            sessions.remove(&self.id);
        }
        drop(sessions);
        drop(self.permit.lock().take());
        self.server_ended.cancel();
    }
}

/// The session had ended before the request: nothing was sent.
fn lost() -> GatewayFault {
    let lost = GatewayFault::new(Reason::UpstreamSessionLost, Executed::No);
    GatewayFault { http_status: Some(http::StatusCode::NOT_FOUND.as_u16()), ..lost }
}

#[must_use]
pub(super) struct ConnectionUseGuard(Arc<AdapterConnection>);

impl Drop for ConnectionUseGuard {
    fn drop(&mut self) {
        self.0.openers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session that no client knows yet; dropping it ends the session.
#[must_use]
pub(super) struct UnopenedConnectionGuard {
    session: Option<Arc<AdapterConnection>>,
    _opener: ConnectionUseGuard,
}

impl UnopenedConnectionGuard {
    pub(super) fn disarm(mut self) {
        self.session = None;
    }
}

impl Drop for UnopenedConnectionGuard {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        session.end();
        if session.sender.get().is_none() {
            // Without a runtime no tokio task would.
            session.leave();
        }
    }
}

#[must_use]
struct UnsentRequestGuard<'a> {
    session: &'a AdapterConnection,
    id: Option<&'a RequestId>,
}

impl UnsentRequestGuard<'_> {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for UnsentRequestGuard<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.table.lock().cancel(id);
        }
    }
}

/// A session's handshake, to open more connections in the same way.
pub(super) struct SessionTemplate {
    pub(super) initialize: Request,
    pub(super) outgoing: OutgoingRequest,
    pub(super) level: Mutex<Option<Request>>,
}

impl SessionTemplate {
    pub(super) const fn new(initialize: Request, outgoing: OutgoingRequest) -> Self {
        Self { initialize, outgoing, level: Mutex::new(None) }
    }
}
