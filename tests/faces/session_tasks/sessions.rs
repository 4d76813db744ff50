//! Tasks and the session that they were made in: it may be lost, ended, or moved.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use tokio::sync::Semaphore;

use super::client::TestGateway;
use super::talk::{ManualSetup, SessionUser};
use super::upstream::{ScriptedServer, SeenRequest, answer, status, whole};

/// T-31: tasks outlive the session, and the upstream's session stays open until they have ended.
#[tokio::test]
async fn t_31_the_end_of_a_session_waits_for_its_tasks() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let other = stage.person().await;
    let tasks = [person.start().await["taskId"].clone(), person.start().await["taskId"].clone()];
    let calls = [stage.call().await, stage.call().await];
    assert_eq!(person.client.delete().await.status, StatusCode::OK);
    assert_eq!(person.request(1, "tasks/get", &json!({"taskId": tasks[0]})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(other.task(&tasks[0]).await["status"], "working", "its owner reads it in another session");
    let [first, second] = calls;
    first.answer(&json!({"content": []}));
    second.ask(&json!(0), "roots/list", &json!({}));
    other.until(&tasks[1], "input_required").await;
    let deletes = || stage.server.world.all(|seen| seen.method == "DELETE");
    assert_eq!(deletes().len(), 0, "a task still runs");
    second.answer(&json!({"content": []}));
    other.until(&tasks[1], "completed").await;
    let ended = stage.server.world.first(|seen| seen.method == "DELETE").await;
    assert_eq!(ended.header("mcp-session-id"), Some("s-1"));
    assert_eq!(deletes().len(), 1);
    assert_eq!(other.client.delete().await.status, StatusCode::OK, "nothing runs here");
    stage.server.world.first(|seen| seen.method == "DELETE" && seen.header("mcp-session-id") == Some("s-2")).await;
}

/// B267: the session's call ends while, or after, the new session is opened.
#[tokio::test]
async fn b267_a_session_with_calls_that_ends_while_it_is_opened_anew_ends_at_its_server() {
    let (handshakes, calls) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(0)));
    let server = ScriptedServer::slow({
        let (handshakes, calls) = (Arc::clone(&handshakes), Arc::clone(&calls));
        move |seen, _| {
            let (handshakes, calls) = (Arc::clone(&handshakes), Arc::clone(&calls));
            async move {
                match seen.rpc() {
                    "initialize" => handshakes.acquire().await.unwrap().forget(),
                    "tools/call" => calls.acquire().await.unwrap().forget(),
                    _ => (),
                }
                let tool = json!({"name": "work", "inputSchema": {"type": "object"}});
                match (seen.rpc(), seen.header("mcp-session-id")) {
                    ("tools/list", _) => Some(answer(&seen, &json!({"tools": [tool]}))),
                    ("prompts/list", Some("s-1")) => Some(status(404)),
                    _ => None,
                }
            }
        }
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let person = SessionUser::meet(&gate, "2025-11-25", &json!({})).await;
    person.start().await;
    server.world.first(SeenRequest::is_call).await;
    let ended = async {
        server.world.nth(1, |seen| seen.rpc() == "initialize").await;
        assert_eq!(person.client.delete().await.status, StatusCode::OK);
        handshakes.add_permits(1);
        calls.add_permits(1);
    };
    let nothing = json!({});
    let (_, ()) = tokio::join!(person.request(5, "prompts/list", &nothing), ended);
    server.world.first(|seen| seen.method == "DELETE" && seen.header("mcp-session-id") == Some("s-2")).await;
}

/// Design: a lost session is renewed once, and the call that it refused is sent once more.
#[tokio::test]
async fn a_call_that_met_a_lost_session_is_sent_once_more_in_a_new_one() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    // Then the gateway need not list the tools, and the call itself meets the lost session.
    person.answered("tools/list", &json!({})).await;
    stage.server.world.forget();
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    assert_eq!(call.seen.header("mcp-session-id"), Some("s-2"));
    let sent = stage.server.world.all(|seen| seen.is_call());
    assert_eq!(sent.len(), 2, "once refused, once taken");
    assert_eq!(sent[0].body["id"], sent[1].body["id"]);
    call.answer(&json!({"content": []}));
    person.until(&task, "completed").await;
    let answer = person.client.post(super::client::call(1));
    let (reply, arrived) = tokio::join!(answer, async {
        let arrived = stage.call().await;
        assert_eq!(arrived.seen.header("mcp-session-id"), Some("s-2"), "the pipe knows it too");
        arrived.answer(&json!({}));
    });
    let () = arrived;
    assert_eq!(reply.status, StatusCode::OK);
}

/// UPC-29: a refusal counts once, and any answer in the session resets the count.
#[tokio::test]
async fn refusals_of_tasks_and_answers_in_one_session_are_counted_together() {
    let server = ScriptedServer::start(|seen| {
        if seen.rpc() == "tools/list" {
            let tool = json!({"name": "work", "inputSchema": {"type": "object"}});
            return Some(answer(seen, &json!({"tools": [tool]})));
        }
        let is_refused = seen.body["params"]["arguments"]["refuse"] == true;
        is_refused.then(|| {
            let mut reply = whole("who are you?");
            *reply.status_mut() = StatusCode::BAD_REQUEST;
            reply
        })
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let person = SessionUser::meet(&gate, "2025-11-25", &json!({})).await;
    for (refuse, status, pings) in [
        (true, "failed", 0),
        (false, "completed", 0),
        (true, "failed", 0),
        (true, "failed", 1),
        (false, "completed", 1),
    ] {
        let params = json!({"name": "work", "arguments": {"refuse": refuse}, "task": {}});
        let task = person.start_with(&params).await["taskId"].clone();
        person.until(&task, status).await;
        assert_eq!(server.world.count("ping"), pings, "{refuse}");
    }
}

/// A question goes to that session of the client in which it last polled the task.
#[tokio::test]
async fn a_question_goes_to_the_session_that_asked_last() {
    let (stage, _person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let other: SessionUser = stage.person().await;
    let mut own = other.listen().await;
    assert_eq!(other.task(&task).await["status"], "working");
    call.ask(&json!(0), "roots/list", &json!({}));
    let question = own.next_of("roots/list").await;
    other.respond(&question["id"], &json!({"roots": []})).await;
    other.until(&task, "working").await;
}
