//! Serves 2026-07-28 over standard input and output.
//!
//! It knows no `initialize`, asks nothing, and records its requests: its tool `heard` lists their methods, with the ids
//! of cancelled requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use taskgate::wire::meta::{LOG_LEVEL, META, PROGRESS_TOKEN, SUBSCRIPTION_ID};
use taskgate::wire::{RpcError, method, rpc_error};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Stdin};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::faults;

const VERSION: &str = "2026-07-28";
/// The longest list of methods.
const HEARD_MAX: usize = 10_000;
/// Messages that wait for a client to read them.
const EVENTS_MAX: usize = 64;

struct StatelessServer {
    events: mpsc::Sender<Value>,
    heard: Mutex<Vec<String>>,
    /// Requests that listen.
    listeners: Mutex<Vec<Value>>,
}

pub(crate) async fn serve(input: BufReader<Stdin>) -> io::Result<()> {
    let (events, written) = mpsc::channel(EVENTS_MAX);
    let tracker = TaskTracker::new();
    tracker.spawn(write(written));
    let server = Arc::new(StatelessServer { events, heard: Mutex::default(), listeners: Mutex::default() });
    let mut lines = input.lines();
    while let Some(line) = lines.next_line().await? {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        match (message["method"].as_str(), &message["id"]) {
            (Some(method), Value::Null) => {
                let taken_back = &message["params"]["requestId"];
                server.listeners.lock().retain(|id| id != taken_back);
                server.note(format!("{method} {taken_back}"));
            }
            (Some(method), _) => {
                server.note(method.to_owned());
                faults::in_a_call(&message);
                let server = Arc::clone(&server);
                tracker.spawn(async move { server.answer(message).await });
            }
            (None, id) => server.note(format!("answer {id}")),
        }
    }
    Ok(())
}

async fn write(mut messages: mpsc::Receiver<Value>) {
    let mut output = tokio::io::stdout();
    while let Some(message) = messages.recv().await {
        let line = format!("{message}\n");
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

impl StatelessServer {
    fn note(&self, what: String) {
        let mut heard = self.heard.lock();
        if heard.len() < HEARD_MAX {
            heard.push(what);
        }
    }

    async fn send(&self, message: Value) {
        // Fails if the client has disconnected.
        let _ = self.events.send(message).await;
    }

    async fn answer(&self, request: Value) {
        let complete = |mut result: Value| {
            result["resultType"] = json!("complete");
            Ok(result)
        };
        let outcome = match request["method"].as_str().unwrap_or_default() {
            method::DISCOVER => complete(json!({
                "supportedVersions": [VERSION], "ttlMs": 0, "cacheScope": "private",
                "capabilities": { "tools": { "listChanged": true }, "logging": {} },
                META: { "io.modelcontextprotocol/serverInfo": { "name": "stateless-demo", "version": "1" } },
            })),
            method::TOOLS_LIST => {
                let tool = |name: &&str| json!({ "name": name, "inputSchema": { "type": "object" } });
                let tools: Vec<_> =
                    ["greet", "who", "heard", "slow", "confirm", "log", "change", "broken"].iter().map(tool).collect();
                complete(json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" }))
            }
            method::TOOLS_CALL => self.call(&request["params"]).await,
            method::LISTEN => return self.listen(&request).await,
            method::INITIALIZE => {
                let (error, requested) = ("there are no sessions here", &request["params"]["protocolVersion"]);
                let error = RpcError::new(rpc_error::UNSUPPORTED_VERSION, error);
                Err(error.with_data(&json!({ "supported": [VERSION], "requested": requested })))
            }
            _ => Err(RpcError::new(rpc_error::METHOD_NOT_FOUND, "no such method")),
        };
        let (key, value) = match outcome {
            Ok(result) => ("result", result),
            Err(error) => ("error", json!(error)),
        };
        self.send(json!({ "jsonrpc": "2.0", "id": request["id"], key: value })).await;
    }

    async fn call(&self, params: &Value) -> Result<Value, RpcError> {
        let arguments = &params["arguments"];
        let text = match params["name"].as_str().unwrap_or_default() {
            "greet" => format!("Hello, {}!", arguments["name"].as_str().unwrap_or_default()),
            "who" => std::process::id().to_string(),
            "heard" => self.heard.lock().join("\n"),
            "slow" => {
                let token = &params[META][PROGRESS_TOKEN];
                if !token.is_null() {
                    let progress = json!({ "progressToken": token, "progress": 1, "total": 2 });
                    self.send(notification(method::PROGRESS, &progress)).await;
                }
                tokio::time::sleep(Duration::from_millis(arguments["millis"].as_u64().unwrap_or(100))).await;
                format!("waited for {}", arguments["name"].as_str().unwrap_or_default())
            }
            "confirm" if params["inputResponses"]["sure"]["content"]["yes"] == true => {
                format!("confirmed with {}", params["requestState"].as_str().unwrap_or_default())
            }
            "confirm" => {
                let schema = json!({ "type": "object", "properties": { "yes": { "type": "boolean" } } });
                let asked = json!({ "message": "Sure?", "mode": "form", "requestedSchema": schema });
                let question = json!({ "method": method::ELICIT, "params": asked });
                return Ok(json!({
                    "resultType": "input_required", "inputRequests": { "sure": question }, "requestState": "half way",
                }));
            }
            "log" => {
                let entry = json!({ "level": "info", "data": params[META][LOG_LEVEL] });
                self.send(notification(method::LOG_MESSAGE, &entry)).await;
                "logged".to_owned()
            }
            "change" => {
                let listeners = self.listeners.lock().clone();
                for id in &listeners {
                    let tagged = json!({ META: { SUBSCRIPTION_ID: id } });
                    self.send(notification(method::TOOLS_CHANGED, &tagged)).await;
                }
                format!("told {}", listeners.len())
            }
            _ => return Err(RpcError::new(rpc_error::INVALID_PARAMS, "no such tool")),
        };
        Ok(json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] }))
    }

    async fn listen(&self, request: &Value) {
        self.listeners.lock().push(request["id"].clone());
        let granted =
            json!({ "notifications": request["params"]["notifications"], META: { SUBSCRIPTION_ID: request["id"] } });
        self.send(notification(method::LISTEN_ACKNOWLEDGED, &granted)).await;
    }
}
