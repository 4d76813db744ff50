//! A replica that ends while others live: what is passed on to it or by it, and what others do in its place.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::client::{Client, initialize};
use super::harness::{Replicas, before};
use super::talk::SessionMessages;
use super::upstream::{BodySender, ScriptedServer, in_time};

/// A client that can be asked for what it declares, with a session that was begun at the first one.
async fn client(replicas: &Replicas) -> Client {
    let stranger = replicas.stranger(0);
    let declared = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
    let reply = stranger.post(initialize("2025-11-25", &declared)).await;
    let session = reply.header("mcp-session-id").map(str::to_owned);
    assert!(session.is_some(), "{}", reply.text().await);
    Client { session, version: Some("2025-11-25".to_owned()), ..stranger }
}

/// F67. Its client comes back to another one, and hears what it missed meanwhile from the session's home.
#[tokio::test]
async fn a_stream_that_a_replica_passes_on_ends_with_that_replica() {
    for is_endpoint in [false, true] {
        let server = ScriptedServer::start(move |seen| {
            (seen.method == "GET").then(|| {
                let (events, reply) = BodySender::open();
                events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
                // Open until nobody is interested.
                TaskTracker::new().spawn(async move { events.abandoned().await });
                reply
            })
        })
        .await;
        let mut replicas = in_front_of(&server, is_endpoint).await;
        let there = replicas.at(1, &client(&replicas).await);
        let reply = there.get(None).await;
        assert_eq!(reply.status, StatusCode::OK);
        let mut own = SessionMessages::of(reply);
        in_time(own.next_of("notifications/tools/list_changed")).await;
        let second = replicas.all.remove(1);
        let draining = TaskTracker::new().spawn(second.gateway.drain(Some(Duration::ZERO)));
        assert_eq!(in_time(own.next()).await, None);
        in_time(draining).await.unwrap();
    }
}

/// At its own path, and at an endpoint of several servers.
async fn in_front_of(server: &ScriptedServer, is_endpoint: bool) -> Replicas {
    let served = match is_endpoint {
        false => before(server),
        true => format!(
            "[upstreams.up]\nurl = \"{}\"\n[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"up\"]\nprefix = \"auto\"\n",
            server.url()
        ),
    };
    Replicas::serving(3, &served, &[]).await
}
