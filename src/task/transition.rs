//! Changes a task: the one function that does.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{LINGER, Question, TaskVisibility};
use super::{
    Answer, Attempt, Executed, Failure, GatewayFault, InputKey, Outcome, Phase, Reason, Recovery, StoredCall, Task,
    TaskId, Timestamp,
};
use crate::wire::Payload;

/// Something that happened to a task.
#[derive(Clone, Debug)]
pub enum Event {
    /// A place at the upstream is free; the call is about to be sent. `call` is what is kept of it from here on.
    Dispatched {
        attempt: Attempt,
        call: Option<StoredCall>,
    },
    /// A later life of the process takes up a call that was in flight: what follows may reach the upstream.
    TakenUp {
        attempt: Attempt,
    },
    /// The call is about to be sent again as a try of its own, since the one under way is lost.
    Resent {
        attempt: Attempt,
    },
    /// The upstream gave a sign of a call that was taken up.
    Alive {
        attempt: Attempt,
    },
    /// The exchange can be taken up at another place than before; `None` if it cannot be.
    Checkpointed {
        attempt: Attempt,
        resume: Option<Payload>,
    },
    /// An answer is about to be handed over: from here on it may have arrived.
    Delivering {
        attempt: Attempt,
        ask: Payload,
    },
    /// The upstream of a settled task was told that nobody wants the result, or cannot be.
    Told,
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
    /// The task has subtasks, whose rows are there (SUB-03, SUB-12).
    ChildrenAdded {
        children: Vec<TaskId>,
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
            Self::Dispatched { attempt, .. }
            | Self::TakenUp { attempt }
            | Self::Resent { attempt }
            | Self::Alive { attempt }
            | Self::Checkpointed { attempt, .. }
            | Self::Delivering { attempt, .. }
            | Self::Progressed { attempt, .. }
            | Self::Asked { attempt, .. }
            | Self::Withdrawn { attempt, .. }
            | Self::Returned { attempt, .. }
            | Self::Faulted { attempt, .. } => *attempt != current,
            Self::Answered { .. }
            | Self::ChildrenAdded { .. }
            | Self::Revealed
            | Self::CancelRequested
            | Self::TtlElapsed
            | Self::Told => false,
        }
    }
}

/// What must be done because of a change. Each can be found again from the stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing but to keep the row: no client can see the change.
    Keep,
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
/// question is not open) returns the task unchanged and no effects. What a client can see of a settled task never
/// changes: all that is left to note of it is that its upstream was told.
#[must_use]
pub fn transition(mut task: Task, event: Event, now: Timestamp) -> (Task, Vec<Effect>) {
    if (task.is_settled() && !matches!(event, Event::Told)) || event.is_stale(task.attempt) {
        return (task, Vec::new());
    }
    let mut effects = vec![Effect::NotifyWatchers];
    match event {
        Event::Dispatched { call, .. } => {
            if !matches!(task.phase, Phase::Queued) {
                return (task, Vec::new());
            }
            task.phase = Phase::Working;
            task.recovery.dispatched_at = Some(now);
            task.recovery.call = call;
        }
        event @ (Event::TakenUp { .. }
        | Event::Alive { .. }
        | Event::Checkpointed { .. }
        | Event::Delivering { .. }) => {
            return if note(&mut task, event) { (task, vec![Effect::Keep]) } else { (task, Vec::new()) };
        }
        Event::Resent { .. } => {
            if matches!(task.phase, Phase::Queued) {
                return (task, Vec::new());
            }
            resend(&mut task, now);
        }
        Event::Progressed { message, .. } => task.status_message = Some(message),
        Event::Asked { question, .. } => {
            let mut open = take_open(&mut task.phase);
            open.insert(task.next_key, question);
            task.next_key.0 += 1; // Keys are never reused (ext-tasks, "Task Update Requests").
            task.phase = Phase::AwaitingInput(open);
        }
        Event::Withdrawn { ask, .. } => {
            if !withdraw(&mut task, &ask) {
                return (task, Vec::new());
            }
        }
        Event::Answered { answers } => {
            let delivered = answer(&mut task, answers);
            if delivered.is_empty() {
                return (task, Vec::new());
            }
            task.recovery.undelivered.extend(delivered.iter().cloned());
            effects.push(Effect::Deliver(delivered));
        }
        Event::ChildrenAdded { children } => {
            if !task.tree.add(&children) {
                return (task, Vec::new());
            }
        }
        Event::Revealed => {
            if task.shown != TaskVisibility::Hidden {
                return (task, Vec::new());
            }
            task.shown = TaskVisibility::Handle;
            rekey(&mut task);
        }
        Event::Returned { result, is_error, .. } => settle(&mut task, Outcome::Returned { result, is_error }, now),
        Event::Faulted { failure, .. } => settle(&mut task, Outcome::Faulted(failure), now),
        Event::CancelRequested | Event::TtlElapsed => {
            let is_over = matches!(event, Event::TtlElapsed);
            let outcome = if is_over { expiry(&task) } else { Outcome::Cancelled };
            abandon(&mut task, outcome, now);
            effects.push(Effect::Abandon);
        }
        Event::Told => return told(task),
    }
    task.updated_at = task.updated_at.max(now);
    (task, effects)
}

