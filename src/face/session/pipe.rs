//! The pipe: forwards messages between a session client and its upstream session.
//!
//! It needs no runner and no row. A call takes a permit and has a deadline; a response of any size is streamed. Read
//! [`PipeForward::attempt`] for the path of one request from its permit to its response, then `face::pipe` for the forwarding of
//! the body, `stream_edits` for edited responses.

mod client_filter;
mod inject;
mod one_way_messages;
mod paused_calls;
mod piped_request;
mod resumable;
mod stream_edits;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use serde_json::json;
use tokio::time::Instant;
use tracing::Instrument;

use super::message_check::tool_of;
use super::session_cache::ClientSession;
use super::{SessionFaceState, not_allowed};
use crate::dialect::RequestError;
use crate::dialect::faults::{gateway_error, reason_key};
use crate::engine::CallsEnd;
use crate::face::answer::{addressee, bare};
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::{LateAnswer, RequestAnswer, status, unanswered};
use crate::face::call_stream::respond;
use crate::face::http::{AcceptedTypes, FaceResponse};
use crate::face::pipe::body::{AnsweredRequest, BodyForm, PipeBody, PipeTimeouts, in_time};
use crate::face::pipe::held_call::HeldCall;
use crate::face::pipe::stream_tail::StreamPause;
use crate::face::rewrite;
use crate::task::{Drafts, Executed, GatewayFault, Reason};
use crate::upstream::ForwardedHeaders;
use crate::upstream::answer_body::BodyKind;
use crate::upstream::raw_channel::{RawMethod, RawRequest, RawResponse};
use crate::upstream::reply::{self, JudgedResponse, ReadLimits};
use crate::upstream::session::own::{PreferenceChange, ResumedStreamKind, StreamRefusal};
use crate::upstream::upstream_health::{HealthMark, UpstreamHealth};
use crate::wire::envelope::{self, Request};
use crate::wire::{Message, MessageText, Payload, RequestId, meta, method};
use client_filter::{ClientFilter, PeekedAnswer};
use inject::SessionOwnStream;
pub(super) use one_way_messages::OneWayKind;
use one_way_messages::note;
use paused_calls::AwaitedCall;
pub(super) use paused_calls::PausedCalls;
use resumable::RequestOrigin;
use stream_edits::{StreamEdits, ToolListEdit, several};

/// How long a cancellation may take to be accepted.
const CANCEL_MAX: Duration = Duration::from_secs(5);

/// A client's message, with the parts that the gateway needs.
#[derive(Debug)]
pub(super) enum PipedMessage {
    /// Boxed: it is moved through several futures.
    Request(Box<PipedRequest>),
    Notification(OneWayKind, MessageText),
    /// The cancellation of this request.
    Cancel(RequestId, MessageText),
    /// An answer to a question of the upstream.
    Response(MessageText),
}

/// A request as received.
#[derive(Debug)]
pub(super) struct PipedRequest {
    id: RequestId,
    arrived: Instant,
    method: String,
    text: MessageText,
    tool: Option<Arc<str>>,
    /// A setting to repeat in a renewed session.
    telling: Option<PreferenceChange>,
    progress_token: Option<Payload>,
    /// The requested page of a list.
    cursor: Option<Payload>,
}

/// Prepares a request for the pipe, with its bytes and arrival time.
///
/// # Errors
/// If it is a call without a readable tool name.
pub(super) fn request(
    request: Request,
    (bytes, arrived): (Bytes, Instant),
    drafts: Drafts,
) -> Result<PipedMessage, RequestError> {
    let params = request.params.object();
    let tool = match request.method.as_str() {
        method::TOOLS_CALL => Some(tool_of(params)?.into()),
        _ => None,
    };
    let uri = || params.and_then(|params| params.get_string("uri"));
    let telling = match request.method.as_str() {
        method::SET_LEVEL => params.map(|params| PreferenceChange::Level(params.payload().clone())),
        method::RESOURCES_SUBSCRIBE => uri().map(PreferenceChange::Subscribe),
        method::RESOURCES_UNSUBSCRIBE => uri().map(PreferenceChange::Unsubscribe),
        _ => None,
    };
    let meta = params.and_then(|params| params.get_object(meta::META));
    let progress_token = meta.and_then(|meta| meta.get(meta::PROGRESS_TOKEN)).map(|token| token.detached());
    let listed = params.filter(|_| request.method == method::TOOLS_LIST);
    let cursor = listed.and_then(|params| params.get("cursor")).map(|cursor| cursor.detached());
    let edited = if tool.is_some() { rewrite::plain_call(&request, drafts) } else { None };
    let (id, method) = (request.id.clone(), request.method.clone());
    let text = match edited {
        Some(edited) => edited.into(),
        None => MessageText::with_message(bytes, Arc::new(Message::Request(request))),
    };
    let request = PipedRequest { id, arrived, method, text, tool, telling, progress_token, cursor };
    Ok(PipedMessage::Request(Box::new(request)))
}

pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    parcel: PipedMessage,
    accepted: AcceptedTypes,
) -> FaceResponse {
    match parcel {
        PipedMessage::Request(request) => {
            let addressee = addressee(Some(&request.id), accepted);
            let signs = request.signs().filter(|_| shared.served.settings.life_signs);
            let whose = RequestOrigin { token: Arc::clone(&session.token), is_call: request.tool.is_some() };
            let piping = PipeForward { shared: Arc::clone(shared), session, request, signs: signs.clone() };
            resumable::respond(
                shared,
                whose,
                LateAnswer { answering: Box::pin(piping.run(accepted)), signs },
                addressee,
            )
            .await
        }
        // Boxed, so that the future of a request is no larger than necessary.
        PipedMessage::Notification(kind, text) => bare(Box::pin(note(shared, &session, text, kind)).await),
        PipedMessage::Cancel(id, text) => bare(Box::pin(one_way_messages::cancel(shared, &session, &id, text)).await),
        PipedMessage::Response(text) => bare(Box::pin(note(shared, &session, text, OneWayKind::Response)).await),
    }
}

/// Opens or resumes the client's own stream.
pub(super) async fn get(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    last_event: Option<HeaderValue>,
) -> FaceResponse {
    shared.meter.streams.increment(1);
    // Tasks may send notifications on it, if there are any.
    let own = shared.tasks.are_for(&session).then(|| shared.open.streams.open(session.token.nonce));
    let opening = open_stream(Arc::clone(shared), session, last_event);
    let leaving = shared.served.leaving.clone();
    let opening = async move {
        leaving
            .run_until_cancelled_owned(Box::pin(opening))
            .await
            .unwrap_or_else(|| status(StatusCode::SERVICE_UNAVAILABLE))
    };
    respond(SessionOwnStream { answering: Box::pin(opening), own }, addressee(None, AcceptedTypes::Both)).await
}

async fn open_stream(
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    last_event: Option<HeaderValue>,
) -> RequestAnswer {
    // Its permit is released if the stream cannot be opened: its client will not return.
    let resumed = match last_event.as_ref().and_then(|event| shared.paused.take(&session, event)) {
        Some(AwaitedCall::Ended(call)) => {
            return Box::pin(paused_calls::kept_answer(&shared, &session, last_event, call)).await;
        }
        Some(AwaitedCall::Paused(paused)) => Some(paused),
        None => None,
    };
    let is_new = last_event.is_none();
    let (source, taken_up) = match shared.own.stream_for_client(&session.own, last_event).await {
        Ok((response, _)) if response.content != BodyKind::Events => return status(StatusCode::BAD_GATEWAY),
        Ok((response, taken_up)) => {
            (shared.edits(&session).apply(response.body, &shared.read_limits(&session)), taken_up)
        }
        Err(StreamRefusal::Unreachable) => return status(StatusCode::SERVICE_UNAVAILABLE),
        Err(StreamRefusal::Refused(fault)) => {
            let refusal = no_stream(&fault);
            if !is_new || refusal.status() != StatusCode::METHOD_NOT_ALLOWED || !shared.tasks.are_for(&session) {
                return RequestAnswer::Status(refusal);
            }
            // The server has no such stream; tasks may use it.
            (StreamBody::new(futures_util::stream::pending()).boxed_unsync(), ResumedStreamKind::Another)
        }
    };
    let body = match resumed.filter(|_| taken_up == ResumedStreamKind::Same) {
        Some(paused) => PipeBody::resumed(source, paused.call, paused.pace),
        None => {
            let pace = PipeTimeouts::default();
            PipeBody::<PipedCall>::new(source, BodyForm::Events, pace, None)
        }
    };
    events_until_leaving(&shared, body)
}

/// A client's stream that ends properly when the gateway shuts down.
fn events_until_leaving<C: AnsweredRequest + 'static>(shared: &SessionFaceState, body: PipeBody<C>) -> RequestAnswer {
    let frames = BodyStream::new(body).take_until(shared.served.leaving.clone().cancelled_owned());
    RequestAnswer::Events(StreamBody::new(frames).boxed_unsync())
}

/// A request that is being forwarded.
pub(super) struct PipeForward {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    request: Box<PipedRequest>,
    signs: Option<LifeSigns>,
}

impl PipeForward {
    /// Forwards the request until the response head. Dropping the future closes the upstream's stream without a cancel (T-81).
    async fn run(self, accepted: AcceptedTypes) -> RequestAnswer {
        let upstream = self.shared.served.channel.name();
        let span = tracing::debug_span!("pipe", %upstream, method = self.request.method);
        async {
            match self.attempt(accepted).await {
                Ok(answer) => answer,
                Err(fault) => {
                    tracing::debug!(reason = reason_key(fault.reason), "the request has no answer");
                    RequestAnswer::Error(gateway_error(&fault))
                }
            }
        }
        .instrument(span)
        .await
    }

