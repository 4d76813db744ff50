//! How the gateway discovers an upstream's era, and at how many requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::time::Instant;

use super::client::{TestGateway, call, initialize};
use super::peers::{VERSION, body, body_of, client, default_reply, gate, post, server};
use super::upstream::{Once, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text, status};

fn error(seen: &SeenRequest, code: u16, error: i64, data: &serde_json::Value) -> ScriptedReply {
    let error = json!({"code": error, "message": "m", "data": data});
    let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    reply
}

/// Whether a stateless call came as it was, after the server answered `server/discover` so.
async fn is_passed(discover: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static) -> bool {
    let server = ScriptedServer::start(move |seen| match seen.rpc() {
        "server/discover" => Some(discover(seen)),
        // Otherwise a server of both eras.
        "initialize" => None,
        _ => default_reply(seen),
    })
    .await;
    let gate = gate(&server).await;
    let reply = post(&client(&gate), &body("x/y", "")).await;
    assert_eq!(server.world.count("server/discover"), 1);
    match server.world.count("x/y") {
        0 => assert_eq!(reply.verdict().await, "404 -32601 id \"ab\"", "unknown in front of sessions"),
        _ => assert_eq!(reply.status.as_u16(), 200),
    }
    server.world.count("x/y") == 1
}

/// UPC-22.
#[tokio::test]
async fn upc22_the_answer_to_discover_says_the_era() {
    let none = json!(null);
    assert!(is_passed(|seen| default_reply(seen).unwrap()).await, "a result");
    assert!(is_passed(|seen| error(seen, 400, -32022, &json!({"supported": [VERSION]}))).await);
    assert!(is_passed(|seen| error(seen, 400, -32020, &json!({}))).await);
    assert!(is_passed(|seen| error(seen, 400, -32021, &json!({}))).await);
    assert!(!is_passed(|seen| error(seen, 400, -32022, &json!({"supported": ["2025-11-25"]}))).await);
    let legacy = json!({"supportedVersions": ["2025-11-25"], "capabilities": {}});
    assert!(!is_passed(move |seen| answer(seen, &legacy)).await, "a result of other versions");
    for code in [200, 400, 404] {
        assert!(!is_passed(move |seen| error(seen, code, -32601, &json!({}))).await, "{code}");
    }
    let odd = none.clone();
    assert!(!is_passed(move |seen| error(seen, 400, -32600, &odd)).await);
    for code in [202, 401, 403, 404, 405, 500, 503] {
        assert!(!is_passed(move |_| status(code)).await, "{code}");
    }
    assert!(!is_passed(|_| json_text("<html>")).await);
}

#[tokio::test]
async fn an_upstream_that_hangs_costs_three_seconds_once() {
    // Nothing comes on it, and it does not end.
    let (_held, once) = Once::events();
    let server =
        ScriptedServer::start(move |seen| if seen.rpc() == "server/discover" { once.take() } else { None }).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let began = Instant::now();
    assert_eq!(post(&client, &body("prompts/list", "")).await.status.as_u16(), 200);
    let waited = began.elapsed();
    // The upper bound leaves time for a busy machine.
    assert!((Duration::from_secs(3)..Duration::from_secs(30)).contains(&waited), "{waited:?}");
    assert_eq!(post(&client, &body("prompts/list", "")).await.status.as_u16(), 200);
    assert_eq!((server.world.count("server/discover"), server.world.count("initialize")), (1, 1), "asked once");
}

/// UPC-22: another server stands behind the same address.
#[tokio::test]
async fn upc22_a_contradiction_is_asked_about_before_the_next_request() {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let replaced = Arc::clone(&is_replaced);
    let server = ScriptedServer::start(move |seen| match (replaced.load(Ordering::SeqCst), seen.rpc()) {
        (false, _) => default_reply(seen),
        (true, "initialize" | "notifications/initialized" | "") => None,
        (true, _) if seen.header("mcp-session-id").is_some() => None,
        (true, _) => Some(error(seen, 400, -32000, &json!({}))),
    })
    .await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let call = body("prompts/list", "");
    assert_eq!(post(&client, &call).await.status.as_u16(), 200);
    is_replaced.store(true, Ordering::SeqCst);
    assert_eq!(post(&client, &call).await.verdict().await, "400 -32000 id \"ab\"");
    assert_eq!(post(&client, &call).await.status.as_u16(), 200, "in a session now");
    assert_eq!(server.world.count("initialize"), 1);
    assert_eq!(server.world.count("server/discover"), 2);
}

