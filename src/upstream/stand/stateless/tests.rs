//! Whose requests go where, over wires that only take note.

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::upstream::carrier::Stand as _;
use crate::upstream::http::Life;
use crate::upstream::http::post::Credentials;
use crate::upstream::stand::{Opened, Wire, WireReceiver, WireSender};
use crate::upstream::standing::Standing;
use crate::wire::ProtocolVersion;

/// What was said, each with the number of its connection.
type Heard = Arc<parking_lot::Mutex<Vec<(usize, Value)>>>;

#[derive(Debug, Default)]
struct Noting {
    heard: Heard,
    opened: Arc<std::sync::atomic::AtomicUsize>,
}

#[derive(Debug)]
struct Sender {
    number: usize,
    heard: Heard,
}

struct Silent;

#[async_trait]
impl Wire for Noting {
    async fn open(&self, _: &Forwarded) -> Result<Opened, GatewayFault> {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        let sender = Sender { number, heard: Arc::clone(&self.heard) };
        Ok(Opened { sender: Arc::new(sender), receiver: Box::new(Silent) })
    }
}

#[async_trait]
impl WireSender for Sender {
    async fn send(&self, outgoing: &Outgoing, handed_over: &HandedOver) -> Result<(), GatewayFault> {
        let _ = handed_over.set(());
        let message = outgoing.body().unwrap();
        self.heard.lock().push((self.number, serde_json::from_slice(message).unwrap()));
        Ok(())
    }

    async fn close(&self) {}
}

#[async_trait]
impl WireReceiver for Silent {
    async fn next(&mut self) -> Result<Bytes, GatewayFault> {
        std::future::pending().await
    }
}

fn post(principal: &str, method: &str) -> Outgoing {
    let message = json!({ "jsonrpc": "2.0", "id": "same", "method": method, "params": { "name": "t" } });
    let credentials = Credentials { session: None, version: Some(ProtocolVersion::V2026_07_28) };
    credentials.post(message.to_string().into()).on_behalf_of(Principal::new(principal))
}

/// T-20: no connection is shared by two principals; what nobody but the probe has used is anybody's.
#[tokio::test]
async fn t_20_each_principal_has_a_connection_and_whoever_calls_first_takes_the_one_that_was_asked() {
    let wire = Noting::default();
    let (heard, opened) = (Arc::clone(&wire.heard), Arc::clone(&wire.opened));
    let life = Life { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let stand = WireStand::new(Arc::new(Standing::new(&Arc::from("up"), "up")), Box::new(wire), 8, life.clone());
    let mut answers = Vec::new();
    for (principal, method, connection) in [
        ("anon", method::DISCOVER, 0),
        ("ada", method::TOOLS_CALL, 0),
        ("bob", method::TOOLS_CALL, 1),
        ("ada", method::TOOLS_CALL, 0),
        ("anon", method::DISCOVER, 2),
        ("bob", method::DISCOVER, 1),
        ("eve", method::TOOLS_CALL, 2),
    ] {
        answers.push(stand.send(&post(principal, method), &HandedOver::default()).await.unwrap());
        let (number, message) = heard.lock().last().cloned().unwrap();
        assert_eq!((number, message["method"].as_str()), (connection, Some(method)), "{principal}");
    }
    assert_eq!(opened.load(Ordering::SeqCst), 3);
    let ids: Vec<_> =
        heard.lock().iter().filter(|(number, _)| *number == 0).map(|(_, said)| said["id"].clone()).collect();
    assert_eq!(ids, [0, 1, 2], "never the id that all of them chose");

    // MOD-20: the last one leaves.
    drop(answers.pop());
    life.tracker.close();
    let told = async {
        while heard.lock().last().is_none_or(|(_, said)| said["method"] != method::CANCELLED) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), told).await.unwrap();
    let (number, said) = heard.lock().last().cloned().unwrap();
    assert_eq!((number, &said["params"]["requestId"]), (2, &json!(1)));
    life.stop.cancel();
}
