//! The pipe: what a session client and its upstream session say to each other, passed on as it came.
//!
//! No runner, no row. A call takes a place and meets its deadline; an answer of any size goes through
//! piece by piece. Read [`Piping::attempt`] for one request from its place to its answer, then `body` for
//! what happens to the answer on its way, `edit` for the few that are edited, `batch` for arrays.

mod batch;
pub(super) mod body;
pub(super) mod edit;
mod inject;
mod meter;
mod notes;
mod paused;
pub(super) mod read;
mod sieve;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use serde_json::json;
use tokio::time::Instant;
use tracing::Instrument;

use super::answer::bare;
use super::call_stream::answer::{Answer, Late, status, unanswered};
use super::call_stream::progress::Signs;
use super::call_stream::respond;
use super::call_stream::resumable::{self, Whose};
use super::http::{AcceptedTypes, Response};
use super::rewrite;
use super::session::in_flight::RequestStage;
use super::session::native;
use super::session::sessions::{Session, Telling};
use super::session::{Shared, addressee, not_allowed};
use crate::dialect::Complaint;
use crate::dialect::faults::{gateway_error, reason_key};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::Forwarded;
use crate::upstream::conduit::{Binding, ConduitRequest, ConduitResponse, Content, Verb};
use crate::upstream::limits::Slot;
use crate::upstream::standing::{Mark, Standing};
use crate::wire::envelope::{self, Request};
use crate::wire::{Object, Payload, RequestId, meta, method};
pub(super) use batch::{Item, post_batch};
use body::{Answered, Form, Pace, PipeBody, in_time};
use edit::{Arrays, Edits, ToolList};
use inject::OwnStream;
pub(super) use meter::Meter;
use notes::{Kind, note};
use paused::Pause;
pub(super) use paused::Paused;
use read::Judged;
use sieve::{Opened, Sieve};

/// How long a cancellation may take to be accepted.
const CANCEL_MAX: Duration = Duration::from_secs(5);
/// How long a client's own stream waits for an upstream that cannot be reached, and between two attempts.
const AWAY_MAX: Duration = Duration::from_secs(60);
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// One message of a client, with what the gateway must know of it.
#[derive(Debug)]
pub(super) enum Parcel {
    Request(PipedRequest),
    Notification(Bytes),
    /// Of this request nothing more is wanted.
    Cancel(RequestId, Bytes),
    /// An answer to a question of the upstream.
    Response(Bytes),
}

/// A request as it came.
#[derive(Debug)]
pub(super) struct PipedRequest {
    id: RequestId,
    method: String,
    bytes: Bytes,
    /// The tool, if it is a call.
    tool: Option<String>,
    /// What a later session has to be told again.
    telling: Option<Telling>,
    /// Under which progress is wanted.
    progress_token: Option<Payload>,
}

impl PipedRequest {
    /// What silence is broken with, if it wants progress under a token that is one.
    fn signs(&self) -> Option<Signs> {
        let token = self.progress_token.as_ref().and_then(RequestId::from_payload)?;
        Some(Signs::new(self.id.clone(), token.payload().clone()))
    }
}

/// Takes a request for the pipe.
///
/// # Errors
/// If it is a call of which nobody can tell the tool.
pub(super) fn request(request: Request, bytes: Bytes) -> Result<Parcel, Complaint> {
    let params = request.params.object();
    let tool = match request.method.as_str() {
        method::TOOLS_CALL => Some(tool_of(params)?),
        _ => None,
    };
    let uri = || params.and_then(|params| params.get_string("uri"));
    let telling = match request.method.as_str() {
        method::SET_LEVEL => params.map(|params| Telling::Level(params.payload().clone())),
        method::RESOURCES_SUBSCRIBE => uri().map(Telling::Subscribe),
        method::RESOURCES_UNSUBSCRIBE => uri().map(Telling::Unsubscribe),
        _ => None,
    };
    let meta = params.and_then(|params| params.get_object(meta::META));
    let progress_token = meta.and_then(|meta| meta.get(meta::PROGRESS_TOKEN)).map(|token| token.detached());
    let edited = if tool.is_some() { rewrite::plain_call(&request) } else { None };
    Ok(Parcel::Request(PipedRequest {
        bytes: edited.unwrap_or(bytes),
        id: request.id,
        method: request.method,
        tool,
        telling,
        progress_token,
    }))
}

