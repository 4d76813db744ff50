//! Tables of names and arguments, and the replies for a task in each phase.

use std::collections::BTreeMap;

use super::*;
use crate::store::contract::task;
use crate::task::{Executed, Failure, GatewayFault, InputKey, Reason};
use crate::wire::ScanLimits;

const ID: &str = "0123456789abcdef0123456789abcdef";

fn payload(text: &str) -> Payload {
    Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
}

fn in_phase(phase: Phase) -> Task {
    let mut one = task("local", u128::from_str_radix(ID, 16).unwrap());
    one.phase = phase;
    one
}

fn returned(result: &str, is_error: bool) -> Phase {
    Phase::Settled(Outcome::Returned { result: payload(result), is_error })
}

#[test]
fn a_name_may_stand_for_a_tool_behind_any_number_of_prefixes_below_the_bound() {
    for tool in FallbackTool::ALL {
        for level in 0..LEVELS {
            assert_eq!(FallbackTool::named(&tool.name(level)), Some(FallbackToolName { tool, level }));
            assert!(tool.name(level).len() <= 64, "the names of tools are bounded");
        }
        assert_eq!(FallbackTool::named(&tool.name(LEVELS)), None);
    }
    for other in ["", "task_stat", "Task_status", "taskgate_", "xtaskgate_task_status", "task_status "] {
        assert_eq!(FallbackTool::named(other), None, "{other}");
    }
}

#[test]
fn a_wait_is_read_with_its_default_and_cut_down_to_its_bound() {
    let asked = |text: &str| FallbackToolArguments::read(FallbackTool::Result, Object::of(&payload(text)).as_ref());
    let id = Some(TaskId::parse(ID).unwrap());
    for (arguments, wait) in [
        (format!(r#"{{"id":"{ID}"}}"#), WAIT_DEFAULT),
        (format!(r#"{{"id":"{ID}","wait_seconds":0}}"#), Duration::ZERO),
        (format!(r#"{{"id":"{ID}","wait_seconds":1.5}}"#), Duration::from_millis(1500)),
        (format!(r#"{{"id":"{ID}","wait_seconds":1e300}}"#), WAIT_MAX),
    ] {
        assert_eq!(asked(&arguments), Ok(FallbackToolArguments { id, wait }), "{arguments}");
    }
    assert_eq!(
        asked(r#"{"id":"mine"}"#).map(|asked| asked.id),
        Ok(None),
        "an id that cannot be ours is read all the same"
    );
    for wrong in [
        "{}",
        r#"{"id":""}"#,
        r#"{"id":7}"#,
        r#"{"id":"a\u0000"}"#,
        r#"{"id":"a","wait_seconds":-1}"#,
        r#"{"id":"a","wait_seconds":"1"}"#,
        r#"{"id":"a","wait_seconds":null}"#,
    ] {
        assert!(asked(wrong).unwrap_err().contains("must be"), "{wrong}");
    }
    assert!(FallbackToolArguments::read(FallbackTool::Status, None).is_err());
}

#[test]
fn the_result_of_a_task_is_the_tools_own_byte_for_byte() {
    let tools = FallbackTools::for_session(0);
    for (result, is_error) in [
        (r#"{"content":[{"type":"text","text":"b"} ],"structuredContent":{"n":1.10},"_meta":{"x":1}}"#, false),
        (r#"{"content":[],"isError":true}"#, true),
    ] {
        let shown = tools.encode(TaskReply::Outcome(&in_phase(returned(result, is_error)))).unwrap();
        assert_eq!(shown.as_str(), result);
    }
    let info = payload(r#"{"name":"s","version":"1"}"#);
    let stateless = FallbackTools::for_stateless(0, info);
    let shown = stateless.encode(TaskReply::Outcome(&in_phase(returned(r#"{"content":[]}"#, false)))).unwrap();
    assert!(shown.as_str().contains(r#""resultType":"complete""#), "{shown:?}");
}

#[track_caller]
fn check(reply: TaskReply<'_>, status: Option<&str>, texts: &[&str]) {
    let shown = FallbackTools::for_session(1).encode(reply).unwrap();
    let shown: serde_json::Value = serde_json::from_str(shown.as_str()).unwrap();
    let text = shown["content"][0]["text"].as_str().unwrap();
    for part in texts {
        assert!(text.contains(part), "{text}");
    }
    match status {
        Some(status) => {
            assert_eq!(shown["structuredContent"]["status"], status);
            assert_eq!(shown["structuredContent"]["taskId"], ID);
            assert_eq!(shown.get("isError"), None);
        }
        None => assert_eq!(shown["isError"], true),
    }
}

#[test]
fn every_phase_has_a_text_that_names_the_next_tool() {
    let question = Question {
        ask: payload("7"),
        request: payload(r#"{"method":"elicitation/create","params":{"message":"Which one?"}}"#),
    };
    let asks = in_phase(Phase::AwaitingInput(BTreeMap::from([(InputKey(1), question)])));
    let failed = Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown)));
    let (working, failed) = (in_phase(Phase::Working), in_phase(Phase::Settled(failed)));
    let completed = in_phase(returned(r#"{"content":[]}"#, false));
    let cancelled = in_phase(Phase::Settled(Outcome::Cancelled));
    check(
        TaskReply::Created(&working),
        Some("working"),
        &[ID, "taskgate_task_result", "taskgate_task_status", "taskgate_task_cancel"],
    );
    check(TaskReply::Snapshot(&in_phase(Phase::Queued)), Some("working"), &[ID, "turn"]);
    check(TaskReply::Snapshot(&working), Some("working"), &[ID, "still running", "taskgate_task_result"]);
    check(TaskReply::Outcome(&working), Some("working"), &["still running"]);
    check(TaskReply::Snapshot(&asks), Some("input_required"), &["Which one?"]);
    check(TaskReply::Outcome(&asks), Some("input_required"), &["Which one?"]);
    check(TaskReply::Snapshot(&completed), Some("completed"), &["completed"]);
    check(TaskReply::Snapshot(&failed), Some("failed"), &["failed"]);
    check(TaskReply::Outcome(&failed), None, &["failed", "-32603"]);
    check(TaskReply::Snapshot(&cancelled), Some("cancelled"), &["cancelled"]);
    check(TaskReply::Outcome(&cancelled), None, &["cancelled"]);
    check(TaskReply::Cancelled { task: &cancelled, was_settled: false }, Some("cancelled"), &["was cancelled"]);
    check(
        TaskReply::Cancelled { task: &completed, was_settled: true },
        Some("completed"),
        &["had ended before", "completed"],
    );
}

#[test]
fn structured_content_fits_the_schema_that_the_list_states() {
    let schema =
        |tool: FallbackTool| -> serde_json::Value { serde_json::from_str(tool.definition(0).as_str()).unwrap() };
    for tool in [FallbackTool::Status, FallbackTool::Cancel] {
        let schema = &schema(tool)["outputSchema"];
        let content: serde_json::Value =
            serde_json::from_str(status_content(&in_phase(Phase::Working)).as_str()).unwrap();
        for required in schema["required"].as_array().unwrap() {
            assert!(content.get(required.as_str().unwrap()).is_some(), "{required}");
        }
        for member in content.as_object().unwrap().keys() {
            assert!(schema["properties"].get(member).is_some(), "{member}");
        }
    }
    assert_eq!(schema(FallbackTool::Result).get("outputSchema"), None, "its result is another tool's");
}
