//! List changes, capabilities, lost sessions, shutting down.

use std::time::Duration;

use serde_json::json;

use super::client::TestGateway;
use super::in_time;
use super::listener::{Listener, Streams, TAG, is_get, push, pushing, send};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// MOD-18, MOD-24: a forwarded notification was subscribed to, is offered, and has the id as it was spelt.
#[tokio::test]
async fn mod_24_notifications_of_the_server_reach_the_listeners_that_asked_for_them() {
    let (events, streams) = Streams::new(1);
    let server = pushing(streams).await;
    let gate = TestGateway::before(&server).await;
    let all = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true, "taskId": "x",
    });
    let mut both = Listener::open(&gate, json!("l-1"), &all).await;
    assert_eq!(both.granted, json!({ "toolsListChanged": true, "resourcesListChanged": true }), "no prompts here");
    let mut one = Listener::open(&gate, json!(7), &json!({ "resourcesListChanged": true })).await;
    let mut none = Listener::open(&gate, json!(8), &json!({ "toolsListChanged": false })).await;
    assert_eq!(none.granted, json!({}));
    for method in [PROMPTS, "notifications/other", "notifications/message", "notifications/progress"] {
        push(&events[0], method, &json!({ "level": "info", "progressToken": 1, "progress": 1 }));
    }
    push(&events[0], "notifications/cancelled", &json!({ "requestId": "l-1" }));
    events[0].raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"roots/list\"}\n\n");
    push(&events[0], TOOLS, &json!({ "_meta": { "k": 1.5 } }));
    push(&events[0], RESOURCES, &json!({}));
    let first = both.next().await.unwrap();
    let expected = json!({ "jsonrpc": "2.0", "method": TOOLS, "params": { "_meta": { "k": 1.5, TAG: "l-1" } } });
    assert_eq!(first, expected);
    let expected = json!({ "jsonrpc": "2.0", "method": RESOURCES, "params": { "_meta": { TAG: 7 } } });
    assert_eq!(one.next().await.unwrap(), expected);
    assert_eq!(both.line().await, RESOURCES);
    assert_eq!(server.world.count("initialize"), 1, "one session for all of one client's streams");
    in_time(gate.gateway.drain(Some(Duration::ZERO))).await;
    assert_eq!(none.line().await, "complete", "and nothing before");
}

/// MOD-12, MOD-17: the possible subscriptions are declared, and listening changes no list.
#[tokio::test]
async fn mod_17_listeners_change_no_list() {
    let (events, streams) = Streams::new(1);
    let server = pushing(streams).await;
    let gate = TestGateway::before(&server).await;
    let discovered = send(&gate, json!(1), "server/discover", &json!({})).await.json().await;
    let capabilities = &discovered["result"]["capabilities"];
    assert_eq!(capabilities["tools"], json!({ "listChanged": true }));
    assert_eq!(capabilities["resources"], json!({ "subscribe": true, "listChanged": true }));
    let list = async || send(&gate, json!(2), "resources/list", &json!({})).await.text().await;
    let before = list().await;
    let mut listener = Listener::open(&gate, json!(3), &json!({ "resourcesListChanged": true })).await;
    assert_eq!(list().await, before);
    push(&events[0], RESOURCES, &json!({}));
    assert_eq!(listener.line().await, RESOURCES);
    assert_eq!(list().await, before);
}

/// A restarted server sends nothing into the old session: there is a new one, and anything may have changed in between.
#[tokio::test]
async fn a_lost_session_is_replaced_and_everything_may_have_changed() {
    let (events, streams) = Streams::new(2);
    let server = pushing(streams).await;
    let gate = TestGateway::before(&server).await;
    let wishes = json!({ "toolsListChanged": true, "resourceSubscriptions": ["file:///a"] });
    let mut listener = Listener::open(&gate, json!(1), &wishes).await;
    // The first stream must have been there: a server may have none, and says so with the same status.
    events[0].raw(": open\n\n");
    push(&events[0], TOOLS, &json!({}));
    assert_eq!(listener.line().await, TOOLS);
    server.world.forget();
    events[0].cut();
    let mut said = [listener.line().await, listener.line().await];
    said.sort();
    assert_eq!(said, ["notifications/resources/updated file:///a", TOOLS]);
    server.world.first(|seen| seen.rpc() == "resources/subscribe").await;
    server.world.first(|seen| is_get(seen) && seen.header("mcp-session-id") == Some("s-2")).await;
    assert_eq!(server.world.count("initialize"), 1, "since it forgot everything");
}

