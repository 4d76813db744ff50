//! Watches the tasks of a subscription: their state at the beginning, then after each change.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::cause::CauseChain;
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::dialect::{FaceDialect, TaskReply};
use crate::engine::change_subscribers::ChangeSubscriber;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::task::{Phase, Principal, Task, TaskKey};
use crate::wire::Payload;

pub(super) struct WatchedTasks {
    engine: Arc<Engine>,
    dialect: ExtTasks,
    metadata: StatelessRequest,
    /// Tasks that have changed or were not read yet.
    due: VecDeque<WatchedTask>,
    quiet: FuturesUnordered<BoxFuture<'static, WatchedTask>>,
    has_missed: bool,
}

struct WatchedTask {
    key: TaskKey,
    watcher: ChangeSubscriber,
    /// The last state sent, while it may still change.
    sent: Option<Payload>,
    /// The time until the next try after a failed read.
    again: Option<Duration>,
    pauses: RetryDelays,
}

impl WatchedTask {
    fn new(key: TaskKey, watcher: ChangeSubscriber) -> Self {
        Self { key, watcher, sent: None, again: None, pauses: RetryDelays::of_readers() }
    }

    async fn due(mut self) -> Self {
        match self.again.take() {
            // An unread change may have been the last.
            Some(pause) => drop(timeout(pause, self.watcher.changed()).await),
            None => self.watcher.changed().await,
        }
        self
    }
}

impl WatchedTasks {
    /// Watches the granted tasks, and removes unknown tasks, foreign tasks and tasks with too many watchers from the
    /// grant (T-53). An error if a task could not be read: then its existence is unknown.
    pub(super) async fn new(
        engine: Arc<Engine>,
        dialect: ExtTasks,
        metadata: StatelessRequest,
        owner: &Principal,
        granted: &mut SubscriptionFilter,
    ) -> Result<Self, TaskError> {
        let (mut due, mut has_missed) = (VecDeque::new(), false);
        if let Some(ids) = &mut granted.tasks {
            for id in std::mem::take(ids) {
                let key = TaskKey { owner: owner.clone(), id };
                // Read after the watch began, so that no change is missed.
                let Ok(watcher) = engine.watchers().watch(&key) else { continue };
                match engine.get(&key).await {
                    Ok(_) => {
                        ids.insert(id);
                        due.push_back(WatchedTask::new(key, watcher));
                    }
                    Err(TaskError::Unknown) => has_missed = true,
                    Err(error @ (TaskError::Contended | TaskError::Store(_))) => return Err(error),
                }
            }
        }
        Ok(Self { engine, dialect, metadata, due, quiet: FuturesUnordered::new(), has_missed })
    }

    pub(super) const fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// The `tasks/get` result of the next changed task. Cancel safe.
    pub(super) async fn next(&mut self) -> Payload {
        loop {
            while let Some(one) = self.due.front() {
                // Stays in front until it was read: this future may be dropped in between.
                let read = self.engine.get(&one.key).await;
                let Some(mut one) = self.due.pop_front() else { break };
                let snapshot = match &read {
                    Ok(task) => self.snapshot(task),
                    Err(TaskError::Unknown) => continue,
                    Err(error) => {
                        tracing::debug!(error = %CauseChain(error), "a listener's task could not be read and is read again");
                        one.again = Some(one.pauses.take());
                        None
                    }
                };
                if read.is_ok() {
                    one.pauses = RetryDelays::of_readers();
                }
                let snapshot = snapshot.filter(|snapshot| one.sent.as_ref() != Some(snapshot));
                if !read.is_ok_and(|task| task.is_settled()) {
                    one.sent = snapshot.clone().or(one.sent);
                    self.quiet.push(Box::pin(one.due()));
                }
                if let Some(snapshot) = snapshot {
                    return snapshot;
                }
            }
            match self.quiet.next().await {
                Some(one) => self.due.push_back(one),
                None => std::future::pending().await,
            }
        }
    }

    /// `None` if the task asks a question of a kind that this client did not declare (GW-25).
    fn snapshot(&self, task: &Task) -> Option<Payload> {
        if let Phase::AwaitingInput(open) = &task.phase
            && self.metadata.missing(open.values().map(|question| &question.request)).is_some()
        {
            return None;
        }
        self.dialect.encode(TaskReply::Snapshot(task)).ok()
    }
}
