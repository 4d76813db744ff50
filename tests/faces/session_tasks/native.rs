//! Session clients in front of a server with tasks of its own: their calls become such tasks where the tool wants it,
//! and nothing of them shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Reply, TestGateway};
use super::in_time;
use super::relay::{Relay, id_of};
use super::talk::{RELATED, SessionMessages, SessionUser};
use super::upstream::{Once, ScriptedServer, SeenRequest, status};

const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const ASK: &str = "elicitation/create";

fn call(tool: &str) -> Value {
    json!({"name": tool, "arguments": {"n": 1.5}})
}

fn done() -> Value {
    json!({"result": {"content": [{"type": "text", "text": "done"}], "x": 1}})
}

fn form() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    json!({"jsonrpc": "2.0", "id": 7, "method": ASK, "params": {"message": "who?", "requestedSchema": schema}})
}

async fn meet(gate: &TestGateway, version: &str) -> SessionUser {
    SessionUser::meet(gate, version, &json!({"elicitation": {}})).await
}

/// Begins a plain call; its answer comes when the test has seen to it.
fn begin(person: &SessionUser, id: u32, params: &Value) -> tokio::task::JoinHandle<Reply> {
    let (person, params) = (person.clone(), params.clone());
    let tracker = person.client.connections.clone();
    tracker.spawn(async move { person.request(id, "tools/call", &params).await })
}

/// The answer to a call, in any form.
async fn answer_of(reply: Reply) -> Value {
    assert_eq!(reply.status, StatusCode::OK);
    if reply.header("content-type") == Some("application/json") {
        return reply.json().await;
    }
    SessionMessages::of(reply).rest().await.pop().expect("the stream ends with the answer")
}

/// UPC-05, L25-05, GW-11: no client has listed the tools before.
#[tokio::test]
async fn upc_05_a_plain_call_of_a_tool_that_runs_only_as_a_task_is_driven_to_its_end() {
    for version in VERSIONS {
        let relay = Relay::new().await;
        let person = meet(&relay.gate, version).await;
        let calling = begin(&person, 4, &call("must"));
        let made = relay.made(0).await;
        assert_eq!(made.body["params"]["task"], json!({"ttl": 3_600_000}), "as long as the call may run: {version}");
        assert_eq!(made.body["params"]["arguments"], json!({"n": 1.5}));
        assert_eq!(made.header("mcp-protocol-version"), Some("2025-11-25"), "no older version has tasks");
        if version == "2025-11-25" {
            assert_eq!(made.header("mcp-session-id"), Some("s-1"), "in the client's own session");
        }
        relay.end(0, "completed", &done());
        let answer = answer_of(in_time(calling).await.unwrap()).await;
        assert_eq!(answer["id"], 4, "{version}");
        assert_eq!(answer["result"], done()["result"], "{version}: nothing of the task shows");
        assert_eq!(relay.server.world.count("tasks/cancel"), 0);
    }
}

/// GW-42: the facts about a session are in its id.
#[tokio::test]
async fn a_tool_that_runs_only_as_a_task_is_driven_after_a_restart_too() {
    let relay = Relay::new().await;
    let mut person = meet(&relay.gate, "2025-11-25").await;
    let next = TestGateway::before(&relay.server).await;
    person.client.address = next.gateway.address();
    let calling = begin(&person, 4, &call("must"));
    assert_eq!(relay.made(0).await.header("mcp-session-id"), Some("s-1"));
    relay.end(0, "completed", &done());
    assert_eq!(answer_of(in_time(calling).await.unwrap()).await["result"], done()["result"]);
}

/// T-01, T-14: a tool's error passes unchanged.
#[tokio::test]
async fn errors_of_a_driven_call_are_the_servers_own() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-06-18").await;
    let broke = json!({"result": {"content": [{"type": "text", "text": "it broke"}], "isError": true}});
    let error = json!({"error": {"code": 4711, "message": "bad luck", "data": [1.10]}});
    for (n, end) in [broke, error].iter().enumerate() {
        let calling = begin(&person, 4, &call("must"));
        relay.made(n).await;
        relay.end(n, "failed", end);
        let answer = answer_of(in_time(calling).await.unwrap()).await;
        assert_eq!((&answer["result"], &answer["error"]), (&end["result"], &end["error"]));
    }
    let calling = begin(&person, 4, &call("must"));
    relay.made(2).await;
    relay.stands(2, "cancelled");
    let answer = answer_of(in_time(calling).await.unwrap()).await;
    assert_eq!(answer["error"]["code"], -32603, "GW-31: {answer}");
}

