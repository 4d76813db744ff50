//! Holds the only writer of tasks, and the runners that own upstream calls; never parses a payload. Read [`apply`] first
//! (how a task changes), then [`runner`] (how a call becomes a task) and `change` (the operations of clients).

pub mod admission;
pub mod apply;
pub mod call;
mod change;
pub mod change_subscribers;
pub mod changes_elsewhere;
pub mod recovery;
pub mod retry_delays;
pub mod runner;
mod shared_results;
mod subtask_tree;
pub mod sweeper;
mod target;
mod task_metrics;
mod unknown_commits;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::AuditLog;
use crate::cause::CauseChain;
use crate::shared_access::SharedAccess;
use crate::shared_limits::SharedLimits;
use crate::store::{Reach, StoreError, TaskStore};
use crate::task::{Clock, Executed, GatewayFault, Principal, Reason, Summary, Task, TaskId, TaskKey, Timestamp};
pub use admission::TaskAdmission;
use admission::{TaskPermit, UnsettledRows};
pub use apply::TaskError;
pub use call::{
    Askable, CallEnd, CallEvent, CallSpec, CallStream, QuestionFilter, RetryRefusal, RoundRetry, RoundSupport,
    TaskNotice, TaskNoticeSink, declared_questions,
};
pub use change::SURVEY_MAX;
pub use change_subscribers::ChangeSubscribers;
pub use subtask_tree::SubtaskTree;
pub use target::{CallMaker, CallTarget, ServiceSettings, plain_request};

pub type DrawBits = dyn Fn() -> u128 + Send + Sync;

/// Keeps all tasks and drives their transitions. One per process; cheap to share.
pub struct Engine {
    store: Arc<dyn TaskStore>,
    clock: Arc<dyn Clock>,
    draw_bits: Box<DrawBits>,
    began: Timestamp,
    /// Set once the gateway is about to shut down.
    is_end_expected: AtomicBool,
    admission: Arc<TaskAdmission>,
    access: SharedAccess,
    audit: OnceLock<Arc<AuditLog>>,
    results: shared_results::SharedResults,
    watchers: ChangeSubscribers,
    /// Woken once the upstream of a cancelled task was notified, an event that no client sees.
    notified: ChangeSubscribers,
    live: runner::LiveRunners,
    /// Rows that recovery will retry, because the store failed to settle them.
    retried: Mutex<BTreeSet<TaskKey>>,
    runners: TaskTracker,
    changes: change::RunningChanges,
    unknown_commits: unknown_commits::UnknownCommits,
    trees: runner::TreeSizes,
    unstored: UnstoredTaskLog,
    metrics: task_metrics::TaskMetrics,
    /// Cancelled when a drain begins or all calls end: calls that a later process can resume are left to it.
    drain_begun: CancellationToken,
    calls_end: CallsEnd,
}

debug_members!(Engine, |engine| store: engine.store, clock: engine.clock);

