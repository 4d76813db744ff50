//! The ends of requests decide the operators' view of an upstream, over streamable HTTP: the gateway in a process of
//! its own, in front of a scripted server.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use support::scripted::{BodySender, ScriptedServer, SeenRequest, answer, json_text};
use support::standalone::client::{StandaloneClient, fault};
use support::standalone::gate::GatewayProcess;

/// A server whose tool `unreadable` says nothing that can be read, and whose tool `open` is the test's to end.
struct Odd {
    server: ScriptedServer,
    open: Arc<Mutex<Vec<BodySender>>>,
}

impl Odd {
    async fn start() -> Self {
        let open: Arc<Mutex<Vec<BodySender>>> = Arc::default();
        let kept = Arc::clone(&open);
        let server = ScriptedServer::start(move |seen| {
            let tools = ["unreadable", "open"].map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }));
            match (seen.rpc(), seen.body["params"]["name"].as_str().unwrap_or_default()) {
                ("tools/list", _) => Some(answer(seen, &json!({ "tools": tools }))),
                ("tools/call", "unreadable") => Some(json_text("{\"jsonrpc\":\"2.0\",")),
                ("tools/call", _) => {
                    let (events, reply) = BodySender::open();
                    events.raw(": nothing more\n\n");
                    kept.lock().push(events);
                    Some(reply)
                }
                // As servers do: of a call that is cancelled nothing more comes.
                ("notifications/cancelled", _) => {
                    kept.lock().clear();
                    None
                }
                _ => None,
            }
        })
        .await;
        Self { server, open }
    }

    async fn gate(&self) -> GatewayProcess {
        let url = self.server.url();
        let keys = format!("url = \"{url}\"\n[upstreams.up.tasks]\nmode = \"always\"\n");
        GatewayProcess::start(tempfile::tempdir().expect("a folder"), &keys).await
    }

    /// Ends all streams in order, once so many calls have come.
    async fn end(&self, calls: usize) {
        self.server.world.nth(calls - 1, SeenRequest::is_call).await;
        self.open.lock().clear();
    }
}

#[tokio::test]
async fn a_stream_that_ends_in_order_without_the_answer_is_a_failure_of_the_upstream() {
    let odd = Odd::start().await;
    let gate = odd.gate().await;
    let client = StandaloneClient::session(&gate).await;
    let mut running = client.ask(1, "tools/call", json!({ "name": "open", "arguments": {} })).await;
    odd.end(1).await;
    let (lost, _) = running.answer().await;
    assert_eq!(fault(&lost)["reason"], "upstream_closed", "{lost}");
    assert_eq!(gate.failures("upstream_closed").await, 1, "of a call in the pipe");
    let client = StandaloneClient::stateless(&gate);
    let task = client.task(1, "open", json!({})).await;
    odd.end(2).await;
    let task = client.settled(&task).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_closed", "{task}");
    assert_eq!(gate.failures("upstream_closed").await, 2, "of a task");
    // Its state is `ok` again once anything is answered, such as the request for the stream of a pooled session.
    let cause = &gate.health().await["last_failure"]["cause"];
    assert_eq!(*cause, "it ended the connection, or a stream without the answer");
    gate.until_logged("a stream without the answer").await;
    assert_eq!(gate.log().matches("a stream without the answer").count(), 1, "once a minute: {}", gate.log());
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_failure_of_the_upstream() {
    let odd = Odd::start().await;
    let gate = odd.gate().await;
    let client = StandaloneClient::stateless(&gate);
    let task = client.settled(&client.task(1, "unreadable", json!({})).await).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_malformed", "{task}");
    assert_eq!(gate.failures("upstream_malformed").await, 1);
}

/// The server ends the stream of a request that it need not answer.
#[tokio::test]
async fn a_call_that_its_client_takes_back_is_no_failure_and_the_next_one_is_one() {
    let odd = Odd::start().await;
    let gate = odd.gate().await;
    let client = StandaloneClient::session(&gate).await;
    let mut running = client.ask(1, "tools/call", json!({ "name": "open", "arguments": {} })).await;
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    while running.next().await.is_some() {}
    assert_eq!(gate.failures("upstream_closed").await, 0, "{}", gate.log());
    let stateless = StandaloneClient::stateless(&gate).with_tasks();
    let task = stateless.task(1, "open", json!({})).await;
    odd.server.world.nth(1, SeenRequest::is_call).await;
    stateless.ask(2, "tasks/cancel", json!({ "taskId": task })).await.answer().await;
    assert_eq!(stateless.settled(&task).await["status"], "cancelled");
    odd.server.world.nth(1, |seen| seen.rpc() == "notifications/cancelled").await;
    let mut running = client.ask(2, "tools/call", json!({ "name": "open", "arguments": {} })).await;
    odd.end(3).await;
    assert_eq!(fault(&running.answer().await.0)["reason"], "upstream_closed");
    assert_eq!(gate.failures("upstream_closed").await, 1, "{}", gate.log());
}
