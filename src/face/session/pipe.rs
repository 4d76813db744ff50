//! The pipe: forwards messages between a session client and its upstream session. It needs no runner and no row. A call
//! takes a permit and has a deadline; a response of any size is streamed. Read [`PipeForward::attempt`] first, then
//! `face::pipe::forward` for the response, and `stream_edits` for its edits.

mod client_filter;
mod paused_calls;
mod resumable;
mod stream_edits;

use std::borrow::Cow;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt};
use http::{HeaderValue, Method, StatusCode};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::{Body, Frame};
use serde_json::json;
use tokio::time::Instant;
use tracing::Instrument;

use super::forwarded_questions::ForwardedQuestion;
use super::in_flight::RequestStage;
use super::session_cache::ClientSession;
use super::session_streams::SessionStream;
use super::{SessionFaceState, not_allowed};
use crate::answer_budget::as_one_request;
use crate::audit::{AuditAct, AuditEvent, arguments_of};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::plain;
use crate::face::answer::{addressee, bare};
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::{LateAnswer, RequestAnswer, status, unanswered};
use crate::face::call_stream::{CallMessage, CallMessages, respond};
use crate::face::http::{AcceptedTypes, FaceResponse, ResponseBody, ending_with, is_passing};
use crate::face::named_item::tool_name;
use crate::face::pipe::body::{AnsweredRequest, BodyForm, PipeBody, PipeTimeouts, StreamPause, in_time};
use crate::face::pipe::forward::{HeldCall, PipeEra, PipeMetrics, PipedCall};
use crate::face::rewrite;
use crate::face::served::Served;
use crate::metric;
use crate::task::{Caller, Executed, GatewayFault, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::raw_channel::{RawMethod, RawRequest};
use crate::upstream::reply::{JudgedResponse, ReadLimits};
use crate::upstream::session::own::{PreferenceChange, ResumedStreamKind, StreamRefusal};
use crate::upstream::{Answer, ForwardedHeaders};
use crate::waits::or_pending;
use crate::wire::envelope::{self, Request, Response};
use crate::wire::framing::{BodyPart, SseDecoder};
use crate::wire::list_pages::sent_cursor;
use crate::wire::{Message, MessageText, Payload, RequestId, ScanLimits, method, progress};
use client_filter::ClientFilter;
pub(super) use paused_calls::PausedCalls;
use paused_calls::{AwaitedCall, ResumingCall};
use resumable::RequestOrigin;
use stream_edits::{LateEdits, StreamEdits, ToolListEdit};

/// The longest wait until a cancellation is accepted.
const CANCEL_MAX: Duration = Duration::from_secs(5);

/// The audit's outcome of a response that answers no known question: of a ping, or of a question from before a restart.
const UNASKED: &str = "unasked";

/// A client's message, with the parts that the gateway needs.
#[derive(Debug)]
pub(super) enum PipedMessage {
    /// Boxed: it is moved through several futures.
    Request(Box<PipedRequest>),
    Notification(OneWayKind, MessageText),
    Cancel(RequestId, MessageText),
    /// The answer to this question.
    Response(Option<RequestId>, MessageText),
}

#[derive(Debug)]
pub(super) struct PipedRequest {
    id: RequestId,
    arrived: Instant,
    method: Cow<'static, str>,
    text: MessageText,
    tool: Option<Arc<str>>,
    /// A setting to repeat in a renewed session.
    preference: Option<PreferenceChange>,
    progress_token: Option<RequestId>,
    cursor: Option<Payload>,
}

impl PipedRequest {
    fn signs(&self) -> Option<LifeSigns> {
        Some(LifeSigns::new(self.id.clone(), self.progress_token.as_ref()?.payload()))
    }
}

pub(super) fn request(
    request: Request,
    bytes: Bytes,
    arrived: Instant,
    served: &Served,
) -> Result<PipedMessage, RequestError> {
    let params = request.params.object();
    let tool = match &*request.method {
        method::TOOLS_CALL => Some(Arc::from(&*tool_name(params)?)),
        _ => None,
    };
    let uri = || params.and_then(|params| params.get_string("uri"));
    let preference = match &*request.method {
        method::SET_LEVEL => params.map(|params| PreferenceChange::Level(params.payload().clone())),
        method::RESOURCES_SUBSCRIBE => uri().map(PreferenceChange::Subscribe),
        method::RESOURCES_UNSUBSCRIBE => uri().map(PreferenceChange::Unsubscribe),
        _ => None,
    };
    let progress_token = params.and_then(progress::token);
    let listed = params.filter(|_| request.method == method::TOOLS_LIST);
    let cursor = listed.and_then(sent_cursor).map(|cursor| cursor.detached());
    let edited = if tool.is_some() { rewrite::plain_call(&request, served.settings.drafts) } else { None };
    let (id, method) = (request.id.clone(), request.method.clone());
    let text = match edited {
        Some(edited) => edited.into(),
        None if served.channel.reads_messages() => {
            MessageText::with_message(bytes, Arc::new(Message::Request(request)))
        }
        None => bytes.into(),
    };
    let request = PipedRequest { id, arrived, method, text, tool, preference, progress_token, cursor };
    Ok(PipedMessage::Request(Box::new(request)))
}

pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    message: PipedMessage,
    accepted: AcceptedTypes,
) -> FaceResponse {
    match message {
        PipedMessage::Request(request) => {
            let addressee = addressee(Some(&request.id), accepted);
            let signs = request.signs().filter(|_| shared.served.settings.life_signs);
            let origin = RequestOrigin { token: Arc::clone(&session.token), tool: request.tool.clone() };
            let piping = PipeForward { shared: Arc::clone(shared), session, request, signs: signs.clone() };
            resumable::respond(
                shared,
                origin,
                LateAnswer { answering: Box::pin(piping.run(accepted)), signs },
                addressee,
            )
            .await
        }
        // Boxed to keep the future of a request small.
        PipedMessage::Notification(kind, text) => bare(Box::pin(note(shared, &session, text, kind)).await),
        PipedMessage::Cancel(id, text) => bare(Box::pin(cancel(shared, &session, &id, text)).await),
        PipedMessage::Response(id, text) => {
            let question = id.as_ref().and_then(|id| shared.open.forwarded_questions.take(&session, id));
            let tool = question.as_ref().and_then(ForwardedQuestion::asking_tool);
            if let Some(refusal) = shared.refusal_of_answer(&session, tool) {
                shared.meter.responses.increment(1);
                shared.own.reply(&session.own, envelope::error(id.as_ref(), &refusal));
                return bare(StatusCode::ACCEPTED);
            }
            if let Some(audit) = shared.served.engine.audit() {
                let (who, upstream) = (Some(&session.own.opened.owner), Some(&**shared.served.upstream.name()));
                let outcome = if question.is_some() { None } else { Some(UNASKED) };
                audit.record(&AuditEvent { who, upstream, outcome, ..AuditEvent::new(AuditAct::CallAnswered) });
            }
            let text = in_servers_version(shared, &session, text);
            bare(Box::pin(note(shared, &session, text, OneWayKind::Response)).await)
        }
    }
}

