//! Calls a tool, and follows its task by the task's id.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, DetailedTask, GetTaskParams, RequestMetaObject,
    TaskPayload, UpdateTaskParams,
};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde_json::{Value, json};

/// Begins the call under an idempotency key. The same call under the same key gets the same task.
pub(crate) async fn begin(
    peer: &Peer<RoleClient>,
    tool: &'static str,
    arguments: Value,
    key: &str,
) -> Result<CallToolResponse, ServiceError> {
    let mut meta = RequestMetaObject::new();
    meta.0.0.insert("io.taskgate/idempotency-key".to_owned(), json!(key));
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = arguments.as_object().cloned();
    params.meta = Some(meta);
    peer.call_tool_once(params).await
}

/// Follows a task to its end, also one that an earlier process began.
pub(crate) async fn follow(
    peer: &Peer<RoleClient>,
    id: &str,
    mut show: impl FnMut(String),
) -> Result<DetailedTask, ServiceError> {
    loop {
        let found = match peer.get_task(GetTaskParams::new(id.to_owned())).await {
            Ok(found) => found.task,
            // The gateway may be restarting, and the task continues.
            Err(ServiceError::TransportSend(_)) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        match &found.payload {
            TaskPayload::Working => show(found.task.status_message.clone().unwrap_or_default()),
            TaskPayload::InputRequired { input_requests } => {
                let yes = json!({ "action": "accept", "content": { "confirm": true } });
                let answers = input_requests.keys().map(|key| (key.clone(), yes.clone())).collect();
                peer.update_task(UpdateTaskParams::new(id.to_owned(), answers)).await?;
            }
            TaskPayload::Completed { .. } | TaskPayload::Failed { .. } | TaskPayload::Cancelled | _ => {
                return Ok(found);
            }
        }
        tokio::time::sleep(Duration::from_millis(found.task.poll_interval_ms.unwrap_or(1_000))).await;
    }
}

pub(crate) async fn cancel(peer: &Peer<RoleClient>, id: &str) -> Result<(), ServiceError> {
    peer.cancel_task(CancelTaskParams::new(id.to_owned())).await
}
