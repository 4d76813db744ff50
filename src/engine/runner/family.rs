//! Holds the subtasks of a call: its elements with rows, and subtasks that its server named.

mod children;
mod element_rows;

use std::collections::HashSet;
use std::sync::Arc;

pub(super) use self::children::ChildEvent;
use self::children::Children;
pub(super) use self::element_rows::{AdoptedElement, BeginChild, ElementRows};
use super::call_state::{SplitExchange, SplitPlan};
use super::tree_sizes::TreeSize;
use crate::engine::Engine;
use crate::engine::admission::TaskPermit;
use crate::engine::call::TaskNoticeSink;
use crate::store::StoreError;
use crate::task::{Task, TaskId, TaskKey};
use crate::wire::Payload;

#[derive(Default)]
pub(super) struct Family {
    /// Watches the subtasks. Created with the first one: most calls have none.
    children: Option<Box<Children>>,
    /// The tasks of a split call's elements, once the call is a task.
    elements: Option<Box<ElementRows>>,
    /// The server's ids of subtasks without a row: their parent has no row, or they arrived just now.
    waiting: Vec<Arc<str>>,
    /// Subtasks with an unknown commit of their row, or of the entry in their parent's row.
    unresolved: HashSet<TaskId>,
    size: Option<Arc<TreeSize>>,
    logged: Vec<&'static str>,
}

impl Family {
    pub(super) fn of_earlier(elements: ElementRows, engine: &Arc<Engine>) -> Self {
        let children = Box::new(Children::new(Arc::clone(engine)));
        Self { children: Some(children), elements: Some(Box::new(elements)), ..Self::default() }
    }

    /// The next event of a subtask; pends while none can come. Cancel safe.
    pub(super) async fn next(&mut self) -> ChildEvent {
        match self.children.as_mut().filter(|children| !children.is_idle()) {
            // Boxed: most calls have no children, and hold no memory for this future.
            Some(children) => Box::pin(children.next()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether all subtasks have settled, and all their events were taken.
    pub(super) fn is_idle(&self) -> bool {
        self.children.as_ref().is_none_or(|children| children.is_idle())
    }

    /// Watches a subtask, which must settle before the call ends.
    pub(super) fn watch(&mut self, engine: &Arc<Engine>, index: usize, key: TaskKey, open: Vec<Payload>) {
        self.children.get_or_insert_with(|| Box::new(Children::new(Arc::clone(engine)))).watch(index, key, open);
    }

    pub(super) const fn has_elements(&self) -> bool {
        self.elements.is_some()
    }

    /// Inserts rows for the elements of a split call. Never fails with `UnknownCommit`.
    pub(super) async fn insert_elements(
        &mut self,
        engine: &Arc<Engine>,
        begin: BeginChild,
        parent: &TaskKey,
        tasks: Vec<Task>,
        logs: Option<TaskNoticeSink>,
    ) -> Result<(), StoreError> {
        let elements = ElementRows::claimed(engine, begin, parent, tasks, logs)?;
        let stored = elements.store().await;
        self.elements = Some(Box::new(elements));
        if let Err(error) = stored {
            self.remove_elements().await;
            // A row that was stored nevertheless has no parent: its call is certainly not sent.
            return Err(error.as_failed());
        }
        Ok(())
    }

    /// Removes the elements' rows, because their parent has no row.
    pub(super) async fn remove_elements(&mut self) {
        if let Some(elements) = self.elements.take() {
            elements.remove().await;
        }
    }

    pub(super) fn adopt_elements(
        &mut self,
        engine: &Arc<Engine>,
        split: &mut SplitExchange,
        permit: Option<&mut TaskPermit>,
    ) -> Vec<AdoptedElement> {
        let children = self.children.get_or_insert_with(|| Box::new(Children::new(Arc::clone(engine))));
        self.elements.as_mut().map_or_else(Vec::new, |elements| elements.adopt(split, children, permit))
    }

    pub(super) fn begin_elements(&mut self, plan: &SplitPlan) {
        if let (Some(elements), Some(children)) = (&mut self.elements, &mut self.children) {
            elements.begin_more(plan, children);
        }
    }

    pub(super) fn element_settled(&mut self) {
        if let Some(elements) = &mut self.elements {
            elements.element_settled();
        }
    }

    /// The subtask with this number. An element of a resumed call may not have begun yet.
    pub(super) fn subtask(&self, index: usize) -> Option<&TaskKey> {
        let element = self.elements.as_ref().and_then(|elements| elements.key(index));
        element.or_else(|| self.children.as_ref()?.key(index))
    }

    /// Watches no subtask any more, and begins none.
    pub(super) fn finish(&mut self) {
        self.children = None;
        if let Some(elements) = &mut self.elements {
            elements.begin_no_more();
        }
    }

    pub(super) fn add(&mut self, named: Vec<Arc<str>>) {
        self.waiting.extend(named);
    }

    pub(super) const fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn next_waiting(&self, max: usize) -> Vec<Arc<str>> {
        self.waiting.iter().take(max).cloned().collect()
    }

    /// Records that this many subtasks need no row any more.
    pub(super) fn remove_stored(&mut self, count: usize) {
        self.waiting.drain(..count);
        self.unresolved.clear();
    }

    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
        self.unresolved.clear();
    }

    pub(super) fn size(&mut self, tree: impl FnOnce() -> Arc<TreeSize>) -> Arc<TreeSize> {
        Arc::clone(self.size.get_or_insert_with(tree))
    }

    pub(super) fn is_unresolved(&self, id: TaskId) -> bool {
        self.unresolved.contains(&id)
    }

    pub(super) fn add_unresolved(&mut self, id: TaskId) {
        self.unresolved.insert(id);
    }

    pub(super) fn resolve(&mut self, id: TaskId) {
        self.unresolved.remove(&id);
    }

    /// Logs that a subtask is left out, once for each reason.
    pub(super) fn leave_out(&mut self, why: &'static str) {
        if !self.logged.contains(&why) {
            self.logged.push(why);
            tracing::warn!(why, "a subtask of the server's is left out");
        }
    }
}
