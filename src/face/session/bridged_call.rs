//! Makes one request of a session client as a call of the engine. A driver follows the call to its end, even if its
//! client disconnects (LEG-11, T-81). The client reads the driver's messages from a bounded log; the first one decides
//! between JSON and an event stream.

mod ask_client;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::SessionFaceState;
use super::in_flight::InFlightEntry;
use super::session_cache::ClientSession;
use crate::dialect::core_2025_11_25::CoreTasks;
use crate::dialect::faults::{call_cancelled, gateway_error};
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::session_results::{client_capabilities, failed_result, not_askable, session_error, session_result};
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::{
    Askable, CallEnd, CallEvent, CallMaker, CallSpec, CallStream, QuestionFilter, RoundSupport, plain_request,
};
use crate::face::call_stream::Silence;
use crate::face::call_stream::progress::{CallNotices, LogFilter, MonotonicProgress, progress_token};
use crate::face::call_stream::replay::ReplayStream;
use crate::face::call_stream::replay_buffer::{CallResult, ReplayWriter, UnreadPolicy, fault};
use crate::face::fallback::FallbackListing;
use crate::face::http::{AcceptedTypes, Inbound};
use crate::face::idempotency_key;
use crate::face::named_item::{NamedItem, tool_name};
use crate::face::reachable_tools::ReachableTools;
use crate::face::rewrite::{self, TaskSupportLookup};
use crate::metric;
use crate::task::{Caller, ClientKind, Failure, HandleSupport, Idempotency, Outcome, Plan, Principal, Reason, Task};
use crate::upstream::era::contradicts;
use crate::upstream::reply::ReadLimits;
use crate::upstream::{CallContext, ForwardedHeaders, ServerNotification, Upstream, UpstreamTaskMode};
use crate::wire::envelope::{Params, Request};
use crate::wire::framing::BodyPart;
use crate::wire::meta::CLIENT_CAPABILITIES;
use crate::wire::object::ObjectWriter;
use crate::wire::rpc_error::INTERNAL_ERROR;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError, method};
pub(super) use ask_client::BridgedQuestions;
use ask_client::BridgedRoundOutcome;

pub(super) struct BridgedCaller {
    pub(super) caller: Caller,
    pub(super) accepted: AcceptedTypes,
    pub(super) arrived: Instant,
    key_header: HeaderMap,
}

impl BridgedCaller {
    pub(super) fn of(inbound: &Inbound) -> Self {
        Self {
            caller: inbound.caller.clone(),
            accepted: inbound.accepted,
            arrived: inbound.received_at,
            key_header: idempotency_key::header_alone(&inbound.headers),
        }
    }
}

pub(super) struct CallRoute {
    pub(super) upstream: Arc<dyn Upstream>,
    pub(super) era: AnswerEra,
    pub(super) native: UpstreamTaskMode,
}

/// The era of the upstream's responses: messages of a stateless server are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerEra {
    Stateless,
    Sessions,
}

pub(super) fn begin(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    request: &Request,
    caller: BridgedCaller,
) -> Result<ReplayStream, RpcError> {
    let route = CallRoute {
        upstream: Arc::clone(&shared.served.stateless),
        era: AnswerEra::Stateless,
        native: UpstreamTaskMode::Never,
    };
    begin_on(&route, shared, session, request, caller)
}

