//! The upstream's tools that the holder of a key sees and calls: by the names that clients know, for clients and
//! servers of both kinds.

use serde_json::{Value, json};

use super::client::TestGateway;
use super::peers::{PAIRS, Person, SESSION, STATELESS, server};
use super::upstream::SeenRequest;

/// Sees part of the tools.
const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
/// Sees all of them.
const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";

fn auth(ada: &str) -> String {
    format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n{ada}\n\
         [[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n"
    )
}

async fn meet(gate: &TestGateway, client: &str, key: &str) -> Person {
    Person::with(gate, client, &[("x-taskgate-key", key)]).await
}

/// The same answer with another name in it.
fn renamed(answer: &Value, from: &str, to: &str) -> Value {
    serde_json::from_str(&answer.to_string().replace(from, to)).unwrap()
}

#[tokio::test]
async fn every_kind_of_client_sees_and_calls_the_tools_of_its_key_and_no_trace_of_others() {
    let rules = "[[upstreams.up.tools]]\nmatch = \"generate_*\"\nrename = \"draw_*\"\n";
    for (client, kind) in PAIRS {
        for (names, seen) in [
            (r#"["draw_*", "plain"]"#, ["draw_report", "draw_map", "plain"].as_slice()),
            (r#"["*_map"]"#, &["draw_map", "make_map"]),
            (r#"["generate_*", "no-such-tool"]"#, &[]),
        ] {
            let server = server(kind).await;
            let url = format!("http://{}/mcp", server.address);
            let gate = TestGateway::open(&auth(&format!("tools = {names}")), &url, rules).await;
            let (ada, bob) = (meet(&gate, client, ADA).await, meet(&gate, client, BOB).await);
            let all = ["draw_report", "draw_map", "admin_drop", "make_map", "plain", "region"];
            // The key with more tools asks first, so that the cached list has all of them.
            assert_eq!(bob.tools().await, all, "{client} {kind}");
            assert_eq!(ada.tools().await, seen, "{client} {kind} {names}");
            let unknown = ada.ask("tools/call", json!({"name": "xyzzy", "arguments": {}})).await;
            assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
            for tool in all {
                let answer = ada.ask("tools/call", json!({"name": tool, "arguments": {}})).await;
                match seen.contains(&tool) {
                    true => assert!(answer["result"].is_object(), "{client} {kind} {names} {tool}: {answer}"),
                    false => assert_eq!(renamed(&answer, tool, "xyzzy"), unknown, "{client} {kind} {names}"),
                }
            }
            // A server may take another spelling for a name that is out of reach, or one of its own that it does not list.
            for tool in ["Admin_drop", "draw_nothing", "generate_report"] {
                let answer = ada.ask("tools/call", json!({"name": tool, "arguments": {}})).await;
                assert_eq!(renamed(&answer, tool, "xyzzy"), unknown, "{client} {kind} {names}");
            }
            assert_eq!(server.world.all(SeenRequest::is_call).len(), seen.len(), "nothing else was sent");
            assert!(!bob.call("region").await.starts_with('-'), "{client} {kind}");
        }
    }
}

/// A client without tasks continues by tools of the gateway's, with any set of the upstream's tools.
#[tokio::test]
async fn the_gateways_own_tools_are_there_for_every_key() {
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let url = format!("http://{}/mcp", server.address);
        let rules = "[upstreams.up.tasks]\nfallback = \"tools\"\n";
        let gate = TestGateway::open(&auth("tools = [\"plain\"]"), &url, rules).await;
        let ada = meet(&gate, client, ADA).await;
        assert_eq!(ada.tools().await, ["plain", "task_status", "task_result", "task_cancel"], "{client} {kind}");
        let arguments = json!({"id": "0123456789abcdef0123456789abcdef"});
        let answer = ada.ask("tools/call", json!({"name": "task_status", "arguments": arguments})).await;
        assert!(answer["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("task")), "{answer}");
    }
}

/// 2025-03-26 alone sends several at once.
#[tokio::test]
async fn an_element_of_an_array_reaches_no_tool_that_its_key_may_not_use() {
    for kind in [SESSION, STATELESS] {
        let server = server(kind).await;
        let url = format!("http://{}/mcp", server.address);
        let gate = TestGateway::open(&auth("tools = [\"plain\"]"), &url, "").await;
        let ada = meet(&gate, "2025-03-26", ADA).await;
        let call = |id: u32, tool: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {}}});
        let list = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": {}});
        let answers = ada.ask_all(&json!([call(1, "plain"), call(2, "region"), call(3, "xyzzy"), list])).await;
        let of = |id: u32| answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{answers:?}"));
        assert!(of(1)["result"].is_object(), "{kind}: {answers:?}");
        let same = |id| renamed(&json!({"error": of(id)["error"]}), if id == 2 { "region" } else { "xyzzy" }, "x");
        assert_eq!(same(2), same(3), "{kind}");
        assert_eq!(of(2)["error"]["code"], -32602, "{kind}: {answers:?}");
        assert!(!of(4).to_string().contains("generate_report"), "{kind}: {answers:?}");
        assert_eq!(server.world.all(SeenRequest::is_call).len(), 1, "{kind}");
    }
}
