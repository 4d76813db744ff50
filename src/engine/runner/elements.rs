//! Creates a child task for each element of a split call that became a task.
//!
//! The children's rows are written before their parent's row, which lists them: until then no client can find them, and a later
//! process removes them (SUB-05). Elements in progress continue in their own runners, with their exchanges.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::Runner;
use super::call_stage::CallStage;
use super::element_rows::{BeginChild, ElementRows};
use super::live_runners::RunnerCommands;
use super::resume::{AdoptedCall, adopt, begin_child};
use super::row::store_new;
use super::split::{RunningElement, SplitExchange};
use crate::cause::CauseChain;
use crate::engine::call::CallSpec;
use crate::store::StoreError;
use crate::task::reference::LoggedTask;
use crate::task::{
    Attempt, Event, Phase, Recovery, Task, TaskId, TaskKey, TaskVisibility, Timestamp, TreePlace, transition,
};
use crate::upstream::ResumeToken;

/// Rows written together, so that the store can merge their commits.
const AT_ONCE: usize = 64;

impl Runner {
    /// Inserts rows for the elements of a split call; returns their ids in order. Empty for a call that is not split, or has rows
    /// for its elements.
    ///
    /// # Errors
    /// As [`crate::store::TaskStore::insert`], and never `Unsure`.
    pub(super) async fn insert_elements(
        &mut self,
        parent: &TaskKey,
        now: Timestamp,
    ) -> Result<Arc<[TaskId]>, StoreError> {
        let tasks = self.element_tasks(parent, now);
        let ids: Arc<[TaskId]> = tasks.iter().map(|task| task.key.id).collect();
        if !tasks.is_empty() && !self.has_room_for(tasks.iter().map(Task::stored_bytes).sum()) {
            return Err(StoreError::OwnerFull);
        }
        let Some(split) = self.stage.split_mut().filter(|_| !tasks.is_empty()) else { return Ok(ids) };
        // Claimed before the rows exist: recovery would otherwise take them for rows of an earlier process.
        let mut fresh: Vec<(Arc<Task>, RunnerCommands)> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let Some(commands) = self.engine.live.claim(&task.key) else {
                fresh.iter().for_each(|(task, _)| self.engine.live.remove(&task.key));
                return Err(StoreError::Exists);
            };
            fresh.push((Arc::new(task), commands));
        }
        let mut stored = Ok(());
        for some in fresh.chunks(AT_ONCE) {
            stored = try_join_all(some.iter().map(|(task, _)| store_new(&self.engine, task))).await.map(|_| ());
            if stored.is_err() {
                break;
            }
        }
        let own = (Arc::clone(&self.engine), begin_child as BeginChild);
        split.rows = Some(ElementRows::fresh(own, parent, fresh, self.spec.notice_sink.clone()));
        if let Err(error) = stored {
            self.remove_elements().await;
            // A row that was stored nevertheless has no parent: its call is certainly not sent.
            return Err(error.without_doubt());
        }
        Ok(ids)
    }

    /// Removes the elements' rows, because their parent has no row.
    pub(super) async fn remove_elements(&mut self) {
        let Some(rows) = self.stage.split_mut().and_then(|split| split.rows.take()) else { return };
        for key in &rows.keys {
            if let Err(error) = self.engine.store.remove(key).await {
                // It is invisible without its parent: a later process removes it.
                tracing::warn!(task = %LoggedTask(key), error = %CauseChain(&error), "a subtask without its parent was not removed");
            }
            self.engine.live.remove(key);
        }
    }

    fn element_tasks(&mut self, parent: &TaskKey, now: Timestamp) -> Vec<Task> {
        let is_kept = self.is_kept();
        let Some(split) = self.stage.split_mut().filter(|split| split.rows.is_none()) else { return Vec::new() };
        let (engine, policy) = (&self.engine, &self.spec.policy);
        let shown = if self.spec.sees_subtasks { TaskVisibility::Handle } else { TaskVisibility::Part };
        let of_element = |index: usize| {
            let spec = split.plan.element(index);
            let running = split.running.iter().find(|part| part.index == index);
            let is_waiting = running.is_none_or(|part| part.stage.is_waiting());
            let sent_at = running.and_then(|part| part.dispatched).map(|at| now.before(at.elapsed()));
            let position = running.filter(|_| is_kept).and_then(|part| part.stage.resume_token());
            let task = Task {
                // A child outlives its parent's row, and is invisible once that is removed.
                ttl: policy.ttl.saturating_add(policy.keep_result_min),
                phase: if is_waiting { Phase::Queued } else { Phase::Working },
                recovery: Recovery {
                    call: spec.stored(is_waiting).filter(|_| is_kept),
                    resume: position.map(|ResumeToken(position)| position.detached()),
                    dispatched_at: sent_at,
                    ..Recovery::default()
                },
                tree: TreePlace { parent: Some(parent.id), ..TreePlace::default() },
                ..spec.new_task(engine.mint_key(&parent.owner), shown, now)
            };
            let task = match split.outcomes.get(index) {
                Some(Some(outcome)) => {
                    Task { phase: Phase::Settled(outcome.clone()), recovery: Recovery::default(), ..task }
                }
                Some(None) | None => task,
            };
            let questions = running.iter().flat_map(|part| &part.open);
            questions
                .fold(task, |task, question| {
                    let question = Event::Asked { attempt: Attempt::FIRST, question: question.clone() };
                    transition(task, question, now).0
                })
                .exact()
        };
        (0..split.plan.total()).map(of_element).collect()
    }

    /// Starts runners for the elements in progress, once their parent has a handle.
    pub(super) fn adopt_elements(&mut self) {
        let engine = Arc::clone(&self.engine);
        let Some((split, children)) = self.stage.split_and_children(&engine) else { return };
        let SplitExchange { plan, next, running, outcomes, rows: Some(rows), .. } = split else { return };
        let mut permit = self.permit.as_mut();
        let mut one_permit = || permit.as_mut().and_then(|permit| permit.take_one());
        let fresh = std::mem::take(&mut rows.fresh);
        (rows.next, rows.at_work) = (*next, running.len());
        for (index, (task, commands)) in fresh.into_iter().enumerate() {
            let taken = one_permit();
            let at = running.iter().position(|part| part.index == index);
            if let Some(RunningElement { stage, dispatched, open, .. }) = at.map(|at| running.swap_remove(at)) {
                let open = open.into_iter().map(|question| question.ask).collect();
                children.watch(index, task.key.clone(), open);
                let spec = CallSpec { notice_sink: rows.logs_of(&task.key, plan), ..plan.element(index) };
                let stage = CallStage::one(stage);
                adopt(&engine, spec, (task, commands), AdoptedCall { stage, dispatched, permit: taken });
                continue;
            }
            engine.live.remove(&task.key);
            if outcomes.get(index).is_some_and(Option::is_none) {
                rows.permits.extend(taken);
            }
        }
    }
}
