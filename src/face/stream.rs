//! A call in progress, shown to a stateless client: one JSON answer, or a stream of events.
//!
//! While a grace period can still end in a handle nothing is written (T-55); a call that cannot be
//! promoted streams from its first event, or from its first life sign when the upstream stays silent.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::answer::{Addressee, event_stream};
use super::call_stream::silence::Silence;
use super::http::{AcceptedTypes, Response};
use super::rising::Rising;
use super::sealed::{Sealer, StateContent, StateScope, StateToken};
use crate::dialect::faults::{failure_error, gateway_error, with_uri};
use crate::dialect::lifecycle::{server_meta, stateless_result};
use crate::dialect::negotiate::LogLevel;
use crate::dialect::{Complaint, FaceDialect, Reply, inputs};
use crate::engine::{CallEnd, CallEvent, CallStream};
use crate::task::{Clock, Executed, Failure, GatewayFault, Outcome, Phase, Reason, Task};
use crate::upstream::Progress;
use crate::wire::framing::{sse_comment, sse_message};
use crate::wire::{Object, Payload, RpcError, envelope, fault, method};

/// How one call's events are shown to its client.
#[derive(Debug)]
pub struct CallView<D> {
    pub addressee: Addressee,
    pub method: String,
    /// The address that `resources/read` asked for.
    pub uri: Option<String>,
    pub server_info: Payload,
    /// Where progress is shown, if the client wants any.
    pub progress: Option<Rising>,
    /// Whether silence shows as progress, where the client wants any, and not as a comment.
    pub life_signs: bool,
    pub log_level: Option<LogLevel>,
    /// Whether a handle may still come.
    pub promotable: Promotable,
    pub dialect: D,
    /// Seals the way back to this call, where its answer may be questions.
    pub rounds: Option<RoundSeal>,
}

/// Seals references to a held call, for the request that it belongs to.
#[derive(Debug)]
pub struct RoundSeal {
    pub sealer: Arc<Sealer>,
    pub clock: Arc<dyn Clock>,
    pub scope: StateScope,
}

impl RoundSeal {
    /// A `requestState`; `None` if the request's scope alone is too long for one, which no checked request's is.
    fn seal(&self, task: &Task, round: u32) -> Option<String> {
        let content = StateContent::Task { id: task.key.id, round };
        let token = StateToken { scope: self.scope.clone(), issued_at: self.clock.now(), content };
        self.sealer.seal_state(&token).ok()
    }
}

/// Whether the head of the answer must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotable {
    Yes,
    No,
}

/// One event of a call, in this client's words.
enum Shown {
    Notification(Bytes),
    Handle(Payload),
    Result(Payload),
    Complaint(Complaint),
    Fault(GatewayFault),
    Error(RpcError),
    /// Not for this client.
    Nothing,
}

