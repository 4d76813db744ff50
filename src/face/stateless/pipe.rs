//! Forwards messages between stateless clients and a server of their era (GW-30). After the checks the same bytes are
//! forwarded, and the response is streamed, with few edits (`answer_edits`). A call that may become a task goes to the
//! engine. A disconnect drops the upstream's request, which cancels it.

pub(in crate::face) mod answer_edits;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use self::answer_edits::{AnswerEdits, EditTarget, PipedSubscription, StateBinding};
use super::{CallDecision, StatelessFace, StatelessRequestContext};
use crate::audit::arguments_of;
use crate::dialect::RequestError;
use crate::dialect::faults::failure_error;
use crate::dialect::lifecycle::{CacheReaders, is_cacheable};
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::{LateAnswer, RequestAnswer};
use crate::face::call_stream::respond;
use crate::face::fallback::FallbackListing;
use crate::face::headers::{self, HeaderArgument};
use crate::face::http::{AcceptedTypes, FaceResponse, MessageChannel};
use crate::face::idempotency_key;
use crate::face::pipe::body::{AnsweredRequest as _, PipeTimeouts, in_time};
use crate::face::pipe::forward::{HeldCall, PipeEra, PipeMetrics, PipedCall};
use crate::face::sealed::StateContent;
use crate::face::served::Served;
use crate::task::{CallLimits, Executed, Failure, GatewayFault, HandleSupport, Plan, Principal, Reason};
use crate::upstream::ForwardedHeaders;
use crate::upstream::era::contradicts;
use crate::upstream::header_annotations::PARAM_PREFIX;
use crate::upstream::raw_channel::{RawMethod, RawRequest, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::wire::list_pages::sent_cursor;
use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROTOCOL_VERSION};
use crate::wire::{MessageText, Object, Payload, ProtocolVersion, RequestId, RpcError, envelope, method, rpc_error};

/// A client's time to answer a question of a forwarded request.
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

/// The server itself refuses methods that it does not know.
pub(super) fn is_passed_on(name: &str) -> bool {
    !GONE.contains(&name)
}

impl StatelessFace {
    pub(super) async fn pass(&self, request: Box<StatelessRequestContext<'_>>) -> FaceResponse {
        let asker = self.asker(&request);
        let state = match returned_state(&self.served, &request, &asker) {
            Ok(state) => state,
            Err(complaint) => return request.addressee.complaint(&complaint),
        };
        let (mut call, mut mirrored) = (None, Vec::new());
        if request.method == method::TOOLS_CALL {
            let decision = match self.decide_call(&request).await {
                Ok(decision) => decision,
                Err(refusal) => return *refusal,
            };
            // A round that began without a task continues without one.
            let is_named = decision.idempotency.is_some();
            let is_driven = decision.plan != Plan::Direct || is_named || decision.is_split(request.params);
            if is_driven && matches!(state, ReturnedState::New | ReturnedState::Held) {
                return Box::pin(self.run_call(request, &decision)).await;
            }
            if state == ReturnedState::Held {
                return request.addressee.complaint(&RequestError::InvalidRequestState);
            }
            if is_named {
                return request.addressee.complaint(&idempotency_key::not_from_the_first_request());
            }
            let (forwarded, arguments) = ForwardedCall::of(decision);
            (call, mirrored) = (Some(forwarded), arguments);
        }
        let is_subscription = request.method == method::LISTEN;
        let wishes = match is_subscription.then(|| SubscriptionFilter::read(request.params)).transpose() {
            Ok(wishes) => wishes,
            Err(complaint) => return request.addressee.complaint(&complaint),
        };
        let permit = match if is_subscription { self.listen_permit(&request) } else { Ok(None) } {
            Ok(permit) => permit,
            Err(fault) => return request.addressee.fault(&fault),
        };
        let signs = self.signs(&request);
        let (tools, readers) = (self.reachable_tools(&request), self.cache_readers(request.method));
        let edits = Box::new(AnswerEdits {
            id: request.message.id.clone(),
            aim: EditTarget::of(request.method, &tools, readers),
            readers,
            fallback: self.fallback_listing(&request),
            tools,
            asker,
            server: Arc::clone(&self.served.upstream),
            sealer: Arc::clone(&self.served.sealer),
            clock: Arc::clone(&self.served.clock),
            // A subscription's stream keeps no part of the request's body.
            metadata: if is_subscription { request.metadata.detached() } else { request.metadata.clone() },
            subscription: wishes.map(|wishes| self.subscription(wishes, &request)),
            unmatched_rules: Arc::clone(&self.served.unmatched_rules),
        });
        let passing = StatelessForward {
            served: Arc::clone(&self.served),
            metrics: Arc::clone(&self.meter),
            message: message(&request, state),
            headers: self.headers(&request, &mirrored),
            forwarded: request.forwarded.clone(),
            edits,
            is_subscription,
            call,
            signs: signs.clone(),
        };
        let addressee = request.addressee.clone();
        let accepted = addressee.accepted;
        let response = respond(LateAnswer { answering: Box::pin(passing.run(accepted)), signs }, addressee).await;
        match permit {
            Some(permit) => response.map(|body| permit.keep(body)),
            None => response,
        }
    }

