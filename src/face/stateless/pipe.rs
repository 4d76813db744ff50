//! Forwards messages between stateless clients and a server of their era (GW-30).
//!
//! The gateway's checks come first; then the same bytes are forwarded, and the response is streamed in any size. `answer_edits`
//! makes the few edits. A call that may become a task goes to the engine instead. A client that disconnects drops the upstream's
//! request with its response, which is the cancellation for servers without sessions.

pub(in crate::face) mod answer_edits;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::answer_edits::{AnswerEdits, EditTarget, GlancedMessage, SniffedAnswer, StateBinding};
use super::{StatelessFace, StatelessRequestContext};
use crate::dialect::RequestError;
use crate::dialect::faults::{failure_error, reason_key};
use crate::engine::CallsEnd;
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::{LateAnswer, RequestAnswer};
use crate::face::call_stream::respond;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, FaceResponse, full_body};
use crate::face::idempotency_key;
use crate::face::pipe::body::{AnsweredRequest, BodyForm, PipeBody, PipeTimeouts, in_time};
use crate::face::pipe::held_call::HeldCall;
use crate::face::pipe::pipe_metrics::PipeMetrics;
use crate::face::sealed::StateContent;
use crate::face::served::Served;
use crate::task::{CallLimits, Executed, Failure, GatewayFault, HandleSupport, Plan, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::era::contradicts;
use crate::upstream::header_annotations::PARAM_PREFIX;
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, RawResponse, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::upstream::upstream_health::{HealthMark, UpstreamHealth};
use crate::upstream::{ForwardedHeaders, OwnSessionChannel};
use crate::wire::framing::BodyPart;
use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROTOCOL_VERSION, SUBSCRIPTION_ID};
use crate::wire::object::ObjectWriter;
use crate::wire::{MessageText, Object, Payload, ProtocolVersion, RequestId, RpcError, envelope, method, rpc_error};

/// How long a client may take to answer a question.
const STATE_EXPIRES_AFTER: Duration = Duration::from_secs(60 * 60);

/// Methods that are not of 2026-07-28, or not a server's: no upstream is asked.
const GONE: [&str; 7] = [
    method::INITIALIZE,
    method::PING,
    method::SET_LEVEL,
    method::RESOURCES_SUBSCRIBE,
    method::RESOURCES_UNSUBSCRIBE,
    method::TASKS_RESULT,
    method::TASKS_LIST,
];

/// Whether a method is forwarded. The server itself refuses methods that it does not know.
pub(super) fn is_passed_on(name: &str) -> bool {
    !GONE.contains(&name)
}

impl StatelessFace {
    /// Forwards a request, or gives it to the engine if it may become a task.
    pub(super) async fn pass(&self, inquiry: StatelessRequestContext<'_>) -> FaceResponse {
        let asker = StateBinding {
            upstream: Arc::clone(self.served.upstream.name()),
            principal: inquiry.principal.clone(),
            method: inquiry.method.to_owned(),
            params: inquiry.params.clone(),
        };
        let state = match returned_state(&self.served, &inquiry, &asker) {
            Ok(state) => state,
            Err(complaint) => return inquiry.addressee.complaint(&complaint),
        };
        let (mut deadline, mut limits) = (None, CallLimits::default());
        if inquiry.method == method::TOOLS_CALL {
            let weighed = match self.weigh(&inquiry).await {
                Ok(weighed) => weighed,
                Err(refusal) => return *refusal,
            };
            // A round that began without a task continues without one.
            let is_named = weighed.idempotency.is_some();
            let is_driven = weighed.plan != Plan::Direct || is_named || weighed.is_split(inquiry.params);
            if is_driven && matches!(state, ReturnedState::New | ReturnedState::Held) {
                return self.run_call(inquiry, &weighed).await;
            }
            if state == ReturnedState::Held {
                return inquiry.addressee.complaint(&RequestError::State);
            }
            if is_named {
                return inquiry.addressee.complaint(&idempotency_key::not_from_the_first_request());
            }
            (deadline, limits) = (Some(weighed.policy.deadline), weighed.policy.limits);
        }
        let signs = self.signs(&inquiry);
        let edits = AnswerEdits {
            id: inquiry.request.id.clone(),
            aim: EditTarget::of(inquiry.method),
            fallback: self.fallback_for(&inquiry.said).map(|fallback| fallback.listing(inquiry.params.get("cursor"))),
            tools: self.reachable_tools(&inquiry),
            asker,
            server: Arc::clone(&self.served.upstream),
            sealer: Arc::clone(&self.served.sealer),
            clock: Arc::clone(&self.served.clock),
            said: inquiry.said.clone(),
            unmatched_rules: Arc::clone(&self.served.unmatched_rules),
        };
        let passing = StatelessForward {
            served: Arc::clone(&self.served),
            meter: Arc::clone(&self.meter),
            method: inquiry.method.to_owned(),
            message: message(&inquiry, state),
            headers: repeated(inquiry.headers),
            forwarded: inquiry.forwarded.clone(),
            edits,
            deadline,
            limits,
            signs: signs.clone(),
        };
        let addressee = inquiry.addressee.clone();
        let accepted = addressee.accepted;
        respond(LateAnswer { answering: Box::pin(passing.run(accepted)), signs }, addressee).await
    }

