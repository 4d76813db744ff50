//! Holds the demo server's tools. Each shows one difficulty for a gateway. A tool is a plain future. It need not check
//! for cancellation: its runner drops it.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::rpc;
use super::session::{DemoMessages, DemoSession};
use crate::wire::{RpcError, method, rpc_error};

const SECONDS_MAX: f64 = 3600.0;
const STEPS_MAX: u32 = 1000;
const FLOOD_BYTES_MAX: usize = 64 << 20;
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60 * 60);

#[derive(Debug)]
pub(super) struct DemoCaller {
    pub(super) session: Arc<DemoSession>,
    pub(super) events: DemoMessages,
    pub(super) progress_token: Option<Value>,
}

impl DemoCaller {
    /// Reports progress. A client that reads too slowly misses some of it, and does not block the tool.
    fn progress(&self, done: u32, total: u32, message: &str) {
        let Some(token) = &self.progress_token else { return };
        let params = json!({ "progressToken": token, "progress": done, "total": total, "message": message });
        let _ = self.events.try_send(rpc::notification(method::PROGRESS, &params));
    }

    /// Asks the client on the stream of its call, and waits. `Err` explains why there is no answer.
    async fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        let question = self.session.question();
        if self.events.send(rpc::request(&question.id, method, &params)).await.is_err() {
            return Err("the client left before it could be asked".to_owned());
        }
        let late = |_| Err("the client did not answer in time".to_owned());
        tokio::time::timeout(ANSWER_WAIT_MAX, question.answer()).await.unwrap_or_else(late)
    }
}

/// Runs the tool of a `tools/call`. Fails with −32602 for an unknown tool or bad arguments, or with the error of `crash`.
pub(super) async fn call(mut params: Value, caller: &DemoCaller) -> Result<Value, RpcError> {
    let arguments = match params.get_mut("arguments").map(Value::take) {
        None | Some(Value::Null) => json!({}),
        Some(arguments) => arguments,
    };
    let name = params.get("name").and_then(Value::as_str);
    match name.ok_or_else(|| invalid("params.name is missing"))? {
        "greet" => Ok(greet(&read(arguments)?)),
        "slow_report" => slow_report(&read(arguments)?, caller).await,
        "confirm_delete" => Ok(confirm_delete(&read(arguments)?, caller).await),
        "summarise" => Ok(summarise(&read(arguments)?, caller).await),
        "fail" => read(arguments).map(|Nothing {}| failure("This tool always fails.")),
        "crash" => read(arguments).and_then(|Nothing {}| Err(crash())),
        "flood" => flood(&read(arguments)?),
        other => Err(invalid(format!("unknown tool: {other}"))),
    }
}

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct Greet {
    name: String,
}

fn greet(Greet { name }: &Greet) -> Value {
    text(format!("Hello, {name}!"))
}

#[derive(Deserialize)]
#[serde(default)]
struct SlowReport {
    seconds: f64,
    steps: u32,
}

impl Default for SlowReport {
    fn default() -> Self {
        Self { seconds: 10.0, steps: 10 }
    }
}

async fn slow_report(&SlowReport { seconds, steps }: &SlowReport, caller: &DemoCaller) -> Result<Value, RpcError> {
    if !(0.0..=SECONDS_MAX).contains(&seconds) || !(1..=STEPS_MAX).contains(&steps) {
        return Err(invalid(format!("seconds must lie within 0 and {SECONDS_MAX}, steps within 1 and {STEPS_MAX}")));
    }
    let pause = Duration::from_secs_f64(seconds) / steps;
    for step in 1..=steps {
        tokio::time::sleep(pause).await;
        caller.progress(step, steps, &format!("section {step}/{steps} written"));
    }
    Ok(text(format!("The report is ready: {steps} sections in {seconds} s.")))
}

#[derive(Deserialize)]
struct ConfirmDelete {
    path: String,
}