    /// As the client sent them. A message of a stream has none, and the server requires them (UPC-15).
    fn headers(
        &self,
        request: &StatelessRequestContext<'_>,
        mirrored: &[HeaderArgument],
    ) -> Vec<(HeaderName, HeaderValue)> {
        match request.carriage {
            MessageChannel::Stream if !self.served.channel.makes_streams() => {
                headers::repeating(request.method, request.params, mirrored)
            }
            MessageChannel::Stream | MessageChannel::Request => repeated(request.headers),
        }
    }

    fn subscription(&self, wishes: SubscriptionFilter, request: &StatelessRequestContext<'_>) -> PipedSubscription {
        PipedSubscription { wishes, caller: request.caller.clone(), served: Arc::clone(&self.served) }
    }

    fn asker(&self, request: &StatelessRequestContext<'_>) -> StateBinding {
        StateBinding {
            upstream: Arc::clone(self.served.upstream.name()),
            principal: request.caller.principal.clone(),
            method: request.message.method.clone(),
            // Other methods have no state to bind, and their streams may be long.
            params: if method::may_ask(request.method) { request.params.clone() } else { Object::empty() },
        }
    }

    fn fallback_listing(&self, request: &StatelessRequestContext<'_>) -> Option<FallbackListing> {
        let fallback = self.fallback_for(&request.metadata).filter(|_| request.method == method::TOOLS_LIST)?;
        let who =
            (&request.caller.principal, request.forwarded.credential(), request.metadata.declared().payload().as_str());
        let reader = fallback.reader(who, request.counted_as.clone());
        Some(fallback.listing(Some(reader), sent_cursor(request.params)))
    }

    /// The readers of a cached result: the caller alone, if others get another one (U82).
    fn cache_readers(&self, name: &str) -> CacheReaders {
        let access = self.served.engine.access();
        let is_for_caller = match name {
            method::TOOLS_LIST => self.fallback.is_some() || access.withholds_tools(self.served.upstream.name()),
            _ => is_cacheable(name) && access.withholds_items(),
        };
        if is_for_caller { CacheReaders::Caller } else { CacheReaders::AsStated }
    }

