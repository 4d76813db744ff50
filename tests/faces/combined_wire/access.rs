//! Holders of keys that open some of an endpoint's upstreams, or some of their tools.

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set};
use taskgate::task::{Clock as _, SystemClock};

use super::{names, request, servers, text_of};
use crate::combined_wire::client::{Reply, TestGateway, initialize};

const ADA: &str = "tg_ada1_0123456789abcdef0123456789abcdef";
const BOB: &str = "tg_bob1_0123456789abcdef0123456789abcdef";

/// A POST of a client with a key, in a session if it has one.
async fn post(gate: &TestGateway, key: &str, session: Option<&str>, body: String) -> Reply {
    let mut request = gate.client_without_session().request("POST").header("content-type", "application/json");
    request = request.header("authorization", format!("Bearer {key}"));
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    gate.client_without_session().send(request.body(Full::new(Bytes::from(body))).unwrap()).await
}

async fn opened(gate: &TestGateway, key: &str) -> (String, Value) {
    let reply = post(gate, key, None, initialize("2025-11-25", &json!({}))).await;
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    (session, reply.json().await["result"].clone())
}

/// An item that a key does not open is absent: from lists and from calls, and its server is not asked.
#[tokio::test]
async fn a_key_sees_and_calls_at_an_endpoint_only_its_upstreams_and_tools() {
    let (one, two) = servers().await;
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\nupstreams = [\"one\"]\n\
         [[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\ntools = [\"*_only\"]\n"
    );
    let gate = TestGateway::serving(&format!("{keys}{}", text_of(&one, &two, ""))).await;
    let (session, initialized) = opened(&gate, ADA).await;
    assert_eq!(initialized["instructions"], "# one\n\n> ask one");
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
        let stream = gate.client_without_session().request("GET").header("authorization", format!("Bearer {ADA}"));
        let stream = stream.header("mcp-session-id", &session).header("last-event-id", format!("{place}!1"));
        let stream = gate.client_without_session().send(stream.body(Full::default()).unwrap()).await;
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

/// Where one upstream alone may have it, the server answers as at its own path; of several, none is asked.
#[tokio::test]
async fn t_72_a_name_that_no_list_has_is_asked_of_the_only_upstream_that_may_have_it() {
    let (one, two) = servers().await;
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\nupstreams = [\"one\"]\n\
         [[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n"
    );
    let gate = TestGateway::serving(&format!("{keys}{}", text_of(&one, &two, "prefix = \"auto\""))).await;
    for (key, method, name, expected) in [
        (ADA, "tools/call", "unlisted", "200 answered"),
        (ADA, "prompts/get", "unlisted", "200 answered"),
        (ADA, "tools/call", "two__unlisted", "200 -32602 id 2"),
        (BOB, "tools/call", "unlisted", "200 -32602 id 2"),
        (BOB, "prompts/get", "unlisted", "200 -32602 id 2"),
    ] {
        let (session, _) = opened(&gate, key).await;
        let reply = post(&gate, key, Some(&session), request(2, method, &json!({"name": name, "arguments": {}}))).await;
        let verdict = reply.verdict().await;
        let is_expected = verdict == expected || (expected == "200 answered" && verdict.contains("\"result\""));
        assert!(is_expected, "{key} {method} {name}: {verdict}");
    }
    let asked = [&one, &two].map(|server| (server.world.count("tools/call"), server.world.count("prompts/get")));
    assert_eq!(asked, [(1, 1), (0, 0)]);
}

const RULES: &str = r#"
[[auth.rules]]
who = { scopes = ["write"] }
upstreams = ["two"]
tools = ["two_only", "maybe"]
prompts = ["two_only"]
resources = ["hidden://two"]
allow = true
[[auth.rules]]
upstreams = ["one"]
tools = ["maybe"]
allow = true
[[auth.rules]]
tools = ["shared"]
prompts = ["shared"]
resources = ["test://shared"]
allow = true
"#;

/// The challenge is the one of the upstream's own path, on any way to the upstream, so that a client can ask for the
/// scope.
#[tokio::test]
async fn u49_a_scope_that_is_missing_is_named_at_an_endpoint() {
    let (one, two) = servers().await;
    let (key, folder) = (IssuerKey::es256("k1"), tempfile::tempdir().unwrap());
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, key_set([&key])).unwrap();
    let served = format!(
        "public_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\n\
         issuer = \"https://login.example\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n{RULES}{}",
        keys.display(),
        text_of(&one, &two, "prefix = \"auto\"")
    );
    let gate = TestGateway::serving(&served).await;
    let end = SystemClock.now().as_millis() / 1_000 + 300;
    let token = |scope: &str| {
        let aud = ["https://mcp.example/mcp", "https://mcp.example/two/mcp"];
        let claims = json!({"iss": "https://login.example", "sub": "ada", "aud": aud, "exp": end, "scope": scope});
        key.token(&claims)
    };
    let (reader, writer) = (token("read"), token("write"));
    let (session, _) = opened(&gate, &reader).await;
    let asks = [
        ("tools/call", json!({"name": "two_only", "arguments": {}})),
        ("tools/call", json!({"name": "two__two_only", "arguments": {}})),
        ("prompts/get", json!({"name": "two_only"})),
        ("prompts/get", json!({"name": "two__two_only"})),
        ("resources/read", json!({"uri": "hidden://two"})),
        ("resources/subscribe", json!({"uri": "hidden://two"})),
    ];
    for (method, params) in &asks {
        let refused = post(&gate, &reader, Some(&session), request(2, method, params)).await;
        let challenge = refused.header("www-authenticate").unwrap_or_default().to_owned();
        let is_named = challenge.contains("error=\"insufficient_scope\"") && challenge.contains("write");
        assert!(refused.status == 403 && is_named, "{method} {params}: {} {challenge}", refused.status);
    }
    let sent = ["tools/call", "prompts/get", "resources/read"].map(|method| two.world.count(method));
    assert_eq!(sent, [0; 3]);
    // `maybe` may be a tool of the other server, where no scope is missing.
    for name in ["nothing", "maybe"] {
        let unknown = request(3, "tools/call", &json!({"name": name, "arguments": {}}));
        assert_eq!(post(&gate, &reader, Some(&session), unknown).await.verdict().await, "200 -32602 id 3", "{name}");
    }
    let (session, _) = opened(&gate, &writer).await;
    for (method, params) in &asks {
        let reply = post(&gate, &writer, Some(&session), request(2, method, params)).await.json().await;
        assert!(reply["result"].is_object(), "{method} {params}: {reply}");
    }
}
