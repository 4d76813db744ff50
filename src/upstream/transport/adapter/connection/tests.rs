//! Requests of a session, over a transport whose messages wait.

use std::num::NonZeroUsize;

use async_trait::async_trait;
use futures_util::poll;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use wildmatch::WildMatch;

use super::*;
use crate::shared_limits::SharedLimits;
use crate::task::ToolNames;
use crate::upstream::TaskScope;
use crate::upstream::outgoing::SESSION_ID;
use crate::upstream::transport::adapter::tests::SpeakingTransport;
use crate::upstream::transport::adapter::{DedicatedProcessRules, MessageTransport, TransportAdapter};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::wire::method;

/// Sends calls once they are released.
#[derive(Debug, Default)]
struct SlowSender {
    taken: Mutex<Vec<Value>>,
    takes_calls: CancellationToken,
}

#[async_trait]
impl MessageSender for SlowSender {
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        _: Option<&CancellationToken>,
    ) -> Result<Option<Bytes>, GatewayFault> {
        let message: Value = serde_json::from_slice(outgoing.body().unwrap()).unwrap();
        if message["method"] == method::TOOLS_CALL {
            self.takes_calls.cancelled().await;
        }
        let _ = handed_over.set(());
        self.taken.lock().push(message);
        Ok(None)
    }

    async fn close(&self) {}
}

fn text(message: &Value) -> Bytes {
    message.to_string().into()
}

fn post(session: Option<&HeaderValue>, message: &Value) -> OutgoingRequest {
    SessionHeaders { session: session.cloned(), ..SessionHeaders::default() }
        .post(text(message))
        .on_behalf_of(Principal::new("ada"))
}

/// A server's log line and its question belong to the only call there is, even if the server has not received that call.
#[tokio::test]
async fn messages_before_the_server_has_a_call_do_not_cancel_the_call() {
    for said_early in [
        json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "up" } }),
        json!({ "jsonrpc": "2.0", "id": "q", "method": "roots/list" }),
    ] {
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let sender = Arc::new(SlowSender::default());
        let (wire, say) = SpeakingTransport::new(Arc::<SlowSender>::clone(&sender));
        let adapter = TransportAdapter::new(
            Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
            Box::new(wire),
            NonZeroUsize::new(8).unwrap(),
            SharedLimits::default(),
            scope.clone(),
        );
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "c" } });
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let (initialize, begun) = (post(None, &initialize), HandedOver::default());
        let mut opening = Box::pin(adapter.send(&initialize, &begun));
        while sender.taken.lock().is_empty() {
            assert!(poll!(&mut opening).is_pending());
            tokio::task::yield_now().await;
        }
        say.send(text(&json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocolVersion": "2025-11-25" } })))
            .await
            .unwrap();
        let session = opening.await.unwrap().headers()[SESSION_ID].clone();

        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "t" } });
        let (post, handed_over) = (post(Some(&session), &call), HandedOver::default());
        let mut sending = Box::pin(adapter.send(&post, &handed_over));
        assert!(poll!(&mut sending).is_pending());
        say.send(text(&said_early)).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(poll!(&mut sending).is_pending(), "{said_early}");
        sender.takes_calls.cancel();
        sending.await.unwrap();
        assert_eq!(sender.taken.lock().last(), Some(&call), "{said_early}");
        scope.stop.cancel();
    }
}

/// Opens one connection; the next never becomes ready.
#[derive(Debug)]
struct OneConnection {
    first: SpeakingTransport,
    opened: AtomicUsize,
}

#[async_trait]
impl MessageTransport for OneConnection {
    async fn open(&self, forwarded: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        match self.opened.fetch_add(1, Ordering::Relaxed) {
            0 => self.first.open(forwarded).await,
            _ => std::future::pending().await,
        }
    }
}

