//! Serves clients of 2026-07-28, with self-contained requests (GW-03). [`StatelessFace::serve`] is the pipeline: shape,
//! metadata, headers, version, method, names, capabilities, params; the first failure is the response. Every 4xx is
//! decided before anything is sent upstream.

pub mod listen;
pub(super) mod pipe;
mod rounds;
mod tasks;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer::Addressee;
use super::call_stream::engine_call::{CallView, Promotable, ResultEdit};
use super::call_stream::progress::{CallNotices, LogFilter, MonotonicProgress};
use super::catalog::{Catalog, CatalogError, ToolList, no_such_cursor};
use super::fallback::FallbackToolService;
use super::headers::HeaderArgument;
use super::http::{AcceptedTypes, FaceResponse, MessageChannel};
use super::item_refusal::{AskedAccess, names_item};
use super::lazy_timer::within;
use super::named_item::tool_name;
use super::pipe::forward::PipeMetrics;
use super::rates::UnknownTaskWatch;
use super::reachable_tools::ReachableTools;
use super::rewrite::short_identity;
use super::served::Served;
use super::{handle_delay, headers, idempotency_key};
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::faults::{handshake_late, list_refused};
use crate::dialect::lifecycle::{completed_result, discover_result, own_identity, server_meta};
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::relay_core_2025_11_25::ToolTaskSupport;
use crate::dialect::split_call::SplitCall;
use crate::dialect::{FaceDialect, RequestError};
use crate::engine::{CallMaker, CallSpec, RoundSupport, plain_request};
use crate::task::{
    Caller, ClientKind, Executed, GatewayFault, HandleSupport, Idempotency, Plan, Principal, Reason, ToolPolicy,
};
use crate::upstream::reply::ReadLimits;
use crate::upstream::{BeginError, CallContext, Era, ForwardedHeaders, Handshake, UpstreamTaskMode};
use crate::wire::envelope::Request;
use crate::wire::list_pages::sent_cursor;
use crate::wire::{Object, Payload, ProtocolVersion, method};
use rounds::questions_for;

/// Members that the gateway uses, `_meta` first: other parsers might accept a different case, so it is refused (B85).
const KNOWN_MEMBERS: [&str; 9] =
    ["_meta", "name", "arguments", "taskId", "uri", "ref", "inputResponses", "requestState", "notifications"];

#[derive(Debug)]
pub struct StatelessFace {
    served: Arc<Served>,
    catalog: Arc<Catalog>,
    /// `None` until a handshake has returned it.
    identity: RwLock<Option<ServerIdentity>>,
    misses: UnknownTaskWatch,
    meter: Arc<PipeMetrics>,
    /// For clients without the extension, in place of tasks.
    fallback: Option<Arc<FallbackToolService>>,
}

#[derive(Clone, Debug)]
struct ServerIdentity {
    info: Payload,
    meta: Payload,
}

impl ServerIdentity {
    fn of(info: Payload) -> Self {
        Self { meta: server_meta(&info), info }
    }
}

struct StatelessRequestContext<'a> {
    addressee: Addressee,
    caller: Caller,
    counted_as: Principal,
    is_counted: bool,
    metadata: StatelessRequest,
    message: &'a Request,
    body: &'a Bytes,
    era: Era,
    method: &'a str,
    params: &'a Object,
    headers: &'a HeaderMap,
    forwarded: &'a ForwardedHeaders,
    arrived: Instant,
    carriage: MessageChannel,
    has_key: bool,
}

impl StatelessRequestContext<'_> {
    /// The response to a call that was not sent: the upstream did not complete the handshake, or list its tools (U107).
    fn unsent(&self, error: &CatalogError) -> FaceResponse {
        match error {
            CatalogError::Gateway(late) if *late == HANDSHAKE_LATE => {
                self.addressee.fault_in_words(late, &handshake_late(late))
            }
            CatalogError::Gateway(fault) => self.addressee.fault(fault),
            CatalogError::Upstream(_) => self.addressee.fault_in_words(&LIST_REFUSED, &list_refused(&LIST_REFUSED)),
        }
    }
}

