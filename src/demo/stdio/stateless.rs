//! A server of 2026-07-28 over standard input and output, for the tests of what stands in front of one. In debug builds
//! only, where `TASKGATE_DEMO_FAULT` names `stateless`.
//!
//! It knows no `initialize`, asks nothing, and tells what it heard: its tool `heard` lists the methods, with the requests
//! that notifications take back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::demo::rpc::{self, DemoRequest, Incoming};
use crate::wire::meta::{LOG_LEVEL, META, PROGRESS_TOKEN, SUBSCRIPTION_ID};
use crate::wire::{RpcError, method, rpc_error};

const VERSION: &str = "2026-07-28";
/// Notes of what was heard.
const HEARD_MAX: usize = 10_000;

struct StatelessDemo {
    events: mpsc::Sender<Value>,
    heard: Mutex<Vec<String>>,
    /// Requests that listen.
    listeners: Mutex<Vec<Value>>,
}

pub(super) async fn serve(input: impl AsyncRead + Unpin + Send, events: mpsc::Sender<Value>) -> io::Result<()> {
    let server = Arc::new(StatelessDemo { events, heard: Mutex::default(), listeners: Mutex::default() });
    let tracker = TaskTracker::new();
    let mut lines = BufReader::new(input).lines();
    while let Some(line) = lines.next_line().await? {
        let Some(message) = serde_json::from_str(&line).ok().and_then(rpc::read) else { continue };
        match message {
            Incoming::Request(request) => {
                server.note(request.method.clone());
                super::broken::in_a_call(&request);
                let server = Arc::clone(&server);
                tracker.spawn(async move { server.answer(request).await });
            }
            Incoming::Notification { method, params } => {
                server.listeners.lock().retain(|id| *id != params["requestId"]);
                server.note(format!("{method} {}", params["requestId"]));
            }
            Incoming::Answer { id, .. } => server.note(format!("answer {id}")),
        }
    }
    Ok(())
}

impl StatelessDemo {
    fn note(&self, what: String) {
        let mut heard = self.heard.lock();
        if heard.len() < HEARD_MAX {
            heard.push(what);
        }
    }

    async fn say(&self, message: Value) {
        // Fails if the client has gone, and then there is nobody to tell.
        let _ = self.events.send(message).await;
    }

    async fn answer(&self, request: DemoRequest) {
        let complete = |mut result: Value| {
            result["resultType"] = json!("complete");
            Ok(result)
        };
        let outcome = match request.method.as_str() {
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
            method::TOOLS_CALL => self.call(&request).await,
            method::LISTEN => return self.listen(request).await,
            method::INITIALIZE => {
                let error = RpcError::new(rpc_error::UNSUPPORTED_VERSION, "there are no sessions here");
                Err(error.with_data(&json!({ "supported": [VERSION], "requested": request.params["protocolVersion"] })))
            }
            _ => Err(RpcError::new(rpc_error::METHOD_NOT_FOUND, "no such method")),
        };
        self.say(rpc::answer(&request.id, outcome)).await;
    }

    async fn call(&self, request: &DemoRequest) -> Result<Value, RpcError> {
        let (params, arguments) = (&request.params, &request.params["arguments"]);
        let text = match params["name"].as_str().unwrap_or_default() {
            "greet" => format!("Hello, {}!", arguments["name"].as_str().unwrap_or_default()),
            "who" => std::process::id().to_string(),
            "heard" => self.heard.lock().join("\n"),
            "slow" => {
                let token = &params[META][PROGRESS_TOKEN];
                if !token.is_null() {
                    let progress = json!({ "progressToken": token, "progress": 1, "total": 2 });
                    self.say(rpc::notification(method::PROGRESS, &progress)).await;
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
                let said = json!({ "level": "info", "data": params[META][LOG_LEVEL] });
                self.say(rpc::notification(method::LOG_MESSAGE, &said)).await;
                "logged".to_owned()
            }
            "change" => {
                let listeners = self.listeners.lock().clone();
                for id in &listeners {
                    let tagged = json!({ META: { SUBSCRIPTION_ID: id } });
                    self.say(rpc::notification(method::TOOLS_CHANGED, &tagged)).await;
                }
                format!("told {}", listeners.len())
            }
            _ => return Err(RpcError::new(rpc_error::INVALID_PARAMS, "no such tool")),
        };
        Ok(json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] }))
    }

    async fn listen(&self, request: DemoRequest) {
        self.listeners.lock().push(request.id.clone());
        let granted =
            json!({ "notifications": request.params["notifications"], META: { SUBSCRIPTION_ID: request.id } });
        self.say(rpc::notification(method::LISTEN_ACKNOWLEDGED, &granted)).await;
    }
}
