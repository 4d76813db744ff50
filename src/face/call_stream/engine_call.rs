//! A call in progress, shown to a stateless client: one JSON answer, or a stream of events.
//!
//! While a grace period can still end in a handle nothing is written (T-55); a call that cannot be
//! promoted streams from its first event, or from its first life sign when the upstream stays silent.

use std::fmt;
use std::sync::{Arc, LazyLock};

use http::StatusCode;

use super::progress::CallNotices;
use super::request_answer::RequestAnswer;
use super::{CallMessage, CallMessages, respond};
use crate::dialect::faults::{failure_error, with_uri};
use crate::dialect::lifecycle::{server_meta, stateless_result, stateless_result_in_pieces};
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

/// How one call's events are shown to its client.
#[derive(Debug)]
pub struct CallView<D> {
    pub addressee: Addressee,
    pub method: String,
    /// The address that `resources/read` asked for.
    pub uri: Option<String>,
    pub server_info: Payload,
    pub notices: CallNotices,
    /// Whether a handle may still come.
    pub promotable: Promotable,
    pub dialect: D,
    /// Seals the way back to this call, where its answer may be questions.
    pub rounds: Option<RoundSeal>,
}

/// Seals references to a held call, for the request that it belongs to.
pub struct RoundSeal {
    pub sealer: Arc<Sealer>,
    pub clock: Arc<dyn Clock>,
    /// Where the call is held, where there are several replicas.
    pub home: Option<Incarnation>,
    /// Made of the whole request, and so only for a call that asks something, or whose answer outlives its request.
    pub scope: LazyLock<StateScope, Box<dyn FnOnce() -> StateScope + Send>>,
}

impl fmt::Debug for RoundSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundSeal").field("sealer", &self.sealer).finish_non_exhaustive()
    }
}

impl RoundSeal {
    /// A `requestState`; `None` if the request's scope alone is too long for one, which no checked request's is.
    fn seal(&self, task: &Task, round: u32) -> Option<String> {
        let content = StateContent::Task { id: task.key.id, round, home: self.home };
        let token = StateToken { scope: LazyLock::force(&self.scope).clone(), issued_at: self.clock.now(), content };
        self.sealer.seal_state(&token).ok()
    }
}

/// Whether the head of the answer must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotable {
    Yes,
    No,
}

/// A call whose events are shown.
struct EngineCallMessages<D> {
    view: CallView<D>,
    call: CallStream,
    /// What comes next, if it is known already.
    next: Option<CallMessage>,
}

impl<D: FaceDialect + 'static> CallMessages for EngineCallMessages<D> {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            if let Some(message) = self.next.take() {
                return Some(message);
            }
            // What is not for this client does not break the silence.
            self.next = self.view.show(self.call.next().await);
            if matches!(self.next, Some(CallMessage::Event(_))) {
                self.view.let_go();
            }
        }
    }

    async fn sign(&mut self) -> BodyPart {
        self.view.let_go();
        self.view.notices.sign()
    }
}

impl<D: FaceDialect + 'static> CallView<D> {
    /// Answers with the call's events. Dropping the answer, or this future, means that the client left.
    pub async fn respond(self, call: CallStream) -> FaceResponse {
        self.respond_from(None, call).await
    }

    /// The same where its first event was looked at already.
    pub async fn respond_from(mut self, first: Option<CallEvent>, mut call: CallStream) -> FaceResponse {
        let mut next = first.and_then(|first| self.show(Some(first)));
        while self.promotable == Promotable::Yes && next.is_none() {
            next = self.show(call.next().await);
        }
        let addressee = self.addressee.clone();
        respond(EngineCallMessages { view: self, call, next }, addressee).await
    }

    /// Answers with the last event of a call that is over.
    #[must_use]
    pub fn answer(mut self, event: CallEvent) -> FaceResponse {
        match self.show(Some(event)) {
            Some(CallMessage::Answer(answer)) => answer.into_response(&self.addressee),
            Some(CallMessage::Event(_)) | None => self.addressee.fault(&INTERNAL),
        }
    }

    /// Lets go of the request, which a stream may outlive by hours.
    fn let_go(&self) {
        if let Some(rounds) = &self.rounds {
            LazyLock::force(&rounds.scope);
        }
    }

    /// One event of a call in this client's words; `None` if it is not for this client.
    fn show(&mut self, event: Option<CallEvent>) -> Option<CallMessage> {
        Some(CallMessage::Answer(match event {
            Some(CallEvent::Progress(progress)) => {
                return self.notices.progress(&progress).map(CallMessage::event);
            }
            Some(CallEvent::Log(log)) => return self.notices.log(&log).map(CallMessage::event),
            Some(CallEvent::StaysPlain) => {
                self.promotable = Promotable::No;
                return None;
            }
            Some(CallEvent::Created(task)) => match self.dialect.encode(TaskReply::Created(&task)) {
                Ok(handle) => RequestAnswer::Result(handle.into()),
                Err(error) => self.refused(error),
            },
            Some(CallEvent::InputRequired { task, round }) => self.questions(&task, round),
            Some(CallEvent::Ended(CallEnd::Gone)) => RequestAnswer::Complaint(RequestError::State),
            Some(CallEvent::Ended(CallEnd::Misnamed)) => RequestAnswer::Complaint(RequestError::Misnamed),
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
                RequestAnswer::Result(inputs::input_required(open, &state, &server_meta(&self.server_info)).into())
            }
            _ => RequestAnswer::Fault(INTERNAL),
        }
    }

    fn outcome(&self, outcome: Outcome) -> RequestAnswer {
        match outcome {
            Outcome::Returned { result, .. } => match &self.addressee.id {
                Some(id) if result.len() >= LARGE => {
                    let pieces = stateless_result_in_pieces(&self.method, &result, &self.server_info, LARGE);
                    RequestAnswer::Json(joined_body(envelope::result_of_pieces(id, pieces)))
                }
                Some(_) | None => {
                    RequestAnswer::Result(stateless_result(&self.method, &result, &self.server_info).into())
                }
            },
            Outcome::Faulted(Failure::Gateway(fault)) => RequestAnswer::Fault(fault),
            Outcome::Faulted(failure) => {
                let error = failure_error(&failure);
                self.refused(match &self.uri {
                    Some(uri) => with_uri(error, uri),
                    None => error,
                })
            }
            Outcome::Cancelled => RequestAnswer::Fault(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)),
        }
    }

    /// An unknown method is 404 whoever says so (MOD-09); a tool may mean anything by the code.
    fn refused(&self, error: RpcError) -> RequestAnswer {
        let is_unknown = error.code == rpc_error::METHOD_NOT_FOUND && self.method != method::TOOLS_CALL;
        RequestAnswer::Refused(if is_unknown { StatusCode::NOT_FOUND } else { StatusCode::OK }, error)
    }
}
