//! Defines the settings that all calls of one upstream share, and builds a call.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

use super::call::{CallSpec, QuestionFilter, RoundSupport};
use crate::dialect::plain;
use crate::task::{ClientKind, Draft, Drafts, Plan, Principal, SubtaskLimits, ToolPolicy, ToolRules};
use crate::upstream::limits::CallPermits;
use crate::upstream::{
    CallContext, ForwardedHeaders, ForwardingRules, SubtaskQuota, Timeouts, Upstream, UpstreamRequest,
};
use crate::wire::{Object, Payload, method};

/// The operator's settings of one upstream, for the faces that serve its clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSettings {
    pub rules: ToolRules,
    pub queue_deadline: Duration,
    /// Silence that is allowed for methods other than `tools/call`.
    pub timeouts: Timeouts,
    /// Silence that `tools/call` may have: unlimited by default, as a server that answers in JSON is silent to its end.
    pub call_timeouts: Timeouts,
    /// The largest response, in bytes, that is parsed or edited for methods other than `tools/call`.
    pub result_bytes_max: usize,
    /// Whether silence is signalled as progress, not as a comment, to clients that request progress.
    pub life_signs: bool,
    pub forwarding: ForwardingRules,
    pub drafts: Drafts,
    pub subtasks: SubtaskLimits,
}

#[derive(Clone, Debug)]
pub struct CallTarget {
    pub upstream: Arc<dyn Upstream>,
    pub permits: Arc<CallPermits>,
    pub settings: Arc<ServiceSettings>,
}

pub struct CallMaker {
    pub principal: Principal,
    pub kind: ClientKind,
    /// The `ClientCapabilities` object that is declared to the upstream.
    pub capabilities: Payload,
    pub questions: QuestionFilter,
    pub forwarded: ForwardedHeaders,
    pub arrived: Instant,
}

impl CallTarget {
    /// A plain request by the gateway: no task, rounds, progress or logs. `tool`: name and policy for `tools/call`.
    pub fn plain_call(
        self,
        maker: CallMaker,
        request: UpstreamRequest,
        tool: Option<(Arc<str>, ToolPolicy)>,
    ) -> CallSpec {
        let Self { upstream, permits, settings } = self;
        let (timeouts, result_bytes_max) = match &tool {
            Some((_, policy)) => (settings.call_timeouts.of_tool(policy.limits), policy.result_bytes_max),
            None => (settings.timeouts, settings.result_bytes_max),
        };
        let context = CallContext::new(maker.principal.clone(), maker.capabilities, timeouts, result_bytes_max);
        let are_wanted = tool.is_some() && settings.drafts.has(Draft::Sep2268);
        let names_max = settings.subtasks.names_max();
        let subtasks = if are_wanted { SubtaskQuota::new(names_max) } else { SubtaskQuota::default() };
        let (permits, deadline) = (tool.is_some().then_some(permits), tool.as_ref().map(|(_, policy)| policy.deadline));
        let (tool, policy) = tool.unwrap_or_else(|| (Arc::from(""), settings.rules.default.clone()));
        CallSpec {
            owner: maker.principal,
            client: maker.kind,
            upstream,
            permits,
            queue_deadline: settings.queue_deadline,
            request,
            context: CallContext { forwarded: maker.forwarded, subtasks, deadline, ..context },
            tool,
            policy,
            plan: Plan::Direct,
            idempotency: None,
            chosen: None,
            arrived: maker.arrived,
            is_repeatable: false,
            questions: maker.questions,
            rounds: RoundSupport::Unknown,
            notice_sink: None,
            sees_subtasks: false,
            subtask_limits: settings.subtasks,
        }
    }
}

debug_members!(CallMaker, |maker| kind: maker.kind);

/// A client's request as a server receives it: without the fields that only the gateway's clients use.
pub fn plain_request(method: &str, params: Option<&Object>) -> UpstreamRequest {
    static TOOLS_CALL: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(method::TOOLS_CALL));
    let method = if method == method::TOOLS_CALL { Arc::clone(&TOOLS_CALL) } else { Arc::from(method) };
    UpstreamRequest { method, params: params.map(plain::encode_params) }
}
