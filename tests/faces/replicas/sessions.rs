//! A session that was begun at one replica and is used at others.

use http::StatusCode;
use serde_json::json;

use super::client::call;
use super::harness::{Replicas, before};
use super::upstream::{Once, ScriptedServer, SeenRequest, answer};

fn is_get(seen: &SeenRequest) -> bool {
    seen.method == "GET"
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

/// One session at the server, at any replica that its client uses.
#[tokio::test]
async fn a_session_is_one_at_all_replicas_from_its_first_message_to_its_last() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({ "tools": [] }))),
        _ => is_get(seen).then(|| stream.take()).flatten(),
    })
    .await;
    let replicas = Replicas::pair(&server).await;
    let here = replicas.client().await;
    let there = replicas.at(1, &here);
    for client in [&there, &here, &there] {
        assert_eq!(client.post(LIST).await.json().await["result"], json!({ "tools": [] }));
        assert_eq!(client.post(call(7)).await.json().await["result"], json!({ "n": 7 }));
    }
    let mut own = there.get(None).await;
    assert_eq!((own.status, own.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    assert_eq!(own.header("taskgate-forwarded"), None, "clients see nothing of it");
    let news = "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    events.raw(news);
    assert_eq!(own.until("\n\n").await, news);
    drop(own);
    events.left().await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(there.post(note).await.status, StatusCode::ACCEPTED);
    server.world.first(|seen| seen.bytes == note.as_bytes()).await;
    assert_eq!(there.delete().await.status, StatusCode::OK);
    for client in [&here, &there] {
        assert_eq!(client.post(LIST).await.status, StatusCode::NOT_FOUND, "it has ended everywhere");
    }
    assert_eq!(server.world.count("initialize"), 1);
    let sessions = server.world.all(|seen| seen.rpc() != "initialize");
    assert!(sessions.iter().all(|seen| seen.header("mcp-session-id") == Some("s-1")), "{sessions:?}");
    assert!(sessions.iter().all(|seen| seen.header("taskgate-forward").is_none()), "{sessions:?}");
}

/// The call is held for its client at the session's owner, through any replica.
#[tokio::test]
async fn a_question_on_the_stream_of_a_call_at_one_replica_is_answered_at_another() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let replicas = Replicas::serving(3, &before(&server), &[]).await;
    let first = replicas.client().await;
    let progress = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"p\",\"progress\":1}}\n\n";
    events.raw(progress);
    let mut reply = replicas.at(1, &first).post(call(1)).await;
    assert_eq!(reply.until("\n\n").await, progress);
    let question = "data: {\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"elicitation/create\",\"params\":{}}\n\n";
    events.raw(question);
    assert_eq!(reply.until("\n\n").await, question);
    let said = r#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept","content":{"n":1.10}}}"#;
    assert_eq!(replicas.at(2, &first).post(said).await.status, StatusCode::ACCEPTED);
    server.world.first(|seen| seen.bytes == said.as_bytes()).await;
    let result = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    events.raw(result);
    drop(events);
    assert_eq!(reply.text().await, result);
}

/// T-81.
#[tokio::test]
async fn a_client_that_leaves_one_replica_has_left_the_sessions_home() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    events.raw("data: {}\n\n");
    let mut reply = there.post(call(1)).await;
    reply.until("\n\n").await;
    drop(reply);
    events.left().await;
    assert_eq!(there.post(call(2)).await.status, StatusCode::OK, "the session goes on");
}

#[tokio::test]
async fn an_array_of_messages_is_answered_at_the_sessions_home() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client_of("2025-03-26").await);
    let said = there.post(format!("[{},{}]", call(1), call(2))).await.text().await;
    let has = |n: u32| said.contains(&format!(r#""result":{{"n":{n}}}"#));
    assert_eq!((has(1), has(2), server.world.count("initialize")), (true, true, 1), "{said}");
    assert_eq!(there.post("[]").await.verdict().await, "400 -32600", "what no face reads needs no home");
}

#[tokio::test]
async fn a_session_at_an_endpoint_of_several_servers_is_one_at_all_replicas() {
    let list = |name: &'static str| {
        move |seen: &SeenRequest| {
            let tool = json!({ "name": name, "inputSchema": { "type": "object" } });
            (seen.rpc() == "tools/list").then(|| answer(seen, &json!({ "tools": [tool] })))
        }
    };
    let (one, two) = (ScriptedServer::start(list("a")).await, ScriptedServer::start(list("b")).await);
    let served = format!(
        "[upstreams.one]\nurl = \"{}\"\n[upstreams.two]\nurl = \"{}\"\n\
         [[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\", \"two\"]\n",
        one.url(),
        two.url()
    );
    let replicas = Replicas::serving(2, &served, &[]).await;
    let here = replicas.client().await;
    let there = replicas.at(1, &here);
    for client in [&there, &here, &there] {
        let listed = client.post(LIST).await.json().await;
        assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(2), "{listed}");
    }
    assert_eq!((one.world.count("initialize"), two.world.count("initialize")), (1, 1));
    assert_eq!(there.delete().await.status, StatusCode::OK);
    assert_eq!(here.post(LIST).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn large_bodies_go_through_both_ways() {
    let server = ScriptedServer::polite().await;
    let served = format!(
        "[limits]\nbody_bytes_max = \"8MiB\"\nresult_bytes_max = \"16MiB\"\n{}arguments_bytes_max = \"8MiB\"\n",
        before(&server)
    );
    let replicas = Replicas::serving(2, &served, &[]).await;
    let there = replicas.at(1, &replicas.client().await);
    let long = "x".repeat(6 << 20);
    let params = json!({ "name": "t", "arguments": { "long": long } });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let answer = there.post(body).await.json().await;
    assert!(answer["result"]["long"] == *long, "it is cut or changed");
    let too_long = "x".repeat(9 << 20);
    assert_eq!(there.post(too_long).await.status, StatusCode::PAYLOAD_TOO_LARGE, "where the client is");
}
