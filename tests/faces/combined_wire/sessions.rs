//! Sessions at an endpoint, and those at the upstreams that belong to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{combined, request, server, servers, text_of};
use crate::combined_wire::client::{TestGateway, initialize};
use crate::combined_wire::upstream::{BodySender, ScriptedServer, SeenRequest, json_text, status};

fn is_handshake(seen: &SeenRequest) -> bool {
    seen.rpc() == "initialize"
}

#[tokio::test]
async fn capabilities_are_those_of_all_and_instructions_stand_under_their_names() {
    let (one, two) = servers().await;
    *two.world.initialize_result.lock() =
        json!({"capabilities": {"completions": {}, "resources": {"listChanged": true}}});
    let gate = combined(&one, &two, "").await;
    let reply = gate.client_without_session().post(initialize("2025-06-18", &json!({"roots": {}}))).await.json().await;
    let result = &reply["result"];
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(
        result["capabilities"],
        json!({
            "tools": {"listChanged": true}, "prompts": {}, "logging": {}, "completions": {},
            "resources": {"subscribe": true, "listChanged": true},
        })
    );
    assert_eq!(result["instructions"], "# one\n\n> ask one");
    assert_eq!(result["serverInfo"]["name"], "taskgate");
    let seen = one.world.first(is_handshake).await;
    assert_eq!(seen.body["params"]["clientInfo"]["name"], "raw");
    assert_eq!(seen.body["params"]["capabilities"], json!({"roots": {}}));
}

/// The first client discovers the upstreams' capabilities; later clients need no session there for that.
#[tokio::test]
async fn sessions_at_upstreams_are_opened_when_something_is_asked_of_them() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let handshakes = || (one.world.all(is_handshake).len(), two.world.all(is_handshake).len());
    assert_eq!(handshakes(), (1, 1));
    let second = gate.client().await;
    assert_eq!(handshakes(), (1, 1));
    let call = json!({"name": "two__shared", "arguments": {"n": 1}});
    for id in 1..3 {
        assert_eq!(second.post(request(id, "tools/call", &call)).await.json().await["result"]["n"], 1);
    }
    assert_eq!(handshakes(), (1, 2));
    let sent = two.world.first(|seen: &SeenRequest| seen.is_call()).await;
    assert_eq!(sent.body["params"], json!({"name": "shared", "arguments": {"n": 1}}));
    assert_eq!(sent.header("mcp-session-id"), Some("s-2"));
}

/// A server that answers a handshake for each permit.
async fn opening_by(opened: &Arc<Semaphore>) -> ScriptedServer {
    let opened = Arc::clone(opened);
    ScriptedServer::slow(move |seen, _| {
        let opened = Arc::clone(&opened);
        async move {
            if is_handshake(&seen) {
                opened.acquire().await.unwrap().forget();
            }
            None
        }
    })
    .await
}

/// No server has the call yet, so none gets a cancel.
#[tokio::test]
async fn a_call_that_is_cancelled_while_a_session_is_opened_for_it_is_not_made() {
    let (one, _) = servers().await;
    let opened = Arc::new(Semaphore::new(1));
    let two = opening_by(&opened).await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    let call = json!({"name": "two__shared", "arguments": {"n": 1}});
    let (reply, ()) = tokio::join!(client.post(request(7, "tools/call", &call)), async {
        two.world.nth(1, is_handshake).await;
        let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
        assert_eq!(client.post(told.to_string()).await.status, StatusCode::ACCEPTED);
    });
    assert_eq!(reply.text().await, "", "a request that was cancelled has no answer");
    opened.add_permits(1);
    let next = client.post(request(7, "tools/call", &call)).await.json().await;
    assert_eq!(next["result"]["n"], 1, "another call of this id");
    assert_eq!(two.world.count("tools/call"), 1);
}

