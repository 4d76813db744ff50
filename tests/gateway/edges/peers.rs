//! A server and a client of either kind.

use ::bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use support::hostile_twin;

use super::client::{Client, Reply, TestGateway};
use super::upstream::{self, ScriptedServer, SeenRequest, answer, json_text, status};

pub(crate) const STATELESS: &str = "2026-07-28";
pub(crate) const SESSION: &str = "2025-11-25";

/// How clients and servers meet: every pair of kinds.
pub(crate) const PAIRS: [(&str, &str); 4] =
    [(SESSION, SESSION), (SESSION, STATELESS), (STATELESS, SESSION), (STATELESS, STATELESS)];

/// The upstream's own names.
const TOOLS: [&str; 6] = ["generate_report", "generate_map", "admin_drop", "make_map", "plain", "region"];

fn tools() -> Vec<Value> {
    let schema = |name: &str| match name {
        "region" => json!({"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}),
        _ => json!({"type": "object"}),
    };
    TOOLS.iter().map(|name| json!({"name": name, "inputSchema": schema(name)})).collect()
}

/// A server of this version. It answers a call with the name that it was called by, and lists its tools on two pages.
pub(crate) async fn server(version: &'static str) -> ScriptedServer {
    server_with(version, |_| None).await
}

pub(crate) async fn server_with(
    version: &'static str,
    script: impl Fn(&SeenRequest) -> Option<upstream::ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |seen| script(seen).or_else(|| served(version, seen))).await
}

/// The server's own answers; `polite` has the rest.
pub(crate) fn served(version: &str, seen: &SeenRequest) -> Option<upstream::ScriptedReply> {
    let is_stateless = version == STATELESS;
    let complete = |mut result: Value| {
        if is_stateless {
            result["resultType"] = json!("complete");
            result["ttlMs"] = json!(0);
            result["cacheScope"] = json!("private");
        }
        Some(answer(seen, &result))
    };
    match seen.rpc() {
        "tools/list" if seen.body["params"]["cursor"].is_null() => {
            complete(json!({"tools": tools()[..3], "nextCursor": "more"}))
        }
        "tools/list" => complete(json!({"tools": tools()[3..]})),
        "tools/call" => {
            let text = seen.body["params"]["name"].as_str().unwrap_or("?");
            complete(json!({"content": [{"type": "text", "text": text}]}))
        }
        "server/discover" if is_stateless => complete(json!({
            "supportedVersions": [STATELESS],
            "capabilities": {"tools": {}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
        })),
        "initialize" if is_stateless => {
            let error = json!({"code": -32022, "message": "no sessions", "data": {"supported": [STATELESS]}});
            let mut refusal = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
            *refusal.status_mut() = http::StatusCode::BAD_REQUEST;
            Some(refusal)
        }
        "server/discover" => {
            let error = json!({"code": -32601, "message": "Method not found"});
            Some(json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()))
        }
        _ if is_stateless && seen.method != http::Method::POST => Some(status(405)),
        _ => None,
    }
}

/// A client of one kind, and the headers of its requests.
pub(crate) struct Person {
    pub(crate) client: Client,
    is_stateless: bool,
    headers: Vec<(&'static str, String)>,
}

impl Person {
    pub(crate) async fn meet(gate: &TestGateway, version: &str) -> Self {
        Self::with(gate, version, &[]).await
    }

    pub(crate) async fn with(gate: &TestGateway, version: &str, headers: &[(&'static str, &str)]) -> Self {
        let is_stateless = version == STATELESS;
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut person = Self { client: gate.client_without_session(), is_stateless, headers };
        if is_stateless {
            person.client.version = Some(version.to_owned());
            return person;
        }
        let reply = person.send(&super::client::initialize(version, &json!({})), &[]).await;
        person.client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
        person.client.version = Some(version.to_owned());
        let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert!(person.send(text, &[]).await.status.is_success());
        person
    }

    /// Sends a request; the whole answer, be it JSON or the last event of a stream.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        self.ask_with(method, params, &[]).await
    }

    pub(crate) async fn ask_with(&self, method: &str, mut params: Value, more: &[(&str, &str)]) -> Value {
        if self.is_stateless {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let name = params["name"].as_str().map(str::to_owned);
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
        let mut headers = more.to_vec();
        if self.is_stateless {
            headers.push(("mcp-method", method));
            headers.extend(name.as_deref().map(|name| ("mcp-name", name)));
        }
        last(&hostile_twin::unprefixed(self.send(&body, &headers).await.text().await, "up"))
    }

    /// Sends an array of messages; every answer to one of them.
    pub(crate) async fn ask_all(&self, array: &Value) -> Vec<Value> {
        let text = hostile_twin::unprefixed(self.send(&array.to_string(), &[]).await.text().await, "up");
        let events = text.lines().filter_map(|line| line.strip_prefix("data:")).collect::<Vec<_>>();
        let texts = if events.is_empty() { vec![text.as_str()] } else { events };
        let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        let messages = texts.into_iter().map(read).flat_map(|read: Value| match read.as_array() {
            Some(messages) => messages.clone(),
            None => vec![read],
        });
        messages.collect()
    }

    async fn send(&self, body: &str, more: &[(&str, &str)]) -> Reply {
        let mut request = self.client.request("POST").header("content-type", "application/json");
        for (name, value) in
            self.headers.iter().map(|(name, value)| (*name, value.as_str())).chain(more.iter().copied())
        {
            request = request.header(name, value);
        }
        let request: Request<Full<Bytes>> = request.body(Full::from(body.to_owned())).unwrap();
        self.client.send(request).await
    }

    /// The names of all tools.
    pub(crate) async fn tools(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut params = json!({});
        for _ in 0..5 {
            let answer = self.ask("tools/list", params).await;
            let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
            let tools = hostile_twin::own_items(tools.clone());
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            match answer["result"]["nextCursor"].as_str() {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => break,
            }
        }
        names
    }

    /// The answer to a call: its text, or the code of its error and its message.
    pub(crate) async fn call(&self, tool: &str) -> String {
        said(&self.ask("tools/call", json!({"name": tool, "arguments": {}})).await)
    }
}

pub(crate) fn said(answer: &Value) -> String {
    match answer["result"]["content"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("{} {}", answer["error"]["code"], answer["error"]["message"].as_str().unwrap_or_default()),
    }
}

fn last(text: &str) -> Value {
    let event = text.lines().rev().find_map(|line| line.strip_prefix("data:"));
    serde_json::from_str(event.unwrap_or(text)).unwrap_or_else(|_| panic!("no JSON: {text}"))
}
