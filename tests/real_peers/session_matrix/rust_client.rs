//! Drives a session with unmodified rmcp, in its default lifecycle, in this process. The cases are those of
//! `session_driver.mjs`.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, GetPromptRequestParams, Implementation,
    LoggingLevel, SetLevelRequestParams, SubscribeRequestParams,
};
use rmcp::service::{PeerRequestOptions, RoleClient, RunningService, ServiceExt as _};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{Peer, ServiceError};
use serde_json::{Value, json};
use support::peers::WAIT_MAX;
use tokio::time::{Instant, timeout};

use super::bridge::UnixSocketProxy;
use super::driver::{Driven, Seat};
use super::rust_host::{Host, NOTICE_MAX};
use super::table::Facts;

/// One case.
struct Case<'a> {
    given: &'a Value,
    host: &'a Host,
    bridge: &'a UnixSocketProxy,
    peer: &'a Peer<RoleClient>,
}

/// Carries out the case `kind` with the arguments `given`, in a session of its own.
///
/// # Errors
/// If rmcp fails before an outcome.
pub(crate) async fn drive(url: &str, kind: &str, given: &Value, seat: Option<&mut Seat>) -> Driven {
    let driven = timeout(WAIT_MAX, in_session(url, kind, given, seat)).await;
    let mut facts = driven.map_err(|_| "no end in time".to_owned())??;
    facts.insert("version".to_owned(), Implementation::from_build_env().version.into());
    Ok(facts)
}

async fn in_session(url: &str, kind: &str, given: &Value, seat: Option<&mut Seat>) -> Driven {
    let bridge = UnixSocketProxy::to(url)?;
    let host = Host::new(given.get("answer").unwrap_or(&Value::Null));
    let transport = StreamableHttpClientTransport::from_unix_socket(&bridge.socket().to_string_lossy(), url);
    let client = host.clone().serve(transport).await.map_err(|error| format!("rmcp cannot connect: {error}"))?;
    let case = Case { given, host: &host, bridge: &bridge, peer: client.peer() };
    let facts = match case.outcome(kind, seat).await {
        Ok(facts) => facts,
        Err(ServiceError::McpError(error)) => {
            facts_of(json!({ "outcome": "protocol_error", "text": error.message, "code": error.code.0 }))
        }
        Err(error) => return Err(error.to_string()),
    };
    let facts = with(facts, json!({ "asked": host.asked(), "resumed": resumed(&bridge) }));
    if kind == "delete" { deleted(facts, client, &bridge, url).await } else { ended(client).await.map(|()| facts) }
}

async fn ended(client: RunningService<RoleClient, Host>) -> Result<(), String> {
    client.cancel().await.map(drop).map_err(|error| format!("rmcp did not end: {error}"))
}

