//! Encodes questions and answers of 2026-07-28 (MOD-27, EXT-22). The maps `inputRequests` and `inputResponses` are the
//! same in a task and between two rounds of a plain call.

use std::collections::BTreeMap;

use super::faults::RequestError;
use crate::task::{Answer, InputKey, Question};
use crate::wire::meta::{DRAFT_RELATED_TASK, META, RELATED_TASK};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError, method, rpc_error};

const ACTIONS: [&str; 3] = ["accept", "decline", "cancel"];

/// `inputRequests`: every open question (EXT-23).
pub fn requests(open: &BTreeMap<InputKey, Question>) -> Payload {
    let entries = open.iter().fold(ObjectWriter::new(), |entries, (key, question)| {
        entries.any_member(&key_text(*key), &without_elicitation_id(&question.request))
    });
    entries.finish()
}

/// An `InputRequiredResult` (MOD-27).
pub fn input_required(open: &BTreeMap<InputKey, Question>, state: &str, meta: &Payload) -> Payload {
    let writer = ObjectWriter::new().text("resultType", "input_required").member(META, meta);
    writer.member("inputRequests", &requests(open)).text("requestState", state).finish()
}

/// Only 2025-11-25 has `elicitationId` (T-49).
fn without_elicitation_id(request: &Payload) -> Payload {
    let edited = || {
        let request = Object::of(request)?;
        let params = request.get_object("params").filter(|params| params.contains("elicitationId"))?;
        let params = params.edit().remove("elicitationId").finish();
        (request.get_str("method")? == method::ELICIT).then(|| request.edit().set("params", params).finish())
    };
    edited().unwrap_or_else(|| request.clone())
}

/// Reads `inputResponses`; absent means none. Skips keys that were never issued (EXT-39); other values must be objects.
pub fn responses(params: &Object) -> Result<BTreeMap<InputKey, Answer>, RequestError> {
    let mut answers = BTreeMap::new();
    if !params.contains("inputResponses") {
        return Ok(answers);
    }
    let object = params.get_object("inputResponses").ok_or(wrong("inputResponses must be an object"))?;
    for (name, value) in object.entries() {
        let Some(key) = parse_key(&name) else { continue };
        let value = Object::of(&value).ok_or(wrong("each value of inputResponses must be an object"))?;
        answers.insert(key, Answer::Result(without_related_task(&value)));
    }
    Ok(answers)
}

/// Drops the upstream's task: a client's answer belongs to none (GW-19).
fn without_related_task(answer: &Object) -> Payload {
    let Some(meta) = answer.get_object(META).filter(|m| m.contains(RELATED_TASK) || m.contains(DRAFT_RELATED_TASK))
    else {
        return answer.payload().detached();
    };
    let kept = meta.edit().remove(RELATED_TASK).remove(DRAFT_RELATED_TASK).finish();
    answer.edit().set(META, kept).finish()
}

/// Checks answers against the open questions (B129); ignores answers to others. After an error none must be used.
pub fn check(open: &BTreeMap<InputKey, Question>, answers: &BTreeMap<InputKey, Answer>) -> Result<(), RequestError> {
    for (key, answer) in answers {
        if let (Some(question), Answer::Result(answer)) = (open.get(key), answer) {
            check_one(question, answer)?;
        }
    }
    Ok(())
}

/// An answer to one open question; a refusal if it does not fit and its client can no longer be notified.
pub fn fitting(open: &BTreeMap<InputKey, Question>, key: InputKey, answer: Answer) -> Answer {
    match check(open, &BTreeMap::from([(key, answer.clone())])) {
        Ok(()) => answer,
        Err(_) => Answer::Error(RpcError::new(rpc_error::INVALID_PARAMS, "the client's answer is malformed")),
    }
}

