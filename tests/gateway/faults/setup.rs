//! A ledger, a network that fails, a whole gateway in front of both, and a client with the extension.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::TestGateway;
use super::fault_proxy::FaultProxy;
use super::history::{Entry, Fact, History};
use super::ledger::Ledger;
use super::upstream::{WAIT_MAX, in_time};
use super::wire_client::{Answer, Flavour, WireClient};

pub(crate) struct Setup {
    pub(crate) ledger: Ledger,
    pub(crate) network: FaultProxy,
    pub(crate) gate: TestGateway,
    pub(crate) history: Arc<History>,
}

/// Calls of `work` are tasks, those of `work_auto` never are, and have time: no test is about their deadline.
const KEYS: &str = "[upstreams.up.tasks]\nmode = \"always\"\n\
    [[upstreams.up.tools]]\nmatch = \"work_auto\"\nmode = \"never\"\ndeadline = \"60s\"\n";

impl Setup {
    /// `keys` stand in the upstream's section.
    pub(crate) async fn new(is_resumable: bool, keys: &str) -> Self {
        let history = Arc::new(History::begin(Duration::ZERO));
        let ledger = Ledger::open(Arc::clone(&history), is_resumable).await;
        let network = FaultProxy::start(ledger.server.address).await;
        let gate = TestGateway::with(network.address, &format!("{keys}\n{KEYS}")).await;
        let setup = Self { ledger, network, gate, history };
        // The gateway's first requests to each server are no subject of the tests.
        let answer = setup.call("work_auto", "warm-up", json!({"ms": 1})).await;
        assert!(answer.text.contains("warm-up done"), "{answer:?}");
        setup
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.gate.gateway.address()
    }

    pub(crate) async fn ask(&self, method: &str, params: Value) -> Answer {
        wire().ask(self.address(), method, params).await
    }

    /// Makes a call; its answer.
    pub(crate) async fn call(&self, tool: &str, nonce: &str, mut arguments: Value) -> Answer {
        arguments["nonce"] = json!(nonce);
        self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Makes a call that is a task; its id.
    pub(crate) async fn start(&self, nonce: &str, arguments: Value) -> String {
        let answer = self.call("work", nonce, arguments).await;
        let task = answer.json()["result"]["taskId"].as_str().map(str::to_owned);
        task.unwrap_or_else(|| panic!("no handle: {answer:?}"))
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        self.ask("tasks/get", json!({"taskId": id})).await.json()["result"].take()
    }

    /// The task once it is settled.
    pub(crate) async fn settled(&self, id: &str) -> Value {
        in_time(async {
            loop {
                let task = self.task(id).await;
                if !["working", "input_required"].contains(&task["status"].as_str().unwrap_or_default()) {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    /// How often a call reached the upstream.
    pub(crate) fn calls(&self, nonce: &str) -> usize {
        let is_call = |entry: &&Entry| matches!(&entry.fact, Fact::Called { nonce: called } if called == nonce);
        self.history.entries().iter().filter(is_call).count()
    }
}

pub(crate) fn wire() -> WireClient {
    // Its gateway runs, on a machine of any load.
    WireClient { path: "/mcp", patience: WAIT_MAX, ..WireClient::new(Flavour::Extension) }
}

/// `completed`, or why a task failed and whether its call ran.
pub(crate) fn end(task: &Value) -> String {
    let data = &task["error"]["data"];
    match task["status"].as_str() {
        Some("failed") => format!("{} {}", data["reason"].as_str().unwrap(), data["executed"].as_str().unwrap()),
        status => status.unwrap_or("no status").to_owned(),
    }
}
