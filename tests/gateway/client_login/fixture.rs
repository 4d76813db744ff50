//! A server that accepts tokens that begin with `good`, and its clients.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, status};
use support::session_client::{Client, Reply, TestGateway, initialize};

use crate::edges::peers::served;

pub(super) const STATELESS: &str = "2026-07-28";
pub(super) const SESSION: &str = "2025-11-25";
pub(super) const PAIRS: [(&str, &str); 4] =
    [(SESSION, SESSION), (SESSION, STATELESS), (STATELESS, SESSION), (STATELESS, STATELESS)];

pub(super) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
pub(super) const FORWARDS: &str = "forward_authorization = true";
pub(super) const CHALLENGE: &str =
    "Bearer realm=\"up\", resource_metadata=\"http://up.example/meta\", error=\"invalid_token\"";

pub(super) fn challenged(code: u16, challenges: &[&[u8]]) -> ScriptedReply {
    let mut reply = status(code);
    for challenge in challenges {
        reply.headers_mut().append("www-authenticate", http::HeaderValue::from_bytes(challenge).unwrap());
    }
    reply
}

pub(super) fn is_let_in(seen: &SeenRequest) -> bool {
    seen.header("authorization").is_some_and(|credential| credential.starts_with("Bearer good"))
}

/// A server of this version; `script` sees each request before the credential is looked at.
pub(super) async fn protected(
    version: &'static str,
    script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |seen| {
        let refused = || (!is_let_in(seen)).then(|| challenged(401, &[CHALLENGE.as_bytes()]));
        script(seen).or_else(refused).or_else(|| served(version, seen))
    })
    .await
}

/// A client of one kind with one token, which may change.
pub(super) struct Caller {
    pub(super) client: Client,
    version: &'static str,
    pub(super) token: Option<&'static str>,
}

impl Caller {
    pub(super) fn new(gate: &TestGateway, version: &'static str, token: Option<&'static str>) -> Self {
        let mut client = gate.client_without_session();
        if version == STATELESS {
            client.version = Some(version.to_owned());
        }
        Self { client, version, token }
    }

    /// One that is let in, with its session if it needs one.
    pub(super) async fn let_in(gate: &TestGateway, version: &'static str, token: &'static str) -> Self {
        let mut caller = Self::new(gate, version, Some(token));
        if version == SESSION {
            let reply = caller.initialize().await;
            caller.client.session = Some(reply.header("mcp-session-id").expect("a session").to_owned());
            caller.client.version = Some(version.to_owned());
            assert!(
                caller.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, &[]).await.status.is_success()
            );
        }
        caller
    }

    pub(super) async fn initialize(&self) -> Reply {
        self.post(&initialize(self.version, &json!({})), &[]).await
    }

    pub(super) async fn ask(&self, method: &str, mut params: Value) -> Reply {
        let is_stateless = self.version == STATELESS;
        if is_stateless {
            let capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            });
        }
        let name = ["name", "taskId", "uri"].iter().find_map(|member| params[*member].as_str()).map(str::to_owned);
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
        let mut headers = Vec::new();
        if is_stateless {
            headers.push(("mcp-method", method));
            headers.extend(name.as_deref().map(|name| ("mcp-name", name)));
        }
        self.post(&body, &headers).await
    }

    pub(super) async fn call(&self, tool: &str) -> Reply {
        self.ask("tools/call", json!({"name": tool, "arguments": {}})).await
    }

    pub(super) async fn get(&self) -> Reply {
        self.send(self.client.request("GET").body(Full::default()).unwrap()).await
    }

    async fn post(&self, body: &str, more: &[(&str, &str)]) -> Reply {
        let mut request = self.client.request("POST").header("content-type", "application/json");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::from(body.to_owned())).unwrap()).await
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Reply {
        if let Some(token) = self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        self.client.send(request).await
    }
}

/// The answer, be it JSON or the last event of a stream.
pub(super) async fn said(reply: Reply) -> Value {
    let text = reply.text().await;
    let event = text.lines().rev().find_map(|line| line.strip_prefix("data:"));
    serde_json::from_str(event.unwrap_or(&text)).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

/// The challenges of an answer.
pub(super) fn challenges(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("www-authenticate").iter().map(|value| value.to_str().unwrap()).collect()
}

/// Where the gateway has the metadata of its one server.
pub(super) fn metadata_address(gate: &TestGateway) -> String {
    format!("{}{WELL_KNOWN}/mcp", gate.gateway.base_url())
}