/// GW-11, GW-30: whether the server makes a task is its tool's affair, not the client's.
#[tokio::test]
async fn upc_05_a_call_that_asks_for_a_task_is_one_at_the_server_where_its_tool_can_be() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    for (n, tool) in ["must", "may"].iter().enumerate() {
        let mut params = call(tool);
        params["task"] = json!({"ttl": 60_000});
        let task = person.start_with(&params).await["taskId"].clone();
        assert_ne!(task, json!(id_of(n)), "T-67");
        let made = relay.made(n).await;
        assert_eq!(
            made.body["params"]["task"],
            json!({"ttl": 3_600_000}),
            "{tool}: the client's ttl is for the client"
        );
        assert_eq!(made.header("mcp-session-id"), Some("s-1"));
        relay.end(n, "completed", &done());
        person.until(&task, "completed").await;
        let reply = person.result(5, &task).await.json().await;
        assert_eq!(reply["result"]["_meta"][RELATED]["taskId"], task, "{reply}");
    }
    let mut params = call("plain");
    params["task"] = json!({});
    let task = person.start_with(&params).await["taskId"].clone();
    person.until(&task, "completed").await;
    let world = &relay.server.world;
    assert_eq!(world.all(|seen| seen.is_call() && seen.body["params"]["name"] == "plain").len(), 1);
    assert_eq!(world.all(|seen| seen.is_call() && seen.body["params"]["task"].is_object()).len(), 2);
}

/// GW-11: optional stays plain for a plain client, and through the pipe.
#[tokio::test]
async fn plain_calls_of_other_tools_are_passed_on_as_they_came() {
    let relay = Relay::new().await;
    for version in VERSIONS {
        let person = meet(&relay.gate, version).await;
        for tool in ["may", "plain", "unheard_of"] {
            assert_eq!(answer_of(person.request(9, "tools/call", &call(tool)).await).await["result"]["n"], 1.5);
        }
    }
    let calls = relay.server.world.all(SeenRequest::is_call);
    assert!(calls.iter().all(|seen| seen.body["id"] == 9 && seen.body["params"]["task"].is_null()));
}

/// Servers without tasks are not asked for anything more than whether there is such a tool, in the client's own session
/// (T-72).
#[tokio::test]
async fn a_server_without_tasks_is_asked_nothing_about_its_tools() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let person = meet(&gate, "2025-11-25").await;
    person.answered("tools/call", &call("must")).await;
    let mut params = call("must");
    params["task"] = json!({});
    let task = person.start_with(&params).await["taskId"].clone();
    person.until(&task, "completed").await;
    assert_eq!((server.world.count("tools/list"), server.world.count("initialize")), (1, 1));
}

/// UPC-06, LEG-14.
#[tokio::test]
async fn upc_06_a_cancelled_call_is_cancelled_as_the_task_that_it_is() {
    for version in VERSIONS {
        let relay = Relay::new().await;
        let person = meet(&relay.gate, version).await;
        let calling = begin(&person, 4, &call("must"));
        relay.made(0).await;
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}});
        assert_eq!(person.client.post(notice.to_string()).await.status, StatusCode::ACCEPTED);
        let told = relay.server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
        assert_eq!(told.body["params"], json!({"taskId": id_of(0)}), "{version}");
        assert_eq!(in_time(calling).await.unwrap().text().await, "", "LEG-14: no response");
        assert_eq!(relay.server.world.count("notifications/cancelled"), 0, "{version}");
    }
}