/// The tool that is called (B81, B98).
///
/// # Errors
/// If nobody can tell.
pub(super) fn tool_of(params: Option<&Object>) -> Result<String, Complaint> {
    let invalid = |what| Complaint::Params(Cow::Borrowed(what));
    let params = params.ok_or_else(|| invalid("params must be an object"))?;
    if params.contains("arguments") && !params.has_object("arguments") {
        return Err(invalid("arguments must be an object"));
    }
    let name = params.get_string("name").filter(|name| !name.contains('\0'));
    name.ok_or_else(|| invalid("name must be a string without null characters"))
}

/// Passes on one message.
pub(super) async fn post(shared: &Arc<Shared>, session: Session, parcel: Parcel, accepted: AcceptedTypes) -> Response {
    match parcel {
        Parcel::Request(request) => {
            let addressee = addressee(Some(&request.id), accepted);
            let signs = request.signs().filter(|_| shared.served.life_signs);
            let whose = Whose { token: Arc::clone(&session.token), is_call: request.tool.is_some() };
            let piping = Piping { shared: Arc::clone(shared), session, request, signs: signs.clone() };
            resumable::respond(shared, whose, Late { answering: Box::pin(piping.run(accepted)), signs }, addressee)
                .await
        }
        // On the heap, so that the future of a request is no larger than a request needs.
        Parcel::Notification(bytes) => bare(Box::pin(note(shared, &session, bytes, Kind::Notification)).await),
        Parcel::Cancel(id, bytes) => bare(Box::pin(notes::cancel(shared, &session, &id, bytes)).await),
        Parcel::Response(bytes) => bare(Box::pin(note(shared, &session, bytes, Kind::Response)).await),
    }
}

/// Opens the client's own stream, or takes one up again.
pub(super) async fn get(shared: &Arc<Shared>, session: Session, last_event: Option<HeaderValue>) -> Response {
    shared.meter.streams.increment(1);
    // On which tasks may say something, where there are any.
    let own = shared.tasks.are_for(&session).then(|| shared.streams.open(session.token.nonce));
    let opening = open_stream(Arc::clone(shared), session, last_event);
    let leaving = shared.served.leaving.clone();
    let opening = async move {
        leaving.run_until_cancelled_owned(opening).await.unwrap_or_else(|| status(StatusCode::SERVICE_UNAVAILABLE))
    };
    respond(OwnStream { answering: Box::pin(opening), own }, addressee(None, AcceptedTypes::Both)).await
}

async fn open_stream(shared: Arc<Shared>, session: Session, last_event: Option<HeaderValue>) -> Answer {
    // Its place is free again if the stream is not to be had: nobody comes for the answer any more.
    let resumed = last_event.as_ref().and_then(|event| shared.paused.take(&session, event));
    let is_new = last_event.is_none();
    let (source, taken_up) = match native::own_stream(&shared, &session, last_event).await {
        Ok((response, _)) if response.content != Content::Events => return status(StatusCode::BAD_GATEWAY),
        Ok((response, taken_up)) => {
            (shared.edits(&session).apply(response.body, shared.served.edited_bytes_max), taken_up)
        }
        // A server that has no such stream has nothing to say on it. Tasks may.
        Err(Answer::Status(refusal))
            if is_new && refusal.status() == StatusCode::METHOD_NOT_ALLOWED && shared.tasks.are_for(&session) =>
        {
            (StreamBody::new(futures_util::stream::pending()).boxed_unsync(), TakenUp::Another)
        }
        Err(answer) => return answer,
    };
    let body = match resumed.filter(|_| taken_up == TakenUp::Same) {
        Some(resumable) => PipeBody::resumed(source, resumable),
        None => {
            let pace = Pace::default();
            PipeBody::<Call>::new(source, Form::Events, pace, None)
        }
    };
    let frames = BodyStream::new(body).take_until(shared.served.leaving.clone().cancelled_owned());
    Answer::Events(StreamBody::new(frames).boxed_unsync())
}