    async fn attempt(self, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        let Self { shared, session, request, signs } = self;
        let served = &shared.served;
        let (permit, timeouts, deadline) = match &request.tool {
            Some(tool) => {
                let Some(permit) = place(&shared, &session, &request).await? else {
                    return Ok(unanswered(accepted));
                };
                let deadline = Instant::now() + served.settings.rules.policy_of(tool).deadline;
                (
                    Some(permit),
                    served.settings.call_timeouts.of_tool(served.settings.rules.limits_of(tool)),
                    Some(deadline),
                )
            }
            None => (None, served.settings.timeouts, None),
        };
        let pace = PipeTimeouts { idle: timeouts.idle, deadline };
        let call = PipedCall::begin(shared, session, (request.id, request.arrived), permit);
        if !call.is_wanted() {
            return Ok(unanswered(accepted));
        }
        let judged = match in_time(
            &call,
            pin!(call.shared.own.deliver(&call.session.own, RawMethod::Post(request.text), || call.is_wanted())),
            timeouts.first_byte,
            deadline,
        )
        .await?
        {
            JudgedResponse::Fine(response) => response,
            JudgedResponse::Refused { fault, error, .. } => {
                call.shared.end_if_over(&call.session);
                return error.map_or(Err(fault), |error| Ok(RequestAnswer::Error(error)));
            }
            JudgedResponse::SessionLost if !call.is_wanted() => return Ok(unanswered(accepted)),
            // It was sent twice.
            JudgedResponse::SessionLost => {
                return Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown));
            }
        };
        if let Some(telling) = request.telling {
            call.shared.own.remember(&call.session.own, telling);
        }
        let mut edits = call.shared.edits(&call.session);
        edits.tool_list = (request.method == method::TOOLS_LIST).then(|| {
            let support = call.shared.tasks.support(&call.session);
            let fallback = call.shared.fallback_for(&call.session);
            let fallback = fallback.map(|fallback| fallback.listing(request.cursor.clone()));
            ToolListEdit { id: call.id.clone(), support, fallback }
        });
        call.answer(judged, edits, accepted, (pace, signs)).await
    }
}

/// Takes a permit for a call; `None` if its client has cancelled it meanwhile.
///
/// Cancel safe: a dropped wait gives its turn to the next.
///
/// # Errors
/// As [`HeldCall::begin`].
async fn place(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: &PipedRequest,
) -> Result<Option<HeldCall>, GatewayFault> {
    let beginning = HeldCall::begin(&shared.served, &session.own.opened.owner, request.tool_name());
    let request = (session.token.nonce, &request.id, request.arrived);
    shared.open.in_flight.before_it_is_sent(request, pin!(beginning)).await.transpose()
}

/// A request at the upstream, with its permit and its deadline.
#[derive(Debug)]
pub(super) struct PipedCall {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    id: RequestId,
    arrived: Instant,
    began: Instant,
    /// The permit of a `tools/call`.
    permit: Option<HeldCall>,
    mark: HealthMark,
    /// The event after which its client last resumed.
    taken_up_at: Option<String>,
}

impl PipedCall {
    fn begin(
        shared: Arc<SessionFaceState>,
        session: ClientSession,
        (id, arrived): (RequestId, Instant),
        permit: Option<HeldCall>,
    ) -> Self {
        let counter = if permit.is_some() { &shared.meter.calls } else { &shared.meter.requests };
        counter.increment(1);
        let mark = shared.served.channel.health().map(UpstreamHealth::mark).unwrap_or_default();
        Self { shared, session, id, arrived, began: Instant::now(), permit, mark, taken_up_at: None }
    }

    /// Whether the client still waits, as far as is remembered.
    fn is_wanted(&self) -> bool {
        self.shared.open.in_flight.is_wanted(self.session.token.nonce, &self.id, self.arrived)
    }