    /// `None` unless the client requested progress (GW-26), and for a subscription.
    fn signs(&self, request: &StatelessRequestContext<'_>) -> Option<LifeSigns> {
        let token = request.metadata.progress_token.clone();
        let token = token.filter(|_| self.served.settings.life_signs && request.method != method::LISTEN)?;
        Some(LifeSigns::new(request.message.id.clone(), token))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ReturnedState {
    /// No state, or the upstream issued none.
    New,
    Kept(Option<Payload>),
    Held,
}

/// Opens a `requestState` (MOD-28). Methods that never ask have none.
fn returned_state(
    served: &Served,
    request: &StatelessRequestContext<'_>,
    asker: &StateBinding,
) -> Result<ReturnedState, RequestError> {
    if !method::may_ask(request.method) || !request.params.contains("requestState") {
        return Ok(ReturnedState::New);
    }
    let sealed = request.params.get_str("requestState").ok_or(RequestError::InvalidRequestState)?;
    let expires_after = |content: &StateContent| match content {
        StateContent::Upstream(_) => STATE_EXPIRES_AFTER,
        // The call's own limits decide: `claim_held_call`.
        StateContent::Task { .. } => Duration::MAX,
    };
    match served.sealer.open_state(&sealed, &asker.scope(), served.clock.now(), expires_after) {
        Some(StateContent::Upstream(own)) => Ok(ReturnedState::Kept(own)),
        Some(StateContent::Task { .. }) if request.method == method::TOOLS_CALL => Ok(ReturnedState::Held),
        // A call held for an upstream that no longer has sessions is gone.
        Some(StateContent::Task { .. }) | None => Err(RequestError::InvalidRequestState),
    }
}

/// Unchanged, unless the message has parts for the gateway.
fn message(request: &StatelessRequestContext<'_>, state: ReturnedState) -> Bytes {
    let mut edit = request.params.edit();
    let mut is_edited = false;
    if let ReturnedState::Kept(own) = state {
        is_edited = true;
        edit = match own {
            Some(own) => edit.set("requestState", own),
            None => edit.remove("requestState"),
        };
    }
    // No client could find a task of the upstream's own, so a forwarded call requests none.
    let takes_tasks = request.method == method::TOOLS_CALL && request.metadata.takes_tasks() != HandleSupport::No;
    let is_other_version = request.metadata.version != ProtocolVersion::STATELESS;
    if (takes_tasks || is_other_version)
        && let Some(meta) = request.params.get_object(META)
    {
        is_edited = true;
        let mut meta = meta.edit().set(PROTOCOL_VERSION, Payload::of(ProtocolVersion::STATELESS.as_str()));
        if takes_tasks {
            meta = meta.set(CLIENT_CAPABILITIES, request.metadata.upstream_capabilities());
        }
        edit = edit.set(META, meta.finish());
    }
    match is_edited {
        true => envelope::request(&request.message.id, request.method, Some(&edit.finish())),
        false => request.body.clone(),
    }
}

/// The headers that repeat parts of the body, as the client sent them.
fn repeated(all: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    // As many as most calls have: the request keeps them as a slice.
    let mut headers = Vec::with_capacity(2);
    for (name, value) in all {
        // A constant is copied without an allocation, unlike a name that was read from a request.
        let constant = [headers::METHOD, headers::NAME].into_iter().find(|known| known == name);
        let repeats = || name.as_str().starts_with(PARAM_PREFIX).then(|| name.clone());
        headers.extend(constant.or_else(repeats).map(|name| (name, value.clone())));
    }
    headers
}

struct StatelessForward {
    served: Arc<Served>,
    metrics: Arc<PipeMetrics>,
    message: Bytes,
    headers: Vec<(HeaderName, HeaderValue)>,
    forwarded: ForwardedHeaders,
    edits: Box<AnswerEdits>,
    is_subscription: bool,
    call: Option<ForwardedCall>,
    signs: Option<LifeSigns>,
}

/// A forwarded `tools/call`: its tool, and the limits of the tool's rule.
struct ForwardedCall {
    tool: Arc<str>,
    deadline: Duration,
    limits: CallLimits,
}

impl ForwardedCall {
    /// And the arguments that its headers repeat.
    fn of(decision: CallDecision) -> (Self, Vec<HeaderArgument>) {
        let CallDecision { tool, policy, mirrored, .. } = decision;
        (Self { tool, deadline: policy.deadline, limits: policy.limits }, mirrored)
    }
}

struct StatelessPipeEra {
    served: Arc<Served>,
    metrics: Arc<PipeMetrics>,
    id: RequestId,
    principal: Principal,
    is_subscription: bool,
}

/// Cancelling a request drops it with its response: nothing is sent to cancel it.
impl PipeEra for StatelessPipeEra {
    const IS_RESUMABLE: bool = false;
    const OPENS_WITHIN_IDLE: bool = true;

    fn id(&self) -> &RequestId {
        &self.id
    }

    fn served(&self) -> &Served {
        &self.served
    }

    fn metrics(&self) -> &PipeMetrics {
        &self.metrics
    }

    fn read_limits(&self) -> ReadLimits {
        let share = self.served.engine.limits().answers_to(&self.principal);
        ReadLimits::within(self.served.settings.result_bytes_max, share)
    }

    fn is_subscription(&self) -> bool {
        self.is_subscription
    }
}

impl StatelessForward {
    async fn run(self, accepted: AcceptedTypes) -> RequestAnswer {
        self.attempt(accepted).await.unwrap_or_else(|fault| {
            tracing::debug!(reason = fault.reason.key(), "the request failed without a response");
            RequestAnswer::Fault(fault)
        })
    }

    async fn attempt(mut self, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        let settings = &self.served.settings;
        let (permit, timeouts, deadline_after) = match self.call.take() {
            Some(ForwardedCall { tool, deadline, limits }) => {
                let asker = &self.edits.asker;
                let arguments = || arguments_of(Some(&asker.params));
                let permit = HeldCall::begin(&self.served, &asker.principal, tool, arguments).await?;
                (Some(permit), settings.call_timeouts.of_tool(limits), Some(deadline))
            }
            None => (None, settings.timeouts, None),
        };
        let era = StatelessPipeEra {
            served: Arc::clone(&self.served),
            metrics: Arc::clone(&self.metrics),
            id: self.edits.id.clone(),
            principal: self.edits.asker.principal.clone(),
            is_subscription: self.is_subscription,
        };
        let call = PipedCall::begin(era, permit);
        let deadline = deadline_after.map(|span| call.at(span));
        let judged = in_time(&call, pin!(self.deliver()), timeouts.first_byte, deadline).await?;
        let response = match judged {
            JudgedResponse::Fine(response) => response,
            JudgedResponse::Refused { fault, error, .. } => {
                call.answered(error.as_ref().map_or_else(|| fault.reason.key(), |_| "upstream_error"));
                return self.refused(fault, error);
            }
            JudgedResponse::SessionLost => return Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)),
        };
        // A subscription is silent while nothing changes.
        let pace = PipeTimeouts { idle: timeouts.idle.filter(|_| !self.is_subscription), deadline };
        // Boxed: a request waits for its response without the memory that this takes.
        Box::pin(call.answer(response, self.edits, accepted, pace, self.signs)).await
    }