impl Engine {
    pub fn new(
        store: Arc<dyn TaskStore>,
        clock: Arc<dyn Clock>,
        draw_bits: Box<DrawBits>,
        tasks_max: usize,
        principals: SharedLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            began: clock.now(),
            is_end_expected: AtomicBool::new(false),
            store,
            clock,
            draw_bits,
            admission: Arc::new(TaskAdmission::new(tasks_max, principals.clone())),
            results: shared_results::SharedResults::new(principals),
            access: SharedAccess::default(),
            audit: OnceLock::new(),
            watchers: ChangeSubscribers::default(),
            notified: ChangeSubscribers::default(),
            live: runner::LiveRunners::default(),
            retried: Mutex::default(),
            runners: TaskTracker::new(),
            changes: change::RunningChanges::default(),
            unknown_commits: unknown_commits::UnknownCommits::default(),
            trees: runner::TreeSizes::default(),
            unstored: UnstoredTaskLog::default(),
            metrics: task_metrics::TaskMetrics::default(),
            drain_begun: CancellationToken::new(),
            calls_end: CallsEnd::default(),
        })
    }

    pub(crate) fn mint_key(&self, owner: &Principal) -> TaskKey {
        TaskKey { owner: owner.clone(), id: TaskId::from_bits((self.draw_bits)()) }
    }

    pub const fn access(&self) -> &SharedAccess {
        &self.access
    }

    pub fn audit(&self) -> Option<&Arc<AuditLog>> {
        self.audit.get()
    }

    /// Records events from now on; must be called before the first request.
    pub fn set_audit(&self, audit: Arc<AuditLog>) {
        let _ = self.audit.set(audit);
    }

    pub fn usage(&self) -> crate::store::Usage {
        self.store.usage()
    }

    /// The bytes above which the store accepts no new task.
    pub fn stored_bytes_max(&self) -> usize {
        self.store.bytes_max()
    }

    /// One principal's unsettled tasks and calls that may become tasks, on this replica and, as last read, on the others.
    pub fn unfinished_of(&self, owner: &Principal) -> usize {
        self.admission.used_by(owner, self.unsettled_rows(owner))
    }

    pub const fn began(&self) -> Timestamp {
        self.began
    }

    /// Marks the gateway as about to shut down: from here on successors and later processes may take over.
    pub fn expect_end(&self) {
        self.is_end_expected.store(true, Ordering::Relaxed);
    }

    /// Whether a task may continue in a session without a call in this process: if an earlier process opened the
    /// session (`is_earlier`), or once this process is about to shut down. May overestimate; never misses such a task.
    pub fn may_go_on(&self, owner: &Principal, is_earlier: bool) -> bool {
        let is_left = is_earlier || self.is_end_expected.load(Ordering::Relaxed);
        is_left && self.store.reach().outlives_process() && self.store.usage_of(owner).unsettled > 0
    }

    /// Unsettled tasks of all principals, including calls that may still become tasks.
    pub fn permits_taken(&self) -> usize {
        self.admission.taken()
    }

    /// Unsettled tasks of an upstream that clients have handles of.
    pub fn unsettled_tasks(&self, upstream: &str) -> u64 {
        self.metrics.unsettled(upstream)
    }

    /// Sets the limit of unsettled tasks; existing tasks above it remain.
    pub fn set_tasks_max(&self, tasks_max: usize) {
        self.admission.set_tasks_max(tasks_max);
    }

    /// Takes a permit for a task that a call in progress needs, even during a drain. Fails with `TooManyTasks`.
    fn take_permit_of_running(&self, owner: &Principal) -> Result<TaskPermit, Reason> {
        let permit = self.admission.take_within(owner, NonZeroUsize::MIN, self.unsettled_rows(owner));
        permit.map_err(|_| self.refuse_permits(owner, NonZeroUsize::MIN))
    }

    fn refuse_permits(&self, owner: &Principal, number: NonZeroUsize) -> Reason {
        self.admission.refuse(owner, number, self.unsettled_rows(owner))
    }

    fn unsettled_rows(&self, owner: &Principal) -> UnsettledRows {
        match self.store.reach() {
            Reach::Process | Reach::Machine => UnsettledRows::default(),
            Reach::Shared => {
                UnsettledRows { all: self.store.usage().unsettled, of_owner: self.store.usage_of(owner).unsettled }
            }
        }
    }

    fn has_room_for(&self, owner: &Principal, bytes: usize) -> bool {
        let all = self.store.usage_of(owner).bytes;
        self.admission.has_room(owner, all, all + bytes)
    }

    pub const fn watchers(&self) -> &ChangeSubscribers {
        &self.watchers
    }

    pub fn is_running(&self, key: &TaskKey) -> bool {
        self.live.has(key)
    }

    /// Whether new calls are refused because the gateway shuts down.
    pub fn is_draining(&self) -> bool {
        self.drain_begun.is_cancelled()
    }

    /// Stops accepting tasks; waits at most `patience` for calls and changes, and returns how many remain. Calls that a
    /// later process can resume, or that were not sent, do not delay it: their rows stay; no upstream is notified.
    pub async fn drain(&self, patience: Duration) -> usize {
        self.expect_end();
        self.admission.close();
        self.drain_begun.cancel();
        self.runners.close();
        self.changes.tracker.close();
        // Changes first: runners carry out their effects.
        let over = async {
            self.changes.tracker.wait().await;
            self.runners.wait().await;
            self.changes.tracker.wait().await;
        };
        let _ = tokio::time::timeout(patience, over).await;
        self.runners.len()
    }

    /// Ends the calls in progress: waiting clients receive `why`, tasks remain as stored, upstreams are not notified.
    /// Call it before the connections to upstreams close, so that calls do not fail with a connection error instead.
    pub fn end_calls(&self, why: Reason) {
        self.drain_begun.cancel();
        self.calls_end.end(why);
    }

    pub const fn calls_end(&self) -> &CallsEnd {
        &self.calls_end
    }

    /// The current time for expiry. While the clock is not trusted, no task expires, because its age is unknown.
    fn expiry_time_of(&self, task: &Task, now: Timestamp) -> Timestamp {
        if self.store.is_time_distrusted() { task.created_at } else { now }
    }

    fn is_overdue(&self, task: &Task, now: Timestamp) -> bool {
        !task.is_settled() && task.expires_at() <= self.expiry_time_of(task, now)
    }

    /// Why a call of an ended process cannot continue.
    fn why_lost(&self) -> Reason {
        if self.store.reach() == Reach::Shared { Reason::ReplicaLost } else { Reason::GatewayRestart }
    }
}

