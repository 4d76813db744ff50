//! Drives transitions: holds the one writer of tasks, and the runners that own upstream calls.
//!
//! Knows no status word and never opens a payload. Read [`apply`] first (how a task changes), then
//! [`runner`] (how a call becomes one) and `change` (what clients may ask of it).

pub mod admission;
pub mod apply;
pub mod call;
mod calls_end;
mod change;
pub mod change_subscribers;
pub mod changes_elsewhere;
mod doubtful_writes;
mod list_all;
pub mod recovery;
mod refused_inserts;
pub mod retry_delays;
pub mod rows_without_runner;
pub mod runner;
mod shared_results;
mod subtask_tree;
pub mod sweeper;
mod target;
mod task_metrics;
mod unstored_tasks;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admission::TaskAdmission;
use admission::{TaskPermit, UnsettledRows};
pub use apply::TaskError;
use apply::record_shown;
pub use call::{
    Askable, CallEnd, CallEvent, CallSpec, CallStream, QuestionFilter, RetryRefusal, RoundRetry, RoundSupport,
    TaskNotice, TaskNoticeSink, declared_questions,
};
pub use calls_end::CallsEnd;
pub use change_subscribers::ChangeSubscribers;
pub use list_all::SURVEY_MAX;
pub use subtask_tree::SubtaskTree;
pub use target::{CallMaker, CallTarget, ServiceSettings, plain_request};
use unstored_tasks::UnstoredTaskLog;

use crate::shared_access::SharedAccess;
use crate::shared_limits::SharedLimits;
use crate::store::{Reach, TaskStore};
use crate::task::{Clock, Principal, Reason, Summary, Task, TaskId, TaskKey, Timestamp};

/// Draws the bits of a new task's id.
pub type DrawBits = dyn Fn() -> u128 + Send + Sync;