    async fn deliver(&mut self) -> Result<JudgedResponse, GatewayFault> {
        let binding = SessionBinding { version: Some(ProtocolVersion::STATELESS), ..SessionBinding::default() };
        let principal = self.edits.asker.principal.clone();
        let message = MessageText::from(self.message.clone());
        let headers = std::mem::take(&mut self.headers);
        let verb = RawMethod::PostWith { message: message.clone(), headers, principal };
        let request = RawRequest { binding, verb, forwarded: self.forwarded.clone() };
        let response = self.served.channel.send(request).await?;
        Ok(reply::judge(response, ErrorAddressee::Forwarded(Some(&message))).await)
    }

    fn refused(&self, fault: GatewayFault, error: Option<RpcError>) -> Result<RequestAnswer, GatewayFault> {
        if contradicts(fault.http_status, error.as_ref()) {
            self.served.upstream.discard_era();
        }
        let Some(error) = error else { return Err(fault) };
        let status = fault.http_status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.filter(|status| [400, 404].contains(&status.as_u16())).unwrap_or(StatusCode::OK);
        Ok(match self.edits.error(&error) {
            Some(about_us) => RequestAnswer::Error(about_us),
            None => RequestAnswer::Refused(status, error),
        })
    }
}

/// Replaces an error about the gateway's own request (GW-29); `None` for others.
fn about_us(error: &RpcError, client: &StatelessRequest) -> Option<RpcError> {
    let is_own = (rpc_error::UNSUPPORTED_VERSION..=rpc_error::HEADER_MISMATCH).contains(&error.code);
    (is_own && !client.is_lacking(error)).then(|| failure_error(&Failure::Upstream(error.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_request_has_no_memory_for_its_response_yet() {
        const fn returned_bytes<R>(_: fn(StatelessForward, AcceptedTypes) -> R) -> usize {
            size_of::<R>()
        }
        let bytes = returned_bytes(StatelessForward::attempt);
        assert!(bytes <= 2_048, "{bytes}");
    }
}
