//! Every shape of response from an upstream of 2026-07-28, and the requests to it.

use bytes::Bytes;

use super::*;
use crate::wire::ScanLimits;

fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).expect(text)
}

fn object(text: &str) -> Object {
    Object::of(&payload(text)).expect(text)
}

/// The kind of a result, with a handle's id, or a round's questions and state.
fn kind(request: &str, result: &str) -> String {
    let text = |part: Option<Payload>| part.map_or_else(|| "-".to_owned(), |part| part.as_str().to_owned());
    match answered(request, &payload(result)) {
        StatelessResult::Complete => "complete".to_owned(),
        StatelessResult::Round(InputRound { requests, state }) => {
            format!("{} {}", text(requests.map(|requests| requests.payload().clone())), text(state))
        }
        StatelessResult::Task(handle) => format!("task {}", handle.id),
        StatelessResult::Misplaced => "misplaced".to_owned(),
        StatelessResult::Malformed => "malformed".to_owned(),
    }
}

/// UPC-09: only a call may get a task, only some methods questions, and no type means complete.
#[test]
fn results_are_told_apart_by_their_type_and_their_request() {
    let task = r#"{"resultType":"task","taskId":"u-1","status":"working"}"#;
    let round = r#"{"resultType":"input_required","requestState":"s"}"#;
    for (request, result, expected) in [
        (method::TOOLS_CALL, "{}", "complete"),
        (method::TOOLS_CALL, r#"{"resultType":"complete","taskId":"u-1"}"#, "complete"),
        (method::TOOLS_CALL, r#"{"taskId":"u-1","status":"working"}"#, "complete"),
        (method::TOOLS_CALL, task, "task u-1"),
        (method::PROMPTS_GET, task, "misplaced"),
        (method::TOOLS_CALL, round, r#"- "s""#),
        (method::PROMPTS_GET, round, r#"- "s""#),
        (method::TOOLS_LIST, round, "misplaced"),
        (method::TOOLS_CALL, r#"{"resultType":"later"}"#, "misplaced"),
        (method::TOOLS_CALL, r#"{"resultType":7}"#, "misplaced"),
        (method::TOOLS_CALL, r#"{"resultType":null}"#, "misplaced"),
        (method::TOOLS_CALL, "[]", "malformed"),
        (method::TOOLS_CALL, r#""done""#, "malformed"),
    ] {
        assert_eq!(kind(request, result), expected, "{request} {result}");
    }
}

/// UPC-14: the state is sent back verbatim.
#[test]
fn a_round_has_its_questions_and_its_state_verbatim() {
    for (members, expected) in [
        ("", "- -"),
        (r#","inputRequests":{}"#, "- -"),
        (r#","inputRequests":[]"#, "- -"),
        (r#","inputRequests":{"a":{"method":"roots/list"}}"#, r#"{"a":{"method":"roots/list"}} -"#),
        (r#","inputRequests":{},"requestState":"\u0061 1.10""#, r#"- "\u0061 1.10""#),
        (r#","requestState":null"#, "- null"),
    ] {
        let result = format!(r#"{{"resultType":"input_required"{members}}}"#);
        assert_eq!(kind(method::TOOLS_CALL, &result), expected, "{result}");
    }
}

#[test]
fn a_handle_has_an_id_of_a_bearable_length_and_says_whether_there_is_more_to_fetch() {
    #[track_caller]
    fn handle(members: &str) -> Option<ExtensionTaskHandle> {
        match answered(method::TOOLS_CALL, &payload(&format!(r#"{{"resultType":"task"{members}}}"#))) {
            StatelessResult::Task(handle) => Some(handle),
            StatelessResult::Malformed => None,
            other @ (StatelessResult::Complete | StatelessResult::Round(_) | StatelessResult::Misplaced) => {
                panic!("{other:?}")
            }
        }
    }
    let (longest, longer) = ("x".repeat(1_024), "x".repeat(1_025));
    assert_eq!(&*handle(&format!(r#","taskId":"{longest}""#)).unwrap().id, longest);
    for unusable in ["", r#","taskId":"""#, r#","taskId":7"#, &format!(r#","taskId":"{longer}""#)] {
        assert!(handle(unusable).is_none(), "{unusable}");
    }
    for (status, has_news) in [
        ("", false),
        (r#","status":"working""#, false),
        (r#","status":"input_required""#, true),
        (r#","status":"completed""#, true),
        (r#","status":"submitted""#, true),
        (r#","status":7"#, false),
    ] {
        let made = handle(&format!(r#","taskId":"u-1"{status}"#)).unwrap();
        assert_eq!(made.has_news, has_news, "{status}");
        assert_eq!(made.payload.as_str(), format!(r#"{{"resultType":"task","taskId":"u-1"{status}}}"#));
    }
}

/// The kind of a poll's result, with its members.
fn stands(result: &str) -> String {
    match polled(&payload(result)).expect(result).1 {
        ExtensionTaskState::Working => "working".to_owned(),
        ExtensionTaskState::Asking(requests) => format!("asking {}", requests.payload().as_str()),
        ExtensionTaskState::Returned(result) => format!("returned {}", result.as_str()),
        ExtensionTaskState::Faulted(error) => format!("faulted {} {}", error.code, error.message),
        ExtensionTaskState::Cancelled => "cancelled".to_owned(),
        ExtensionTaskState::Unknown => "unknown".to_owned(),
        ExtensionTaskState::Malformed(executed) => format!("malformed {executed:?}"),
    }
}

/// GW-14.
#[test]
fn every_status_is_read_with_its_members() {
    for (members, expected) in [
        (r#""status":"working","result":{}"#, "working"),
        (r#""status":"input_required","inputRequests":{"a":{}}"#, r#"asking {"a":{}}"#),
        (r#""status":"input_required","inputRequests":{}"#, "asking {}"),
        (r#""status":"input_required""#, "malformed Unknown"),
        (r#""status":"input_required","inputRequests":[]"#, "malformed Unknown"),
        (r#""status":"completed","result":{"content":[ ],"n":1.10}"#, r#"returned {"content":[ ],"n":1.10}"#),
        (r#""status":"completed","result":{"content":[],"isError":true}"#, r#"returned {"content":[],"isError":true}"#),
        (r#""status":"completed""#, "malformed Yes"),
        (r#""status":"completed","result":"done""#, "malformed Yes"),
        (r#""status":"completed","result":{"resultType":"complete"}"#, r#"returned {"resultType":"complete"}"#),
        (r#""status":"completed","result":{"resultType":"input_required","requestState":"s"}"#, "malformed Yes"),
        (r#""status":"completed","result":{"resultType":"task","taskId":"u-2"}"#, "malformed Yes"),
        (r#""status":"failed","error":{"code":-7,"message":"no"}"#, "faulted -7 no"),
        (r#""status":"failed""#, "malformed Yes"),
        (r#""status":"failed","error":"no""#, "malformed Yes"),
        (r#""status":"cancelled","result":{}"#, "cancelled"),
        (r#""status":"submitted","result":{}"#, "unknown"),
        (r#""status":"Completed","result":{}"#, "unknown"),
        (r#""status":7"#, "unknown"),
        (r#""taskId":"u-1""#, "unknown"),
    ] {
        assert_eq!(stands(&format!("{{{members}}}")), expected, "{members}");
    }
    assert!(polled(&payload("[]")).is_none());
}

/// GW-08.
#[test]
fn the_members_of_a_task_are_read() {
    let read = |members: &str| polled(&payload(&format!(r#"{{"status":"working"{members}}}"#))).unwrap().0;
    let nothing = ExtensionTask { status_text: "working".to_owned(), message: None, poll_interval: None, ttl: None };
    assert_eq!(read(""), nothing);
    assert_eq!(read(r#","statusMessage":"","pollIntervalMs":null"#), nothing);
    assert_eq!(read(r#","statusMessage":7"#), nothing);
    assert_eq!(read(r#","statusMessage":"half \u0077ay""#).message.as_deref(), Some("half way"));
    for (interval, expected) in [
        ("5000", Some(Duration::from_secs(5))),
        ("0.5", Some(Duration::from_micros(500))),
        ("1e300", Some(Duration::MAX)),
        ("0", None),
        ("-1", None),
        (r#""60""#, None),
    ] {
        assert_eq!(read(&format!(r#","pollIntervalMs":{interval}"#)).poll_interval, expected, "{interval}");
        assert_eq!(read(&format!(r#","ttlMs":{interval}"#)).ttl, expected, "{interval}");
    }
    let odd = polled(&payload(r#"{"status":"sub\u006ditted"}"#)).unwrap().0;
    assert_eq!(odd.status_text, "submitted");
}

/// MOD-27: the questions that may be asked, and their keys.
#[test]
fn an_entry_is_a_question_where_it_has_a_method_of_one_and_a_bearable_key() {
    for name in [method::ELICIT, method::SAMPLE, method::ROOTS] {
        let expected = ExtensionQuestion { method: Arc::from(name), params: None };
        assert_eq!(question("k", &payload(&format!(r#"{{"method":"{name}"}}"#))), Some(expected));
    }
    let roots = payload(r#"{"method":"roots/list","params":[]}"#);
    assert_eq!(question(&"k".repeat(1_024), &roots).and_then(|question| question.params), None);
    assert_eq!(question(&"k".repeat(1_025), &roots), None);
    for none in [r#"{"method":"ping"}"#, r#"{"method":7}"#, "{}", "1", "[]"] {
        assert_eq!(question("k", &payload(none)), None, "{none}");
    }
}

#[test]
fn questions_lose_members_of_other_hops() {
    let entry = r#"{"method":"elicitation/create","params":{"message":"m","task":{},"elicitationId":"e","_meta":{"k":1,"io.modelcontextprotocol/related-task":{}}}}"#;
    let params = question("k", &payload(entry)).unwrap().params.unwrap();
    assert_eq!(params.as_str(), r#"{"message":"m","_meta":{"k":1}}"#);
}

#[test]
fn t_48_an_error_is_an_answer_only_where_the_question_has_a_word_for_it() {
    let error = || RpcError::new(-1, "no");
    let written = |question, answer| response(question, answer).map(|answer| answer.as_str().to_owned());
    let kept = || Answer::Result(payload(r#"{"action":"accept", "n":1.10}"#));
    assert_eq!(written(method::ELICIT, kept()), Ok(r#"{"action":"accept", "n":1.10}"#.to_owned()));
    assert_eq!(written(method::ELICIT, Answer::Error(error())), Ok(r#"{"action":"cancel"}"#.to_owned()));
    assert_eq!(written(method::ROOTS, Answer::Error(error())), Ok(r#"{"roots":[]}"#.to_owned()));
    assert_eq!(written(method::SAMPLE, Answer::Error(error())), Err(error()));
}

/// UPC-14.
#[test]
fn requests_are_made_again_with_the_answers_under_the_upstreams_keys() {
    let answers = [("b\"1", payload("{ }")), ("a", payload(r#"{"n":1.10}"#))];
    let written = responses(answers.iter().map(|(key, answer)| (*key, answer))).unwrap();
    assert_eq!(written.as_str(), r#"{"b\"1":{ },"a":{"n":1.10}}"#);
    assert_eq!(responses(std::iter::empty()), None);
    let params = payload(r#"{"name":"t","requestState":"old"}"#);
    for (params, responses, state, expected) in [
        (Some(&params), None, None, Some(r#"{"name":"t","requestState":"old"}"#)),
        (Some(&params), None, Some(r#""\u0061""#), Some(r#"{"name":"t","requestState":"\u0061"}"#)),
        (None, Some("{}"), Some("7"), Some(r#"{"inputResponses":{},"requestState":7}"#)),
        (Some(&payload("[]")), Some("{}"), None, None),
    ] {
        let again = repeated(params, responses.map(payload), state.map(payload));
        assert_eq!(again.as_ref().map(Payload::as_str), expected, "{params:?}");
    }
}

/// UPC-03: requests about a task have no other members.
#[test]
fn requests_about_tasks_name_the_task_alone() {
    assert_eq!(params_of("a\"b").as_str(), r#"{"taskId":"a\"b"}"#);
    assert_eq!(
        update_of("u-1", object(r#"{"k":{}}"#).payload()).as_str(),
        r#"{"taskId":"u-1","inputResponses":{"k":{}}}"#
    );
    assert!(is_of_an_unknown_task(&RpcError::new(rpc_error::INVALID_PARAMS, "no such task")));
    assert!(!is_of_an_unknown_task(&RpcError::new(rpc_error::METHOD_NOT_FOUND, "no such method")));
}
