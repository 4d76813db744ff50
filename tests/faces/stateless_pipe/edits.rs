//! The few things that are edited, and errors that are about the gateway's own request.

use http::StatusCode;
use serde_json::{Value, json};

use super::peers::{body, body_of, client, gate, post, server};
use super::upstream::{ScriptedReply, SeenRequest, json_text};

/// EXT-01, EXT-60, GW-12, GW-13.
#[tokio::test]
async fn ext01_the_server_is_shown_with_the_extension_and_its_tools_without_execution() {
    let server = server(|_| None).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let discovered = post(&client, &body("server/discover", "")).await.json().await["result"].take();
    assert_eq!(discovered["supportedVersions"], json!(["2026-07-28"]));
    let extensions = json!({"io.modelcontextprotocol/tasks": {}});
    assert_eq!(discovered["capabilities"], json!({"tools": {"listChanged": true}, "extensions": extensions}));
    assert_eq!((&discovered["ttlMs"], &discovered["cacheScope"]), (&json!(60_000), &json!("public")));
    let list = post(&client, &body("tools/list", "")).await.text().await;
    let tools = r#"[{"name":"t", "inputSchema":{"n":1.10}},{"name":"region","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"Region"}}}}]"#;
    assert!(list.contains(tools) && list.contains(r#""ttlMs":7,"cacheScope":"public""#), "{list}");
}

fn refuse(seen: &SeenRequest, status: u16, error: &Value) -> ScriptedReply {
    let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply
}

/// MOD-09, GW-29: the upstream's error under each status, and the client's.
#[tokio::test]
async fn mod09_errors_pass_with_their_status_unless_they_are_about_the_gateways_request() {
    let needs = |capability: &str| json!({"requiredCapabilities": {capability: {}}});
    let rows = [
        ("x/1", 404, json!({"code": -32601, "message": "m"}), "404 -32601"),
        ("x/2", 400, json!({"code": -32602, "message": "m", "data": {"k": 1.5}}), "400 -32602"),
        ("x/3", 200, json!({"code": -32000, "message": "m"}), "200 -32000"),
        ("x/4", 400, json!({"code": -32020, "message": "m"}), "200 -32603"),
        ("x/5", 200, json!({"code": -32020, "message": "m"}), "200 -32603"),
        ("x/6", 400, json!({"code": -32021, "message": "m", "data": needs("sampling")}), "400 -32021"),
        ("x/7", 400, json!({"code": -32021, "message": "m", "data": needs("roots")}), "200 -32603"),
        ("x/8", 500, json!({"code": -32603, "message": "m"}), "200 -32603"),
    ];
    let answers = rows.clone();
    let server = server(move |seen| {
        let row = answers.iter().find(|(method, ..)| *method == seen.rpc())?;
        Some(refuse(seen, row.1, &row.2))
    })
    .await;
    let gate = gate(&server).await;
    let client = client(&gate);
    for (method, _, error, verdict) in rows {
        let reply = post(&client, &body_of(method, r#"{"roots":{}}"#, "")).await;
        assert_eq!(reply.verdict().await, format!("{verdict} id \"ab\""), "{method} {error}");
    }
}

/// The gateway's own pipeline comes first (GW-03), and removed methods are not sent.
#[tokio::test]
async fn mod06_a_request_that_the_gateway_refuses_never_goes_upstream() {
    let server = server(|_| None).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    for (what, body, verdict) in [
        ("argument without header", body("tools/call", r#""name":"region","arguments":{"r":"eu"}"#), "400 -32020"),
        ("arguments", body("tools/call", r#""name":"t","arguments":[]"#), "200 -32602"),
        ("another case", body("tools/call", r#""name":"t","RequestState":"x""#), "200 -32602"),
        ("initialize", body("initialize", ""), "404 -32601"),
        ("ping", body("ping", ""), "404 -32601"),
        ("tasks/list", body("tasks/list", ""), "404 -32601"),
        ("tasks/get", body("tasks/get", r#""taskId":"x""#), "400 -32021"),
    ] {
        assert_eq!(post(&client, &body).await.verdict().await, format!("{verdict} id \"ab\""), "{what}");
    }
    let passed = server.world.all(|seen| !matches!(seen.rpc(), "server/discover" | "tools/list"));
    assert!(passed.is_empty(), "{passed:?}");
}
