//! Judges rows without a runner: decides how calls of earlier processes continue or end.

use std::time::Duration;

use crate::metric;
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Attempt, Executed, Failure, GatewayFault, Phase, Reason, Task, TaskVisibility, Timestamp, ToolPolicy,
};
use crate::upstream::{ResumeToken, UpstreamTaskMode};

/// Limit of times that one call is sent, in all processes together.
pub(super) const ATTEMPTS_MAX: Attempt = Attempt(3);

/// A call is not resumed again after this many processes that resumed it ended without a sign of the upstream.
const CRASHES_MAX: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RecoveryAction {
    /// Send it: it certainly was not sent.
    Dispatch,
    /// Resume its exchange; if that fails, resend it if allowed.
    Resume(ResumeToken),
    Resend,
    Watch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RecoveryDecision {
    Leave,
    /// Cancel it at its upstream, if that is configured.
    Notify,
    Settle(Failure),
    Expire,
    Run(RecoveryAction),
}

/// Judges a row without a runner. `policy` is its tool's, if its upstream is configured; `why_lost` is for lost calls.
pub(in crate::engine) fn verdict(
    task: &Task,
    policy: Option<&ToolPolicy>,
    now: Timestamp,
    why_lost: Reason,
) -> RecoveryDecision {
    let recovery = &task.recovery;
    let lost = |reason, executed| RecoveryDecision::Settle(Failure::Gateway(GatewayFault::new(reason, executed)));
    if task.is_settled() {
        return if recovery.must_notify_upstream() { RecoveryDecision::Notify } else { RecoveryDecision::Leave };
    }
    if task.expires_at() <= now {
        return RecoveryDecision::Expire;
    }
    let is_queued = matches!(task.phase, Phase::Queued);
    // Subtasks are judged separately. A split call is never resent whole; a resent call's children are the server's.
    let is_split = !task.tree.children.is_empty() && recovery.resume.is_none() && task.attempt == Attempt::FIRST;
    let unknown = lost(why_lost, if is_queued { Executed::No } else { Executed::Unknown });
    // No client holds a valid reference to a hidden task.
    let Some(policy) = policy.filter(|_| task.visibility.outlives_client()) else { return unknown };
    if is_split {
        return RecoveryDecision::Run(RecoveryAction::Watch);
    }
    let sendable = recovery.call.as_ref().filter(|call| call.can_be_sent());
    if is_queued {
        return if sendable.is_some() { RecoveryDecision::Run(RecoveryAction::Dispatch) } else { unknown };
    }
    if recovery.crashes >= CRASHES_MAX {
        return lost(Reason::Poison, Executed::Unknown);
    }
    if let Some(position) = &recovery.resume {
        return RecoveryDecision::Run(RecoveryAction::Resume(ResumeToken(position.clone())));
    }
    match sendable {
        Some(call) if policy.after_crash.may_rerun(call.is_repeatable) && task.attempt < ATTEMPTS_MAX => {
            RecoveryDecision::Run(RecoveryAction::Resend)
        }
        Some(_) | None => unknown,
    }
}

/// Replaces a decision to run a call that was made with its client's credential, which only the first process had.
pub(in crate::engine) fn without_credential(verdict: RecoveryDecision, task: &Task) -> RecoveryDecision {
    if !matches!(verdict, RecoveryDecision::Run(_)) {
        return verdict;
    }
    let executed = if matches!(task.phase, Phase::Queued) { Executed::No } else { Executed::Unknown };
    RecoveryDecision::Settle(Failure::Gateway(GatewayFault::new(Reason::UpstreamAuth, executed)))
}

pub(in crate::engine) fn record(task: &Task, verdict: &RecoveryDecision) {
    let outcome = match verdict {
        RecoveryDecision::Leave => return,
        RecoveryDecision::Notify => "notified",
        RecoveryDecision::Expire => "settled",
        RecoveryDecision::Settle(_) if task.visibility == TaskVisibility::Hidden => "settled",
        RecoveryDecision::Settle(Failure::Gateway(fault)) if fault.reason == Reason::Poison => {
            tracing::error!(
                task = %LoggedTask(&task.key), upstream = %task.origin.upstream, tool = %task.origin.tool,
                "the gateway ended three times in a row while this call was in flight; it is not resumed any more"
            );
            "poison"
        }
        RecoveryDecision::Settle(_) => "failed",
        RecoveryDecision::Run(RecoveryAction::Dispatch) => "dispatched",
        RecoveryDecision::Run(RecoveryAction::Resume(_)) => "resumed",
        RecoveryDecision::Run(RecoveryAction::Resend) => "rerun",
        RecoveryDecision::Run(RecoveryAction::Watch) => "split",
    };
    metrics::counter!(metric::RECOVERED, "outcome" => outcome).increment(1);
    let principal = LoggedPrincipal(&task.key.owner);
    let (upstream, tool, crashes) = (&task.origin.upstream, &task.origin.tool, task.recovery.crashes);
    tracing::info!(task = %LoggedTask(&task.key), %principal, %upstream, %tool, crashes, outcome, "a task of an earlier process");
}

/// Whether a resumed or resent call may be the upstream's task, and for how long; a resumed call always may.
pub(in crate::engine) fn task_mode(task: &Task, policy: &ToolPolicy, now: Timestamp) -> UpstreamTaskMode {
    match &task.recovery.resume {
        Some(_) => UpstreamTaskMode::WhereServed { deadline: left(task, policy, now) },
        None => resend_mode(task, policy),
    }
}

/// A call that is sent again may run as long as the first time, and asks for a task if it did then.
pub(super) fn resend_mode(task: &Task, policy: &ToolPolicy) -> UpstreamTaskMode {
    match task.recovery.call.as_ref().is_some_and(|call| call.is_native) {
        true => UpstreamTaskMode::WhereServed { deadline: policy.deadline },
        false => UpstreamTaskMode::Never,
    }
}

fn left(task: &Task, policy: &ToolPolicy, now: Timestamp) -> Duration {
    let ran = task.recovery.dispatched_at.map_or(Duration::ZERO, |at| now.since(at));
    policy.deadline.saturating_sub(ran)
}

#[cfg(test)]
#[path = "verdict/tests.rs"]
mod tests;
