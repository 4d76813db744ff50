//! A server of 2026-07-28 alone, and how its clients read.

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Client, Reply, TestGateway, initialize};
use super::upstream::{self, ScriptedServer, SeenRequest, answer, in_time, json_text};

/// A server that knows no session; `script` has its other answers.
pub(crate) async fn stateless(
    script: impl Fn(&SeenRequest) -> Option<upstream::ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |seen| {
        let own = || match seen.rpc() {
            "initialize" => Some(refused(seen, 404, &json!({"code": -32601, "message": "Method not found"}))),
            "server/discover" => Some(answer(seen, &discovered())),
            _ => None,
        };
        script(seen).or_else(own)
    })
    .await
}

pub(crate) fn discovered() -> Value {
    json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
        "capabilities": {
            "tools": {"listChanged": true}, "resources": {"subscribe": true, "listChanged": true}, "logging": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
        "instructions": "be kind",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "stateless", "version": "7"}},
    })
}

pub(crate) fn refused(seen: &SeenRequest, status: u16, error: &Value) -> upstream::ScriptedReply {
    let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    reply
}

/// A client with these capabilities, whose session is open.
pub(crate) async fn open(gate: &TestGateway, version: &str, capabilities: &Value) -> Client {
    let mut client = gate.client_without_session();
    let reply = client.post(initialize(version, capabilities)).await;
    client.session = Some(reply.header("mcp-session-id").expect("there is a session").to_owned());
    client.version = Some(version.to_owned());
    client
}

pub(crate) fn request(id: u32, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) async fn ask(client: &Client, method: &str, params: &Value) -> Value {
    let reply = client.post(request(9, method, params)).await;
    assert_eq!(reply.status, StatusCode::OK, "{method}: a request with an id is answered under 200");
    reply.json().await
}

/// The messages of an event stream, one by one.
pub(crate) struct Stream {
    reply: Reply,
    rest: String,
}

impl Stream {
    pub(crate) fn of(reply: Reply) -> Self {
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        Self { reply, rest: String::new() }
    }

    /// The next message; `None` at the stream's end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        // Comments may come for ever.
        in_time(self.read()).await
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.find("\n\n") {
                let event: String = self.rest.drain(..end + 2).collect();
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                if !data.is_empty() {
                    return Some(serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            self.rest.push_str(&self.reply.piece().await?);
        }
    }
}
