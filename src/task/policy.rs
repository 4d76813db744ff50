//! Decides whether a call becomes a task: at once, after a grace period, or never.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use wildmatch::WildMatch;

use super::Principal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskMode {
    Never,
    /// A task once the call outlives the grace period.
    Auto,
    /// A task before the upstream is called, for clients that support tasks.
    Always,
    /// As `Always`; where no handle is possible, the plan is [`Plan::Refuse`].
    Required,
}

/// A call's treatment if the gateway ended during it and cannot resume it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// The call settles as a fault: it may or may not have run.
    #[default]
    Fail,
    /// The call is sent again if the tool's annotations call that harmless.
    RerunIfSafe,
    Rerun,
}

impl AfterCrash {
    /// `is_repeatable` is the tool's annotation, a hint that counts only if the operator allows it (GW-39).
    pub const fn may_rerun(self, is_repeatable: bool) -> bool {
        match self {
            Self::Fail => false,
            Self::RerunIfSafe => is_repeatable,
            Self::Rerun => true,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyInput {
    /// The question creates the handle, and is asked in the task.
    #[default]
    Task,
    /// The question is asked first, and the handle follows the answer.
    AskFirst,
}

/// How a client without task support gets a call that outlives its grace period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackPolicy {
    #[default]
    Hold,
    /// A result points to the gateway's own task tools.
    Tools,
}

/// Limits on a tool's calls that apply only if an operator sets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Maximum size of the arguments, as the client wrote them.
    pub arguments_bytes_max: Option<usize>,
    /// Maximum silence of the upstream before its answer starts; by default, the upstream's limit applies.
    pub first_byte_max: Option<Duration>,
    pub idle_max: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRule {
    pub argument: Arc<str>,
    pub parallel: NonZeroUsize,
    pub max: NonZeroUsize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolPolicy {
    pub mode: TaskMode,
    pub grace: Duration,
    pub ttl: Duration,
    /// The longest `ttl` that a client may request.
    pub ttl_max: Duration,
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
    /// The longest time that the upstream call may run, from its dispatch.
    pub deadline: Duration,
    pub early_input: EarlyInput,
    pub after_crash: AfterCrash,
    /// How long a question waits for its answer; then the upstream is notified that there will be none.
    pub input_deadline: Duration,
    pub result_bytes_max: usize,
    /// A text that the client may give its model while the task runs; only 2025-11-25 supports it.
    pub immediate_response: Option<Arc<str>>,
    pub limits: CallLimits,
    pub fallback: FallbackPolicy,
    pub split: Option<Arc<SplitRule>>,
}

/// Without authentication, knowing a task's id suffices to read it: such tasks have a short `ttl`.
pub const TTL_MAX_ANONYMOUS: Duration = Duration::from_secs(60 * 60);

impl ToolPolicy {
    #[must_use]
    pub fn for_owner(self, owner: &Principal) -> Self {
        if owner.is_identified() {
            return self;
        }
        let short = |span: Duration| span.min(TTL_MAX_ANONYMOUS);
        let (ttl, ttl_max, keep_result_min) = (short(self.ttl), short(self.ttl_max), short(self.keep_result_min));
        Self { ttl, ttl_max, keep_result_min, ..self }
    }

    /// Whether a client without task support may get a result that points to the task tools.
    pub fn falls_back_to_tools(&self) -> bool {
        self.fallback == FallbackPolicy::Tools && self.mode != TaskMode::Never
    }

    /// The policy for such a client: questions come first, since it can answer them only while it waits.
    #[must_use]
    pub fn asking_first(self) -> Self {
        Self { early_input: EarlyInput::AskFirst, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Hold the call and answer it.
    Direct,
    /// Hold it for this long, then return a handle.
    Grace(Duration),
    /// Return a handle before the upstream is called.
    Task,
    /// The tool works only as a task, which this client does not support: its face refuses the call, and hidden calls are held.
    Refuse,
}

impl Plan {
    /// The plan for an unlisted tool: no handle before grace is over, as a call that must fail needs no task (T-72).
    #[must_use]
    pub fn waiting(self, grace: Duration) -> Self {
        if self == Self::Task { Self::Grace(grace) } else { self }
    }
}

impl TaskMode {
    /// `support`: whether this request may be answered with a handle, and the answer may wait for a grace period.
    pub const fn plan(self, support: HandleSupport, grace: Duration) -> Plan {
        match (self, support) {
            (Self::Never, _) | (Self::Auto | Self::Always, HandleSupport::No) => Plan::Direct,
            (Self::Required, HandleSupport::No) => Plan::Refuse,
            (Self::Auto, HandleSupport::AfterGrace)
            | (Self::Auto | Self::Always | Self::Required, HandleSupport::ByTools) => Plan::Grace(grace),
            (Self::Auto, HandleSupport::AtOnce)
            | (Self::Always | Self::Required, HandleSupport::AfterGrace | HandleSupport::AtOnce) => Plan::Task,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleSupport {
    No,
    /// The gateway decides, so that a fast call stays plain (the extension).
    AfterGrace,
    /// The client requested a task and must get one, however fast the call is (2025-11-25, T-79).
    AtOnce,
    /// The client knows no tasks: a result that points to the task tools replaces the handle
    /// ([`FallbackPolicy::Tools`]). Its calls never become tasks at once, since a fast one needs no second call.
    ByTools,
}

/// One upstream's policies by client-visible tool names: the first matching pattern decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRules {
    pub patterns: Vec<(WildMatch, ToolPolicy)>,
    pub default: ToolPolicy,
}

impl ToolRules {
    pub fn mode_of(&self, tool: &str) -> TaskMode {
        self.rule(tool).mode
    }

    /// Whether a call of this tool may get a result that points to the task tools; by its client-visible name.
    pub fn falls_back_to_tools(&self, tool: &str) -> bool {
        self.rule(tool).falls_back_to_tools()
    }

    pub fn any_falls_back_to_tools(&self) -> bool {
        self.default.falls_back_to_tools() || self.patterns.iter().any(|(_, policy)| policy.falls_back_to_tools())
    }

    /// How a tool's calls are split, by its client-visible name.
    pub fn split_of(&self, tool: &str) -> Option<&Arc<SplitRule>> {
        self.rule(tool).split.as_ref()
    }

    pub fn any_is_split(&self) -> bool {
        self.default.split.is_some() || self.patterns.iter().any(|(_, policy)| policy.split.is_some())
    }

    /// Whether any call's arguments have a limit beside the message's.
    pub fn any_bounds_arguments(&self) -> bool {
        let bounds = |policy: &ToolPolicy| policy.split.is_some() || policy.limits.arguments_bytes_max.is_some();
        bounds(&self.default) || self.patterns.iter().any(|(_, policy)| bounds(policy))
    }

    pub fn rule(&self, tool: &str) -> &ToolPolicy {
        self.patterns.iter().find(|(pattern, _)| pattern.matches(tool)).map_or(&self.default, |(_, policy)| policy)
    }

    pub fn policy_of(&self, tool: &str) -> ToolPolicy {
        self.rule(tool).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_and_client_has_the_plan_of_the_table() {
        use {HandleSupport::*, TaskMode::*};
        let grace = Duration::from_secs(2);
        for (mode, client, plan) in [
            (Never, No, Plan::Direct),
            (Never, AfterGrace, Plan::Direct),
            (Never, AtOnce, Plan::Direct),
            (Auto, No, Plan::Direct),
            (Auto, AfterGrace, Plan::Grace(grace)),
            (Auto, AtOnce, Plan::Task),
            (Always, No, Plan::Direct),
            (Always, AfterGrace, Plan::Task),
            (Always, AtOnce, Plan::Task),
            (Required, No, Plan::Refuse),
            (Required, AfterGrace, Plan::Task),
            (Required, AtOnce, Plan::Task),
            (Never, ByTools, Plan::Direct),
            (Auto, ByTools, Plan::Grace(grace)),
            (Always, ByTools, Plan::Grace(grace)),
            (Required, ByTools, Plan::Grace(grace)),
        ] {
            assert_eq!(mode.plan(client, grace), plan, "{mode:?} {client:?}");
        }
    }
}