/// Which stream a client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenUp {
    /// The one that it asked for.
    Same,
    /// That of a session that took the place of a lost one.
    Another,
}

/// One request on its way.
pub(super) struct Piping {
    shared: Arc<Shared>,
    session: Session,
    request: PipedRequest,
    signs: Option<Signs>,
}

impl Piping {
    /// Runs the request to the head of its answer. Dropping the future lets go of the upstream without a
    /// cancel (T-81).
    async fn run(self, accepted: AcceptedTypes) -> Answer {
        let upstream = self.shared.served.conduit.name();
        let span = tracing::debug_span!("pipe", %upstream, method = self.request.method);
        async {
            match self.attempt(accepted).await {
                Ok(answer) => answer,
                Err(fault) => {
                    tracing::debug!(reason = reason_key(fault.reason), "the request has no answer");
                    Answer::Error(gateway_error(&fault))
                }
            }
        }
        .instrument(span)
        .await
    }

    async fn attempt(self, accepted: AcceptedTypes) -> Result<Answer, GatewayFault> {
        let Self { shared, session, request, signs } = self;
        let served = &shared.served;
        let (slot, timeouts, deadline) = match &request.tool {
            Some(tool) => {
                let Some(slot) = place(&shared, &session, &request.id).await? else {
                    return Ok(unanswered(accepted));
                };
                let deadline = Instant::now() + served.rules.policy_of(tool).deadline;
                (Some(slot), served.call_timeouts.of_tool(served.rules.limits_of(tool)), Some(deadline))
            }
            None => (None, served.timeouts, None),
        };
        let pace = Pace { idle: timeouts.idle, deadline };
        let call = Call::begin(shared, session, request.id, slot);
        let judged = match in_time(&call, call.deliver(request.bytes), timeouts.first_byte, deadline).await? {
            Judged::Fine(response) => response,
            Judged::Refused { error: Some(error), .. } => return Ok(Answer::Error(error)),
            Judged::Refused { fault, error: None } => return Err(fault),
            Judged::SessionLost => return Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)),
        };
        if let Some(telling) = request.telling {
            call.shared.sessions.tell(&call.session, telling);
        }
        let mut edits = call.shared.edits(&call.session);
        edits.tool_list = (request.method == method::TOOLS_LIST).then(|| {
            let support = call.shared.tasks.support(&call.session);
            ToolList { id: call.id.clone(), support, fallback: call.shared.fallback_for(&call.session) }
        });
        call.answer(judged, edits, accepted, (pace, signs)).await
    }
}

/// A place for a call; `None` if its client has cancelled it meanwhile.
///
/// Cancel safe: a dropped wait gives its turn to the next.
///
/// # Errors
/// As [`crate::upstream::limits::Slots::acquire`].
async fn place(shared: &Shared, session: &Session, id: &RequestId) -> Result<Option<Slot>, GatewayFault> {
    let served = &shared.served;
    if let Some(slot) = served.slots.try_acquire(&session.owner) {
        return Ok(Some(slot));
    }
    let waiting = shared.in_flight.enter(session.token.nonce, id, RequestStage::Queued);
    tokio::select! {
        biased;
        () = waiting.cancelled().cancelled() => Ok(None),
        slot = served.slots.acquire(&session.owner, Some(served.queue_deadline)) => slot.map(Some),
    }
}

/// A request that is at the upstream: its place, its time, and how to take it back.
#[derive(Debug)]
pub(super) struct Call {
    shared: Arc<Shared>,
    session: Session,
    id: RequestId,
    began: Instant,
    /// The place that a `tools/call` holds.
    slot: Option<Slot>,
    mark: Mark,
}

