//! Clients whose requests stand alone (2026-07-28) at an endpoint.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use serde_json::{Value, json};
use support::scripted::{answer, in_time};
use support::speaker::{LISTEN, SubscriptionServer, UPDATED, refusing};

use super::{combined, names, server, servers, text_of};
use crate::combined_wire::client::{Reply, TestGateway};
use crate::combined_wire::upstream::{BodySender, Once, SeenRequest};
use crate::stateless_pipe::peers::server as stateless;

const VERSION: &str = "2026-07-28";

/// The metadata of each request.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    })
}

async fn ask_at(gate: &TestGateway, path: &str, headers: &[(&str, &str)], method: &str, params: Value) -> Reply {
    let mut params = params;
    if params.get("_meta").is_none() {
        params["_meta"] = meta();
    }
    let body = json!({"jsonrpc": "2.0", "id": "r", "method": method, "params": params}).to_string();
    let mut request = http::Request::builder()
        .method("POST")
        .uri(path)
        .header("host", "localhost")
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", VERSION)
        .header("mcp-method", method);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    gate.client_without_session().send(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

async fn ask(gate: &TestGateway, headers: &[(&str, &str)], method: &str, params: Value) -> Reply {
    ask_at(gate, "/mcp", headers, method, params).await
}

#[tokio::test]
async fn instructions_and_capabilities_of_the_servers_are_merged() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let discovered = ask(&gate, &[], "server/discover", json!({})).await.json().await;
    let result = &discovered["result"];
    assert_eq!(result["supportedVersions"], json!([VERSION]));
    assert_eq!(result["instructions"], "# one\n\n> ask one\n\n# two\n\n> ask two");
    assert_eq!(result["capabilities"]["extensions"], json!({"io.modelcontextprotocol/tasks": {}}));
    assert_eq!(result["capabilities"]["tools"], json!({"listChanged": true}));
    let list = ask(&gate, &[], "tools/list", json!({})).await.json().await;
    assert_eq!(
        names(&list["result"]["tools"], "name"),
        ["one__shared", "one__one_only", "two__shared", "two__two_only"]
    );
    assert_eq!((&list["result"]["resultType"], &list["result"]["cacheScope"]), (&json!("complete"), &json!("private")));
    let read = ask(&gate, &[("mcp-name", "two://x")], "resources/read", json!({"uri": "two://x"})).await.json().await;
    assert_eq!(read["result"]["contents"][0]["text"], "two");
    let hidden = ask(&gate, &[("mcp-name", "hidden://two")], "resources/read", json!({"uri": "hidden://two"})).await;
    assert_eq!(hidden.json().await["result"]["contents"][0]["text"], "two");
}

/// As of `initialize`: a client would call a method that no server answers.
#[tokio::test]
async fn capabilities_that_are_not_routed_are_not_discovered() {
    let (one, two) = servers().await;
    *one.world.initialize_result.lock() = json!({"capabilities": {
        "tools": {}, "events": {}, "experimental": {"x": {}}, "extensions": {"a/b": {}},
    }});
    *two.world.initialize_result.lock() = json!({"capabilities": {"tools": {}}});
    let gate = combined(&one, &two, "").await;
    let discovered = ask(&gate, &[], "server/discover", json!({})).await.json().await;
    let tasks = json!({"io.modelcontextprotocol/tasks": {}});
    assert_eq!(discovered["result"]["capabilities"], json!({"tools": {}, "extensions": tasks}));
    assert_eq!(ask(&gate, &[], "events/list", json!({})).await.verdict().await, "404 -32601 id \"r\"");
}

/// MOD-06: a balancer sees the method and name that are run.
#[tokio::test]
async fn a_header_that_differs_from_the_body_is_refused_before_anything_is_sent() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let call = || json!({"name": "two__shared", "arguments": {"n": 1}});
    let good = ask(&gate, &[("mcp-name", "two__shared")], "tools/call", call()).await.json().await;
    assert_eq!(good["result"]["n"], 1, "{good}");
    for header in [Some("shared"), Some("one__shared"), None] {
        let headers: Vec<_> = header.map(|value| ("mcp-name", value)).into_iter().collect();
        assert_eq!(
            ask(&gate, &headers, "tools/call", call()).await.verdict().await,
            "400 -32020 id \"r\"",
            "{header:?}"
        );
    }
    assert_eq!((one.world.count("tools/call"), two.world.count("tools/call")), (0, 1));
    let unknown = ask(&gate, &[("mcp-name", "x")], "tools/call", json!({"name": "x", "arguments": {}})).await;
    assert_eq!(unknown.verdict().await, "200 -32602 id \"r\"");
    assert_eq!(ask(&gate, &[], "odd/method", json!({})).await.verdict().await, "404 -32601 id \"r\"");
    let other = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {}}});
    let shapeless = gate.client_without_session().request("POST").header("content-type", "application/json");
    let shapeless = shapeless.header("mcp-protocol-version", VERSION).header("mcp-method", "tools/list");
    let refused =
        gate.client_without_session().send(shapeless.body(Full::new(other.to_string().into())).unwrap()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_handle_is_found_at_the_endpoint_and_at_the_upstreams_path() {
    let (one, two) = servers().await;
    let text =
        text_of(&one, &two, "").replace("[[endpoints]]", "[upstreams.two.tasks]\nmode = \"always\"\n[[endpoints]]");
    let gate = TestGateway::serving(&text).await;
    let call = json!({"name": "two__shared", "arguments": {"n": 1}});
    let created = ask(&gate, &[("mcp-name", "two__shared")], "tools/call", call).await.json().await;
    let id = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned();
    let mut found = Vec::new();
    for path in ["/mcp", "/two/mcp", "/one/mcp"] {
        // It may run still.
        let settled = async {
            loop {
                let task =
                    ask_at(&gate, path, &[("mcp-name", &id)], "tasks/get", json!({"taskId": id})).await.json().await;
                if task["result"]["status"] != "working" {
                    return task["result"]["result"].clone();
                }
            }
        };
        found.push(in_time(settled).await["n"].clone());
    }
    assert_eq!(found, [1, 1, 1]);
    let unknown = "0123456789abcdef0123456789abcdef";
    let missing = ask(&gate, &[("mcp-name", unknown)], "tasks/get", json!({"taskId": unknown})).await;
    assert_eq!(missing.verdict().await, "200 -32602 id \"r\"");
}

/// Clients that write absent members write them so.
#[tokio::test]
async fn b206_a_cursor_of_null_asks_for_the_first_page_at_an_endpoint_and_at_a_servers_own_path() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    for path in ["/mcp", "/one/mcp"] {
        let page = ask_at(&gate, path, &[], "tools/list", json!({"cursor": null})).await.json().await;
        assert!(page["result"]["tools"].is_array(), "{path}: {page}");
        let refused = ask_at(&gate, path, &[], "tools/list", json!({"cursor": "x"})).await;
        assert_eq!(refused.verdict().await, "200 -32602 id \"r\"", "{path}");
    }
}