fn in_servers_version(shared: &SessionFaceState, session: &ClientSession, text: MessageText) -> MessageText {
    let Some(Message::Response(Response { id: Some(id), outcome: Ok(result), .. })) = text.message() else {
        return text;
    };
    match plain::answer_in(shared.own.binding(&session.own).version, Answer::Result(result.clone())) {
        Answer::Result(same) if same == *result => text,
        Answer::Result(only) => envelope::result(id, &only).into(),
        Answer::Error(error) => envelope::error(Some(id), &error).into(),
    }
}

pub(super) async fn get(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    caller: &Caller,
    last_event: Option<HeaderValue>,
) -> FaceResponse {
    let tool = last_event.as_ref().and_then(|event| shared.paused.tool_of(&session, event));
    let is_known = tool.is_some();
    if tool.is_some_and(|tool| !shared.served.engine.access().has_tool(caller, shared.served.upstream.name(), &tool)) {
        return bare(StatusCode::BAD_REQUEST);
    }
    // A server's event id may belong to any request of the session. Without an id, the server repeats no event.
    let last_event = last_event.filter(|_| {
        let is_allowed = is_known || shared.may_have_kept_events(&session, caller);
        if !is_allowed {
            metric::count_dropped(shared.served.upstream.name(), "event_id");
        }
        is_allowed
    });
    shared.meter.streams.increment(1);
    // Tasks may send notifications on it, and it ends with the session, even if the server leaves it open (B273).
    let own = shared.open.streams.open(session.token.nonce, caller);
    if shared.sessions.is_over(&session) {
        return bare(StatusCode::NOT_FOUND);
    }
    let session_ended = own.session_ended();
    // An event is held twice for a moment: where the server's tasks are recognised, and where it is edited.
    let opening = as_one_request(open_stream(Arc::clone(shared), session, last_event));
    let streams_end = shared.served.streams_end.clone();
    let opening = async move {
        streams_end
            .run_until_cancelled_owned(Box::pin(opening))
            .await
            .unwrap_or_else(|| status(StatusCode::SERVICE_UNAVAILABLE))
    };
    let stream = SessionOwnStream { answering: Box::pin(opening), own: Some(own) };
    ending_with(respond(stream, addressee(None, AcceptedTypes::Both)).await, || session_ended)
}

