//! Holders of keys that open some of an endpoint's upstreams, or some of their tools.

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

use super::{names, request, servers, text_of};
use crate::combined_wire::client::{Reply, TestGateway, initialize};

const ADA: &str = "tg_ada1_0123456789abcdef0123456789abcdef";
const BOB: &str = "tg_bob1_0123456789abcdef0123456789abcdef";

/// What a client with a key posts, in a session if it has one.
async fn post(gate: &TestGateway, key: &str, session: Option<&str>, body: String) -> Reply {
    let mut request = gate.stranger().request("POST").header("content-type", "application/json");
    request = request.header("authorization", format!("Bearer {key}"));
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    gate.stranger().send(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

async fn opened(gate: &TestGateway, key: &str) -> (String, Value) {
    let reply = post(gate, key, None, initialize("2025-11-25", &json!({}))).await;
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    (session, reply.json().await["result"].clone())
}

/// What a key does not open is not there: not in lists, not for calls, and no reason to ask its server.
#[tokio::test]
async fn a_key_sees_and_calls_at_an_endpoint_what_it_opens() {
    let (one, two) = servers().await;
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\nupstreams = [\"one\"]\n\
         [[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\ntools = [\"*_only\"]\n"
    );
    let gate = TestGateway::serving(&format!("{keys}{}", text_of(&one, &two, ""))).await;
    let (session, introduced) = opened(&gate, ADA).await;
    assert_eq!(introduced["instructions"], "# one\n\n> ask one");
    let list = post(&gate, ADA, Some(&session), request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(names(&list["result"]["tools"], "name"), ["one__shared", "one__one_only"]);
    let call = |tool: &str| request(2, "tools/call", &json!({"name": tool, "arguments": {"n": 1}}));
    let withheld = post(&gate, ADA, Some(&session), call("two__shared")).await.json().await;
    let unknown = post(&gate, ADA, Some(&session), call("two__nothing")).await.json().await;
    assert_eq!(withheld["error"]["code"], -32602);
    assert_eq!(withheld.to_string().replace("shared", "nothing"), unknown.to_string());
    let read = post(&gate, ADA, Some(&session), request(3, "resources/read", &json!({"uri": "hidden://two"}))).await;
    assert_eq!(read.verdict().await, "200 -32002 id 3");
    for place in ["two", "nobody"] {
        let cursor = json!({"cursor": format!("{place}:0")});
        let page = post(&gate, ADA, Some(&session), request(4, "tools/list", &cursor)).await;
        assert_eq!(page.verdict().await, "200 -32602 id 4", "{place}");
        let stream = gate.stranger().request("GET").header("authorization", format!("Bearer {ADA}"));
        let stream = stream.header("mcp-session-id", &session).header("last-event-id", format!("{place}!1"));
        let stream = gate.stranger().send(stream.body(Full::default()).unwrap()).await;
        assert_eq!(stream.status.as_u16(), 400, "{place}");
    }
    assert_eq!(two.world.all(|_| true).len(), 0, "nothing was asked of a server that is not ada's");

    let (session, _) = opened(&gate, BOB).await;
    let list = post(&gate, BOB, Some(&session), request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(names(&list["result"]["tools"], "name"), ["one__one_only", "two__two_only"]);
    let called = post(&gate, BOB, Some(&session), call("two__two_only")).await.json().await;
    assert_eq!(called["result"]["n"], 1);
    let withheld = post(&gate, BOB, Some(&session), call("two__shared")).await.json().await;
    assert_eq!(withheld["error"]["code"], -32602);
    assert!(
        withheld["error"]["message"].as_str().unwrap().contains("two__shared"),
        "the name that was asked: {withheld}"
    );
    assert_eq!(two.world.count("tools/call"), 1);
}