/// MOD-24.
#[tokio::test]
async fn one_stream_has_the_notifications_of_all_upstreams() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let wanted = json!({"notifications": {
        "toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["test://two_only"],
    }});
    let mut stream = ask(&gate, &[], "subscriptions/listen", wanted).await;
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let granted = stream.until("\n\n").await;
    assert!(granted.contains("notifications/subscriptions/acknowledged"), "{granted}");
    assert!(granted.contains("\"toolsListChanged\":true") && granted.contains("test://two_only"), "{granted}");
    assert!(!granted.contains("promptsListChanged"), "no server declares that: {granted}");
    let subscribed = two.world.first(|seen| seen.rpc() == "resources/subscribe").await;
    assert_eq!(subscribed.body["params"]["uri"], "test://two_only");
    assert_eq!(one.world.count("resources/subscribe"), 0);
}

/// U65: only a stream that lasts has missed something before.
#[tokio::test]
async fn u65_a_server_whose_streams_end_at_once_does_not_make_the_client_list_everything_again() {
    let (said, news) = Once::events();
    let acknowledged = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {
        "_meta": {"io.modelcontextprotocol/subscriptionId": "r"}, "notifications": {"toolsListChanged": true},
    }});
    let is_listen = |seen: &SeenRequest| seen.rpc() == "subscriptions/listen";
    said.message(&acknowledged);
    let ending = stateless(move |seen| {
        is_listen(seen).then(|| {
            let (events, reply) = BodySender::open();
            events.message(&acknowledged);
            reply
        })
    });
    let lasting = stateless(move |seen| if is_listen(seen) { news.take() } else { None });
    let (ending, lasting) = (ending.await, lasting.await);
    let gate = combined(&ending, &lasting, "").await;
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let mut stream = ask(&gate, &[], "subscriptions/listen", wanted).await;
    assert!(stream.until("\n\n").await.contains("subscriptions/acknowledged"));
    // At the third listen, a client that is notified of each stream would have been notified of the second.
    ending.world.nth(2, is_listen).await;
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": "r"}, "from": "lasting"});
    said.message(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params}));
    let next = stream.until("\n\n").await;
    assert!(next.contains("lasting"), "{next}");
}