/// A server with sessions that is later replaced by one without them.
async fn replaced_by_one_without_sessions(is_replaced: &Arc<AtomicBool>) -> ScriptedServer {
    let replaced = Arc::clone(is_replaced);
    ScriptedServer::start(move |seen| match (replaced.load(Ordering::SeqCst), seen.rpc()) {
        (false, "server/discover") => Some(error(seen, 400, -32601, &json!({}))),
        (false, _) => None,
        (true, _) if seen.header("mcp-protocol-version") == Some(VERSION) => default_reply(seen),
        (true, _) => Some(error(seen, 400, -32022, &json!({"supported": [VERSION]}))),
    })
    .await
}

#[tokio::test]
async fn upc22_a_server_that_is_replaced_by_one_without_sessions_is_used_without_them() {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let server = replaced_by_one_without_sessions(&is_replaced).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let call = body("prompts/list", "");
    assert_eq!(post(&client, &call).await.status.as_u16(), 200);
    assert_eq!(server.world.count("initialize"), 1, "in a session");
    is_replaced.store(true, Ordering::SeqCst);
    // The server refuses the session, and the next one.
    let _ = post(&client, &call).await.text().await;
    assert_eq!(post(&client, &call).await.status.as_u16(), 200);
    let last = server.world.all(|seen| seen.rpc() == "prompts/list").pop().unwrap();
    assert_eq!((last.header("mcp-protocol-version"), last.header("mcp-session-id")), (Some(VERSION), None));
}

#[tokio::test]
async fn upc22_a_server_that_has_lost_its_sessions_is_asked_for_its_era_again() {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let server = replaced_by_one_without_sessions(&is_replaced).await;
    let gate = gate(&server).await;
    assert_eq!(post(&client(&gate), &body("prompts/list", "")).await.status.as_u16(), 200);
    is_replaced.store(true, Ordering::SeqCst);
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    assert!(reply.header("mcp-session-id").is_some());
}

/// The client opens another session, which the gateway has alone.
#[tokio::test]
async fn upc22_a_session_that_the_next_server_cannot_have_ends() {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let server = replaced_by_one_without_sessions(&is_replaced).await;
    let gate = gate(&server).await;
    let session = gate.client().await;
    assert_eq!(session.post(call(1)).await.status.as_u16(), 200);
    is_replaced.store(true, Ordering::SeqCst);
    let _ = session.post(call(2)).await.text().await;
    assert_eq!(session.post(call(3)).await.status, StatusCode::NOT_FOUND);
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    assert!(reply.header("mcp-session-id").is_some());
}

/// A version that the operator fixed is not asked for.
#[tokio::test]
async fn a_fixed_version_is_believed() {
    for (version, passed) in [(VERSION, 1), ("2025-06-18", 0)] {
        let server = server(|seen| (seen.rpc() == "initialize").then(|| {
            answer(seen, &json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}))
        }))
        .await;
        let gate = TestGateway::with(server.address, &format!("protocol = \"{version}\"")).await;
        let _ = post(&client(&gate), &body("x/y", "")).await;
        assert_eq!((server.world.count("server/discover"), server.world.count("x/y")), (0, passed), "{version}");
    }
}

