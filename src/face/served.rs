//! Defines the state of one upstream that all of its faces share.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::listen_permits::ListenPermits;
use super::rates::Rates;
use super::sealed::{GatewayId, IdKind, Sealer};
use super::session_owners::SessionOwners;
use super::unmatched_rules::UnmatchedRules;
use crate::dialect::RequestError;
use crate::dialect::split_call::elements_in;
use crate::engine::{CallTarget, Engine, ServiceSettings};
use crate::replica::Incarnation;
use crate::task::{Caller, Clock, Principal, ToolAccess};
use crate::upstream::limits::CallPermits;
use crate::upstream::{CallContext, ForwardedHeaders, OwnSessionChannel, SessionMemories, TaskScope, Upstream};
use crate::wire::envelope::Request;
use crate::wire::{Object, Payload, method};

pub struct Served {
    pub settings: Arc<ServiceSettings>,
    /// Compares each tool list, in clients' names, with the rules.
    pub unmatched_rules: Arc<UnmatchedRules>,
    pub engine: Arc<Engine>,
    /// The server, of either era.
    pub upstream: Arc<dyn Upstream>,
    /// The server, for forwarded messages.
    pub channel: Arc<dyn OwnSessionChannel>,
    /// The server, only in the gateway's own sessions: used for tool lists.
    pub pool: Arc<dyn Upstream>,
    pub stateless: Arc<dyn Upstream>,
    /// Whether the operator declares the server stateless: then it is never asked for a session.
    pub is_stateless: bool,
    pub permits: Arc<CallPermits>,
    pub rates: Arc<Rates>,
    /// Permits of long-lived streams, for all upstreams together.
    pub listeners: Arc<ListenPermits>,
    pub sealer: Arc<Sealer>,
    /// The owners of sessions, if several replicas share the store.
    pub owners: Option<Arc<SessionOwners>>,
    /// The clock of tasks, the same on all replicas: a token may be sealed at one and opened at another.
    pub clock: Arc<dyn Clock>,
    /// 128 random bits, new at each call.
    pub random: fn() -> u128,
    pub scope: TaskScope,
    /// Outlives a reload that changes the upstream (F117).
    pub memories: Arc<SessionMemories>,
    /// Ends sessions' streams and subscriptions, which would delay a shutdown.
    pub streams_end: CancellationToken,
    /// Ends subscriptions that may name tasks: a drain cancels it after the last call.
    pub listens_end: CancellationToken,
}

impl Served {
    /// This replica, if there are several: the owner of a session that begins now.
    pub fn own_replica(&self) -> Option<Incarnation> {
        self.owners.as_ref().map(|owners| owners.own())
    }

    /// Seals the id of an object in this process's memory: requests with the id reach this replica.
    pub(super) fn seal_own(&self, kind: IdKind, random: u128) -> String {
        let id = GatewayId::in_memory(kind, self.own_replica(), random);
        self.sealer.seal(&id, None, &[]).expect("an id without a payload has one length")
    }

    /// Whether a caller may see a notification now: not an update of a resource that it may not use (SEC-48).
    pub(super) fn may_see(&self, caller: &Caller, notification: &str, params: Option<&Object>) -> bool {
        if notification != method::RESOURCE_UPDATED {
            return true;
        }
        let access = self.access_of(caller);
        let is_allowed = || params?.get_string("uri").map(|uri| access.has_resource(&uri));
        !access.narrows_others() || is_allowed().unwrap_or_default()
    }

    pub(super) fn visible(&self, caller: &Caller, mut resources: BTreeSet<String>) -> BTreeSet<String> {
        let access = self.access_of(caller);
        if access.narrows_others() {
            resources.retain(|uri| access.has_resource(uri));
        }
        resources
    }

    pub(super) fn access_of(&self, caller: &Caller) -> ToolAccess {
        self.engine.access().tools_of(caller, self.upstream.name())
    }

    /// Compares the arguments' size, and the size of the list by which a call is split, with their tool's limits. Logs
    /// refused calls.
    pub(super) fn check_arguments(&self, owner: &Principal, tool: &str, params: &Object) -> Result<(), RequestError> {
        let (policy, limits) = (self.settings.rules.rule(tool), self.engine.limits());
        if let Some(rule) = &policy.split
            && elements_in(rule, params).is_some_and(|count| count > rule.max.get())
        {
            let (argument, max) = (&rule.argument, rule.max);
            limits.refused(owner, "split.max", &max);
            let what = format!("arguments.{argument} has more than {max} elements, the most that this tool takes");
            return Err(RequestError::Params(what.into()));
        }
        let Some(max) = policy.limits.arguments_bytes_max else { return Ok(()) };
        if params.get("arguments").is_some_and(|arguments| arguments.len() > max) {
            limits.refused(owner, "arguments_bytes_max", &max);
            let what = format!("arguments are larger than {max} bytes, the most that this tool takes");
            return Err(RequestError::Params(what.into()));
        }
        Ok(())
    }

    /// As [`Self::check_arguments`], if the request is a call. One without a tool's name is refused elsewhere.
    pub(super) fn check_call(&self, owner: &Principal, request: &Request) -> Result<(), RequestError> {
        let params = request.params.object().filter(|_| request.method == method::TOOLS_CALL);
        match params.and_then(|params| Some((params.get_str("name")?, params))) {
            Some((tool, params)) => self.check_arguments(owner, &tool, params),
            None => Ok(()),
        }
    }

    /// For requests other than calls: without progress and log messages.
    pub(super) fn context(
        &self,
        asker: &Principal,
        capabilities: Payload,
        forwarded: &ForwardedHeaders,
    ) -> CallContext {
        let (timeouts, result_bytes_max) = (self.settings.timeouts, self.settings.result_bytes_max);
        let context = CallContext::new(asker.clone(), capabilities, timeouts, result_bytes_max);
        let share = Some(self.engine.limits().answers_to(asker));
        CallContext { forwarded: forwarded.of_credential(), share, ..context }
    }

    pub fn target(&self) -> CallTarget {
        CallTarget {
            upstream: Arc::clone(&self.upstream),
            permits: Arc::clone(&self.permits),
            settings: Arc::clone(&self.settings),
        }
    }
}

debug_members!(Served, |served| upstream: served.upstream.name());
