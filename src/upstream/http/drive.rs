//! Drives one call over HTTP: the POST, its response, and the streams that resume it.
//! Read `response_reader` for one response, `task_follower` for a call that became the upstream's task. The exchange's
//! owner polls one future. All events but the last go through the call's queue, which the session's stream feeds.
//! Also sends the gateway's own requests beside a call, in its session. Other messages on their streams go to the call.

pub(super) mod response_reader;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::SetOnce;
use tokio::time::Instant;

use super::resume_token::StreamPositions;
use crate::dialect::relay_core_2025_11_25::{self as relay, TaskCallResult, UpstreamTaskSupport};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::answer_body::AnswerResult;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use crate::upstream::own_ids;
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::reply::{
    self, AcceptedResponse, BodyReadError, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal,
};
use crate::upstream::session::calls::SessionCall;
use crate::upstream::session::own::SessionLease;
use crate::upstream::session::pool::SessionPool;
use crate::upstream::session::{SessionKey, UpstreamLink, UpstreamSession};
use crate::upstream::{BeginError, CallContext, ExchangeError, ExchangeEvent, ForwardedHeaders, SubtaskQuota};
use crate::wire::{Payload, envelope};
use response_reader::{AwaitedRequest, RpcResult, StreamEnd, drain};

/// How long a call may lack a stream before it is lost (U24).
const RESUME_WINDOW: Duration = Duration::from_secs(30);
/// How long an upstream may be silent if the result is ready.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long resuming a stream is tried then; the request can be repeated instead.
const TAKE_UP_MAX: Duration = Duration::from_secs(2);

pub(super) enum CallStart {
    Post {
        message: Bytes,
        handed_over: HandedOver,
    },
    /// Another process sent it; its stream is resumed.
    Resume,
    /// The upstream made a task of it for another process; the task is polled.
    Task,
}

#[derive(Debug)]
pub(super) enum SessionSource {
    Pool { pool: Arc<SessionPool>, key: SessionKey },
    Own(Arc<SessionLease>),
}

impl SessionSource {
    pub(super) async fn session(
        &self,
        link: &Arc<UpstreamLink>,
        forwarded: &ForwardedHeaders,
    ) -> Result<Arc<UpstreamSession>, BeginError> {
        match self {
            Self::Pool { pool, key } => pool.session(key, forwarded).await,
            Self::Own(lease) => Ok(lease.session(link).await),
        }
    }

    /// A session that another process opened.
    pub(super) fn adopt(
        &self,
        link: &Arc<UpstreamLink>,
        credentials: SessionHeaders,
        tasks: UpstreamTaskSupport,
    ) -> Arc<UpstreamSession> {
        match self {
            Self::Pool { pool, key } => pool.adopt(key, credentials, tasks),
            Self::Own(lease) => {
                let SessionHeaders { session, version, .. } = credentials;
                lease.adopt(link, SessionBinding { session, version, tasks })
            }
        }
    }

    pub(super) fn owner(&self) -> &Principal {
        match self {
            Self::Pool { key, .. } => &key.principal,
            Self::Own(lease) => lease.counted_as(),
        }
    }

    async fn renew(
        &self,
        lost: &Arc<UpstreamSession>,
        forwarded: &ForwardedHeaders,
    ) -> Result<Arc<UpstreamSession>, GatewayFault> {
        match self {
            Self::Pool { pool, key } => pool.replace(key, lost, forwarded).await.map_err(BeginError::into_fault),
            Self::Own(lease) => lease.renew(lost).await,
        }
    }
}

/// One call, shared by its exchange and the future that runs it. The last drop removes it from its session.
#[derive(Debug)]
pub(super) struct HttpCall {
    pub(super) call: Arc<SessionCall>,
    session: Mutex<Arc<UpstreamSession>>,
    pub(super) source: SessionSource,
    first_byte: Option<Duration>,
    forwarded: ForwardedHeaders,
    pub(super) began: Instant,
    pub(super) deadline: Option<Instant>,
    /// Whether the owner receives events of the upstream's task.
    pub(super) is_watched: bool,
    pub(super) subtasks: SubtaskQuota,
    /// The upstream's tasks above this one, nearest first.
    pub(super) above: Arc<[Arc<str>]>,
    pub(super) positions: Mutex<StreamPositions>,
    /// Set with the response's head: the upstream knows the call.
    pub(super) head: SetOnce<()>,
}

