//! `initialize`, which the server does not know.

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{TestGateway, initialize};
use super::server::{discovered, refused, stateless};
use super::upstream::{ScriptedServer, answer, status};

/// LEG-02, EXT-64, GW-12.
#[tokio::test]
async fn leg_02_a_server_without_sessions_is_described_in_the_version_of_each_client() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let declared = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}, "roots": {"listChanged": true}});
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("next", "2025-11-25"),
    ] {
        let reply = gate.client_without_session().post(initialize(asked, &declared)).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert!(reply.header("mcp-session-id").is_some());
        let mut expected = json!({
            "protocolVersion": answered, "instructions": "be kind",
            "capabilities": {
                "tools": {"listChanged": true}, "resources": {"subscribe": true, "listChanged": true}, "logging": {},
            },
            "serverInfo": {"name": "stateless", "version": "7"},
        });
        if answered == "2025-11-25" {
            let tasks = json!({"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}});
            expected["capabilities"]["tasks"] = tasks;
        }
        assert_eq!(reply.json().await["result"], expected, "{asked}");
    }
}

#[tokio::test]
async fn a_server_that_is_said_to_know_no_sessions_is_asked_for_none() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::with(server.address, "protocol = \"2026-07-28\"").await;
    let reply = gate.client_without_session().post(initialize("2025-06-18", &json!({}))).await;
    assert_eq!(reply.json().await["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(server.world.count("initialize"), 0);
}

/// UPC-22: never keyed to one code.
#[tokio::test]
async fn upc_22_after_any_refusal_of_initialize_the_server_is_asked_for_its_era() {
    for (code, error) in [
        (404, Some(json!({"code": -32601, "message": "Method not found"}))),
        (200, Some(json!({"code": -32601, "message": "Method not found"}))),
        (400, Some(json!({"code": -32020, "message": "Mcp-Method is missing"}))),
        (400, Some(json!({"code": -32602, "message": "_meta is missing"}))),
        (400, None),
        (404, None),
        (405, None),
    ] {
        let shown = format!("{code} {error:?}");
        let server = stateless(move |seen| {
            let refusal = || error.as_ref().map_or_else(|| status(code), |error| refused(seen, code, error));
            (seen.rpc() == "initialize").then(refusal)
        })
        .await;
        let gate = TestGateway::before(&server).await;
        let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
        assert!(reply.header("mcp-session-id").is_some(), "{shown}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_server_with_sessions_is_passed_on() {
    let server = ScriptedServer::start(|seen| {
        let code = if seen.rpc() == "initialize" { -32001 } else { -32601 };
        Some(refused(seen, 200, &json!({"code": code, "message": "no"})))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    assert_eq!((reply.status, reply.header("mcp-session-id")), (StatusCode::OK, None));
    assert_eq!(reply.json().await["error"]["code"], -32001);
}

#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_in_sessions() {
    let server =
        ScriptedServer::start(|seen| (seen.rpc() == "server/discover").then(|| answer(seen, &discovered()))).await;
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    let result: Value = reply.json().await;
    assert_eq!(result["result"]["serverInfo"]["name"], "scripted");
    assert_eq!(server.world.count("server/discover"), 0);
}
