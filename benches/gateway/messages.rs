//! What the client of the benchmark sends: whole HTTP/1.1 requests, written once and sent many times.

use serde_json::{Value, json};

const SESSION_VERSION: &str = "2025-11-25";

/// What a request says of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// Knows no tasks: its calls stay plain.
    Plain,
    /// Declares the tasks extension.
    OfTasks,
}

/// A `tools/call` without arguments.
pub(crate) fn call(path: &str, client: Client, tool: &str) -> Vec<u8> {
    call_with(path, client, tool, &json!({}))
}

/// A `tools/call`.
pub(crate) fn call_with(path: &str, client: Client, tool: &str, arguments: &Value) -> Vec<u8> {
    message(path, client, ("tools/call", tool), json!({"name": tool, "arguments": arguments}))
}

/// A `tasks/get`.
pub(crate) fn poll(path: &str, task: &str) -> Vec<u8> {
    message(path, Client::OfTasks, ("tasks/get", task), json!({"taskId": task}))
}

/// A `tools/list`.
pub(crate) fn list(path: &str, params: &Value) -> Vec<u8> {
    message(path, Client::Plain, ("tools/list", ""), params.clone())
}

/// The handshake of a session client.
pub(crate) fn initialize(path: &str) -> Vec<u8> {
    let client = json!({"name": "bench", "version": "1"});
    let params = json!({"protocolVersion": SESSION_VERSION, "capabilities": {}, "clientInfo": client});
    in_session(path, "", "initialize", &params)
}

/// A `tools/call` of a session client, without arguments.
pub(crate) fn session_call(path: &str, session: &str, tool: &str) -> Vec<u8> {
    session_call_with(path, session, tool, &json!({}))
}

/// A `tools/call` of a session client.
pub(crate) fn session_call_with(path: &str, session: &str, tool: &str, arguments: &Value) -> Vec<u8> {
    let params = json!({"name": tool, "arguments": arguments});
    in_session(path, &format!("Mcp-Session-Id: {session}\r\n"), "tools/call", &params)
}

/// A `tasks/list` of a session client.
pub(crate) fn session_list(path: &str, session: &str, criteria: &Value) -> Vec<u8> {
    in_session(path, &format!("Mcp-Session-Id: {session}\r\n"), "tasks/list", criteria)
}

fn in_session(path: &str, session: &str, method: &str, params: &Value) -> Vec<u8> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let head = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: {SESSION_VERSION}\r\n{session}"
    );
    post("POST", path, &head, body.as_bytes())
}

/// A POST of one request of 2026-07-28, with the headers that repeat `method` and `name`.
fn message(path: &str, client: Client, (method, name): (&str, &str), mut params: Value) -> Vec<u8> {
    let capabilities = match client {
        Client::Plain => json!({}),
        Client::OfTasks => json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}),
    };
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let head = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n"
    );
    let head = if name.is_empty() { head } else { format!("{head}Mcp-Name: {name}\r\n") };
    post("POST", path, &head, body.as_bytes())
}

/// The same request with more headers, each with its end of line.
pub(crate) fn with_headers(request: &[u8], headers: &str) -> Vec<u8> {
    let first = memchr::memmem::find(request, b"\r\n").map_or(request.len(), |end| end + 2);
    [&request[..first], headers.as_bytes(), &request[first..]].concat()
}

/// Gives a bare server something to serve.
pub(crate) fn put(path: &str, body: &[u8]) -> Vec<u8> {
    post("PUT", path, "", body)
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    post("GET", path, "", b"")
}

fn post(method: &str, path: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n");
    text.push_str(&String::from_utf8_lossy(body));
    text.into_bytes()
}