async fn open_stream(
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    last_event: Option<HeaderValue>,
) -> RequestAnswer {
    let resumed = match last_event.as_ref().and_then(|event| shared.paused.take(&session, event)) {
        Some(AwaitedCall::Ended(call)) => {
            return Box::pin(paused_calls::kept_answer(&shared, &session, last_event, call)).await;
        }
        Some(AwaitedCall::Paused(paused)) => Some(paused),
        None => None,
    };
    let is_new = last_event.is_none();
    let found = match shared.own.stream_for_client(&session.own, last_event).await.map_err(no_stream) {
        Err(refusal) if is_passing(refusal.status()) => return RequestAnswer::Status(refusal),
        found => found,
    };
    // After any other refusal the permit is released: the client will not return.
    let resumed = resumed.and_then(ResumingCall::into_call);
    let (source, taken_up) = match found {
        Ok((response, _)) if response.content != BodyKind::Events => return status(StatusCode::BAD_GATEWAY),
        Ok((response, taken_up)) => {
            let tool = resumed.as_ref().and_then(|paused| paused.call.era.request.tool.clone());
            let edits = shared.edits(&session).of_call(tool);
            (edits.apply(response.body, &shared.read_limits(&session)), taken_up)
        }
        Err(refusal) => {
            if !is_new || refusal.status() != StatusCode::METHOD_NOT_ALLOWED || !shared.tasks.are_for(&session) {
                return RequestAnswer::Status(refusal);
            }
            // The server has no such stream, but tasks may use it.
            (ResponseBody::new(StreamBody::new(futures_util::stream::pending())), ResumedStreamKind::Another)
        }
    };
    let body = match resumed.filter(|_| taken_up == ResumedStreamKind::Same) {
        Some(paused) => {
            let signs = paused.call.era.signs.clone();
            PipeBody::resumed(source, paused.call, paused.pace).with_signs(signs)
        }
        None => {
            let pace = PipeTimeouts::default();
            PipeBody::<PipedCall<SessionPipeEra>>::new(source, BodyForm::Events, pace, None)
        }
    };
    events_until_leaving(&shared, body)
}

fn events_until_leaving<C: AnsweredRequest + 'static>(shared: &SessionFaceState, body: PipeBody<C>) -> RequestAnswer {
    let frames = BodyStream::new(body).take_until(shared.served.streams_end.clone().cancelled_owned());
    RequestAnswer::Events(ResponseBody::new(StreamBody::new(frames)))
}

struct PipeForward {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    request: Box<PipedRequest>,
    signs: Option<LifeSigns>,
}

