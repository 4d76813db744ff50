//! Subscriptions to tasks, which are the gateway's, and to the server's notifications, on one stream.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Client, Reply, TestGateway};
use super::in_time;
use super::peers::{body_of, client, post, server};
use super::speaker::{LISTEN, SubscriptionServer, TAG, TOOLS};
use super::upstream::{Once, ScriptedServer, SeenRequest};

const TAKES_TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
const ALWAYS: &str = "[upstreams.up.tasks]\nmode = \"always\"\npoll_interval = \"100ms\"";
/// How long the gateway keeps a list of tools for itself.
const KEPT_FOR: Duration = Duration::from_secs(5);

async fn speaking(speaker: &Arc<SubscriptionServer>, calls: Option<Arc<Once>>) -> ScriptedServer {
    let speaker = Arc::clone(speaker);
    server(move |seen| match &calls {
        Some(calls) if seen.is_call() => calls.take(),
        _ => speaker.reply(seen),
    })
    .await
}

async fn send(client: &Client, method: &str, params: &str) -> Reply {
    post(client, &body_of(method, TAKES_TASKS, params)).await
}

/// A stream, message by message.
struct Listener {
    reply: Reply,
    read: String,
}

impl Listener {
    async fn open(client: &Client, notifications: &Value) -> Self {
        let reply = send(client, LISTEN, &format!(r#""notifications":{notifications}"#)).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/event-stream")));
        Self { reply, read: String::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        in_time(async {
            loop {
                if let Some((event, rest)) = self.read.split_once("\n\n") {
                    let data: String = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
                    self.read = rest.to_owned();
                    if !data.is_empty() {
                        return Some(serde_json::from_str(&data).unwrap());
                    }
                    continue;
                }
                self.read.push_str(&self.reply.piece().await?);
            }
        })
        .await
    }

    /// The granted part of the acknowledgement; it comes first (MOD-24).
    async fn granted(&mut self) -> Value {
        let first = self.next().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(first["params"]["_meta"], json!({ TAG: "ab" }));
        first["params"]["notifications"].clone()
    }
}

/// EXT-49, EXT-51, MOD-24, MOD-25.
#[tokio::test]
async fn ext_49_tasks_and_notifications_of_the_server_come_on_one_stream_under_the_clients_own_id() {
    let speaker = SubscriptionServer::granting_all();
    let (calls, once) = Once::events();
    let server = speaking(&speaker, Some(once)).await;
    let gate = TestGateway::with(server.address, ALWAYS).await;
    let client = client(&gate);
    let handle = send(&client, "tools/call", r#""name":"t""#).await.json().await["result"].take();
    let id = handle["taskId"].as_str().unwrap();
    let seen = server.world.first(SeenRequest::is_call).await;
    let wishes = json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["file:///a"],
        "taskIds": [id, "x"],
    });
    let mut listener = Listener::open(&client, &wishes).await;
    assert_eq!(listener.granted().await, json!({ "toolsListChanged": true, "taskIds": [id] }), "the offered part");
    let told = speaker.stream(0).await;
    assert_eq!(told.asked(), &json!({ "toolsListChanged": true }), "tasks are the gateway's own");
    assert_ne!(told.seen.id(), "ab");
    assert_eq!(listener.next().await.unwrap()["params"]["status"], "working", "a snapshot");
    told.send(TOOLS, &json!({ "_meta": { "k": 1.5 } }));
    let expected = json!({ "jsonrpc": "2.0", "method": TOOLS, "params": { "_meta": { "k": 1.5, TAG: "ab" } } });
    assert_eq!(listener.next().await.unwrap(), expected);
    calls.result(&seen, &json!({ "resultType": "complete", "content": [] }));
    let settled = listener.next().await.unwrap();
    assert_eq!(
        (&settled["params"]["status"], &settled["params"]["_meta"]),
        (&json!("completed"), &json!({ TAG: "ab" }))
    );
    let last = async {
        let last = listener.next().await.unwrap();
        assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!("ab"), &json!("complete")));
        assert!(listener.next().await.is_none());
    };
    in_time(async { tokio::join!(Box::pin(gate.gateway.drain(Some(Duration::ZERO))), last) }).await;
    told.events.left().await;
}

/// MOD-37: a notification of a change ends the cache of a list at once.
#[tokio::test]
async fn a_change_that_is_heard_ends_the_gateways_own_tool_list_at_once() {
    let speaker = SubscriptionServer::granting_all();
    let server = speaking(&speaker, None).await;
    let gate = TestGateway::with(server.address, "").await;
    let client = client(&gate);
    let mut listener = Listener::open(&client, &json!({ "toolsListChanged": true, "taskIds": [] })).await;
    assert_eq!(listener.granted().await, json!({ "toolsListChanged": true, "taskIds": [] }));
    let call = async || send(&client, "tools/call", r#""name":"t""#).await.json().await;
    let asked = || server.world.count("tools/list");
    loop {
        let (began, before) = (Instant::now(), asked());
        call().await;
        call().await;
        // Two that were further apart say nothing.
        if began.elapsed() < KEPT_FOR {
            assert!(asked() <= before + 1, "kept for a moment");
            break;
        }
    }
    let before = asked();
    speaker.stream(0).await.send(TOOLS, &json!({}));
    assert_eq!(listener.next().await.unwrap()["method"], TOOLS);
    call().await;
    assert_eq!(asked(), before + 1);
}

#[tokio::test]
async fn a_server_that_cannot_be_listened_to_leaves_the_tasks() {
    let speaker = SubscriptionServer::of(|_| Err(-32601));
    let server = speaking(&speaker, None).await;
    let gate = TestGateway::with(server.address, "").await;
    let mut listener = Listener::open(&client(&gate), &json!({ "toolsListChanged": true, "taskIds": [] })).await;
    assert_eq!(listener.granted().await, json!({ "taskIds": [] }));
}

#[tokio::test]
async fn a_server_that_does_not_acknowledge_is_a_fault_that_may_pass() {
    let speaker = SubscriptionServer::of(|_| Ok(None));
    let server = speaking(&speaker, None).await;
    let gate = TestGateway::with(server.address, "").await;
    let reply = send(&client(&gate), LISTEN, r#""notifications":{"toolsListChanged":true,"taskIds":[]}"#).await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, Some("1")));
    speaker.stream(0).await.events.left().await;
}