impl Call {
    fn begin(shared: Arc<Shared>, session: Session, id: RequestId, slot: Option<Slot>) -> Self {
        let counter = if slot.is_some() { &shared.meter.calls } else { &shared.meter.requests };
        counter.increment(1);
        let mark = shared.served.conduit.standing().map(Standing::mark).unwrap_or_default();
        Self { shared, session, id, began: Instant::now(), slot, mark }
    }

    /// Sends the request. A session that the upstream has lost is opened anew, and the request sent once
    /// more: the one that met the lost session was refused, so no tool runs twice.
    async fn deliver(&self, bytes: Bytes) -> Result<Judged, GatewayFault> {
        let binding = self.shared.sessions.binding(&self.session);
        match self.shared.judged(&binding, Verb::Post(bytes.clone()), &self.session.forwarded).await? {
            Judged::SessionLost => {
                let renewed = Box::pin(self.shared.renew(&self.session, &binding)).await?;
                Box::pin(self.shared.judged(&renewed, Verb::Post(bytes), &self.session.forwarded)).await
            }
            judged @ (Judged::Fine(_) | Judged::Refused { .. }) => Ok(judged),
        }
    }

    /// The answer as the client is to see it.
    async fn answer(
        self,
        response: ConduitResponse,
        edits: Edits,
        accepted: AcceptedTypes,
        (pace, signs): (Pace, Option<Signs>),
    ) -> Result<Answer, GatewayFault> {
        let edited_bytes_max = self.shared.served.edited_bytes_max;
        match response.content {
            Content::Other => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)),
            Content::Json if edits.tool_list.is_none() && edits.arrays == Arrays::Pass => {
                let opening = sieve::opened(response.body);
                match in_time(&self, opening, None, pace.deadline).await? {
                    Opened::Plain(body) => {
                        Ok(Answer::Json(PipeBody::new(body, Form::Json, pace, Some(self)).boxed_unsync()))
                    }
                    Opened::Odd(body) => {
                        let response = ConduitResponse { body, ..response };
                        Box::pin(self.whole_answer(response, edits, accepted, pace.deadline)).await
                    }
                }
            }
            Content::Events if accepted != AcceptedTypes::Json => {
                let source = edits.apply(response.body, edited_bytes_max);
                let form = Form::Events;
                let body = PipeBody::new(source, form, pace, Some(self)).with_signs(signs);
                Ok(Answer::Events(body.boxed_unsync()))
            }
            Content::Json | Content::Events => {
                Box::pin(self.whole_answer(response, edits, accepted, pace.deadline)).await
            }
        }
    }

    /// An answer that is read before it is passed on: it is edited, or comes as a stream to a client that
    /// takes none.
    async fn whole_answer(
        &self,
        response: ConduitResponse,
        edits: Edits,
        accepted: AcceptedTypes,
        deadline: Option<Instant>,
    ) -> Result<Answer, GatewayFault> {
        let bytes_max = self.shared.served.edited_bytes_max;
        let reading = async {
            let text = if response.content == Content::Events {
                // What was said before the answer has nowhere to go.
                let answer = read::answer(response, &self.id, bytes_max).await?;
                match &answer.outcome {
                    Ok(result) => envelope::result(&self.id, result),
                    Err(error) => envelope::error(Some(&self.id), error),
                }
            } else {
                read::whole(response.body, bytes_max).await?
            };
            read::several(edits.text(text), accepted, &self.id)
        };
        in_time(self, reading, None, deadline).await
    }
}

impl Answered for Call {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn is_resumable(&self) -> bool {
        true
    }

    fn ended(&self, fault: &GatewayFault) {
        let is_wanted = || self.shared.in_flight.is_wanted(self.session.token.nonce, &self.id);
        if let Some(standing) = self.shared.served.conduit.standing().filter(|_| is_wanted()) {
            standing.ended(self.mark, fault);
        }
    }

    /// What holds no place needs nothing to be kept.
    fn pause(self, pace: Pace, at: &Pause) {
        if self.slot.is_some() {
            paused::pause(self, pace, at);
        }
    }

