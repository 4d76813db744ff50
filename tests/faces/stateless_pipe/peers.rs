//! A server of 2026-07-28, and requests of a client of the same.

use ::bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use super::client::{BOTH, Client, TestGateway};
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, json_text, status};

pub(crate) const VERSION: &str = "2026-07-28";

/// The server's handshake and its list of tools; the script has the other responses.
pub(crate) fn default_reply(seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "server/discover" => Some(answer(
            seen,
            &json!({
                "resultType": "complete", "supportedVersions": [VERSION, "2099-01-01"],
                "capabilities": {"tools": {"listChanged": true}, "tasks": {}},
                "ttlMs": 60_000, "cacheScope": "public",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
            }),
        )),
        "tools/list" => Some(json_text(format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"complete","ttlMs":7,"cacheScope":"public","tools":[{}]}}}}"#,
            seen.body["id"], TOOLS
        ))),
        "initialize" => {
            let error = json!({"code": -32022, "message": "no sessions", "data": {"supported": [VERSION]}});
            let mut refusal = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
            *refusal.status_mut() = http::StatusCode::BAD_REQUEST;
            Some(refusal)
        }
        _ if seen.method != http::Method::POST => Some(status(405)),
        _ => None,
    }
}

const TOOLS: &str = r#"{"name":"t", "inputSchema":{"n":1.10}},{"name":"region","execution":{"taskSupport":"required"},"inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"Region"}}}}"#;

pub(crate) async fn server(
    script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |seen| script(seen).or_else(|| default_reply(seen))).await
}

pub(crate) async fn gate(server: &ScriptedServer) -> TestGateway {
    // Plain calls are forwarded; `tests/faces/stateless_pipe/tasks.rs` has the others.
    TestGateway::with(server.address, "").await
}

/// A client without any session.
pub(crate) fn client(gate: &TestGateway) -> Client {
    let mut client = gate.client_without_session();
    client.version = Some(VERSION.to_owned());
    client
}

/// A body with `_meta` in front of these members of params, as text.
pub(crate) fn body(method: &str, params: &str) -> String {
    body_of(method, "{}", params)
}

pub(crate) fn body_of(method: &str, capabilities: &str, params: &str) -> String {
    let meta = format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":"{VERSION}" , "io.modelcontextprotocol/clientCapabilities":{capabilities},"x":1.10}}"#
    );
    let rest = if params.is_empty() { String::new() } else { format!(",{params}") };
    format!(r#"{{"method":"{method}", "params" : {{"_meta":{meta}{rest}}},"id":"a\u0062",  "jsonrpc":"2.0"}}"#)
}

/// The request that carries a body, with the headers that repeat it.
pub(crate) fn request(client: &Client, body: &str) -> Request<Full<Bytes>> {
    let read: Value = serde_json::from_str(body).unwrap();
    let name = ["name", "uri", "taskId"].into_iter().find_map(|key| read["params"][key].as_str());
    let mut request = client.request("POST").header("content-type", "application/json");
    request = request.header("mcp-method", read["method"].as_str().unwrap());
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    request.body(Full::from(body.to_owned())).unwrap()
}

pub(crate) async fn post(client: &Client, body: &str) -> super::client::Reply {
    client.send(request(client, body)).await
}

/// The offered types are both, for any client.
pub(crate) const ACCEPT: &str = BOTH;