impl Drop for HttpCall {
    fn drop(&mut self) {
        self.leave();
    }
}

impl HttpCall {
    pub(super) fn new(
        call: Arc<SessionCall>,
        session: Arc<UpstreamSession>,
        source: SessionSource,
        context: &CallContext,
        above: Arc<[Arc<str>]>,
    ) -> Arc<Self> {
        session.calls.enter(&call);
        let (began, deadline) = context.span();
        Arc::new(Self {
            call,
            session: Mutex::new(session),
            source,
            first_byte: context.timeouts.first_byte,
            forwarded: context.forwarded.clone(),
            began,
            deadline,
            is_watched: context.native_task.is_watched(),
            subtasks: context.subtasks.clone(),
            above,
            positions: Mutex::default(),
            head: SetOnce::new(),
        })
    }

    pub(super) fn session(&self) -> Arc<UpstreamSession> {
        Arc::clone(&self.session.lock())
    }

    /// Keeps its session open at the upstream after this process: some upstreams end the tasks of a session with it (T-31).
    pub(super) fn keep_for_later(&self) {
        self.session().keep_for_later();
        if let SessionSource::Own(lease) = &self.source {
            lease.keep_for_later();
        }
    }

    /// Nothing is routed to the call afterwards.
    pub(super) fn leave(&self) {
        self.session.lock().calls.leave(&self.call);
    }

    pub(super) async fn run(self: Arc<Self>, start: CallStart) -> ExchangeEvent {
        let outcome = match start {
            CallStart::Post { message, handed_over } => match self.post(message, &handed_over).await {
                Ok(answer) if self.call.may_be_task => Box::pin(self.maybe_relay(answer)).await,
                outcome => outcome.and_then(last),
            },
            CallStart::Resume => self.resume().await.and_then(last),
            CallStart::Task => Box::pin(self.relay(None)).await,
        };
        self.leave();
        outcome.unwrap_or_else(|fault| ExchangeEvent::Lost(ExchangeError(fault)))
    }