/// Starts a request. An error is for the client: nothing was sent.
pub(super) fn begin_on(
    route: &CallRoute,
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    request: &Request,
    caller: BridgedCaller,
) -> Result<ReplayStream, RpcError> {
    let version = session.token.client_version;
    let complain = |complaint: &RequestError| complaint.to_error(version);
    let tool = match &*request.method {
        method::TOOLS_CALL => Some(tool_name(request.params.object()).map_err(|complaint| complain(&complaint))?),
        _ => None,
    };
    let params = match &request.params {
        Params::Absent => None,
        Params::Object(params) => Some(params),
        Params::Other(_) => return Err(complain(&RequestError::params("params must be an object"))),
    };
    let idempotency = checked(shared, session, &caller, tool.as_deref().zip(params));
    let idempotency = idempotency.map_err(|complaint| complain(&complaint))?;
    let entered = shared.open.in_flight.drive(session.token.nonce, &request.id, caller.arrived);
    let entered = entered.map_err(|full| gateway_error(&full))?;
    (if tool.is_some() { &shared.meter.calls } else { &shared.meter.requests }).increment(1);

    let client = BridgedClient::of(version, &session.token.capabilities);
    let questions = match caller.accepted.takes_stream() {
        true => client.questions(),
        // A client without a stream can answer none.
        false => BridgedClient::of(version, &Payload::empty_object()).questions(),
    };
    let (writer, reader) = shared.open.replays.begin((shared.served.random)());
    let stream = ReplayStream::new(reader, params.and_then(|params| NamedItem::of(&request.method, params)));
    let mut driver = BridgedCall {
        shared: Arc::clone(shared),
        method: request.method.clone(),
        uri: params.filter(|_| request.method == method::RESOURCES_READ).and_then(|params| params.get_string("uri")),
        nonce: session.token.nonce,
        caller: caller.caller.clone(),
        version,
        notices: notices_before_result(shared, session, route.era, &caller, params),
        writer,
        takes_stream: caller.accepted.takes_stream(),
        began: Instant::now(),
        tool: tool.as_deref().map(Arc::from),
        questions,
        entered,
        support: shared.tasks.support(session),
        fallback: shared.fallback_listing_of(session, request),
        tools: shared.reachable_tools(session, &caller.caller),
        plan: Plan::Direct,
        is_named: idempotency.is_some(),
        era: route.era,
        is_contradicted: false,
    };
    let mut spec = driver.spec(route, &client, params, tool.as_deref(), caller, session.own.forwarded.clone());
    if let Some(tool) = tool.as_deref().filter(|tool| shared.falls_back(session, tool)) {
        spec.policy = spec.policy.asking_first();
        spec.plan = spec.policy.mode.plan(HandleSupport::ByTools, spec.policy.grace);
        spec.context.progress = true;
        // Once the client has the call's id, this call has no stream (LEG-20).
        spec.notice_sink = Some(shared.notice_sink(None, tool, None, session.token.nonce));
        driver.plan = spec.plan;
    }
    spec.idempotency = idempotency;
    let driving = Box::pin(driver.run(spec, session.clone()));
    shared.served.scope.tracker.spawn(shared.served.scope.stop.clone().run_until_cancelled_owned(driving));
    Ok(stream)
}

/// Selects progress and log messages; a client without a stream can get none.
fn notices_before_result(
    shared: &SessionFaceState,
    session: &ClientSession,
    era: AnswerEra,
    caller: &BridgedCaller,
    params: Option<&Object>,
) -> CallNotices {
    let takes_stream = caller.accepted.takes_stream();
    let token = params.and_then(progress_token).filter(|_| takes_stream);
    let level = shared.own.level(&session.own).filter(|_| takes_stream);
    // A server with sessions chooses the level itself.
    let logs = match (level, era) {
        (Some(level), _) => LogFilter::From(level),
        (None, AnswerEra::Stateless) => LogFilter::None,
        (None, AnswerEra::Sessions) => LogFilter::All,
    };
    CallNotices {
        progress: token.map(MonotonicProgress::new),
        life_signs: shared.served.settings.life_signs,
        logs,
        limits: ReadLimits::within(0, shared.served.engine.limits().answers_to(&caller.caller.principal)),
    }
}

/// The idempotency key of a call, if it has one. Checks the tool's limits for arguments first.
fn checked(
    shared: &SessionFaceState,
    session: &ClientSession,
    caller: &BridgedCaller,
    call: Option<(&str, &Object)>,
) -> Result<Option<Idempotency>, RequestError> {
    let Some((tool, params)) = call else { return Ok(None) };
    shared.served.check_arguments(&caller.caller.principal, tool, params)?;
    let names = session.idempotency_scope(&caller.caller.principal);
    idempotency_key::read(&caller.key_header, params, names, shared.served.channel.name(), tool)
}

