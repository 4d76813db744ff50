//! The one function that changes a task.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{LINGER, Question, TaskVisibility};
use super::{
    Answer, Attempt, Executed, Failure, GatewayFault, InputKey, Outcome, PendingEffects, Phase, Reason, Recovery,
    StoredCall, Task, TaskId, Timestamp,
};
use crate::wire::Payload;

#[derive(Clone, Debug)]
pub enum Event {
    /// The upstream has a free permit, and the call is about to be sent. `call` is kept for recovery.
    Dispatched {
        attempt: Attempt,
        call: Option<StoredCall>,
    },
    /// A later process resumes a call that was in flight: further requests may reach the upstream.
    TakenUp {
        attempt: Attempt,
    },
    /// The call is about to be sent again as a new try, since the current one is lost.
    Resent {
        attempt: Attempt,
    },
    /// The call has not caused the earlier crashes: their count is reset.
    Alive {
        attempt: Attempt,
    },
    /// The exchange has a new resumption point; `None` if it cannot be resumed.
    Checkpointed {
        attempt: Attempt,
        resume: Option<Payload>,
    },
    /// An answer is about to be delivered: from here on it may have arrived.
    Delivering {
        attempt: Attempt,
        ask: Payload,
    },
    /// The upstream of a settled task was notified that the result is unwanted, or cannot be.
    Notified,
    Progressed {
        attempt: Attempt,
        message: Arc<str>,
    },
    QuestionReceived {
        attempt: Attempt,
        question: Question,
    },
    Withdrawn {
        attempt: Attempt,
        ask: Payload,
    },
    Answered {
        answers: BTreeMap<InputKey, Answer>,
    },
    Returned {
        attempt: Attempt,
        result: Payload,
        is_error: bool,
    },
    Faulted {
        attempt: Attempt,
        failure: Failure,
    },
    /// The task has new subtasks with stored rows (SUB-03, SUB-12).
    ChildrenAdded {
        children: Vec<TaskId>,
    },
    /// A hidden task gets a handle.
    Revealed,
    CancelRequested,
    /// The task's `ttl` passed before its call ended.
    TtlElapsed,
}

impl Event {
    fn is_stale(&self, current: Attempt) -> bool {
        match self {
            Self::Dispatched { attempt, .. }
            | Self::TakenUp { attempt }
            | Self::Resent { attempt }
            | Self::Alive { attempt }
            | Self::Checkpointed { attempt, .. }
            | Self::Delivering { attempt, .. }
            | Self::Progressed { attempt, .. }
            | Self::QuestionReceived { attempt, .. }
            | Self::Withdrawn { attempt, .. }
            | Self::Returned { attempt, .. }
            | Self::Faulted { attempt, .. } => *attempt != current,
            Self::Answered { .. }
            | Self::ChildrenAdded { .. }
            | Self::Revealed
            | Self::CancelRequested
            | Self::TtlElapsed
            | Self::Notified => false,
        }
    }

    /// Whether the event can happen in a phase. A queued call was never in flight, however many processes end while it waits.
    const fn fits(&self, phase: &Phase) -> bool {
        match phase {
            Phase::Queued => !matches!(self, Self::TakenUp { .. } | Self::Resent { .. }),
            Phase::Working | Phase::AwaitingInput(_) => !matches!(self, Self::Dispatched { .. }),
            Phase::Settled(_) => matches!(self, Self::Notified),
        }
    }

    /// Whether clients may see the change.
    const fn is_visible(&self) -> bool {
        !matches!(
            self,
            Self::TakenUp { .. }
                | Self::Alive { .. }
                | Self::Checkpointed { .. }
                | Self::Delivering { .. }
                | Self::Notified
        )
    }
}

/// A required action after a change. Each can be derived again from the stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The change is invisible to clients.
    StoreOnly,
    NotifyWatchers,
    /// Deliver answers to the upstream, each with the exchange's name of the question.
    Deliver(Vec<(Payload, Answer)>),
    /// Notify the upstream that the result is unwanted, and release the exchange.
    Abandon,
}

