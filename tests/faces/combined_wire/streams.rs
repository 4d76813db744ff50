//! Streams at an endpoint: questions of several servers, the session's own stream, taking one up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use super::{combined, request, server, servers};
use crate::combined_wire::client::{Client, Reply, TestGateway};
use crate::combined_wire::upstream::{BodySender, Once, ScriptedServer, SeenRequest, status};

fn is_get(seen: &SeenRequest) -> bool {
    seen.method == "GET"
}

/// A server with calls, or an own stream, that the test writes.
async fn talking(name: &'static str, is_meant: fn(&SeenRequest) -> bool) -> (BodySender, ScriptedServer) {
    let (events, stream) = Once::events();
    let stream: Arc<Once> = stream;
    (events, server(name, move |seen| is_meant(seen).then(|| stream.take()).flatten()).await)
}

/// The next message of a stream.
async fn message(reply: &mut Reply) -> Value {
    loop {
        let event = reply.until("\n\n").await;
        let data = event.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
        match data {
            Some(data) => return serde_json::from_str(data).unwrap(),
            // A comment keeps a silent stream alive.
            None => assert!(event.trim_start().starts_with(':'), "no data: {event}"),
        }
    }
}

#[tokio::test]
async fn two_servers_that_ask_under_one_id_each_get_their_own_answer() {
    let is_call = |seen: &SeenRequest| seen.is_call();
    let ((one_says, one), (two_says, two)) = (talking("one", is_call).await, talking("two", is_call).await);
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let question = json!({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": {"message": "?", "_meta": {"progressToken": 7}}});
    one_says.message(&question);
    two_says.message(&question);
    let mut replies = Vec::new();
    for (id, tool) in [(1, "one__shared"), (2, "two__shared")] {
        replies.push(client.post(request(id, "tools/call", &json!({"name": tool, "arguments": {}}))).await);
    }
    let mut asked = Vec::new();
    for reply in &mut replies {
        let question = message(reply).await;
        assert_eq!(question["params"]["_meta"]["progressToken"], question["id"]);
        asked.push(question["id"].clone());
    }
    assert_eq!(asked, ["one:n7", "two:n7"]);
    for (id, server) in asked.iter().zip([&one, &two]) {
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": id, "progress": 1}});
        assert_eq!(client.post(progress.to_string()).await.status, StatusCode::ACCEPTED);
        let said = json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"to": id}}});
        assert_eq!(client.post(said.to_string()).await.status, StatusCode::ACCEPTED);
        let got = server.world.first(|seen| seen.body["result"]["action"] == "accept").await;
        assert_eq!((&got.body["id"], &got.body["result"]["content"]["to"]), (&json!(7), id));
        let got = server.world.first(|seen| seen.rpc() == "notifications/progress").await;
        assert_eq!(got.body["params"]["progressToken"], 7);
    }
    for (server, events) in [(&one, one_says), (&two, two_says)] {
        let call = server.world.first(SeenRequest::is_call).await;
        events.result(&call, &json!({"done": true}));
    }
    for reply in &mut replies {
        assert_eq!(message(reply).await["result"]["done"], true);
    }
}

