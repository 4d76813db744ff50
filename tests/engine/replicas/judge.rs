//! Watches a run from outside: the sent calls, the clients' answers, and the promises that they break.

use std::collections::BTreeMap;

use super::server::{Outcome, Phase, TaskRow};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Violation {
    SentTwice,
    HandleLost,
    WentBack,
    TwoOutcomes,
    /// The refusal said that the call was not sent, and would not be.
    SentThoughRefused,
}

/// The clients' knowledge of one task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) has_handle: bool,
    is_refused: bool,
    is_sent: bool,
    /// The latest phase that a client saw.
    pub(super) shown: Option<Phase>,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    tasks: Vec<Told>,
    pub(super) handles: u64,
    pub(super) sent: u64,
    /// How often each promise was broken, and at which task first.
    pub(super) violations: BTreeMap<Violation, (u32, usize)>,
}

const fn rank(phase: Phase) -> u8 {
    match phase {
        Phase::Queued => 0,
        Phase::Dispatching => 1,
        Phase::Settled(_) => 2,
    }
}

const fn outcome(phase: Phase) -> Option<Outcome> {
    match phase {
        Phase::Settled(outcome) => Some(outcome),
        Phase::Queued | Phase::Dispatching => None,
    }
}

impl Judge {
    /// The number of a new task.
    pub(super) fn new_task(&mut self) -> usize {
        self.tasks.push(Told::default());
        self.tasks.len() - 1
    }

    pub(super) fn told(&self, task: usize) -> Told {
        self.tasks[task]
    }

    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    fn violated(&mut self, violation: Violation, task: usize) {
        self.violations.entry(violation).or_insert((0, task)).0 += 1;
    }

    pub(super) fn gave_handle(&mut self, task: usize) {
        self.handles += u64::from(!self.tasks[task].has_handle);
        self.tasks[task].has_handle = true;
    }

    pub(super) fn refused(&mut self, task: usize) {
        self.tasks[task].is_refused = true;
        if self.tasks[task].is_sent {
            self.violated(Violation::SentThoughRefused, task);
        }
    }

    pub(super) fn sent(&mut self, task: usize) {
        self.sent += 1;
        if self.tasks[task].is_sent {
            self.violated(Violation::SentTwice, task);
        }
        if self.tasks[task].is_refused {
            self.violated(Violation::SentThoughRefused, task);
        }
        self.tasks[task].is_sent = true;
    }

    /// A client with a handle got a row, or that there is none. `before` is the latest phase that any client had seen when it was read.
    pub(super) fn answered(&mut self, task: usize, row: Option<TaskRow>, before: Option<Phase>) {
        let Some(row) = row else { return self.violated(Violation::HandleLost, task) };
        if let Some(before) = before {
            if rank(row.phase) < rank(before) {
                self.violated(Violation::WentBack, task);
            } else if outcome(before).is_some() && outcome(before) != outcome(row.phase) {
                self.violated(Violation::TwoOutcomes, task);
            }
        }
        let told = &mut self.tasks[task];
        if told.shown.is_none_or(|shown| rank(shown) <= rank(row.phase)) {
            told.shown = Some(row.phase);
        }
    }

    /// The store's content once all is well again.
    pub(super) fn ended(&mut self, rows: impl Fn(usize) -> Option<TaskRow>) {
        for task in 0..self.tasks.len() {
            let told = self.tasks[task];
            if told.has_handle {
                self.answered(task, rows(task), told.shown);
            }
        }
    }
}