pub(super) struct BridgedCall {
    pub(super) shared: Arc<SessionFaceState>,
    method: Cow<'static, str>,
    uri: Option<String>,
    pub(super) nonce: u128,
    caller: Caller,
    pub(super) version: ProtocolVersion,
    notices: CallNotices,
    writer: ReplayWriter,
    takes_stream: bool,
    began: Instant,
    tool: Option<Arc<str>>,
    pub(super) questions: QuestionFilter,
    entered: InFlightEntry,
    support: Option<TaskSupportLookup>,
    fallback: Option<FallbackListing>,
    tools: ReachableTools,
    pub(super) plan: Plan,
    /// Whether it has an idempotency key: then the client cannot end it.
    pub(super) is_named: bool,
    era: AnswerEra,
    is_contradicted: bool,
}

enum FollowOutcome {
    Over(CallResult),
    Cancelled,
    Asked(Arc<Task>),
}

impl BridgedCall {
    fn spec(
        &self,
        route: &CallRoute,
        client: &BridgedClient,
        params: Option<&Object>,
        tool: Option<&str>,
        caller: BridgedCaller,
        forwarded: ForwardedHeaders,
    ) -> CallSpec {
        let served = &self.shared.served;
        let maker = CallMaker {
            principal: caller.caller.principal,
            kind: ClientKind::Session,
            capabilities: client.capabilities(),
            questions: Arc::clone(&self.questions),
            forwarded,
            arrived: caller.arrived,
        };
        let tool = tool.map(|tool| (Arc::from(tool), served.settings.rules.policy_of(tool)));
        let request = plain_request(&self.method, params);
        let mut spec = served.target().plain_call(maker, request, tool);
        spec.upstream = Arc::clone(&route.upstream);
        spec.rounds = RoundSupport::of(&self.method);
        spec.context.progress = self.notices.progress.is_some();
        // The client itself sets the level of a session.
        if let (AnswerEra::Stateless, LogFilter::From(level)) = (self.era, self.notices.logs) {
            spec.context.log_level = Some(Arc::from(level.as_str()));
        }
        spec.context.native_task = route.native;
        spec
    }

    async fn run(mut self, spec: CallSpec, session: ClientSession) {
        // The call may have been cancelled while its target was determined.
        let ending = if self.entered.cancelled().is_cancelled() { None } else { self.follow(spec).await };
        let histogram =
            if self.tool.is_some() { &self.shared.meter.call_time } else { &self.shared.meter.request_time };
        histogram.record(self.began.elapsed());
        let is_read = match ending {
            Some(ending) => self.writer.finish(ending),
            None => {
                self.writer.close();
                true
            }
        };
        self.shared.open.replays.answered(self.nonce, self.writer.stream());
        if !is_read {
            metric::count_dropped(self.shared.served.channel.name(), "client_gone");
        }
        if self.is_contradicted {
            // The request is over before the server is asked.
            drop(self.entered);
            self.shared.end_if_replaced(&session).await;
        }
    }

    /// Makes the call and asks its client the call's questions; `None` if it was cancelled.
    async fn follow(&mut self, spec: CallSpec) -> Option<CallResult> {
        let mut call = self.shared.served.engine.call(spec);
        loop {
            match self.next_outcome(call).await {
                FollowOutcome::Over(ending) => return Some(ending),
                FollowOutcome::Cancelled => return None,
                FollowOutcome::Asked(task) => match self.ask(&task.key).await {
                    BridgedRoundOutcome::Going(stream) => call = stream,
                    BridgedRoundOutcome::Over(ending) => return Some(ending),
                    BridgedRoundOutcome::Cancelled => return None,
                },
            }
        }
    }