impl Case<'_> {
    async fn outcome(&self, kind: &str, seat: Option<&mut Seat>) -> Result<Facts, ServiceError> {
        match kind {
            "protocol_error" if self.given.get("prompt").is_some() => {
                self.peer.get_prompt(GetPromptRequestParams::new(self.text("prompt"))).await?;
                Ok(facts_of(json!({ "outcome": "ok" })))
            }
            "progress" => {
                let facts = self.call(self.given).await?;
                // rmcp delivers concurrently, so neither the answer nor any step need come last.
                let end = self.given["expect"]["last"].as_f64();
                let largest = |steps: &[Value]| steps.iter().filter_map(Value::as_f64).max_by(f64::total_cmp);
                let is_over = |steps: &[Value]| largest(steps) >= end;
                let steps = self.host.heard("notifications/progress", is_over, NOTICE_MAX).await;
                Ok(with(facts, json!({ "notified": steps.len(), "last": largest(&steps) })))
            }
            "subscribe" => {
                self.peer.subscribe(SubscribeRequestParams::new(self.text("uri"))).await?;
                self.provoked("notifications/resources/updated").await
            }
            "list_changed" => self.provoked(self.text("notification")).await,
            "log" => {
                let level: LoggingLevel = serde_json::from_value(self.given["level"].clone()).unwrap();
                self.peer.set_level(SetLevelRequestParams::new(level)).await?;
                self.provoked("notifications/message").await
            }
            "cancel" => self.cancelled().await,
            "two_calls" => {
                let first = self.called().await?;
                if let Some(seat) = seat {
                    seat.take().await;
                }
                let second = self.call(self.given).await?;
                let text = format!("{}\n{}", first["text"].as_str().unwrap(), second["text"].as_str().unwrap());
                Ok(with(second, json!({ "text": text, "session_kept": session_ids(self.bridge).len() == 1 })))
            }
            _ => self.called().await,
        }
    }

    /// Calls the tool, after the server's own question where the case waits for one.
    async fn called(&self) -> Result<Facts, ServiceError> {
        if self.given.get("server_asks_first").is_some() {
            self.host.is_asked().await;
        }
        self.call(self.given).await
    }

    fn text(&self, name: &str) -> &str {
        self.given[name].as_str().unwrap_or_default()
    }

    async fn call(&self, given: &Value) -> Result<Facts, ServiceError> {
        self.peer.call_tool(params_of(given)).await.map(|result| returned(&result))
    }

    /// Calls the tool that makes the server speak, again if the case says so, until it has spoken.
    async fn provoked(&self, method: &str) -> Result<Facts, ServiceError> {
        let deadline = Instant::now() + NOTICE_MAX;
        let again = self.given["again_after_ms"].as_u64().map_or(NOTICE_MAX, Duration::from_millis);
        loop {
            let facts = self.call(self.given).await?;
            let heard = self.host.heard(method, |heard| !heard.is_empty(), again).await;
            if !heard.is_empty() || Instant::now() > deadline {
                return Ok(with(facts, json!({ "notified": heard.len(), "last": heard.last() })));
            }
        }
    }

    async fn cancelled(&self) -> Result<Facts, ServiceError> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params_of(self.given)));
        let call = self.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
        self.call(&self.given["begun"]).await?;
        call.cancel(Some("no longer needed".to_owned())).await?;
        Ok(with(self.call(&self.given["then"]).await?, json!({ "cancelled": "by its handle" })))
    }
}

/// Ends the session, and adds the result.
async fn deleted(
    facts: Facts,
    client: RunningService<RoleClient, Host>,
    bridge: &UnixSocketProxy,
    url: &str,
) -> Driven {
    ended(client).await?;
    // This client names the whole URL in its requests.
    let after =
        |heard: &str| heard.split_once("DELETE http")?.1.split_once("HTTP/1.1 ")?.1.get(..3)?.parse::<u16>().ok();
    let deleted = bridge.transcripts().iter().find_map(|heard| after(heard));
    let ids = session_ids(bridge);
    let id = ids.first().ok_or("there was no session id")?;
    let body = json!({ "jsonrpc": "2.0", "id": "after-the-end", "method": "tools/list", "params": {} }).to_string();
    let request = http::Request::post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", id)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let http: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let status = http.request(request).await.map_err(|error| error.to_string())?.status().as_u16();
    Ok(with(facts, json!({ "deleted": deleted, "status": status })))
}

/// The session ids that the gateway gave out.
fn session_ids(bridge: &UnixSocketProxy) -> Vec<String> {
    let mut ids = Vec::new();
    for heard in bridge.transcripts() {
        // Answers only: requests repeat the id.
        for answer in heard.split("HTTP/1.1 200").skip(1) {
            let head = answer.split("\r\n\r\n").next().unwrap_or_default();
            let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
            ids.extend(id.map(str::to_owned));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// How many streams were resumed.
fn resumed(bridge: &UnixSocketProxy) -> usize {
    bridge.transcripts().iter().map(|heard| heard.to_lowercase().matches("\r\nlast-event-id: ").count()).sum()
}

fn params_of(given: &Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(given["tool"].as_str().unwrap_or_default().to_owned());
    params.arguments = Some(given["arguments"].as_object().cloned().unwrap_or_default());
    params
}

fn returned(result: &CallToolResult) -> Facts {
    let texts: Vec<_> = result.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect();
    let outcome = if result.is_error == Some(true) { "tool_error" } else { "ok" };
    facts_of(json!({ "outcome": outcome, "text": texts.join("\n") }))
}

fn with(mut facts: Facts, more: Value) -> Facts {
    facts.extend(facts_of(more));
    facts
}

fn facts_of(value: Value) -> Facts {
    match value {
        Value::Object(facts) => facts,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Facts::new(),
    }
}