/// LEG-14: no server has it yet that could get the cancel.
#[tokio::test]
async fn leg_14_a_call_that_is_cancelled_while_its_tool_is_looked_up_is_not_made() {
    for (tool, is_task) in [("must", false), ("plain", false), ("may", true)] {
        let relay = Relay::new().await;
        let person = meet(&relay.gate, "2025-11-25").await;
        relay.hide_tools();
        let mut params = call(tool);
        if is_task {
            params["task"] = json!({});
        }
        let calling = begin(&person, 4, &params);
        relay.server.world.first(|seen| seen.rpc() == "tools/list").await;
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}});
        assert_eq!(person.client.post(notice.to_string()).await.status, StatusCode::ACCEPTED);
        relay.show_tools();
        assert_eq!(in_time(calling).await.unwrap().text().await, "", "{tool}: no response");
        assert_eq!(relay.server.world.all(|seen| seen.is_call()).len(), 0, "{tool}");
        let again = begin(&person, 4, &call("plain"));
        assert_eq!(answer_of(in_time(again).await.unwrap()).await["result"], json!({"n": 1.5}), "another of this id");
    }
}

#[tokio::test]
async fn upc_06_a_cancelled_task_is_cancelled_as_one_at_the_server_too() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let mut params = call("must");
    params["task"] = json!({});
    let task = person.start_with(&params).await["taskId"].clone();
    relay.made(0).await;
    assert_eq!(person.answered("tasks/cancel", &json!({"taskId": task})).await["result"]["status"], "cancelled");
    let told = relay.server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(told.body["params"]["taskId"], id_of(0));
    assert_eq!(relay.server.world.count("notifications/cancelled"), 0);
}

/// T-81, T-31: a client that leaves cancels nothing; one that ends its session does, before the session ends.
#[tokio::test]
async fn t_81_a_client_that_leaves_cancels_nothing_and_one_that_ends_its_session_does() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    calling.abort();
    relay.server.world.nth(2, |seen| seen.rpc() == "tasks/get").await;
    assert_eq!(relay.server.world.count("tasks/cancel"), 0);
    assert_eq!(person.client.delete().await.status, StatusCode::OK);
    relay.server.world.first(|seen| seen.method == "DELETE" && seen.header("mcp-session-id") == Some("s-1")).await;
    let about = relay.server.world.all(|seen| seen.rpc() == "tasks/cancel" || seen.method == "DELETE");
    assert_eq!(about[0].rpc(), "tasks/cancel");
}

/// A session that the server does not end goes on, and so do the calls that the gateway drives in it.
#[tokio::test]
async fn calls_go_on_in_a_session_that_the_server_does_not_end() {
    let relay = Relay::new().await;
    relay.keep_sessions();
    let person = meet(&relay.gate, "2025-06-18").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    assert_eq!(person.client.delete().await.status, StatusCode::METHOD_NOT_ALLOWED);
    relay.end(0, "completed", &done());
    assert_eq!(answer_of(in_time(calling).await.unwrap()).await["result"], done()["result"]);
    assert_eq!(relay.server.world.count("tasks/cancel"), 0);
}

/// UPC-07, UPC-08.
#[tokio::test]
async fn upc_08_a_question_of_a_driven_call_is_asked_on_its_stream() {
    for version in ["2025-11-25", "2025-06-18"] {
        let relay = Relay::new().await;
        let person = meet(&relay.gate, version).await;
        relay.ask(form());
        let calling = begin(&person, 4, &call("must"));
        relay.made(0).await;
        relay.stands(0, "input_required");
        let mut stream = SessionMessages::of(in_time(calling).await.unwrap());
        let question = stream.next_of(ASK).await;
        assert!(question["id"].as_str().unwrap().starts_with("tg:"), "{question}");
        assert_eq!((&question["params"]["message"], &question["params"]["_meta"]), (&json!("who?"), &Value::Null));
        person.respond(&question["id"], &json!({"action": "accept", "content": {"name": "Ada"}})).await;
        let told = relay.server.world.first(|seen| seen.body["id"] == 7 && seen.rpc().is_empty()).await;
        assert_eq!(told.body["result"]["content"], json!({"name": "Ada"}));
        assert_eq!(told.body["result"]["_meta"][RELATED], json!({"taskId": id_of(0)}));
        relay.end(0, "completed", &done());
        let rest = stream.rest().await;
        assert_eq!(rest.last().unwrap()["result"], done()["result"], "{version}: {rest:?}");
    }
}