/// The server answers the first level only after the second one was set.
#[tokio::test]
async fn a_level_that_is_set_while_a_session_is_opened_reaches_its_server() {
    let (one, _) = servers().await;
    let levels = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&levels);
    let is_level = |seen: &SeenRequest| seen.rpc() == "logging/setLevel";
    let two = ScriptedServer::slow(move |seen, _| {
        let waits = Arc::clone(&waits);
        async move {
            if is_level(&seen) {
                waits.acquire().await.unwrap().forget();
            }
            None
        }
    });
    let two = two.await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    let set = async |level: &str| {
        let reply = client.post(request(1, "logging/setLevel", &json!({ "level": level }))).await;
        assert_eq!(reply.json().await["result"], json!({}));
    };
    set("error").await;
    let call = json!({"name": "two__shared", "arguments": {"n": 1}});
    let setting = async {
        two.world.first(is_level).await;
        set("debug").await;
        levels.add_permits(2);
    };
    let (called, ()) = tokio::join!(client.post(request(7, "tools/call", &call)), setting);
    assert_eq!(called.json().await["result"]["n"], 1);
    assert_eq!(two.world.nth(1, is_level).await.body["params"], json!({ "level": "debug" }));
}

/// The server's words are about the gateway's own `initialize`.
#[tokio::test]
async fn gw_29_a_call_whose_session_is_refused_has_an_error_of_the_gateways() {
    let (one, _) = servers().await;
    let handshakes = AtomicUsize::new(0);
    let two = server("two", move |seen| {
        let is_refused = is_handshake(seen) && handshakes.fetch_add(1, Ordering::SeqCst) > 0;
        let error = json!({"code": -32602, "message": "no such version", "data": {"supported": []}});
        is_refused.then(|| json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()))
    })
    .await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    let reply = client.post(request(1, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await;
    let error = reply.json().await["error"].take();
    assert_eq!(error["data"], json!({"source": "gateway", "reason": "upstream_refused", "executed": "no"}), "{error}");
    assert_eq!(two.world.count("tools/call"), 0);
}

/// GW-29: a server that failed is asked first whether it is available again.
#[tokio::test]
async fn gw_29_a_refusal_of_a_server_that_failed_before_is_an_error_of_the_gateways() {
    let (one, _) = servers().await;
    let is_back = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_back);
    let two = server("two", move |seen| {
        let error = json!({"code": -32602, "message": "no such version", "data": {"supported": []}});
        let refusal = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
        let reply = if answers.load(Ordering::SeqCst) { json_text(refusal.to_string()) } else { status(503) };
        is_handshake(seen).then_some(reply)
    })
    .await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    is_back.store(true, Ordering::SeqCst);
    let reply = client.post(request(1, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await;
    let error = reply.json().await["error"].take();
    assert_eq!(error["data"], json!({"source": "gateway", "reason": "upstream_refused", "executed": "no"}), "{error}");
}

#[tokio::test]
async fn a_log_level_reaches_those_that_are_open_and_those_that_are_opened_later() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    client.post(request(1, "tools/call", &json!({"name": "one__shared", "arguments": {}}))).await;
    let level = client.post(request(2, "logging/setLevel", &json!({"level": "warning"}))).await.json().await;
    assert_eq!(level["result"], json!({}));
    assert_eq!((one.world.count("logging/setLevel"), two.world.count("logging/setLevel")), (1, 0));
    client.post(request(3, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await;
    let told = two.world.first(|seen| seen.rpc() == "logging/setLevel").await;
    assert_eq!(told.body["params"]["level"], "warning");
}

/// A program that does one thing at a time answers nothing while it runs a call, and clients set a level when they connect.
#[tokio::test]
async fn b269_a_log_level_does_not_wait_for_a_server_that_answers_nothing() {
    let silent = server("one", |seen| (seen.rpc() == "logging/setLevel").then(BodySender::silent));
    let (one, two) = tokio::join!(silent, server("two", |_| None));
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for tool in ["one__shared", "two__shared"] {
        client.post(request(1, "tools/call", &json!({"name": tool, "arguments": {}}))).await;
    }
    let level = client.post(request(2, "logging/setLevel", &json!({"level": "warning"}))).await.json().await;
    assert_eq!(level["result"], json!({}));
    assert_eq!((one.world.count("logging/setLevel"), two.world.count("logging/setLevel")), (1, 1));
}

/// The endpoint keeps the level of each session: the rest of the request, which has no bound of its own, is never sent.
#[tokio::test]
async fn of_a_log_level_nothing_else_is_kept() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    for level in [json!("loud"), json!(7), json!(null)] {
        let params = json!({"level": level});
        let refused = client.post(request(1, "logging/setLevel", &params)).await;
        assert_eq!(refused.verdict().await, "200 -32602 id 1", "{level}");
    }
    let large = json!({"level": "error", "pad": "x".repeat(1 << 20)});
    let level = client.post(request(2, "logging/setLevel", &large)).await.json().await;
    assert_eq!(level["result"], json!({}));
    client.post(request(3, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await;
    let told = two.world.first(|seen| seen.rpc() == "logging/setLevel").await;
    assert_eq!(told.body["params"], json!({"level": "error"}));
}

/// Whose it is shows when it changes: each server that takes a subscription may be the one.
#[tokio::test]
async fn a_subscription_to_an_unlisted_resource_and_its_end_reach_all_servers() {
    let (one, two) = servers().await;
    let refusing = server("three", |seen| {
        let error = json!({"code": -32602, "message": "no"});
        let is_asked = seen.rpc().ends_with("subscribe");
        is_asked.then(|| json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()))
    })
    .await;
    let text = format!("[upstreams.three]\nurl = \"http://{}/mcp\"\n{}", refusing.address, text_of(&one, &two, ""));
    let gate = TestGateway::serving(&text.replace("[\"one\"", "[\"three\", \"one\"")).await;
    let client = gate.client().await;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let answer = client.post(request(1, method, &json!({"uri": "hidden://two"}))).await.json().await;
        assert_eq!(answer["result"], json!({}), "{method}: {answer}");
        let told = [&refusing, &one, &two].map(|server| server.world.count(method));
        assert_eq!(told, [1; 3], "{method}");
    }
    let listed = client.post(request(2, "resources/subscribe", &json!({"uri": "test://two_only"}))).await.json().await;
    assert_eq!((&listed["result"], one.world.count("resources/subscribe")), (&json!({}), 1));
}

#[tokio::test]
async fn messages_that_name_no_item_go_to_all_open_sessions() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(client.post(changed).await.status, StatusCode::ACCEPTED);
    for server in [&one, &two] {
        server.world.first(|seen| seen.bytes == changed.as_bytes()).await;
    }
    assert_eq!(client.post(request(9, "ping", &json!({}))).await.json().await["result"], json!({}));
    assert_eq!((one.world.count("ping"), two.world.count("ping")), (0, 0), "a ping is for the gateway");
    assert_eq!(client.post(request(9, "odd/method", &json!({}))).await.verdict().await, "200 -32601 id 9");
}

/// B248: progress, too.
#[tokio::test]
async fn b248_an_answer_without_the_name_of_a_server_reaches_none() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}"#;
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}"#;
    for message in [answer, progress] {
        assert_eq!(client.post(message).await.status, StatusCode::ACCEPTED);
    }
    for server in [&one, &two] {
        let told = server.world.all(|seen| seen.body.get("result").is_some() || seen.rpc() == "notifications/progress");
        assert!(told.is_empty(), "{told:?}");
    }
}

