//! A server with subtasks (SEP-2268) that was written with an official SDK, behind the whole gateway.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use serde_json::{Value, json};
use support::peers::install::Peers;
use support::peers::upstream::{PeerServer, Program};
use support::session_client::TestGateway;
use support::talk::{RELATED, SessionMessages, SessionUser};

/// SUB-05 to SUB-07, SUB-13, SUB-14, SUB-18.
#[tokio::test]
async fn subtasks_of_a_typescript_server_are_followed_and_one_of_them_asks() {
    let what = "subtasks";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::TypeScriptSubtasks, &peers, what).await.unwrap();
    let gate = TestGateway::with(server.address, "[upstreams.up.tasks]\ndrafts = [\"sep-2268\"]\n").await;
    let person = SessionUser::meet(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let call = json!({"name": "survey", "arguments": {"places": ["Ghent", "Bruges", "Ypres"]}, "task": {}});
    let top = person.start_with(&call).await["taskId"].clone();
    let named = |task: &Value| task["childTaskIds"].as_array().map_or(0, Vec::len) == 3;
    let children = person.until_so(&top, named).await["childTaskIds"].as_array().unwrap().clone();
    person.until_so(&children[0], |task| task["status"] == "input_required").await;
    for child in &children[1..] {
        person.until_so(child, |task| task["status"] == "completed" && task["parentTaskId"] == top).await;
    }
    assert_eq!(person.task(&top).await["status"], "working");
    let mut waiting = SessionMessages::of(person.result(5, &children[0]).await);
    let question = waiting.next_of("elicitation/create").await;
    assert_eq!(question["params"]["message"], "Which part of Ghent?");
    assert_eq!(question["params"]["_meta"][RELATED], json!({"taskId": children[0], "parentTaskId": top}));
    person.respond(&question["id"], &json!({"action": "accept", "content": {"part": "north"}})).await;
    assert_eq!(waiting.rest().await.pop().unwrap()["result"]["content"][0]["text"], "accept: north");
    person.until_so(&top, |task| task["status"] == "completed").await;
    let result = person.answered("tasks/result", &json!({"taskId": top})).await["result"].clone();
    assert_eq!(result["content"][0]["text"], "accept: north, surveyed Bruges, surveyed Ypres");
}
