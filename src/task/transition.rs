//! The one function that changes a task.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{LINGER, Question, Shown};
use super::{Answer, Attempt, Executed, Failure, GatewayFault, InputKey, Outcome, Phase, Reason, Task, Timestamp};
use crate::wire::Payload;

/// Something that happened to a task.
#[derive(Clone, Debug)]
pub enum Event {
    /// A place at the upstream is free; the call is about to be sent.
    Dispatched {
        attempt: Attempt,
    },
    /// The upstream said how far it is.
    Progressed {
        attempt: Attempt,
        message: Arc<str>,
    },
    /// The upstream asks the client something.
    Asked {
        attempt: Attempt,
        question: Question,
    },
    /// The upstream no longer wants an answer.
    Withdrawn {
        attempt: Attempt,
        ask: Payload,
    },
    /// The client answered some questions.
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
    /// A hidden task gets a handle.
    Revealed,
    CancelRequested,
    /// The task's time is over before its call was.
    TtlElapsed,
}

impl Event {
    /// Whether the event speaks of a try that is no longer the one under way.
    fn is_stale(&self, current: Attempt) -> bool {
        match self {
            Self::Dispatched { attempt }
            | Self::Progressed { attempt, .. }
            | Self::Asked { attempt, .. }
            | Self::Withdrawn { attempt, .. }
            | Self::Returned { attempt, .. }
            | Self::Faulted { attempt, .. } => *attempt != current,
            Self::Answered { .. } | Self::Revealed | Self::CancelRequested | Self::TtlElapsed => false,
        }
    }
}

/// What must be done because of a change. Each can be found again from the stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell those who wait.
    NotifyWatchers,
    /// Give answers to the upstream: how it named each question, and the answer.
    Deliver(Vec<(Payload, Answer)>),
    /// Tell the upstream that nobody wants the result, and let go of the exchange.
    Abandon,
}

/// Applies one event. Pure and total: no clock, no I/O, no error.
///
/// An event that no longer applies (the task is settled, the event belongs to another attempt, the
/// question is not open) returns the task unchanged and no effects.
#[must_use]
pub fn transition(mut task: Task, event: Event, now: Timestamp) -> (Task, Vec<Effect>) {
    if task.is_settled() || event.is_stale(task.attempt) {
        return (task, Vec::new());
    }
    let mut effects = vec![Effect::NotifyWatchers];
    match event {
        Event::Dispatched { .. } => match task.phase {
            Phase::Queued => task.phase = Phase::Working,
            Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(_) => return (task, Vec::new()),
        },
        Event::Progressed { message, .. } => task.status_message = Some(message),
        Event::Asked { question, .. } => {
            let mut open = take_open(&mut task.phase);
            open.insert(task.next_key, question);
            task.next_key.0 += 1; // Keys are never reused (ext-tasks, "Task Update Requests").
            task.phase = Phase::AwaitingInput(open);
        }
        Event::Withdrawn { ask, .. } => {
            let mut open = take_open(&mut task.phase);
            let before = open.len();
            open.retain(|_, question| question.ask != ask);
            let changed = open.len() != before;
            close_if_empty(&mut task.phase, open);
            if !changed {
                return (task, Vec::new());
            }
        }
        Event::Answered { answers } => {
            let mut open = take_open(&mut task.phase);
            let delivered: Vec<_> = answers
                .into_iter()
                .filter_map(|(key, answer)| open.remove(&key).map(|question| (question.ask, answer)))
                .collect();
            close_if_empty(&mut task.phase, open);
            if delivered.is_empty() {
                return (task, Vec::new());
            }
            effects.push(Effect::Deliver(delivered));
        }
        Event::Revealed => {
            if task.shown == Shown::Handle {
                return (task, Vec::new());
            }
            task.shown = Shown::Handle;
            rekey(&mut task);
        }
        Event::Returned { result, is_error, .. } => settle(&mut task, Outcome::Returned { result, is_error }, now),
        Event::Faulted { failure, .. } => settle(&mut task, Outcome::Faulted(failure), now),
        Event::CancelRequested => {
            settle(&mut task, Outcome::Cancelled, now);
            effects.push(Effect::Abandon);
        }
        Event::TtlElapsed => {
            let executed = if matches!(task.phase, Phase::Queued) { Executed::No } else { Executed::Unknown };
            let fault = GatewayFault::new(Reason::TtlExpired, executed);
            settle(&mut task, Outcome::Faulted(Failure::Gateway(fault)), now);
            effects.push(Effect::Abandon);
        }
    }
    task.updated_at = task.updated_at.max(now);
    (task, effects)
}

/// Ends the task and makes sure that its end can be read for a while.
fn settle(task: &mut Task, outcome: Outcome, now: Timestamp) {
    task.phase = Phase::Settled(outcome);
    let age = now.since(task.created_at);
    task.ttl = match task.shown {
        Shown::Handle => task.ttl.max(age.saturating_add(task.keep_result_min)),
        // Nobody was told how long it lives, so it need not live as long.
        Shown::Hidden => age.saturating_add(LINGER),
    };
}

/// Gives open questions new keys: those of the rounds before the handle mean nothing after it (EXT-43).
fn rekey(task: &mut Task) {
    if let Phase::AwaitingInput(open) = &mut task.phase {
        for question in std::mem::take(open).into_values() {
            open.insert(task.next_key, question);
            task.next_key.0 += 1;
        }
    }
}

/// Takes the open questions out; a queued task that is asked something was evidently sent.
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

#[cfg(test)]
#[path = "transition/tests.rs"]
mod tests;