const HANDSHAKE_LATE: GatewayFault = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
const LIST_REFUSED: GatewayFault = GatewayFault::new(Reason::UpstreamRefused, Executed::No);

struct CallDecision {
    tool: Arc<str>,
    policy: ToolPolicy,
    plan: Plan,
    idempotency: Option<Idempotency>,
    native: UpstreamTaskMode,
    is_repeatable: bool,
    mirrored: Vec<HeaderArgument>,
}

impl CallDecision {
    fn is_split(&self, params: &Object) -> bool {
        self.policy.split.as_ref().is_some_and(|rule| SplitCall::read(rule, params).is_some())
    }
}

#[derive(Debug)]
pub struct MessageContext<'a> {
    pub headers: &'a HeaderMap,
    pub forwarded: &'a ForwardedHeaders,
    pub body: &'a Bytes,
    pub caller: Caller,
    pub counted_as: Principal,
    /// Whether the caller has counted the request.
    pub is_counted: bool,
    pub accepted: AcceptedTypes,
    pub arrived: Instant,
    pub carriage: MessageChannel,
    pub has_key: bool,
}

impl StatelessFace {
    pub fn new(served: Arc<Served>) -> Self {
        let catalog = Catalog::new(Arc::clone(&served.upstream));
        let catalog = Arc::new(catalog.compared_with(&served.unmatched_rules));
        let (identity, misses) = (RwLock::default(), UnknownTaskWatch::default());
        let fallback = FallbackToolService::new(served.upstream.name(), &served.settings.rules);
        let meter = Arc::new(PipeMetrics::of(served.upstream.name()));
        Self { served, catalog, identity, misses, meter, fallback }
    }

    pub async fn evict_expired(&self, stop: &CancellationToken) {
        self.catalog.evict_expired(stop).await;
    }

    /// Dropping the future means that the client disconnected, which cancels a call without a handle (MOD-20).
    pub async fn serve(&self, request: &Request, around: MessageContext<'_>) -> FaceResponse {
        let mut addressee =
            Addressee { id: Some(request.id.clone()), version: ProtocolVersion::STATELESS, accepted: around.accepted };
        match self.admit(request, &mut addressee, around).await {
            Ok(request) => self.dispatch(request).await,
            Err(complaint) => addressee.complaint(&complaint),
        }
    }