    /// Follows the call until it ends or asks. Returning for a cancel drops the call, which cancels it upstream.
    async fn next_outcome(&mut self, mut call: CallStream) -> FollowOutcome {
        let cancelled = self.entered.cancelled().clone();
        let mut silence = Silence::begin();
        loop {
            let event = tokio::select! {
                biased;
                () = cancelled.cancelled() => return FollowOutcome::Cancelled,
                event = silence.wait(call.next()) => event,
            };
            let Some(event) = event else {
                self.life_sign().await;
                silence.broken();
                continue;
            };
            let ends_silence = matches!(event, Some(CallEvent::Progress(_))) || !self.notices.signs_are_progress();
            let message = match event {
                Some(CallEvent::Progress(progress)) => self.notices.progress(&progress),
                Some(CallEvent::Notification(received)) => self.notified(&received),
                Some(CallEvent::StaysPlain) => None,
                Some(CallEvent::InputRequired { task, .. }) => return FollowOutcome::Asked(task),
                Some(CallEvent::Ended(CallEnd::Outcome(outcome))) => {
                    self.is_contradicted = self.era == AnswerEra::Stateless && contradicts_era(&outcome);
                    return FollowOutcome::Over(self.ending(outcome));
                }
                Some(CallEvent::Ended(CallEnd::NeedsCapability(needed))) => {
                    return FollowOutcome::Over(self.cannot_be_asked(Some(&needed)));
                }
                Some(CallEvent::Ended(CallEnd::CallLost)) => {
                    return FollowOutcome::Over(fault(Reason::UpstreamClosed));
                }
                Some(CallEvent::Ended(CallEnd::IdempotencyMismatch)) => {
                    return FollowOutcome::Over(Err(RequestError::IdempotencyMismatch.to_error(self.version)));
                }
                Some(CallEvent::Created(task)) => return FollowOutcome::Over(self.task_reply(&task)),
                None => return FollowOutcome::Over(fault(Reason::Internal)),
            };
            if let Some(message) = message {
                self.send(BodyPart::message(message)).await;
                if ends_silence {
                    silence.broken();
                }
            }
        }
    }

    fn notified(&self, received: &ServerNotification) -> Option<Bytes> {
        let (name, params) = received;
        let may_see = || self.shared.served.may_see(&self.caller, name, params.as_ref().and_then(Object::of).as_ref());
        match &**name {
            method::LOG_MESSAGE => self.notices.log(received),
            _ => may_see().then(|| self.notices.notification(received)),
        }
    }

    /// The response to a call that continues as a task, for a client without tasks.
    fn task_reply(&self, task: &Arc<Task>) -> CallResult {
        if CoreTasks::are_offered_in(self.version) && !task.is_settled() {
            self.shared.notify_about(&self.caller, task, self.nonce);
        }
        self.shared.fallback_texts().pieces(TaskReply::Created(task))
    }

    /// Adds task support to a tool list, if tasks are offered, and the gateway's own tools.
    fn offering(&self, result: Payload) -> Payload {
        let served = &self.shared.served;
        let page = Object::of(&result).inspect(|page| served.unmatched_rules.look_at(page));
        // HTTP clients of 2026-07-28 must leave these tools out; programs get no headers.
        let valid = page.filter(|_| !served.channel.makes_streams());
        let valid = valid.and_then(|page| self.shared.invalid_tools.left_out(served.channel.name(), &page));
        let result = valid.unwrap_or(result);
        let support = self.support.as_deref();
        let offering = support.and_then(|support| rewrite::tools(&Object::of(&result)?, Some(support)));
        let result = offering.unwrap_or(result);
        let listed = self.fallback.as_ref().and_then(|fallback| fallback.listed(&Object::of(&result)?));
        let listed = listed.unwrap_or(result);
        Object::of(&listed).and_then(|list| self.tools.listed(&list)).unwrap_or(listed)
    }

