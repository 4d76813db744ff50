//! Notifications that the server sends only to subscribers, on the streams of sessions.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Client, TestGateway, call};
use super::server::{Stream, ask, discovered, open, stateless};
use super::speaker::{LISTEN, RESOURCES, SubscriptionServer, TOOLS, UPDATED, refusing};
use super::upstream::{ScriptedServer, answer};

async fn speaking(speaker: &Arc<SubscriptionServer>) -> ScriptedServer {
    let speaker = Arc::clone(speaker);
    stateless(move |seen| speaker.reply(seen)).await
}

async fn session(gate: &TestGateway) -> Client {
    open(gate, "2025-06-18", &json!({})).await
}

async fn stream_of(client: &Client) -> Stream {
    let reply = client.get(None).await;
    assert_eq!(reply.status, StatusCode::OK);
    Stream::of(reply)
}

/// The method of the next message, and its subject.
async fn line(stream: &mut Stream) -> String {
    let message = stream.next().await.expect("the stream goes on");
    let method = message["method"].as_str().unwrap();
    match message["params"]["uri"].as_str() {
        Some(uri) => format!("{method} {uri}"),
        None => method.to_owned(),
    }
}

async fn subscribe(client: &Client, what: &str, uri: &str) -> Value {
    ask(client, &format!("resources/{what}"), &json!({ "uri": uri })).await
}

/// UPC-15, UPC-21, GW-27: one stream for all sessions with the same notifications, from the first to the last of them.
#[tokio::test]
async fn list_changes_reach_all_sessions_that_have_a_stream_by_one_listen_upstream() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let clients = [session(&gate).await, session(&gate).await, session(&gate).await];
    assert_eq!(speaker.count(), 0, "a client without a stream costs nothing");
    let (mut first, mut second) = (stream_of(&clients[0]).await, stream_of(&clients[1]).await);
    let told = speaker.stream(0).await;
    assert_eq!(told.asked(), &json!({ "toolsListChanged": true, "resourcesListChanged": true }), "the declared lists");
    let header = |name| told.seen.header(name);
    assert_eq!((header("mcp-method"), header("mcp-session-id")), (Some(LISTEN), None));
    assert_eq!(header("mcp-protocol-version"), Some("2026-07-28"));
    // Once the first message has come both listen: the second one has been here for longer.
    told.send(TOOLS, &json!({ "_meta": { "k": 1.5 } }));
    let expected = json!({ "jsonrpc": "2.0", "method": TOOLS, "params": { "_meta": { "k": 1.5 } } });
    assert_eq!(first.next().await.unwrap(), expected, "and no word of the gateway's own subscription");
    told.send(RESOURCES, &json!({}));
    assert_eq!(line(&mut first).await, RESOURCES);
    while line(&mut second).await != RESOURCES {}
    assert_eq!(speaker.count(), 1);
    drop(first);
    told.send(TOOLS, &json!({}));
    assert_eq!(line(&mut second).await, TOOLS, "the other one listens on");
    drop(second);
    told.events.left().await;
}

/// GW-27: the sessions' subscriptions become the gateway's own.
#[tokio::test]
async fn subscriptions_are_kept_for_the_sessions_stream_and_change_its_filter_at_the_server() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    assert_eq!(subscribe(&client, "subscribe", "file:///a").await["result"], json!({}));
    assert_eq!(speaker.count(), 0, "no session has a stream");
    let mut own = stream_of(&client).await;
    let first = speaker.stream_about(&["file:///a"]).await;
    first.send(UPDATED, &json!({ "uri": "file:///a" }));
    assert_eq!(line(&mut own).await, format!("{UPDATED} file:///a"));
    assert_eq!(subscribe(&client, "subscribe", "file:///b").await["result"], json!({}));
    let second = speaker.stream_about(&["file:///a", "file:///b"]).await;
    second.send(UPDATED, &json!({ "uri": "file:///b", "n": 1 }));
    assert_eq!(line(&mut own).await, format!("{UPDATED} file:///b"), "nothing else has changed");
    first.events.left().await;
    assert_eq!(subscribe(&client, "unsubscribe", "file:///a").await["result"], json!({}));
    // No more than the sessions subscribe to.
    let third = speaker.stream_about(&["file:///b"]).await;
    for uri in ["file:///a", "file:///c", "file:///b"] {
        third.send(UPDATED, &json!({ "uri": uri }));
    }
    assert_eq!(line(&mut own).await, format!("{UPDATED} file:///b"));
    assert_eq!(ask(&client, "resources/subscribe", &json!({})).await["error"]["code"], -32602);
}