/// T-67, T-20: a server's messages about its tasks on the session's stream are for the gateway.
#[tokio::test]
async fn t_67_the_sessions_stream_tells_a_client_nothing_of_the_servers_tasks() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let mut own = person.listen().await;
    let mut params = call("must");
    params["_meta"] = json!({"progressToken": "p"});
    let calling = begin(&person, 4, &params);
    let made = relay.made(0).await;
    relay.server.world.first(|seen| seen.rpc() == "tasks/get").await;
    let related = json!({RELATED: {"taskId": id_of(0)}});
    let status = json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": {"taskId": id_of(0)}});
    relay.send(&status);
    // As FastMCP 3.4 writes it.
    let mut odd = status.clone();
    odd["_meta"] = related.clone();
    relay.send(&odd);
    let token = &made.body["params"]["_meta"]["progressToken"];
    relay.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1, "_meta": related}}));
    let mut stream = SessionMessages::of(in_time(calling).await.unwrap());
    let progress = stream.next_of("notifications/progress").await;
    assert_eq!(progress["params"], json!({"progressToken": "p", "progress": 1}));
    let mut question = form();
    question["params"]["_meta"] = related.clone();
    relay.send(&question);
    let asked = stream.next_of(ASK).await;
    person.respond(&asked["id"], &json!({"action": "decline"})).await;
    relay.server.world.first(|seen| seen.body["id"] == 7 && seen.body["result"]["action"] == "decline").await;
    // Of a task that no client follows: refused, and shown to no client.
    let mut stray = form();
    stray["id"] = json!(8);
    stray["params"]["_meta"] = json!({RELATED: {"taskId": "upstream-99"}});
    relay.send(&stray);
    let refused = relay.server.world.first(|seen| seen.body["id"] == 8 && seen.rpc().is_empty()).await;
    assert_eq!(refused.body["error"]["code"], -32603);
    // The client's own messages are forwarded, and this one comes first.
    relay.send(&json!({"jsonrpc": "2.0", "id": 9, "method": ASK, "params": {"message": "you?"}}));
    let first = own.next().await.unwrap();
    assert_eq!((&first["id"], &first["params"]), (&json!(9), &json!({"message": "you?"})));
    relay.end(0, "completed", &done());
    assert_eq!(stream.rest().await.last().unwrap()["id"], 4);
}

/// T-20, GW-44: while a client does not read its session's stream, the gateway does for the calls in it.
#[tokio::test]
async fn t_20_a_question_on_the_sessions_stream_reaches_the_only_call_of_a_client_that_does_not_read_it() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    relay.server.world.first(|seen| seen.method == "GET" && seen.header("mcp-session-id") == Some("s-1")).await;
    relay.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    relay.server.world.first(|seen| seen.body["id"] == 3 && seen.body["result"] == json!({})).await;
    relay.send(&form());
    let mut stream = SessionMessages::of(in_time(calling).await.unwrap());
    let asked = stream.next_of(ASK).await;
    person.respond(&asked["id"], &json!({"action": "decline"})).await;
    relay.server.world.first(|seen| seen.body["id"] == 7 && seen.body["result"]["action"] == "decline").await;
    // The client's own stream takes its place, though the server knows one at a time.
    let mut own = person.listen().await;
    relay.send(&json!({"jsonrpc": "2.0", "id": 9, "method": ASK, "params": {"message": "you?"}}));
    assert_eq!(own.next().await.unwrap()["id"], 9, "now it is the client's");
    drop(own);
    // And back again.
    relay.until_opened(3).await;
    let mut late = form();
    late["id"] = json!(10);
    relay.send(&late);
    assert_eq!(stream.next_of(ASK).await["params"]["message"], "who?");
    relay.end(0, "completed", &done());
    relay.until_closed().await;
}

/// U98: the server may have sent messages about the call meanwhile.
#[tokio::test]
async fn u98_a_stream_that_is_read_for_calls_is_resumed_after_its_last_event() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    for (n, drops_events) in [false, true].into_iter().enumerate() {
        relay.until_opened(n + 1).await;
        if drops_events {
            relay.drop_events();
        }
        let event = format!("e-{n}");
        relay.say_last(&event, &ping);
        let resumed = relay.server.world.first(|seen| seen.header("last-event-id") == Some(event.as_str())).await;
        assert_eq!(resumed.header("mcp-session-id"), Some("s-1"));
    }
    relay.until_opened(3).await;
    relay.end(0, "completed", &done());
    assert_eq!(answer_of(in_time(calling).await.unwrap()).await["id"], 4);
}