/// Deletes nothing: the files of a demo are imaginary.
async fn confirm_delete(ConfirmDelete { path }: &ConfirmDelete, caller: &DemoCaller) -> Value {
    if !caller.session.abilities.elicitation {
        return failure("This tool asks before it deletes, and this client does not support elicitation.");
    }
    let params = json!({
        "message": format!("Delete {path}?"),
        "requestedSchema": {
            "type": "object",
            "properties": { "confirm": { "type": "boolean", "title": "Delete it", "default": false } },
            "required": ["confirm"],
        },
    });
    match caller.ask(method::ELICIT, params).await {
        Ok(answer) if answer["action"] == "accept" && answer["content"]["confirm"] == true => {
            text(format!("Deleted {path}."))
        }
        Ok(_) => text(format!("Kept {path}.")),
        Err(why) => failure(format!("Kept {path}: {why}.")),
    }
}

#[derive(Deserialize)]
struct Summarise {
    text: String,
}

async fn summarise(Summarise { text: long }: &Summarise, caller: &DemoCaller) -> Value {
    if !caller.session.abilities.sampling {
        return failure("This tool borrows the client's model, and this client does not support sampling.");
    }
    let params = json!({
        "messages": [{ "role": "user", "content": { "type": "text", "text": long } }],
        "systemPrompt": "Summarise the text in one sentence.",
        "maxTokens": 200,
    });
    match caller.ask(method::SAMPLE, params).await {
        Ok(answer) => match answer["content"]["text"].as_str() {
            Some(summary) => text(format!("Summary: {summary}")),
            None => failure("The client's model did not answer with text."),
        },
        Err(why) => failure(format!("No summary: {why}.")),
    }
}

fn crash() -> RpcError {
    let data = json!({ "tool": "crash", "hint": "this is an unhandled exception" });
    RpcError::new(rpc_error::INTERNAL_ERROR, "the tool crashed").with_data(&data)
}

#[derive(Deserialize)]
struct Flood {
    bytes: usize,
}

fn flood(&Flood { bytes }: &Flood) -> Result<Value, RpcError> {
    if bytes > FLOOD_BYTES_MAX {
        return Err(invalid(format!("bytes must be at most {FLOOD_BYTES_MAX}")));
    }
    Ok(text("All work and no play. ".chars().cycle().take(bytes).collect::<String>()))
}

fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, RpcError> {
    serde_json::from_value(arguments).map_err(|error| invalid(format!("bad arguments: {error}")))
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(rpc_error::INVALID_PARAMS, message)
}

fn text(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

fn failure(message: impl Into<String>) -> Value {
    let mut result = text(message);
    result["isError"] = Value::Bool(true);
    result
}

pub(super) fn list() -> Value {
    let string = |what: &str| json!({ "type": "string", "description": what });
    let read_only = json!({ "readOnlyHint": true, "idempotentHint": true, "openWorldHint": false });
    let name = json!({ "name": string("The name to greet") });
    let slow = json!({
        "seconds": { "type": "number", "minimum": 0, "maximum": SECONDS_MAX, "default": 10 },
        "steps": { "type": "integer", "minimum": 1, "maximum": STEPS_MAX, "default": 10 },
    });
    let bytes = json!({ "bytes": { "type": "integer", "minimum": 0, "maximum": FLOOD_BYTES_MAX } });
    let deletes = json!({ "readOnlyHint": false, "destructiveHint": true, "idempotentHint": true });
    json!({ "tools": [
        tool("greet", "Returns a greeting at once", name, &["name"], &read_only),
        tool("slow_report", "Takes its time and reports progress", slow, &[], &read_only),
        tool("confirm_delete", "Asks before it deletes (it only pretends to)",
            json!({ "path": string("What to delete") }), &["path"], &deletes),
        tool("summarise", "Has the client's model summarise a text",
            json!({ "text": string("The text") }), &["text"], &json!({ "readOnlyHint": true, "openWorldHint": true })),
        tool("fail", "Returns a result that says it failed", json!({}), &[], &read_only),
        tool("crash", "Answers with a protocol error", json!({}), &[], &read_only),
        tool("flood", "Returns as much text as you ask for", bytes, &["bytes"], &read_only),
    ] })
}

fn tool(name: &str, what: &str, properties: Value, required: &[&str], annotations: &Value) -> Value {
    json!({
        "name": name,
        "description": what,
        "inputSchema": { "type": "object", "properties": properties, "required": required },
        "annotations": annotations,
    })
}
