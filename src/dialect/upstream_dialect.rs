//! Defines the upstream's side of a flavour: what is sent for a call, and what its answer means.

use std::sync::Arc;

use crate::task::{Answer, Reason};
use crate::wire::{Object, Payload, RpcError};

/// How a kind of upstream is spoken to.
pub trait UpstreamDialect: Send + Sync + std::fmt::Debug {
    /// Takes out of a client's params what this upstream must not see.
    fn encode_params(&self, params: &Object) -> Payload;

    /// Reads the result of a call.
    ///
    /// # Errors
    /// The reason, if this is no result that the upstream may give.
    fn decode_result(&self, result: Payload) -> Result<CanonicalResult, Reason>;

    /// Reads a question that is asked in mid-call: `{method, params}` in canonical form.
    ///
    /// # Errors
    /// The answer, where nobody may be asked this: no question of MCP (U30), or an address that no user is sent to
    /// (U32).
    fn decode_question(&self, question: &str, params: Option<&Payload>) -> Result<Payload, RefusalAnswer>;

    /// A client's answer as this upstream is to see it.
    fn encode_answer(&self, answer: Answer) -> Answer;

    /// The questions that an error of the call stands for: once they are answered, the call is to be made again.
    /// Empty for every other error. Each is read as [`UpstreamDialect::decode_question`] does.
    fn demanded(&self, error: &RpcError) -> Vec<Result<Payload, RefusalAnswer>>;

    /// Whether the answer to such a question says that the user has been where the upstream wanted.
    fn is_consent(&self, answer: &Answer) -> bool;

    /// What is answered to a question that cannot reach the client.
    fn refuse(&self, question: &str, why: QuestionRefusal) -> RefusalAnswer;
}

/// A result in canonical form: without the envelope members of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalResult {
    pub result: Payload,
    /// The tool itself says that it failed.
    pub is_error: bool,
}

/// Why a question does not reach the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionRefusal {
    /// The client did not declare that it can be asked this.
    Undeclared,
    /// Nobody will answer.
    Unanswered,
    /// The upstream asks more than one call may (U29).
    TooMany,
}

/// The refusal of a question beyond those that one call may ask.
pub const TOO_MANY_QUESTIONS: &str = "too many questions: one call may have 32 open, and ask 1,000 in all";

/// The method of a question as [`UpstreamDialect::decode_question`] has read it; empty if it is none.
#[must_use]
pub fn question_method(request: &Payload) -> Arc<str> {
    let method = Object::of(request).and_then(|request| request.get_string("method"));
    Arc::from(method.unwrap_or_default())
}

/// The answer to a refused question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalAnswer {
    Result(Payload),
    Error(RpcError),
}