/// GW-27: an acknowledged subscription is kept, also while the session's stream is not read.
#[tokio::test]
async fn an_acknowledged_subscription_is_kept_while_the_client_does_not_read() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let clients = [session(&gate).await, session(&gate).await];
    let (mut idle, mut busy) = (stream_of(&clients[0]).await, stream_of(&clients[1]).await);
    let told = speaker.stream(0).await;
    // More than there is room for on the way to a client.
    for _ in 0..900 {
        told.send(RESOURCES, &json!({ "fill": "x".repeat(20_000) }));
    }
    told.send(TOOLS, &json!({}));
    while line(&mut busy).await != TOOLS {}
    assert_eq!(subscribe(&clients[0], "subscribe", "file:///a").await["result"], json!({}));
    // Another one subscribes to more, then to less: the gateway subscribes to the rest.
    assert_eq!(subscribe(&clients[1], "subscribe", "file:///b").await["result"], json!({}));
    let more = speaker.stream_about(&["file:///a", "file:///b"]).await;
    more.send(UPDATED, &json!({ "uri": "file:///b" }));
    let of_b = format!("{UPDATED} file:///b");
    while line(&mut busy).await != of_b {}
    assert_eq!(subscribe(&clients[1], "unsubscribe", "file:///b").await["result"], json!({}));
    more.events.left().await;
    let less = speaker.last();
    assert_eq!(less.uris(), ["file:///a"]);
    less.send(UPDATED, &json!({ "uri": "file:///a" }));
    let of_a = format!("{UPDATED} file:///a");
    while line(&mut idle).await != of_a {}
}

/// MOD-24: a client gets no promise of a subscription that was not acknowledged.
#[tokio::test]
async fn mod_24_a_subscription_that_the_server_does_not_grant_is_refused() {
    let speaker = SubscriptionServer::of(|asked| {
        let uris = asked["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
        let granted: Vec<_> = uris.into_iter().filter(|uri| uri != "file:///secret").collect();
        Ok(Some(json!({ "toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": granted })))
    });
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    let mut own = stream_of(&client).await;
    speaker.stream(0).await;
    assert_eq!(subscribe(&client, "subscribe", "file:///secret").await["error"]["code"], -32602);
    assert_eq!(subscribe(&client, "subscribe", "file:///a").await["result"], json!({}));
    let told = speaker.stream_about(&["file:///a"]).await;
    told.send(RESOURCES, &json!({}));
    told.send("notifications/prompts/list_changed", &json!({}));
    told.send(UPDATED, &json!({ "uri": "file:///secret" }));
    told.send("notifications/message", &json!({ "level": "info", "data": 1 }));
    told.events.raw("data: nonsense\n\n");
    told.events.message(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }));
    told.events
        .message(&json!({ "jsonrpc": "2.0", "method": TOOLS, "params": { "_meta": { super::speaker::TAG: "x" } } }));
    told.send(UPDATED, &json!({ "uri": "file:///a" }));
    assert_eq!(line(&mut own).await, format!("{UPDATED} file:///a"), "and nothing before");
}

/// UPC-18: lost, or ended in order (MOD-25), it is opened again, and anything may have changed in between.
#[tokio::test]
async fn upc_18_a_stream_that_ends_is_opened_anew_and_everything_may_have_changed() {
    for in_order in [true, false] {
        let speaker = SubscriptionServer::granting_all();
        let server = speaking(&speaker).await;
        let gate = TestGateway::before(&server).await;
        let client = session(&gate).await;
        subscribe(&client, "subscribe", "file:///a").await;
        let mut own = stream_of(&client).await;
        let first = speaker.stream(0).await;
        first.send(TOOLS, &json!({}));
        assert_eq!(line(&mut own).await, TOOLS);
        match in_order {
            true => first.events.result(&first.seen, &json!({ "resultType": "complete" })),
            false => first.events.cut(),
        }
        let mut said = [line(&mut own).await, line(&mut own).await, line(&mut own).await];
        said.sort();
        assert_eq!(said, [RESOURCES.to_owned(), format!("{UPDATED} file:///a"), TOOLS.to_owned()], "{in_order}");
        let second = speaker.stream(1).await;
        assert_ne!(second.seen.id(), first.seen.id());
        assert_eq!(second.asked(), first.asked());
        second.send(RESOURCES, &json!({}));
        assert_eq!(line(&mut own).await, RESOURCES);
    }
}

#[tokio::test]
async fn a_server_that_refuses_to_be_listened_to_is_asked_once_and_its_sessions_have_their_streams() {
    let speaker = SubscriptionServer::of(|_| Err(-32601));
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let clients = [session(&gate).await, session(&gate).await];
    let streams = [stream_of(&clients[0]).await, stream_of(&clients[1]).await];
    server.world.first(|seen| seen.rpc() == LISTEN).await;
    assert_eq!(subscribe(&clients[0], "subscribe", "file:///a").await["error"]["code"], -32602);
    assert_eq!(clients[0].post(call(1)).await.json().await["result"], json!({ "n": 1 }));
    assert_eq!(server.world.count(LISTEN), 2, "once for lists, once for the resource");
    drop(streams);
}