    /// In the background.
    fn cancel(&self, reason: Reason) {
        let params = Payload::of(&json!({ "requestId": self.id, "reason": reason_key(reason) }));
        let message = envelope::notification(method::CANCELLED, Some(&params));
        let (shared, session) = (Arc::clone(&self.shared), self.session.clone());
        self.shared.served.life.tracker.spawn(async move {
            let binding = shared.sessions.binding(&session);
            let request = ConduitRequest { binding, verb: Verb::Note(message), forwarded: Forwarded::default() };
            let _ = tokio::time::timeout(CANCEL_MAX, shared.served.conduit.send(request)).await;
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let meter = &self.shared.meter;
        let histogram = if self.slot.is_some() { &meter.call_time } else { &meter.request_time };
        histogram.record(self.began.elapsed());
    }
}

impl Shared {
    /// What the versions of both sides demand of their messages.
    fn edits(self: &Arc<Self>, session: &Session) -> Edits {
        let upstream = self.sessions.binding(session).version.unwrap_or(session.token.upstream_version);
        let sieve = Sieve::new(Arc::clone(self), session.clone());
        Edits::between(session.token.client_version, upstream, sieve)
    }

    /// Sends something in an upstream session, and judges the head of the answer.
    async fn judged(&self, binding: &Binding, verb: Verb, with: &Forwarded) -> Result<Judged, GatewayFault> {
        let request = ConduitRequest { binding: binding.clone(), verb, forwarded: with.clone() };
        let response = self.served.conduit.send(request).await?;
        Ok(read::judge(response, binding).await)
    }

    /// The same for a stream, waiting for an upstream that is away for a moment: some clients give up on
    /// theirs for good when it is refused twice.
    async fn patiently(&self, binding: &Binding, verb: &Verb, with: &Forwarded) -> Result<Judged, GatewayFault> {
        let end = Instant::now() + AWAY_MAX;
        loop {
            match self.judged(binding, verb.clone(), with).await {
                Err(GatewayFault { executed: Executed::No, .. }) if Instant::now() + AWAY_PAUSE < end => {
                    tokio::time::sleep(AWAY_PAUSE).await;
                }
                judged => return judged,
            }
        }
    }

    /// The client's stream at the upstream, or what to say instead.
    pub(in crate::face) async fn stream(
        self: &Arc<Self>,
        session: &Session,
        last_event: Option<HeaderValue>,
    ) -> Result<(ConduitResponse, TakenUp), Answer> {
        let unreachable = |_| status(StatusCode::SERVICE_UNAVAILABLE);
        let mut binding = self.sessions.binding(session);
        let first = Verb::Get { last_event: last_event.clone() };
        let mut judged = self.patiently(&binding, &first, &session.forwarded).await.map_err(unreachable)?;
        let anew = Verb::Get { last_event: None };
        let mut taken_up = TakenUp::Same;
        if matches!(judged, Judged::SessionLost) {
            binding = self.renew(session, &binding).await.map_err(unreachable)?;
            judged = self.judged(&binding, anew, &session.forwarded).await.map_err(unreachable)?;
            taken_up = TakenUp::Another;
        } else if last_event.is_some() && matches!(judged, Judged::Refused { .. }) && self.sessions.is_renewed(session)
        {
            // The event may be one of a session that is gone, and whatever followed it too.
            judged = self.judged(&binding, anew, &session.forwarded).await.map_err(unreachable)?;
            taken_up = TakenUp::Another;
        }
        match judged {
            Judged::Fine(response) => Ok((response, taken_up)),
            Judged::SessionLost => Err(status(StatusCode::SERVICE_UNAVAILABLE)),
            Judged::Refused { fault, .. } => Err(Answer::Status(no_stream(&fault))),
        }
    }
}

/// Why there is no stream, as far as it concerns the client: its session is fine, so never 404.
fn no_stream(fault: &GatewayFault) -> Response {
    match fault.http_status {
        Some(404 | 405) => not_allowed(&Method::GET),
        Some(code @ (400 | 406 | 409 | 429)) => bare(StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST)),
        Some(_) | None => bare(StatusCode::BAD_GATEWAY),
    }
}
