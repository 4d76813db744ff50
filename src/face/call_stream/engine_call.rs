//! Shows a running call to a stateless client: one JSON response, or an event stream. During a grace period that may
//! end in a task handle, the client gets progress and logs (GW-34), and no life signs.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::StatusCode;

use super::progress::CallNotices;
use super::request_answer::RequestAnswer;
use super::{CallMessage, CallMessages, respond};
use crate::dialect::faults::{call_cancelled, failure_error, with_uri};
use crate::dialect::lifecycle::{completed_result, server_meta, stateless_result_in_pieces};
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::{FaceDialect, RequestError, TaskReply, inputs};
use crate::engine::{CallEnd, CallEvent, CallStream};
use crate::face::answer::{Addressee, LARGE};
use crate::face::http::{FaceResponse, joined_body};
use crate::face::sealed::{Sealer, StateContent, StateScope, StateToken};
use crate::replica::Incarnation;
use crate::task::{Clock, Executed, Failure, GatewayFault, Outcome, Phase, Reason, Task};
use crate::wire::framing::BodyPart;
use crate::wire::{Payload, RpcError, envelope, method, rpc_error};

const INTERNAL: GatewayFault = GatewayFault::new(Reason::Internal, Executed::Unknown);

#[derive(Debug)]
pub struct CallView<D> {
    pub addressee: Addressee,
    pub method: Cow<'static, str>,
    pub uri: Option<String>,
    pub server_info: Payload,
    pub metadata: StatelessRequest,
    pub notices: CallNotices,
    pub promotable: Promotable,
    pub dialect: D,
    pub rounds: Option<RoundSeal>,
    pub shown: Option<ResultEdit>,
}

/// An edit of a result; `None` if nothing changes.
pub struct ResultEdit(pub Box<ResultEditor>);

type ResultEditor = dyn Fn(&Payload) -> Option<Payload> + Send + Sync;

debug_members!(ResultEdit);

pub struct RoundSeal {
    pub sealer: Arc<Sealer>,
    pub clock: Arc<dyn Clock>,
    pub replica: Option<Incarnation>,
    /// A digest of the whole request, computed only if the call asks a question or its response outlives the request.
    pub scope: LazyLock<StateScope, Box<dyn FnOnce() -> StateScope + Send>>,
}

debug_members!(RoundSeal, |seal| sealer: seal.sealer);

impl RoundSeal {
    /// `None` if the request's scope alone exceeds the limit of a `requestState`, which no checked request does.
    fn seal(&self, task: &Task, round: u32) -> Option<String> {
        let content = StateContent::Task { id: task.key.id, round, replica: self.replica };
        let token = StateToken { scope: LazyLock::force(&self.scope).clone(), issued_at: self.clock.now(), content };
        self.sealer.seal_state(&token)
    }
}

/// Whether the call may still become a task: then the response head waits for the first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotable {
    Yes,
    No,
}

struct EngineCallMessages<D> {
    view: Box<CallView<D>>,
    call: CallStream,
    next: Option<CallMessage>,
}

impl<D: FaceDialect + 'static> CallMessages for EngineCallMessages<D> {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            if let Some(message) = self.next.take() {
                return Some(message);
            }
            // An event that is not for this client does not end the silence.
            self.next = self.view.show(self.call.next().await);
            if matches!(self.next, Some(CallMessage::Event(_))) {
                self.view.release_request();
            }
        }
    }

    async fn life_sign(&mut self) -> BodyPart {
        self.view.release_request();
        self.view.notices.life_sign()
    }

    fn signs_are_progress(&self) -> bool {
        self.view.notices.signs_are_progress()
    }
}