impl PipeForward {
    /// Dropping the future closes the upstream's stream without a cancel (T-81).
    fn run(self, accepted: AcceptedTypes) -> impl Future<Output = RequestAnswer> {
        let upstream = self.shared.served.channel.name();
        let span = tracing::debug_span!("pipe", %upstream, method = &*self.request.method);
        // No `async` block around it, which would hold the request twice.
        let answering = self.attempt(accepted).map(|answered| {
            answered.unwrap_or_else(|fault| {
                tracing::debug!(reason = fault.reason.key(), "the request failed without a response");
                RequestAnswer::Error(gateway_error(&fault))
            })
        });
        answering.instrument(span)
    }

    async fn attempt(self, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        let Self { shared, session, mut request, signs } = self;
        let settings = &shared.served.settings;
        let (permit, timeouts, deadline_after) = match &request.tool {
            Some(tool) => {
                let arguments = || arguments_of(request.text.read(ScanLimits::CLIENT).ok()?.request()?.params.object());
                let owner = &session.own.opened.owner;
                let beginning = HeldCall::begin(&shared.served, owner, Arc::clone(tool), arguments);
                let beginning = pin!(beginning);
                let sending = shared.open.in_flight.before_it_is_sent(
                    session.token.nonce,
                    &request.id,
                    request.arrived,
                    beginning,
                );
                let permit = sending.await.transpose()?;
                // The client has cancelled it meanwhile.
                let Some(permit) = permit else { return Ok(unanswered(accepted)) };
                let policy = settings.rules.rule(tool);
                (Some(permit), settings.call_timeouts.of_tool(policy.limits), Some(policy.deadline))
            }
            None => (None, settings.timeouts, None),
        };
        let text = std::mem::take(&mut request.text);
        let era = SessionPipeEra { shared, session, request, signs, resumed_at: None };
        let mut call = PipedCall::begin(era, permit);
        let deadline = deadline_after.map(|span| call.at(span));
        let era = &call.era;
        if !era.is_wanted() {
            return Ok(unanswered(accepted));
        }
        let delivering = era.shared.own.deliver(&era.session.own, RawMethod::Post(text), || era.is_wanted());
        // Boxed, as the sum would be larger than a future on this path may be.
        let delivered = Box::pin(in_time(&call, pin!(delivering), timeouts.first_byte, deadline)).await;
        if !matches!(delivered, Ok(JudgedResponse::Fine(_))) {
            era.shared.end_if_over(&era.session);
        }
        let response = match delivered {
            Ok(JudgedResponse::Fine(response)) => response,
            Ok(JudgedResponse::Refused { fault, error, .. }) => {
                call.answered(error.as_ref().map_or_else(|| fault.reason.key(), |_| "upstream_error"));
                return error.map_or_else(|| call.failed(fault, accepted), |error| Ok(RequestAnswer::Error(error)));
            }
            // The call was sent twice.
            Ok(JudgedResponse::SessionLost) => {
                call.answered(Reason::UpstreamSessionLost.key());
                return call.failed(GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown), accepted);
            }
            Err(fault) => return call.failed(fault, accepted),
        };
        call.era.keep_preference();
        let signs = call.era.signs.clone();
        let pace = PipeTimeouts { idle: timeouts.idle, deadline };
        // Boxed: a request waits for its response without the memory that this takes.
        Box::pin(call.answer(response, LateEdits, accepted, pace, signs)).await
    }
}

#[derive(Debug)]
pub(super) struct SessionPipeEra {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    request: Box<PipedRequest>,
    /// Also on the stream by which the client resumes the call.
    signs: Option<LifeSigns>,
    resumed_at: Option<String>,
}

impl SessionPipeEra {
    /// Records a changed setting: the server has accepted it.
    fn keep_preference(&mut self) {
        if let Some(preference) = self.request.preference.take() {
            self.shared.own.record_preference(&self.session.own, preference);
        }
    }

    /// Whether the answer is a list of tools, or one of prompts or resources some of which may be withheld.
    fn awaits_list(&self) -> bool {
        let tools = || self.shared.reachable_tools(&self.session, &self.session.own.caller);
        let is_narrowed = || self.request.tool.is_none() && tools().narrow_list_of(&self.request.method);
        self.request.method == method::TOOLS_LIST || is_narrowed()
    }

