//! Holds the subtasks of a call: its elements with rows, and subtasks that its server named.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::call_state::{RunningElement, SplitExchange, SplitPlan};
use super::live_runners::RunnerCommands;
use super::tree_sizes::TreeSize;
use crate::answer_budget::FREE_BYTES;
use crate::cause::CauseChain;
use crate::dialect::plain::question_method;
use crate::engine::admission::TaskPermit;
use crate::engine::call::{CallSpec, TaskNotice, TaskNoticeSink};
use crate::engine::change::HeldRow;
use crate::engine::change_subscribers::ChangeSubscriber;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::store::StoreError;
use crate::task::reference::LoggedTask;
use crate::task::{InputKey, Task, TaskId, TaskKey, TaskVisibility};
use crate::wire::{Object, Payload};

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
            elements.at_work = elements.at_work.saturating_sub(1);
        }
    }

    /// The subtask with this number. An element of a resumed call may not have begun yet.
    pub(super) fn subtask(&self, index: usize) -> Option<&TaskKey> {
        let element = self.elements.as_ref().and_then(|elements| elements.keys.get(index));
        element.or_else(|| self.children.as_ref()?.keys.get(&index))
    }

    /// Watches no subtask any more, and begins none.
    pub(super) fn finish(&mut self) {
        self.children = None;
        if let Some(elements) = &mut self.elements {
            elements.next = usize::MAX;
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

/// Rows written together, so that the store can merge their commits.
const AT_ONCE: usize = 64;

/// Begins or resumes a subtask's call. The spec has params where this process knows them.
pub(super) type BeginChild = fn(&Arc<Engine>, CallSpec, TaskKey, TaskPermit);

/// A split call's children. Their rows precede their parent's, which lists them; unlisted ones are removed (SUB-05).
pub(super) struct ElementRows {
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

pub(super) struct AdoptedElement {
    pub(super) spec: CallSpec,
    pub(super) task: Arc<Task>,
    pub(super) commands: RunnerCommands,
    pub(super) call: RunningElement,
    pub(super) permit: Option<TaskPermit>,
}

impl ElementRows {
    /// Claims rows, not stored yet, for a call that is about to become a task. Fails with `Exists` if a runner has one.
    fn claimed(
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

    async fn store(&self) -> Result<(), StoreError> {
        for some in self.fresh.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|(task, _)| self.engine.insert_row(task))).await?;
        }
        Ok(())
    }

    async fn remove(self) {
        for key in &self.keys {
            if let Err(error) = self.engine.store.remove(key).await {
                // It is invisible without its parent: a later process removes it.
                tracing::warn!(task = %LoggedTask(key), error = %CauseChain(&error), "a subtask without its parent was not removed");
            }
            self.engine.live.remove(key);
        }
    }

    pub(super) fn of_earlier(engine: Arc<Engine>, task: &Task, begin: BeginChild) -> Self {
        let owner = &task.key.owner;
        let keys: Vec<_> =
            task.tree.children.iter().map(|child| TaskKey { owner: owner.clone(), id: *child }).collect();
        let permits = keys.iter().map(|_| engine.admission.take_again(owner)).collect();
        let parent = task.key.clone();
        Self { engine, parent, keys, fresh: Vec::new(), logs: None, next: 0, at_work: 0, permits, begin }
    }

    /// Takes over the elements in progress, once their parent has a handle. `permit` covers the parent and its elements.
    fn adopt(
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
    fn begin_more(&mut self, plan: &SplitPlan, children: &mut Children) {
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

    /// A sink for a child's log messages, under its parent's key unless its client sees subtasks.
    fn logs_of(&self, key: &TaskKey, plan: &SplitPlan) -> Option<TaskNoticeSink> {
        let logs = self.logs.clone()?;
        let named = if plan.template().sees_subtasks { key.clone() } else { self.parent.clone() };
        Some(Arc::new(move |_, notice| {
            if matches!(notice, TaskNotice::Notification(_)) {
                logs(&named, notice);
            }
        }))
    }
}

/// An event of a child. Children are numbered in the order of their parent's list.
pub(super) enum ChildEvent {
    /// It asked a question. The client cannot see the child, and so gets the question from the parent (T-40).
    Asked {
        index: usize,
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    },
    Withdrawn {
        index: usize,
        ask: Payload,
    },
    Status(Arc<str>),
    /// It settled; `None` if its row was removed.
    Settled {
        index: usize,
        row: Option<HeldRow>,
    },
}

struct Children {
    engine: Arc<Engine>,
    keys: BTreeMap<usize, TaskKey>,
    changes: FuturesUnordered<BoxFuture<'static, WatchedChild>>,
    unread: Option<WatchedChild>,
    /// When it is read again after a failure of the store.
    retry: Option<(Instant, RetryDelays)>,
    events: VecDeque<ChildEvent>,
}

struct WatchedChild {
    index: usize,
    key: TaskKey,
    changes: ChangeSubscriber,
    /// The questions that its parent has received.
    open: Vec<Payload>,
    /// The key of its next question, as last read: a later question may have the name of an earlier one.
    next_key: Option<InputKey>,
    message: Option<Arc<str>>,
}

impl Children {
    fn new(engine: Arc<Engine>) -> Self {
        let (changes, events) = (FuturesUnordered::new(), VecDeque::new());
        Self { engine, keys: BTreeMap::new(), changes, unread: None, retry: None, events }
    }

    /// Watches one more child, and reads it at once. `open` holds its questions that its parent has asked already.
    fn watch(&mut self, index: usize, key: TaskKey, open: Vec<Payload>) {
        self.keys.insert(index, key.clone());
        let changes = self.engine.watchers.watch_always(&key);
        let child = WatchedChild { index, key, changes, open, next_key: None, message: None };
        self.changes.push(Box::pin(std::future::ready(child)));
    }

    fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.events.is_empty()
    }

    /// The next event; pends until there is one. Cancel safe.
    async fn next(&mut self) -> ChildEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.unread.is_none() {
                self.unread = self.changes.next().await;
            }
            let Some(child) = &self.unread else { return std::future::pending().await };
            if let Some((at, _)) = self.retry {
                tokio::time::sleep_until(at).await;
            }
            let row = match self.engine.load_within(&child.key, FREE_BYTES).await {
                Ok(row) => Some(row),
                Err(TaskError::Unknown) => None,
                Err(error) => {
                    tracing::warn!(task = %LoggedTask(&child.key), error = %CauseChain(&error), "a subtask could not be read yet");
                    let mut pauses = self.retry.map_or_else(RetryDelays::of_writers, |(_, pauses)| pauses);
                    self.retry = Some((Instant::now() + pauses.take(), pauses));
                    continue;
                }
            };
            self.retry = None;
            if let Some(child) = self.unread.take() {
                self.looked_at(child, row);
            }
        }
    }

    fn looked_at(&mut self, mut child: WatchedChild, row: Option<HeldRow>) {
        let index = child.index;
        let task = match row {
            Some(HeldRow::Read(task)) if !task.is_settled() => task,
            ended => {
                self.events.extend(child.open.drain(..).map(|ask| ChildEvent::Withdrawn { index, ask }));
                self.keys.remove(&index);
                self.events.push_back(ChildEvent::Settled { index, row: ended });
                return;
            }
        };
        if task.visibility == TaskVisibility::Part {
            let next = child.next_key.replace(task.next_key);
            let known = task.open_questions().filter(|(key, _)| next.is_none_or(|next| *key < next));
            let gone = child.open.extract_if(.., |ask| !known.clone().any(|(_, question)| question.ask == *ask));
            self.events.extend(gone.map(|ask| ChildEvent::Withdrawn { index, ask }));
            for (_, question) in task.open_questions() {
                if !child.open.contains(&question.ask) {
                    let params = Object::of(&question.request).and_then(|request| request.get("params"));
                    let (ask, method) = (question.ask.clone(), question_method(&question.request));
                    child.open.push(ask.clone());
                    self.events.push_back(ChildEvent::Asked { index, ask, method, params });
                }
            }
        }
        if task.status_message != child.message {
            child.message.clone_from(&task.status_message);
            self.events.extend(task.status_message.clone().map(ChildEvent::Status));
        }
        self.changes.push(Box::pin(async move {
            child.changes.changed().await;
            child
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_limits::SharedLimits;
    use crate::store::{MemoryStore, TaskStore as _, WriteRole, contract};
    use crate::task::{Answer, Attempt, Event, ManualClock, Question, transition};

    fn asked(task: Task) -> Task {
        let (ask, request) =
            (Payload::of("which"), Payload::of(&serde_json::json!({ "method": "elicitation/create" })));
        let event = Event::QuestionReceived { attempt: Attempt::FIRST, question: Question { ask, request } };
        transition(task, event, contract::START).0
    }

    async fn next(children: &mut Children) -> &'static str {
        match children.next().await {
            ChildEvent::Asked { .. } => "asked",
            ChildEvent::Withdrawn { .. } => "withdrawn",
            ChildEvent::Status(_) | ChildEvent::Settled { .. } => "another event",
        }
    }

    /// It is answered, and asked again, before its parent reads the row.
    #[tokio::test]
    async fn a_question_under_the_name_of_an_answered_one_is_another_question() {
        let (store, clock) = (Arc::new(MemoryStore::new(1 << 20)), Arc::new(ManualClock::at(contract::START)));
        let engine = Engine::new(Arc::<MemoryStore>::clone(&store), clock, Box::new(|| 7), 9, SharedLimits::default());
        let child = asked(Task { visibility: TaskVisibility::Part, ..contract::task("a", 1) });
        let first = store.insert(&child).await.unwrap();
        let mut children = Children::new(Arc::clone(&engine));
        children.watch(0, child.key.clone(), Vec::new());
        assert_eq!(next(&mut children).await, "asked");
        let answers = BTreeMap::from([(InputKey::default(), Answer::Result(Payload::empty_object()))]);
        let answered = transition(child, Event::Answered { answers }, contract::START).0;
        let again = asked(answered);
        store.replace(first, WriteRole::Holder, &again).await.unwrap();
        engine.watchers.wake(&again.key);
        assert_eq!([next(&mut children).await, next(&mut children).await], ["withdrawn", "asked"]);
    }
}
