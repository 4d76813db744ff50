//! `transport = "auto"`: which of the two HTTP transports a server speaks is found out, and found out again.

use serde_json::json;

use super::client::{StandaloneClient, fault, text};
use super::gate::GatewayProcess;
use super::scripted::{ScriptedServer, status};
use super::server::{Sse, both};

async fn gate_of(server: &ScriptedServer) -> GatewayProcess {
    GatewayProcess::start(tempfile::tempdir().unwrap(), &format!("url = \"{}\"\n", server.url())).await
}

#[tokio::test]
async fn a_server_that_refuses_streamable_http_is_spoken_to_over_sse_and_that_is_remembered() {
    let sse = Sse::start().await;
    let gate = sse.gate("").await;
    for client in both(&gate).await {
        assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
    }
    let refused = sse.world().all(|seen| seen.method == "POST" && seen.target == "/sse" && seen.rpc() == "initialize");
    assert_eq!(refused.len(), 1, "the second session is opened over SSE at once");
    gate.until_logged("the server speaks HTTP+SSE").await;
}

#[tokio::test]
async fn a_server_that_is_replaced_is_found_out_anew() {
    let sse = Sse::start().await;
    let gate = sse.gate("").await;
    let [session, stateless] = both(&gate).await;
    for is_streamable in [false, true, false, true] {
        sse.habits(|habits| habits.is_streamable = is_streamable);
        sse.cut();
        // A call that meets the change may be lost; the next one is not.
        for client in [&session, &stateless] {
            let mut answers = Vec::new();
            for id in 1..4 {
                let answer = client.call(id, "echo", json!({ "text": "hi" })).await;
                answers.push(answer.clone());
                if answer.get("result").is_some() {
                    break;
                }
            }
            assert!(
                answers.last().unwrap().get("result").is_some(),
                "{is_streamable} {client:?} {answers:#?}\n{}",
                gate.log()
            );
        }
    }
}

#[tokio::test]
async fn a_refusal_stands_where_there_is_no_other_way() {
    let server = ScriptedServer::start(|seen| (seen.rpc() == "initialize").then(|| status(400))).await;
    let gate = gate_of(&server).await;
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!(fault(&refused)["httpStatus"], 400, "{refused}");
    let streams = server.world.all(|seen| seen.method == "GET").len();
    assert_eq!(streams, 4, "it was asked for a stream after each version of sessions that it refused (UPC-22)");
}

#[tokio::test]
async fn no_other_way_is_tried_where_the_transport_is_written() {
    let sse = Sse::start().await;
    let gate = sse.gate("transport = \"streamable-http\"\n").await;
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!(fault(&refused)["httpStatus"], 405, "{refused}");
    assert_eq!(sse.streams(), 0);
    assert!(sse.world().all(|seen| seen.method == "GET").is_empty());
}

/// Only a refusal leads to the other way: a server in trouble is asked again the same way.
#[tokio::test]
async fn a_server_in_trouble_is_not_taken_for_another_kind() {
    let server = ScriptedServer::start(|seen| (seen.rpc() == "initialize").then(|| status(503))).await;
    let gate = gate_of(&server).await;
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!(fault(&refused)["httpStatus"], 503, "{refused}");
    assert!(server.world.all(|seen| seen.method == "GET").is_empty());
}
