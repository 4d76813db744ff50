//! Decides whether a call becomes a task: at once, after a grace period, or not at all.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use wildmatch::WildMatch;

use super::Principal;

/// What the operator says about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskMode {
    /// Plain calls only.
    Never,
    /// A task once the call outlives the grace period.
    Auto,
    /// A task before the upstream is called, for clients that can.
    Always,
    /// Only as a task.
    Required,
}

/// What becomes of a call that was in flight when the gateway ended, and cannot be taken up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// It settles as a fault: nobody knows whether it ran.
    #[default]
    Fail,
    /// It is sent again where the tool's annotations say that this does no harm.
    RerunIfSafe,
    /// It is sent again.
    Rerun,
}

impl AfterCrash {
    /// Whether a call may be sent again. `is_repeatable` is what the tool's annotations say: hints, which count only
    /// where the operator lets them (GW-39).
    #[must_use]
    pub const fn may_rerun(self, is_repeatable: bool) -> bool {
        match self {
            Self::Fail => false,
            Self::RerunIfSafe => is_repeatable,
            Self::Rerun => true,
        }
    }
}

/// What becomes of a question that comes before there is a handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyInput {
    /// It makes the handle, and is asked in the task.
    #[default]
    Task,
    /// It is asked first, and the handle comes after the answer.
    AskFirst,
}

/// What a client without tasks gets of a call that outlives its grace period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackPolicy {
    /// The call is held to its end.
    #[default]
    Hold,
    /// A result that says so; the rest is had by tools of the gateway's own.
    Tools,
}

/// Bounds of a tool's calls that are there only where an operator sets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Largest arguments, as the client wrote them.
    pub arguments_bytes_max: Option<usize>,
    /// How long the upstream may be silent before its answer begins; without it, what holds for all its calls.
    pub first_byte_max: Option<Duration>,
    /// The same between two parts of the answer.
    pub idle_max: Option<Duration>,
}

/// How a call with a list in it is run: as one call for each element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// The member of the arguments that is the list.
    pub argument: Arc<str>,
    /// Calls that run side by side.
    pub parallel: NonZeroUsize,
    /// Elements that a call may have.
    pub max: NonZeroUsize,
}

/// The rules for one tool, all of them decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolPolicy {
    pub mode: TaskMode,
    pub grace: Duration,
    pub ttl: Duration,
    /// The longest `ttl` that a client may ask for.
    pub ttl_max: Duration,
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
    /// The longest that the upstream call may run, from its dispatch.
    pub deadline: Duration,
    pub early_input: EarlyInput,
    pub after_crash: AfterCrash,
    /// How long a question waits for its answer; then the upstream is told that nobody will give one.
    pub input_deadline: Duration,
    /// Largest result that is kept.
    pub result_bytes_max: usize,
    /// What a client may hand to its model while the task runs; only 2025-11-25 has room for it.
    pub immediate_response: Option<Arc<str>>,
    pub limits: CallLimits,
    pub fallback: FallbackPolicy,
    /// Where calls with a list are split.
    pub split: Option<Arc<SplitRule>>,
}

/// Where anybody may come, whoever knows a task's id may read it: such ids live shortly.
pub const TTL_MAX_ANONYMOUS: Duration = Duration::from_secs(60 * 60);

impl ToolPolicy {
    /// The same rules for the tasks of `owner`: those of nobody in particular are kept for [`TTL_MAX_ANONYMOUS`] at most.
    #[must_use]
    pub fn for_owner(self, owner: &Principal) -> Self {
        if owner.is_identified() {
            return self;
        }
        let short = |span: Duration| span.min(TTL_MAX_ANONYMOUS);
        let (ttl, ttl_max, keep_result_min) = (short(self.ttl), short(self.ttl_max), short(self.keep_result_min));
        Self { ttl, ttl_max, keep_result_min, ..self }
    }

    /// Whether a client without tasks may be answered with a word of the call's task.
    #[must_use]
    pub fn falls_back_to_tools(&self) -> bool {
        self.fallback == FallbackPolicy::Tools && self.mode != TaskMode::Never
    }

