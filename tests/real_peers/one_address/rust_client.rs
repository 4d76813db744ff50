//! Uses several servers at one address with rmcp as it comes, in this process.

use rmcp::model::{
    CallToolRequestParams, CallToolResult, GetPromptRequestParams, ReadResourceRequestParams, ResourceContents,
};
use rmcp::service::ServiceExt as _;
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};

use super::bridge::UnixSocketProxy;
use crate::session_matrix::rust_host::Host;

/// How often tools are listed until all servers have some.
const LISTS_MAX: usize = 20;

/// Carries the plan out; returns the same facts as the other drivers.
///
/// # Errors
/// If rmcp fails before the end.
pub(crate) async fn drive(url: &str, plan: &Value) -> Result<Value, String> {
    let bridge = UnixSocketProxy::to(url)?;
    let host = Host::new(&json!({ "name": "Ada" }));
    let transport = StreamableHttpClientTransport::from_unix_socket(&bridge.socket().to_string_lossy(), url);
    let client = host.clone().serve(transport).await.map_err(|error| error.to_string())?;
    let peer = client.peer();
    let fails = |error: rmcp::ServiceError| error.to_string();
    let mut tools = Vec::new();
    // Programs take their time to start.
    for _ in 0..LISTS_MAX {
        tools = peer.list_all_tools().await.map_err(fails)?;
        let has_some = |server: &Value| {
            let prefix = format!("{}__", server.as_str().unwrap_or_default());
            tools.iter().any(|tool| tool.name.starts_with(&prefix))
        };
        if plan["servers"].as_array().is_some_and(|servers| servers.iter().all(has_some)) {
            break;
        }
    }
    let prompts = peer.list_all_prompts().await.map_err(fails)?;
    let mut said = Vec::new();
    for call in plan["calls"].as_array().into_iter().flatten() {
        said.push(text_of(&peer.call_tool(params_of(call)).await.map_err(fails)?));
    }
    let uri = plan["resource"].as_str().unwrap_or_default();
    let resource = peer.read_resource(ReadResourceRequestParams::new(uri)).await.map_err(fails)?;
    let resource = match resource.contents.first() {
        Some(ResourceContents::TextResourceContents { text, .. }) => text.clone(),
        other => return Err(format!("no text: {other:?}")),
    };
    let mut prompt = GetPromptRequestParams::new(plan["prompt"]["name"].as_str().unwrap_or_default());
    prompt.arguments = plan["prompt"]["arguments"].as_object().cloned();
    let prompt = peer.get_prompt(prompt).await.map_err(fails)?;
    let slow = text_of(&peer.call_tool(params_of(&plan["slow"])).await.map_err(fails)?);
    let answered = text_of(&peer.call_tool(params_of(&plan["ask"])).await.map_err(fails)?);
    client.cancel().await.map_err(|error| format!("rmcp did not end: {error}"))?;
    Ok(json!({
        "tools": tools.iter().map(|tool| &tool.name).collect::<Vec<_>>(),
        "prompts": prompts.iter().map(|prompt| &prompt.name).collect::<Vec<_>>(),
        "said": said, "resource": resource, "prompt": serde_json::to_string(&prompt.messages).unwrap_or_default(),
        "slow": slow, "answered": answered, "asked": host.elicited(), "task": null,
    }))
}

fn params_of(call: &Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(call["tool"].as_str().unwrap_or_default().to_owned());
    params.arguments = Some(call["arguments"].as_object().cloned().unwrap_or_default());
    params
}

fn text_of(result: &CallToolResult) -> String {
    let texts: Vec<_> = result.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect();
    texts.join("\n")
}
