//! Clients that are newer or older than their upstream.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::{Gate, call, initialize};
use crate::upstream::{Once, Seen, Server};

/// Asks for `client`, of an upstream that speaks `upstream` alone (`""`: whatever it is asked for). Says what
/// the upstream was asked for, what the client was told, and the header of a later request.
async fn handshake(client: &str, upstream: &'static str) -> (String, String, Option<String>) {
    let server = Server::polite().await;
    if !upstream.is_empty() {
        *server.world.introduction.lock() = json!({ "protocolVersion": upstream });
    }
    let gate = Gate::before(&server).await;
    let client = gate.client_of(client).await;
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
    let asked = server.world.first(|seen| seen.rpc() == "initialize").await;
    let header = server.world.first(Seen::is_call).await.header("mcp-protocol-version").map(str::to_owned);
    (asked.body["params"]["protocolVersion"].as_str().unwrap().to_owned(), client.version.unwrap(), header)
}

/// LEG-02, protocol.md 1.5: at most 2025-11-25 is answered, and each side keeps its own version.
#[tokio::test]
async fn each_side_keeps_the_version_that_it_speaks() {
    for (client, upstream, asked, told, header) in [
        ("2025-11-25", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
        ("2025-06-18", "", "2025-06-18", "2025-06-18", Some("2025-06-18")),
        ("2025-03-26", "", "2025-03-26", "2025-03-26", None),
        ("2024-11-05", "", "2024-11-05", "2024-11-05", None),
        ("2025-11-25", "2025-06-18", "2025-11-25", "2025-11-25", Some("2025-06-18")),
        ("2025-11-25", "2025-03-26", "2025-11-25", "2025-11-25", None),
        ("2025-06-18", "2025-11-25", "2025-06-18", "2025-06-18", Some("2025-11-25")),
        ("2025-03-26", "2025-11-25", "2025-03-26", "2025-03-26", Some("2025-11-25")),
        ("2026-07-28", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
        ("2026-06-30", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
        ("1999-01-01", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
    ] {
        let expected = (asked.to_owned(), told.to_owned(), header.map(str::to_owned));
        assert_eq!(handshake(client, upstream).await, expected, "{client} before {upstream}");
    }
}

#[tokio::test]
async fn an_upstream_that_speaks_no_session_version_is_malformed() {
    let server = Server::polite().await;
    *server.world.introduction.lock() = json!({ "protocolVersion": "2026-07-28" });
    let gate = Gate::before(&server).await;
    let reply = gate.stranger().post(initialize("2025-11-25", &json!({}))).await;
    let error = reply.json().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("upstream_malformed")));
}

/// UPC-22.
#[tokio::test]
async fn an_upstream_that_refuses_newer_versions_is_asked_for_its_own() {
    let server = Server::start(|seen| {
        let is_newer = seen.body["params"]["protocolVersion"] != "2025-03-26";
        let error =
            json!({"code": -32602, "message": "Unsupported", "data": {"supported": ["2025-03-26", "2024-11-05"]}});
        (seen.rpc() == "initialize" && is_newer).then(|| {
            crate::upstream::json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string())
        })
    })
    .await;
    let gate = Gate::before(&server).await;
    let client = gate.client_of("2025-11-25").await;
    assert_eq!(client.version.as_deref(), Some("2025-11-25"));
    let asked: Vec<Value> = server
        .world
        .all(|seen| seen.rpc() == "initialize")
        .iter()
        .map(|seen| seen.body["params"]["protocolVersion"].clone())
        .collect();
    assert_eq!(asked, [json!("2025-11-25"), json!("2025-03-26")]);
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
}

/// LEG-05.
#[tokio::test]
async fn only_a_version_that_nobody_knows_is_refused_in_the_header() {
    let server = Server::polite().await;
    let gate = Gate::before(&server).await;
    let mut client = gate.client().await;
    for (version, status) in [(None, 200), (Some("2025-03-26"), 200), (Some("2025-11-25"), 200), (Some("v9"), 400)] {
        client.version = version.map(str::to_owned);
        assert_eq!(client.post(call(1)).await.status.as_u16(), status, "{version:?}");
    }
}

/// T-28: older clients take the empty data for JSON.
#[tokio::test]
async fn priming_events_are_kept_from_clients_that_do_not_know_them() {
    let primer = "id: 1\nretry: 3000\ndata:\n\n";
    let rest = ": c\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    for (version, shown) in [("2025-11-25", format!("{primer}{rest}")), ("2025-06-18", rest.to_owned())] {
        let (events, stream) = Once::events();
        let server = Server::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = Gate::before(&server).await;
        let client = gate.client_of(version).await;
        for piece in primer.as_bytes().chunks(5).chain(rest.as_bytes().chunks(9)) {
            events.raw(piece.to_vec());
        }
        drop(events);
        assert_eq!(client.post(call(1)).await.text().await, shown, "{version}");
    }
}

/// Protocol.md 1.2: arrays of a 2025-03-26 server are taken apart for clients that have none.
#[tokio::test]
async fn arrays_reach_only_clients_that_know_them() {
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"n":1.10}}"#;
    let result = r#"{"jsonrpc":"2.0","id":1,"result":{"z":1,"a":2}}"#;
    let array = format!("[{log}, {result}]");
    for (version, json, event) in [
        ("2025-03-26", array.clone(), format!("id: 7\ndata: {array}\n\n")),
        (
            "2025-11-25",
            format!("event: message\ndata: {log}\n\nevent: message\ndata: {result}\n\n"),
            format!("data: {log}\n\nid: 7\ndata: {result}\n\n"),
        ),
    ] {
        for (media, sent, shown) in [
            ("application/json", array.clone(), &json),
            ("text/event-stream", format!("id: 7\ndata: {array}\n\n"), &event),
        ] {
            let (body, stream) = Once::body(media);
            let server = Server::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
            *server.world.introduction.lock() = json!({ "protocolVersion": "2025-03-26" });
            let gate = Gate::before(&server).await;
            body.raw(sent);
            drop(body);
            let client = gate.client_of(version).await;
            assert_eq!(client.post(call(1)).await.text().await, *shown, "{version} {media}");
        }
    }
}
