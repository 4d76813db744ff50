//! Serves session clients of one upstream: versions up to 2025-11-25 with an `initialize` handshake. Each client has
//! its own upstream session. The session's id is a sealed token that names it, so that a restart loses no table. This
//! module finds the session; `pipe` forwards its messages, and `tasks` serves requests about tasks.

pub(super) mod bridge;
mod bridged_call;
mod called_items;
mod fallback;
mod forwarded_questions;
mod handshake;
pub(super) mod in_flight;
mod known_tools;
mod pipe;
pub(super) mod session_cache;
pub(super) mod session_streams;
pub(super) mod tasks;
pub(super) mod upstream_tasks;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures_util::future::OptionFuture;
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio_util::sync::CancellationToken;

use super::answer::{Addressee, accepted, addressee, bare, mark, too_many};
use super::array_answer::{self, ArrayBounds, ArrayItems};
use super::call_stream::replay_buffer::ReplayBuffers;
use super::catalog::{Catalog, InvalidTools};
use super::fallback::FallbackToolService;
use super::headers;
use super::http::{AcceptedTypes, FaceResponse, Inbound, MessageChannel};
use super::named_item::tool_name;
use super::pipe::forward::PipeMetrics;
use super::sealed::Sealer;
use super::served::Served;
use crate::dialect::RequestError;
use crate::line_budget::LogLimit;
use crate::task::{Caller, Reason};
use crate::upstream::own_ids::is_own;
use crate::upstream::session::own::OwnSessions;
use crate::wire::envelope::{self, Request, Response};
use crate::wire::{Message, MessageText, ProtocolVersion, RequestId, method};
use bridged_call::BridgedQuestions;
use forwarded_questions::ForwardedQuestions;
use in_flight::{InFlight, RequestStage};
use pipe::{OneWayKind, PipedMessage};
use session_cache::{ClientSession, ClientSessionCache, SessionAsker};
use session_streams::SessionStreams;
use tasks::{SessionTasksState, TaskCall, TaskRequestContext};

pub(super) const ALLOWED: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");

#[derive(Debug)]
pub(super) struct SessionFaceState {
    pub(super) served: Arc<Served>,
    pub(super) sessions: ClientSessionCache,
    /// The clients' sessions at the server.
    pub(super) own: Arc<OwnSessions>,
    pub(super) paused: pipe::PausedCalls,
    pub(super) open: SessionRegistry,
    pub(super) meter: PipeMetrics,
    pub(super) tasks: SessionTasksState,
    pool_tools: Catalog,
    /// Of a server without sessions, if clients may get tools in place of tasks.
    bridged_tools: Option<Catalog>,
    invalid_tools: InvalidTools,
    fallback: Option<Arc<FallbackToolService>>,
    tools: known_tools::KnownTools,
    called: called_items::CalledItems,
    /// Whether the server issued no id for the last opened session; false before the first.
    gives_no_ids: AtomicBool,
    /// A server may ask thousands of questions that its clients cannot answer.
    refusals_logged: LogLimit,
}

#[derive(Clone, Debug)]
pub struct SessionFace {
    shared: Arc<SessionFaceState>,
}

/// Open requests, streams and questions of sessions in this process, by nonce.
#[derive(Debug, Default)]
pub(super) struct SessionRegistry {
    pub(super) in_flight: Arc<InFlight>,
    /// Streams on which the gateway can send messages itself.
    pub(super) streams: Arc<SessionStreams>,
    /// Buffered events of calls, for clients that lost their streams.
    pub(super) replays: ReplayBuffers,
    /// Open questions; each ends with its call.
    questions: Arc<BridgedQuestions>,
    forwarded_questions: ForwardedQuestions,
}

impl SessionRegistry {
    /// Plain calls end with their session: no client could get their responses (T-81).
    fn end(&self, nonce: u128) {
        self.streams.end(nonce);
        self.replays.remove(nonce);
        self.in_flight.end_session(nonce);
    }
}

pub(super) enum SessionLookupError {
    /// The request has no session id.
    Missing,
    /// The session is another client's, or has ended.
    Unknown,
    Header(RequestError),
}

