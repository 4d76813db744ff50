//! Waits for a task's outcome: `tasks/result`, or a call with a chosen id (SEP-1686). Sends the task's questions and
//! progress meanwhile. A client that drops the stream cancels nothing (L25-64). While the store is unavailable, the
//! client waits: it would take an error for the outcome, and repeat the call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;

use super::task_subscribers::TaskRequestEntry;
use super::task_subscribers::{ResultStreamError, ResultStreamKind, ResultSubscriber, SubscriberList};
use crate::cause::CauseChain;
use crate::dialect::draft_sep_1686::DraftTasks;
use crate::dialect::faults::gateway_error;
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::TaskError;
use crate::engine::retry_delays::RetryDelays;
use crate::face::answer::Addressee;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::call_stream::{CallMessage, CallMessages, respond};
use crate::face::http::FaceResponse;
use crate::face::session::{SessionFaceState, refuse};
use crate::task::{Caller, ChosenId, Executed, GatewayFault, Reason, Task, TaskId};
use crate::wire::framing::BodyPart;
use crate::wire::{JsonPieces, ProtocolVersion, RpcError};

/// A client's longest wait for an unavailable store, without a message.
const STORE_WAIT_MAX: Duration = Duration::from_secs(300);

pub(super) struct OutcomeRequest {
    pub(super) shared: Arc<SessionFaceState>,
    pub(super) caller: Caller,
    pub(super) id: TaskId,
    pub(super) nonce: u128,
    pub(super) addressee: Addressee,
    /// The chosen id of a call; `None` for `tasks/result`.
    pub(super) call: Option<ChosenId>,
    pub(super) request: Arc<TaskRequestEntry>,
}

impl OutcomeRequest {
    /// Responds at once if the task has settled, otherwise with an event stream (L25-22, L25-23).
    pub(super) async fn answer(self) -> FaceResponse {
        // Released at once: the result may be large, and is read again for the response.
        match self.shared.served.engine.get(&self.caller, self.id).await.map(|task| task.is_settled()) {
            Ok(false) => (),
            Err(TaskError::Unknown) => return refuse(&self.addressee, &RequestError::UnknownTask),
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "an outcome cannot be read; the client waits until it can");
                let addressee = self.addressee.clone();
                return respond(OutcomeWait { is_unread: true, ..OutcomeWait::new(self, None, None) }, addressee).await;
            }
            Ok(true) => return self.whole().await,
        }
        let addressee = self.addressee.clone();
        match self.listen() {
            Ok(listener) => respond(OutcomeWait::new(self, None, Some(listener)), addressee).await,
            Err(ResultStreamError::Closed) => self.whole().await,
            Err(ResultStreamError::TooMany) => addressee.error(StatusCode::OK, &too_many()),
        }
    }

    fn listen(&self) -> Result<ResultSubscriber, ResultStreamError> {
        let kind = match self.addressee.accepted.takes_stream() {
            true => ResultStreamKind::Messages,
            false => ResultStreamKind::OutcomeAlone,
        };
        self.shared.subscribers(&self.caller, self.id, self.nonce, None).listen(kind, &self.caller)
    }

    /// Responds with `first`, the task's messages, and its outcome; an error if the task cannot be watched.
    pub(super) async fn answer_from(self, first: Bytes, subscribers: &Arc<SubscriberList>) -> FaceResponse {
        let listener = subscribers.listen(ResultStreamKind::Messages, &self.caller).ok();
        let addressee = self.addressee.clone();
        respond(OutcomeWait::new(self, Some(first), listener), addressee).await
    }

    async fn whole(&self) -> FaceResponse {
        RequestAnswer::from(self.outcome(&mut StoreWait::default()).await).into_response(&self.addressee)
    }

    async fn outcome(&self, wait: &mut StoreWait) -> Result<JsonPieces, RpcError> {
        match wait.for_task(self).await {
            Ok(task) if task.is_settled() => {
                let engine = &self.shared.served.engine;
                let refused = |fault: GatewayFault| gateway_error(&fault);
                engine.record_shown(&task).map_err(refused)?;
                let task = engine.share(task).await.map_err(refused)?;
                let reply = match &self.call {
                    Some(chosen) => DraftTasks::for_call(chosen).pieces(TaskReply::Outcome(&task)),
                    None => self.shared.tasks.codec().pieces(TaskReply::Outcome(&task)),
                };
                engine.within_budget(&self.caller.principal, reply?).map_err(refused)
            }
            Ok(_) => Err(too_many()),
            // The task existed when the call was sent, and has expired.
            Err(TaskError::Unknown) if self.call.is_some() => {
                Err(gateway_error(&GatewayFault::new(Reason::TtlExpired, Executed::Unknown)))
            }
            Err(TaskError::Unknown) => {
                self.shared.tasks.misses.note(&self.caller.principal);
                Err(RequestError::UnknownTask.to_error(ProtocolVersion::NEWEST_SESSION))
            }
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "an outcome could not be read");
                Err(gateway_error(&GatewayFault::new(error.reason(), Executed::Unknown)))
            }
        }
    }
}

