//! `tasks/result`: waits for the outcome, and is where the task's questions and progress go meanwhile.
//!
//! A client that drops the stream cancels nothing (L25-64).

use std::sync::Arc;

use http::StatusCode;

use super::task_subscribers::{ResultStreamError, ResultStreamKind, ResultSubscriber};
use crate::cause::CauseChain;
use crate::dialect::core_2025_11_25::CoreTasks;
use crate::dialect::core_2025_11_25::messages;
use crate::dialect::faults::gateway_error;
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::TaskError;
use crate::engine::apply::record_shown;
use crate::face::answer::Addressee;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::call_stream::{CallMessage, CallMessages, respond};
use crate::face::http::FaceResponse;
use crate::face::session::{SessionFaceState, refuse};
use crate::task::{Executed, GatewayFault, Reason, TaskKey};
use crate::wire::framing::BodyPart;
use crate::wire::{Payload, ProtocolVersion, RpcError};

/// One request for an outcome.
pub(super) struct OutcomeRequest {
    pub(super) shared: Arc<SessionFaceState>,
    pub(super) key: TaskKey,
    /// The session that asks.
    pub(super) home: u128,
    pub(super) addressee: Addressee,
}

impl OutcomeRequest {
    /// Answers at once where the task has settled, else as an event stream as soon as there is anything to
    /// say: a message, or a sign of life (L25-22, L25-23).
    pub(super) async fn answer(self) -> FaceResponse {
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if !task.is_settled() => (),
            Err(TaskError::Unknown) => return refuse(&self.addressee, &RequestError::UnknownTask),
            Ok(_) | Err(_) => return self.whole().await,
        }
        let hearing = match self.addressee.accepted.takes_stream() {
            true => ResultStreamKind::Messages,
            false => ResultStreamKind::OutcomeAlone,
        };
        let listener = match self.shared.line(&self.key, self.home, None).listen(hearing) {
            Ok(listener) => listener,
            Err(ResultStreamError::Closed) => return self.whole().await,
            Err(ResultStreamError::TooMany) => return self.addressee.error(StatusCode::OK, &too_many()),
        };
        let addressee = self.addressee.clone();
        respond(OutcomeWait { awaiting: self, listener }, addressee).await
    }

    /// The outcome as an answer of its own.
    async fn whole(&self) -> FaceResponse {
        RequestAnswer::from(self.outcome().await).into_response(&self.addressee)
    }

    async fn outcome(&self) -> Result<Payload, RpcError> {
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if task.is_settled() => {
                record_shown(&task);
                CoreTasks::default().encode(TaskReply::Outcome(&task))
            }
            // Nobody watches the task, so nobody can say when it ends.
            Ok(_) => Err(too_many()),
            Err(TaskError::Unknown) => {
                self.shared.tasks.misses.note(&self.key.owner);
                Err(RequestError::UnknownTask.to_error(ProtocolVersion::NEWEST_SESSION))
            }
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "an outcome could not be read");
                Err(gateway_error(&GatewayFault::new(error.reason(), Executed::Unknown)))
            }
        }
    }
}

fn too_many() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::TooManyWaiters, Executed::Unknown))
}

/// A request whose task has not settled. It is told of what the task says meanwhile.
struct OutcomeWait {
    awaiting: OutcomeRequest,
    listener: ResultSubscriber,
}

impl CallMessages for OutcomeWait {
    async fn next(&mut self) -> Option<CallMessage> {
        Some(match self.listener.next().await {
            Some(message) => CallMessage::event(message),
            None => CallMessage::Answer(self.awaiting.outcome().await.into()),
        })
    }

    /// Progress of the call where its client wants that and the task still runs (L25-46, L25-47), else a comment.
    async fn sign(&mut self) -> BodyPart {
        let OutcomeRequest { shared, key, .. } = &self.awaiting;
        let Some(rising) = self.listener.rising().filter(|_| shared.served.settings.life_signs) else {
            return BodyPart::comment();
        };
        match shared.served.engine.get(key).await {
            Ok(task) if !task.is_settled() => (),
            Ok(_) | Err(_) => return BodyPart::comment(),
        }
        BodyPart::message(rising.lock().sign(Some(&messages::related(key.id))))
    }
}