    fn reachable(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Returned { result, is_error } if self.tool.is_none() && self.tools.are_narrowed() => {
                let listed = Object::of(&result).and_then(|list| self.tools.listed(&list));
                Outcome::Returned { result: listed.unwrap_or(result), is_error }
            }
            outcome @ (Outcome::Returned { .. } | Outcome::Faulted(_) | Outcome::Cancelled) => outcome,
        }
    }

    pub(super) fn ending(&self, outcome: Outcome) -> CallResult {
        let original = outcome.result().map_or_else(Bytes::new, |result| result.bytes().clone());
        let shown: CallResult = match self.reachable(outcome) {
            Outcome::Returned { result, .. } if self.era == AnswerEra::Sessions && !self.is_of_another(&result) => {
                Ok(result.into())
            }
            Outcome::Faulted(Failure::Upstream(error)) if self.era == AnswerEra::Sessions => Err(error),
            Outcome::Returned { result, .. } if self.method == method::TOOLS_LIST => {
                Ok(self.offering(session_result(&self.method, &result).whole()).into())
            }
            Outcome::Returned { result, .. } => Ok(session_result(&self.method, &result)),
            Outcome::Faulted(Failure::Upstream(error)) => Err(session_error(&error, self.uri.as_deref())),
            Outcome::Faulted(Failure::Gateway(fault)) => Err(gateway_error(&fault)),
            Outcome::Cancelled => Err(call_cancelled()),
        };
        shown.map(|shown| shown.held_by(|text| self.notices.limits.rehold_edited(text, &original)))
    }

    /// Whether the first call under the key was answered without a session.
    fn is_of_another(&self, result: &Payload) -> bool {
        self.is_named && Object::of(result).is_some_and(|result| result.contains("resultType"))
    }

    /// The end of a call with an unanswerable question: text of a tool's result, so that a model reads the reason.
    pub(super) fn cannot_be_asked(&self, needed: Option<&Payload>) -> CallResult {
        let why = not_askable(needed, self.takes_stream);
        if self.tool.is_some() { Ok(failed_result(&why).into()) } else { Err(RpcError::new(INTERNAL_ERROR, why)) }
    }

    pub(super) const fn cancelled(&self) -> &CancellationToken {
        self.entered.cancelled()
    }

    /// Sends a message before the response. Returns whether there is a reader.
    pub(super) async fn send(&self, event: BodyPart) -> bool {
        self.send_or(event, UnreadPolicy::Kept).await
    }

    /// As [`Self::send`]; dropped if unread.
    pub(super) async fn send_now(&self, event: BodyPart) -> bool {
        self.send_or(event, UnreadPolicy::Dropped).await
    }

    async fn send_or(&self, event: BodyPart, unread: UnreadPolicy) -> bool {
        if !self.takes_stream {
            return false;
        }
        self.cancelled().run_until_cancelled(self.writer.write(event, unread)).await == Some(true)
    }

    /// Progress if the client resets its timeouts by it, otherwise a comment.
    pub(super) async fn life_sign(&mut self) {
        let life_sign = self.notices.life_sign();
        self.send(life_sign).await;
    }
}

/// Whether the outcome excludes a server without sessions: another server may have replaced it (UPC-22).
fn contradicts_era(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Faulted(Failure::Gateway(fault)) => contradicts(fault.http_status, None),
        Outcome::Faulted(Failure::Upstream(error)) => contradicts(Some(400), Some(error)),
        Outcome::Returned { .. } | Outcome::Cancelled => false,
    }
}

impl SessionFaceState {
    pub(super) fn context(&self, session: &ClientSession, principal: &Principal) -> CallContext {
        let client = BridgedClient::of(session.token.client_version, &session.token.capabilities);
        self.served.context(principal, client.capabilities(), &session.own.forwarded)
    }
}

/// A session client's capabilities, as far as its version defines them.
#[derive(Clone, Debug)]
pub(super) struct BridgedClient {
    metadata: StatelessRequest,
}

impl BridgedClient {
    pub(super) fn of(version: ProtocolVersion, capabilities: &Payload) -> Self {
        let declared = client_capabilities(capabilities, version);
        let meta = ObjectWriter::new().member(CLIENT_CAPABILITIES, &declared).finish();
        let meta = Object::of(&meta).expect("a written object is one");
        let metadata = StatelessRequest::read(ProtocolVersion::STATELESS, &meta);
        Self { metadata: metadata.expect("metadata with capabilities alone is valid") }
    }

    pub(super) fn capabilities(&self) -> Payload {
        self.metadata.upstream_capabilities()
    }

    /// The questions that the client can answer on a call's stream (LEG-16). A call that needs others fails (GW-23).
    pub(super) fn questions(&self) -> QuestionFilter {
        let metadata = self.metadata.clone();
        Arc::new(move |question| match metadata.missing([question]) {
            None => Askable::Declared,
            Some(needed) => Askable::Required(needed),
        })
    }
}
