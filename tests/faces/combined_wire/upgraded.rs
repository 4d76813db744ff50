//! A server that is replaced by a newer one while an endpoint serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::serving::{self, Unreachable};
use taskgate::face::combined::{CombinedEndpoint, CombinedSessions, CombinedSettings, EndpointMember, PrefixPolicy};
use taskgate::face::endpoint::UpstreamEndpoint;
use taskgate::face::http::{Endpoint as _, Inbound};
use taskgate::task::{Caller, Principal};
use taskgate::upstream::{
    BeginError, CallContext, Exchange, Handshake, ResumeToken, ServerNotification, Upstream, UpstreamRequest,
};
use taskgate::wire::{Payload, ProtocolVersion};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// A server that answers handshakes alone; after its upgrade it declares resources.
#[derive(Debug)]
struct UpgradedServer {
    other: Arc<Unreachable>,
    is_new: AtomicBool,
}

#[async_trait]
impl Upstream for UpgradedServer {
    fn name(&self) -> &Arc<str> {
        Upstream::name(&*self.other)
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        let capabilities = match self.is_new.load(Ordering::SeqCst) {
            true => json!({ "tools": {}, "resources": {} }),
            false => json!({ "tools": {} }),
        };
        Ok(Arc::new(Handshake {
            version: ProtocolVersion::V2025_11_25,
            capabilities: Payload::of(&capabilities),
            server_info: None,
            instructions: None,
            has_session: true,
        }))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        self.other.begin(request, context).await
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        self.other.resume(token, context).await
    }

    async fn notifications(
        &self,
        context: &CallContext,
    ) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        self.other.notifications(context).await
    }

    async fn close(&self) {}
}

async fn capabilities(endpoint: &CombinedEndpoint) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": { "_meta": meta } });
    let caller = Caller::of(Principal::local());
    let mut inbound =
        Inbound { body: Bytes::from(body.to_string()), ..Inbound::new(Method::POST, "/mcp".to_owned(), caller) };
    inbound.headers.insert("mcp-protocol-version", "2026-07-28".parse().unwrap());
    inbound.headers.insert("mcp-method", "server/discover".parse().unwrap());
    let text = endpoint.serve(Box::new(inbound)).await.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&text).unwrap();
    answer["result"]["capabilities"].clone()
}

/// Clients without sessions make no later handshake.
#[tokio::test(start_paused = true)]
async fn u66_capabilities_of_a_server_are_asked_again_for_clients_without_sessions() {
    let other = Unreachable::named("up");
    let server = Arc::new(UpgradedServer { other: Arc::clone(&other), is_new: AtomicBool::new(false) });
    let served = Arc::new(serving::served(Arc::<UpgradedServer>::clone(&server), other));
    let member = EndpointMember { endpoint: Arc::new(UpstreamEndpoint::new(Arc::clone(&served))), served };
    let settings = CombinedSettings {
        path: Arc::from("/mcp"),
        sse_path: "/sse".to_owned(),
        upstreams: vec![Arc::from("up")],
        prefix: PrefixPolicy::Always,
    };
    let endpoint = CombinedEndpoint::new(
        settings,
        vec![member],
        CombinedSessions::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let before = capabilities(&endpoint).await;
    assert!(before.get("tools").is_some() && before.get("resources").is_none(), "{before}");
    server.is_new.store(true, Ordering::SeqCst);
    assert_eq!(capabilities(&endpoint).await, before, "asked a moment ago");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(capabilities(&endpoint).await.get("resources").is_some());
}
