//! Servers of the store: a log, the readers' view of it, and commits that wait for the standby.

use taskgate::replica::{GuardedRow, Incarnation, ServerMark};

use super::restated::BatchEpoch;

/// Where a task stands, as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Queued,
    /// Committed before the call is sent.
    Dispatching,
    Settled(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Returned(Incarnation),
    ReplicaLost(Incarnation),
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskRow {
    pub(super) phase: Phase,
    pub(super) guard: GuardedRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineRow {
    pub(super) beat: u64,
    pub(super) is_dead: bool,
}

/// The rows of one commit, beside its replica's epoch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Write {
    Task(usize, TaskRow),
    /// The row is removed.
    Gone(usize),
    Line(Incarnation, LineRow),
    EpochOnly,
}

impl Write {
    const fn is_of_same_row(self, other: Self) -> bool {
        match (self, other) {
            (Self::Task(one, _) | Self::Gone(one), Self::Task(two, _) | Self::Gone(two)) => one == two,
            (Self::Line(one, _), Self::Line(two, _)) => one.0 == two.0,
            _ => false,
        }
    }
}

/// The rows of one transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) writer: Incarnation,
    pub(super) epoch: BatchEpoch,
    pub(super) write: Write,
}

/// The rows that readers see.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) tasks: Vec<Option<TaskRow>>,
    lines: Vec<Option<LineRow>>,
    epochs: Vec<Option<BatchEpoch>>,
}

fn put<T: Clone>(rows: &mut Vec<Option<T>>, at: usize, row: T) {
    if rows.len() <= at {
        rows.resize(at + 1, None);
    }
    rows[at] = Some(row);
}

impl Table {
    pub(super) fn task(&self, number: usize) -> Option<TaskRow> {
        self.tasks.get(number).copied().flatten()
    }

    pub(super) fn line(&self, of: Incarnation) -> Option<LineRow> {
        self.lines.get(of.0 as usize).copied().flatten()
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (Incarnation, LineRow)> {
        let lines = self.lines.iter().enumerate();
        lines.filter_map(|(number, line)| line.map(|line| (Incarnation(number as u64), line)))
    }

    pub(super) fn epoch(&self, of: Incarnation) -> BatchEpoch {
        self.epochs.get(of.0 as usize).copied().flatten().unwrap_or_default()
    }

    fn apply(&mut self, batch: Batch) {
        put(&mut self.epochs, batch.writer.0 as usize, batch.epoch);
        match batch.write {
            Write::Task(number, row) => put(&mut self.tasks, number, row),
            Write::Gone(number) => self.tasks[number] = None,
            Write::Line(of, line) => put(&mut self.lines, of.0 as usize, line),
            Write::EpochOnly => (),
        }
    }
}

/// A commit that is in the log and waits: it holds its locks, and its rows are invisible.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCommit {
    pub(super) id: u64,
    batch: Batch,
    /// How long the log has to be at the standby.
    position: usize,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) mark: ServerMark,
    pub(super) is_up: bool,
    /// The setting that makes commits wait.
    pub(super) names_standby: bool,
    pub(super) seen: Table,
    log: Vec<Batch>,
    pub(super) pending: Vec<PendingCommit>,
}

impl Server {
    /// A standby that was promoted with its part of a log.
    pub(super) fn with_log(mark: ServerMark, log: &[Batch]) -> Self {
        let mut seen = Table::default();
        log.iter().for_each(|batch| seen.apply(*batch));
        Self { mark, is_up: true, names_standby: true, seen, log: log.to_vec(), pending: Vec::new() }
    }

    pub(super) fn log(&self) -> &[Batch] {
        &self.log
    }

    /// Whether a write has to wait for a lock: of its row, or of its replica's epoch where that is locked.
    pub(super) fn is_locked(&self, write: Write, writer: Incarnation, locks_epoch: bool) -> bool {
        let holds =
            |one: &PendingCommit| one.batch.write.is_of_same_row(write) || (locks_epoch && one.batch.writer == writer);
        self.pending.iter().any(holds)
    }

    /// Writes a commit to the log. It waits for the standby, if one is named.
    pub(super) fn commit(&mut self, id: u64, batch: Batch) {
        self.log.push(batch);
        if self.names_standby {
            self.pending.push(PendingCommit { id, batch, position: self.log.len() });
        } else {
            self.seen.apply(batch);
        }
    }

    /// The waiting commits that the standby has, if it has so much of the log.
    pub(super) fn flushed(&self, length: usize) -> Vec<usize> {
        (0..self.pending.len()).filter(|at| self.pending[*at].position <= length).collect()
    }

    pub(super) fn has_flushed(&self, length: usize) -> bool {
        self.pending.iter().any(|commit| commit.position <= length)
    }

    /// Ends a wait, for any reason: the rows become visible.
    pub(super) fn release(&mut self, at: usize) -> u64 {
        let commit = self.pending.swap_remove(at);
        self.seen.apply(commit.batch);
        commit.id
    }

    /// A crash and a restart: the rows in the log are there.
    pub(super) fn restart(&mut self, mark: ServerMark) {
        self.mark = mark;
        while !self.pending.is_empty() {
            self.release(0);
        }
    }
}
