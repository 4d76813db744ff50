//! Tracks the tasks of a split call's elements, and begins those that wait.

use std::sync::Arc;

use super::children::Children;
use super::live_runners::RunnerCommands;
use super::split_plan::SplitPlan;
use crate::engine::Engine;
use crate::engine::admission::TaskPermit;
use crate::engine::call::{CallSpec, TaskNotice, TaskNoticeSink};
use crate::task::{Task, TaskKey};

/// Begins or resumes a subtask's call. The spec has params where this process knows them.
pub(super) type BeginChild = fn(&Arc<Engine>, CallSpec, TaskKey, TaskPermit);

/// The children of a split call's task.
pub(super) struct ElementRows {
    engine: Arc<Engine>,
    parent: TaskKey,
    pub(super) keys: Vec<TaskKey>,
    /// Their rows, until their runners have begun.
    pub(super) fresh: Vec<(Arc<Task>, RunnerCommands)>,
    /// Receives their log messages.
    logs: Option<TaskNoticeSink>,
    /// The element that is begun next.
    pub(super) next: usize,
    /// The number of elements that have begun and not settled.
    pub(super) at_work: usize,
    /// Permits of elements that have not begun.
    pub(super) permits: Vec<TaskPermit>,
    begin: BeginChild,
}

impl ElementRows {
    /// The rows of a call that just became a task.
    pub(super) fn fresh(
        (engine, begin): (Arc<Engine>, BeginChild),
        parent: &TaskKey,
        fresh: Vec<(Arc<Task>, RunnerCommands)>,
        logs: Option<TaskNoticeSink>,
    ) -> Self {
        let keys = fresh.iter().map(|(task, _)| task.key.clone()).collect();
        Self { engine, parent: parent.clone(), keys, fresh, logs, next: 0, at_work: 0, permits: Vec::new(), begin }
    }

    /// The rows of a call that an earlier process left.
    pub(super) fn of_earlier(engine: Arc<Engine>, task: &Task, begin: BeginChild) -> Self {
        let owner = &task.key.owner;
        let keys: Vec<_> =
            task.tree.children.iter().map(|child| TaskKey { owner: owner.clone(), id: *child }).collect();
        let permits = keys.iter().map(|_| engine.admission.take_again(owner)).collect();
        let parent = task.key.clone();
        Self { engine, parent, keys, fresh: Vec::new(), logs: None, next: 0, at_work: 0, permits, begin }
    }

    pub(super) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Begins elements up to the limit of parallel ones.
    pub(super) fn begin_more(&mut self, plan: &SplitPlan, children: &mut Children) {
        while self.at_work < plan.parallel()
            && let Some(key) = self.keys.get(self.next).cloned()
        {
            let permit = self.permits.pop().unwrap_or_else(|| self.engine.admission.take_again(&key.owner));
            let mut spec = CallSpec { notice_sink: self.logs_of(&key, plan), ..plan.element(self.next) };
            spec.context.share = Some(self.engine.share_of(&spec));
            // Before it begins, so that no change is missed.
            children.watch(self.next, key.clone(), Vec::new());
            (self.begin)(&self.engine, spec, key, permit);
            self.at_work += 1;
            self.next += 1;
        }
    }

    pub(super) const fn begin_no_more(&mut self) {
        self.next = usize::MAX;
    }

    /// An element has settled.
    pub(super) const fn is_done(&mut self) {
        self.at_work = self.at_work.saturating_sub(1);
    }

    /// A sink for a child's log messages, under its parent's key unless its client sees subtasks.
    pub(super) fn logs_of(&self, key: &TaskKey, plan: &SplitPlan) -> Option<TaskNoticeSink> {
        let logs = self.logs.clone()?;
        let named = if plan.part().sees_subtasks { key.clone() } else { self.parent.clone() };
        Some(Arc::new(move |_, notice| {
            if matches!(notice, TaskNotice::Log(_)) {
                logs(&named, notice);
            }
        }))
    }
}