impl<D: FaceDialect + 'static> CallView<D> {
    /// Dropping the response or this future means that the client disconnected.
    pub async fn respond(mut self: Box<Self>, first: Option<CallEvent>, mut call: CallStream) -> FaceResponse {
        let mut next = first.and_then(|first| self.show(Some(first)));
        while self.promotable == Promotable::Yes && next.is_none() {
            next = self.show(call.next().await);
        }
        let addressee = self.addressee.clone();
        respond(EngineCallMessages { view: self, call, next }, addressee).await
    }

    pub fn answer(mut self, event: CallEvent) -> FaceResponse {
        match self.show(Some(event)) {
            Some(CallMessage::Answer(answer)) => answer.into_response(&self.addressee),
            Some(CallMessage::Event(_)) | None => self.addressee.fault(&INTERNAL),
        }
    }

    /// Frees the request, which a stream may outlive by hours.
    fn release_request(&self) {
        if let Some(rounds) = &self.rounds {
            LazyLock::force(&rounds.scope);
        }
    }

    /// `None` if the event is not for this client.
    fn show(&mut self, event: Option<CallEvent>) -> Option<CallMessage> {
        Some(CallMessage::Answer(match event {
            Some(CallEvent::Progress(progress)) => {
                return self.notices.progress(&progress).map(CallMessage::event);
            }
            Some(CallEvent::Notification(received)) => return self.notices.log(&received).map(CallMessage::event),
            Some(CallEvent::StaysPlain) => {
                self.promotable = Promotable::No;
                return None;
            }
            Some(CallEvent::Created(task)) => match self.dialect.encode(TaskReply::Created(&task)) {
                Ok(handle) => RequestAnswer::Result(handle.into()),
                Err(error) => self.refused(error),
            },
            Some(CallEvent::InputRequired { task, round }) => self.questions(&task, round),
            Some(CallEvent::Ended(CallEnd::CallLost)) => RequestAnswer::Complaint(RequestError::InvalidRequestState),
            Some(CallEvent::Ended(CallEnd::IdempotencyMismatch)) => {
                RequestAnswer::Complaint(RequestError::IdempotencyMismatch)
            }
            Some(CallEvent::Ended(CallEnd::NeedsCapability(required))) => {
                RequestAnswer::Complaint(RequestError::Capability(required))
            }
            Some(CallEvent::Ended(CallEnd::Outcome(outcome))) => self.outcome(outcome),
            None => RequestAnswer::Fault(INTERNAL),
        }))
    }

    fn questions(&self, task: &Task, round: u32) -> RequestAnswer {
        let state = self.rounds.as_ref().and_then(|rounds| rounds.seal(task, round));
        match (&task.phase, state) {
            (Phase::AwaitingInput(open), Some(state)) => {
                let asks = inputs::input_required(open, &state, &server_meta(&self.server_info));
                RequestAnswer::Result(asks.held_by(|text| self.notices.limits.rehold(text)).into())
            }
            _ => RequestAnswer::Fault(INTERNAL),
        }
    }

    fn edited(&self, outcome: Outcome) -> Outcome {
        match (outcome, &self.shown) {
            (Outcome::Returned { result, is_error }, Some(edit)) => {
                let result = (edit.0)(&result).unwrap_or(result);
                Outcome::Returned { result, is_error }
            }
            (outcome, _) => outcome,
        }
    }

    fn outcome(&self, outcome: Outcome) -> RequestAnswer {
        let original = outcome.result().map_or_else(Bytes::new, |result| result.bytes().clone());
        match self.edited(outcome) {
            Outcome::Returned { result, .. } => match &self.addressee.id {
                Some(id) if result.len() >= LARGE => {
                    let pieces = stateless_result_in_pieces(&self.method, &result, &self.server_info, LARGE);
                    let held = |piece| self.notices.limits.rehold_edited(piece, &original);
                    let pieces = pieces.into_iter().map(held).collect();
                    RequestAnswer::Json(joined_body(envelope::result_of_pieces(id, pieces)))
                }
                Some(_) | None => RequestAnswer::Result(completed_result(&self.method, &result, &self.server_info)),
            },
            Outcome::Faulted(Failure::Gateway(fault)) => RequestAnswer::Fault(fault),
            // As if the server itself answered (MOD-10).
            Outcome::Faulted(Failure::Upstream(error)) if self.metadata.is_lacking(&error) => {
                let code = self.metadata.version.traits().missing_capability;
                RequestAnswer::Refused(StatusCode::BAD_REQUEST, RpcError { code, ..error })
            }
            Outcome::Faulted(failure) => {
                let error = failure_error(&failure);
                self.refused(if let Some(uri) = &self.uri { with_uri(error, uri) } else { error })
            }
            Outcome::Cancelled => self.refused(call_cancelled()),
        }
    }

    /// An unknown method is 404 from either side (MOD-09); a tool may use the code for anything.
    fn refused(&self, error: RpcError) -> RequestAnswer {
        let is_unknown = error.code == rpc_error::METHOD_NOT_FOUND && self.method != method::TOOLS_CALL;
        RequestAnswer::Refused(if is_unknown { StatusCode::NOT_FOUND } else { StatusCode::OK }, error)
    }
}
