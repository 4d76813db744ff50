//! Serves the methods of the tasks extension, and tools for clients without the extension.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{FaceResponse, Promotable, StatelessFace, StatelessRequestContext};
use crate::cause::CauseChain;
use crate::dialect::core_2025_11_25::CoreTasks;
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::fallback_tools::FallbackTools;
use crate::dialect::faults::not_in_flavour;
use crate::dialect::lifecycle::stateless_result;
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::{FaceDialect, RequestError, TaskCommand, TaskReply, inputs};
use crate::engine::{CallEvent, CallStream, TaskError};
use crate::face::answer::{TaskMethodError, missed};
use crate::face::fallback::{FallbackCall, FallbackToolService, TaskAsker, answer};
use crate::task::{ClientKind, Executed, GatewayFault, HandleSupport, Phase, Task, TaskMode, ToolPolicy};
use crate::wire::{JsonPieces, Object, method};

/// The most bytes of subtasks' outcomes in one response about a running task.
const EARLY_BYTES_MAX: usize = 1 << 20;

/// Clients that still declare tasks of 2025-11-25 may read and cancel tasks that they made in a session (T-10, EXT-63).
pub(super) fn may_ask(metadata: &StatelessRequest, name: &str) -> bool {
    let is_looked_after = matches!(name, method::TASKS_GET | method::TASKS_CANCEL);
    metadata.takes_tasks() != HandleSupport::No || (is_looked_after && metadata.declares_session_tasks())
}

impl StatelessFace {
    pub(super) async fn task(&self, request: &StatelessRequestContext<'_>) -> FaceResponse {
        let answered = match request.metadata.takes_tasks() {
            HandleSupport::No | HandleSupport::ByTools => Box::pin(self.session_task_answer(request)).await,
            HandleSupport::AtOnce | HandleSupport::AfterGrace => self.answer(request).await,
        };
        match answered {
            Ok(result) => request.addressee.result(result),
            Err(TaskMethodError::Complaint(complaint)) => request.addressee.complaint(&complaint),
            Err(TaskMethodError::Error(error)) => request.addressee.error(http::StatusCode::OK, &error),
            Err(TaskMethodError::Fault(fault)) => request.addressee.fault(&fault),
            Err(TaskMethodError::Task(TaskError::Unknown)) => {
                self.misses.note(&request.caller.principal);
                let has_extension =
                    matches!(request.metadata.takes_tasks(), HandleSupport::AtOnce | HandleSupport::AfterGrace);
                let complaint =
                    if has_extension { RequestError::UnknownTask } else { StatelessRequest::needs_extension() };
                missed(request.addressee.complaint(&complaint))
            }
            Err(TaskMethodError::Task(error)) => {
                tracing::error!(error = %CauseChain(&error), "a task could not be served");
                request.addressee.fault(&GatewayFault::new(error.reason(), Executed::No))
            }
        }
    }

    async fn answer(&self, request: &StatelessRequestContext<'_>) -> Result<JsonPieces, TaskMethodError> {
        let dialect = self.dialect();
        match dialect.decode(request.method, request.params) {
            Ok(command) => self.obey(command, request, &dialect).await,
            Err(complaint) => Err(TaskMethodError::Complaint(complaint)),
        }
    }

    /// Answers a client without the extension about a task from a session, in that version's form. Any other id gets
    /// the error for the missing extension, so that existing and unknown ids look alike.
    async fn session_task_answer(&self, request: &StatelessRequestContext<'_>) -> Result<JsonPieces, TaskMethodError> {
        let other = || TaskMethodError::Complaint(StatelessRequest::needs_extension());
        let dialect = CoreTasks::with_drafts(self.served.settings.drafts);
        let command = dialect.decode(request.method, request.params).map_err(|_| other())?;
        let Some(id) = command.task() else { return Err(other()) };
        let (caller, engine) = (&request.caller, &self.served.engine);
        // A task of a tool that its owner lost can still be cancelled (SEC-30).
        let task = match request.method {
            method::TASKS_CANCEL => engine.load_visible(&caller.task(id)).await?,
            _ => engine.get(caller, id).await?,
        };
        if task.origin.client != ClientKind::Session {
            return Err(TaskError::Unknown.into());
        }
        let result = if request.method == method::TASKS_CANCEL {
            let cancelled = engine.cancel_for(caller, id).await?;
            let task = engine.as_seen(cancelled.task).await?;
            dialect.encode(TaskReply::Cancelled { task: &task, was_settled: cancelled.was_settled })?
        } else {
            engine.count_poll(&task)?;
            let task = engine.as_seen(task).await?;
            dialect.encode(TaskReply::Snapshot(&task))?
        };
        Ok(stateless_result(request.method, &result, &self.identity()).into())
    }

