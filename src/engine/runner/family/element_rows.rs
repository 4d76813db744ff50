//! Tracks the tasks of a split call's elements, and begins those that wait.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::children::Children;
use crate::cause::CauseChain;
use crate::engine::Engine;
use crate::engine::admission::TaskPermit;
use crate::engine::call::{CallSpec, TaskNotice, TaskNoticeSink};
use crate::engine::runner::call_state::{RunningElement, SplitExchange, SplitPlan};
use crate::engine::runner::live_runners::RunnerCommands;
use crate::store::StoreError;
use crate::task::reference::LoggedTask;
use crate::task::{Task, TaskKey};

/// Rows written together, so that the store can merge their commits.
const AT_ONCE: usize = 64;

/// Begins or resumes a subtask's call. The spec has params where this process knows them.
pub(in crate::engine::runner) type BeginChild = fn(&Arc<Engine>, CallSpec, TaskKey, TaskPermit);

/// A split call's children. Their rows precede their parent's, which lists them; unlisted ones are removed (SUB-05).
pub(in crate::engine::runner) struct ElementRows {
    engine: Arc<Engine>,
    parent: TaskKey,
    keys: Vec<TaskKey>,
    /// Their rows, until their runners have begun.
    fresh: Vec<(Arc<Task>, RunnerCommands)>,
    logs: Option<TaskNoticeSink>,
    next: usize,
    /// The number of elements that have begun and not settled.
    at_work: usize,
    /// Permits of elements that have not begun.
    permits: Vec<TaskPermit>,
    begin: BeginChild,
}

pub(in crate::engine::runner) struct AdoptedElement {
    pub(in crate::engine::runner) spec: CallSpec,
    pub(in crate::engine::runner) task: Arc<Task>,
    pub(in crate::engine::runner) commands: RunnerCommands,
    pub(in crate::engine::runner) call: RunningElement,
    pub(in crate::engine::runner) permit: Option<TaskPermit>,
}

impl ElementRows {
    /// Claims rows, not stored yet, for a call that is about to become a task. Fails with `Exists` if a runner has one.
    pub(super) fn claimed(
        engine: &Arc<Engine>,
        begin: BeginChild,
        parent: &TaskKey,
        tasks: Vec<Task>,
        logs: Option<TaskNoticeSink>,
    ) -> Result<Self, StoreError> {
        // Claimed before the rows exist: recovery would otherwise take them for rows of an earlier process.
        let mut fresh: Vec<(Arc<Task>, RunnerCommands)> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let Some(commands) = engine.live.claim(&task.key) else {
                fresh.iter().for_each(|(task, _)| engine.live.remove(&task.key));
                return Err(StoreError::Exists);
            };
            fresh.push((Arc::new(task), commands));
        }
        let keys = fresh.iter().map(|(task, _)| task.key.clone()).collect();
        let (engine, parent) = (Arc::clone(engine), parent.clone());
        Ok(Self { engine, parent, keys, fresh, logs, next: 0, at_work: 0, permits: Vec::new(), begin })
    }

    pub(super) async fn store(&self) -> Result<(), StoreError> {
        for some in self.fresh.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|(task, _)| self.engine.insert_row(task))).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(self) {
        for key in &self.keys {
            if let Err(error) = self.engine.store.remove(key).await {
                // It is invisible without its parent: a later process removes it.
                tracing::warn!(task = %LoggedTask(key), error = %CauseChain(&error), "a subtask without its parent was not removed");
            }
            self.engine.live.remove(key);
        }
    }

    pub(in crate::engine::runner) fn of_earlier(engine: Arc<Engine>, task: &Task, begin: BeginChild) -> Self {
        let owner = &task.key.owner;
        let keys: Vec<_> =
            task.tree.children.iter().map(|child| TaskKey { owner: owner.clone(), id: *child }).collect();
        let permits = keys.iter().map(|_| engine.admission.take_again(owner)).collect();
        let parent = task.key.clone();
        Self { engine, parent, keys, fresh: Vec::new(), logs: None, next: 0, at_work: 0, permits, begin }
    }

    pub(super) fn key(&self, index: usize) -> Option<&TaskKey> {
        self.keys.get(index)
    }

    /// Takes over the elements in progress, once their parent has a handle. `permit` covers the parent and its elements.
    pub(super) fn adopt(
        &mut self,
        split: &mut SplitExchange,
        children: &mut Children,
        mut permit: Option<&mut TaskPermit>,
    ) -> Vec<AdoptedElement> {
        let mut adopted = Vec::new();
        (self.next, self.at_work) = split.progress();
        for (index, (task, commands)) in std::mem::take(&mut self.fresh).into_iter().enumerate() {
            let permit = permit.as_mut().and_then(|permit| permit.take_one());
            if let Some((spec, call)) = split.release(index) {
                let open = call.open.iter().map(|question| question.ask.clone()).collect();
                children.watch(index, task.key.clone(), open);
                let spec = CallSpec { notice_sink: self.logs_of(&task.key, split.plan()), ..spec };
                adopted.push(AdoptedElement { spec, task, commands, call, permit });
                continue;
            }
            self.engine.live.remove(&task.key);
            if split.is_open(index) {
                self.permits.extend(permit);
            }
        }
        adopted
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

    pub(super) const fn element_settled(&mut self) {
        self.at_work = self.at_work.saturating_sub(1);
    }

    /// A sink for a child's log messages, under its parent's key unless its client sees subtasks.
    fn logs_of(&self, key: &TaskKey, plan: &SplitPlan) -> Option<TaskNoticeSink> {
        let logs = self.logs.clone()?;
        let named = if plan.template().sees_subtasks { key.clone() } else { self.parent.clone() };
        Some(Arc::new(move |_, notice| {
            if matches!(notice, TaskNotice::Log(_)) {
                logs(&named, notice);
            }
        }))
    }
}
