//! Every shape of response from an upstream with tasks, and the requests to it.

use std::collections::HashSet;

use super::*;
use crate::wire::ScanLimits;

fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).expect(text)
}

fn object(text: &str) -> Object {
    Object::of(&payload(text)).expect(text)
}

/// UPC-05, GW-07: only declared support counts, and only in this version.
#[test]
fn capabilities_count_where_they_are_present_and_not_false() {
    let both = UpstreamTaskSupport { calls: true, cancel: true };
    let none = UpstreamTaskSupport::default();
    let calls = UpstreamTaskSupport { calls: true, cancel: false };
    for (text, expected) in [
        (r#"{"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}"#, both),
        (r#"{"tasks":{"cancel":true,"requests":{"tools":{"call":true}}}}"#, both),
        (r#"{"tasks":{"cancel":false,"requests":{"tools":{"call":{}}}}}"#, calls),
        (r#"{"tasks":{"cancel":null,"requests":{"tools":{"call":{}}}}}"#, calls),
        (r#"{"tasks":{"cancel":{},"requests":{"tools":{}}}}"#, UpstreamTaskSupport { calls: false, cancel: true }),
        (r#"{"tasks":{"requests":{"sampling":{"createMessage":{}}}}}"#, none),
        (r#"{"tasks":{}}"#, none),
        (r#"{"tasks":true}"#, none),
        (r#"{"tools":{}}"#, none),
    ] {
        assert_eq!(UpstreamTaskSupport::of(ProtocolVersion::V2025_11_25, &payload(text)), expected, "{text}");
        assert_eq!(UpstreamTaskSupport::of(ProtocolVersion::V2025_06_18, &payload(text)), none, "{text}");
    }
}

/// UPC-05.
#[test]
fn a_tool_is_called_as_a_task_only_where_it_says_so() {
    for (text, expected) in [
        (r#"{"name":"t","execution":{"taskSupport":"required"}}"#, ToolTaskSupport::Required),
        (r#"{"name":"t","execution":{"taskSupport":"optional"}}"#, ToolTaskSupport::Optional),
        (r#"{"name":"t","execution":{"taskSupport":"forbidden"}}"#, ToolTaskSupport::Forbidden),
        (r#"{"name":"t","execution":{"taskSupport":"sometimes"}}"#, ToolTaskSupport::Forbidden),
        (r#"{"name":"t","execution":{"taskSupport":true}}"#, ToolTaskSupport::Forbidden),
        (r#"{"name":"t","execution":{}}"#, ToolTaskSupport::Forbidden),
        (r#"{"name":"t","taskSupport":"required"}"#, ToolTaskSupport::Forbidden),
        (r#"{"name":"t"}"#, ToolTaskSupport::Forbidden),
    ] {
        assert_eq!(ToolTaskSupport::of(&object(text)), expected, "{text}");
    }
}

fn task(status: UpstreamTaskStatus, text: &'static str) -> UpstreamTask {
    UpstreamTask {
        id: Arc::from("u-1"),
        status,
        status_text: Cow::Borrowed(text),
        message: None,
        ttl: None,
        poll_interval: None,
        children: None,
    }
}

/// SUB-18: in order, without duplicates; invalid ids are skipped.
#[test]
fn the_subtasks_of_a_task_are_read_and_bounded() {
    let long = format!(r#"["{}","ok"]"#, "x".repeat(1_025));
    let many = Payload::of(&(0..=CHILDREN_MAX).map(|n| n.to_string()).collect::<Vec<_>>());
    for (named, ids) in [
        ("[]", &[][..]),
        ("null", &[]),
        (r#""a""#, &[]),
        (r#"{"0":"a"}"#, &[]),
        (r#"["b","a","b"]"#, &["b", "a"]),
        (r#"["",7,null,["a"],{"taskId":"a"},"\u0061"]"#, &["a"]),
        (&long, &["ok"]),
    ] {
        let text = format!(r#"{{"taskId":"u-1","status":"working","childTaskIds":{named}}}"#);
        let mut seen = HashSet::new();
        let read = polled(&payload(&text)).unwrap().children(9, |id| seen.insert(id.to_owned()));
        assert_eq!(read.iter().map(|id| &**id).collect::<Vec<_>>(), ids, "{named}");
    }
    let text = format!(r#"{{"taskId":"u-1","status":"working","childTaskIds":{}}}"#, many.as_str());
    let task = polled(&payload(&text)).unwrap();
    assert_eq!(task.children(usize::MAX, |_| true).len(), CHILDREN_MAX);
    let fresh = task.children(2, |id| id.len() > 1);
    assert_eq!(fresh.iter().map(|id| &**id).collect::<Vec<_>>(), ["10", "11"]);
}

/// GW-14.
#[test]
fn every_word_has_its_status() {
    for (word, status) in [
        ("working", UpstreamTaskStatus::Working),
        ("input_required", UpstreamTaskStatus::Asking),
        ("completed", UpstreamTaskStatus::Done),
        ("failed", UpstreamTaskStatus::Done),
        ("cancelled", UpstreamTaskStatus::Cancelled),
        ("submitted", UpstreamTaskStatus::Unknown),
        ("Working", UpstreamTaskStatus::Unknown),
    ] {
        let text = format!(r#"{{"taskId":"u-1","status":"{word}","ttl":null}}"#);
        assert_eq!(polled(&payload(&text)), Some(task(status, word)), "{word}");
    }
}

/// GW-08.
#[test]
fn the_members_of_a_task_are_read_and_bounded() {
    let full = r#"{"taskId":"u-1","status":"working","statusMessage":"half \u001b[1mway","createdAt":"x","lastUpdatedAt":"y","ttl":60000.5,"pollInterval":5000}"#;
    let read = polled(&payload(full)).unwrap();
    assert_eq!(read.message.as_deref(), Some("half [1mway"), "U26");
    assert_eq!(read.ttl, Some(Duration::from_micros(60_000_500)), "numbers are accepted, not whole ones alone");
    assert_eq!(read.poll_interval, Some(Duration::from_secs(5)));
    for (ttl, expected) in [
        ("0", Some(Duration::ZERO)),
        ("null", None),
        ("-1", None),
        ("1e300", None),
        (r#""60""#, None),
        ("9007199254740993", Some(Duration::from_secs_f64(9_007_199_254_740.992))),
    ] {
        let text = format!(r#"{{"taskId":"u-1","status":"working","ttl":{ttl}}}"#);
        assert_eq!(polled(&payload(&text)).unwrap().ttl, expected, "{ttl}");
    }
    let long = format!(r#"{{"taskId":"{}","status":"working"}}"#, "x".repeat(1_025));
    for text in [
        "{}",
        "[]",
        r#"{"taskId":"u-1"}"#,
        r#"{"status":"working"}"#,
        r#"{"taskId":"","status":"working"}"#,
        r#"{"taskId":7,"status":"working"}"#,
        r#"{"taskId":"u-1","status":7}"#,
        r#"{"task":{"taskId":"u-1","status":"working"}}"#,
        &long,
    ] {
        assert_eq!(polled(&payload(text)), None, "{text}");
    }
}

/// T-46, UPC-09 in this dialect: an ordinary result is no handle.
#[test]
fn a_handle_is_told_from_an_ordinary_result() {
    #[track_caller]
    fn check(text: &str, expected: &TaskCallResult) {
        assert_eq!(&created(&payload(text)), expected, "{text}");
    }
    check(
        r#"{"task":{"taskId":"u-1","status":"working"}}"#,
        &TaskCallResult::Task(task(UpstreamTaskStatus::Working, "working")),
    );
    check(
        r#"{"task":{"taskId":"u-1","status":"input_required"}}"#,
        &TaskCallResult::Task(task(UpstreamTaskStatus::Asking, "input_required")),
    );
    for plain in [
        r#"{"content":[]}"#,
        r#"{"content":[],"task":{"taskId":"u-1","status":"working"}}"#,
        r#"{"content":[],"_meta":{"modelcontextprotocol.io/task":{"taskId":"u-1"}}}"#,
        "{}",
        "[]",
        r#"{"resultType":"task","taskId":"u-1","status":"working"}"#,
    ] {
        check(plain, &TaskCallResult::Plain);
    }
    for malformed in [r#"{"task":{}}"#, r#"{"task":null}"#, r#"{"task":{"taskId":"u-1"}}"#, r#"{"task":"u-1"}"#] {
        check(malformed, &TaskCallResult::Malformed);
    }
}

/// GW-09.
#[test]
fn words_for_the_model_are_the_first_status_message_where_there_is_no_other() {
    let meta = r#""_meta":{"io.modelcontextprotocol/model-immediate-response":"wait a bit"}"#;
    for (message, expected) in [("", "wait a bit"), (r#","statusMessage":"begun""#, "begun")] {
        let text = format!(r#"{{"task":{{"taskId":"u-1","status":"working"{message}}},{meta}}}"#);
        let TaskCallResult::Task(task) = created(&payload(&text)) else { panic!("{text}") };
        assert_eq!(task.message.as_deref(), Some(expected));
    }
}

/// UPC-03, T-34.
#[test]
fn requests_about_tasks_are_written_as_the_flavour_wants_them() {
    let params = object(r#"{"name":"t","arguments":{"n":1.10},"_meta":{"k":1}}"#);
    assert_eq!(
        augmented(&params, Some(Duration::from_millis(1_800_007))).as_str(),
        r#"{"name":"t","arguments":{"n":1.10},"_meta":{"k":1},"task":{"ttl":1800007}}"#
    );
    assert_eq!(params_of("a\"b").as_str(), r#"{"taskId":"a\"b"}"#, "UPC-03: nothing else stands there");
    assert_eq!(changed(&object(r#"{"taskId":"u-1","status":"completed"}"#)).as_deref(), Some("u-1"));
}

#[test]
fn upc_08_answers_name_the_task_that_asked() {
    for (answer, sent) in [
        (
            r#"{"action":"accept"}"#,
            r#"{"action":"accept","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u-1"}}}"#,
        ),
        (
            r#"{"_meta":{"k":1,"io.modelcontextprotocol/related-task":{"taskId":"ours"}},"roots":[]}"#,
            r#"{"_meta":{"k":1,"io.modelcontextprotocol/related-task":{"taskId":"u-1"}},"roots":[]}"#,
        ),
    ] {
        assert_eq!(related(Answer::Result(payload(answer)), "u-1"), Answer::Result(payload(sent)));
    }
    let refused = Answer::Error(RpcError::new(-1, "no"));
    assert_eq!(related(refused.clone(), "u-1"), refused);
    let odd = Answer::Result(payload("[]"));
    assert_eq!(related(odd.clone(), "u-1"), odd);
}

#[test]
fn t_67_questions_and_messages_lose_the_upstreams_id() {
    for (came, goes) in [
        (r#"{"message":"?","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u-1"}}}"#, r#"{"message":"?"}"#),
        (
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u-1"},"k": 1},"m":1.10}"#,
            r#"{"_meta":{"k": 1},"m":1.10}"#,
        ),
        (r#"{ "m":1 , "_meta":{ } }"#, r#"{ "m":1 , "_meta":{ } }"#),
        (r#"{"m":1}"#, r#"{"m":1}"#),
    ] {
        assert_eq!(unrelated(&object(came)).as_str(), goes);
    }
}

/// T-67: messages about an upstream's task are distinguished from the client's.
#[test]
fn t_67_a_message_on_a_sessions_stream_names_its_task() {
    let related = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u"}}"#;
    for (members, expected) in [
        (r#""method":"notifications/tasks/status","params":{"taskId":"u"}"#.to_owned(), MessageConcern::Task),
        (format!(r#""id":1,"method":"elicitation/create","params":{{{related}}}"#), MessageConcern::Task),
        (format!(r#""method":"notifications/message","params":{{{related}}}"#), MessageConcern::Task),
        (r#""id":1,"method":"elicitation/create","params":{"message":"m"}"#.to_owned(), MessageConcern::Client),
        (r#""method":"notifications/progress","params":{"progressToken":1}"#.to_owned(), MessageConcern::Unsure),
        (r#""method":"notifications/cancelled","params":{"requestId":1}"#.to_owned(), MessageConcern::Unsure),
        (r#""method":"notifications/tools/list_changed""#.to_owned(), MessageConcern::Client),
        (r#""id":1,"result":{}"#.to_owned(), MessageConcern::Client),
    ] {
        let text = Bytes::from(format!(r#"{{"jsonrpc":"2.0",{members}}}"#));
        let message = crate::wire::envelope::read(&text, ScanLimits::UPSTREAM).unwrap();
        assert_eq!(concern(&message), expected, "{members}");
    }
    for (text, is_about_one) in [
        (format!(r#"{{"jsonrpc":"2.0","method":"m",{related}}}"#), true),
        (r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","_meta":{}}"#.to_owned(), true),
        (r#"{"jsonrpc":"2.0","method":"m","_meta":{}}"#.to_owned(), false),
        ("[]".to_owned(), false),
    ] {
        assert_eq!(concerns_a_task(&Bytes::from(text.clone())), is_about_one, "{text}");
    }
}
