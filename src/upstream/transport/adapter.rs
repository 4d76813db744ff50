//! Adapts servers with another transport to streamable HTTP. A `MessageTransport` connects to such a server; one
//! connection carries messages both ways, and is one session. Read `connection`, `call_table` (a message's call),
//! `stateless` (no sessions), and `dedicated_process` (one call each).

mod call_table;
mod connection;
mod connection_permits;
pub mod dedicated_process;
mod request_ids;
mod stateless;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::answer_body::{AnswerBody, AnswerMessages, AnswerResult};
use crate::upstream::limits::CallPermits;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{ForwardedHeaders, TaskScope};
use crate::wire::rpc_error::INVALID_REQUEST;
use crate::wire::{Message, Request, RequestId, RpcError, ScanLimits, envelope, method};
use call_table::RequestTerms;
use connection::{AdapterConnection, ConnectionPurpose, SessionTemplate, UnopenedConnectionGuard};
pub use connection_permits::WAITING_MAX;
use connection_permits::{ENDING_MAX, PermitWait, RestartBackoff};
use dedicated_process::DedicatedProcessRules;

const CLOSE_MAX: Duration = Duration::from_secs(2);
/// How long a message without bytes shortens the waits of later ones.
const REFUSED_FOR: Duration = Duration::from_secs(60);

#[async_trait]
pub(crate) trait MessageTransport: Send + Sync + fmt::Debug {
    /// Opens a connection, with these headers if it has any. Bounded in time. A fault or a drop leaves nothing behind.
    async fn open(&self, forwarded: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault>;

    /// Longest pause before a repeatedly failing server is tried again.
    fn pause_max(&self) -> Duration {
        Duration::from_secs(30)
    }
}

pub(crate) struct ConnectionEnds {
    pub(crate) sender: Arc<dyn MessageSender>,
    pub(crate) receiver: Box<dyn MessageReceiver>,
}

#[async_trait]
pub(crate) trait MessageSender: Send + Sync + fmt::Debug {
    /// Sends the message of a POST, whole or (if dropped early) not at all; `handed_over` is set before its first byte
    /// can reach the server. Returns once the server has accepted it, if the transport shows that; the response may
    /// come earlier, or be returned in place of the acceptance. `request_ended` is cancelled once a request has its
    /// response, or is not awaited any more. A fault concerns this message, unless its status is 404: the server lost
    /// the session. The receiver reports the connection's end.
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        request_ended: Option<&CancellationToken>,
    ) -> Result<Option<Bytes>, GatewayFault>;

    /// Ends the connection, and the server if no other connection uses it. Bounded in time.
    async fn close(&self);
}

#[async_trait]
pub(crate) trait MessageReceiver: Send {
    /// The next message or batch, as `room` allows. Cancel safe. Fails once the connection is over, with a fault.
    async fn next(&mut self, room: &mut MessageRoom) -> Result<Bytes, GatewayFault>;
}

pub(crate) struct TransportAdapter {
    shared: Arc<AdapterShared>,
    wire: Box<dyn MessageTransport>,
    dedicated: DedicatedProcessRules,
    connections: Mutex<stateless::StatelessConnections>,
}

debug_members!(TransportAdapter, |adapter| wire: adapter.wire);

struct AdapterShared {
    name: Arc<str>,
    health: Arc<UpstreamHealth>,
    scope: TaskScope,
    /// By connection id; clients know only the id of their own session.
    sessions: Mutex<HashMap<HeaderValue, Arc<AdapterConnection>>>,
    /// Permits are held until a connection has ended, or passes its permit on.
    permits: CallPermits,
    backoff: RestartBackoff,
    processes: AtomicU64,
}

impl AdapterShared {
    fn dropped(&self, reason: &'static str) {
        metric::count_dropped(&self.name, reason);
    }
}

impl TransportAdapter {
    /// Connections that end by themselves are reported to `health`; the transport reports why one cannot be opened.
    pub(crate) fn new(
        health: Arc<UpstreamHealth>,
        wire: Box<dyn MessageTransport>,
        sessions_max: NonZeroUsize,
        limits: SharedLimits,
        scope: TaskScope,
    ) -> Self {
        Self::within(health, wire, connection_permits::new(sessions_max, limits), scope)
    }