/// B247: else a request would open another session at a server that has ended its own.
#[tokio::test]
async fn b247_a_session_takes_no_request_while_its_servers_end_theirs() {
    let (one, _) = servers().await;
    let ended = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&ended);
    let two = ScriptedServer::slow(move |seen, _| {
        let waits = Arc::clone(&waits);
        async move {
            if seen.method == "DELETE" {
                waits.acquire().await.unwrap().forget();
            }
            None
        }
    })
    .await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let (ending, late) = tokio::join!(client.delete(), async {
        two.world.first(|seen| seen.method == "DELETE").await;
        let late = client.post(request(1, "ping", &json!({}))).await.verdict().await;
        ended.add_permits(1);
        late
    });
    assert_eq!((ending.status, late.as_str()), (StatusCode::OK, "404 -32001 id 1"));
}

#[tokio::test]
async fn a_session_ends_with_those_at_the_upstreams() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    assert_eq!(client.delete().await.status, StatusCode::OK);
    for server in [&one, &two] {
        server.world.first(|seen| seen.method == "DELETE" && seen.header("mcp-session-id") == Some("s-1")).await;
    }
    assert_eq!(client.post(request(1, "ping", &json!({}))).await.verdict().await, "404 -32001 id 1");
}

/// The client has no id with which it could end them. U96: a server may know its clients by a header.
#[tokio::test]
async fn u63_sessions_at_the_upstreams_end_if_their_client_leaves_before_it_has_a_session() {
    let (one, _) = servers().await;
    let opened = Arc::new(Semaphore::new(0));
    let two = opening_by(&opened).await;
    let keys = "forward_headers = [\"x-tenant\"]\n[upstreams.two]";
    let gate = TestGateway::serving(&text_of(&one, &two, "").replace("[upstreams.two]", keys)).await;
    let client = gate.client_without_session();
    let asking = client.connections.spawn({
        let client = gate.client_without_session();
        let head = client.request("POST").header("content-type", "application/json").header("x-tenant", "t-1");
        let opening = head.body(Full::new(Bytes::from(initialize("2025-11-25", &json!({}))))).unwrap();
        async move { client.send(opening).await.status }
    });
    one.world.first(|seen| seen.rpc() == "notifications/initialized").await;
    two.world.first(is_handshake).await;
    asking.abort();
    let is_end = |seen: &SeenRequest| seen.method == "DELETE" && seen.header("mcp-session-id") == Some("s-1");
    assert_eq!(one.world.first(is_end).await.header("x-tenant"), Some("t-1"));
    opened.add_permits(1);
    two.world.first(is_end).await;
}