    fn edits(&self) -> StreamEdits {
        let mut edits = self.shared.edits(&self.session).of_call(self.request.tool.clone());
        edits.tool_list = (self.request.method == method::TOOLS_LIST).then(|| {
            let support = self.shared.tasks.support(&self.session);
            let fallback = self.shared.fallback_listing(&self.session, self.request.cursor.clone());
            ToolListEdit { id: self.request.id.clone(), support, fallback }
        });
        edits
    }
}

impl PipeEra for SessionPipeEra {
    const IS_RESUMABLE: bool = true;
    const OPENS_WITHIN_IDLE: bool = false;

    fn id(&self) -> &RequestId {
        &self.request.id
    }

    fn served(&self) -> &Served {
        &self.shared.served
    }

    fn metrics(&self) -> &PipeMetrics {
        &self.shared.meter
    }

    fn read_limits(&self) -> ReadLimits {
        self.shared.read_limits(&self.session)
    }

    fn is_wanted(&self) -> bool {
        self.shared.open.in_flight.is_wanted(self.session.token.nonce, &self.request.id, self.request.arrived)
    }

    fn note_end(&self, fault: &GatewayFault) {
        self.shared.paused.note_end(self, fault);
    }

    fn cancel(&self, reason: Reason) {
        let params = Payload::of(&json!({ "requestId": self.request.id, "reason": reason.key() }));
        let message = envelope::notification(method::CANCELLED, Some(&params));
        let (shared, session) = (Arc::clone(&self.shared), self.session.clone());
        self.shared.served.scope.tracker.spawn(async move {
            let (binding, forwarded) =
                (shared.own.binding(&session.own), ForwardedHeaders::bearing(&session.own.forwarded.credential()));
            let request = RawRequest { binding, verb: RawMethod::Note(message.into()), forwarded };
            let _ = tokio::time::timeout(CANCEL_MAX, shared.served.channel.send(request)).await;
        });
    }

    fn pause(call: PipedCall<Self>, pace: PipeTimeouts, at: &StreamPause) {
        paused_calls::pause(call, pace, at);
    }
}

impl SessionFaceState {
    pub(super) fn read_limits(&self, session: &ClientSession) -> ReadLimits {
        let share = self.served.engine.limits().answers_to(&session.own.opened.owner);
        ReadLimits::within(self.served.settings.result_bytes_max, share)
    }

    fn edits(self: &Arc<Self>, session: &ClientSession) -> StreamEdits {
        let filter = ClientFilter::new(Arc::clone(self), session.clone());
        let tools = self.reachable_tools(session, &session.own.caller);
        StreamEdits::new(session.token.client_version, filter, tools)
    }
}

/// Never 404: the session is valid.
fn no_stream(refusal: StreamRefusal) -> FaceResponse {
    let StreamRefusal::Refused(fault) = refusal else { return bare(StatusCode::SERVICE_UNAVAILABLE) };
    match fault.http_status {
        Some(404 | 405) => not_allowed(&Method::GET),
        // A server or its balancer that is unavailable for a while.
        Some(502..=504) => bare(StatusCode::SERVICE_UNAVAILABLE),
        Some(code @ (400 | 406 | 409 | 429)) => bare(StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST)),
        Some(_) | None => bare(StatusCode::BAD_GATEWAY),
    }
}

/// A session's own stream, with the gateway's messages before it and between its events.
struct SessionOwnStream {
    answering: BoxFuture<'static, RequestAnswer>,
    own: Option<SessionStream>,
}

impl CallMessages for SessionOwnStream {
    async fn next(&mut self) -> Option<CallMessage> {
        tokio::select! {
            biased;
            answer = &mut self.answering => Some(CallMessage::Answer(match (answer, self.own.take()) {
                (RequestAnswer::Events(source), Some(own)) => {
                    RequestAnswer::Events(ResponseBody::new(InjectedStream { source, own, position: SseDecoder::of_nothing() }))
                }
                (answer, _) => answer,
            })),
            message = or_pending(self.own.as_mut().map(SessionStream::next)) => Some(CallMessage::event(message)),
        }
    }
}