/// U95: the server refuses each subscription that names an unknown resource.
#[tokio::test]
async fn u95_a_listener_hears_a_server_that_does_not_know_one_resource() {
    for code in [-32602, -32002] {
        let (refusing, granting_all) = (refusing("test://gone", code), SubscriptionServer::granting_all());
        let (speaker, other) = (Arc::clone(&refusing), Arc::clone(&granting_all));
        let (one, two) =
            (stateless(move |seen| speaker.reply(seen)).await, stateless(move |seen| other.reply(seen)).await);
        let gate = combined(&one, &two, "").await;
        let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": ["test://gone", "test://here"]});
        let mut stream = ask(&gate, &[], "subscriptions/listen", json!({"notifications": wanted})).await;
        let granted = stream.until("\n\n").await;
        assert!(granted.contains("\"toolsListChanged\":true") && granted.contains("test://here"), "{granted}");
        // The first stream was a trial of this resource alone.
        let told = refusing.stream(1).await;
        assert_eq!(told.asked(), &json!({"toolsListChanged": true, "resourceSubscriptions": ["test://here"]}));
        told.send(UPDATED, &json!({"uri": "test://here", "from": "one"}));
        let next = stream.until("\n\n").await;
        assert!(next.contains("\"from\":\"one\""), "{next}");
    }
}

#[tokio::test]
async fn a_server_that_answers_a_listener_at_once_is_not_reported_as_late() {
    for (has_stream, reason) in [(false, "upstream_malformed"), (true, "upstream_closed")] {
        let script = move |seen: &SeenRequest| {
            let done = || answer(seen, &json!({"resultType": "complete"}));
            (seen.rpc() == LISTEN).then(|| if has_stream { BodySender::open().1 } else { done() })
        };
        let (one, two) = (stateless(script).await, stateless(script).await);
        let gate = combined(&one, &two, "").await;
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let refused = ask(&gate, &[], "subscriptions/listen", wanted).await.json().await;
        assert_eq!(refused["error"]["data"]["reason"], reason, "{refused}");
    }
}

/// B249: the resource is withheld at one server alone, which is available. After an outage of a server, everything of
/// it would count as changed.
#[tokio::test]
async fn b249_a_listener_hears_a_server_at_which_a_resource_is_withheld() {
    const ADA: &str = "tg_ada1_0123456789abcdef0123456789abcdef";
    let (events, news) = Once::events();
    let one = server("one", move |seen| (seen.method == "GET").then(|| news.take()).flatten()).await;
    let two = server("two", |_| None).await;
    let rules = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.rules]]\n\
         upstreams = [\"one\"]\nresources = [\"hidden://*\"]\nallow = false\n[[auth.rules]]\nallow = true\n"
    );
    let gate = TestGateway::serving(&format!("{rules}{}", text_of(&one, &two, ""))).await;
    let bearer = format!("Bearer {ADA}");
    let listen = async |wanted: Value| {
        ask(&gate, &[("authorization", &bearer)], "subscriptions/listen", json!({"notifications": wanted})).await
    };
    let mut stream = listen(json!({"toolsListChanged": true, "resourceSubscriptions": ["hidden://two"]})).await;
    let granted = stream.until("\n\n").await;
    assert!(granted.contains("\"toolsListChanged\":true") && granted.contains("hidden://two"), "{granted}");
    let changed = "notifications/tools/list_changed";
    events.message(&json!({"jsonrpc": "2.0", "method": changed, "params": {"from": "one"}}));
    let mut next = stream.until("\n\n").await;
    while !next.contains("data:") {
        next = stream.until("\n\n").await;
    }
    assert!(next.contains(changed) && next.contains("\"from\":\"one\""), "{next}");
    assert_eq!(one.world.count("resources/subscribe"), 0);
}

/// EXT-47. A server's notifications may be unavailable; tasks are the gateway's own.
#[tokio::test]
async fn a_listener_without_the_extension_is_refused_tasks_beside_any_other_filter() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let mut said = meta();
    said["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let tasks = json!({"toolsListChanged": true, "taskIds": ["0123456789abcdef0123456789abcdef"]});
    let wanted = json!({"notifications": tasks, "_meta": said});
    let refused = ask(&gate, &[], "subscriptions/listen", wanted).await;
    assert_eq!(refused.verdict().await, "400 -32021 id \"r\"");
    let mut stream = ask(&gate, &[], "subscriptions/listen", json!({"notifications": tasks})).await;
    let granted = stream.until("\n\n").await;
    assert!(granted.contains("\"toolsListChanged\":true") && granted.contains("\"taskIds\":[]"), "{granted}");
}
