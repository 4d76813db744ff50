//! Assignment of principals to connections, with recording transports.

use std::num::NonZeroUsize;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::shared_limits::SharedLimits;
use crate::task::PrincipalLimitTable;
use crate::upstream::TaskScope;
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::transport::adapter::tests::SpeakingTransport;
use crate::upstream::transport::adapter::{
    ConnectionEnds, MessageReceiver, MessageRoom, MessageSender, MessageTransport,
};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::wire::ProtocolVersion;

/// The sent messages, each with the number of its connection.
type RecordedMessages = Arc<parking_lot::Mutex<Vec<(usize, Value)>>>;

#[derive(Debug, Default)]
struct RecordingTransport {
    heard: RecordedMessages,
    opened: Arc<std::sync::atomic::AtomicUsize>,
    /// Connections with these numbers open only once released.
    held_up: Vec<usize>,
    let_go: CancellationToken,
}

#[derive(Debug)]
struct RecordingSender {
    number: usize,
    heard: RecordedMessages,
}

struct SilentReceiver;

#[async_trait]
impl MessageTransport for RecordingTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        if self.held_up.contains(&number) {
            self.let_go.cancelled().await;
        }
        let sender = RecordingSender { number, heard: Arc::clone(&self.heard) };
        Ok(ConnectionEnds { sender: Arc::new(sender), receiver: Box::new(SilentReceiver) })
    }
}

#[async_trait]
impl MessageSender for RecordingSender {
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        _: Option<&CancellationToken>,
    ) -> Result<Option<Bytes>, GatewayFault> {
        let _ = handed_over.set(());
        let message = outgoing.body().unwrap();
        self.heard.lock().push((self.number, serde_json::from_slice(message).unwrap()));
        Ok(None)
    }

    async fn close(&self) {}
}

#[async_trait]
impl MessageReceiver for SilentReceiver {
    async fn next(&mut self, _: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        std::future::pending().await
    }
}

fn adapter_over(wire: impl MessageTransport + 'static, scope: &TaskScope) -> TransportAdapter {
    TransportAdapter::new(
        Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
        Box::new(wire),
        NonZeroUsize::new(8).unwrap(),
        SharedLimits::default(),
        scope.clone(),
    )
}

fn post(principal: &str, method: &str) -> OutgoingRequest {
    let message = json!({ "jsonrpc": "2.0", "id": "same", "method": method, "params": { "name": "t" } });
    let credentials = SessionHeaders { version: Some(ProtocolVersion::V2026_07_28), ..SessionHeaders::default() };
    credentials.post(Bytes::from(message.to_string())).on_behalf_of(Principal::new(principal))
}

/// T-20: principals share no connection; one that was only probed is free for any.
#[tokio::test]
async fn t_20_each_principal_has_a_connection_and_the_first_call_takes_the_probed_one() {
    let wire = RecordingTransport::default();
    let (heard, opened) = (Arc::clone(&wire.heard), Arc::clone(&wire.opened));
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let stand = adapter_over(wire, &scope);
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
    scope.tracker.close();
    let told = async {
        while heard.lock().last().is_none_or(|(_, said)| said["method"] != method::CANCELLED) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), told).await.unwrap();
    let (number, said) = heard.lock().last().cloned().unwrap();
    assert_eq!((number, &said["params"]["requestId"]), (2, &json!(1)));
    scope.stop.cancel();
}

/// A slowly opening connection delays only its principal's requests, and is opened once.
#[tokio::test(start_paused = true)]
async fn no_principal_waits_for_anothers_connection() {
    let wire = RecordingTransport { held_up: vec![1], ..RecordingTransport::default() };
    let (heard, opened, let_go) = (Arc::clone(&wire.heard), Arc::clone(&wire.opened), wire.let_go.clone());
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let stand = adapter_over(wire, &scope);
    let send = async |principal: &str| stand.send(&post(principal, method::TOOLS_CALL), &HandedOver::default()).await;
    let first = send("ada").await.unwrap();
    let others = async {
        while opened.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        // One that has a connection, and one that has none.
        let others = [send("ada").await.unwrap(), send("eve").await.unwrap()];
        let_go.cancel();
        others
    };
    let all = async { tokio::join!(send("bob"), send("bob"), others) };
    let (one, two, others) = tokio::time::timeout(std::time::Duration::from_secs(60), all).await.unwrap();
    let numbers: Vec<_> = heard.lock().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 0, 2, 1, 1]);
    drop((first, one.unwrap(), two.unwrap(), others));
    scope.stop.cancel();
}

