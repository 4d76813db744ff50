//! Bad calls and task methods (B119 to B135).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::gate::{Ask, Gate, Row, check_rows};
use super::odd::RESULTS;

const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

fn get(id: impl Into<Value>) -> Ask {
    Ask::new("tasks/get", json!({ "taskId": id.into() }))
}

/// B119, B120, B123, EXT-33, EXT-38, EXT-45.
#[tokio::test]
async fn ids_that_cannot_be_ours_name_no_task() {
    let refused = "200 -32602 id=7";
    let mut rows: Vec<Row<'_>> = vec![
        ("B119 missing", Ask::new("tasks/get", json!({})), refused),
        ("B119 number", get(7), refused),
        ("B119 empty", get(""), refused),
        ("B119 too long", get("x".repeat(129)), refused),
        ("B119 path", get("../../x"), refused),
        ("B119 newline", get("0123456789abcdef0123456789abcde\n"), refused),
        ("B123 case", get(UNKNOWN.to_uppercase()), refused),
        ("B123 URL-encoded", get("%30123456789abcdef0123456789abcdef"), refused),
    ];
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        rows.push(("B120", Ask::new(method, json!({ "taskId": UNKNOWN, "inputResponses": {} })), refused));
    }
    check_rows(&rows).await;
}

/// B120, B123: one answer for all that is not there.
#[tokio::test]
async fn an_id_with_one_bit_flipped_is_answered_like_an_unknown_one() {
    let gate = Gate::start().await;
    let handle = gate.result(&Ask::call("slow_report", json!({ "seconds": 30 }))).await;
    let id = handle["taskId"].as_str().unwrap();
    let last = if id.ends_with('0') { '1' } else { '0' };
    let flipped = format!("{}{last}", &id[..31]);
    let unknown = gate.send(&get(UNKNOWN)).await;
    for wrong in [flipped, id.to_uppercase().replace(char::is_numeric, "A"), format!("%3{id}")] {
        assert_eq!(gate.send(&get(wrong)).await.text(), unknown.text());
    }
    assert_eq!(unknown.json()["error"]["message"], "Task not found");
}

/// B134. A tool that no list names is the server's to answer (T-72); where tools are hidden it is unknown.
#[tokio::test]
async fn calls_without_a_name_or_proper_arguments_are_refused_before_anything_is_sent() {
    let refused = "200 -32602 id=7";
    let call = |params: Value| Ask::new("tools/call", params);
    let rows: &[Row<'_>] = &[
        ("an empty name", call(json!({ "name": "" })).with("Mcp-Name", ""), refused),
        ("no name", call(json!({})).with("Mcp-Name", "greet"), refused),
        ("name 7", call(json!({ "name": 7 })).with("Mcp-Name", "7"), refused),
        ("B134 array", Ask::call("greet", json!([])), refused),
        ("B134 text", Ask::call("greet", json!("x")), refused),
        ("B134 null", Ask::call("greet", json!(null)), refused),
        ("the tool's own refusal", Ask::call("greet", json!({ "name": 7 })), refused),
        ("without arguments", call(json!({ "name": "fail" })), "200 ok id=7"),
        ("a cursor that we never gave", Ask::new("tools/list", json!({ "cursor": "x" })), refused),
    ];
    check_rows(rows).await;
}