/// Everything that keeps tasks and moves them on. One per process; cheap to share.
pub struct Engine {
    store: Arc<dyn TaskStore>,
    clock: Arc<dyn Clock>,
    draw_bits: Box<DrawBits>,
    began: Timestamp,
    /// Set once it is about to end.
    ends: AtomicBool,
    admission: Arc<TaskAdmission>,
    access: SharedAccess,
    results: shared_results::SharedResults,
    watchers: ChangeSubscribers,
    /// Woken once the server of a cancelled task was told, which no client sees.
    told: ChangeSubscribers,
    live: runner::LiveRunners,
    /// Rows that recovery will look at again, since the store kept them from being settled.
    retried: Mutex<BTreeSet<TaskKey>>,
    runners: TaskTracker,
    changes: change::RunningChanges,
    doubts: doubtful_writes::DoubtfulWrites,
    trees: runner::TreeSizes,
    unstored: UnstoredTaskLog,
    metrics: task_metrics::TaskMetrics,
    /// Cancelled once the gateway ends: calls that a later life can go on with are left to it.
    leaving: CancellationToken,
    /// Cancelled once no call is waited for any more.
    calls_end: CallsEnd,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Engine {
    #[must_use]
    pub fn new(
        store: Arc<dyn TaskStore>,
        clock: Arc<dyn Clock>,
        draw_bits: Box<DrawBits>,
        tasks_max: usize,
        principals: SharedLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            began: clock.now(),
            ends: AtomicBool::new(false),
            store,
            clock,
            draw_bits,
            admission: Arc::new(TaskAdmission::new(tasks_max, principals.clone())),
            results: shared_results::SharedResults::new(principals),
            access: SharedAccess::default(),
            watchers: ChangeSubscribers::default(),
            told: ChangeSubscribers::default(),
            live: runner::LiveRunners::default(),
            retried: Mutex::default(),
            runners: TaskTracker::new(),
            changes: change::RunningChanges::default(),
            doubts: doubtful_writes::DoubtfulWrites::default(),
            trees: runner::TreeSizes::default(),
            unstored: UnstoredTaskLog::default(),
            metrics: task_metrics::TaskMetrics::default(),
            leaving: CancellationToken::new(),
            calls_end: CallsEnd::default(),
        })
    }

    /// Runs one call: plainly, as a task, or whichever the grace period shows (see [`crate::task::Plan`]).
    ///
    /// The call goes on in a runner of its own. Dropping the stream before a handle came cancels it at
    /// the upstream; after that nothing does but a cancel of the task.
    ///
    /// A task of nobody in particular is kept for less time than its policy says.
    pub fn call(self: &Arc<Self>, mut spec: CallSpec) -> CallStream {
        spec.policy = spec.policy.for_owner(&spec.owner);
        spec.context.share = Some(self.share_of(&spec));
        runner::start(Arc::clone(self), spec)
    }

    /// Goes on with a held call: what the client says reaches the upstream, and the stream shows what comes of it as
    /// [`Engine::call`] does. Dropping the stream before it showed anything final cancels the call, unless another
    /// client waits for it too.
    ///
    /// # Errors
    /// If nobody here runs the call, or too many come back for it at once: see [`Engine::held`].
    pub fn retry(&self, key: &TaskKey, retry: RoundRetry) -> Result<CallStream, RetryRefusal> {
        let (seat, stream) = CallStream::new();
        self.live.retry(key, seat, retry).map(|()| stream)
    }

    pub(crate) fn mint_key(&self, owner: &Principal) -> TaskKey {
        TaskKey { owner: owner.clone(), id: TaskId::from_bits((self.draw_bits)()) }
    }

    /// What each principal may use, which its tasks' owners are held to.
    #[must_use]
    pub const fn access(&self) -> &SharedAccess {
        &self.access
    }

    /// What the store holds, for metrics.
    #[must_use]
    pub fn usage(&self) -> crate::store::Usage {
        self.store.usage()
    }

    /// How many bytes the store may hold for new tasks to be taken.
    #[must_use]
    pub fn stored_bytes_max(&self) -> usize {
        self.store.bytes_max()
    }

    /// Unsettled tasks of one principal, calls that may yet become one included; those of all gateways, where others have the store
    /// open, as of the last look at it.
    #[must_use]
    pub fn unfinished_of(&self, owner: &Principal) -> usize {
        self.admission.used_by(owner, self.unsettled_rows(owner))
    }

    /// When this life began.
    #[must_use]
    pub const fn began(&self) -> Timestamp {
        self.began
    }

    /// The gateway is about to end: from here on other gateways stand in for it, and a later life comes.
    pub fn expect_end(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }

    /// Whether a task of a principal's may go on, at another time or another gateway, in a session that no call here runs in: as in one
    /// that an earlier life opened (`is_earlier`), or once this life is about to end. Errs on the side of yes.
    #[must_use]
    pub fn may_go_on(&self, owner: &Principal, is_earlier: bool) -> bool {
        let is_left = is_earlier || self.ends.load(Ordering::Relaxed);
        is_left && self.store.reach().outlives_process() && self.store.usage_of(owner).unsettled > 0
    }

    /// Unsettled tasks of all principals, calls that may yet become one included.
    #[must_use]
    pub fn places_taken(&self) -> usize {
        self.admission.taken()
    }

    /// Tasks of an upstream that clients have handles of and that are not done.
    #[must_use]
    pub fn unsettled_tasks(&self, upstream: &str) -> u64 {
        self.metrics.unsettled(upstream)
    }

    /// How many unsettled tasks there may be from now on; those that are there stay.
    pub fn set_tasks_max(&self, tasks_max: usize) {
        self.admission.set_tasks_max(tasks_max);
    }

    /// Counts and logs that a client asked how its task stands, and was told.
    pub fn count_poll(&self, task: &Task) {
        self.metrics.polled();
        record_shown(task);
        if !task.is_settled() {
            self.live.polled(&task.key);
        }
    }

    /// Takes places for a task and its subtasks: all of them, or none. Where other gateways have the store open, what they have
    /// there counts, as of the last look at it.
    ///
    /// # Errors
    /// `TooManyTasks` or `Draining`.
    fn take_places(&self, owner: &Principal, number: NonZeroUsize) -> Result<TaskPermit, Reason> {
        self.admission.take_beside(owner, number, self.unsettled_rows(owner))
    }

    /// Takes a place for what a call in progress turns out to need. A gateway that ends waits for such a call.
    ///
    /// # Errors
    /// `TooManyTasks`.
    fn take_place_of_running(&self, owner: &Principal) -> Result<TaskPermit, Reason> {
        self.admission.take_within(owner, NonZeroUsize::MIN, self.unsettled_rows(owner))
    }

    fn unsettled_rows(&self, owner: &Principal) -> UnsettledRows {
        match self.store.reach() {
            Reach::Process | Reach::Machine => UnsettledRows::default(),
            Reach::Shared => {
                UnsettledRows { all: self.store.usage().unsettled, of_owner: self.store.usage_of(owner).unsettled }
            }
        }
    }

    /// Those who wait for changes of tasks.
    #[must_use]
    pub const fn watchers(&self) -> &ChangeSubscribers {
        &self.watchers
    }

    /// Whether this process runs the call of a task.
    #[must_use]
    pub fn is_running(&self, key: &TaskKey) -> bool {
        self.live.has(key)
    }

    /// Whether no call is to begin any more, as the gateway ends.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled()
    }

    /// Stops making tasks and waits for the calls and the changes in progress, at most `patience`. Returns how many are
    /// in progress still.
    ///
    /// Where the store outlives the process, calls that a later life can take up, and those that were not sent, are
    /// not waited for: where they stand is stored, and their upstreams are told nothing.
    pub async fn drain(&self, patience: Duration) -> usize {
        self.expect_end();
        self.admission.close();
        self.leaving.cancel();
        self.runners.close();
        self.changes.tracker.close();
        // Changes first: what they bring about is done by runners.
        let over = async {
            self.changes.tracker.wait().await;
            self.runners.wait().await;
            self.changes.tracker.wait().await;
        };
        // What is in progress then is the caller's to count.
        let _ = tokio::time::timeout(patience, over).await;
        self.runners.len()
    }

    /// Ends the calls in progress: clients that wait for one are told why, which is `gateway_restart` where the gateway ends; tasks
    /// stay as they are stored, and a later life judges them. Upstreams are told nothing. To be called before the
    /// connections to them end: what ends with those is not their doing.
    pub fn end_calls(&self, why: Reason) {
        self.leaving.cancel();
        self.calls_end.end(why);
    }

    /// What [`Engine::end_calls`] brings about.
    #[must_use]
    pub const fn calls_end(&self) -> &CallsEnd {
        &self.calls_end
    }

    /// Now, for what ends a task by its age. As long as the clock may be wrong nothing ages: nobody knows for how long the task was left.
    fn time_of(&self, task: &Task, now: Timestamp) -> Timestamp {
        if self.store.is_time_distrusted() { task.created_at } else { now }
    }

    fn is_overdue(&self, task: &Task, now: Timestamp) -> bool {
        !task.is_settled() && task.expires_at() <= self.time_of(task, now)
    }

    /// Why a call of a life that has ended cannot go on.
    fn why_lost(&self) -> Reason {
        if self.store.reach() == Reach::Shared { Reason::ReplicaLost } else { Reason::GatewayRestart }
    }
}

/// A place in one owner's tasks: between the one that was created then and has this id, and the next.
pub type TaskCursor = (Timestamp, TaskId);

/// Some of one owner's tasks.
#[derive(Clone, Debug)]
pub struct TaskPage {
    pub tasks: Vec<Summary>,
    /// Where the next page begins, if there is one.
    pub next: Option<TaskCursor>,
}

/// What a deletion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteResult {
    Deleted,
    /// The task has not settled and stays.
    Unsettled,
}

/// What a cancel did.
#[derive(Clone, Debug)]
pub struct CancelResult {
    pub task: Arc<Task>,
    /// It came too late to change anything.
    pub was_settled: bool,
}
