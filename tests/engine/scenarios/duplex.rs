//! The stateless face behind a stream, which has no headers (T-70).

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use support::serving;
use taskgate::face::endpoint::UpstreamEndpoint;
use taskgate::face::stream_client::{self, ClientMessage};
use tokio::sync::mpsc;

use super::script::Script;
use super::world::{Ask, GRACE, Rules, World, seconds};

/// Sends one request; the first message that comes back.
async fn ask(world: &World, params: Value) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
    });
    let mut message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    message["params"]["_meta"] = meta;
    let client = serving::stream_client(Arc::<UpstreamEndpoint>::clone(&world.face));
    let ((to, spoken), (outgoing, mut from)) = (mpsc::channel(1), mpsc::channel::<Bytes>(1));
    let asking = async {
        to.send(ClientMessage { text: message.to_string().into(), ..ClientMessage::default() }).await.unwrap();
        let answer = from.recv().await.unwrap();
        drop(to);
        serde_json::from_slice(&answer).unwrap()
    };
    tokio::join!(stream_client::serve(client, spoken, outgoing), asking).1
}

/// MOD-06: over HTTP the header must be there.
#[tokio::test(start_paused = true)]
async fn mod06_an_argument_that_is_wanted_in_a_header_needs_none_on_a_stream() {
    let world = World::with(Rules::default(), Script::returns(seconds(0), "done"));
    let arguments = json!({ "region": "eu" });
    let refused = world.send(&Ask::tool("mirrored").arguments(arguments.clone())).await;
    assert_eq!(refused.status, 400);
    let answer = ask(&world, json!({ "name": "mirrored", "arguments": arguments })).await;
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    assert_eq!(world.upstream.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_outlives_the_stream_that_asked_for_it() {
    let world = World::with(Rules::default(), Script::returns(GRACE + seconds(5), "done"));
    let handle = ask(&world, json!({ "name": "work" })).await["result"].take();
    let settled = world.settled(handle["taskId"].as_str().unwrap()).await;
    assert_eq!(settled["status"], "completed");
}
