//! Golden texts of every task shape, and malformed requests.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::store::contract::task;
use crate::task::{Executed, Failure, GatewayFault, Question, Reason, TaskId};
use crate::wire::{RpcError, ScanLimits};

fn dialect() -> ExtTasks {
    ExtTasks::new(payload(r#"{"s":1}"#))
}

fn payload(text: &str) -> Payload {
    Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
}

fn params(text: &str) -> Object {
    Object::of(&payload(text)).unwrap()
}

/// Compares with a file under `tests/golden/ext_tasks`; `UPDATE_GOLDEN=1` writes it.
#[track_caller]
fn check(name: &str, reply: TaskReply<'_>) {
    check_text(name, &dialect().encode(reply).unwrap());
}

#[track_caller]
fn check_text(name: &str, encoded: &Payload) {
    let path = format!("{}/tests/golden/ext_tasks/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = format!("{}\n", encoded.as_str());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(text, expected, "{name}");
}

fn in_phase(phase: Phase) -> Task {
    let mut one = task("local", 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    one.updated_at = one.created_at.after(Duration::from_millis(1500));
    one.phase = phase;
    one
}

fn returned(result: &str, is_error: bool) -> Phase {
    Phase::Settled(Outcome::Returned { result: payload(result), is_error })
}

/// EXT-07 to EXT-11, EXT-15 to EXT-19, EXT-21 to EXT-32, EXT-37, EXT-44, EXT-73, T-04, T-13, T-14, T-26, T-63.
#[test]
fn every_shape_is_as_its_golden_file() {
    let mut working = in_phase(Phase::Working);
    check("created", TaskReply::Created(&working));
    check("working", TaskReply::Snapshot(&working));
    working.status_message = Some(Arc::from("3/10"));
    check("working_with_message", TaskReply::Snapshot(&working));
    check("created_with_message", TaskReply::Created(&working));
    check("queued", TaskReply::Snapshot(&in_phase(Phase::Queued)));
    let question =
        |n: u32| Question { ask: payload("7"), request: payload(&format!(r#"{{"method":"roots/list","n":{n}}}"#)) };
    let open = BTreeMap::from([(InputKey(1), question(1)), (InputKey(3), question(3))]);
    check("input_required", TaskReply::Snapshot(&in_phase(Phase::AwaitingInput(open))));
    check(
        "completed",
        TaskReply::Snapshot(&in_phase(returned(r#"{"content":[], "n":12345678901234567890123}"#, false))),
    );
    check("completed_empty", TaskReply::Snapshot(&in_phase(returned("{ }", false))));
    check("completed_tool_error", TaskReply::Snapshot(&in_phase(returned(r#"{"content":[],"isError":true}"#, true))));
    let upstream = Failure::Upstream(RpcError { code: -32050, message: "broke".into(), data: Some(payload("[1.10]")) });
    check("failed", TaskReply::Snapshot(&in_phase(Phase::Settled(Outcome::Faulted(upstream)))));
    let gateway = Failure::Gateway(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown));
    check("failed_gateway", TaskReply::Snapshot(&in_phase(Phase::Settled(Outcome::Faulted(gateway)))));
    let cancelled = in_phase(Phase::Settled(Outcome::Cancelled));
    check("cancelled", TaskReply::Snapshot(&cancelled));
    check("acknowledged", TaskReply::Answered);
    // EXT-71: too late or not, the acknowledgement is the same.
    check("acknowledged", TaskReply::Cancelled { task: &cancelled, was_settled: true });
    check("acknowledged", TaskReply::Cancelled { task: &cancelled, was_settled: false });
    let dir = format!("{}/tests/golden/ext_tasks", env!("CARGO_MANIFEST_DIR"));
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 14);
}

#[test]
fn settled_subtasks_are_listed_beside_their_parent() {
    let parent = in_phase(Phase::Working);
    let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
    let settled = [
        returned(r#"{"content":[], "n":1.10}"#, false),
        Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))),
        Phase::Settled(Outcome::Cancelled),
    ];
    let settled: Vec<_> = [0, 3, 7].into_iter().zip(settled.map(|phase| Arc::new(in_phase(phase)))).collect();
    check_text("working_with_subtasks", &dialect().snapshot_with(&parent, &settled).whole());
    let plain = dialect().encode(TaskReply::Snapshot(&parent)).unwrap();
    assert_eq!(dialect().snapshot_with(&parent, &[]).whole(), plain, "no member without a subtask");
}

const ID: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn each_method_asks_for_its_command() {
    let id = TaskId::parse(ID).unwrap();
    let decode = |method, text: String| dialect().decode(method, &params(&text));
    assert_eq!(decode(method::TASKS_GET, format!(r#"{{"taskId":"{ID}"}}"#)), Ok(TaskCommand::Get(id)));
    assert_eq!(decode(method::TASKS_CANCEL, format!(r#"{{"taskId":"{ID}"}}"#)), Ok(TaskCommand::Cancel(id)));
    let update = format!(r#"{{"taskId":"{ID}","inputResponses":{{"r0":{{"action":"accept"}},"r01":7,"other":7}}}}"#);
    let answers = BTreeMap::from([(InputKey(0), Answer::Result(payload(r#"{"action":"accept"}"#)))]);
    assert_eq!(decode(method::TASKS_UPDATE, update), Ok(TaskCommand::Answer(id, answers)));
    assert!(matches!(
        decode(method::TASKS_LIST, format!(r#"{{"taskId":"{ID}"}}"#)),
        Err(RequestError::UnknownMethod(_))
    ));
}

/// B119, B120, B123, EXT-33.
#[test]
fn ids_that_cannot_be_ours_are_unknown_and_unusable_ones_are_named() {
    let long = format!(r#"{{"taskId":"{}"}}"#, "x".repeat(129));
    for text in ["{}", r#"{"taskId":7}"#, r#"{"taskId":""}"#, r#"{"taskId":"a\nb"}"#, r#"{"taskId":null}"#, &long] {
        let Err(RequestError::Params(what)) = dialect().decode(method::TASKS_GET, &params(text)) else {
            panic!("{text} was accepted")
        };
        assert!(what.contains("taskId"), "{what}");
    }
    let upper = ID.to_uppercase();
    for id in ["../../x", "gate-test", upper.as_str(), "%30123456789abcdef0123456789abcde"] {
        let decoded = dialect().decode(method::TASKS_GET, &params(&format!(r#"{{"taskId":"{id}"}}"#)));
        assert_eq!(decoded, Err(RequestError::UnknownTask), "{id}");
    }
}

/// B129, EXT-39: keys that were never issued are ignored before their values are read.
#[test]
fn malformed_answers_are_named_and_foreign_keys_are_not_looked_at() {
    for responses in ["7", "null", "[]", r#"{"r0":7}"#, r#"{"r0":null}"#] {
        let text = format!(r#"{{"taskId":"{ID}","inputResponses":{responses}}}"#);
        let decoded = dialect().decode(method::TASKS_UPDATE, &params(&text));
        assert!(
            matches!(&decoded, Err(RequestError::Params(what)) if what.contains("inputResponses")),
            "{responses}: {decoded:?}"
        );
    }
    let foreign = format!(r#"{{"taskId":"{ID}","inputResponses":{{"unknown-key":{{"ignored":true}},"x":7}}}}"#);
    let id = TaskId::parse(ID).unwrap();
    assert_eq!(dialect().decode(method::TASKS_UPDATE, &params(&foreign)), Ok(TaskCommand::Answer(id, BTreeMap::new())));
}
