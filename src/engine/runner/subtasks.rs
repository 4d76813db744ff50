//! Mirrors a server's subtasks of a call as subtasks of the call's task (SEP-2268). Each gets a row below its parent's
//! and its own runner, which mirrors its subtasks in the same way. Its id is derived from the server's id, so that a
//! later process finds it again; a subtask with another parent in the tree is skipped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::call_state::{ExchangeStage, UpstreamCall};
use super::live_runners::RunnerCommands;
use super::recorder::UnstoredStep;
use super::resume::{AdoptedCall, adopt, begin_child};
use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::dialect::split_call::question_named;
use crate::engine::TaskError;
use crate::engine::admission::TaskPermit;
use crate::engine::call::{CallSpec, RoundSupport};
use crate::failpoint;
use crate::store::StoreError;
use crate::task::reference::LoggedTask;
use crate::task::{
    Event, Executed, GatewayFault, Phase, Plan, Reason, Recovery, Task, TaskId, TaskKey, TaskVisibility, TreeLinks,
};
use crate::upstream::ResumeToken;
use crate::wire::Payload;

/// Rows written together, so that the store can merge their commits.
const AT_ONCE: usize = 64;
/// Tries to claim a row that recovery looks at, and the pause between them.
const LOOKS_MAX: usize = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a cancel waits until the subtasks are cancelled at the server.
const NOTIFIED_MAX: Duration = Duration::from_secs(5);

struct TreeTop {
    id: TaskId,
    depth: u32,
}

struct NewSubtask {
    task: Arc<Task>,
    commands: RunnerCommands,
    permit: TaskPermit,
    resume: ResumeToken,
}

impl Runner {
    pub(super) async fn subtasks_received(&mut self, named: Vec<Arc<str>>) -> RunnerFlow {
        self.family.add(named);
        self.mirror_subtasks().await;
        RunnerFlow::Continue(())
    }

    /// Whether more of the named subtasks can become tasks now: before the next event (SUB-13), after deadline and cancel.
    pub(super) fn may_mirror(&self) -> bool {
        self.family.has_waiting() && self.recorder.has_handle() && !self.recorder.waits_for(UnstoredStep::Subtasks)
    }