#[derive(Debug, Default)]
struct StoreWait(Option<(Instant, RetryDelays)>);

impl StoreWait {
    /// Returns once the task can be read. Cancel safe: the time already waited counts.
    async fn for_task(&mut self, request: &OutcomeRequest) -> Result<Arc<Task>, TaskError> {
        loop {
            let read = request.shared.served.engine.get(&request.caller, request.id).await;
            if !matches!(read, Err(TaskError::Store(_))) {
                self.0 = None;
                return read;
            }
            let (since, pauses) = self.0.get_or_insert_with(|| (Instant::now(), RetryDelays::of_readers()));
            if since.elapsed() >= STORE_WAIT_MAX {
                return read;
            }
            pauses.wait().await;
        }
    }
}

fn too_many() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::TooManyWaiters, Executed::Unknown))
}

struct OutcomeWait {
    awaiting: OutcomeRequest,
    first: Option<Bytes>,
    store: StoreWait,
    is_unread: bool,
    listener: Option<ResultSubscriber>,
}

impl OutcomeWait {
    const fn new(awaiting: OutcomeRequest, first: Option<Bytes>, listener: Option<ResultSubscriber>) -> Self {
        Self { awaiting, first, store: StoreWait(None), is_unread: false, listener }
    }

    async fn message(&mut self) -> Option<CallMessage> {
        if let Some(first) = self.first.take() {
            return Some(CallMessage::event(first));
        }
        if self.is_unread {
            if self.store.for_task(&self.awaiting).await.is_ok_and(|task| !task.is_settled()) {
                self.listener = self.awaiting.listen().ok();
            }
            self.is_unread = false;
        }
        if let Some(listener) = &mut self.listener
            && let Some(message) = listener.next().await
        {
            return Some(CallMessage::event(message));
        }
        // The client that cancelled the request wants no response (LEG-14).
        let is_wanted = !self.awaiting.request.withdrawn().is_cancelled();
        if is_wanted { Some(CallMessage::Answer(self.awaiting.outcome(&mut self.store).await.into())) } else { None }
    }
}

impl CallMessages for OutcomeWait {
    async fn next(&mut self) -> Option<CallMessage> {
        if self.awaiting.call.is_some() {
            // The cancel of a call ends its task. The task's last messages are sent before the end.
            return self.message().await;
        }
        let withdrawn = self.awaiting.request.withdrawn().clone();
        withdrawn.run_until_cancelled(self.message()).await.flatten()
    }

    /// Progress if the client requested it and the task still runs (L25-46, L25-47), otherwise a comment.
    async fn life_sign(&mut self) -> BodyPart {
        let OutcomeRequest { shared, caller, id, .. } = &self.awaiting;
        let rising = self.listener.as_ref().and_then(ResultSubscriber::rising);
        let Some(rising) = rising.filter(|_| shared.served.settings.life_signs) else {
            return BodyPart::comment();
        };
        let related = match shared.served.engine.get_unaudited(caller, *id).await {
            Ok(task) if !task.is_settled() => shared.tasks.codec().related(&task),
            Ok(_) | Err(_) => return BodyPart::comment(),
        };
        rising.lock().life_sign(Some(&related.meta()))
    }

    fn signs_are_progress(&self) -> bool {
        let is_rising = self.listener.as_ref().is_some_and(|listener| listener.rising().is_some());
        is_rising && self.awaiting.shared.served.settings.life_signs
    }
}
