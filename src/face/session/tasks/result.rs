//! `tasks/result`: waits for the outcome, and is where the task's questions and progress go meanwhile.
//!
//! A client that drops the stream cancels nothing (L25-64).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::lines::{Hearing, Listener, NotListening};
use crate::cause::Chain;
use crate::dialect::core_2025_11_25::CoreTasks;
use crate::dialect::core_2025_11_25::messages::{self, Step};
use crate::dialect::faults::gateway_error;
use crate::dialect::{Complaint, FaceDialect, Reply};
use crate::engine::TaskError;
use crate::engine::apply::record_shown;
use crate::face::answer::{Addressee, event_stream};
use crate::face::call_stream::silence::Silence;
use crate::face::http::{AcceptedTypes, Response};
use crate::face::session::{Shared, refuse};
use crate::task::{Executed, GatewayFault, Reason, TaskKey};
use crate::wire::framing::{sse_comment, sse_message};
use crate::wire::{Payload, ProtocolVersion, RpcError, envelope};

/// One request for an outcome.
pub(super) struct Awaiting {
    pub(super) shared: Arc<Shared>,
    pub(super) key: TaskKey,
    /// The session that asks.
    pub(super) home: u128,
    pub(super) addressee: Addressee,
}

impl Awaiting {
    /// Answers at once where the task has settled, else as an event stream as soon as there is anything to
    /// say: a message, or a sign of life (L25-22, L25-23).
    pub(super) async fn answer(self) -> Response {
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if !task.is_settled() => (),
            Err(TaskError::Unknown) => return refuse(&self.addressee, &Complaint::UnknownTask),
            Ok(_) | Err(_) => return self.whole().await,
        }
        let takes_stream = matches!(self.addressee.accepted, AcceptedTypes::EventStream | AcceptedTypes::Both);
        let hearing = if takes_stream { Hearing::Messages } else { Hearing::OutcomeAlone };
        let mut listener = match self.shared.line(&self.key, self.home, None).listen(hearing) {
            Ok(listener) => listener,
            Err(NotListening::Closed) => return self.whole().await,
            Err(NotListening::TooMany) => return self.addressee.error(StatusCode::OK, &too_many()),
        };
        if !takes_stream {
            while listener.next().await.is_some() {}
            return self.whole().await;
        }
        match Silence::begin().wait(listener.next()).await {
            Some(None) => self.whole().await,
            Some(Some(message)) => self.stream(listener, sse_message(&message)),
            None => {
                let sign = self.sign(&listener).await;
                self.stream(listener, sign)
            }
        }
    }

    /// The outcome as an answer of its own.
    async fn whole(&self) -> Response {
        match self.outcome().await {
            Ok(result) => self.addressee.result(result),
            Err(error) => self.addressee.error(StatusCode::OK, &error),
        }
    }

    /// The head is given; what remains is events, the outcome last.
    fn stream(self, listener: Listener, first: Bytes) -> Response {
        let state = (self, Some(listener), Some(first));
        let events = stream::unfold(state, |(waiting, listener, first)| async move {
            if let Some(first) = first {
                return Some((Ok(Frame::data(first)), (waiting, listener, None)));
            }
            let mut listener = listener?;
            let (bytes, listener) = match Silence::begin().wait(listener.next()).await {
                Some(Some(message)) => (sse_message(&message), Some(listener)),
                None => (waiting.sign(&listener).await, Some(listener)),
                Some(None) => (sse_message(&waiting.last_message().await), None),
            };
            Some((Ok(Frame::data(bytes)), (waiting, listener, None)))
        });
        event_stream(StreamBody::new(events).boxed_unsync())
    }

    /// Breaks a silence: by progress of the call where its client wants that and the task still runs (L25-46,
    /// L25-47), else by a comment.
    async fn sign(&self, listener: &Listener) -> Bytes {
        let Some(rising) = listener.rising().filter(|_| self.shared.served.life_signs) else { return sse_comment() };
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if !task.is_settled() => (),
            Ok(_) | Err(_) => return sse_comment(),
        }
        let mut rising = rising.lock();
        let value = rising.raise();
        let step = Step { progress: &value, total: rising.total(), message: None };
        sse_message(&messages::progress(self.key.id, rising.token(), step))
    }

    async fn last_message(&self) -> Bytes {
        match (self.outcome().await, &self.addressee.id) {
            (Ok(result), Some(id)) => envelope::result(id, &result),
            (Ok(_), None) => envelope::error(None, &no_outcome()),
            (Err(error), id) => envelope::error(id.as_ref(), &error),
        }
    }

    async fn outcome(&self) -> Result<Payload, RpcError> {
        match self.shared.served.engine.get(&self.key).await {
            Ok(task) if task.is_settled() => {
                record_shown(&task);
                CoreTasks::default().encode(Reply::Outcome(&task))
            }
            // Nobody watches the task, so nobody can say when it ends.
            Ok(_) => Err(too_many()),
            Err(TaskError::Unknown) => {
                self.shared.tasks.misses.note(&self.key.owner);
                Err(Complaint::UnknownTask.to_error(ProtocolVersion::NEWEST_SESSION))
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "an outcome could not be read");
                Err(gateway_error(&GatewayFault::new(error.reason(), Executed::Unknown)))
            }
        }
    }
}

fn too_many() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::TooManyWaiters, Executed::Unknown))
}

fn no_outcome() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::Internal, Executed::Unknown))
}