/// Applies one event. Pure and total. An event that does not apply (a settled task, another attempt, a closed question)
/// changes nothing and has no effects. A settled task only records the notification of its upstream.
pub fn transition(mut task: Task, event: Event, now: Timestamp) -> (Task, Vec<Effect>) {
    if !event.fits(&task.phase) || event.is_stale(task.attempt) {
        return (task, Vec::new());
    }
    let is_visible = event.is_visible();
    let mut effects = vec![if is_visible { Effect::NotifyWatchers } else { Effect::StoreOnly }];
    let is_changed = match event {
        Event::Dispatched { call, .. } => {
            task.phase = Phase::Working;
            task.recovery.dispatched_at = Some(now);
            task.recovery.call = call;
            true
        }
        Event::TakenUp { .. } => {
            let crashes = task.recovery.crashes.saturating_add(1);
            replace(&mut task.recovery.crashes, crashes)
        }
        Event::Resent { .. } => {
            resend(&mut task, now);
            true
        }
        Event::Alive { .. } => replace(&mut task.recovery.crashes, 0),
        Event::Checkpointed { resume, .. } => replace(&mut task.recovery.resume, resume),
        Event::Delivering { ask, .. } => remove_undelivered(&mut task.recovery, &ask),
        Event::Notified => notified(&mut task),
        Event::Progressed { message, .. } => {
            task.status_message = Some(message);
            true
        }
        Event::QuestionReceived { question, .. } => {
            let mut open = take_open(&mut task.phase);
            open.insert(task.next_key, question);
            task.next_key.0 += 1; // Keys are never reused (ext-tasks, "Task Update Requests").
            task.phase = Phase::AwaitingInput(open);
            true
        }
        Event::Withdrawn { ask, .. } => withdraw(&mut task, &ask),
        Event::Answered { answers } => {
            let delivered = answer(&mut task, answers);
            task.recovery.undelivered.extend(delivered.iter().cloned());
            let is_any = !delivered.is_empty();
            effects.push(Effect::Deliver(delivered));
            is_any
        }
        Event::ChildrenAdded { children } => task.tree.add(&children),
        Event::Revealed => reveal(&mut task),
        Event::Returned { result, is_error, .. } => {
            settle(&mut task, Outcome::Returned { result, is_error }, now);
            true
        }
        Event::Faulted { failure, .. } => {
            settle(&mut task, Outcome::Faulted(failure), now);
            true
        }
        Event::CancelRequested | Event::TtlElapsed => {
            let is_over = matches!(event, Event::TtlElapsed);
            let outcome = if is_over { expiry(&task) } else { Outcome::Cancelled };
            abandon(&mut task, outcome, now);
            effects.push(Effect::Abandon);
            true
        }
    };
    if !is_changed {
        return (task, Vec::new());
    }
    if is_visible {
        task.updated_at = task.updated_at.max(now);
    }
    (task, effects)
}

/// Replaces a value; returns whether the new one differs.
fn replace<T: PartialEq>(value: &mut T, new: T) -> bool {
    std::mem::replace(value, new) != *value
}

const fn expiry(task: &Task) -> Outcome {
    let executed = if matches!(task.phase, Phase::Queued) { Executed::No } else { Executed::Unknown };
    Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::TtlExpired, executed)))
}

fn remove_undelivered(recovery: &mut Recovery, ask: &Payload) -> bool {
    let before = recovery.undelivered.len();
    recovery.undelivered.retain(|(question, _)| question != ask);
    recovery.undelivered.len() != before
}

/// Removes a question; returns whether it was open.
fn withdraw(task: &mut Task, ask: &Payload) -> bool {
    let mut open = take_open(&mut task.phase);
    let before = open.len();
    open.retain(|_, question| question.ask != *ask);
    let changed = open.len() != before;
    close_if_empty(&mut task.phase, open);
    changed
}

/// Closes answered questions; returns the exchange's name of each, with the answer.
fn answer(task: &mut Task, answers: BTreeMap<InputKey, Answer>) -> Vec<(Payload, Answer)> {
    let mut open = take_open(&mut task.phase);
    let delivered = answers
        .into_iter()
        .filter_map(|(key, answer)| open.remove(&key).map(|question| (question.ask, answer)))
        .collect();
    close_if_empty(&mut task.phase, open);
    delivered
}

/// Starts a new try: the state of the last one is void, and its questions are asked again.
fn resend(task: &mut Task, now: Timestamp) {
    task.phase = Phase::Working;
    task.attempt.0 += 1;
    let recovery = &mut task.recovery;
    recovery.dispatched_at = Some(now);
    recovery.resume = None;
    recovery.undelivered.clear();
}

