//! Encodes calls to upstreams without tasks: each is sent as a plain call and held.
//!
//! Members of the client's hop or of a task dialect are removed, as legacy servers fail on unknown ones (GW-30).

mod questions;

use super::upstream_dialect::{CanonicalResult, QuestionRefusal, RefusalAnswer, UpstreamDialect};
use crate::task::{Answer, Reason};
use crate::wire::meta::{DRAFT_RELATED_TASK, HOP_BY_HOP, META, PROGRESS_TOKEN, RELATED_TASK, SERVER_INFO};
use crate::wire::{Object, Payload, RpcError};

#[derive(Clone, Copy, Debug, Default)]
pub struct PlainUpstream;

impl PlainUpstream {
    /// The refusal of a question that a client with these capabilities must not see (U31, U32). `declared` is limited
    /// to the client's version ([`super::session_results::client_capabilities`]).
    #[must_use]
    pub fn forbidden(declared: &Object, question: &str, params: Option<&Payload>) -> Option<RefusalAnswer> {
        questions::forbidden(declared, question, params)
    }

    /// The replacement for an error that would send the user to a forbidden address (T-49, U32); `None` for every other error.
    #[must_use]
    pub fn unfit(error: &RpcError) -> Option<RpcError> {
        questions::unfit(error)
    }
}

impl UpstreamDialect for PlainUpstream {
    fn encode_params(&self, params: &Object) -> Payload {
        let mut edit = params.edit().remove("task").remove("inputResponses").remove("requestState");
        if let Some(meta) = params.get_object(META) {
            let is_hop = |key: &str| key == PROGRESS_TOKEN || HOP_BY_HOP.contains(&key);
            edit = match meta.keys().all(|key| is_hop(&key)) {
                true => edit.remove(META),
                false => {
                    let kept = HOP_BY_HOP.iter().fold(meta.edit().remove(PROGRESS_TOKEN), |kept, key| kept.remove(key));
                    edit.set(META, kept.finish())
                }
            };
        }
        edit.finish()
    }

    fn decode_result(&self, result: Payload) -> Result<CanonicalResult, Reason> {
        let Some(object) = Object::of(&result) else {
            return Err(Reason::UpstreamMalformed);
        };
        let is_error = object.get("isError").is_some_and(|value| value.as_str() == "true");
        let mut edit = object.edit().remove("resultType");
        let hops = [RELATED_TASK, DRAFT_RELATED_TASK, SERVER_INFO];
        if let Some(meta) = object.get_object(META).filter(|meta| hops.iter().any(|key| meta.contains(key))) {
            let kept = hops.iter().fold(meta.edit(), |kept, key| kept.remove(key)).finish();
            let any_left = Object::of(&kept).is_some_and(|left| left.keys().next().is_some());
            edit = if any_left { edit.set(META, kept) } else { edit.remove(META) };
        }
        Ok(CanonicalResult { result: edit.finish(), is_error })
    }

    fn decode_question(&self, question: &str, params: Option<&Payload>) -> Result<Payload, RefusalAnswer> {
        questions::decode(question, params)
    }

    fn encode_answer(&self, answer: Answer) -> Answer {
        questions::encode_answer(answer)
    }

    fn demanded(&self, error: &RpcError) -> Vec<Result<Payload, RefusalAnswer>> {
        questions::demanded(error)
    }

    fn is_consent(&self, answer: &Answer) -> bool {
        questions::is_consent(answer)
    }

    fn refuse(&self, question: &str, why: QuestionRefusal) -> RefusalAnswer {
        questions::refuse(question, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ScanLimits, method, rpc_error};

    fn payload(text: &str) -> Payload {
        Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    #[track_caller]
    fn check_params(sent: &str, upstream_sees: &str) {
        let params = Object::of(&payload(sent)).unwrap();
        assert_eq!(PlainUpstream.encode_params(&params).as_str(), upstream_sees);
    }

    /// UPC-05, UPC-20, UPC-21, EXT-59, GW-30.
    #[test]
    fn upstreams_see_neither_task_fields_nor_the_other_hops_metadata() {
        check_params(
            r#"{"name":"t","arguments":{"n":1.10},"task":{"ttl":1},"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"traceparent":"00-1"}}"#,
            r#"{"name":"t","arguments":{"n":1.10},"_meta":{"traceparent":"00-1"}}"#,
        );
        check_params(
            r#"{ "name" : "t", "_meta": {"modelcontextprotocol.io/task":{"taskId":"x"},"io.modelcontextprotocol/logLevel":"info"} }"#,
            r#"{ "name" : "t"}"#,
        );
        check_params(r#"{"name":"t"}"#, r#"{"name":"t"}"#);
    }

    #[track_caller]
    fn check_result(answered: &str, kept: &str, is_error: bool) {
        let returned = PlainUpstream.decode_result(payload(answered)).unwrap();
        assert_eq!((returned.result.as_str(), returned.is_error), (kept, is_error));
    }

    /// T-14, EXT-68.
    #[test]
    fn results_are_kept_as_they_came_but_for_what_belongs_to_a_hop() {
        let odd = r#"{"content":[], "big":12345678901234567890123, "isError":false}"#;
        check_result(odd, odd, false);
        check_result(r#"{"content":[],"isError":true}"#, r#"{"content":[],"isError":true}"#, true);
        check_result(
            r#"{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u"},"k":1}}"#,
            r#"{"content":[],"_meta":{"k":1}}"#,
            false,
        );
        assert_eq!(PlainUpstream.decode_result(payload("[]")), Err(Reason::UpstreamMalformed));
    }

    /// GW-19.
    #[test]
    fn refused_questions_get_the_answer_of_their_kind() {
        use QuestionRefusal::{TooMany, Unanswered, Undeclared};
        for (question, why, code) in [
            (method::ROOTS, Undeclared, Some(rpc_error::METHOD_NOT_FOUND)),
            (method::SAMPLE, Undeclared, Some(rpc_error::METHOD_NOT_FOUND)),
            (method::ELICIT, Undeclared, Some(rpc_error::INVALID_PARAMS)),
            (method::ELICIT, Unanswered, None),
            (method::SAMPLE, Unanswered, Some(-1)),
            (method::ROOTS, Unanswered, Some(rpc_error::INTERNAL_ERROR)),
            (method::ELICIT, TooMany, Some(rpc_error::INTERNAL_ERROR)),
            ("tasks/get", Undeclared, Some(rpc_error::METHOD_NOT_FOUND)),
        ] {
            match PlainUpstream.refuse(question, why) {
                RefusalAnswer::Error(error) => assert_eq!(Some(error.code), code, "{question} {why:?}"),
                RefusalAnswer::Result(result) => {
                    assert_eq!(code, None, "{question} {why:?}");
                    assert_eq!(result.as_str(), r#"{"action":"cancel"}"#);
                }
            }
        }
    }
}