    /// Steps 4 to 8 of the pipeline.
    async fn admit<'a>(
        &self,
        request: &'a Request,
        addressee: &mut Addressee,
        around: MessageContext<'a>,
    ) -> Result<Box<StatelessRequestContext<'a>>, RequestError> {
        let params = request.params.object();
        let varied = params.and_then(|params| params.case_variant(&KNOWN_MEMBERS));
        if varied == Some("_meta") {
            return Err(RequestError::InvalidMetadata(Cow::Borrowed("_meta is spelt in another case")));
        }
        let meta = StatelessRequest::meta_of(params)?;
        let named = StatelessRequest::check_shape(&meta)?;
        if around.carriage == MessageChannel::Request {
            headers::check_request(around.headers, &named, &request.method)?;
        }
        let version = ProtocolVersion::parse(&named).filter(|version| version.is_stateless());
        let version = version.ok_or_else(|| RequestError::Version { requested: named.into_owned() })?;
        addressee.version = version;
        let metadata = StatelessRequest::read(version, &meta);
        // The gateway's own tools need no upstream.
        let era = match self.is_own_tool_call(&request.method, params) {
            true => Era::Session,
            false => self.era(&request.method, params, metadata.as_ref().ok(), &around).await,
        };
        let is_served = match era {
            Era::Session => is_served(&request.method),
            Era::Stateless => pipe::is_passed_on(&request.method),
        };
        if !is_served {
            return Err(RequestError::UnknownMethod(request.method.clone()));
        }
        let name = headers::named_in(&request.method, params);
        if around.carriage == MessageChannel::Request {
            headers::check_name(around.headers, &request.method, name.as_deref())?;
        }
        let metadata = metadata?;
        if ExtTasks::is_method(&request.method) && !tasks::may_ask(&metadata, &request.method) {
            return Err(StatelessRequest::needs_extension());
        }
        let params = params.ok_or(RequestError::InvalidMetadata(Cow::Borrowed("params must be an object")))?;
        if let Some(name) = varied {
            return Err(RequestError::Params(Cow::Owned(format!("{name} is spelt in another case"))));
        }
        if name.is_some_and(|name| name.contains('\0')) {
            return Err(RequestError::params("the name contains a null character; remove it"));
        }
        Ok(Box::new(StatelessRequestContext {
            addressee: addressee.clone(),
            caller: around.caller,
            counted_as: around.counted_as,
            is_counted: around.is_counted,
            metadata,
            message: request,
            body: around.body,
            era,
            method: &request.method,
            params,
            headers: around.headers,
            forwarded: around.forwarded,
            arrived: around.arrived,
            carriage: around.carriage,
            has_key: around.has_key,
        }))
    }

    /// Requests about the gateway's own tasks, and subscriptions to them, need no upstream.
    async fn era(
        &self,
        name: &str,
        params: Option<&Object>,
        metadata: Option<&StatelessRequest>,
        around: &MessageContext<'_>,
    ) -> Era {
        let wanted = || params.and_then(|params| params.get_object("notifications"));
        let is_about_tasks = ExtTasks::is_method(name)
            || (name == method::LISTEN && wanted().is_some_and(|wanted| wanted.contains("taskIds")));
        if is_about_tasks {
            return Era::Session;
        }
        let era = self.served.upstream.era(around.forwarded).await;
        match metadata.filter(|metadata| era == Era::Stateless && metadata.takes_questions()) {
            Some(metadata) => {
                let capabilities = metadata.upstream_capabilities();
                let context = self.served.context(&around.caller.principal, capabilities, around.forwarded);
                self.served.upstream.era_for(&context).await
            }
            None => era,
        }
    }

    /// Boxed but for polls, which need little, so that the future of a request is only as large as its method needs.
    async fn dispatch(&self, request: Box<StatelessRequestContext<'_>>) -> FaceResponse {
        if names_item(request.method)
            && let Some(refusal) = self.asked(&request).refusal_of(request.method, Some(request.params))
        {
            return refusal.answer(&request.addressee, |complaint| request.addressee.complaint(complaint));
        }
        if request.era == Era::Stateless {
            return Box::pin(self.pass(request)).await;
        }
        match request.method {
            method::DISCOVER => Box::pin(self.discover(&request)).await,
            method::TOOLS_LIST => Box::pin(self.list_tools(&request)).await,
            method::TOOLS_CALL => Box::pin(self.call_tool(request)).await,
            method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => self.task(&request).await,
            method::LISTEN => Box::pin(self.listen(&request)).await,
            _ => Box::pin(self.relay(request)).await,
        }
    }

    async fn discover(&self, request: &StatelessRequestContext<'_>) -> FaceResponse {
        match self.served.upstream.handshake(&self.context(request)).await {
            Ok(handshake) => {
                self.cache_identity(&handshake);
                request.addressee.result(discover_result(&handshake.description()))
            }
            Err(error) => request.addressee.fault(&error.into_fault()),
        }
    }

    /// Fetches the server's name before the first result, so that no result depends on earlier requests (MOD-17).
    async fn ensure_identity(&self, request: &StatelessRequestContext<'_>) -> Result<(), BeginError> {
        if self.identity.read().is_none() {
            let handshake = self.served.upstream.handshake(&self.context(request)).await?;
            self.cache_identity(&handshake);
        }
        Ok(())
    }

    fn cache_identity(&self, handshake: &Handshake) {
        let info = handshake.server_info.as_ref().map_or_else(own_identity, short_identity);
        *self.identity.write() = Some(ServerIdentity::of(info));
    }

    async fn list_tools(&self, request: &StatelessRequestContext<'_>) -> FaceResponse {
        if sent_cursor(request.params).is_some() {
            return request.addressee.complaint(&no_such_cursor());
        }
        if let Err(error) = self.ensure_identity(request).await {
            return request.addressee.fault(&error.into_fault());
        }
        match self.catalog.list(&self.context(request)).await {
            Ok(list) => {
                let fallback = self.fallback_for(&request.metadata).map(|fallback| fallback.listing(None, None));
                let listed = fallback.and_then(|fallback| fallback.listed(&Object::of(list.result())?));
                let listed = listed.as_ref().unwrap_or_else(|| list.result());
                let reachable = Object::of(listed).and_then(|list| self.reachable_tools(request).listed(&list));
                let shown = reachable.as_ref().unwrap_or(listed);
                let shown = completed_result(method::TOOLS_LIST, shown, &self.identity());
                let held = self.served.engine.within_budget(&request.caller.principal, shown);
                held.map_or_else(|full| request.addressee.fault(&full), |shown| request.addressee.result(shown))
            }
            Err(CatalogError::Gateway(fault)) => request.addressee.fault(&fault),
            Err(CatalogError::Upstream(error)) => request.addressee.error(StatusCode::OK, &error),
        }
    }

    fn reachable_tools(&self, request: &StatelessRequestContext<'_>) -> ReachableTools {
        ReachableTools::new(self.asked(request).access, self.fallback_for(&request.metadata))
    }

    fn asked<'a>(&'a self, request: &'a StatelessRequestContext<'_>) -> AskedAccess<'a> {
        AskedAccess::new(&self.served.engine, &request.caller, self.served.upstream.name())
    }

    async fn call_tool(&self, request: Box<StatelessRequestContext<'_>>) -> FaceResponse {
        if self.is_own_tool_call(request.method, Some(request.params))
            && let Some(response) = Box::pin(self.own_tool_call(&request)).await
        {
            return response;
        }
        match self.decide_call(&request).await {
            Ok(decision) => self.run_call(request, &decision).await,
            Err(refusal) => *refusal,
        }
    }

    /// Checks a call against its tool's list entry and the operator's rules.
    async fn decide_call(&self, request: &StatelessRequestContext<'_>) -> Result<CallDecision, Box<FaceResponse>> {
        let refuse = |complaint: &RequestError| Box::new(request.addressee.complaint(complaint));
        let tool: Arc<str> = tool_name(Some(request.params)).map_err(|complaint| refuse(&complaint))?.into();
        let unknown = || refuse(&RequestError::unknown_tool(Some(request.params)));
        let asked = self.asked(request);
        if let Some(refusal) = asked.refusal_of(method::TOOLS_CALL, Some(request.params)) {
            let complain = |complaint: &RequestError| request.addressee.complaint(complaint);
            return Err(Box::new(refusal.answer(&request.addressee, complain)));
        }
        let policy = self.served.settings.rules.policy_of(&tool);
        let hides_some = asked.access.is_narrowed() || self.served.channel.hides_tools();
        let list = match self.last_list_with(&tool, request) {
            Some(list) => list,
            None => {
                let list = async { self.catalog.list_to_call(&tool, &self.context(request), &self.served.scope).await };
                let list = tokio::time::timeout_at(request.arrived + policy.deadline, Box::pin(list)).await;
                match list.unwrap_or(Err(CatalogError::Gateway(HANDSHAKE_LATE))) {
                    // What hinders the list is not the outcome of the call: the server decides about the tool (T-72).
                    Err(CatalogError::Upstream(_)) if !hides_some => ToolList::empty(),
                    list => list.map_err(|error| Box::new(request.unsent(&error)))?,
                }
            }
        };
        let listed = list.tool_to_call(&tool, hides_some).ok_or_else(unknown)?;
        // Few tools have mirrored arguments; other arguments, which may be large, are not parsed.
        if request.carriage == MessageChannel::Request && !listed.mirrored.is_empty() {
            let arguments = request.params.get_object("arguments");
            headers::check_arguments(&listed.mirrored, request.headers, arguments.as_ref())
                .map_err(|complaint| refuse(&complaint))?;
        }
        self.served
            .check_arguments(&request.caller.principal, &tool, request.params)
            .map_err(|complaint| refuse(&complaint))?;
        let (policy, takes_tasks) = tasks::takes_tasks(&request.metadata, policy);
        let plan = policy.mode.plan(takes_tasks, policy.grace);
        let plan = if list.tool(&tool).is_none() { plan.waiting(policy.grace) } else { plan };
        if plan == Plan::Refuse {
            return Err(refuse(&StatelessRequest::needs_extension()));
        }
        let idempotency = if request.has_key {
            let names = idempotency_key::IdempotencyScope::of(&request.caller.principal, None);
            let upstream = self.served.upstream.name();
            let read = idempotency_key::read(request.headers, request.params, names, upstream, &tool);
            read.map_err(|complaint| refuse(&complaint))?
        } else {
            None
        };
        let plan = match plan {
            // A client that supports handles gets one at once: a repetition finds the task.
            Plan::Grace(_) if idempotency.is_some() && takes_tasks != HandleSupport::ByTools => Plan::Task,
            Plan::Grace(_) | Plan::Task | Plan::Direct | Plan::Refuse => plan,
        };
        let native = native_task(listed.task_support, plan, policy.deadline);
        let (is_repeatable, mirrored) = (listed.is_repeatable, listed.mirrored.clone());
        Ok(CallDecision { tool, policy, plan, idempotency, native, is_repeatable, mirrored })
    }

    fn last_list_with(&self, tool: &str, request: &StatelessRequestContext<'_>) -> Option<Arc<ToolList>> {
        let (principal, credential) = (&request.caller.principal, request.forwarded.credential());
        self.catalog.last_with(tool, principal, &credential, &request.metadata.upstream_capabilities())
    }

    async fn run_call(&self, request: Box<StatelessRequestContext<'_>>, decision: &CallDecision) -> FaceResponse {
        let end = request.arrived + decision.policy.deadline;
        let identified = within(end, pin!(self.ensure_identity(&request))).await;
        match identified.unwrap_or(Err(BeginError::Gateway(HANDSHAKE_LATE))).map_err(BeginError::into_fault) {
            Ok(()) => self.run(request, decision).await,
            Err(fault) => request.unsent(&CatalogError::Gateway(fault)),
        }
    }

    async fn relay(&self, request: Box<StatelessRequestContext<'_>>) -> FaceResponse {
        if let Err(error) = self.ensure_identity(&request).await {
            return request.addressee.fault(&error.into_fault());
        }
        let (tool, policy) = (Arc::default(), self.served.settings.rules.default.clone());
        let plain = CallDecision {
            tool,
            policy,
            plan: Plan::Direct,
            idempotency: None,
            native: UpstreamTaskMode::Never,
            is_repeatable: false,
            mirrored: Vec::new(),
        };
        self.run(request, &plain).await
    }

    async fn run(&self, request: Box<StatelessRequestContext<'_>>, decision: &CallDecision) -> FaceResponse {
        let &CallDecision { ref tool, ref policy, plan, idempotency, native, is_repeatable, mirrored: _ } = decision;
        let rounds = RoundSupport::of(request.method);
        if rounds == RoundSupport::Allowed && request.params.contains("requestState") {
            return Box::pin(self.resume_held_call(request, policy.clone(), plan)).await;
        }
        let maker = CallMaker {
            principal: request.caller.principal.clone(),
            kind: ClientKind::Stateless,
            capabilities: request.metadata.upstream_capabilities(),
            questions: questions_for(&request.metadata),
            forwarded: request.forwarded.clone(),
            arrived: request.arrived,
        };
        let tool = (request.method == method::TOOLS_CALL).then(|| (Arc::clone(tool), policy.clone()));
        let plain = plain_request(request.method, Some(request.params));
        let mut spec = self.served.target().plain_call(maker, plain, tool);
        spec.context.progress = request.metadata.progress_token.is_some() || plan != Plan::Direct;
        spec.context.log_level = request.metadata.log_level.map(|level| Arc::from(level.as_str()));
        spec.context.native_task = native;
        let is_named = idempotency.is_some();
        let mut call = self.served.engine.call(CallSpec { plan, idempotency, is_repeatable, rounds, ..spec });
        let promotable = if plan == Plan::Direct { Promotable::No } else { Promotable::Yes };
        let waits = plan == Plan::Task && !is_named && request.forwarded.credential().is_forwarded();
        let first = match waits {
            true => Box::pin(handle_delay::first_event(&self.served.engine, &mut call, request.forwarded)).await,
            false => Ok(None),
        };
        match first {
            Ok(first) => self.respond(request, promotable, first, call).await,
            Err(fault) => request.addressee.fault(&fault),
        }
    }

    fn view<D: FaceDialect + 'static>(
        &self,
        request: StatelessRequestContext<'_>,
        promotable: Promotable,
        dialect: D,
    ) -> Box<CallView<D>> {
        Box::new(CallView {
            rounds: self.seal_for(&request),
            shown: self.list_edit(&request),
            method: request.message.method.clone(),
            uri: (request.method == method::RESOURCES_READ).then(|| request.params.get_string("uri")).flatten(),
            server_info: self.identity(),
            notices: CallNotices {
                progress: request.metadata.progress_token.clone().map(MonotonicProgress::new),
                life_signs: self.served.settings.life_signs,
                logs: request.metadata.log_level.map_or(LogFilter::None, LogFilter::From),
                limits: ReadLimits::within(0, self.served.engine.limits().answers_to(&request.caller.principal)),
            },
            metadata: request.metadata,
            promotable,
            dialect,
            addressee: request.addressee,
        })
    }

    fn list_edit(&self, request: &StatelessRequestContext<'_>) -> Option<ResultEdit> {
        let items = self.reachable_tools(request);
        let is_narrowed = items.narrow_list_of(request.method);
        is_narrowed.then(|| ResultEdit(Box::new(move |result| items.listed(&Object::of(result)?))))
    }

    fn context(&self, request: &StatelessRequestContext<'_>) -> CallContext {
        self.served.context(&request.caller.principal, request.metadata.upstream_capabilities(), request.forwarded)
    }

    fn identity(&self) -> Payload {
        self.identity.read().as_ref().map_or_else(own_identity, |known| known.info.clone())
    }

    fn dialect(&self) -> ExtTasks {
        let known = self.identity.read().as_ref().map(|known| known.meta.clone());
        ExtTasks::new(known.unwrap_or_else(|| server_meta(&own_identity())))
    }
}

/// The methods of 2026-07-28 that are served in front of a session upstream (MOD-09).
fn is_served(name: &str) -> bool {
    ExtTasks::is_method(name)
        || matches!(
            name,
            method::DISCOVER
                | method::TOOLS_LIST
                | method::TOOLS_CALL
                | method::PROMPTS_LIST
                | method::PROMPTS_GET
                | method::RESOURCES_LIST
                | method::RESOURCES_TEMPLATES_LIST
                | method::RESOURCES_READ
                | method::COMPLETE
                | method::LISTEN
        )
}

/// Whether the upstream should make its own task of a call (GW-11): if its tool requires that, or it is optional and
/// the call may become a task here.
const fn native_task(support: ToolTaskSupport, plan: Plan, deadline: Duration) -> UpstreamTaskMode {
    match (support, plan) {
        (ToolTaskSupport::Required, _) | (ToolTaskSupport::Optional, Plan::Grace(_) | Plan::Task) => {
            UpstreamTaskMode::WhereServed { deadline }
        }
        (ToolTaskSupport::Optional, Plan::Direct | Plan::Refuse) | (ToolTaskSupport::Forbidden, _) => {
            UpstreamTaskMode::Never
        }
    }
}
