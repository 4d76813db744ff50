//! Serves tasks of SEP-1686 if enabled: calls with client-chosen ids, and their methods. A call is answered as usual,
//! and its client may poll the task meanwhile.

use std::sync::Arc;

use super::result::OutcomeRequest;
use super::task_subscribers::{SharedProgress, TaskRequestEntry};
use super::{PAGE, TaskRequestContext, tokens};
use crate::cause::CauseChain;
use crate::dialect::draft_sep_1686::{DraftTasks, RequestedTask};
use crate::dialect::face_dialect::bad_cursor;
use crate::dialect::faults::{not_deletable, not_in_flavour};
use crate::dialect::{FaceDialect, RequestError, TaskCommand, TaskReply};
use crate::engine::{DeleteResult, TaskError};
use crate::face::answer::{Addressee, TaskMethodError};
use crate::face::call_stream::request_answer::unanswered;
use crate::face::http::FaceResponse;
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Caller, ChosenId, ListFilter, SessionScope, Task, TaskId, TaskKey, Timestamp};
use crate::wire::envelope::Request;
use crate::wire::{JsonPieces, Object, Payload, RequestId};

pub(super) struct DraftCall {
    chosen: ChosenId,
    caller: Caller,
    request: Arc<TaskRequestEntry>,
    nonce: u128,
}

/// Another task has the chosen id (D86-06).
pub(super) const fn id_taken() -> RequestError {
    RequestError::params("taskId names an existing task")
}

pub(super) const fn named_twice() -> RequestError {
    RequestError::params("a call with a taskId takes no idempotency key: the taskId serves as one")
}

impl SessionFaceState {
    pub(super) fn draft_call(
        &self,
        asking: &TaskRequestContext<'_>,
        request: &Request,
        wish: &RequestedTask,
    ) -> DraftCall {
        let nonce = asking.session.token.nonce;
        let chosen = ChosenId { session: SessionScope(nonce), text: Arc::clone(&wish.text) };
        DraftCall {
            chosen,
            caller: asking.caller.clone(),
            request: Arc::new(self.tasks.requests.enter(nonce, &request.id)),
            nonce,
        }
    }

    /// Responds to a call as a task: notification, messages, outcome (D86-02, D86-03). A disconnect cancels nothing.
    pub(super) async fn follow(
        self: &Arc<Self>,
        task: &Task,
        call: DraftCall,
        rising: Option<SharedProgress>,
        addressee: Addressee,
    ) -> FaceResponse {
        if call.request.became(&task.key) {
            self.cancel_withdrawn(&task.key).await;
            return unanswered(addressee.accepted).into_response(&addressee);
        }
        let subscribers = self.subscribers(&call.caller, task.key.id, call.nonce, Some(task));
        subscribers.wants_progress(rising);
        subscribers.answers(Arc::clone(&call.request));
        let created = DraftTasks::created(&call.chosen);
        let DraftCall { chosen, caller, request, nonce } = call;
        let (shared, id) = (Arc::clone(self), task.key.id);
        OutcomeRequest { shared, caller, id, nonce, addressee, call: Some(chosen), request }
            .answer_from(created, &subscribers)
            .await
    }

    /// Cancels the task of a cancelled call, unless it has settled (D86-18, D86-19).
    pub(in crate::face::session) async fn withdraw(self: &Arc<Self>, session: &ClientSession, id: &RequestId) {
        if let Some(key) = self.tasks.requests.withdraw(session.token.nonce, id) {
            self.cancel_withdrawn(&key).await;
        }
    }

    async fn cancel_withdrawn(&self, key: &TaskKey) {
        match self.served.engine.cancel(key).await {
            Ok(_) | Err(TaskError::Unknown) => (),
            Err(error) => tracing::error!(error = %CauseChain(&error), "a cancel could not be stored"),
        }
        self.tasks.subscribers.mute(key);
    }

    /// Answers a task method for chosen ids; `None` for a request that may be about tasks of 2025-11-25.
    pub(super) async fn draft_method(
        self: &Arc<Self>,
        asking: &TaskRequestContext<'_>,
        method: &str,
        params: &Object,
    ) -> Option<Result<JsonPieces, TaskMethodError>> {
        let dialect = DraftTasks::for_request(SessionScope(asking.session.token.nonce), params);
        let answered = match dialect.decode(method, params) {
            Ok(TaskCommand::List(cursor)) => {
                self.draft_list(asking, &dialect, cursor, params).await.transpose()?.map(JsonPieces::from)
            }
            Ok(command) => self.draft_command(asking, &dialect, command).await,
            Err(complaint) => Err(complaint.into()),
        };
        match answered {
            // A gateway's id may belong to another task, in a session of any version.
            Err(TaskMethodError::Task(TaskError::Unknown)) if self.tasks.codec().decode(method, params).is_ok() => None,
            answered => Some(answered),
        }
    }