impl<D: FaceDialect + 'static> CallView<D> {
    pub fn new(addressee: Addressee, method: &str, server_info: Payload, dialect: D) -> Self {
        Self {
            addressee,
            method: method.to_owned(),
            uri: None,
            server_info,
            progress: None,
            life_signs: false,
            log_level: None,
            promotable: Promotable::No,
            dialect,
            rounds: None,
        }
    }

    /// Answers with the call's events. Dropping the answer, or this future, means that the client left.
    pub async fn respond(mut self, mut call: CallStream) -> Response {
        let takes_stream = matches!(self.addressee.accepted, AcceptedTypes::EventStream | AcceptedTypes::Both);
        let mut silence = Silence::begin();
        loop {
            let next = match self.promotable {
                Promotable::No if takes_stream => silence.wait(call.next()).await,
                Promotable::No | Promotable::Yes => Some(call.next().await),
            };
            let Some(event) = next else {
                let sign = self.life_sign();
                return self.stream(call, sign);
            };
            if matches!(event, Some(CallEvent::StaysPlain)) {
                silence.broken();
            }
            match self.show(event) {
                Shown::Notification(message) if takes_stream => return self.stream(call, sse_message(&message)),
                Shown::Notification(_) | Shown::Nothing => (),
                last @ (Shown::Handle(_)
                | Shown::Result(_)
                | Shown::Complaint(_)
                | Shown::Fault(_)
                | Shown::Error(_)) => return self.whole(last),
            }
        }
    }

    /// Answers with the last event of a call that is over.
    #[must_use]
    pub fn answer(mut self, event: CallEvent) -> Response {
        let last = self.show(Some(event));
        self.whole(last)
    }

    /// The whole answer, where nothing was written before.
    fn whole(&self, last: Shown) -> Response {
        match last {
            Shown::Handle(result) | Shown::Result(result) => self.addressee.result(result),
            Shown::Complaint(complaint) => self.addressee.complaint(&complaint),
            Shown::Fault(fault) => self.addressee.fault(&fault),
            Shown::Error(error) => {
                // An unknown method is 404 whoever says so (MOD-09); a tool may mean anything by the code.
                let unknown = error.code == fault::METHOD_NOT_FOUND && self.method != method::TOOLS_CALL;
                let status = if unknown { http::StatusCode::NOT_FOUND } else { http::StatusCode::OK };
                self.addressee.error(status, &error)
            }
            Shown::Notification(_) | Shown::Nothing => {
                self.addressee.fault(&GatewayFault::new(Reason::Internal, Executed::Unknown))
            }
        }
    }

    /// The status is given; what remains is events.
    fn stream(self, call: CallStream, first: Bytes) -> Response {
        let state = (self, Some(call), Some(first));
        let events = stream::unfold(state, |(mut view, call, first)| async move {
            if let Some(first) = first {
                return Some((Ok(Frame::data(first)), (view, call, None)));
            }
            let mut call = call?;
            // What is not for this client does not break the silence.
            let silence = Silence::begin();
            loop {
                let Some(event) = silence.wait(call.next()).await else {
                    return Some((Ok(Frame::data(view.life_sign())), (view, Some(call), None)));
                };
                let (message, more) = match view.show(event) {
                    Shown::Nothing => continue,
                    Shown::Notification(message) => (message, Some(call)),
                    last @ (Shown::Handle(_)
                    | Shown::Result(_)
                    | Shown::Complaint(_)
                    | Shown::Fault(_)
                    | Shown::Error(_)) => (view.last_message(last), None),
                };
                return Some((Ok(Frame::data(sse_message(&message))), (view, more, None)));
            }
        });
        event_stream(StreamBody::new(events).boxed_unsync())
    }

    /// The final message where the status can no longer say anything.
    fn last_message(&self, shown: Shown) -> Bytes {
        let error = match shown {
            Shown::Handle(result) | Shown::Result(result) => {
                if let Some(id) = &self.addressee.id {
                    return envelope::result(id, &result);
                }
                RpcError::new(fault::INTERNAL_ERROR, "the request had no id")
            }
            Shown::Complaint(complaint) => complaint.to_error(self.addressee.version),
            Shown::Fault(fault) => gateway_error(&fault),
            Shown::Error(error) => error,
            Shown::Notification(message) => return message,
            Shown::Nothing => RpcError::new(fault::INTERNAL_ERROR, "the call ended without an answer"),
        };
        envelope::error(self.addressee.id.as_ref(), &error)
    }

    fn show(&mut self, event: Option<CallEvent>) -> Shown {
        match event {
            Some(CallEvent::Progress(progress)) => self.show_progress(&progress),
            Some(CallEvent::Log(log)) => self.show_log(&log),
            Some(CallEvent::StaysPlain) => {
                self.promotable = Promotable::No;
                Shown::Nothing
            }
            Some(CallEvent::Created(task)) => match self.dialect.encode(Reply::Created(&task)) {
                Ok(handle) => Shown::Handle(handle),
                Err(error) => Shown::Error(error),
            },
            Some(CallEvent::InputRequired { task, round }) => self.show_questions(&task, round),
            Some(CallEvent::Ended(CallEnd::Gone)) => Shown::Complaint(Complaint::State),
            Some(CallEvent::Ended(CallEnd::Misnamed)) => Shown::Complaint(Complaint::Misnamed),
            Some(CallEvent::Ended(CallEnd::NeedsCapability(required))) => {
                Shown::Complaint(Complaint::Capability(required))
            }
            Some(CallEvent::Ended(CallEnd::Outcome(outcome))) => self.show_outcome(outcome),
            None => Shown::Fault(GatewayFault::new(Reason::Internal, Executed::Unknown)),
        }
    }

    fn show_questions(&self, task: &Task, round: u32) -> Shown {
        let state = self.rounds.as_ref().and_then(|rounds| rounds.seal(task, round));
        match (&task.phase, state) {
            (Phase::AwaitingInput(open), Some(state)) => {
                Shown::Result(inputs::input_required(open, &state, &server_meta(&self.server_info)))
            }
            _ => Shown::Fault(GatewayFault::new(Reason::Internal, Executed::Unknown)),
        }
    }

    fn show_outcome(&self, outcome: Outcome) -> Shown {
        match outcome {
            Outcome::Returned { result, .. } => {
                Shown::Result(stateless_result(&self.method, &result, &self.server_info))
            }
            Outcome::Faulted(Failure::Gateway(fault)) => Shown::Fault(fault),
            Outcome::Faulted(failure) => {
                let error = failure_error(&failure);
                Shown::Error(match &self.uri {
                    Some(uri) => with_uri(error, uri),
                    None => error,
                })
            }
            Outcome::Cancelled => Shown::Fault(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)),
        }
    }

    /// Shows that the call lives: to clients that let progress reset their timers as progress, to
    /// balancers and all others as a comment.
    fn life_sign(&mut self) -> Bytes {
        match &mut self.progress {
            Some(rising) if self.life_signs => sse_message(&rising.sign()),
            Some(_) | None => sse_comment(),
        }
    }

    /// Progress under the client's own token, rising only (MOD-22, T-73).
    fn show_progress(&mut self, progress: &Progress) -> Shown {
        let Some(rising) = &mut self.progress else { return Shown::Nothing };
        let Some(value) = rising.real(&progress.progress, progress.total.as_ref()) else { return Shown::Nothing };
        let message = progress.message.as_deref();
        Shown::Notification(rising.notification(&value, message))
    }

    /// Log messages only for requests that set a level, and none below it (MOD-23).
    fn show_log(&self, log: &Payload) -> Shown {
        let level = Object::of(log).and_then(|log| log.get_string("level")).as_deref().and_then(LogLevel::parse);
        match (self.log_level, level) {
            (Some(wanted), Some(level)) if level >= wanted => {
                Shown::Notification(envelope::notification(method::LOG_MESSAGE, Some(log)))
            }
            _ => Shown::Nothing,
        }
    }
}
