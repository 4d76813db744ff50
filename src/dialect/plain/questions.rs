//! Encodes the questions of session upstreams during a call, and the answers (GW-16, GW-19).

use url::Url;

use crate::dialect::negotiate::can_be_asked;
use crate::dialect::upstream_dialect::{QuestionRefusal, RefusalAnswer, TOO_MANY_QUESTIONS};
use crate::task::Answer;
use crate::wire::meta::{HOP_BY_HOP, META, PROGRESS_TOKEN};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError, method, rpc_error};

/// The error of a call that is to be repeated once its user has visited an address (2025-11-25).
const URL_ELICITATION_REQUIRED: i64 = -32042;

#[derive(serde::Serialize)]
struct ElicitResult {
    action: &'static str,
}

fn elicited(action: &'static str) -> RefusalAnswer {
    RefusalAnswer::Result(Payload::of(&ElicitResult { action }))
}

fn error(code: i64, message: &str) -> RefusalAnswer {
    RefusalAnswer::Error(RpcError::new(code, message))
}

/// `{method, params}` without members of the upstream's hop.
pub(super) fn decode(question: &str, params: Option<&Payload>) -> Result<Payload, RefusalAnswer> {
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
        let kept =
            HOP_BY_HOP.into_iter().fold(meta.edit().remove(PROGRESS_TOKEN), |edit, key| edit.remove(key)).finish();
        let is_empty = Object::of(&kept).is_none_or(|left| left.keys().next().is_none());
        edit = if is_empty { edit.remove(META) } else { edit.set(META, kept) };
    }
    edit.finish().detached()
}

/// Users are sent to web pages only, and to none with credentials in its URL (U32). URL parsers drop different control
/// characters, so the displayed URL might not be the visited one.
fn check_address(params: &Object) -> Result<(), RefusalAnswer> {
    let url = params.get_str("url").ok_or_else(|| error(rpc_error::INVALID_PARAMS, "url must be a string"))?;
    let is_page =
        |url: &Url| matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    let is_plain = !url.contains(char::is_control);
    if is_plain && Url::parse(&url).is_ok_and(|url| is_page(&url)) { Ok(()) } else { Err(elicited("decline")) }
}

pub(super) fn forbidden(declared: &Object, question: &str, params: Option<&Payload>) -> Option<RefusalAnswer> {
    match decode(question, params) {
        Ok(request) if can_be_asked(declared, &request) => None,
        Ok(_) => Some(refuse(question, QuestionRefusal::Undeclared)),
        Err(refused) => Some(refused),
    }
}

/// Drops the members that only stateless results have.
pub(super) fn encode_answer(answer: Answer) -> Answer {
    match answer {
        Answer::Result(result) => Answer::Result(match Object::of(&result) {
            Some(object) => object.edit().remove("resultType").finish(),
            None => result,
        }),
        Answer::Error(error) => Answer::Error(error),
    }
}

/// The elicitations in an error (T-49); none for any other error.
pub(super) fn demanded(error: &RpcError) -> Vec<Result<Payload, RefusalAnswer>> {
    let elicitations = || {
        let data = Object::of(error.data.as_ref()?)?;
        let items = data.get("elicitations").filter(|items| items.as_str().starts_with('['))?;
        Some(items.items().map(|item| decode(method::ELICIT, Some(&item))).collect())
    };
    if error.code == URL_ELICITATION_REQUIRED { elicitations().unwrap_or_default() } else { Vec::new() }
}

pub(super) fn unfit(error: &RpcError) -> Option<RpcError> {
    let what = "the server's error names an address to which users are not sent";
    demanded(error).iter().any(Result::is_err).then(|| RpcError::new(rpc_error::INTERNAL_ERROR, what))
}

pub(super) fn is_consent(answer: &Answer) -> bool {
    match answer {
        Answer::Result(result) => {
            Object::of(result).is_some_and(|result| result.get_str("action").is_some_and(|action| action == "accept"))
        }
        Answer::Error(_) => false,
    }
}

pub(super) fn refuse(question: &str, why: QuestionRefusal) -> RefusalAnswer {
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
    fn check(method: &str, params: &str, request: &str) {
        assert_eq!(decode(method, Some(&payload(params))).unwrap().as_str(), request);
    }

    /// GW-19.
    #[test]
    fn questions_lose_what_belongs_to_the_upstreams_hop_and_nothing_else() {
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
        assert_eq!(decode(method::ROOTS, None).unwrap().as_str(), r#"{"method":"roots/list"}"#);
        assert_eq!(decode("custom/question", None), Err(error(rpc_error::METHOD_NOT_FOUND, "no such method")), "U30");
    }

    #[test]
    fn u32_nobody_is_sent_to_what_is_no_web_page() {
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
            let asked = decode(method::ELICIT, Some(&payload(&format!(r#"{{"mode":"url","url":"{url}"}}"#))));
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
