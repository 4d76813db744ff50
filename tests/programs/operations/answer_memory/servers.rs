//! Servers with large answers, over each transport.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::program::Folder;
use super::super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, status};
use super::{Asked, BIG};

/// How the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Json,
    /// In event streams of streamable HTTP.
    Events,
    Stdio,
    /// HTTP+SSE.
    Sse,
}

fn big() -> &'static str {
    static BIG_TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    BIG_TEXT.get_or_init(|| "x".repeat(BIG))
}

/// The JSON around the large text in the answer to a request; `None` for one with a small answer.
fn around(asked: Asked, rpc: &str) -> Option<(&'static str, &'static str)> {
    match rpc {
        "tools/list" if asked == Asked::BridgedList => Some((
            "{\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"private\",\
             \"tools\":[{\"name\":\"work\",\"inputSchema\":{\"type\":\"object\"},\"description\":",
            "}]}",
        )),
        "tools/list" if matches!(asked, Asked::List | Asked::SessionList) => {
            Some(("{\"tools\":[{\"name\":\"work\",\"inputSchema\":{\"type\":\"object\"},\"description\":", "}]}"))
        }
        "tools/call" if asked == Asked::EditedCall => {
            Some(("{\"resultType\":\"complete\",\"content\":[],\"_meta\":{\"page\":", "}}"))
        }
        "tools/call" => Some(("{\"content\":[{\"type\":\"text\",\"text\":", "}]}")),
        "resources/read" => Some(("{\"contents\":[{\"uri\":\"a:b\",\"text\":", "}]}")),
        _ => None,
    }
}

/// The small list of tools.
fn tools() -> Value {
    let items = json!({"type": "array", "items": {"type": "string"}});
    let schema = json!({"type": "object", "properties": {"items": items}});
    json!({"tools": [{"name": "work", "inputSchema": schema}]})
}

fn capabilities() -> Value {
    json!({"tools": {}, "resources": {}})
}

pub(super) fn reply(seen: &SeenRequest, (before, after): (&str, &str), media: &str) -> ScriptedReply {
    let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{before}\"{}\"{after}}}", seen.body["id"], big());
    let text = if media == "text/event-stream" { format!("event: message\ndata: {text}\n\n") } else { text };
    let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut reply = http::Response::new(body);
    reply.headers_mut().insert("content-type", media.parse().unwrap());
    reply
}

/// The other answers of a server of 2026-07-28.
fn without_sessions(seen: &SeenRequest) -> Option<ScriptedReply> {
    let description = json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                             "ttlMs": 60_000, "cacheScope": "public"});
    match seen.rpc() {
        "server/discover" => Some(answer(seen, &description)),
        "initialize" => Some(status(400)),
        _ => (seen.method != http::Method::POST).then(|| status(405)),
    }
}

/// A server over streamable HTTP, with sessions unless an answer crosses the eras. All its answers are large, also its list of tools.
async fn http_server(asked: Asked, media: &'static str) -> ScriptedServer {
    let server = ScriptedServer::start(move |seen| match around(asked, seen.rpc()) {
        Some(around) => Some(reply(seen, around, media)),
        None if seen.rpc() == "tools/list" => Some(answer(seen, &tools())),
        None if asked == Asked::BridgedList => without_sessions(seen),
        None => None,
    })
    .await;
    *server.world.initialize_result.lock() = json!({"capabilities": capabilities()});
    server
}

/// The same over HTTP+SSE.
async fn sse_server(asked: Asked) -> ScriptedServer {
    let streams = Arc::<Mutex<Vec<BodySender>>>::default();
    ScriptedServer::slow(move |seen, _| {
        let streams = Arc::clone(&streams);
        std::future::ready(Some(sse_reply(asked, &seen, &mut streams.lock())))
    })
    .await
}

fn sse_reply(asked: Asked, seen: &SeenRequest, streams: &mut Vec<BodySender>) -> ScriptedReply {
    if seen.method == http::Method::GET && seen.target == "/sse" {
        let (events, reply) = BodySender::open();
        events.raw(format!("event: endpoint\ndata: /message?n={}\n\n", streams.len()));
        streams.push(events);
        return reply;
    }
    let number = seen.target.strip_prefix("/message?n=").and_then(|number| number.parse::<usize>().ok());
    let Some(stream) = number.and_then(|number| streams.get(number)) else { return status(405) };
    let id = &seen.body["id"];
    if let Some((before, after)) = around(asked, seen.rpc()) {
        stream.raw(format!("event: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{before}\""));
        stream.raw(Bytes::from_static(big().as_bytes()));
        stream.raw(format!("\"{after}}}\n\n"));
    } else if seen.rpc() == "initialize" {
        let (version, info) = (&seen.body["params"]["protocolVersion"], json!({"name": "scripted", "version": "1"}));
        stream.result(seen, &json!({"protocolVersion": version, "capabilities": capabilities(), "serverInfo": info}));
    } else if !id.is_null() {
        stream.result(seen, &if seen.rpc() == "tools/list" { tools() } else { json!({}) });
    }
    status(202)
}

/// The same as a program: the arguments of `command`.
fn stdio_server(asked: Asked, folder: &Folder) -> Vec<String> {
    let text = folder.path().join("big");
    std::fs::write(&text, big()).unwrap();
    let mut script = format!(
        "while IFS= read -r line; do\n\
         id=$(printf '%s' \"$line\" | sed -n 's/^{{\\(\"jsonrpc\":\"2.0\",\\)\\{{0,1\\}}\"id\":\\([^,]*\\),.*/\\2/p')\n\
         v=$(printf '%s' \"$line\" | sed -n 's/.*\"protocolVersion\":\"\\([^\"]*\\)\".*/\\1/p')\n\
         [ -n \"$id\" ] || continue\n\
         printf '{{\"jsonrpc\":\"2.0\",\"id\":%s,' \"$id\"\n\
         case \"$line\" in\n\
         *'\"method\":\"initialize\"'*) printf '\"result\":{{\"protocolVersion\":\"%s\",\"capabilities\":{},\
         \"serverInfo\":{{\"name\":\"scripted\",\"version\":\"1\"}}}}}}\\n' \"$v\";;\n",
        capabilities()
    );
    for rpc in ["tools/list", "tools/call", "resources/read"] {
        let said = match around(asked, rpc) {
            Some((before, after)) => {
                format!("printf '%s' '\"result\":{before}\"'; cat '{}'; printf '%s\\n' '\"{after}}}'", text.display())
            }
            None => format!("printf '%s\\n' '\"result\":{}}}'", tools()),
        };
        script.push_str(&format!("*'\"method\":\"{rpc}\"'*) {said};;\n"));
    }
    script.push_str("*) printf '\"error\":{\"code\":-32601,\"message\":\"no\"}}\\n';;\nesac\ndone\n");
    vec!["sh".to_owned(), "-c".to_owned(), script]
}

/// A server, and the keys that lead to it.
pub(super) async fn server(asked: Asked, over: Over, folder: &Folder) -> (Option<ScriptedServer>, String) {
    let (server, path) = match over {
        Over::Json => (http_server(asked, "application/json").await, "mcp"),
        Over::Events => (http_server(asked, "text/event-stream").await, "mcp"),
        Over::Sse => (sse_server(asked).await, "sse"),
        Over::Stdio => return (None, format!("command = {:?}\n", stdio_server(asked, folder))),
    };
    let transport = if over == Over::Sse { "transport = \"sse\"\n" } else { "" };
    let keys = format!("url = \"http://{}/{path}\"\n{transport}", server.address);
    (Some(server), keys)
}
