//! Copies a task's payloads out of shared buffers. A kibibyte of payload must not keep a read buffer of 256 alive.

use super::{Answer, Failure, Outcome, Phase, Task};
use crate::wire::{Payload, RpcError};

impl Task {
    #[must_use]
    pub fn exact(mut self) -> Self {
        match &mut self.phase {
            Phase::Queued | Phase::Working => (),
            Phase::AwaitingInput(open) => {
                for question in open.values_mut() {
                    own(&mut question.ask);
                    own(&mut question.request);
                }
            }
            Phase::Settled(outcome) => own_outcome(outcome),
        }
        if let Some(call) = &mut self.recovery.call {
            own(&mut call.params);
            own(&mut call.capabilities);
        }
        if let Some(resume) = &mut self.recovery.resume {
            own(resume);
        }
        for (ask, answer) in &mut self.recovery.undelivered {
            own(ask);
            match answer {
                Answer::Result(result) => own(result),
                Answer::Error(error) => own_error(error),
            }
        }
        self
    }

    /// Whether the task holds only the memory that it counts (see [`Task::stored_bytes`]), which stores require.
    pub fn is_exact(&self) -> bool {
        let in_phase = match &self.phase {
            Phase::Queued | Phase::Working => true,
            Phase::AwaitingInput(open) => open.values().all(|one| one.ask.is_exact() && one.request.is_exact()),
            Phase::Settled(outcome) => outcome.is_exact(),
        };
        let in_call =
            self.recovery.call.as_ref().is_none_or(|one| one.params.is_exact() && one.capabilities.is_exact());
        let is_answered_exactly = |answer: &Answer| match answer {
            Answer::Result(result) => result.is_exact(),
            Answer::Error(error) => is_error_exact(error),
        };
        let in_answers =
            self.recovery.undelivered.iter().all(|(ask, answer)| ask.is_exact() && is_answered_exactly(answer));
        in_phase && in_call && in_answers && self.recovery.resume.as_ref().is_none_or(Payload::is_exact)
    }
}

impl Outcome {
    #[must_use]
    pub fn exact(mut self) -> Self {
        own_outcome(&mut self);
        self
    }

    /// The size of a server's texts in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Returned { result, .. } => result.len(),
            Self::Faulted(Failure::Upstream(error)) => {
                error.message.len() + error.data.as_ref().map_or(0, Payload::len)
            }
            Self::Faulted(Failure::Gateway(_)) | Self::Cancelled => 0,
        }
    }

    /// Whether it holds only the memory that it counts.
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Returned { result, .. } => result.is_exact(),
            Self::Faulted(Failure::Upstream(error)) => is_error_exact(error),
            Self::Faulted(Failure::Gateway(_)) | Self::Cancelled => true,
        }
    }
}

fn is_error_exact(error: &RpcError) -> bool {
    error.data.as_ref().is_none_or(Payload::is_exact)
}

fn own_outcome(outcome: &mut Outcome) {
    match outcome {
        Outcome::Returned { result, .. } => own(result),
        Outcome::Faulted(Failure::Upstream(error)) => own_error(error),
        Outcome::Faulted(Failure::Gateway(_)) | Outcome::Cancelled => (),
    }
}

fn own_error(error: &mut RpcError) {
    if let Some(data) = &mut error.data {
        own(data);
    }
}

fn own(payload: &mut Payload) {
    if !payload.is_exact() {
        *payload = payload.detached();
    }
}
