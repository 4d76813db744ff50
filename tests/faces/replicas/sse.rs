//! A stream of HTTP+SSE that was opened at one replica, and messages for it that come to another.

use serde_json::json;

use super::harness::{Replicas, before};
use super::raw_replica::{Does, replica};
use super::upstream::{Once, ScriptedServer};
use crate::sse_face::client::{ADA, Stream};

#[tokio::test]
async fn messages_for_a_stream_reach_it_from_every_replica() {
    let (events, stream) = Once::events();
    let server =
        ScriptedServer::start(move |seen| (seen.body["params"]["name"] == "asks").then(|| stream.take()).flatten())
            .await;
    let replicas = Replicas::pair(&server).await;
    let mut client = Stream::open(replicas.all[0].gateway.address(), ADA).await;
    let [here, there] = [0, 1].map(|at| replicas.all[at].gateway.address());
    client.address = there;
    assert_eq!(client.initialize("2025-06-18").await["protocolVersion"], "2025-06-18");
    for (id, address) in [(1, there), (2, here), (3, there)] {
        client.address = address;
        client.call(id, "t", json!({ "n": id })).await;
        let (answer, _) = client.response().await;
        assert_eq!((answer["id"].clone(), answer["result"]["n"].clone()), (json!(id), json!(id)));
    }
    client.call(4, "asks", json!({})).await;
    events.message(&json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {} }));
    let question = client.message().await;
    assert_eq!(question["method"], "elicitation/create");
    client.address = here;
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } })).await;
    server.world.first(|seen| seen.body["result"]["action"] == "decline").await;
    events.message(&json!({ "jsonrpc": "2.0", "id": server.world.first(|seen| seen.body["params"]["name"] == "asks").await.body["id"], "result": {} }));
    assert_eq!(client.response().await.0["id"], 4);
    assert_eq!(server.world.count("initialize"), 1);
}

/// Events that a stream had not sent when its replica ended are lost.
#[tokio::test]
async fn a_stream_whose_replica_cannot_be_reached_may_be_tried_again_until_that_is_dead() {
    let server = ScriptedServer::polite().await;
    let mut replicas = Replicas::serving(2, &before(&server), &[]).await;
    let mut client = Stream::open(replicas.all[0].gateway.address(), ADA).await;
    client.address = replicas.all[1].gateway.address();
    client.initialize("2025-06-18").await;
    replicas.kill(0);
    let (status, said) = client.post(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string()).await;
    assert!(status == 503 && said.contains("replica_unavailable"), "{status} {said}");
    replicas.share_members();
    assert_eq!(client.post(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string()).await.0, 404);
}

/// The owner may have begun it: sent again, a tool could run twice. The stream has the outcome, or ends.
#[tokio::test]
async fn f86_a_message_that_its_streams_home_may_have_taken_is_not_asked_for_again() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let mut client = Stream::open(replicas.all[0].gateway.address(), ADA).await;
    client.address = replicas.all[1].gateway.address();
    client.initialize("2025-06-18").await;
    let (resetting, _read) = replica(&[Does::ReadAndReset]).await;
    replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.address)]);
    assert_eq!(
        client.post(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string()).await,
        (202, String::new())
    );
}
