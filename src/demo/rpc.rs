//! Reads and writes JSON-RPC messages as trees: simple, and fast enough for a demo.

use serde_json::{Value, json};

use crate::wire::RpcError;

#[derive(Debug)]
pub(super) enum Incoming {
    Request(DemoRequest),
    Notification { method: String, params: Value },
    Answer { id: Value, outcome: Result<Value, String> },
}

#[derive(Debug)]
pub(super) struct DemoRequest {
    pub(super) id: Value,
    pub(super) method: String,
    /// `{}` if the message has none.
    pub(super) params: Value,
}

/// Reads one message; `None` if it is no JSON-RPC 2.0.
pub(super) fn read(mut message: Value) -> Option<Incoming> {
    if message.get("jsonrpc")? != "2.0" {
        return None;
    }
    let id = message.get("id").cloned();
    let Some(method) = message.get("method") else {
        let outcome = match message.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(message.get("error")?.get("message")?.as_str()?.to_owned()),
        };
        return Some(Incoming::Answer { id: id?, outcome });
    };
    let method = method.as_str()?.to_owned();
    let params = message.get_mut("params").map_or_else(|| json!({}), Value::take);
    match id {
        None => Some(Incoming::Notification { method, params }),
        Some(id) if id.is_string() || id.is_i64() || id.is_u64() => {
            Some(Incoming::Request(DemoRequest { id, method, params }))
        }
        Some(_) => None,
    }
}

pub(super) fn answer(id: &Value, outcome: Result<Value, RpcError>) -> Value {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    }
}

pub(super) fn refusal(error: &RpcError) -> Value {
    json!({ "jsonrpc": "2.0", "error": error })
}

pub(super) fn request(id: &str, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// Whether an outgoing message ends its exchange: it has no method.
pub(super) fn is_answer(message: &Value) -> bool {
    message.get("method").is_none()
}
