//! Encodes calls to upstreams without tasks, their questions and the answers (GW-16, GW-19). Calls are plain and held.
//! Members of this hop and of task dialects are removed: legacy servers reject them (GW-30).

use std::sync::Arc;

use url::Url;

use super::negotiate::can_be_asked;
use crate::task::{Answer, Reason};
use crate::wire::meta::{DRAFT_RELATED_TASK, HOP_BY_HOP, META, PROGRESS_TOKEN, RELATED_TASK, SERVER_INFO};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError, method, rpc_error};

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
    /// The upstream asks more questions than a call may have (U29).
    TooMany,
}

/// The refusal of a question beyond the limits of one call.
pub const TOO_MANY_QUESTIONS: &str = "too many questions: one call may have 32 open, and ask 1,000 in all";

/// The method of a question from [`decode_question`]; empty if it is none.
pub fn question_method(request: &Payload) -> Arc<str> {
    let method = Object::of(request).and_then(|request| request.get_string("method"));
    Arc::from(method.unwrap_or_default())
}

/// Removes members that the upstream must not see from a client's params.
pub fn encode_params(params: &Object) -> Payload {
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

/// Reads the result of a call. The error is the reason why the upstream may not return this result.
pub fn decode_result(result: Payload) -> Result<CanonicalResult, Reason> {
    let Some(object) = Object::of(&result) else {
        return Err(Reason::UpstreamMalformed);
    };
    let is_error = object.get("isError").is_some_and(|value| value.as_str() == "true");
    let edit = object.edit().remove("resultType");
    let hops = [RELATED_TASK, DRAFT_RELATED_TASK, SERVER_INFO];
    Ok(CanonicalResult { result: edit.remove_within(META, &hops).finish(), is_error })
}

/// The error of a call that is to be repeated once its user has visited an address (2025-11-25).
const URL_ELICITATION_REQUIRED: i64 = -32042;

#[derive(serde::Serialize)]
struct ElicitResult {
    action: &'static str,
}

fn elicited(action: &'static str) -> Answer {
    Answer::Result(Payload::of(&ElicitResult { action }))
}

fn error(code: i64, message: &str) -> Answer {
    Answer::Error(RpcError::new(code, message))
}

/// A question as `{method, params}` without this hop's members. Refuses other requests (U30) and bad addresses (U32).
pub fn decode_question(question: &str, params: Option<&Payload>) -> Result<Payload, Answer> {
    if !matches!(question, method::ELICIT | method::SAMPLE | method::ROOTS) {
        return Err(refuse(question, QuestionRefusal::Undeclared));
    }
    let writer = ObjectWriter::new().text("method", question);
    let Some(params) = params else { return Ok(writer.finish()) };
    let params = Object::of(params).ok_or_else(|| error(rpc_error::INVALID_PARAMS, "params must be an object"))?;
    if question == method::ELICIT && params.get_str("mode").is_some_and(|mode| mode == "url") {
        check_address(&params)?;
    }
    Ok(writer.member("params", &stripped(&params)).finish())
}

fn stripped(params: &Object) -> Payload {
    let mut edit = params.edit().remove("task");
    if let Some(meta) = params.get_object(META) {
        let kept = HOP_BY_HOP.into_iter().fold(meta.edit().remove(PROGRESS_TOKEN), |edit, key| edit.remove(key));
        edit = edit.set_unless_empty(META, kept.finish());
    }
    edit.finish().detached()
}

/// Users visit only web pages, without credentials in the URL (U32). Parsers drop control characters differently.
fn check_address(params: &Object) -> Result<(), Answer> {
    let url = params.get_str("url").ok_or_else(|| error(rpc_error::INVALID_PARAMS, "url must be a string"))?;
    let is_page =
        |url: &Url| matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    let is_plain = !url.contains(char::is_control);
    if is_plain && Url::parse(&url).is_ok_and(|url| is_page(&url)) { Ok(()) } else { Err(elicited("decline")) }
}

/// The refusal of a question that a client of these capabilities (limited to its version) must not see (U31, U32).
pub fn forbidden(declared: &Object, question: &str, params: Option<&Payload>) -> Option<Answer> {
    match decode_question(question, params) {
        Ok(request) if can_be_asked(declared, &request) => None,
        Ok(_) => Some(refuse(question, QuestionRefusal::Undeclared)),
        Err(refused) => Some(refused),
    }
}

/// Drops the members that only stateless results have.
pub fn encode_answer(answer: Answer) -> Answer {
    match answer {
        Answer::Result(result) => Answer::Result(match Object::of(&result) {
            Some(object) => object.edit().remove("resultType").finish(),
            None => result,
        }),
        Answer::Error(error) => Answer::Error(error),
    }
}

/// The answer for a server of this version: until 2025-06-18 a sampling result has one content, no array (GW-05).
pub fn answer_in(version: Option<ProtocolVersion>, answer: Answer) -> Answer {
    let is_older = version.is_some_and(|version| !version.traits().has_sampling_tools);
    let (Answer::Result(result), true) = (&answer, is_older) else { return answer };
    let Some(object) = Object::of(result).filter(|one| contents_of(one).is_some()) else { return answer };
    let why = "the client's answer has several contents or none; the server's version has one";
    let refusal = || Answer::Error(RpcError::new(rpc_error::INTERNAL_ERROR, why));
    with_single_content(&object).map_or_else(refusal, Answer::Result)
}

fn contents_of(message: &Object) -> Option<Payload> {
    message.get("content").filter(|content| content.as_str().starts_with('['))
}

pub(super) fn with_single_content(message: &Object) -> Option<Payload> {
    let contents = contents_of(message)?;
    let mut contents = contents.items();
    let (only, None) = (contents.next()?, contents.next()) else { return None };
    Some(message.edit().set("content", only).finish())
}

/// The elicitations in a call's error (T-49), as by [`decode_question`]; none in other errors. Answers repeat the call.
pub fn demanded(error: &RpcError) -> Vec<Result<Payload, Answer>> {
    let elicitations = || {
        let data = Object::of(error.data.as_ref()?)?;
        let items = data.get("elicitations").filter(|items| items.as_str().starts_with('['))?;
        Some(items.items().map(|item| decode_question(method::ELICIT, Some(&item))).collect())
    };
    if error.code == URL_ELICITATION_REQUIRED { elicitations().unwrap_or_default() } else { Vec::new() }
}

/// The replacement for an error that would send the user to a forbidden address (T-49, U32); `None` for every other error.
pub fn unfit(error: &RpcError) -> Option<RpcError> {
    let what = "the server's error names an address to which users are not sent";
    demanded(error).iter().any(Result::is_err).then(|| RpcError::new(rpc_error::INTERNAL_ERROR, what))
}

/// Whether the answer to such a question says that the user has visited the address.
pub fn is_consent(answer: &Answer) -> bool {
    match answer {
        Answer::Result(result) => {
            Object::of(result).is_some_and(|result| result.get_str("action").is_some_and(|action| action == "accept"))
        }
        Answer::Error(_) => false,
    }
}

pub fn refuse(question: &str, why: QuestionRefusal) -> Answer {
    match (question, why) {
        (method::ELICIT, QuestionRefusal::Undeclared) => {
            error(rpc_error::INVALID_PARAMS, "the client takes no such elicitation")
        }
        (method::SAMPLE | method::ROOTS, QuestionRefusal::Undeclared) => {
            error(rpc_error::METHOD_NOT_FOUND, "the client did not declare this capability")
        }
        (method::ELICIT | method::SAMPLE | method::ROOTS, QuestionRefusal::TooMany) => {
            error(rpc_error::INTERNAL_ERROR, TOO_MANY_QUESTIONS)
        }
        (method::ELICIT, QuestionRefusal::Unanswered) => elicited("cancel"),
        (method::SAMPLE, QuestionRefusal::Unanswered) => error(-1, "the sampling request got no answer"),
        (method::ROOTS, QuestionRefusal::Unanswered) => {
            error(rpc_error::INTERNAL_ERROR, "the roots request got no answer")
        }
        _ => error(rpc_error::METHOD_NOT_FOUND, "no such method"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
    }

    #[track_caller]
    fn check_params(sent: &str, upstream_sees: &str) {
        let params = Object::of(&payload(sent)).unwrap();
        assert_eq!(encode_params(&params).as_str(), upstream_sees);
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
        let returned = decode_result(payload(answered)).unwrap();
        assert_eq!((returned.result.as_str(), returned.is_error), (kept, is_error));
    }

    /// T-14, EXT-68.
    #[test]
    fn results_are_unchanged_but_for_members_of_a_hop() {
        let odd = r#"{"content":[], "big":12345678901234567890123, "isError":false}"#;
        check_result(odd, odd, false);
        check_result(r#"{"content":[],"isError":true}"#, r#"{"content":[],"isError":true}"#, true);
        check_result(
            r#"{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u"},"k":1}}"#,
            r#"{"content":[],"_meta":{"k":1}}"#,
            false,
        );
        assert_eq!(decode_result(payload("[]")), Err(Reason::UpstreamMalformed));
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
            match refuse(question, why) {
                Answer::Error(error) => assert_eq!(Some(error.code), code, "{question} {why:?}"),
                Answer::Result(result) => {
                    assert_eq!(code, None, "{question} {why:?}");
                    assert_eq!(result.as_str(), r#"{"action":"cancel"}"#);
                }
            }
        }
    }

    #[track_caller]
    fn check(method: &str, params: &str, request: &str) {
        assert_eq!(decode_question(method, Some(&payload(params))).unwrap().as_str(), request);
    }

    /// GW-19.
    #[test]
    fn questions_lose_members_of_the_upstreams_hop_alone() {
        check(
            method::ELICIT,
            r#"{"message":"?", "n":1.10,"task":{},"_meta":{"progressToken":1}}"#,
            r#"{"method":"elicitation/create","params":{"message":"?", "n":1.10}}"#,
        );
        check(
            method::SAMPLE,
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u"},"k":1}}"#,
            r#"{"method":"sampling/createMessage","params":{"_meta":{"k":1}}}"#,
        );
        assert_eq!(decode_question(method::ROOTS, None).unwrap().as_str(), r#"{"method":"roots/list"}"#);
        assert_eq!(
            decode_question("custom/question", None),
            Err(error(rpc_error::METHOD_NOT_FOUND, "no such method")),
            "U30"
        );
    }

    #[test]
    fn u32_no_client_gets_an_address_that_is_no_web_page() {
        for (url, fits) in [
            ("https://a.example/x", true),
            ("http://a.example", true),
            ("javascript:alert(1)", false),
            ("file:///etc/passwd", false),
            ("https://user@a.example", false),
            ("https://user:secret@a.example", false),
            ("data:text/html,x", false),
            (r"https://a.example/\n", false),
            (r"https://a.\u0009example/", false),
            (r"\u0000https://a.example/", false),
            (r"https://a.example/\u0085", false),
            ("/relative", false),
        ] {
            let asked = decode_question(method::ELICIT, Some(&payload(&format!(r#"{{"mode":"url","url":"{url}"}}"#))));
            assert_eq!(asked.is_ok(), fits, "{url}");
            assert!(fits || asked == Err(elicited("decline")), "{url}");
        }
    }

    #[test]
    fn t_49_an_error_that_demands_elicitations_is_read_as_questions() {
        let data = payload(r#"{"elicitations":[{"mode":"url","url":"https://a/"},{"mode":"url","url":"file:/x"}]}"#);
        let error = RpcError { code: -32042, message: "m".into(), data: Some(data) };
        let read = demanded(&error);
        assert_eq!((read.len(), read[0].is_ok(), read[1].is_ok()), (2, true, false));
        assert_eq!(unfit(&error).unwrap().code, rpc_error::INTERNAL_ERROR);
        assert!(demanded(&RpcError { code: -32043, ..error }).is_empty());
        assert!(demanded(&RpcError::new(-32042, "m")).is_empty());
    }
}