/// U98: a server would send the same event after each resumption, and no later message would arrive.
#[tokio::test]
async fn u98_a_stream_is_not_resumed_before_an_event_that_is_too_large() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    relay.until_opened(1).await;
    relay.say_numbered("e-0", &json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    relay.send(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x".repeat(2 << 20)}}));
    let reads = |seen: &SeenRequest| seen.method == "GET" && seen.header("mcp-session-id") == Some("s-1");
    assert_eq!(relay.server.world.nth(1, reads).await.header("last-event-id"), None);
    relay.until_opened(2).await;
    relay.end(0, "completed", &done());
    assert_eq!(answer_of(in_time(calling).await.unwrap()).await["id"], 4);
}

/// U98: a call's messages may come on the stream once the server is available again.
#[tokio::test]
async fn u98_a_stream_is_opened_again_after_an_outage_of_its_server() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let calling = begin(&person, 4, &call("must"));
    relay.made(0).await;
    relay.until_opened(1).await;
    relay.is_unavailable(2);
    relay.say_last("e-0", &json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    // Twice refused, and then accepted.
    relay.server.world.nth(2, |seen| seen.method == "GET" && seen.header("last-event-id") == Some("e-0")).await;
    relay.until_opened(2).await;
    relay.end(0, "completed", &done());
    assert_eq!(answer_of(in_time(calling).await.unwrap()).await["id"], 4);
}

/// T-20: a server may take a moment to notice that a stream was closed, its client's or the gateway's own.
#[tokio::test]
async fn a_sessions_stream_is_read_for_its_calls_though_the_server_notices_late_that_it_is_free() {
    let relay = Relay::new().await;
    let person = meet(&relay.gate, "2025-11-25").await;
    let mut own = Some(person.listen().await);
    relay.until_opened(1).await;
    for (n, reader) in ["its client", "the gateway"].into_iter().enumerate() {
        relay.notices_late(3);
        let calling = begin(&person, 4, &call("must"));
        relay.made(n).await;
        if n == 0 {
            drop(own.take());
        }
        relay.until_opened(n + 2).await;
        relay.send(&form());
        let mut stream = SessionMessages::of(in_time(calling).await.unwrap());
        assert_eq!(stream.next_of(ASK).await["params"]["message"], "who?", "after {reader}");
        relay.end(n, "completed", &done());
        assert_eq!(stream.rest().await.last().unwrap()["id"], 4);
        relay.until_closed().await;
    }
}

/// T-20: the client's stream may be closed while the server refuses another one for it.
#[tokio::test]
async fn a_clients_stream_is_asked_for_again_where_the_one_before_was_let_go_meanwhile() {
    let is_own = |seen: &SeenRequest| seen.method == "GET" && seen.header("mcp-session-id") == Some("s-1");
    let ((events, before), (_later, after)) = (Once::events(), Once::events());
    let refusals = Arc::new(AtomicUsize::new(0));
    let server = ScriptedServer::slow(move |seen, _| {
        let (events, before, after) = (events.clone(), Arc::clone(&before), Arc::clone(&after));
        let refusals = Arc::clone(&refusals);
        async move {
            let first = is_own(&seen).then(|| before.take())?;
            if first.is_none() && refusals.fetch_add(1, Ordering::SeqCst) == 0 {
                events.left().await;
                // The gateway takes note of it just after the server can.
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Some(status(409));
            }
            first.or_else(|| after.take())
        }
    })
    .await;
    let tasks = json!({"requests": {"tools": {"call": {}}}, "cancel": {}});
    *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "tasks": tasks}});
    let gate = TestGateway::before(&server).await;
    let person = meet(&gate, "2025-11-25").await;
    let own = person.listen().await;
    let (_again, ()) = tokio::join!(person.listen(), async {
        server.world.nth(1, is_own).await;
        drop(own);
    });
    assert_eq!(server.world.all(is_own).len(), 3, "it was refused once");
}
