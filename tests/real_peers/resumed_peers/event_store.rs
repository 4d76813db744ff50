//! The TypeScript SDK's server with an event store: streams are resumed where they broke off.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::caller::{Caller, Question};
use super::install::Peers;
use super::life::{End, Gateway};
use super::peer::{PeerServer, Program};
use super::wire_client::{Flavour, WireClient};

/// When the server lets a call go: while no gateway is there, or once the next one is.
const WHEN: [&str; 2] = ["away", "back"];
const HELD: [&str; 3] = ["work", "quiet", "part"];

/// A task, and its server's result.
struct Made {
    caller: usize,
    id: Value,
    nonce: String,
    expected: String,
    question: Option<Question>,
}

/// Talks to the server past the gateway.
struct Control {
    wire: WireClient,
    server: SocketAddr,
}

impl Control {
    async fn open(server: SocketAddr) -> Self {
        let mut wire = WireClient { path: "/mcp", ..WireClient::new(Flavour::Core(None)) };
        assert!(wire.open(server).await, "the server opens a session");
        Self { wire, server }
    }

    async fn call(&self, tool: &str, arguments: Value) -> String {
        let answer =
            self.wire.ask(self.server, "tools/call", json!({"name": tool, "arguments": arguments})).await.json();
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{tool}: {answer}")).to_owned()
    }

    async fn release(&self, made: &[Made], when: &str) {
        let nonces: Vec<_> = made.iter().map(|one| &one.nonce).filter(|nonce| nonce.ends_with(when)).collect();
        assert_eq!(nonces.len(), 2 * HELD.len());
        self.call("release", json!({"nonces": nonces})).await;
    }

    /// The counts of each call: made, cancelled and ended.
    async fn ledger(&self) -> BTreeMap<String, [u64; 3]> {
        let text = self.call("ledger", json!({})).await;
        let pages: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        let counts = |page: &Value| ["calls", "cancelled", "ended"].map(|count| page[count].as_u64().unwrap());
        pages.iter().map(|(nonce, page)| (nonce.clone(), counts(page))).collect()
    }
}

/// Makes all calls, of both callers, and waits for their questions.
async fn make(callers: &[Caller]) -> Vec<Made> {
    let mut made = Vec::new();
    for (caller, who) in callers.iter().enumerate() {
        let held = HELD.iter().flat_map(|tool| WHEN.map(|when| (*tool, when)));
        // One question is seen before the gateway ends, the other one only after it.
        for (tool, when) in held.chain([("ask", "seen"), ("ask", "unseen")]) {
            let nonce = format!("{}-{tool}-{when}", who.name());
            let id = who.start(tool, &json!({"nonce": nonce})).await;
            let expected = if tool == "ask" { format!("{nonce}: accept Ada") } else { format!("{nonce}: worked") };
            let question = if when == "seen" { Some(who.question(&id).await) } else { None };
            made.push(Made { caller, id, nonce, expected, question });
        }
    }
    made
}

async fn every_task_completes(how: End, test: &'static str) {
    let Some(peers) = Peers::find("a gateway that ends in the middle of resumable calls") else { return };
    let server = PeerServer::start(Program::Resumable, &peers, test).await.unwrap();
    let control = Control::open(server.address).await;
    let mut gateway = Gateway::start(test, &server.url(), "").await;
    let mut callers = Caller::both(gateway.address).await;
    let made = make(&callers).await;
    gateway.keeps(made.len()).await;

    gateway.end(how).await;
    let before = control.ledger().await;
    assert_eq!(before.len(), made.len());
    assert!(before.values().all(|counts| *counts == [1, 0, 0]), "U24: calls are left, not cancelled: {before:?}");
    control.release(&made, "away").await;
    gateway.start_again().await;
    callers.iter_mut().for_each(|caller| caller.moves(gateway.address));
    control.release(&made, "back").await;

    for one in &made {
        let caller = &callers[one.caller];
        let name = json!({"name": "Ada"});
        match &one.question {
            Some(seen) => caller.answer_as_seen(&one.id, seen, &name).await,
            None if one.nonce.contains("ask") => {
                let asked = caller.question(&one.id).await;
                caller.answer(&one.id, &asked.key, &name).await;
            }
            None => {}
        }
        assert_eq!(caller.text(&one.id).await, one.expected);
    }
    let after = control.ledger().await;
    assert_eq!(after.len(), made.len());
    assert!(after.values().all(|counts| *counts == [1, 0, 1]), "each call was made once, and ended: {after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_a_killed_gateway_takes_up_every_call_of_a_server_with_an_event_store() {
    every_task_completes(End::Killed, "event-store-killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_gateway_leaves_the_calls_of_a_server_with_an_event_store_to_the_next() {
    every_task_completes(End::InOrder, "event-store-drained").await;
}