    async fn draft_command(
        self: &Arc<Self>,
        asking: &TaskRequestContext<'_>,
        dialect: &DraftTasks,
        command: TaskCommand,
    ) -> Result<JsonPieces, TaskMethodError> {
        let (caller, engine) = (asking.caller, &self.served.engine);
        let reply = match command {
            TaskCommand::Get(id) => {
                let task = engine.get(caller, id).await?;
                if !task.is_settled() {
                    // After a restart this links the task to its client's stream again.
                    self.subscribers(caller, id, asking.session.token.nonce, None);
                }
                engine.count_poll(&task)?;
                dialect.pieces(TaskReply::Snapshot(&task))
            }
            TaskCommand::Fetch(id) => {
                let task = engine.get(caller, id).await?;
                engine.record_shown(&task)?;
                let task = engine.share(task).await?;
                let reply = dialect.pieces(TaskReply::Fetched(&task))?;
                return Ok(engine.within_budget(&asking.caller.principal, reply)?);
            }
            TaskCommand::Cancel(id) => {
                let cancelled = engine.cancel_for(caller, id).await?;
                self.tasks.subscribers.mute(&caller.task(id));
                dialect.pieces(TaskReply::Cancelled { task: &cancelled.task, was_settled: cancelled.was_settled })
            }
            TaskCommand::Delete(id) => match engine.delete(caller, id).await? {
                DeleteResult::Deleted => dialect.pieces(TaskReply::Deleted),
                DeleteResult::Unsettled => Err(not_deletable()),
            },
            // The dialect decodes these for the list only.
            TaskCommand::Answer(..) | TaskCommand::Await(_) | TaskCommand::List(_) => Err(not_in_flavour()),
        };
        Ok(reply?)
    }

    /// The session's tasks with chosen ids (D86-22), and, if the list of 2025-11-25 is served, the cursor to it
    /// (L25-35). `None` for a request for that list: by its cursor and criteria, or in a session without chosen ids.
    async fn draft_list(
        &self,
        asking: &TaskRequestContext<'_>,
        dialect: &DraftTasks,
        cursor: Option<String>,
        params: &Object,
    ) -> Result<Option<Payload>, TaskMethodError> {
        let (owner, has_core) = (&asking.caller.principal, asking.session.has_tasks());
        if !owner.is_identified() || (has_core && !matches!(self.wanted_tasks(params), Ok(None))) {
            return Ok(None);
        }
        let (engine, sealer) = (&self.served.engine, &self.served.sealer);
        let ours = ListFilter::of_scope(Some(SessionScope(asking.session.token.nonce)));
        let is_first = cursor.is_none();
        let after = match cursor.map(|cursor| tokens::position(sealer, owner, Some(&ours), &cursor)) {
            Some(None) if has_core => return Ok(None),
            Some(None) => return Err(bad_cursor().into()),
            after => after.flatten(),
        };
        let page = engine.list_filtered(asking.caller, &ours, after, PAGE).await?;
        let mut tasks = Vec::new();
        for task in page.tasks {
            match engine.get(asking.caller, task.key.id).await {
                Ok(task) => tasks.push(task),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error.into()),
            }
        }
        let next = match page.next {
            Some(next) => Some(tokens::cursor(sealer, owner, Some(&ours), next)),
            None if has_core && is_first && tasks.is_empty() => return Ok(None),
            None if has_core => self.first_cursor(asking.caller).await?,
            None => None,
        };
        Ok(Some(dialect.page(&tasks, next.as_deref())))
    }

    async fn first_cursor(&self, caller: &Caller) -> Result<Option<String>, TaskMethodError> {
        let page = self.served.engine.list_filtered(caller, &ListFilter::of_scope(None), None, 1).await?;
        let is_any = page.next.is_some() || !page.tasks.is_empty();
        let before_all = (Timestamp::from_millis(0), TaskId::from_bits(0));
        Ok(is_any.then(|| tokens::cursor(&self.served.sealer, &caller.principal, None, before_all)))
    }
}