fn notified(task: &mut Task) -> bool {
    let was_pending = task.recovery.must_notify_upstream();
    if was_pending {
        task.recovery = done_with(&task.recovery);
        task.recovery.pending_effects.remove(PendingEffects::NOTIFY_UPSTREAM);
    }
    was_pending
}

/// The recovery state of a finished task: its pending effects, and when its call was sent, for operators.
fn done_with(recovery: &Recovery) -> Recovery {
    let Recovery { dispatched_at, pending_effects, .. } = *recovery;
    Recovery { dispatched_at, pending_effects, ..Recovery::default() }
}

/// Settles a task that its upstream may still work on; keeps the resumption point until the upstream is notified.
fn abandon(task: &mut Task, outcome: Outcome, now: Timestamp) {
    let resume = task.recovery.resume.take();
    let was_sent = !matches!(task.phase, Phase::Queued);
    settle(task, outcome, now);
    if was_sent {
        task.recovery.resume = resume;
        task.recovery.pending_effects.insert(PendingEffects::NOTIFY_UPSTREAM);
    }
}

/// Settles the task, and ensures that its outcome stays readable for a while.
fn settle(task: &mut Task, outcome: Outcome, now: Timestamp) {
    task.phase = Phase::Settled(outcome);
    task.recovery = done_with(&task.recovery);
    if task.certainly_did_not_run() {
        task.idempotency = None;
    }
    let age = now.since(task.created_at);
    task.ttl = match task.visibility {
        TaskVisibility::Handle => task.ttl.max(age.saturating_add(task.keep_result_min)),
        // No client knows its `ttl`, so it can be shortened.
        TaskVisibility::Hidden => age.saturating_add(LINGER),
        // It expires with its parent.
        TaskVisibility::Part => task.ttl,
    };
}

/// Shows a hidden task, and gives its open questions new keys: keys of rounds before the handle are invalid after it (EXT-43).
fn reveal(task: &mut Task) -> bool {
    if task.visibility != TaskVisibility::Hidden {
        return false;
    }
    task.visibility = TaskVisibility::Handle;
    if let Phase::AwaitingInput(open) = &mut task.phase {
        for question in std::mem::take(open).into_values() {
            open.insert(task.next_key, question);
            task.next_key.0 += 1;
        }
    }
    true
}

/// Takes the open questions out, and leaves the phase without them. With a question a queued task was evidently sent.
fn take_open(phase: &mut Phase) -> BTreeMap<InputKey, Question> {
    match std::mem::replace(phase, Phase::Working) {
        Phase::AwaitingInput(open) => open,
        Phase::Queued => {
            *phase = Phase::Queued;
            BTreeMap::new()
        }
        Phase::Working => BTreeMap::new(),
        Phase::Settled(_) => unreachable!("no event reaches a settled task"),
    }
}

/// Keeps the invariant that a task awaiting input has an open question.
fn close_if_empty(phase: &mut Phase, open: BTreeMap<InputKey, Question>) {
    if !open.is_empty() {
        *phase = Phase::AwaitingInput(open);
    }
}

/// Decides which events are stored before a call's first byte is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAttempt {
    First,
    /// Again, as a new attempt. `is_counted`: whether the row says that this process resumed the call.
    Again {
        is_counted: bool,
    },
}

impl SendAttempt {
    pub const fn number(self, current: Attempt) -> Attempt {
        match self {
            Self::First => current,
            Self::Again { .. } => Attempt(current.0 + 1),
        }
    }

    /// The events to store, in one commit, before the call's first byte. Nothing is sent if the last one has no effect.
    pub fn events(self, current: Attempt, call: impl FnOnce() -> Option<StoredCall>) -> Vec<Event> {
        match self {
            Self::First => vec![Event::Dispatched { attempt: current, call: call() }],
            Self::Again { is_counted: true } => vec![Event::Resent { attempt: current }],
            Self::Again { is_counted: false } => {
                vec![Event::TakenUp { attempt: current }, Event::Resent { attempt: current }]
            }
        }
    }

    pub fn is_stored(self, current: Attempt, task: &Task) -> bool {
        matches!(task.phase, Phase::Working) && task.attempt == self.number(current)
    }
}

#[cfg(test)]
#[path = "transition/tests.rs"]
mod tests;