#[tokio::test]
async fn a_call_is_cancelled_where_it_runs() {
    let is_call = |seen: &SeenRequest| seen.is_call();
    let (_says, one) = talking("one", is_call).await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let caller = client.clone();
    let calling = client.connections.spawn(async move {
        caller.post(request(5, "tools/call", &json!({"name": "one__shared", "arguments": {}}))).await
    });
    one.world.first(SeenRequest::is_call).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    assert_eq!(client.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
    one.world.first(|seen| seen.rpc() == "notifications/cancelled" && seen.body["params"]["requestId"] == 5).await;
    drop(calling);
}

#[tokio::test]
async fn the_sessions_own_stream_has_the_unsolicited_messages_of_all_servers() {
    let ((one_says, one), (two_says, two)) = (talking("one", is_get).await, talking("two", is_get).await);
    let gate = combined(&one, &two, "").await;
    // By now the gateway knows both servers' capabilities: the next client opens no session by itself.
    gate.client().await;
    let client = gate.client().await;
    let mut own = client.get(None).await;
    assert_eq!((own.status, own.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    // Each server's messages come once its session is opened.
    for (tool, events, id) in [("two__shared", &two_says, "e2"), ("one__shared", &one_says, "e1")] {
        client.post(request(1, "tools/call", &json!({"name": tool, "arguments": {}}))).await;
        events.numbered(id, &changed);
        let event = own.until("\n\n").await;
        assert!(event.contains("list_changed"), "{event}");
        let name = tool.split_once("__").unwrap().0;
        assert!(event.contains(&format!("id: {name}!{id}\n")), "{event}");
    }
    one_says.message(&json!({"jsonrpc": "2.0", "id": "q", "method": "roots/list"}));
    assert_eq!(message(&mut own).await["id"], "one:sq");
    let said = r#"{"jsonrpc":"2.0","id":"one:sq","result":{"roots":[]}}"#;
    assert_eq!(client.post(said).await.status, StatusCode::ACCEPTED);
    one.world.first(|seen| seen.body["result"]["roots"].is_array() && seen.body["id"] == "q").await;
    drop(own);
    one_says.left().await;
    two_says.left().await;
}

/// The next process knows no session at a server, and a client that only listens sends no request that opens one.
#[tokio::test]
async fn u111_a_session_of_an_earlier_process_hears_all_servers_on_its_own_stream() {
    let ((one_says, one), (two_says, two)) = (talking("one", is_get).await, talking("two", is_get).await);
    let first = combined(&one, &two, "").await;
    let client = first.client().await;
    drop(first);
    let second = combined(&one, &two, "").await;
    let client = Client { address: second.gateway.address(), ..client };
    let mut own = client.get(None).await;
    for events in [&one_says, &two_says] {
        events.message(&changed());
        assert_eq!(message(&mut own).await["method"], "notifications/tools/list_changed");
    }
}

#[tokio::test]
async fn a_stream_is_taken_up_at_the_server_whose_event_the_client_names() {
    let (call_says, call) = Once::events();
    let (rest_says, rest) = Once::events();
    let one = server("one", move |seen| match is_get(seen) {
        true => rest.take(),
        false => seen.is_call().then(|| call.take()).flatten(),
    })
    .await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    call_says.numbered("e-7", &log);
    let params = json!({"name": "one__shared", "arguments": {}, "_meta": {"progressToken": "t"}});
    let mut reply = client.post(request(1, "tools/call", &params)).await;
    let event = reply.until("\n\n").await;
    let last = event.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_else(|| panic!("{event}"));
    assert!(last.starts_with("one:") && last.ends_with(":e-7"), "{last}");
    drop(reply);
    // A server that goes on with the stream says no more on it than it may on the call's own.
    for (id, message) in [
        ("e-8", json!({"jsonrpc": "2.0", "id": 2, "result": {"forged": true}})),
        ("e-9", progress("u")),
        ("e-10", progress("t")),
        ("e-11", json!({"jsonrpc": "2.0", "id": 1, "result": {}})),
    ] {
        rest_says.numbered(id, &message);
    }
    drop(rest_says);
    let mut rest = client.get(Some(last)).await;
    assert_eq!(message(&mut rest).await["params"]["progressToken"], "t");
    let event = rest.until("\n\n").await;
    assert!(event.starts_with("id: one:") && event.contains(":e-11\n") && event.contains("\"id\":1"), "{event}");
    let seen = one.world.first(is_get).await;
    assert_eq!(seen.header("last-event-id"), Some("e-7"));
    assert!(two.world.all(is_get).is_empty());
    for unknown in ["e-7", "one:e-7", &last.replace("one:", "three:"), ":x", ""] {
        assert_eq!(client.get(Some(unknown)).await.status, StatusCode::BAD_REQUEST, "{unknown}");
    }
}

fn progress(token: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
}

#[tokio::test]
async fn an_own_stream_without_servers_that_speak_on_one_stays_open_until_its_session_ends() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let own = client.get(None).await;
    assert_eq!(own.status, StatusCode::OK);
    for server in [&one, &two] {
        server.world.first(is_get).await;
    }
    client.delete().await;
    assert_eq!(own.text().await, "");
}

fn call_of_two(id: u32) -> String {
    request(id, "tools/call", &json!({"name": "two__shared", "arguments": {"n": id}}))
}

fn changed() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
}

/// A client with its own stream. The second server then refuses two of its calls, so that the session there is lost.
async fn refused_twice(gate: &TestGateway, before: &BodySender, refuses: &AtomicBool) -> (Client, Reply) {
    gate.client().await;
    let client = gate.client().await;
    let mut own = client.get(None).await;
    client.post(call_of_two(1)).await;
    before.message(&changed());
    assert_eq!(message(&mut own).await["method"], "notifications/tools/list_changed");
    refuses.store(true, Ordering::Relaxed);
    for id in 2..4 {
        assert_eq!(client.post(call_of_two(id)).await.json().await["result"], json!(null), "{id}");
    }
    (client, own)
}

/// The server refuses in words that the gateway does not know: it is asked with a `ping`, and its session is over.
#[tokio::test]
async fn a_session_that_is_opened_anew_at_one_server_is_heard_on_the_sessions_own_stream() {
    let ((before, first), (after, second)) = (Once::events(), Once::events());
    let streams: [Arc<Once>; 2] = [first, second];
    let refuses = Arc::new(AtomicBool::new(false));
    let one = server("one", |_| None).await;
    let two = server("two", {
        let refuses = Arc::clone(&refuses);
        move |seen| {
            let is_first = seen.header("mcp-session-id") == Some("s-2");
            let is_refused = is_first && refuses.load(Ordering::Relaxed) && !is_get(seen);
            let stream = || is_get(seen).then(|| streams.iter().find_map(|stream| stream.take())).flatten();
            if is_refused { Some(status(400)) } else { stream() }
        }
    })
    .await;
    let gate = combined(&one, &two, "").await;
    let (client, mut own) = refused_twice(&gate, &before, &refuses).await;
    drop(before);
    // The call, or the stream that is opened again, opens the next session.
    assert_eq!(client.post(call_of_two(4)).await.json().await["result"]["n"], 4);
    after.message(&changed());
    assert_eq!(message(&mut own).await["method"], "notifications/tools/list_changed");
}

/// At an outage the position remains valid; another refusal may concern it.
#[tokio::test]
async fn the_sessions_own_stream_reads_a_server_again_that_refused_it_for_a_while() {
    let ((before, first), (after, second)) = (Once::events(), Once::events());
    let streams: [Arc<Once>; 2] = [first, second];
    let one = server("one", |_| None).await;
    let two = server("two", {
        let gets = AtomicUsize::new(0);
        move |seen| match is_get(seen).then(|| gets.fetch_add(1, Ordering::Relaxed))? {
            1 => Some(status(503)),
            2 => Some(status(409)),
            _ => streams.iter().find_map(|stream| stream.take()),
        }
    })
    .await;
    let gate = combined(&one, &two, "").await;
    gate.client().await;
    let client = gate.client().await;
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let mut own = client.get(None).await;
    client.post(request(1, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await;
    before.numbered("e-1", &changed);
    assert_eq!(message(&mut own).await["method"], "notifications/tools/list_changed");
    drop(before);
    after.message(&json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}));
    assert_eq!(message(&mut own).await["method"], "notifications/prompts/list_changed");
    let gets = two.world.all(is_get);
    let places: Vec<_> = gets.iter().map(|seen| seen.header("last-event-id")).collect();
    assert_eq!(places, [None, Some("e-1"), Some("e-1"), None]);
}

/// As above, and the server opens no other session for a while.
#[tokio::test]
async fn the_sessions_own_stream_reads_a_server_that_opens_a_session_again() {
    let ((before, first), (after, second)) = (Once::events(), Once::events());
    let streams: [Arc<Once>; 2] = [first, second];
    let refuses = Arc::new(AtomicBool::new(false));
    let is_opening = |seen: &SeenRequest| seen.rpc() == "initialize";
    let one = server("one", |_| None).await;
    let two = server("two", {
        let refuses = Arc::clone(&refuses);
        move |seen| match is_get(seen) {
            // A gateway that is refused a session looks for the older transport with a GET.
            true if seen.header("mcp-session-id").is_none() => Some(status(405)),
            true => streams.iter().find_map(|stream| stream.take()),
            false => refuses.load(Ordering::Relaxed).then(|| status(400)),
        }
    })
    .await;
    let gate = combined(&one, &two, "").await;
    let (client, mut own) = refused_twice(&gate, &before, &refuses).await;
    let openings = two.world.all(is_opening).len();
    drop(before);
    two.world.nth(openings, is_opening).await;
    refuses.store(false, Ordering::Relaxed);
    while client.post(call_of_two(4)).await.json().await["result"]["n"] != 4 {}
    after.message(&changed());
    assert_eq!(message(&mut own).await["method"], "notifications/tools/list_changed");
}