fn check_one(question: &Question, answer: &Payload) -> Result<(), RequestError> {
    let asked = Object::of(&question.request).and_then(|request| request.get_string("method"));
    let answer = Object::of(answer).ok_or(wrong("each value of inputResponses must be an object"))?;
    let starts = |key, first: &[char]| answer.get(key).is_some_and(|value| value.as_str().starts_with(first));
    match asked.as_deref() {
        Some(method::ELICIT) => {
            if !answer.get_str("action").is_some_and(|action| ACTIONS.contains(&&*action)) {
                return Err(wrong("action must be accept, decline or cancel"));
            }
            if answer.contains("content") && !answer.has_object("content") {
                return Err(wrong("content must be an object"));
            }
            Ok(())
        }
        Some(method::SAMPLE) => {
            let complete = starts("role", &['"']) && starts("model", &['"']) && starts("content", &['{', '[']);
            if complete { Ok(()) } else { Err(wrong("a sampling result has role, content and model")) }
        }
        Some(method::ROOTS) if !starts("roots", &['[']) => Err(wrong("roots must be an array")),
        _ => Ok(()),
    }
}

const fn wrong(what: &'static str) -> RequestError {
    RequestError::params(what)
}

fn key_text(key: InputKey) -> String {
    format!("r{}", key.0)
}

fn parse_key(text: &str) -> Option<InputKey> {
    let number = text.strip_prefix('r')?.parse().ok().map(InputKey)?;
    (key_text(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    fn open(request: &str) -> BTreeMap<InputKey, Question> {
        BTreeMap::from([(InputKey(2), Question { ask: payload("7"), request: payload(request) })])
    }

    #[test]
    fn mod27_a_round_has_every_open_question_and_its_state() {
        let request =
            r#"{"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"https://a/"}}"#;
        assert_eq!(
            input_required(&open(request), "s", &payload("{}")).as_str(),
            r#"{"resultType":"input_required","_meta":{},"inputRequests":{"r2":{"method":"elicitation/create","params":{"mode":"url","url":"https://a/"}}},"requestState":"s"}"#
        );
    }

    /// B129.
    #[test]
    fn an_answer_must_have_the_shape_of_its_question() {
        for (method, answer, fits) in [
            (method::ELICIT, r#"{"action":"accept","content":{}}"#, true),
            (method::ELICIT, r#"{"action":"decline"}"#, true),
            (method::ELICIT, r#"{"action":"maybe"}"#, false),
            (method::ELICIT, r#"{"action":7}"#, false),
            (method::ELICIT, r#"{"action":"accept","content":[]}"#, false),
            (method::ELICIT, "{}", false),
            (method::SAMPLE, r#"{"role":"assistant","model":"m","content":{"type":"text","text":"t"}}"#, true),
            (method::SAMPLE, r#"{"role":"assistant","model":"m","content":[]}"#, true),
            (method::SAMPLE, r#"{"role":"assistant","model":"m"}"#, false),
            (method::SAMPLE, r#"{"role":"assistant","model":7,"content":{}}"#, false),
            (method::ROOTS, r#"{"roots":[]}"#, true),
            (method::ROOTS, r#"{"roots":{}}"#, false),
        ] {
            let open = open(&format!(r#"{{"method":"{method}"}}"#));
            let answers = |key| BTreeMap::from([(InputKey(key), Answer::Result(payload(answer)))]);
            assert_eq!(check(&open, &answers(2)).is_ok(), fits, "{method} {answer}");
            assert_eq!(check(&open, &answers(3)), Ok(()), "EXT-39: a key that is not open is not looked at");
        }
    }

    #[test]
    fn answers_lose_the_task_that_they_name_and_nothing_else() {
        let params =
            |answer: &str| Object::of(&payload(&format!(r#"{{"inputResponses":{{"r0":{answer}}}}}"#))).unwrap();
        for (sent, kept) in [
            (r#"{"action":"accept", "n":1.10}"#, r#"{"action":"accept", "n":1.10}"#),
            (r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"},"k":1}}"#, r#"{"_meta":{"k":1}}"#),
        ] {
            let answers = responses(&params(sent)).unwrap();
            assert_eq!(answers[&InputKey(0)], Answer::Result(payload(kept)));
        }
    }
}