    /// The life signs, if the client requested progress (GW-26). A subscription has none.
    fn signs(&self, inquiry: &StatelessRequestContext<'_>) -> Option<LifeSigns> {
        let token = inquiry.said.progress_token.clone();
        let token = token.filter(|_| self.served.settings.life_signs && inquiry.method != method::LISTEN)?;
        Some(LifeSigns::new(inquiry.request.id.clone(), token))
    }
}

/// A request's reference to an earlier round.
#[derive(Debug, PartialEq, Eq)]
enum ReturnedState {
    /// None, or the upstream issued no state.
    New,
    /// The upstream's state, to be returned to it.
    Kept(Option<Payload>),
    /// The gateway holds the call.
    Held,
}

/// Opens a `requestState` (MOD-28). Methods that never ask have none.
fn returned_state(
    served: &Served,
    inquiry: &StatelessRequestContext<'_>,
    asker: &StateBinding,
) -> Result<ReturnedState, RequestError> {
    if !method::may_ask(inquiry.method) || !inquiry.params.contains("requestState") {
        return Ok(ReturnedState::New);
    }
    let sealed = inquiry.params.get_str("requestState").ok_or(RequestError::State)?;
    match served.sealer.open_state(&sealed, &asker.scope(), served.clock.now(), STATE_EXPIRES_AFTER) {
        Some(StateContent::Upstream(own)) => Ok(ReturnedState::Kept(own)),
        Some(StateContent::Task { .. }) if inquiry.method == method::TOOLS_CALL => Ok(ReturnedState::Held),
        // A call that the gateway held for an upstream that no longer has sessions is gone.
        Some(StateContent::Task { .. }) | None => Err(RequestError::State),
    }
}

/// The message for the upstream: unchanged, unless it has parts for the gateway.
fn message(inquiry: &StatelessRequestContext<'_>, state: ReturnedState) -> Bytes {
    let mut edit = inquiry.params.edit();
    let mut is_edited = false;
    if let ReturnedState::Kept(own) = state {
        is_edited = true;
        edit = match own {
            Some(own) => edit.set("requestState", own),
            None => edit.remove("requestState"),
        };
    }
    // A task of the upstream's own could not be found by any client, so a forwarded call requests none.
    let takes_tasks = inquiry.method == method::TOOLS_CALL && inquiry.said.takes_tasks() != HandleSupport::No;
    let is_other_version = inquiry.said.version != ProtocolVersion::STATELESS;
    if (takes_tasks || is_other_version)
        && let Some(meta) = inquiry.params.get_object(META)
    {
        is_edited = true;
        let mut meta = meta.edit().set(PROTOCOL_VERSION, Payload::of(ProtocolVersion::STATELESS.as_str()));
        if takes_tasks {
            meta = meta.set(CLIENT_CAPABILITIES, inquiry.said.upstream_capabilities());
        }
        edit = edit.set(META, meta.finish());
    }
    match is_edited {
        true => envelope::request(&inquiry.request.id, inquiry.method, Some(&edit.finish())),
        false => inquiry.body.clone(),
    }
}

