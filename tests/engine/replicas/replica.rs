//! One replica: its connection, its trust in its reads, and the calls that it runs.

use std::time::Duration;

use taskgate::replica::{BootTime, DeathClaim, GuardedRow, GuardedWrite, Incarnation, ReadTrust, WriteVerdict};

use super::restated::BatchEpoch;
use super::server::{Phase, TaskRow};

/// Whether the call of a job was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    NotSent,
    Sent,
    /// By an earlier holder, perhaps: it is not sent again.
    Unknown,
}

/// The next step of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Insert,
    /// Commit that it is about to be sent.
    Dispatch,
    Send,
    Settle,
    /// Read the row, and decide by that.
    Reload,
}

/// A call that a replica runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) task: usize,
    pub(super) stage: Stage,
    pub(super) sending: Sending,
    /// The row was acknowledged by the store at some time.
    pub(super) is_stored: bool,
    /// An unknown commit, which the row resolves: the row before, and the row that was written.
    pub(super) in_doubt: Option<(Option<GuardedRow>, TaskRow)>,
    /// The row's guard as last known.
    pub(super) guard: GuardedRow,
}

/// One transaction of a replica, and why.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Register,
    /// Also the barrier.
    Beat,
    DeclareDead(DeathClaim),
    Insert(TaskRow),
    /// A holder's write.
    Replace(GuardedWrite, TaskRow),
    Claim(GuardedWrite, TaskRow),
    /// A client's command.
    Cancel(GuardedWrite, TaskRow),
    /// Its client was refused: a row whose insert has an unknown commit is removed, if no other replica has written it since.
    Withdraw(GuardedWrite),
    /// A client repeats a call under its key: the row is found. The replica writes the row if its maker may take it for
    /// one whose handle was not sent.
    Repeat,
    /// A client asks; the barrier behind the read is under way.
    Answer {
        row: Option<TaskRow>,
        before: Option<Phase>,
        received: BootTime,
    },
}

/// A transaction that a server has not read yet. It is carried out whether its writer still waits or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentBatch {
    pub(super) id: u64,
    pub(super) server: usize,
    pub(super) writer: Incarnation,
    pub(super) epoch: BatchEpoch,
    pub(super) task: usize,
    pub(super) action: Action,
}

/// A transaction whose end is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) server: usize,
    pub(super) sent: BootTime,
    pub(super) names_standby: bool,
    pub(super) rows_written: u64,
    pub(super) task: usize,
    pub(super) action: Action,
    pub(super) verdict: WriteVerdict,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) incarnation: Incarnation,
    pub(super) is_registered: bool,
    pub(super) is_paused: bool,
    /// The server that it is connected to.
    pub(super) server: usize,
    pub(super) trust: ReadTrust,
    /// Of the batches that it sends.
    pub(super) epoch: BatchEpoch,
    pub(super) jobs: Vec<Job>,
    pub(super) waiting: Option<Waiting>,
}

impl Replica {
    pub(super) fn new(incarnation: Incarnation, server: usize, at: BootTime) -> Self {
        Self {
            incarnation,
            is_registered: false,
            is_paused: false,
            server,
            // Every answer has a barrier behind it: no failover reverts an answer to a client.
            trust: ReadTrust::new(Duration::ZERO, at),
            epoch: BatchEpoch::default(),
            jobs: Vec::new(),
            waiting: None,
        }
    }

    pub(super) fn job(&mut self, task: usize) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.task == task)
    }

    pub(super) fn drop_job(&mut self, task: usize) {
        self.jobs.retain(|job| job.task != task);
    }

    /// Continues a call by the state of its row.
    pub(super) fn reloaded(&mut self, task: usize, row: Option<TaskRow>) {
        let own = self.incarnation;
        let Some(job) = self.job(task) else { return };
        let held = row.filter(|row| row.guard.holder == Some(own));
        let stage = held.and_then(|row| match (row.phase, job.sending) {
            (Phase::Queued, _) => Some(Stage::Dispatch),
            (Phase::Dispatching, Sending::NotSent) => Some(Stage::Send),
            (Phase::Dispatching, Sending::Sent | Sending::Unknown) => Some(Stage::Settle),
            (Phase::Settled(_), _) => None,
        });
        match (held, stage) {
            (Some(row), Some(stage)) => {
                (job.stage, job.guard, job.is_stored, job.in_doubt) = (stage, row.guard, true, None);
            }
            _ => self.drop_job(task),
        }
    }
}