    pub(crate) fn within(
        health: Arc<UpstreamHealth>,
        wire: Box<dyn MessageTransport>,
        permits: CallPermits,
        scope: TaskScope,
    ) -> Self {
        let shared = AdapterShared {
            name: Arc::clone(health.name()),
            health,
            scope,
            sessions: Mutex::default(),
            permits,
            backoff: RestartBackoff::new(wire.pause_max()),
            processes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), wire, dedicated: Default::default(), connections: Mutex::default() }
    }

    pub(crate) fn with_dedicated_calls(self, dedicated: DedicatedProcessRules) -> Self {
        Self { dedicated, ..self }
    }

    async fn post(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> AnswerResult {
        let Some(Ok(message)) = outgoing.message().map(|text| text.read(ScanLimits::UPSTREAM)) else {
            return Ok(refusal(None, "the body is not a message"));
        };
        let session = match (outgoing.session(), &*message) {
            (None, message) if outgoing.is_stateless() => {
                return self.post_stateless(outgoing, message, handed_over).await;
            }
            (None, Message::Request(request)) if request.method == method::INITIALIZE => {
                return self.initialize(request, outgoing, handed_over).await;
            }
            (None, _) => return Ok(refusal(None, "there is no session before initialize")),
            (Some(id), _) => match self.session(id) {
                Some(session) => session,
                None => return Ok(answered(StatusCode::NOT_FOUND)),
            },
        };
        let answer = match &*message {
            Message::Request(request) if self.dedicated.include(request) => {
                self.call_dedicated(&session, request, outgoing, handed_over).await
            }
            Message::Request(request) => {
                session.note_level(request);
                session.request_on(request, outgoing, RequestTerms::default(), handed_over).await
            }
            message @ (Message::Notification(_) | Message::Response(_)) => {
                let sent = match session.target_of(message) {
                    Some((other, Some(text))) => {
                        other.send_one_way(message, &outgoing.clone().with_body(text), handed_over).await
                    }
                    Some((other, None)) => other.send_one_way(message, outgoing, handed_over).await,
                    None if session.cancels_opening(message) => Ok(()),
                    None => session.send_one_way(message, outgoing, handed_over).await,
                };
                sent.map(|()| answered(StatusCode::ACCEPTED))
            }
        };
        match answer {
            Err(fault) if fault.http_status == Some(StatusCode::NOT_FOUND.as_u16()) => {
                session.end();
                Ok(answered(StatusCode::NOT_FOUND))
            }
            answer => answer,
        }
    }

    /// The session is discarded unless the server responds with a result.
    async fn initialize(
        &self,
        request: &Request,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let owner = owner_of(outgoing);
        let (session, unless_opened) =
            self.open(ConnectionPurpose::Session, &owner, PermitWait::First, outgoing.forwarded()).await?;
        let (answer, is_result) = session.first(request, outgoing, handed_over).await?;
        let mut response = json(StatusCode::OK, answer);
        if is_result {
            let _ = session.origin.set(SessionTemplate::new(request.clone(), outgoing.clone()));
            unless_opened.disarm();
            response.headers_mut().insert(crate::upstream::outgoing::SESSION_ID, session.id().clone());
        }
        Ok(response)
    }

    /// Opens a connection; dropping the guard ends it.
    async fn open(
        &self,
        kind: ConnectionPurpose,
        owner: &Principal,
        patience: PermitWait,
        forwarded: &ForwardedHeaders,
    ) -> Result<(Arc<AdapterConnection>, UnopenedConnectionGuard), GatewayFault> {
        self.shared.backoff.wait(owner).await?;
        let id = new_id()?;
        // Before any wait, so that never too many are opened.
        let permit = self.acquire_permit(owner, patience).await?;
        let session = AdapterConnection::new(Arc::clone(&self.shared), id.clone(), kind, permit);
        self.shared.sessions.lock().insert(id, Arc::clone(&session));
        let unless_kept = session.ends_unless_kept();
        let opened = self.wire.open(forwarded).await.inspect_err(|fault| {
            // A server that refuses one client is healthy.
            if fault.http_status.is_none_or(|status| status >= 500) {
                self.shared.backoff.note_failure();
            }
        })?;
        session.start(opened, forwarded.clone());
        Ok((session, unless_kept))
    }

    fn session(&self, id: &HeaderValue) -> Option<Arc<AdapterConnection>> {
        self.shared.sessions.lock().get(id).filter(|session| !session.is_closed()).cloned()
    }

    /// Responds as a streamable HTTP server of the session era: to a request with an event stream or JSON, to a
    /// notification or answer with 202, to GET with the session's stream, to DELETE by ending it, for an unknown
    /// session with 404. Dropping future or body sends nothing. A request of 2026-07-28 is answered so, too; dropping
    /// cancels it. `handed_over` is set before a byte can reach the server. A fault says whether it may have run.
    pub(crate) async fn send(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> AnswerResult {
        let method = outgoing.method();
        if method == Method::POST {
            return self.post(outgoing, handed_over).await;
        }
        let Some(session) = outgoing.session().and_then(|id| self.session(id)) else {
            return Ok(answered(StatusCode::NOT_FOUND));
        };
        if method == Method::GET {
            return Ok(events(session.listen(outgoing.purpose().cloned())));
        }
        session.end();
        Ok(answered(StatusCode::OK))
    }

    pub(crate) fn end_idle(&self) {
        self.shared.sessions.lock().values().for_each(|session| session.end_if_idle());
    }

    /// Ends all connections, and the server's processes. Bounded in time.
    pub(crate) async fn restart(&self) {
        let all: Vec<_> = self.shared.sessions.lock().values().cloned().collect();
        all.iter().for_each(|session| session.end());
        self.shared.backoff.reset();
        let ended = futures_util::future::join_all(all.iter().map(|session| session.server_ended()));
        let _ = tokio::time::timeout(ENDING_MAX, ended).await;
    }

    pub(crate) async fn close(&self) {
        let all: Vec<_> = self.shared.sessions.lock().values().cloned().collect();
        all.iter().for_each(|session| session.end_with_gateway());
        let ended = futures_util::future::join_all(all.iter().map(|session| session.server_ended()));
        let _ = tokio::time::timeout(CLOSE_MAX, ended).await;
    }
}

/// Charges a connection's incoming message to its principal's answer budget, from the first byte on. Without budget the
/// connection is not read for up to a minute; then the message is dropped, and other calls continue. Large messages that come within
/// a minute after it wait a second each, until one gets its bytes.
pub(crate) struct MessageRoom {
    /// The present share of the connection's principal.
    current: Box<dyn Fn() -> AnswerShare + Send + Sync>,
    /// The share of the message, taken when it grew above [`FREE_BYTES`].
    share: Option<AnswerShare>,
    held: AnswerPermit,
    /// Why the budget refused bytes for the message.
    refused: Option<GatewayFault>,
    /// When the budget refused bytes for the last large message.
    refused_at: Option<Instant>,
}

impl MessageRoom {
    fn new(current: impl Fn() -> AnswerShare + Send + Sync + 'static) -> Self {
        Self { current: Box::new(current), share: None, held: AnswerPermit::default(), refused: None, refused_at: None }
    }

    /// Waits until a message with `bytes` so far may grow. Cancel safe.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        if bytes <= FREE_BYTES {
            // The incomplete message was dropped.
            (self.share, self.held, self.refused) = (None, AnswerPermit::default(), None);
        } else if self.refused.is_none() {
            let share = self.share.get_or_insert_with(|| {
                let share = (self.current)();
                let is_behind = self.refused_at.is_some_and(|at| at.elapsed() < REFUSED_FOR);
                if is_behind { share.behind_refused() } else { share }
            });
            self.refused = share.grow(&mut self.held, bytes).await.err();
            self.refused_at = self.refused.map(|_| Instant::now());
        }
    }

    /// Waits for more of the message. If too little comes, its bytes are released, and it is dropped once it is complete (U76).
    pub(crate) async fn wait<T>(&mut self, more: impl Future<Output = T>) -> T {
        let mut more = pin!(more);
        while let Some(look) = self.held.look() {
            if self.held.is_stalled() {
                self.held = AnswerPermit::default();
                self.refused = Some(GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown));
            } else if let Ok(more) = tokio::time::timeout_at(look, more.as_mut()).await {
                return more;
            }
        }
        more.await
    }

    /// The next message with its bytes, or with the budget's reason to refuse. Fails as [`MessageReceiver::next`].
    async fn next(
        &mut self,
        receiver: &mut dyn MessageReceiver,
    ) -> Result<Result<Bytes, (Bytes, GatewayFault)>, GatewayFault> {
        let text = receiver.next(self).await?;
        self.grow(text.len()).await;
        let held = std::mem::take(&mut self.held);
        self.share = None;
        Ok(match self.refused.take() {
            Some(fault) => Err((text, fault)),
            None => Ok(held.attach(text)),
        })
    }
}

fn owner_of(outgoing: &OutgoingRequest) -> Principal {
    outgoing.principal().cloned().unwrap_or_else(Principal::anonymous)
}

/// A new id that no client can guess.
fn new_id() -> Result<HeaderValue, GatewayFault> {
    let internal = GatewayFault::new(Reason::Internal, Executed::No);
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| internal)?;
    HeaderValue::from_str(&uuid::Uuid::from_bytes(bytes).simple().to_string()).map_err(|_| internal)
}

fn answered(status: StatusCode) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(None));
    *response.status_mut() = status;
    response
}

fn json(status: StatusCode, text: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(Some(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn events(messages: AnswerMessages) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Messages(messages));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn events_with(messages: AnswerMessages, kept: Box<dyn Any + Send + Sync>) -> Response<AnswerBody> {
    events(messages).map(|body| AnswerBody::Kept { body: Box::new(body), _kept: kept })
}

fn refusal(id: Option<&RequestId>, message: &str) -> Response<AnswerBody> {
    json(StatusCode::BAD_REQUEST, envelope::error(id, &RpcError::new(INVALID_REQUEST, message)))
}