/// Each client's era, at a server of both.
#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_in_the_clients() {
    let server =
        ScriptedServer::start(|seen| if seen.rpc() == "initialize" { None } else { default_reply(seen) }).await;
    let gate = gate(&server).await;
    let session = gate.client().await;
    assert_eq!(session.post(call(1)).await.status.as_u16(), 200);
    assert_eq!(server.world.count("server/discover"), 0, "session clients ask nothing");
    assert_eq!(
        post(&client(&gate), &body("tools/call", r#""name":"t","arguments":{"k":1}"#)).await.json().await["result"]["k"],
        1
    );
    let calls = server.world.all(SeenRequest::is_call);
    let sessions: Vec<_> = calls.iter().map(|seen| seen.header("mcp-session-id").is_some()).collect();
    assert_eq!(sessions, [true, false]);
}

/// U107, T-72: an error of the list is not the outcome of the call.
#[tokio::test]
async fn u107_a_call_is_forwarded_to_a_server_that_refuses_to_list_its_tools() {
    let server = server(|seen| (seen.rpc() == "tools/list").then(|| error(seen, 200, -32603, &json!({})))).await;
    let gate = gate(&server).await;
    let call = body("tools/call", r#""name":"t","arguments":{"k":1}"#);
    let called = post(&client(&gate), &call).await.json().await;
    assert_eq!(called["result"]["k"], 1, "{called}");
}

/// The description of a server of 2026-07-28, with these capabilities.
fn described(seen: &SeenRequest, capabilities: &serde_json::Value) -> ScriptedReply {
    let facts = json!({"resultType": "complete", "supportedVersions": [VERSION], "capabilities": capabilities});
    answer(seen, &facts)
}

/// How the calls of a client that can be asked reach a server, one after the other: in sessions or not.
async fn sessions_of_calls(server: &ScriptedServer, gate: &TestGateway, capabilities: &[&str]) -> Vec<bool> {
    for capabilities in capabilities {
        let call = body_of("tools/call", capabilities, r#""name":"t","arguments":{"k":1}"#);
        let status = post(&client(gate), &call).await.status.as_u16();
        // A question that the client did not declare is 400 (MOD-10).
        assert!([200, 400].contains(&status), "{capabilities}: {status}");
    }
    let calls = server.world.all(SeenRequest::is_call);
    calls.iter().map(|seen| seen.header("mcp-session-id").is_some()).collect()
}

const ASKABLE: [&str; 3] = [r#"{"elicitation":{}}"#, r#"{"sampling":{}}"#, r#"{"roots":{}}"#];

/// UPC-28: the SDKs' servers answer both openings, and `server/discover` names 2026-07-28 alone.
#[tokio::test]
async fn upc28_clients_that_can_be_asked_are_served_in_sessions_where_there_are_any() {
    let both = |seen: &SeenRequest| if seen.rpc() == "initialize" { None } else { default_reply(seen) };
    let with_tasks = move |seen: &SeenRequest| match seen.rpc() {
        "server/discover" => {
            let extensions = json!({"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
            Some(described(seen, &extensions))
        }
        _ => both(seen),
    };
    let sessionless =
        |seen: &SeenRequest| if seen.rpc() == "initialize" { Some(status(404)) } else { default_reply(seen) };
    type Script = Box<dyn Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync>;
    let no_session_id = |seen: &SeenRequest| match seen.rpc() {
        "initialize" => {
            let info = json!({"name": "n", "version": "1"});
            Some(answer(seen, &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info})))
        }
        _ => default_reply(seen),
    };
    let rows: [(&str, Script, &str, bool, usize); 6] = [
        ("both eras", Box::new(both), "", true, 3),
        ("the tasks extension", Box::new(with_tasks), "", false, 0),
        ("a fixed version", Box::new(both), "protocol = \"2026-07-28\"", false, 0),
        ("sessions refused in words", Box::new(default_reply), "", false, 1),
        ("a handshake without a session", Box::new(no_session_id), "", false, 1),
        ("sessions refused by status", Box::new(sessionless), "", false, 1),
    ];
    for (what, script, key, in_sessions, handshakes) in rows {
        let server = ScriptedServer::start(script).await;
        let gate = TestGateway::with(server.address, key).await;
        assert_eq!(sessions_of_calls(&server, &gate, &["{}"]).await, [false], "{what}, a client that cannot be asked");
        assert_eq!(server.world.count("initialize"), 0, "{what}");
        let all = sessions_of_calls(&server, &gate, &ASKABLE).await;
        assert_eq!(all[1..], [in_sessions; 3], "{what}");
        assert_eq!(server.world.count("initialize"), handshakes, "{what}");
    }
}

/// UPC-28: a server that asks by results needs no session for it.
#[tokio::test]
async fn upc28_a_server_that_asked_by_a_result_is_spoken_to_without_sessions() {
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "initialize" => None,
        "tools/call" if seen.header("mcp-session-id").is_none() => {
            let params = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
            let requests = json!({"q": {"method": "elicitation/create", "params": params}});
            Some(answer(seen, &json!({"resultType": "input_required", "inputRequests": requests})))
        }
        _ => default_reply(seen),
    })
    .await;
    let gate = gate(&server).await;
    assert_eq!(sessions_of_calls(&server, &gate, &ASKABLE[..1]).await, [true]);
    let undeclared = post(&client(&gate), &body("tools/call", r#""name":"t","arguments":{}"#)).await;
    assert_eq!(undeclared.verdict().await, "400 -32021 id \"ab\"");
    assert_eq!(sessions_of_calls(&server, &gate, &ASKABLE).await[2..], [false; 3]);
}
