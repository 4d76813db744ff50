//! The gateway behind nginx, Caddy and HAProxy of the distribution, with the least that proxies a host and as
//! `docs/behind-a-proxy.md` says.
//!
//! They are asked for by `TASKGATE_PEERS`, as all real peers; without it nothing runs here, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod long_talks;
mod names;
mod running_proxy;

use http_body_util::Full;
use serde_json::{Value, json};
use support::session_client::{Client, Reply};
use support::talk::ManualSetup;

use running_proxy::{ProxySetup, ReverseProxy, RunningProxy};

/// The gateway's settings about the proxy in front of it.
const PUBLIC: &str = "public_url = \"https://mcp.example\"\ntrusted_proxies = [\"127.0.0.1\"]";

/// A gateway behind a proxy, and the server behind it.
struct Front {
    proxy: RunningProxy,
    behind: ManualSetup,
}

impl Front {
    /// `listen` stands in the section of the listener.
    async fn start(proxy: ReverseProxy, setup: ProxySetup, listen: &str, test: &str) -> Self {
        let behind = ManualSetup::open(listen, "sse_path = \"/sse\"").await;
        let proxy = RunningProxy::start(proxy, setup, behind.gate.gateway.address(), test).await;
        Self { proxy, behind }
    }
}

async fn post(
    client: &Client,
    request: http::request::Builder,
    method: &str,
    params: &Value,
) -> Result<Reply, hyper::Error> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let request = request.header("content-type", "application/json").body(Full::from(body)).unwrap();
    client.send_patiently(request).await
}

/// A request of a 2026-07-28 client that declares nothing.
async fn stateless(client: &Client, method: &str, mut params: Value) -> Result<Reply, hyper::Error> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut request = client.request("POST").header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
    if let Some(name) = params["name"].as_str() {
        request = request.header("mcp-name", name);
    }
    post(client, request, method, &params).await
}