pub type TaskCursor = (Timestamp, TaskId);

#[derive(Clone, Debug)]
pub struct TaskPage {
    pub tasks: Vec<Summary>,
    pub next: Option<TaskCursor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteResult {
    Deleted,
    /// The task has not settled and stays.
    Unsettled,
}

#[derive(Clone, Debug)]
pub struct CancelResult {
    pub task: Arc<Task>,
    /// The task had settled before, so the cancel changed nothing.
    pub was_settled: bool,
}

const THREADS: usize = 16;

thread_local! {
    static THREAD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % THREADS
    };
}

/// Signals the end of all calls. Each thread has a token: with one token, all threads would contend for its lock at each wait.
#[derive(Debug, Default)]
pub struct CallsEnd {
    tokens: [CancellationToken; THREADS],
    reason: OnceLock<Reason>,
}

impl CallsEnd {
    /// Ends all calls. The first reason counts.
    fn end(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.tokens.iter().for_each(CancellationToken::cancel);
    }

    pub fn token(&self) -> &CancellationToken {
        &self.tokens[THREAD.with(|number| *number)]
    }

    /// Waits for the end of all calls. A poll sees it even before this thread's token is cancelled, so that a permit that an
    /// ended call returns starts no other call.
    pub async fn ended(&self) {
        let mut cancelled = pin!(self.token().cancelled());
        poll_fn(|cx| if self.reason.get().is_some() { Poll::Ready(()) } else { cancelled.as_mut().poll(cx) }).await;
    }

    pub fn fault(&self, executed: Executed) -> GatewayFault {
        GatewayFault::new(self.reason.get().copied().unwrap_or(Reason::GatewayRestart), executed)
    }
}

/// Logs that tasks or their changes cannot be stored: once, until a write succeeds again.
#[derive(Debug, Default)]
struct UnstoredTaskLog {
    is_full: AtomicBool,
    is_unavailable: AtomicBool,
}

impl UnstoredTaskLog {
    fn stored(&self) {
        clear(&self.is_full);
        self.changed();
    }

    /// Records that the store replaced a task, which may succeed even where a new task finds no room.
    fn changed(&self) {
        clear(&self.is_unavailable);
    }

    /// Logs a refused write. A full share of one owner is counted and returned to its client instead.
    fn refused(&self, error: &StoreError) {
        let is_news = match error {
            StoreError::Full | StoreError::NoRoom => !self.is_full.swap(true, Ordering::Relaxed),
            StoreError::Io(_) | StoreError::UnknownCommit(_) => !self.is_unavailable.swap(true, Ordering::Relaxed),
            StoreError::OwnerFull => false,
            StoreError::Conflict | StoreError::Fenced | StoreError::Exists => true,
        };
        if is_news {
            tracing::warn!(error = %CauseChain(error), "a task could not be stored");
        } else {
            tracing::debug!(error = %CauseChain(error), "a task could not be stored");
        }
    }
}

/// The flag is rarely set, and an atomic load costs less than an atomic store.
fn clear(flag: &AtomicBool) {
    if flag.load(Ordering::Relaxed) {
        flag.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_trouble_of_the_store_is_told_once_until_it_takes_a_task_again() {
        let (log, full) = (UnstoredTaskLog::default(), StoreError::Full);
        let away = || io::Error::other("away");
        let logged = || [&log.is_full, &log.is_unavailable].map(|flag| flag.load(Ordering::Relaxed));
        for _ in 0..2 {
            log.refused(&StoreError::OwnerFull);
            assert_eq!(logged(), [false, false]);
            for error in [&full, &StoreError::NoRoom] {
                log.refused(error);
                assert_eq!(logged(), [true, false]);
            }
            for error in [StoreError::Io(away()), StoreError::UnknownCommit(away())] {
                log.refused(&error);
                assert_eq!(logged(), [true, true]);
            }
            log.changed();
            assert_eq!(logged(), [true, false]);
            log.refused(&StoreError::Io(away()));
            log.stored();
            assert_eq!(logged(), [false, false]);
        }
    }
}
