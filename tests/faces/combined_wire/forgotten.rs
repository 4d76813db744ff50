//! Sessions that an endpoint forgets, to make room for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::json;
use support::scripted::in_time;
use support::serving;
use taskgate::face::combined::{CombinedEndpoint, CombinedSessions, CombinedSettings, EndpointMember, PrefixPolicy};
use taskgate::face::endpoint::UpstreamEndpoint;
use taskgate::face::http::{Endpoint as _, Inbound};
use taskgate::face::served::Served;
use taskgate::task::{Caller, GatewayFault, Principal};
use taskgate::upstream::answer_body::BodyKind;
use taskgate::upstream::raw_channel::{RawBody, RawChannel, RawMethod, RawRequest, RawResponse};
use taskgate::upstream::{OwnSessionChannel, SessionLease, Upstream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::combined_wire::client::initialize;

/// A server that numbers its sessions, and reports those that it is asked to end.
#[derive(Debug)]
struct NumberingServer {
    name: Arc<str>,
    opened: AtomicU64,
    ended: mpsc::Sender<String>,
}

#[async_trait]
impl RawChannel for NumberingServer {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        let (mut session, mut text) = (None, String::new());
        match &request.verb {
            RawMethod::PostWith { message, .. } if message.windows(12).any(|bytes| bytes == b"\"initialize\"") => {
                let number = self.opened.fetch_add(1, Ordering::Relaxed);
                session = Some(HeaderValue::try_from(format!("s-{number}")).unwrap());
                let id: serde_json::Value = serde_json::from_slice(message).unwrap();
                let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}});
                text = json!({"jsonrpc": "2.0", "id": id["id"], "result": result}).to_string();
            }
            RawMethod::Delete => {
                let id = request.binding.session.as_ref().unwrap().to_str().unwrap().to_owned();
                self.ended.try_send(id).unwrap();
            }
            RawMethod::Post(_) | RawMethod::PostWith { .. } | RawMethod::Note(_) | RawMethod::Get { .. } => (),
        }
        let body = RawBody::whole(Bytes::from(text));
        Ok(RawResponse { status: StatusCode::OK, content: BodyKind::Json, retry_after: None, session, body })
    }
}

impl OwnSessionChannel for NumberingServer {
    fn calls_in(&self, _: SessionLease) -> Arc<dyn Upstream> {
        unreachable!("no task runs in a session here")
    }
}

/// Different each time, as session ids need.
fn nonce() -> u128 {
    static LAST: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(LAST.fetch_add(1, Ordering::Relaxed));
    number << 64 | number
}

fn member(name: &str) -> (EndpointMember, mpsc::Receiver<String>) {
    let (ended, ends) = mpsc::channel(10_000);
    let server = Arc::new(NumberingServer { name: Arc::from(name), opened: AtomicU64::new(0), ended });
    let served = serving::served(serving::Unreachable::named(name), server);
    let served = Arc::new(Served { random: nonce, ..served });
    (EndpointMember { endpoint: Arc::new(UpstreamEndpoint::new(Arc::clone(&served))), served }, ends)
}

async fn open(endpoint: &CombinedEndpoint) {
    let caller = Caller::of(Principal::local());
    let body = Bytes::from(initialize("2025-11-25", &json!({})));
    let inbound = Inbound { body, ..Inbound::new(Method::POST, "/mcp".to_owned(), caller) };
    let response = in_time(endpoint.serve(Box::new(inbound))).await;
    let is_open = response.headers().contains_key("mcp-session-id");
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(is_open, "{}", String::from_utf8_lossy(&text));
}

/// Each session at a server holds something there.
#[tokio::test]
async fn sessions_at_the_servers_of_a_forgotten_session_are_ended() {
    let ((one, mut ends_of_one), (two, mut ends_of_two)) = (member("one"), member("two"));
    let settings = CombinedSettings {
        path: Arc::from("/mcp"),
        sse_path: "/sse".to_owned(),
        upstreams: vec![Arc::from("one"), Arc::from("two")],
        prefix: PrefixPolicy::Always,
    };
    // The fewest: one in each part of the map.
    let endpoint = CombinedEndpoint::new(
        settings,
        vec![one, two],
        CombinedSessions::with_capacity(1),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    // The first client's is the only one that has sessions at the servers: their handshake opened them.
    open(&endpoint).await;
    let mut others = 0;
    while ends_of_one.is_empty() {
        open(&endpoint).await;
        others += 1;
        tokio::task::yield_now().await;
        assert!(others < 10_000, "it is never forgotten");
    }
    for ends in [&mut ends_of_one, &mut ends_of_two] {
        assert_eq!(in_time(ends.recv()).await.as_deref(), Some("s-0"));
    }
}
