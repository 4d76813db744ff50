//! Defines the upstream's side of a dialect: encodes calls, decodes results and questions.

use std::sync::Arc;

use crate::task::{Answer, Reason};
use crate::wire::{Object, Payload, RpcError};

pub trait UpstreamDialect: Send + Sync + std::fmt::Debug {
    /// Removes members that this upstream must not see from a client's params.
    fn encode_params(&self, params: &Object) -> Payload;

    /// Reads the result of a call. The error is the reason why the upstream may not return this result.
    fn decode_result(&self, result: Payload) -> Result<CanonicalResult, Reason>;

    /// Reads a question during a call: `{method, params}` in canonical form. Refuses a request that is no question of
    /// MCP (U30), or names a forbidden address (U32).
    fn decode_question(&self, question: &str, params: Option<&Payload>) -> Result<Payload, RefusalAnswer>;

    fn encode_answer(&self, answer: Answer) -> Answer;

    /// The questions in an error of the call, each as from [`UpstreamDialect::decode_question`]: the call is repeated
    /// after their answers. Empty for every other error.
    fn demanded(&self, error: &RpcError) -> Vec<Result<Payload, RefusalAnswer>>;

    /// Whether the answer to such a question says that the user has visited the address.
    fn is_consent(&self, answer: &Answer) -> bool;

    fn refuse(&self, question: &str, why: QuestionRefusal) -> RefusalAnswer;
}

/// A result in canonical form: without the envelope members of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalResult {
    pub result: Payload,
    pub is_error: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionRefusal {
    Undeclared,
    Unanswered,
    /// The upstream asks more than one call may (U29).
    TooMany,
}

/// The refusal of a question beyond the limits of one call.
pub const TOO_MANY_QUESTIONS: &str = "too many questions: one call may have 32 open, and ask 1,000 in all";

/// The method of a question from [`UpstreamDialect::decode_question`]; empty if it is none.
pub fn question_method(request: &Payload) -> Arc<str> {
    let method = Object::of(request).and_then(|request| request.get_string("method"));
    Arc::from(method.unwrap_or_default())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalAnswer {
    Result(Payload),
    Error(RpcError),
}