/// Otherwise the call would run once its process is ready.
#[tokio::test]
async fn a_cancel_ends_a_call_whose_own_process_is_not_ready() {
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let sender = Arc::new(SlowSender::default());
    let (first, say) = SpeakingTransport::new(Arc::<SlowSender>::clone(&sender));
    let adapter = TransportAdapter::new(
        Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
        Box::new(OneConnection { first, opened: AtomicUsize::new(0) }),
        NonZeroUsize::new(8).unwrap(),
        SharedLimits::default(),
        scope.clone(),
    );
    let rules = DedicatedProcessRules::new(vec![(WildMatch::new("*"), true)], ToolNames::default());
    let adapter = adapter.with_dedicated_calls(rules);
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
    say.send(text(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} }))).await.unwrap();
    let opened = adapter.send(&post(None, &initialize), &HandedOver::default()).await.unwrap();
    let session = Some(&opened.headers()[SESSION_ID]);

    let call = post(session, &json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "t" } }));
    let handed_over = HandedOver::default();
    let mut calling = Box::pin(adapter.send(&call, &handed_over));
    assert!(poll!(&mut calling).is_pending());
    assert_eq!(adapter.send(&call, &handed_over).await.unwrap().status(), 400, "its id is in use");
    let params = json!({ "requestId": 2 });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    adapter.send(&post(session, &cancel), &HandedOver::default()).await.unwrap();
    let fault = tokio::time::timeout(Duration::from_secs(5), calling).await.unwrap().unwrap_err();
    assert_eq!((fault.reason, fault.executed), (Reason::UpstreamClosed, Executed::No));
    assert_eq!(sender.taken.lock().len(), 1, "the server is told nothing of a call that it has not received");
    scope.stop.cancel();
}

/// A server that has sent many messages before they are read.
#[derive(Debug)]
struct FloodTransport(Arc<AtomicUsize>);

struct FloodReceiver(Arc<AtomicUsize>);

#[async_trait]
impl MessageTransport for FloodTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let receiver = Box::new(FloodReceiver(Arc::clone(&self.0)));
        Ok(ConnectionEnds { sender: Arc::new(SlowSender::default()), receiver })
    }
}

#[async_trait]
impl MessageReceiver for FloodReceiver {
    async fn next(&mut self, _: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= 10_000 {
            std::future::pending::<()>().await;
        }
        Ok(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/message"}"#))
    }
}

#[tokio::test]
async fn a_flood_of_messages_leaves_other_tasks_their_turn() {
    let taken = Arc::new(AtomicUsize::new(0));
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let adapter = TransportAdapter::new(
        Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
        Box::new(FloodTransport(Arc::clone(&taken))),
        NonZeroUsize::new(8).unwrap(),
        SharedLimits::default(),
        scope.clone(),
    );
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
    let (initialize, begun) = (post(None, &initialize), HandedOver::default());
    let mut opening = Box::pin(adapter.send(&initialize, &begun));
    while taken.load(Ordering::Relaxed) == 0 {
        assert!(poll!(&mut opening).is_pending());
        tokio::task::yield_now().await;
    }
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken < 1_000, "{taken} messages in one turn");
    scope.stop.cancel();
}

#[derive(Debug)]
struct CrashingTransport;

struct CrashingReceiver(Option<Bytes>);

#[async_trait]
impl MessageTransport for CrashingTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let answer = text(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
        let receiver = Box::new(CrashingReceiver(Some(answer)));
        Ok(ConnectionEnds { sender: Arc::new(SlowSender::default()), receiver })
    }
}

#[async_trait]
impl MessageReceiver for CrashingReceiver {
    async fn next(&mut self, _: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        self.0.take().ok_or(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))
    }
}

#[tokio::test(start_paused = true)]
async fn sec_91_a_server_that_ends_in_one_principals_sessions_is_started_at_once_for_another() {
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let adapter = TransportAdapter::new(
        Arc::new(UpstreamHealth::new(&Arc::from("up"), "up")),
        Box::new(CrashingTransport),
        NonZeroUsize::new(8).unwrap(),
        SharedLimits::default(),
        scope.clone(),
    );
    let initialize = text(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} }));
    let open = async |owner: &str| {
        let post = SessionHeaders::default().post(initialize.clone()).on_behalf_of(Principal::new(owner));
        let opened = adapter.send(&post, &HandedOver::default()).await;
        while !adapter.shared.sessions.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        opened.map(drop).map_err(|fault| fault.reason)
    };
    while open("ada").await.is_ok() {}
    assert_eq!(open("ada").await, Err(Reason::UpstreamUnreachable), "it pauses for more than a request waits");
    let began = Instant::now();
    assert_eq!((open("bob").await, began.elapsed()), (Ok(()), Duration::ZERO));
    scope.stop.cancel();
}