    async fn post(&self, message: Bytes, handed_over: &HandedOver) -> Result<RpcResult, GatewayFault> {
        let session = self.session();
        let response = self.head(&session, message.clone(), handed_over).await?;
        // Boxed: the code after the long wait needs more memory than the wait.
        let mut opened = Box::pin(session.open(response, &self.call.id, &self.call.limits)).await;
        if matches!(opened, Err(ResponseRefusal::SessionLost)) {
            opened = Box::pin(self.post_again(&session, message)).await?;
        }
        let _ = self.head.set(());
        match opened {
            Ok(AcceptedResponse::Json(body)) => Box::pin(self.read(body, &self.awaited())).await,
            Ok(AcceptedResponse::Events(events)) => Box::pin(self.follow(events)).await,
            Err(ResponseRefusal::Rpc(error)) => Ok(Err(error)),
            Err(ResponseRefusal::Gateway(fault)) => Err(fault),
            Err(ResponseRefusal::SessionLost) => Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown)),
        }
    }

    /// Sends the call once more: the upstream refused it with its session (U04).
    async fn post_again(
        &self,
        lost: &Arc<UpstreamSession>,
        message: Bytes,
    ) -> Result<Result<AcceptedResponse, ResponseRefusal>, GatewayFault> {
        // Boxed: few sessions are lost, and each call would hold the memory of this.
        let session = Box::pin(self.renew(lost)).await?;
        let response = self.head(&session, message, &HandedOver::default()).await?;
        Ok(session.open(response, &self.call.id, &self.call.limits).await)
    }

    /// Returns the response's head. A server that responds in JSON sends it only after its tool has ended.
    async fn head(&self, session: &UpstreamSession, message: Bytes, handed_over: &HandedOver) -> AnswerResult {
        let with = |post: OutgoingRequest| post.forwarding(self.forwarded.clone()).kept_if(self.call.limits.is_kept());
        let head = session.post_with(message, with, handed_over);
        let Some(max) = self.first_byte else { return head.await };
        tokio::time::timeout(max, head).await.unwrap_or_else(|_| {
            let executed = if handed_over.initialized() { Executed::Unknown } else { Executed::No };
            Err(GatewayFault::new(Reason::UpstreamTimeout, executed))
        })
    }

    pub(super) async fn renew(&self, lost: &Arc<UpstreamSession>) -> Result<Arc<UpstreamSession>, GatewayFault> {
        let session = self.source.renew(lost, &self.forwarded).await?;
        {
            let mut current = self.session.lock();
            if !Arc::ptr_eq(&current, lost) {
                // Another request of the call was first: its questions are of the new session.
                return Ok(Arc::clone(&current));
            }
            current.calls.leave(&self.call);
            session.calls.enter(&self.call);
            *current = Arc::clone(&session);
        }
        for ask in self.call.take_open_questions() {
            self.call.queue(ExchangeEvent::Withdrawn { ask }).await;
        }
        Ok(session)
    }

    /// Reads the call's stream, and the streams that resume it, until the response.
    async fn follow(&self, mut events: EventStream) -> Result<RpcResult, GatewayFault> {
        let awaited = self.awaited();
        let mut malformed = 0;
        let mut patience = RESUME_WINDOW;
        loop {
            match self.read_stream(&mut events, &awaited, &mut malformed).await? {
                StreamEnd::Answered(answer) => {
                    drain(&self.session().link, events);
                    return Ok(answer);
                }
                // The server may have ended the stream on purpose (SEP-1699), or the connection broke.
                StreamEnd::Broke { any } => {
                    if any {
                        patience = RESUME_WINDOW;
                    }
                    let broken = Instant::now();
                    let first = self.positions.lock().read.pause();
                    events = match Box::pin(self.reopen(&awaited, patience, first)).await {
                        Ok(events) => events,
                        // An unreadable event may have been the response.
                        Err(fault) if malformed > 0 => {
                            return Err(GatewayFault { reason: Reason::UpstreamMalformed, ..fault });
                        }
                        Err(fault) => return Err(fault),
                    };
                    patience = patience.saturating_sub(broken.elapsed());
                }
            }
        }
    }

    fn awaited(&self) -> AwaitedRequest<'_> {
        AwaitedRequest {
            id: &self.call.id,
            limits: self.call.limits.clone(),
            positions: &self.positions,
            call: Some(&self.call),
        }
    }

    async fn resume(&self) -> Result<RpcResult, GatewayFault> {
        let _ = self.head.set(());
        // The stream broke with an earlier process, so wait only for the server's `retry`.
        let first = self.positions.lock().read.retry.unwrap_or_default();
        let events = Box::pin(self.reopen(&self.awaited(), RESUME_WINDOW, first)).await?;
        self.follow(events).await
    }

    /// Resumes a stream after its last event: after `pause`, then repeatedly within `patience` (T-29).
    pub(super) async fn reopen(
        &self,
        awaited: &AwaitedRequest<'_>,
        patience: Duration,
        mut pause: Duration,
    ) -> Result<EventStream, GatewayFault> {
        let until = Instant::now() + patience;
        loop {
            let point = awaited.positions.lock().read.clone();
            let resumable = point.last_event.as_ref().filter(|_| Instant::now() < until);
            let Some(last_event) = resumable else { return Err(BodyReadError::Closed.into_fault()) };
            tokio::time::sleep(pause).await;
            pause = point.pause();
            let session = self.session();
            let get = session.credentials.get(Some(last_event));
            let handed_over = HandedOver::default();
            let head = tokio::time::timeout(RESUME_WINDOW, session.link.transport.send(&get, &handed_over));
            let Ok(Ok(response)) = head.await else { continue };
            match reply::open(response, ErrorAddressee::Request(awaited.id), &awaited.limits).await {
                Ok(AcceptedResponse::Events(events)) => return Ok(events),
                Err(ResponseRefusal::Gateway(fault)) if fault.reason == Reason::UpstreamAuth => return Err(fault),
                Ok(AcceptedResponse::Json(_)) | Err(_) => (),
            }
        }
    }
}