/// MOD-25, T-52.
#[tokio::test]
async fn mod_25_a_shutdown_ends_listeners_with_their_result() {
    let (_events, streams) = Streams::new(1);
    let server = pushing(streams).await;
    let gate = TestGateway::before(&server).await;
    let mut listener = Listener::open(&gate, json!("bye"), &json!({ "toolsListChanged": true })).await;
    let last = async {
        let last = listener.next().await.unwrap();
        assert_eq!(last["id"], "bye");
        assert_eq!((&last["result"]["resultType"], &last["result"]["_meta"][TAG]), (&json!("complete"), &json!("bye")));
        assert_eq!(last["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "scripted", "MOD-13");
        assert!(listener.next().await.is_none(), "nothing follows");
    };
    // A listener does not hold up a shutdown.
    in_time(async { tokio::join!(Box::pin(gate.gateway.drain(Some(Duration::ZERO))), last) }).await;
    server.world.first(|seen| seen.method == "DELETE").await;
}

/// UPC-04: a list goes on as long as there is a cursor, and an empty text is one.
#[tokio::test]
async fn upc_04_an_empty_cursor_is_followed_like_any_other() {
    let server = super::upstream::ScriptedServer::start(|seen| {
        let page = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let result = match (seen.rpc(), seen.body["params"]["cursor"].as_str()) {
            ("tools/list", None) => json!({ "tools": [page("a")], "nextCursor": "" }),
            ("tools/list", Some("")) => json!({ "tools": [page("b")], "nextCursor": "x" }),
            ("tools/list", Some(_)) => json!({ "tools": [page("c")], "nextCursor": null }),
            _ => return None,
        };
        Some(super::upstream::answer(seen, &result))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let list = send(&gate, json!(1), "tools/list", &json!({})).await.json().await;
    let names: Vec<_> = list["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(list["result"].get("nextCursor").is_none());
}

/// UPC-04: a page with only names of earlier pages ends its list, with any cursor.
#[tokio::test]
async fn upc_04_a_list_whose_cursors_lead_back_is_asked_for_twice_and_shown_once() {
    for cursor in ["", "1"] {
        let server = super::upstream::ScriptedServer::start(move |seen| {
            let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
            let result = json!({ "tools": [tool("a"), tool("b")], "nextCursor": cursor });
            (seen.rpc() == "tools/list").then(|| super::upstream::answer(seen, &result))
        })
        .await;
        let gate = TestGateway::before(&server).await;
        let list = send(&gate, json!(1), "tools/list", &json!({})).await.json().await;
        let names: Vec<_> = list["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
        assert_eq!((names.len(), server.world.count("tools/list")), (2, 2), "{cursor:?} {names:?}");
    }
}

/// An error of the list is not the outcome of the call.
#[tokio::test]
async fn u107_a_call_is_sent_to_a_server_that_refuses_to_list_its_tools_unless_some_are_hidden() {
    let server = super::upstream::ScriptedServer::start(|seen| {
        let error = json!({ "code": -32602, "message": "bad cursor", "data": { "executed": "yes" } });
        let refusal = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error });
        (seen.rpc() == "tools/list").then(|| super::upstream::json_text(refusal.to_string()))
    })
    .await;
    let call = json!({ "name": "work", "arguments": { "n": 1 } });
    for keys in ["", "[upstreams.up.tasks]\nmode = \"always\"\n"] {
        let gate = TestGateway::with(server.address, keys).await;
        let called = send(&gate, json!(1), "tools/call", &call).await.json().await;
        assert_eq!(called["result"]["n"], 1, "{keys}: {called}");
        let list = send(&gate, json!(2), "tools/list", &json!({})).await.json().await;
        assert_eq!(list["error"]["message"], "bad cursor", "{list}");
    }
    let sent = server.world.count("tools/call");
    let hiding = "[[upstreams.up.tools]]\nmatch = \"delete*\"\nhide = true\n";
    let gate = TestGateway::with(server.address, hiding).await;
    let called = send(&gate, json!(1), "tools/call", &call).await.json().await;
    let data = json!({ "source": "gateway", "reason": "upstream_refused", "executed": "no" });
    assert_eq!(called["error"]["data"], data, "{called}");
    assert!(called["error"]["message"].as_str().unwrap().contains("`tools/list`"), "{called}");
    assert_eq!(server.world.count("tools/call"), sent, "the tool may be a hidden one");
}

/// T-72, B133: a server knows its tools best. One that its list does not name is called, and a client that may not have all of them
/// learns nothing of it.
#[tokio::test]
async fn t_72_a_tool_that_no_list_names_is_the_servers_to_refuse_unless_tools_are_hidden() {
    let script = |seen: &super::upstream::SeenRequest| {
        let tool = json!({ "name": "login", "inputSchema": { "type": "object" } });
        match seen.rpc() {
            "tools/list" => Some(super::upstream::answer(seen, &json!({ "tools": [tool] }))),
            _ => None,
        }
    };
    let server = super::upstream::ScriptedServer::start(script).await;
    let secret = json!({ "name": "secret", "arguments": { "n": 1 } });
    for (keys, expected) in [
        ("", json!(1)),
        ("[upstreams.up.tasks]\nmode = \"always\"\n", json!(1)),
        ("[[upstreams.up.tools]]\nmatch = \"delete*\"\nhide = true\n", json!(null)),
    ] {
        let gate = TestGateway::with(server.address, keys).await;
        let before = server.world.all(super::upstream::SeenRequest::is_call).len();
        let called = send(&gate, json!(1), "tools/call", &secret).await.json().await;
        assert_eq!(called["result"]["n"], expected, "{keys}: {called}");
        let sent = server.world.all(super::upstream::SeenRequest::is_call).len() - before;
        assert_eq!(sent, usize::from(!expected.is_null()), "{keys}");
        if expected.is_null() {
            assert_eq!(called["error"]["code"], -32602, "{called}");
            let hidden = json!({ "name": "delete", "arguments": {} });
            let hidden = send(&gate, json!(1), "tools/call", &hidden).await.json().await;
            let error = |answer: &serde_json::Value, name: &str| answer["error"].to_string().replace(name, "NAME");
            assert_eq!(error(&called, "secret"), error(&hidden, "delete"));
        }
    }
}
