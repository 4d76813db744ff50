//! Tables of requests and responses.

use std::time::Duration;

use super::*;
use crate::store::contract::task;
use crate::task::{Executed, InputKey, Question};
use crate::wire::{ScanLimits, rpc_error};

fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
}

fn params(text: &str) -> Object {
    Object::of(&payload(text)).unwrap()
}

fn chosen(text: &str) -> ChosenId {
    ChosenId { session: SessionScope(7), text: Arc::from(text) }
}

fn in_phase(phase: Phase) -> Task {
    let chosen = chosen("mine");
    let mut task = task("someone", 1);
    task.key.id = chosen.task_id();
    Task { chosen: Some(chosen), phase, keep_result_min: Duration::from_secs(60), ..task }
}

fn faulted(reason: Reason) -> Phase {
    Phase::Settled(Outcome::Faulted(Failure::Gateway(GatewayFault::new(reason, Executed::Unknown))))
}

fn returned(result: &str, is_error: bool) -> Phase {
    Phase::Settled(Outcome::Returned { result: payload(result), is_error })
}

/// D86-07 to D86-09, D86-13, D86-15, D86-25, D86-26: each phase's status in the draft, and its result.
#[test]
fn d86_09_every_phase_has_its_word_and_unknown_is_that_of_damage_alone() {
    let dialect = DraftTasks::for_call(&chosen("mine"));
    let question = Question { ask: payload("1"), request: payload(r#"{"method":"roots/list"}"#) };
    let upstream = Failure::Upstream(RpcError::new(-32001, "no such page"));
    let restarted = "The gateway restarted while the tool was running; it may or may not have completed";
    let damaged = "The task's stored record is damaged";
    for (phase, word, error, is_fetched) in [
        (Phase::Queued, "submitted", None, false),
        (Phase::Working, "working", None, false),
        (Phase::AwaitingInput([(InputKey(0), question)].into()), "input_required", None, false),
        (returned("{}", false), "completed", None, true),
        (returned("{}", true), "completed", None, true),
        (Phase::Settled(Outcome::Faulted(upstream)), "failed", Some("no such page"), false),
        (faulted(Reason::GatewayRestart), "failed", Some(restarted), false),
        (faulted(Reason::StoreCorrupt), "unknown", Some(damaged), false),
        (Phase::Settled(Outcome::Cancelled), "cancelled", None, false),
    ] {
        let task = in_phase(phase);
        let shown = Object::of(&dialect.encode(TaskReply::Snapshot(&task)).unwrap()).unwrap();
        assert_eq!(shown.get_string("status").as_deref(), Some(word));
        assert_eq!(shown.get("keepAlive").unwrap().as_str(), "60000", "{word}");
        let said = shown.get_string("error");
        assert_eq!(said.is_some(), error.is_some(), "{word}: {said:?}");
        assert!(said.unwrap_or_default().starts_with(error.unwrap_or_default()), "{word}");
        match dialect.encode(TaskReply::Fetched(&task)) {
            Ok(result) => {
                assert!(is_fetched, "{word}");
                assert_eq!(result.as_str(), r#"{"_meta":{"modelcontextprotocol.io/related-task":{"taskId":"mine"}}}"#);
            }
            Err(error) => {
                assert!(!is_fetched, "{word}");
                assert_eq!(error.code, rpc_error::INVALID_PARAMS, "{word}");
                assert!(error.message.ends_with(word), "{}", error.message);
            }
        }
    }
}

/// T-36: an id is another task in another session, and another id is another task in the same session.
#[test]
fn t_36_a_key_follows_from_the_session_and_the_words() {
    let key = |session, text: &str| ChosenId { session: SessionScope(session), text: Arc::from(text) }.task_id();
    assert_eq!(key(7, "mine"), key(7, "mine"));
    let all = [key(7, "mine"), key(8, "mine"), key(7, "mine "), key(7, "Mine"), key(7, "")];
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    let dialect = DraftTasks::for_request(SessionScope(7), &params(r#"{"taskId":"mine"}"#));
    let named = params(r#"{"taskId":"mine","_meta":{"modelcontextprotocol.io/related-task":{"taskId":"other"}}}"#);
    for (method, command) in [
        (method::TASKS_GET, TaskCommand::Get(key(7, "mine"))),
        (method::TASKS_RESULT, TaskCommand::Fetch(key(7, "mine"))),
        (method::TASKS_DELETE, TaskCommand::Delete(key(7, "mine"))),
        (method::TASKS_CANCEL, TaskCommand::Cancel(key(7, "mine"))),
    ] {
        assert!(DraftTasks::is_method(method));
        assert_eq!(dialect.decode(method, &named), Ok(command), "{method}");
    }
    assert!(!DraftTasks::is_method(method::TASKS_UPDATE));
}

/// A damaged task has lost its id: the request has it.
#[test]
fn a_task_whose_record_is_damaged_is_shown_under_the_id_that_was_asked_for() {
    let task = Task { chosen: None, ..in_phase(faulted(Reason::StoreCorrupt)) };
    let dialect = DraftTasks::for_request(SessionScope(7), &params(r#"{"taskId":"mine"}"#));
    let shown = dialect.encode(TaskReply::Snapshot(&task)).unwrap();
    assert!(shown.as_str().starts_with(r#"{"taskId":"mine","status":"unknown","#), "{}", shown.as_str());
}

/// D86-13, D86-29.
#[test]
fn a_span_is_the_requested_one_up_to_the_bound() {
    let (default, max) = (Duration::from_secs(900), Duration::from_secs(3600));
    for (member, span) in [
        ("", 900_000),
        (r#","keepAlive":0"#, 0),
        (r#","keepAlive":1500.0"#, 1500),
        (r#","keepAlive":3600001"#, 3_600_000),
        (r#","keepAlive":1e300"#, 3_600_000),
        (r#","keepAlive":null"#, 3_600_000),
    ] {
        let text = format!(r#"{{"_meta":{{"modelcontextprotocol.io/task":{{"taskId":"mine"{member}}}}}}}"#);
        let wish = RequestedTask::read(&params(&text)).unwrap().unwrap();
        assert_eq!(wish.keep_alive(default, max), Duration::from_millis(span), "{member}");
    }
}
