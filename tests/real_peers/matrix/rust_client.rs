//! Drives a tool with rmcp by its own task API, in this process.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities, ClientConfig,
    DetailedTask, GetTaskParams, Implementation, InputRequest, InputRequests, InputResponses, ProtocolVersion,
    TaskPayload, UpdateTaskParams,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RoleClient};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{Peer, ServiceError};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::bridge::UnixSocketProxy;
use super::cases::{Call, Expected};
use super::client::Facts;

/// The version that Cargo.toml pins; every call compares it with rmcp's own.
pub(crate) const VERSION: &str = "3.11.0";

/// The pace of a task that suggests none.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Makes `call` at `url` and reports as the other drivers do.
///
/// # Errors
/// If rmcp does not get as far as an outcome.
pub(crate) async fn drive(url: &str, call: Call) -> Result<Facts, String> {
    let bridge = UnixSocketProxy::to(url)?;
    let transport = StreamableHttpClientTransport::from_unix_socket(&bridge.socket().to_string_lossy(), url);
    #[allow(deprecated, reason = "servers of session versions still ask for samples")]
    let capabilities = ClientCapabilities::builder().enable_tasks().enable_elicitation().enable_sampling().build();
    let config = ClientConfig::new(capabilities, Implementation::from_build_env());
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    };
    let connected = config.serve_with_lifecycle(transport, lifecycle).await;
    let client = connected.map_err(|error| format!("rmcp cannot connect: {error}"))?;
    let facts = outcome(client.peer(), call).await;
    client.cancel().await.map_err(|error| format!("rmcp did not end: {error}"))?;
    facts
}

async fn outcome(peer: &Peer<RoleClient>, call: Call) -> Result<Facts, String> {
    let arguments: Value = serde_json::from_str(call.arguments).map_err(|error| error.to_string())?;
    let mut params = CallToolRequestParams::new(call.tool);
    params.arguments = arguments.as_object().cloned();
    let task = loop {
        match peer.call_tool_once(params.clone()).await {
            Ok(CallToolResponse::Complete(result)) => return Ok(returned(&result, false)),
            Ok(CallToolResponse::Task(created)) => break created.task,
            Ok(CallToolResponse::InputRequired(asked)) => {
                params.input_responses = Some(answers(&asked.input_requests.unwrap_or_default(), call.declines)?);
                params.request_state = asked.request_state;
            }
            Ok(other) => return Err(format!("the call was answered with {other:?}")),
            Err(ServiceError::McpError(error)) => {
                return Ok(facts("protocol_error", &error.message, Some(error.code.0.into()), false));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let mut is_cancelled = call.expected != Expected::Cancelled;
    let pace = task.poll_interval_ms.map_or(POLL_INTERVAL, Duration::from_millis);
    loop {
        let polled = peer.get_task(GetTaskParams::new(task.task_id.clone())).await;
        let polled = polled.map_err(|error| error.to_string())?.task;
        if polled.status().is_terminal() {
            return settled(polled);
        }
        if let TaskPayload::InputRequired { input_requests } = polled.payload {
            let update = UpdateTaskParams::new(task.task_id.clone(), answers(&input_requests, call.declines)?);
            peer.update_task(update).await.map_err(|error| error.to_string())?;
        }
        if !is_cancelled {
            is_cancelled = true;
            let cancel = peer.cancel_task(CancelTaskParams::new(task.task_id.clone())).await;
            cancel.map_err(|error| error.to_string())?;
        }
        sleep(pace).await;
    }
}

/// The answers of this client's user and model.
fn answers(requests: &InputRequests, declines: bool) -> Result<InputResponses, String> {
    let answer = |request: &InputRequest| match request {
        InputRequest::Elicitation(_) if declines => Ok(json!({ "action": "decline" })),
        InputRequest::Elicitation(asked) => {
            let asked = serde_json::to_value(asked).map_err(|error| error.to_string())?;
            Ok(json!({ "action": "accept", "content": filled(&asked["params"]["requestedSchema"]) }))
        }
        InputRequest::CreateMessage(_) => {
            let content = json!({ "type": "text", "text": "said by the model" });
            Ok(json!({ "role": "assistant", "model": "peer", "content": content }))
        }
        // The list of questions is open.
        other @ (InputRequest::ListRoots(_) | _) => Err(format!("the client was asked {other:?}")),
    };
    requests.iter().map(|(key, request)| Ok((key.clone(), answer(request)?))).collect()
}

/// A form with its required members.
fn filled(schema: &Value) -> Value {
    let value = |name: &str| match schema["properties"][name]["type"].as_str() {
        Some("boolean") => json!(true),
        _ => json!("Ada"),
    };
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| (name.to_owned(), value(name))).collect::<serde_json::Map<_, _>>().into()
}

fn settled(task: DetailedTask) -> Result<Facts, String> {
    let status = task.status();
    match task.payload {
        TaskPayload::Completed { result } => {
            let result = serde_json::from_value(Value::Object(result));
            Ok(returned(&result.map_err(|error| error.to_string())?, true))
        }
        TaskPayload::Failed { error } => {
            let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
            Ok(facts("protocol_error", message, error.get("code").and_then(Value::as_i64), true))
        }
        TaskPayload::Cancelled => Ok(facts("cancelled", "", None, true)),
        // The list of payloads is open: a later variant of rmcp is no outcome either.
        TaskPayload::Working | TaskPayload::InputRequired { .. } | _ => Err(format!("the task ended as {status:?}")),
    }
}

fn returned(result: &CallToolResult, task: bool) -> Facts {
    let texts: Vec<_> = result.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect();
    let outcome = if result.is_error == Some(true) { "tool_error" } else { "result" };
    facts(outcome, &texts.join("\n"), None, task)
}

fn facts(outcome: &str, text: &str, code: Option<i64>, task: bool) -> Facts {
    let version = Implementation::from_build_env().version;
    Facts { version, outcome: outcome.to_owned(), text: text.to_owned(), code, task }
}