    async fn obey(
        &self,
        command: TaskCommand,
        request: &StatelessRequestContext<'_>,
        dialect: &ExtTasks,
    ) -> Result<JsonPieces, TaskMethodError> {
        let (caller, engine) = (&request.caller, &self.served.engine);
        let result = match command {
            TaskCommand::Get(id) => {
                let task = engine.get(caller, id).await?;
                check_declared(&request.metadata, &task)?;
                engine.count_poll(&task)?;
                let settled = match task.is_settled() || task.tree.children.is_empty() {
                    true => Vec::new(),
                    false => Box::pin(engine.settled_subtasks(&task.key.owner, &task.tree, EARLY_BYTES_MAX)).await?,
                };
                let task = engine.share(task).await?;
                Ok(engine.within_budget(&request.caller.principal, dialect.snapshot_with(&task, &settled))?)
            }
            TaskCommand::Answer(id, answers) => {
                // The expected answer to a question never changes: keys are not reused.
                if let Phase::AwaitingInput(open) = &engine.get(caller, id).await?.phase {
                    inputs::check(open, &answers)?;
                }
                Box::pin(engine.answer(caller, id, answers)).await?;
                dialect.pieces(TaskReply::Answered)
            }
            TaskCommand::Cancel(id) => {
                let cancelled = Box::pin(engine.cancel_for(caller, id)).await?;
                dialect.pieces(TaskReply::Cancelled { task: &cancelled.task, was_settled: cancelled.was_settled })
            }
            TaskCommand::Await(_) | TaskCommand::Fetch(_) | TaskCommand::Delete(_) | TaskCommand::List(_) => {
                Err(not_in_flavour())
            }
        };
        Ok(result?)
    }
}

/// All open questions must be included, so the request must declare the kinds of all (T-11).
fn check_declared(metadata: &StatelessRequest, task: &Task) -> Result<(), RequestError> {
    let open = task.open_questions().map(|(_, question)| &question.request);
    metadata.missing(open).map_or(Ok(()), |needed| Err(RequestError::Capability(needed)))
}

/// A tool that runs only as a task is still refused to clients without the extension (GW-13).
pub(super) fn takes_tasks(metadata: &StatelessRequest, policy: ToolPolicy) -> (ToolPolicy, HandleSupport) {
    let takes = metadata.takes_tasks();
    if takes == HandleSupport::No && policy.falls_back_to_tools() && policy.mode != TaskMode::Required {
        (policy.asking_first(), HandleSupport::ByTools)
    } else {
        (policy, takes)
    }
}

impl StatelessFace {
    /// The tools that the client gets in place of tasks, if any.
    pub(super) fn fallback_for(&self, metadata: &StatelessRequest) -> Option<Arc<FallbackToolService>> {
        self.fallback.as_ref().filter(|_| metadata.takes_tasks() == HandleSupport::No).cloned()
    }

    pub(super) fn fallback_texts(&self) -> FallbackTools {
        FallbackTools::for_stateless(self.fallback.as_ref().map_or(0, |fallback| fallback.level()), self.identity())
    }

    pub(super) fn respond(
        &self,
        request: Box<StatelessRequestContext<'_>>,
        promotable: Promotable,
        first: Option<CallEvent>,
        call: CallStream,
    ) -> BoxFuture<'static, FaceResponse> {
        match request.metadata.takes_tasks() {
            HandleSupport::No | HandleSupport::ByTools => {
                Box::pin(self.view(*request, promotable, self.fallback_texts()).respond(first, call))
            }
            HandleSupport::AfterGrace | HandleSupport::AtOnce => {
                Box::pin(self.view(*request, promotable, self.dialect()).respond(first, call))
            }
        }
    }

    /// Whether a request calls one of the gateway's own tools, as far as is known.
    pub(super) fn is_own_tool_call(&self, name: &str, params: Option<&Object>) -> bool {
        let Some(fallback) = self.fallback.as_ref().filter(|_| name == method::TOOLS_CALL) else { return false };
        params.and_then(|params| params.get_str("name")).is_some_and(|tool| fallback.named(&tool).is_some())
    }

    /// `None` for a call of another tool. Dropping the future does not affect the task.
    pub(super) async fn own_tool_call(&self, request: &StatelessRequestContext<'_>) -> Option<FaceResponse> {
        let fallback = self
            .fallback_for(&request.metadata)
            .filter(|_| self.is_own_tool_call(request.method, Some(request.params)))?;
        fallback.learn_names(&self.catalog, || self.context(request)).await;
        let tool = fallback.named(&request.params.get_str("name")?)?;
        let asker = TaskAsker { caller: &request.caller, misses: &self.misses };
        let life_signs = self.served.settings.life_signs;
        let call = FallbackCall { tool, request: request.message, life_signs, withdrawn: None };
        Some(answer(&self.served.engine, asker, call, self.fallback_texts(), request.addressee.clone()).await)
    }
}