/// An event stream with the messages of `own`. Ends with the stream.
struct InjectedStream {
    source: ResponseBody,
    own: SessionStream,
    position: SseDecoder,
}

impl Body for InjectedStream {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        // Within an event the source goes first, and wakes this task.
        if this.position.is_between_events()
            && let Poll::Ready(message) = this.own.poll(cx)
        {
            // Without an id: only the source's events can be resumed.
            return Poll::Ready(Some(Ok(Frame::data(BodyPart::message(message)))));
        }
        let polled = Pin::new(&mut this.source).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let _ = this.position.take(data);
        }
        polled
    }
}

/// The longest wait until the server accepts a notification or a response.
const TELL_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneWayKind {
    Notification,
    /// About a request in progress; opens no session.
    AboutRequest,
    Response,
}

/// Forwards a cancel, unless the request is queued here or made by the gateway: the upstream does not know it.
async fn cancel(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    id: &RequestId,
    text: MessageText,
) -> StatusCode {
    let (in_flight, nonce) = (&shared.open.in_flight, session.token.nonce);
    // Before the lookups, so that a request that is registered meanwhile sees it, and before the upstream is notified.
    in_flight.withdraw(nonce, session.counted_as(), id);
    in_flight.cancel(nonce, id, RequestStage::Held);
    shared.paused.release(nonce);
    let is_ours = [RequestStage::Queued, RequestStage::Driven].map(|stage| in_flight.cancel(nonce, id, stage));
    match is_ours.contains(&true) {
        true => StatusCode::ACCEPTED,
        false => note(shared, session, text, OneWayKind::AboutRequest).await,
    }
}

/// Forwards a message without response; returns its status (LEG-06).
async fn note(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    text: MessageText,
    kind: OneWayKind,
) -> StatusCode {
    let counter = match kind {
        OneWayKind::Notification | OneWayKind::AboutRequest => &shared.meter.notifications,
        OneWayKind::Response => &shared.meter.responses,
    };
    counter.increment(1);
    let noting = async {
        let (own, method) = (&shared.own, RawMethod::Note(text));
        Ok(match kind {
            OneWayKind::Notification => verdict(&own.deliver(&session.own, method, || true).await?),
            OneWayKind::Response | OneWayKind::AboutRequest => {
                match own.send(&own.binding(&session.own), method, &session.own.forwarded).await? {
                    // A question has ended with its session; a request that waits for another session is not sent.
                    JudgedResponse::SessionLost => StatusCode::ACCEPTED,
                    judged @ (JudgedResponse::Fine(_) | JudgedResponse::Refused { .. }) => verdict(&judged),
                }
            }
        })
    };
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown);
    match tokio::time::timeout(TELL_MAX, noting).await.unwrap_or(Err(late)) {
        Ok(status) => status,
        Err(GatewayFault { executed: Executed::No, .. }) => StatusCode::SERVICE_UNAVAILABLE,
        // The message may have arrived, and the client can do nothing about it.
        Err(_) => StatusCode::ACCEPTED,
    }
}

const fn verdict(judged: &JudgedResponse) -> StatusCode {
    match judged {
        JudgedResponse::Fine(_) => StatusCode::ACCEPTED,
        JudgedResponse::SessionLost | JudgedResponse::Refused { .. } => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::http::Inbound;
    use crate::face::session::SessionFace;

    const fn returned_bytes<A, R>(_: fn(A) -> R) -> usize {
        size_of::<R>()
    }

    /// A future is copied as a whole wherever another awaits it.
    #[test]
    fn a_waiting_request_has_no_memory_for_its_response_yet() {
        type Posted = (&'static SessionFace, Box<Inbound>, Box<Message>);
        let sizes = [
            ("post", returned_bytes(|(face, inbound, message): Posted| face.post(inbound, message))),
            ("attempt", returned_bytes(|piping: PipeForward| piping.attempt(AcceptedTypes::Both))),
            ("run", returned_bytes(|piping: PipeForward| piping.run(AcceptedTypes::Both))),
        ];
        println!("{sizes:?}");
        for (step, bytes) in sizes {
            assert!(bytes <= 2_048, "{step}: {bytes}");
        }
    }
}