/// The server refuses in words that the gateway does not know: it is asked with a `ping`, and its session is over. A 404
/// would make the client leave the other server, too.
#[tokio::test]
async fn u48_a_session_that_is_over_at_one_upstream_is_opened_anew_with_the_next_call() {
    let one = server("one", |_| None).await;
    let two = server("two", |seen| {
        let is_refused = seen.is_call() || seen.rpc() == "ping";
        (is_refused && seen.header("mcp-session-id") == Some("s-1")).then(|| status(400))
    })
    .await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let call = |id| request(id, "tools/call", &json!({"name": "two__shared", "arguments": {"n": id}}));
    for id in 1..3 {
        assert_eq!(client.post(call(id)).await.json().await["result"], json!(null), "{id}");
    }
    assert_eq!(client.post(call(3)).await.json().await["result"]["n"], 3);
    assert_eq!((one.world.all(is_handshake).len(), two.world.all(is_handshake).len()), (1, 2));
    assert_eq!(client.post(request(4, "ping", &json!({}))).await.json().await["result"], json!({}));
}

/// A session is its id alone: the process that served it is gone with its memory.
#[tokio::test]
async fn a_session_outlives_the_gateway_and_opens_those_at_the_upstreams_anew() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    drop(gate);
    let gate = TestGateway::serving(&text_of(&one, &two, "")).await;
    let client = crate::combined_wire::client::Client { address: gate.gateway.address(), ..client };
    let call = json!({"name": "two__shared", "arguments": {"n": 1}});
    assert_eq!(client.post(request(1, "tools/call", &call)).await.json().await["result"]["n"], 1);
    assert_eq!((one.world.all(is_handshake).len(), two.world.all(is_handshake).len()), (1, 2));
    // An id of one path is none of another's.
    let elsewhere = format!("{}[upstreams.up]\nurl = \"http://{}/mcp\"\npath = \"/mcp\"\n", "", one.address);
    let other = TestGateway::serving(&elsewhere).await;
    let client = crate::combined_wire::client::Client { address: other.gateway.address(), ..client };
    assert_eq!(client.post(request(1, "ping", &json!({}))).await.verdict().await, "404 -32001 id 1");
}

#[tokio::test]
async fn each_message_of_an_array_is_answered_by_its_own_server() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client_of("2025-03-26").await;
    let call = |id, tool: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {"n": id}}});
    let array = json!([
        call(1, "one__shared"), {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}, call(2, "two__shared"),
        {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}}, call(4, "nobody"), 7,
    ]);
    let answers = client.post(array.to_string()).await.json().await;
    let mut verdicts: Vec<_> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["id"].clone(), one["result"]["n"].clone(), one["error"]["code"].clone()))
        .collect();
    verdicts.sort_by_key(|(id, _, _)| id.to_string());
    let none = json!(null);
    assert_eq!(
        verdicts,
        [
            (json!(1), json!(1), none.clone()),
            (json!(2), json!(2), none.clone()),
            (json!(3), none.clone(), json!(-32600)),
            (json!(4), none.clone(), json!(-32602)),
            (none.clone(), none.clone(), json!(-32600)),
        ]
    );
    let newer = gate.client().await;
    assert_eq!(newer.post(array.to_string()).await.verdict().await, "400 -32600");
}
