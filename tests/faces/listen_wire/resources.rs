//! Updates of resources: the gateway subscribes once at the server, and only as long as a client listens.

use serde_json::{Value, json};

use super::client::TestGateway;
use super::listener::{Listener, Streams, TAG, is_get, push, pushing};
use super::upstream::{ScriptedServer, json_text};

const UPDATED: &str = "notifications/resources/updated";

fn subscriptions(uris: &[&str]) -> Value {
    json!({ "resourceSubscriptions": uris })
}

fn asked(server: &ScriptedServer, method: &str) -> Vec<String> {
    let all = server.world.all(|seen| seen.rpc() == method);
    all.iter().map(|seen| seen.body["params"]["uri"].as_str().unwrap().to_owned()).collect()
}

/// GW-27.
#[tokio::test]
async fn a_resource_is_subscribed_to_once_and_taken_back_with_its_last_listener() {
    let (events, streams) = Streams::new(1);
    let server = pushing(streams).await;
    let gate = TestGateway::before(&server).await;
    let mut first = Listener::open(&gate, json!(1), &subscriptions(&["file:///a", "file:///b"])).await;
    assert_eq!(first.granted, subscriptions(&["file:///a", "file:///b"]));
    let mut second = Listener::open(&gate, json!(2), &subscriptions(&["file:///a"])).await;
    let mut told = asked(&server, "resources/subscribe");
    told.sort();
    assert_eq!(told, ["file:///a", "file:///b"]);
    push(&events[0], UPDATED, &json!({ "uri": "file:///b", "n": 1.5 }));
    push(&events[0], UPDATED, &json!({ "uri": "file:///c" }));
    push(&events[0], UPDATED, &json!({ "uri": "file:///a/part" }));
    let expected = json!({ "uri": "file:///b", "n": 1.5, "_meta": { TAG: 1 } });
    assert_eq!(first.next().await.unwrap()["params"], expected);
    assert_eq!(first.line().await, format!("{UPDATED} file:///a/part"));
    assert_eq!(second.line().await, format!("{UPDATED} file:///a/part"), "and neither b nor c");
    drop(first);
    let is_end = |uri: &'static str| {
        move |seen: &super::upstream::SeenRequest| {
            seen.rpc() == "resources/unsubscribe" && seen.body["params"]["uri"] == uri
        }
    };
    server.world.first(is_end("file:///b")).await;
    assert_eq!(asked(&server, "resources/unsubscribe"), ["file:///b"], "a client still listens to a");
    push(&events[0], UPDATED, &json!({ "uri": "file:///a" }));
    assert_eq!(second.line().await, format!("{UPDATED} file:///a"));
    drop(second);
    server.world.first(is_end("file:///a")).await;
    let again = Listener::open(&gate, json!(3), &subscriptions(&["file:///a"])).await;
    assert_eq!(again.granted, subscriptions(&["file:///a"]));
    assert_eq!(asked(&server, "resources/subscribe").len(), 3, "asked again after it was taken back");
}

/// MOD-24: the acknowledgement promises nothing that will not come.
#[tokio::test]
async fn a_subscription_that_the_server_refuses_is_not_acknowledged() {
    let (_events, streams) = Streams::new(1);
    let server = ScriptedServer::start(move |seen| match (is_get(seen), seen.body["params"]["uri"].as_str()) {
        (true, _) => streams.take(),
        (false, Some("file:///secret")) => {
            let error = json!({ "code": -32602, "message": "no" });
            Some(json_text(json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }).to_string()))
        }
        (false, _) => None,
    })
    .await;
    *server.world.initialize_result.lock() = json!({ "capabilities": { "resources": { "subscribe": true } } });
    let gate = TestGateway::before(&server).await;
    let listener = Listener::open(&gate, json!(1), &subscriptions(&["file:///secret", "file:///a"])).await;
    assert_eq!(listener.granted, subscriptions(&["file:///a"]));
    // A server that offers no subscriptions is asked for none.
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let listener = Listener::open(&gate, json!(1), &subscriptions(&["file:///a"])).await;
    assert_eq!((listener.granted, asked(&server, "resources/subscribe")), (json!({}), vec![]));
}