    /// The response for the client.
    async fn answer(
        self,
        response: RawResponse,
        edits: StreamEdits,
        accepted: AcceptedTypes,
        (pace, signs): (PipeTimeouts, Option<LifeSigns>),
    ) -> Result<RequestAnswer, GatewayFault> {
        let limits = self.shared.read_limits(&self.session);
        match response.content {
            BodyKind::Other => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)),
            BodyKind::Json if edits.tool_list.is_none() => {
                let opening = client_filter::opened(response.body);
                match in_time(&self, pin!(opening), None, pace.deadline).await? {
                    PeekedAnswer::Plain(body) => {
                        Ok(RequestAnswer::Json(PipeBody::new(body, BodyForm::Json, pace, Some(self)).boxed_unsync()))
                    }
                    PeekedAnswer::Odd(body) => {
                        let response = RawResponse { body, ..response };
                        Box::pin(self.whole_answer(response, edits, accepted, pace.deadline)).await
                    }
                }
            }
            BodyKind::Events if accepted != AcceptedTypes::Json => {
                let source = edits.apply(response.body, &limits);
                let form = BodyForm::Events;
                let body = PipeBody::new(source, form, pace, Some(self)).with_signs(signs);
                Ok(RequestAnswer::Events(body.boxed_unsync()))
            }
            BodyKind::Json | BodyKind::Events => {
                Box::pin(self.whole_answer(response, edits, accepted, pace.deadline)).await
            }
        }
    }

    /// A response that is read as a whole: it is edited, or is a stream for a client that accepts none.
    async fn whole_answer(
        &self,
        response: RawResponse,
        edits: StreamEdits,
        accepted: AcceptedTypes,
        deadline: Option<Instant>,
    ) -> Result<RequestAnswer, GatewayFault> {
        let limits = self.shared.read_limits(&self.session);
        let reading = async {
            let text = if response.content == BodyKind::Events {
                // Messages before the response are dropped.
                let skip = |text: &MessageText| edits.refuse_questions(text);
                let answer = reply::answer_after(response, &self.id, &limits, skip).await?;
                limits.rehold(match &answer.outcome {
                    Ok(result) => envelope::result(&self.id, result),
                    Err(error) => envelope::error(Some(&self.id), error),
                })
            } else {
                reply::read_whole(response.body, &limits).await?
            };
            several(edits.text(text.into()), accepted, &self.id)
        };
        in_time(self, pin!(reading), None, deadline).await
    }
}

impl AnsweredRequest for PipedCall {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn calls_end(&self) -> Option<&CallsEnd> {
        self.permit.as_ref().map(HeldCall::calls_end)
    }

    fn is_resumable(&self) -> bool {
        true
    }

    fn heard(&self) {
        self.permit.iter().for_each(HeldCall::heard);
    }

    fn note_place(&mut self, has_place: bool) {
        if let Some(held) = &mut self.permit {
            held.note_place(has_place);
        }
    }

    fn ended(&self, fault: &GatewayFault) {
        self.shared.paused.note_end(self, fault);
        if let Some(health) = self.shared.served.channel.health().filter(|_| self.is_wanted()) {
            health.ended(self.mark, fault);
        }
    }

    /// A request without a permit need not be kept.
    fn pause(self, pace: PipeTimeouts, at: &StreamPause) {
        if self.permit.is_some() {
            paused_calls::pause(self, pace, at);
        }
    }

    /// In the background.
    fn cancel(&self, reason: Reason) {
        let params = Payload::of(&json!({ "requestId": self.id, "reason": reason_key(reason) }));
        let message = envelope::notification(method::CANCELLED, Some(&params));
        let (shared, session) = (Arc::clone(&self.shared), self.session.clone());
        self.shared.served.life.tracker.spawn(async move {
            let (binding, forwarded) =
                (shared.own.binding(&session.own), ForwardedHeaders::bearing(&session.own.forwarded.credential()));
            let request = RawRequest { binding, verb: RawMethod::Note(message.into()), forwarded };
            let _ = tokio::time::timeout(CANCEL_MAX, shared.served.channel.send(request)).await;
        });
    }
}

impl Drop for PipedCall {
    fn drop(&mut self) {
        let meter = &self.shared.meter;
        let histogram = if self.permit.is_some() { &meter.call_time } else { &meter.request_time };
        histogram.record(self.began.elapsed());
    }
}

impl SessionFaceState {
    /// The limits for reading a response, within its client's share of bytes.
    pub(super) fn read_limits(&self, session: &ClientSession) -> ReadLimits {
        let share = self.served.engine.limits().answers_to(&session.own.opened.owner);
        ReadLimits::within(self.served.settings.result_bytes_max, share)
    }

    /// The edits that the client's version needs in messages to it.
    fn edits(self: &Arc<Self>, session: &ClientSession) -> StreamEdits {
        let filter = ClientFilter::new(Arc::clone(self), session.clone());
        let tools = self.reachable_tools(session, &session.own.opened.owner);
        StreamEdits::new(session.token.client_version, filter, tools)
    }
}

/// Why there is no stream, for the client: its session is valid, so never 404.
fn no_stream(fault: &GatewayFault) -> FaceResponse {
    match fault.http_status {
        Some(404 | 405) => not_allowed(&Method::GET),
        Some(code @ (400 | 406 | 409 | 429)) => bare(StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST)),
        Some(_) | None => bare(StatusCode::BAD_GATEWAY),
    }
}
