//! Waits for a task's outcome: `tasks/result`, or the call itself where it is answered although it became a task
//! (SEP-1686). Here is where the task's questions and progress go meanwhile.
//!
//! A client that drops the stream cancels nothing (L25-64).

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::task_requests::TaskRequestEntry;
use super::task_subscribers::{ResultStreamError, ResultStreamKind, ResultSubscriber, SubscriberList};
use crate::cause::CauseChain;
use crate::dialect::draft_sep_1686::DraftTasks;
use crate::dialect::faults::gateway_error;
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::TaskError;
use crate::engine::apply::record_shown;
use crate::face::answer::Addressee;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::call_stream::{CallMessage, CallMessages, respond};
use crate::face::http::FaceResponse;
use crate::face::session::{SessionFaceState, refuse};
use crate::task::{ChosenId, Executed, GatewayFault, Reason, TaskKey};
use crate::wire::framing::BodyPart;
use crate::wire::{Payload, ProtocolVersion, RpcError};

/// One request for an outcome.
pub(super) struct OutcomeRequest {
    pub(super) shared: Arc<SessionFaceState>,
    pub(super) key: TaskKey,
    /// The session that asks.
    pub(super) home: u128,
    pub(super) addressee: Addressee,
    /// The call that waits for its own outcome; `None` for `tasks/result`.
    pub(super) call: Option<WaitingCall>,
}

/// A call whose client chose its task's id.
pub(super) struct WaitingCall {
    pub(super) chosen: ChosenId,
    pub(super) request: Arc<TaskRequestEntry>,
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
        respond(OutcomeWait { awaiting: self, first: None, listener: Some(listener) }, addressee).await
    }

    /// Answers with `first`, then with what the task says, and with its outcome at last. Where nobody can watch the task,
    /// that is said in place of the outcome.
    pub(super) async fn answer_from(self, first: Bytes, line: &Arc<SubscriberList>) -> FaceResponse {
        let listener = line.listen(ResultStreamKind::Messages).ok();
        let addressee = self.addressee.clone();
        respond(OutcomeWait { awaiting: self, first: Some(first), listener }, addressee).await
    }

    /// The outcome as an answer of its own.
    async fn whole(&self) -> FaceResponse {
        RequestAnswer::from(self.outcome().await).into_response(&self.addressee)
    }

    async fn outcome(&self) -> Result<Payload, RpcError> {
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if task.is_settled() => {
                record_shown(&task);
                match &self.call {
                    Some(call) => DraftTasks::for_call(&call.chosen).encode(TaskReply::Outcome(&task)),
                    None => self.shared.tasks.codec().encode(TaskReply::Outcome(&task)),
                }
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
    /// What is said before all else.
    first: Option<Bytes>,
    /// `None` where the task has said all that it will.
    listener: Option<ResultSubscriber>,
}

impl CallMessages for OutcomeWait {
    async fn next(&mut self) -> Option<CallMessage> {
        if let Some(first) = self.first.take() {
            return Some(CallMessage::event(first));
        }
        if let Some(listener) = &mut self.listener
            && let Some(message) = listener.next().await
        {
            return Some(CallMessage::event(message));
        }
        // Whoever took the call back wants no answer to it (LEG-14).
        let is_wanted = self.awaiting.call.as_ref().is_none_or(|call| !call.request.is_taken_back());
        if is_wanted { Some(CallMessage::Answer(self.awaiting.outcome().await.into())) } else { None }
    }

    /// Progress of the call where its client wants that and the task still runs (L25-46, L25-47), else a comment.
    async fn sign(&mut self) -> BodyPart {
        let OutcomeRequest { shared, key, .. } = &self.awaiting;
        let rising = self.listener.as_ref().and_then(ResultSubscriber::rising);
        let Some(rising) = rising.filter(|_| shared.served.settings.life_signs) else {
            return BodyPart::comment();
        };
        let related = match shared.served.engine.get(key).await {
            Ok(task) if !task.is_settled() => shared.tasks.codec().related(&task),
            Ok(_) | Err(_) => return BodyPart::comment(),
        };
        BodyPart::message(rising.lock().sign(Some(&related.meta())))
    }
}