/// U95: a server may have removed a resource since the client subscribed to it.
#[tokio::test]
async fn u95_lists_and_known_resources_are_listened_for_beside_an_unknown_one() {
    for code in [-32602, -32002] {
        let speaker = refusing("file:///gone", code);
        let server = speaking(&speaker).await;
        let gate = TestGateway::before(&server).await;
        let client = session(&gate).await;
        for uri in ["file:///gone", "file:///here"] {
            assert_eq!(subscribe(&client, "subscribe", uri).await["result"], json!({}), "no session has a stream");
        }
        let mut own = stream_of(&client).await;
        // The first stream was a trial of this resource alone.
        let told = speaker.stream(1).await;
        let expected = json!({ "toolsListChanged": true, "resourcesListChanged": true, "resourceSubscriptions": ["file:///here"] });
        assert_eq!(told.asked(), &expected);
        told.send(UPDATED, &json!({ "uri": "file:///here" }));
        assert_eq!(line(&mut own).await, format!("{UPDATED} file:///here"));
        // A larger subscription does not name the refused one again.
        assert_eq!(subscribe(&client, "subscribe", "file:///more").await["result"], json!({}));
        let uris = ["file:///here", "file:///more"];
        let expected = json!({ "toolsListChanged": true, "resourcesListChanged": true, "resourceSubscriptions": uris });
        assert_eq!(speaker.stream(2).await.asked(), &expected);
    }
}

#[tokio::test]
async fn a_server_that_never_acknowledges_costs_a_bounded_wait_and_no_call() {
    let speaker = SubscriptionServer::of(|_| Ok(None));
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    let _own = stream_of(&client).await;
    let stream = speaker.stream(0).await;
    stream.send(TOOLS, &json!({}));
    let (answered, called) = tokio::join!(subscribe(&client, "subscribe", "file:///a"), client.post(call(1)));
    assert_eq!(called.json().await["result"], json!({ "n": 1 }));
    assert_eq!(answered["error"]["data"]["executed"], "no", "{answered}");
    stream.events.left().await;
}

#[tokio::test]
async fn a_flood_is_read_and_only_subscribed_notifications_are_forwarded() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    let mut own = stream_of(&client).await;
    let told = speaker.stream(0).await;
    for n in 0..900 {
        told.send(UPDATED, &json!({ "uri": format!("file:///{n}"), "fill": "x".repeat(2_000) }));
    }
    told.send(TOOLS, &json!({}));
    assert_eq!(line(&mut own).await, TOOLS);
    // A client that does not read gets as much as it can take, and delays no other.
    for _ in 0..900 {
        told.send(RESOURCES, &json!({ "fill": "x".repeat(20_000) }));
    }
    assert_eq!(client.post(call(1)).await.json().await["result"], json!({ "n": 1 }));
    assert_eq!(line(&mut own).await, RESOURCES);
}

/// LEG-08: no message comes on two streams.
#[tokio::test]
async fn of_several_streams_the_newest_is_told_and_the_end_of_the_session_ends_all() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker).await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    let mut older = stream_of(&client).await;
    let told = speaker.stream(0).await;
    told.send(TOOLS, &json!({}));
    assert_eq!(line(&mut older).await, TOOLS);
    let mut newer = stream_of(&client).await;
    // It gets notifications from its own beginning on, of any stream at the server.
    let mut heard = None;
    for _ in 0..100 {
        for n in 0..speaker.count() {
            speaker.stream(n).await.send(RESOURCES, &json!({}));
        }
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(100), newer.next());
        if let Ok(message) = waiting.await {
            heard = message;
            break;
        }
    }
    assert_eq!(heard.unwrap()["method"], RESOURCES);
    for n in 0..speaker.count() {
        speaker.stream(n).await.send(TOOLS, &json!({}));
    }
    while line(&mut newer).await != TOOLS {}
    assert_eq!(client.delete().await.status, StatusCode::OK);
    while newer.next().await.is_some() {}
    while let Some(message) = older.next().await {
        assert_ne!(message["method"], TOOLS, "it was the newer one's turn");
    }
    told.events.left().await;
}

/// LEG-07.
#[tokio::test]
async fn leg_07_a_server_that_tells_nothing_has_no_stream_for_sessions_without_tasks() {
    let server = stateless(|seen| {
        let mut said = discovered();
        said["capabilities"] = json!({ "tools": {}, "resources": {} });
        (seen.rpc() == "server/discover").then(|| answer(seen, &said))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate).await;
    let reply = client.get(None).await;
    assert_eq!((reply.status, reply.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("POST, DELETE")));
    assert_eq!(subscribe(&client, "subscribe", "file:///a").await["error"]["code"], -32601);
    let newer = open(&gate, "2025-11-25", &json!({})).await;
    assert_eq!(newer.get(None).await.status, StatusCode::OK, "tasks may have something to say");
    assert_eq!(server.world.count(LISTEN), 0);
}
