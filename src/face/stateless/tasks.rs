//! The methods of the tasks extension.

use super::{Inquiry, Response, StatelessFace};
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::faults::no_words;
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::{Command, Complaint, FaceDialect, Reply, inputs};
use crate::engine::TaskError;
use crate::face::refused::Refused;
use crate::metric;
use crate::task::{Executed, GatewayFault, Phase, Task, TaskKey};
use crate::wire::Payload;

impl StatelessFace {
    pub(super) async fn task(&self, inquiry: &Inquiry<'_>) -> Response {
        let dialect = self.dialect();
        let answered = match dialect.decode(inquiry.method, inquiry.params) {
            Ok(command) => self.obey(command, inquiry, &dialect).await,
            Err(complaint) => Err(Refused::Complaint(complaint)),
        };
        match answered {
            Ok(result) => inquiry.addressee.result(result),
            Err(Refused::Complaint(complaint)) => inquiry.addressee.complaint(&complaint),
            Err(Refused::Error(error)) => inquiry.addressee.error(http::StatusCode::OK, &error),
            Err(Refused::Task(TaskError::Unknown)) => inquiry.addressee.complaint(&Complaint::UnknownTask),
            Err(Refused::Task(error)) => {
                tracing::error!(%error, "a task could not be served");
                inquiry.addressee.fault(&GatewayFault::new(error.reason(), Executed::No))
            }
        }
    }

    async fn obey(&self, command: Command, inquiry: &Inquiry<'_>, dialect: &ExtTasks) -> Result<Payload, Refused> {
        let key = |id| TaskKey { owner: inquiry.principal.clone(), id };
        let engine = &self.served.engine;
        let result = match command {
            Command::Get(id) => {
                metrics::counter!(metric::TASK_POLLS).increment(1);
                let task = engine.get(&key(id)).await?;
                check_declared(&inquiry.said, &task)?;
                dialect.encode(Reply::Snapshot(&task))
            }
            Command::Answer(id, answers) => {
                // What a question wants as its answer never changes: keys are not used again.
                if let Phase::AwaitingInput(open) = &engine.get(&key(id)).await?.phase {
                    inputs::check(open, &answers)?;
                }
                engine.answer(&key(id), answers).await?;
                dialect.encode(Reply::Answered)
            }
            Command::Cancel(id) => {
                let cancelled = engine.cancel(&key(id)).await?;
                dialect.encode(Reply::Cancelled { task: &cancelled.task, was_settled: cancelled.was_settled })
            }
            // The dialect reads neither out of any method.
            Command::Await(_) | Command::List(_) => Err(no_words()),
        };
        Ok(result?)
    }
}

/// All questions that are open must be shown, and none of a kind that this very request does not declare (T-11).
fn check_declared(said: &StatelessRequest, task: &Task) -> Result<(), Complaint> {
    let Phase::AwaitingInput(open) = &task.phase else { return Ok(()) };
    said.missing(open.values().map(|question| &question.request))
        .map_or(Ok(()), |needed| Err(Complaint::Capability(needed)))
}