/// The last event. A task is no result: the client could not use the server's id of it (T-67).
pub(super) fn last(answer: RpcResult) -> Result<ExchangeEvent, GatewayFault> {
    match answer.as_ref().map(relay::created) {
        Ok(TaskCallResult::Task(_)) => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes)),
        Ok(_) | Err(_) => Ok(answer.map_or_else(ExchangeEvent::Faulted, ExchangeEvent::Returned)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerWait {
    Short,
    /// The response comes once the task has news.
    Endless,
}

enum SideRequestError {
    SessionLost,
    Gateway(GatewayFault),
}

from_variant!(SideRequestError::Gateway(GatewayFault));

impl HttpCall {
    /// Sends a request that is safe to repeat. If the upstream lost the session, moves the call to another and repeats
    /// the request there. A fault concerns this request, not the call.
    pub(super) async fn request_beside_call(
        &self,
        method: &str,
        params: &Payload,
        patience: AnswerWait,
    ) -> Result<RpcResult, GatewayFault> {
        let session = self.session();
        let asked = match self.request_in(&session, method, params, patience).await {
            Err(SideRequestError::SessionLost) => {
                let session = Box::pin(self.renew(&session)).await?;
                self.request_in(&session, method, params, patience).await
            }
            asked => asked,
        };
        asked.map_err(|trouble| match trouble {
            SideRequestError::Gateway(fault) => fault,
            SideRequestError::SessionLost => GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown),
        })
    }

    async fn request_in(
        &self,
        session: &UpstreamSession,
        method: &str,
        params: &Payload,
        patience: AnswerWait,
    ) -> Result<RpcResult, SideRequestError> {
        let id = own_ids::mint();
        let message = envelope::request(&id, method, Some(params));
        let handed_over = HandedOver::default();
        let head = session.post_beside(message, &handed_over);
        let (response, idle, take_up_max) = match patience {
            AnswerWait::Endless => (head.await?, None, SILENCE_MAX),
            AnswerWait::Short => {
                let head = tokio::time::timeout(SILENCE_MAX, head).await;
                (head.map_err(|_| BodyReadError::Idle.into_fault())??, Some(SILENCE_MAX), TAKE_UP_MAX)
            }
        };
        let limits = ReadLimits { idle, ..self.call.limits.clone() };
        let positions = Mutex::default();
        let awaited = AwaitedRequest { id: &id, limits: limits.clone(), positions: &positions, call: None };
        match session.open(response, &id, &limits).await {
            Ok(AcceptedResponse::Json(body)) => Ok(self.read(body, &awaited).await?),
            Ok(AcceptedResponse::Events(mut events)) => loop {
                match self.read_stream(&mut events, &awaited, &mut 0).await? {
                    StreamEnd::Answered(answer) => {
                        drain(&session.link, events);
                        return Ok(answer);
                    }
                    StreamEnd::Broke { .. } => {
                        let pause = positions.lock().read.pause();
                        events = Box::pin(self.reopen(&awaited, take_up_max, pause)).await?;
                    }
                }
            },
            Err(ResponseRefusal::Rpc(error)) => Ok(Err(error)),
            Err(ResponseRefusal::Gateway(fault)) => Err(fault.into()),
            Err(ResponseRefusal::SessionLost) => Err(SideRequestError::SessionLost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn returned_bytes<A, B, R>(_: fn(A, B) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn a_waiting_call_has_no_memory_for_its_answer_yet() {
        let bytes = returned_bytes(HttpCall::run);
        assert!(bytes <= 2_048, "{bytes}");
    }
}
