//! Judges rows that nobody runs: what becomes of the calls of earlier lives of the process.

use std::time::Duration;

use crate::metric;
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Attempt, Executed, Failure, GatewayFault, Phase, Reason, Task, TaskVisibility, Timestamp, ToolPolicy,
};
use crate::upstream::{ResumeToken, UpstreamTaskMode};

/// How often one call is sent, all lives together.
pub(super) const ATTEMPTS_MAX: Attempt = Attempt(3);

/// A call that was taken up in so many lives, each of which ended before the upstream gave a sign, is not taken up
/// again: it was in flight at three crashes in a row.
const CRASHES_MAX: u8 = 2;

/// How a call goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RecoveryAction {
    /// It was certainly not sent, and is.
    Dispatch,
    /// Its exchange is taken up; if that fails it is sent again where it may be.
    Resume(ResumeToken),
    /// It is sent again.
    Resend,
    /// Its subtasks go on, and it waits for them.
    Watch,
}

/// What is done about a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RecoveryDecision {
    /// It is done with.
    Leave,
    /// Its upstream is told that nobody wants the result, where that is known.
    Tell,
    /// Nothing can be known of it any more.
    Settle(Failure),
    /// Its time is over.
    Expire,
    Run(RecoveryAction),
}

/// Judges a row that nobody runs. `policy` is that of its tool by now; `None` if its upstream is not configured any
/// more. `why_lost` is what clients are told of a call that cannot go on.
pub(in crate::engine) fn verdict(
    task: &Task,
    policy: Option<&ToolPolicy>,
    (now, why_lost): (Timestamp, Reason),
) -> RecoveryDecision {
    let recovery = &task.recovery;
    let lost = |reason, executed| RecoveryDecision::Settle(Failure::Gateway(GatewayFault::new(reason, executed)));
    if task.is_settled() {
        return if recovery.is_untold { RecoveryDecision::Tell } else { RecoveryDecision::Leave };
    }
    if task.expires_at() <= now {
        return RecoveryDecision::Expire;
    }
    let is_queued = matches!(task.phase, Phase::Queued);
    // What its subtasks are at is judged for each of them. A call that is split is never sent again as a whole; one that
    // is had subtasks of its server's.
    let is_split = !task.tree.children.is_empty() && recovery.resume.is_none() && task.attempt == Attempt::FIRST;
    let unknown = lost(why_lost, if is_queued { Executed::No } else { Executed::Unknown });
    // Nobody holds a reference to a hidden task that this process could honour.
    let Some(policy) = policy.filter(|_| task.shown.outlives_client()) else { return unknown };
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
    if let Some(place) = &recovery.resume {
        return RecoveryDecision::Run(RecoveryAction::Resume(ResumeToken(place.clone())));
    }
    match sendable {
        Some(call) if policy.after_crash.may_rerun(call.is_repeatable) && task.attempt < ATTEMPTS_MAX => {
            RecoveryDecision::Run(RecoveryAction::Resend)
        }
        Some(_) | None => unknown,
    }
}

/// The same for a call that its server lets run for its client's own credential: no life but the first has that, and nothing
/// goes on in another's name.
pub(in crate::engine) fn without_credential(verdict: RecoveryDecision, task: &Task) -> RecoveryDecision {
    if !matches!(verdict, RecoveryDecision::Run(_)) {
        return verdict;
    }
    let executed = if matches!(task.phase, Phase::Queued) { Executed::No } else { Executed::Unknown };
    RecoveryDecision::Settle(Failure::Gateway(GatewayFault::new(Reason::UpstreamAuth, executed)))
}

/// Counts and logs what is done about a row.
pub(in crate::engine) fn record(task: &Task, verdict: &RecoveryDecision) {
    let outcome = match verdict {
        RecoveryDecision::Leave => return,
        RecoveryDecision::Tell => "told",
        RecoveryDecision::Expire => "settled",
        RecoveryDecision::Settle(_) if task.shown == TaskVisibility::Hidden => "settled",
        RecoveryDecision::Settle(Failure::Gateway(fault)) if fault.reason == Reason::Poison => {
            tracing::error!(
                task = %LoggedTask(&task.key), upstream = %task.origin.upstream, tool = %task.origin.tool,
                "the gateway ended three times in a row while this call was in flight; it is not taken up any more"
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
    tracing::info!(task = %LoggedTask(&task.key), %principal, %upstream, %tool, crashes, outcome, "a task of an earlier life");
}

/// Whether a call that goes on may be a task of the upstream's, and for how long: one that is resumed may be, whatever it
/// asked for.
pub(in crate::engine) fn task_mode(task: &Task, policy: &ToolPolicy, now: Timestamp) -> UpstreamTaskMode {
    if task.recovery.resume.is_none() && !task.recovery.call.as_ref().is_some_and(|call| call.is_native) {
        return UpstreamTaskMode::Never;
    }
    UpstreamTaskMode::WhereServed { deadline: left(task, policy, now) }
}

/// How long a call may still run.
fn left(task: &Task, policy: &ToolPolicy, now: Timestamp) -> Duration {
    let ran = task.recovery.dispatched_at.map_or(Duration::ZERO, |at| now.since(at));
    policy.deadline.saturating_sub(ran)
}

#[cfg(test)]
#[path = "verdict/tests.rs"]
mod tests;