/// The headers that repeat parts of the body, as the client sent them.
fn repeated(all: &HeaderMap) -> HeaderMap {
    let repeats = |name: &http::HeaderName| {
        *name == headers::METHOD || *name == headers::NAME || name.as_str().starts_with(PARAM_PREFIX)
    };
    all.iter().filter(|(name, _)| repeats(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// A request that is being forwarded.
struct StatelessForward {
    served: Arc<Served>,
    meter: Arc<PipeMetrics>,
    method: String,
    message: Bytes,
    headers: HeaderMap,
    forwarded: ForwardedHeaders,
    edits: AnswerEdits,
    deadline: Option<Duration>,
    limits: CallLimits,
    /// Progress instead of comments.
    signs: Option<LifeSigns>,
}

/// A request at the upstream, with its permit and its deadline.
struct StatelessPipedCall {
    id: RequestId,
    channel: Arc<dyn RawChannel>,
    mark: HealthMark,
    began: Instant,
    meter: Arc<PipeMetrics>,
    is_stream: bool,
    /// Held for calls.
    permit: Option<HeldCall>,
}

impl AnsweredRequest for StatelessPipedCall {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn calls_end(&self) -> Option<&CallsEnd> {
        self.permit.as_ref().map(HeldCall::calls_end)
    }

    fn heard(&self) {
        self.permit.iter().for_each(HeldCall::heard);
    }

    /// Its streams have no event ids.
    fn is_resumable(&self) -> bool {
        false
    }

    /// A client subscribes again if its subscription ends without a result.
    fn ends_with_answer(&self) -> bool {
        !self.is_stream
    }

    /// A client that cancels its request drops it with its response, so it is wanted here.
    fn ended(&self, fault: &GatewayFault) {
        if let Some(health) = self.channel.health() {
            health.ended(self.mark, fault);
        }
    }

    /// The request is cancelled by dropping it with its response.
    fn cancel(&self, _: Reason) {}
}

impl Drop for StatelessPipedCall {
    fn drop(&mut self) {
        let histogram = if self.permit.is_some() { &self.meter.call_time } else { &self.meter.request_time };
        histogram.record(self.began.elapsed());
    }
}

impl StatelessForward {
    async fn run(self, accepted: AcceptedTypes) -> RequestAnswer {
        match self.attempt(accepted).await {
            Ok(answer) => answer,
            Err(fault) => {
                tracing::debug!(reason = reason_key(fault.reason), "the request has no answer");
                RequestAnswer::Fault(fault)
            }
        }
    }

    async fn attempt(self, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        let is_stream = self.method == method::LISTEN;
        let settings = &self.served.settings;
        let (permit, timeouts, deadline) = match self.deadline {
            Some(deadline) => {
                let tool = self.edits.asker.params.get_str("name").unwrap_or_default();
                let permit = HeldCall::begin(&self.served, &self.edits.asker.principal, Arc::from(&*tool)).await?;
                (Some(permit), settings.call_timeouts.of_tool(self.limits), Some(Instant::now() + deadline))
            }
            None => (None, settings.timeouts, None),
        };
        let meter = Arc::clone(&self.meter);
        let other = if is_stream { &meter.streams } else { &meter.requests };
        if permit.is_some() { &meter.calls } else { other }.increment(1);
        let call = StatelessPipedCall {
            id: self.edits.id.clone(),
            channel: Arc::<dyn OwnSessionChannel>::clone(&self.served.channel),
            mark: self.served.channel.health().map(UpstreamHealth::mark).unwrap_or_default(),
            began: Instant::now(),
            meter,
            is_stream,
            permit,
        };
        let response = match in_time(&call, pin!(self.deliver()), timeouts.first_byte, deadline).await? {
            JudgedResponse::Fine(response) => response,
            JudgedResponse::Refused { fault, error, .. } => return self.refused(fault, error),
            JudgedResponse::SessionLost => return Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)),
        };
        // A subscription is silent while nothing changes.
        let idle = timeouts.idle.filter(|_| !is_stream);
        let pace = PipeTimeouts { idle, deadline };
        self.answer(response, accepted, pace, call).await
    }

    async fn deliver(&self) -> Result<JudgedResponse, GatewayFault> {
        let binding = SessionBinding { version: Some(ProtocolVersion::STATELESS), ..SessionBinding::default() };
        let principal = self.edits.asker.principal.clone();
        let message = MessageText::from(self.message.clone());
        let verb = RawMethod::PostWith { message: message.clone(), headers: Box::new(self.headers.clone()), principal };
        let request = RawRequest { binding, verb, forwarded: self.forwarded.clone() };
        let response = self.served.channel.send(request).await?;
        Ok(reply::judge(response, ErrorAddressee::Passed(Some(&message))).await)
    }

    /// The meaning of a refusal for the client.
    fn refused(&self, fault: GatewayFault, error: Option<RpcError>) -> Result<RequestAnswer, GatewayFault> {
        if contradicts(fault.http_status, error.as_ref()) {
            self.served.upstream.doubt_era();
        }
        let Some(error) = error else { return Err(fault) };
        let status = fault.http_status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.filter(|status| [400, 404].contains(&status.as_u16())).unwrap_or(StatusCode::OK);
        Ok(match self.edits.error(&error) {
            Some(about_us) => RequestAnswer::Error(about_us),
            None => RequestAnswer::Refused(status, error),
        })
    }

    async fn answer(
        self,
        response: RawResponse,
        accepted: AcceptedTypes,
        pace: PipeTimeouts,
        call: StatelessPipedCall,
    ) -> Result<RequestAnswer, GatewayFault> {
        let bytes_max = self.served.settings.result_bytes_max;
        let limits = ReadLimits::within(bytes_max, self.served.engine.limits().answers_to(&self.edits.asker.principal));
        match response.content {
            BodyKind::Other => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)),
            BodyKind::Events if accepted == AcceptedTypes::Json => {
                // The client accepts no stream: messages before the response are dropped.
                let reading = reply::answer(response, &call.id, &limits);
                let answer = in_time(&call, pin!(reading), None, pace.deadline).await?;
                let text = limits.rehold(match &answer.outcome {
                    Ok(result) => envelope::result(&call.id, result),
                    Err(error) => envelope::error(Some(&call.id), error),
                });
                Ok(RequestAnswer::Json(full_body(self.edits.text(GlancedMessage::of(text)))))
            }
            BodyKind::Events => {
                let leaving = (self.method == method::LISTEN).then(|| self.served.leaving.clone());
                let (id, signs) = (call.id.clone(), self.signs);
                let source = self.edits.events(response.body, &limits);
                let form = BodyForm::Events;
                let body = PipeBody::new(source, form, pace, Some(call)).with_signs(signs);
                Ok(RequestAnswer::Events(match leaving {
                    Some(leaving) => until_leaving(body, leaving, &id),
                    None => body.boxed_unsync(),
                }))
            }
            BodyKind::Json => {
                let sniffing = self.edits.sniff(response.body, &limits);
                match in_time(&call, pin!(sniffing), pace.idle, pace.deadline).await? {
                    SniffedAnswer::Whole(message) => {
                        let message = self.edits.alone(message);
                        if self.edits.is_stray(&message) {
                            return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown));
                        }
                        Ok(RequestAnswer::Json(full_body(self.edits.text(message))))
                    }
                    SniffedAnswer::Through(body) => {
                        Ok(RequestAnswer::Json(PipeBody::new(body, BodyForm::Json, pace, Some(call)).boxed_unsync()))
                    }
                }
            }
        }
    }
}