fn large_answer(id: usize) -> Bytes {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "x": "x".repeat(1 << 20) } }).to_string().into()
}

/// B190: bytes of a message are counted from the first on; an unread message delays the others of its connection for a minute.
#[tokio::test(start_paused = true)]
async fn b190_an_answer_that_finds_no_room_ends_its_call_after_a_minute_and_one_that_is_kept_reaches_its_owner() {
    use http_body_util::BodyExt as _;

    let table = PrincipalLimitTable { answer_bytes_max: 7 << 19, ..PrincipalLimitTable::default() };
    let sender = RecordingSender { number: 0, heard: RecordedMessages::default() };
    let (wire, say) = SpeakingTransport::new(Arc::new(sender));
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let stand = TransportAdapter::new(
        Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
        Box::new(wire),
        NonZeroUsize::new(8).unwrap(),
        SharedLimits::new(Arc::new(table)),
        scope.clone(),
    );
    let send = async |is_kept: bool| {
        let post = post("ada", method::TOOLS_CALL).kept_if(is_kept);
        stand.send(&post, &HandedOver::default()).await.unwrap().into_body()
    };
    // The second one exceeds the bound, and both are unread.
    let mut calls = Vec::new();
    for is_kept in [false, false, false, true, false] {
        calls.push(send(is_kept).await);
    }
    for id in 0..4 {
        say.send(large_answer(id)).await.unwrap();
    }
    say.send(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}")).await.unwrap();
    let began = tokio::time::Instant::now();
    let Some(Err(fault)) = tokio::time::timeout(std::time::Duration::from_secs(600), calls[2].frame()).await.unwrap()
    else {
        panic!("it had room")
    };
    let fault = crate::upstream::answer_body::fault_in(&fault);
    assert_eq!((fault.reason, fault.executed), (Reason::AnswersFull, Executed::Yes));
    assert_eq!(began.elapsed().as_secs(), 60);
    assert!(calls[3].frame().await.unwrap().unwrap().into_data().unwrap().len() > 1 << 20);
    assert!(calls[4].frame().await.unwrap().is_ok(), "it waits no longer than the others");
    assert!(calls[0].frame().await.unwrap().is_ok() && calls[1].frame().await.unwrap().is_ok());
    scope.stop.cancel();
}

/// U83: over stdio a server ends a subscription by cancelling its request.
#[tokio::test(start_paused = true)]
async fn u83_a_subscription_that_its_server_cancels_ends_and_a_call_goes_on() {
    use http_body_util::BodyExt as _;

    let sender = RecordingSender { number: 0, heard: RecordedMessages::default() };
    let heard = Arc::clone(&sender.heard);
    let (wire, say) = SpeakingTransport::new(Arc::new(sender));
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let stand = adapter_over(wire, &scope);
    let mut bodies = Vec::new();
    for method in [method::LISTEN, method::TOOLS_CALL] {
        bodies.push(stand.send(&post("ada", method), &HandedOver::default()).await.unwrap().into_body());
    }
    for id in [json!(1), json!(7), json!("x"), json!(null), json!("0"), json!(0)] {
        let cancel = json!({ "jsonrpc": "2.0", "method": method::CANCELLED, "params": { "requestId": id } });
        say.send(Bytes::from(cancel.to_string())).await.unwrap();
    }
    say.send(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}")).await.unwrap();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), bodies[0].frame()).await;
    assert!(ended.unwrap().is_none());
    assert!(bodies[1].frame().await.unwrap().is_ok(), "the call has its response");
    bodies.clear();
    assert_eq!(heard.lock().len(), 2, "the server gets no cancellation of the subscription that it cancelled");
    scope.stop.cancel();
}