/// How a task ends whose time is over.
const fn expiry(task: &Task) -> Outcome {
    let executed = if matches!(task.phase, Phase::Queued) { Executed::No } else { Executed::Unknown };
    Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::TtlExpired, executed)))
}

/// Notes what only a later life of the process looks at; whether there was anything to note.
fn note(task: &mut Task, event: Event) -> bool {
    let recovery = &mut task.recovery;
    match event {
        // A queued call was never in flight, however many lives end while it waits.
        Event::TakenUp { .. } if matches!(task.phase, Phase::Queued) => return false,
        Event::TakenUp { .. } => recovery.crashes = recovery.crashes.saturating_add(1),
        Event::Alive { .. } if recovery.crashes == 0 => return false,
        Event::Alive { .. } => recovery.crashes = 0,
        Event::Checkpointed { resume, .. } if recovery.resume == resume => return false,
        Event::Checkpointed { resume, .. } => recovery.resume = resume,
        Event::Delivering { ask, .. } => {
            let before = recovery.undelivered.len();
            recovery.undelivered.retain(|(question, _)| *question != ask);
            return recovery.undelivered.len() != before;
        }
        Event::Dispatched { .. }
        | Event::Resent { .. }
        | Event::Progressed { .. }
        | Event::Asked { .. }
        | Event::Withdrawn { .. }
        | Event::Answered { .. }
        | Event::Returned { .. }
        | Event::Faulted { .. }
        | Event::ChildrenAdded { .. }
        | Event::Revealed
        | Event::CancelRequested
        | Event::TtlElapsed
        | Event::Told => return false,
    }
    true
}

/// Takes a question off the task; whether it was open.
fn withdraw(task: &mut Task, ask: &Payload) -> bool {
    let mut open = take_open(&mut task.phase);
    let before = open.len();
    open.retain(|_, question| question.ask != *ask);
    let changed = open.len() != before;
    close_if_empty(&mut task.phase, open);
    changed
}

/// Closes the questions that are answered; how the exchange names each, and the answer.
fn answer(task: &mut Task, answers: BTreeMap<InputKey, Answer>) -> Vec<(Payload, Answer)> {
    let mut open = take_open(&mut task.phase);
    let delivered = answers
        .into_iter()
        .filter_map(|(key, answer)| open.remove(&key).map(|question| (question.ask, answer)))
        .collect();
    close_if_empty(&mut task.phase, open);
    delivered
}

/// Begins another try: nothing of the one before holds any more, and what it asked is asked anew.
fn resend(task: &mut Task, now: Timestamp) {
    task.phase = Phase::Working;
    task.attempt.0 += 1;
    let recovery = &mut task.recovery;
    recovery.dispatched_at = Some(now);
    recovery.resume = None;
    recovery.undelivered.clear();
}

fn told(mut task: Task) -> (Task, Vec<Effect>) {
    if !task.recovery.is_untold {
        return (task, Vec::new());
    }
    task.recovery = done_with(&task.recovery);
    (task, vec![Effect::Keep])
}

/// What stays with a task for which nothing is to be done: when its call was sent, for operators.
fn done_with(recovery: &Recovery) -> Recovery {
    Recovery { dispatched_at: recovery.dispatched_at, ..Recovery::default() }
}

/// Ends the task while its upstream may be at work: where to tell it so is kept until that is done.
fn abandon(task: &mut Task, outcome: Outcome, now: Timestamp) {
    let resume = task.recovery.resume.take();
    let was_sent = !matches!(task.phase, Phase::Queued);
    settle(task, outcome, now);
    if was_sent {
        (task.recovery.resume, task.recovery.is_untold) = (resume, true);
    }
}

/// Ends the task and makes sure that its end can be read for a while.
fn settle(task: &mut Task, outcome: Outcome, now: Timestamp) {
    task.phase = Phase::Settled(outcome);
    task.recovery = done_with(&task.recovery);
    if task.certainly_did_not_run() {
        task.idempotency = None;
    }
    let age = now.since(task.created_at);
    task.ttl = match task.shown {
        TaskVisibility::Handle => task.ttl.max(age.saturating_add(task.keep_result_min)),
        // Nobody was told how long it lives, so it need not live as long.
        TaskVisibility::Hidden => age.saturating_add(LINGER),
        // It ends with its parent.
        TaskVisibility::Part => task.ttl,
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