impl SessionFace {
    pub fn new(served: Arc<Served>) -> Self {
        let meter = PipeMetrics::of(served.channel.name());
        let tasks = SessionTasksState::new(&served.settings);
        let (sessions, paused) = (ClientSessionCache::new(), pipe::PausedCalls::default());
        let pool_tools = Catalog::new(Arc::clone(&served.pool));
        let fallback = FallbackToolService::new(served.upstream.name(), &served.settings.rules);
        let bridged_tools = fallback.is_some().then(|| Catalog::new(Arc::clone(&served.stateless)));
        let own = OwnSessions::new(
            Arc::clone(&served.channel),
            served.scope.clone(),
            served.engine.access().clone(),
            served.engine.limits().clone(),
            served.settings.result_bytes_max,
            Arc::clone(&served.memories),
        );
        let tools = known_tools::KnownTools::default();
        let called = called_items::CalledItems::new();
        let shared = SessionFaceState {
            served,
            sessions,
            own,
            paused,
            open: SessionRegistry::default(),
            meter,
            tasks,
            pool_tools,
            bridged_tools,
            invalid_tools: InvalidTools::default(),
            fallback,
            tools,
            called,
            gives_no_ids: AtomicBool::default(),
            refusals_logged: LogLimit::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    pub async fn evict_expired(&self, stop: &CancellationToken) {
        let bridged = self.shared.bridged_tools.as_ref().map(|tools| tools.evict_expired(stop));
        tokio::join!(self.shared.pool_tools.evict_expired(stop), OptionFuture::from(bridged));
    }

    /// A piped message is awaited without its HTTP request: the headers hold their read buffer. Dropping the future
    /// means that the client disconnected: the upstream's stream is closed, nothing is cancelled (T-81).
    pub async fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
        if let Message::Request(request) = &*message
            && request.method == method::INITIALIZE
        {
            // Boxed, as below: a rare case should not enlarge every request's future.
            return Box::pin(handshake::open(&self.shared, &inbound, request)).await;
        }
        let addressee = addressee(message.request().map(|request| &request.id), inbound.accepted);
        let session = match self.session_for(&inbound) {
            Ok(session) => session,
            Err(none) => return none.answer(&addressee),
        };
        if let Message::Request(request) = &*message {
            if self.shared.withholds_items(&inbound.caller, request)
                && let Some(hidden) = Box::pin(self.shared.hidden(&session, &inbound, request)).await
            {
                return hidden.answer(request, &inbound);
            }
            self.shared.note_called(&session, request);
        }
        let asking = |session| TaskRequestContext {
            session,
            caller: &inbound.caller,
            headers: &inbound.headers,
            accepted: inbound.accepted,
            arrived: inbound.received_at,
        };
        match route(&self.shared, &session, *message, &inbound) {
            Ok(MessageRoute::Piped(message)) => {
                let accepted = inbound.accepted;
                inbound.finish();
                pipe::post(&self.shared, session, message, accepted).await
            }
            Ok(MessageRoute::EngineCall(request)) => {
                Box::pin(upstream_tasks::post(&self.shared, session, request, &inbound)).await
            }
            Ok(MessageRoute::GatewayTool(request)) => {
                match Box::pin(fallback::post(&self.shared, &session, request, &inbound)).await {
                    Ok(answer) => answer,
                    Err(request) if session.is_bridged() => {
                        Box::pin(bridge::post(&self.shared, session, Message::Request(request), &inbound)).await
                    }
                    Err(request) => Box::pin(upstream_tasks::post(&self.shared, session, request, &inbound)).await,
                }
            }
            Ok(MessageRoute::Bridged(message)) => {
                Box::pin(bridge::post(&self.shared, session, message, &inbound)).await
            }
            Ok(MessageRoute::TaskCall(call)) => Box::pin(self.shared.call(asking(session), call)).await,
            Ok(MessageRoute::TaskMethod(request)) => Box::pin(self.shared.task_method(asking(session), &request)).await,
            Ok(MessageRoute::TaskAnswer(response)) => {
                Box::pin(self.shared.take_answer(&inbound.caller, response)).await
            }
            Ok(MessageRoute::TaskCancel(id)) => {
                Box::pin(self.shared.withdraw(&session, &id)).await;
                accepted()
            }
            Ok(MessageRoute::Ignored) => accepted(),
            Err(complaint) => refuse(&addressee, &complaint),
        }
    }

    /// Answers an array of messages (2025-03-26 only).
    pub(super) async fn post_batch(&self, inbound: &Inbound, items: ArrayItems) -> FaceResponse {
        let served = &self.shared.served;
        let bounds = ArrayBounds { result_bytes_max: served.settings.result_bytes_max, parallel: envelope::BATCH_MAX };
        let face = self.clone();
        array_answer::respond(served, inbound, items, bounds, move |item, message| {
            let face = face.clone();
            async move { face.post(item, message).await }
        })
        .await
    }

    pub(super) fn client_version(&self, inbound: &Inbound) -> Result<ProtocolVersion, SessionLookupError> {
        self.session(inbound).map(|session| session.token.client_version)
    }

    pub async fn get(&self, inbound: &Inbound) -> FaceResponse {
        if matches!(inbound.accepted, AcceptedTypes::Json | AcceptedTypes::Neither) {
            return bare(StatusCode::NOT_ACCEPTABLE);
        }
        match self.session(inbound) {
            Ok(session) => self.get_in(session, inbound).await,
            Err(none) => none.answer(&addressee(None, inbound.accepted)),
        }
    }

    /// Streams take a permit of their principal; a client over HTTP+SSE or stdio holds one already.
    async fn get_in(&self, session: ClientSession, inbound: &Inbound) -> FaceResponse {
        if inbound.is_counted || inbound.carriage == MessageChannel::Stream {
            return self.open_stream(session, inbound).await;
        }
        let permit = match self.shared.served.listeners.take(&inbound.counted_as(), self.shared.served.channel.name()) {
            Ok(permit) => permit,
            Err(fault) if fault.reason == Reason::Draining => return bare(StatusCode::SERVICE_UNAVAILABLE),
            Err(fault) => return too_many(&fault),
        };
        self.open_stream(session, inbound).await.map(|body| permit.keep(body))
    }

    async fn open_stream(&self, session: ClientSession, inbound: &Inbound) -> FaceResponse {
        if session.is_bridged() {
            return bridge::get(&self.shared, session, inbound).await;
        }
        let last_event = inbound.headers.get(headers::LAST_EVENT_ID).cloned();
        match upstream_tasks::resume_own_stream(&self.shared, &session, &inbound.caller, last_event.as_ref()) {
            Some(rest) => rest,
            // Clients of such a server know only event ids of the gateway.
            None if last_event.is_some() && self.shared.served.channel.makes_streams() => bare(StatusCode::BAD_REQUEST),
            None => pipe::get(&self.shared, session, &inbound.caller, last_event).await,
        }
    }

    pub async fn delete(&self, inbound: &Inbound) -> FaceResponse {
        let session = match self.session(inbound) {
            Ok(session) => session,
            Err(none) => return none.answer(&addressee(None, AcceptedTypes::Json)),
        };
        // Before the upstream ends its calls, and before queued messages reach it (B240).
        self.shared.open.in_flight.mark_unwanted(session.token.nonce, session.counted_as());
        if session.is_bridged() { bridge::delete(&self.shared, &session) } else { self.shared.end(&session).await }
    }

    pub(super) fn has_in_flight(&self, nonce: u128, id: &RequestId) -> bool {
        self.shared.open.in_flight.knows_any(nonce, id) || self.shared.tasks.has_in_flight(nonce, id)
    }

    pub(super) fn has_ended(&self, nonce: u128) -> bool {
        self.shared.sessions.has_ended(nonce)
    }

    pub(super) fn is_asked_by_a_task(&self, id: &RequestId) -> bool {
        self.shared.is_of_a_task(id)
    }

    /// Accepts the answer to a task's question in any session of the principal.
    pub(super) async fn take_answer(&self, caller: &Caller, response: Response) -> FaceResponse {
        Box::pin(self.shared.take_answer(caller, response)).await
    }

    /// For a server without session ids, a message without a session gets a new session.
    fn session_for(&self, inbound: &Inbound) -> Result<ClientSession, SessionLookupError> {
        match self.session(inbound) {
            Err(SessionLookupError::Missing) => {
                let mut session =
                    handshake::session_without_id(&self.shared, inbound).ok_or(SessionLookupError::Missing)?;
                session.own.forwarded = inbound.forwarded.clone();
                Ok(session)
            }
            session => session,
        }
    }

    fn session(&self, inbound: &Inbound) -> Result<ClientSession, SessionLookupError> {
        let served = &self.shared.served;
        let mut session = session_of(inbound, served.channel.name(), &served.sealer, &self.shared.sessions)?;
        session.own.forwarded = inbound.forwarded.clone();
        Ok(session)
    }
}

/// The session of a request, if its principal opened it for `opened_for`: an upstream or an endpoint.
pub(super) fn session_of(
    inbound: &Inbound,
    opened_for: &str,
    sealer: &Sealer,
    sessions: &ClientSessionCache,
) -> Result<ClientSession, SessionLookupError> {
    check_version(&inbound.headers).map_err(in_session)?;
    let sealed = headers::single(&inbound.headers, &headers::SESSION_ID).map_err(in_session)?;
    let sealed = sealed.ok_or(SessionLookupError::Missing)?;
    let open = || sealer.open_session(&inbound.caller.principal, sealed).filter(|token| token.upstream == opened_for);
    sessions.open(sealed, opened_for, SessionAsker::of(inbound), open).ok_or(SessionLookupError::Unknown)
}

/// The refusal of an array in a session of another version than 2025-03-26, and without a session.
pub(super) fn refusal_of_array(
    version: Result<ProtocolVersion, SessionLookupError>,
    inbound: &Inbound,
) -> Option<FaceResponse> {
    let addressee = addressee(None, inbound.accepted);
    match version {
        Ok(version) if version.traits().has_batches => None,
        Ok(_) => {
            let what = Cow::Borrowed("a batch is accepted in sessions of 2025-03-26 only");
            Some(refuse(&addressee, &RequestError::NotARequest(what)))
        }
        Err(none) => Some(none.answer(&addressee)),
    }
}

impl SessionLookupError {
    pub(super) fn answer(&self, addressee: &Addressee) -> FaceResponse {
        let (status, complaint) = match self {
            Self::Missing => (
                StatusCode::BAD_REQUEST,
                RequestError::not_a_request(
                    "Mcp-Session-Id is missing: send it, or an Mcp-Protocol-Version without sessions (2026-07-28)",
                ),
            ),
            Self::Unknown => (StatusCode::NOT_FOUND, RequestError::UnknownSession),
            Self::Header(complaint) => (StatusCode::BAD_REQUEST, complaint.clone()),
        };
        addressee.error(status, &complaint.to_error(addressee.version))
    }
}

/// Before 2026-07-28 there is no code for a header that differs from the body: such a request is malformed.
fn in_session(complaint: RequestError) -> SessionLookupError {
    SessionLookupError::Header(if let RequestError::Header(what) = complaint {
        RequestError::NotARequest(what)
    } else {
        complaint
    })
}

/// An unknown version is refused (LEG-05); a missing one is accepted, as the session has it.
fn check_version(all: &HeaderMap) -> Result<(), RequestError> {
    match headers::single(all, &headers::PROTOCOL_VERSION)? {
        Some(text) if ProtocolVersion::parse(text).is_none() => {
            Err(RequestError::header("mcp-protocol-version names an unknown version"))
        }
        Some(_) | None => Ok(()),
    }
}

/// An error for a request has status 200: clients of these versions would drop their connection otherwise.
pub(super) fn refuse(addressee: &Addressee, complaint: &RequestError) -> FaceResponse {
    let status = if addressee.id.is_some() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    mark(addressee.error(status, &complaint.to_error(addressee.version)), complaint)
}

enum MessageRoute {
    /// The bridge: the server has no sessions, or the gateway makes the request itself.
    Bridged(Message),
    /// A plain call of a tool that the server may run only as a task.
    EngineCall(Request),
    GatewayTool(Request),
    Piped(PipedMessage),
    TaskCall(TaskCall),
    TaskMethod(Request),
    TaskCancel(RequestId),
    TaskAnswer(Response),
    /// The message is for the gateway and has no effect.
    Ignored,
}

fn route(
    shared: &SessionFaceState,
    session: &ClientSession,
    message: Message,
    inbound: &Inbound,
) -> Result<MessageRoute, RequestError> {
    let (bytes, arrived) = (inbound.body.clone(), inbound.received_at);
    let is_driven = |id: RequestId| shared.open.in_flight.knows(session.token.nonce, &id, RequestStage::Driven);
    vet(&message)?;
    match message {
        Message::Request(request) => {
            let is_withheld = || names_withheld_tool(shared, &request, &inbound.caller);
            if shared.served.settings.rules.any_bounds_arguments() && !is_withheld() {
                shared.served.check_call(&inbound.caller.principal, &request)?;
            }
            if tasks::is_served_method(shared.served.settings.drafts, &request.method) {
                return Ok(MessageRoute::TaskMethod(request));
            }
            if fallback::called(shared, session, &request).is_some() {
                return Ok(MessageRoute::GatewayTool(request));
            }
            // Checked cheaply: most calls go through the pipe, which parses them itself.
            let wish = match request.params.object().filter(|_| request.method == method::TOOLS_CALL) {
                Some(params) => match tasks::wish(&shared.served.settings, session, params, inbound.accepted) {
                    Err(RequestError::NeedsTask | RequestError::TakesNoTask) if is_withheld() => None,
                    wish => wish?,
                },
                None => None,
            };
            if let Some(wish) = wish {
                let tool = tool_name(request.params.object())?.into_owned();
                return Ok(MessageRoute::TaskCall(TaskCall { request, tool, wish }));
            }
            if session.is_bridged() {
                return Ok(MessageRoute::Bridged(Message::Request(request)));
            }
            if upstream_tasks::may_drive(shared, session, &request, &inbound.arrival)
                || fallback::may_drive(shared, session, &request)
            {
                return Ok(MessageRoute::EngineCall(request));
            }
            pipe::request(request, bytes, arrived, &shared.served).map(MessageRoute::Piped)
        }
        Message::Response(response) if response.id.as_ref().is_some_and(|id| shared.is_of_a_task(id)) => {
            Ok(MessageRoute::TaskAnswer(response))
        }
        Message::Notification(notification)
            if notification.cancelled().is_some_and(|id| shared.tasks.has_in_flight(session.token.nonce, &id)) =>
        {
            Ok(notification.cancelled().map_or(MessageRoute::Ignored, MessageRoute::TaskCancel))
        }
        other @ (Message::Notification(_) | Message::Response(_)) if session.is_bridged() => {
            Ok(MessageRoute::Bridged(other))
        }
        Message::Response(response) if response.id.as_ref().is_some_and(is_own) => {
            Ok(MessageRoute::Bridged(Message::Response(response)))
        }
        // The server does not know the ids of requests that the gateway makes itself.
        Message::Notification(notification) if notification.cancelled().is_some_and(is_driven) => {
            Ok(MessageRoute::Bridged(Message::Notification(notification)))
        }
        other @ (Message::Notification(_) | Message::Response(_)) => {
            Ok(one_way(other, bytes).map_or(MessageRoute::Ignored, MessageRoute::Piped))
        }
    }
}

/// Whether a call's tool is withheld from its caller: it gets an unknown tool's response, and no other rule applies.
fn names_withheld_tool(shared: &SessionFaceState, request: &Request, caller: &Caller) -> bool {
    let params = request.params.object().filter(|_| request.method == method::TOOLS_CALL);
    let tool = params.and_then(|params| params.get_str("name"));
    tool.is_some_and(|tool| !shared.served.engine.access().has_tool(caller, shared.served.upstream.name(), &tool))
}

/// `None` for a request, and for a cancel of one of the gateway's own.
fn one_way(message: Message, bytes: Bytes) -> Option<PipedMessage> {
    match message {
        Message::Notification(notification) => {
            let cancelled = notification.cancelled();
            let kind = match notification.is_about_a_request() {
                true => OneWayKind::AboutRequest,
                false => OneWayKind::Notification,
            };
            let text = MessageText::with_message(bytes, Arc::new(Message::Notification(notification)));
            match cancelled {
                Some(id) if is_own(&id) => None,
                Some(id) => Some(PipedMessage::Cancel(id, text)),
                None => Some(PipedMessage::Notification(kind, text)),
            }
        }
        Message::Response(response) => {
            let id = response.id.clone();
            Some(PipedMessage::Response(id, MessageText::with_message(bytes, Arc::new(Message::Response(response)))))
        }
        Message::Request(_) => None,
    }
}

pub(super) fn not_allowed(method: &Method) -> FaceResponse {
    let mut response = bare(StatusCode::METHOD_NOT_ALLOWED);
    let others = if *method == Method::GET { "POST, DELETE" } else { "GET, POST" };
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(others));
    response
}

/// Members of `params` that affect a request's processing (B85).
const KNOWN_MEMBERS: [&str; 8] = ["name", "arguments", "task", "taskId", "cursor", "uri", "ref", "_meta"];

pub(super) fn vet(message: &Message) -> Result<(), RequestError> {
    match message {
        Message::Request(request) if is_own(&request.id) => {
            Err(RequestError::not_a_request("this id is reserved for the gateway's requests; choose another"))
        }
        Message::Request(request) => {
            let case_variant = request.params.object().and_then(|params| params.case_variant(&KNOWN_MEMBERS));
            let complaint = |name| RequestError::Params(Cow::Owned(format!("{name} is spelt in another case")));
            case_variant.map_or(Ok(()), |name| Err(complaint(name)))
        }
        Message::Notification(notification) if !notification.method.starts_with("notifications/") => {
            Err(RequestError::not_a_request("this method is a request; send it with an id"))
        }
        Message::Notification(_) => Ok(()),
        Message::Response(response) if response.id.is_none() => {
            Err(RequestError::not_a_request("a response needs the id of its request"))
        }
        Message::Response(_) => Ok(()),
    }
}