    /// The same rules for such a client: it can answer questions only while it waits, so they come first.
    #[must_use]
    pub fn asking_first(self) -> Self {
        Self { early_input: EarlyInput::AskFirst, ..self }
    }
}

/// What to do with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Hold the call and answer it.
    Direct,
    /// Hold it for this long, then hand out a handle.
    Grace(Duration),
    /// Hand out a handle before the upstream is called.
    Task,
    /// Only works as a task, and this client cannot have one.
    Refuse,
}

impl Plan {
    /// The same for a tool that no list names: no handle before this grace is over. The server may refuse the call at once, and a
    /// task that can only fail helps no client (T-72).
    #[must_use]
    pub fn waiting(self, grace: Duration) -> Self {
        if self == Self::Task { Self::Grace(grace) } else { self }
    }
}

impl TaskMode {
    /// Decides for one call. `takes_tasks` says whether this request may be answered with a handle
    /// and whether the answer may wait for a grace period.
    #[must_use]
    pub const fn plan(self, takes_tasks: HandleSupport, grace: Duration) -> Plan {
        match (self, takes_tasks) {
            (Self::Never, _) | (Self::Auto | Self::Always, HandleSupport::No) => Plan::Direct,
            (Self::Required, HandleSupport::No) => Plan::Refuse,
            (Self::Auto, HandleSupport::AfterGrace)
            | (Self::Auto | Self::Always | Self::Required, HandleSupport::ByTools) => Plan::Grace(grace),
            (Self::Auto, HandleSupport::AtOnce)
            | (Self::Always | Self::Required, HandleSupport::AfterGrace | HandleSupport::AtOnce) => Plan::Task,
        }
    }
}

/// What kind of handle a request can be answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleSupport {
    No,
    /// Leaves it to the gateway, so that a fast call may stay plain (the extension).
    AfterGrace,
    /// Asked for a task and must get one, however fast the call is (2025-11-25, T-79).
    AtOnce,
    /// Knows no tasks: a result that speaks of one stands for the handle ([`FallbackPolicy::Tools`]). Tools are never made
    /// tasks at once for it, as what is quick needs no second call then.
    ByTools,
}

/// The rules of one upstream: patterns in order, the first match wins.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRules {
    pub patterns: Vec<(WildMatch, ToolPolicy)>,
    /// What holds for a tool that no pattern names.
    pub default: ToolPolicy,
}

impl ToolRules {
    /// Whether a tool runs as a task, by the name that clients see.
    #[must_use]
    pub fn mode_of(&self, tool: &str) -> TaskMode {
        self.rule(tool).mode
    }

    /// The bounds of a tool's calls, by the name that clients see.
    #[must_use]
    pub fn limits_of(&self, tool: &str) -> CallLimits {
        self.rule(tool).limits
    }

    /// Whether a call of this tool may be answered with a word of its task, where its client knows none; by the name
    /// that clients see.
    #[must_use]
    pub fn falls_back_to_tools(&self, tool: &str) -> bool {
        self.rule(tool).falls_back_to_tools()
    }

    /// Whether calls of any tool may.
    #[must_use]
    pub fn any_falls_back_to_tools(&self) -> bool {
        self.default.falls_back_to_tools() || self.patterns.iter().any(|(_, policy)| policy.falls_back_to_tools())
    }

    /// How calls of a tool are split, by the name that clients see.
    #[must_use]
    pub fn split_of(&self, tool: &str) -> Option<&Arc<SplitRule>> {
        self.rule(tool).split.as_ref()
    }

    /// Whether calls of any tool are split.
    #[must_use]
    pub fn any_is_split(&self) -> bool {
        self.default.split.is_some() || self.patterns.iter().any(|(_, policy)| policy.split.is_some())
    }

    /// What holds for a tool, by the name that clients see.
    #[must_use]
    pub fn rule(&self, tool: &str) -> &ToolPolicy {
        self.patterns.iter().find(|(pattern, _)| pattern.matches(tool)).map_or(&self.default, |(_, policy)| policy)
    }

    /// The policy of a tool, by the name that clients see.
    #[must_use]
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