/// A subscription that ends with its result when the gateway shuts down (MOD-25).
fn until_leaving(
    body: PipeBody<StatelessPipedCall>,
    leaving: CancellationToken,
    id: &RequestId,
) -> crate::face::http::ResponseBody {
    let meta = ObjectWriter::new().member(SUBSCRIPTION_ID, id.payload()).finish();
    let result = ObjectWriter::new().text("resultType", "complete").member(META, &meta).finish();
    let farewell = BodyPart::message(envelope::result(id, &result));
    let stopped = leaving.clone();
    let last = stream::once(async move { stopped.is_cancelled().then(|| Ok(Frame::data(farewell))) });
    let frames = BodyStream::new(body).take_until(leaving.cancelled_owned());
    StreamBody::new(frames.chain(last.filter_map(std::future::ready))).boxed_unsync()
}

/// Replaces an error about the gateway's own request, which does not concern the client (GW-29); `None` for others.
fn about_us(error: &RpcError, is_lacking: impl FnOnce(&Payload) -> bool) -> Option<RpcError> {
    let named = error.data.as_ref().and_then(Object::of).and_then(|data| data.get("requiredCapabilities"));
    match error.code {
        rpc_error::MISSING_CLIENT_CAPABILITY if named.as_ref().is_some_and(is_lacking) => None,
        rpc_error::UNSUPPORTED_VERSION..=rpc_error::HEADER_MISMATCH => {
            Some(failure_error(&Failure::Upstream(error.clone())))
        }
        _ => None,
    }
}