/// EXT-10, EXT-37, EXT-39, B127, B129, B131.
#[tokio::test]
async fn updates_are_acknowledged_and_answers_to_unknown_questions_ignored() {
    let gate = Gate::start().await;
    let handle = gate.result(&Ask::call("slow_report", json!({ "seconds": 30 }))).await;
    let id = handle["taskId"].as_str().unwrap();
    let update = |responses: Value| Ask::new("tasks/update", json!({ "taskId": id, "inputResponses": responses }));
    for responses in [json!({}), json!({ "r0": { "action": "accept" } }), json!({ "never": 7, "r00": [] })] {
        let ack = gate.result(&update(responses)).await;
        check_ack(&ack);
    }
    for wrong in [json!([]), json!("x"), json!(null), json!({ "r0": "x" })] {
        assert_eq!(gate.send(&update(wrong)).await.summary(), "200 -32602 id=7");
    }
    assert_eq!(gate.result(&get(id)).await["status"], "working");
    check_ack(&gate.result(&Ask::new("tasks/cancel", json!({ "taskId": id }))).await);
    check_ack(&gate.result(&update(json!({ "r0": {} }))).await);
    assert_eq!(gate.result(&get(id)).await["status"], "cancelled");
}

/// EXT-08, EXT-11, EXT-37, EXT-44: nothing but the members that every result has.
#[track_caller]
fn check_ack(ack: &Value) {
    let members: BTreeSet<_> = ack.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, BTreeSet::from(["_meta", "resultType"]));
    assert_eq!(ack["resultType"], "complete");
}

/// EXT-09, EXT-16, EXT-17, EXT-68, EXT-71, EXT-73, B125, B126: polled as fast as it goes, to the end and beyond.
#[tokio::test]
async fn a_task_is_polled_to_its_result_and_then_stays() {
    let gate = Gate::start().await;
    let ask = Ask::call("slow_report", json!({ "seconds": 1, "steps": 2 }));
    let handle = gate.result(&ask).await;
    assert_eq!(handle["resultType"], "task");
    let id = handle["taskId"].as_str().unwrap();
    let task = loop {
        let task = gate.result(&get(id)).await;
        assert_eq!(task["resultType"], "complete");
        for key in ["createdAt", "lastUpdatedAt"] {
            let text = task[key].as_str().unwrap();
            assert!(text.len() == 24 && text.ends_with('Z') && text.as_bytes()[10] == b'T', "{text}");
        }
        assert!(task["ttlMs"].is_u64() && task["pollIntervalMs"].is_u64());
        for key in ["ttl", "pollInterval", "requestState", "task"] {
            assert!(task.get(key).is_none(), "{key} in {task}");
        }
        if task["status"] != "working" {
            break task;
        }
    };
    assert_eq!(task["status"], "completed");
    assert!(!task.to_string().contains("related-task"));
    for _ in 0..2 {
        check_ack(&gate.result(&Ask::new("tasks/cancel", json!({ "taskId": id }))).await);
        assert_eq!(gate.result(&get(id)).await, task);
    }
}

/// EXT-31, T-13, T-14: the inlined result is the upstream's, led by the one member that its type requires.
#[tokio::test]
async fn a_tasks_result_keeps_the_upstreams_bytes() {
    let gate = Gate::start().await;
    let handle = gate.result(&Ask::call("late", json!({})).at_odd()).await;
    let id = handle["taskId"].as_str().unwrap();
    let (_, written) = RESULTS[3];
    let expected = format!(r#""result":{{"resultType":"complete",{}"#, &written[1..]);
    let text = loop {
        let answer = gate.send(&get(id).at_odd()).await;
        if answer.json()["result"]["status"] != "working" {
            break answer.text().to_owned();
        }
    };
    assert!(text.contains(&expected), "{text}");
}

/// EXT-65, L25-52: ids look random and are never given out twice.
#[tokio::test]
async fn task_ids_are_32_hex_digits_that_do_not_follow_from_each_other() {
    let gate = Gate::start().await;
    let mut ids = BTreeSet::new();
    for _ in 0..20 {
        let handle = gate.result(&Ask::call("late", json!({})).at_odd()).await;
        let id = handle["taskId"].as_str().unwrap().to_owned();
        assert!(id.len() == 32 && id.bytes().all(|byte| b"0123456789abcdef".contains(&byte)), "{id}");
        ids.insert(id[..8].to_owned());
    }
    assert_eq!(ids.len(), 20, "ids that share their beginning");
}