    /// Creates tasks for some of the named subtasks, once the call's task has a handle.
    pub(super) async fn mirror_subtasks(&mut self) {
        if !self.family.has_waiting() || !self.recorder.has_handle() {
            return;
        }
        if self.dialog.questions().has_unstored() {
            // The parent's row lists them together with the exchange's position, which has to wait for the question.
            self.recorder.postpone(UnstoredStep::Subtasks);
            return;
        }
        let Some(key) = self.recorder.key() else { return };
        let some = self.family.next_waiting(AT_ONCE);
        let count = some.len();
        match self.mirror(&key, some).await {
            Ok(None) => self.family.remove_stored(count),
            Ok(Some(why)) => {
                self.family.leave_out(why);
                self.family.drop_waiting();
                self.spec.context.subtasks.close();
            }
            Err(error) if error.is_passing() => {
                let _ = self.wait_for_store(UnstoredStep::Subtasks, &error);
            }
            Err(TaskError::Store(StoreError::Fenced)) => self.family.drop_waiting(),
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "subtasks of the server's could not become tasks");
                self.family.drop_waiting();
            }
        }
    }

    async fn mirror(&mut self, key: &TaskKey, named: Vec<Arc<str>>) -> Result<Option<&'static str>, TaskError> {
        let top = self.top_of(key).await?;
        let tree = || self.engine.trees.of(&TaskKey { owner: key.owner.clone(), id: top.id });
        let tree = self.family.size(tree);
        let mut count = tree.lock().await;
        let own = self.engine.load_any(key).await?;
        let is_unresolved = |named: &Arc<str>| {
            let id = TaskId::of_subtask(top.id, named);
            self.family.is_unresolved(id) && own.tree.children.contains(&id)
        };
        // The write that failed was committed.
        let (made, named): (Vec<_>, Vec<_>) = named.into_iter().partition(is_unresolved);
        let size = match *count {
            Some(size) => size + made.len(),
            None => self.size_of(&top, key).await?,
        };
        let limits = self.spec.subtask_limits;
        let visibility = self.visibility_below(&own).await?;
        let mut fresh: Vec<NewSubtask> = Vec::new();
        let (mut stored, mut refused) = (Ok(true), None);
        for subtask in named {
            let id = TaskId::of_subtask(top.id, &subtask);
            if own.tree.children.contains(&id) {
                continue;
            }
            refused = if top.depth >= limits.depth_max {
                Some("it is too deep (`subtasks_depth_max`)")
            } else if size + fresh.len() >= limits.count_max {
                Some("the tree is full (`subtasks_max`)")
            } else {
                None
            };
            if refused.is_some() {
                break;
            }
            match self.new_subtask(&own, visibility, id, &subtask).await {
                Ok(Ok(new)) => fresh.push(new),
                Ok(Err(why)) => self.family.leave_out(why),
                Err(error) => {
                    stored = Err(error);
                    break;
                }
            }
        }
        if stored.is_ok() {
            stored = self.store_subtasks(key, &fresh).await;
        }
        if !matches!(stored, Ok(true)) {
            self.release(fresh, stored.as_ref().is_err_and(TaskError::is_passing)).await;
            return stored.map(|_| None);
        }
        *count = Some(size + fresh.len());
        for (index, new) in (own.tree.children.len()..).zip(fresh) {
            self.follow(index, new).await;
        }
        for subtask in made {
            let id = TaskId::of_subtask(top.id, &subtask);
            let index = own.tree.children.iter().position(|child| *child == id);
            match (index, self.new_subtask(&own, visibility, id, &subtask).await?) {
                (Some(index), Ok(new)) => self.follow(index, new).await,
                (None, Ok(_)) => (),
                (_, Err(why)) => self.family.leave_out(why),
            }
            self.family.resolve(id);
        }
        Ok(refused)
    }

    async fn release(&mut self, fresh: Vec<NewSubtask>, is_tried_again: bool) {
        for NewSubtask { task, .. } in fresh {
            if is_tried_again {
                // Its parent may list it.
                self.family.add_unresolved(task.key.id);
            } else {
                // Invisible without its parent: a later process or its `ttl` removes it. Other replicas' rows stay.
                if !self.recorder.is_fenced() {
                    let _ = self.engine.store.remove(&task.key).await;
                }
            }
            self.engine.live.remove(&task.key);
        }
    }

    async fn top_of(&mut self, key: &TaskKey) -> Result<TreeTop, TaskError> {
        let (mut id, mut depth) = (key.id, 0);
        while let Some(parent) = self.engine.load_any(&TaskKey { owner: key.owner.clone(), id }).await?.tree.parent {
            (id, depth) = (parent, depth + 1);
        }
        Ok(TreeTop { id, depth })
    }

    /// The number of subtasks in a tree that an earlier process left.
    async fn size_of(&mut self, top: &TreeTop, key: &TaskKey) -> Result<usize, TaskError> {
        let mut left = vec![top.id];
        let mut size = 0;
        while let Some(id) = left.pop() {
            match self.engine.load_any(&TaskKey { owner: key.owner.clone(), id }).await {
                Ok(task) => {
                    size += task.tree.children.len();
                    left.extend(&*task.tree.children);
                }
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(size)
    }

    /// The visibility of a task's subtasks: new ones have the same as their siblings.
    async fn visibility_below(&mut self, own: &Task) -> Result<TaskVisibility, TaskError> {
        if own.tree.parent.is_some() {
            return Ok(own.visibility);
        }
        if let Some(first) = own.tree.children.first() {
            let first = self.engine.load_any(&TaskKey { owner: own.key.owner.clone(), id: *first }).await;
            match first {
                Ok(first) => return Ok(first.visibility),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(if self.spec.sees_subtasks { TaskVisibility::Handle } else { TaskVisibility::Part })
    }

    /// The row of a subtask with its permit, or the reason why it is left out.
    async fn new_subtask(
        &mut self,
        own: &Task,
        visibility: TaskVisibility,
        id: TaskId,
        subtask: &Arc<str>,
    ) -> Result<Result<NewSubtask, &'static str>, TaskError> {
        let key = TaskKey { owner: own.key.owner.clone(), id };
        let now = self.engine.clock.now();
        let permit = match self.engine.store.load(&key, now).await? {
            Some(row) if row.task.tree.parent != Some(own.key.id) => {
                return Ok(Err("it has another parent in the tree"));
            }
            // The subtask was stored after all, and is counted.
            Some(_) => self.engine.admission.take_again(&key.owner),
            None => match self.engine.take_permit_of_running(&key.owner) {
                Ok(mut permit) => {
                    permit.begin_storing();
                    permit
                }
                Err(_) => {
                    return Ok(Err("there are too many tasks (`tasks_per_principal_max`, or `tasks_max` for all)"));
                }
            },
        };
        let Some(resume) = self.call.subtask_token(subtask) else { return Ok(Err("it cannot be followed")) };
        // Claimed before the row exists, or recovery would take it. Recovery holds a claim while it looks at a row.
        let mut looks = 0;
        let commands = loop {
            match self.engine.live.claim(&key) {
                Some(commands) => break commands,
                None if looks < LOOKS_MAX => tokio::time::sleep(LOOK_AGAIN).await,
                None => return Ok(Err("another runner has its row")),
            }
            looks += 1;
        };
        let task = Task {
            origin: own.origin.clone(),
            // A child outlives its parent's row, and is invisible once that is removed.
            ttl: own.expires_at().since(now).saturating_add(self.spec.policy.keep_result_min),
            phase: Phase::Working,
            recovery: Recovery { resume: Some(resume.0.detached()), dispatched_at: Some(now), ..Recovery::default() },
            tree: TreeLinks { parent: Some(own.key.id), ..TreeLinks::default() },
            ..self.spec.new_task(key, visibility, now)
        };
        Ok(Ok(NewSubtask { task: Arc::new(task.exact()), commands, permit, resume }))
    }

    /// Inserts the rows, and lists them in their parent's row; false if the parent settled meanwhile.
    async fn store_subtasks(&mut self, key: &TaskKey, fresh: &[NewSubtask]) -> Result<bool, TaskError> {
        if fresh.is_empty() {
            return Ok(true);
        }
        if !self.engine.has_room_for(&self.spec.owner, fresh.iter().map(|new| new.task.stored_bytes()).sum()) {
            return Err(StoreError::OwnerFull.into());
        }
        let engine = Arc::clone(&self.engine);
        let inserted = fresh.iter().map(|new| async {
            match engine.insert_row(&new.task).await {
                // An earlier process ended between this write and the next.
                Ok(()) | Err(StoreError::Exists) => Ok(()),
                // Only writes of existing rows wait for room. A new row would delay the events of the call.
                Err(StoreError::NoRoom) => Err(StoreError::Full),
                Err(error) => Err(error),
            }
        });
        try_join_all(inserted).await?;
        failpoint::hit("subtasks-stored");
        let children = fresh.iter().map(|new| new.task.key.id).collect();
        // Together with the parent's resume data, by which a later process knows that the children are the server's.
        Ok(self.apply(key, Event::ChildrenAdded { children }).await?.changed)
    }

    async fn follow(&mut self, index: usize, new: NewSubtask) {
        let NewSubtask { task, commands, permit, resume } = new;
        self.family.watch(&self.engine, index, task.key.clone(), Vec::new());
        let spec = self.subtask_spec(task.visibility);
        let mut exchange = ExchangeStage::again(&spec);
        if let Err(error) = exchange.resume(&spec, resume).await {
            tracing::warn!(task = %LoggedTask(&task.key), error = %CauseChain(&error), "a subtask could not be followed");
            exchange = ExchangeStage::lost(GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown));
        }
        let call = UpstreamCall::sent(exchange, Instant::now(), spec.policy.deadline);
        adopt(&self.engine, spec, task, commands, AdoptedCall::of(call, Some(permit)));
    }

    /// The call of a subtask, which can never be sent.
    fn subtask_spec(&self, visibility: TaskVisibility) -> CallSpec {
        let mut spec = self.spec.clone();
        spec.request.params = None;
        // The server works on it regardless of its other calls.
        spec.permits = None;
        spec.plan = Plan::Task;
        spec.idempotency = None;
        spec.chosen = None;
        spec.is_repeatable = false;
        spec.rounds = RoundSupport::Unknown;
        spec.sees_subtasks = visibility == TaskVisibility::Handle;
        spec.context.share = Some(self.engine.share_of(&spec));
        spec.context.subtasks = spec.context.subtasks.of_subtask(spec.subtask_limits.names_max());
        if visibility == TaskVisibility::Part
            && let (Some(notice_sink), Some(parent)) = (self.spec.notice_sink.clone(), self.recorder.key())
        {
            // Its client knows only the parent.
            spec.notice_sink = Some(Arc::new(move |_, notice| notice_sink(&parent, notice)));
        }
        spec
    }

    pub(super) fn resume_subtasks(&mut self, task: &Task) {
        let open_questions: Vec<(usize, Payload)> =
            task.open_questions().filter_map(|(_, question)| question_named(&question.ask)).collect();
        for (index, id) in task.tree.children.iter().enumerate() {
            let key = TaskKey { owner: task.key.owner.clone(), id: *id };
            let open = open_questions.iter().filter(|(of, _)| *of == index).map(|(_, ask)| ask.clone()).collect();
            self.family.watch(&self.engine, index, key.clone(), open);
            let permit = self.engine.admission.take_again(&key.owner);
            let spec = self.subtask_spec(TaskVisibility::Part);
            begin_child(&self.engine, spec, key, permit);
        }
    }

    /// Waits, at most `NOTIFIED_MAX`, until the server was notified of the cancel, before the parent's cancel (SUB-16).
    pub(super) async fn subtasks_notified(&mut self) {
        // A split call has only its elements at the server.
        let Some(key) = self.recorder.key().filter(|_| !self.family.has_elements()) else { return };
        let notified = async {
            let Ok(task) = self.engine.load_any(&key).await else { return };
            for id in &*task.tree.children {
                let child = TaskKey { owner: key.owner.clone(), id: *id };
                loop {
                    let mut changes = self.engine.notified.watch_always(&child);
                    match self.engine.load_any(&child).await {
                        Ok(child) if child.recovery.must_notify_upstream() => changes.changed().await,
                        Ok(_) | Err(_) => break,
                    }
                }
            }
        };
        if tokio::time::timeout(NOTIFIED_MAX, notified).await.is_err() {
            tracing::warn!("a server was notified of a cancel before all of its subtasks were");
        }
    }
}
