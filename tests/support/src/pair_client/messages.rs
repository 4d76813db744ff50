//! Reads the messages of an answer, whether it is one or an event stream, and how a call ended.

use serde_json::{Value, json};

use super::Ending;
use crate::session_client::Reply;

/// The messages of an answer, JSON or stream.
pub(super) struct Messages {
    reply: Option<Reply>,
    is_stream: bool,
    rest: String,
}

impl Messages {
    pub(super) fn of(reply: Reply) -> Self {
        let is_stream = reply.header("content-type").is_some_and(|media| media.starts_with("text/event-stream"));
        Self { reply: Some(reply), is_stream, rest: String::new() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Value>, String> {
        if !self.is_stream {
            let Some(reply) = self.reply.take() else { return Ok(None) };
            let status = reply.status;
            let text = reply.try_text().await.ok_or("the answer broke off")?;
            return serde_json::from_str(&text).map(Some).map_err(|_| format!("{status}: no JSON: {text}"));
        }
        loop {
            if let Some(end) = self.rest.find("\n\n") {
                let event: String = self.rest.drain(..end + 2).collect();
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                if !data.trim().is_empty() {
                    return serde_json::from_str(&data).map(Some).map_err(|_| format!("no JSON: {data}"));
                }
                continue;
            }
            let Some(reply) = &mut self.reply else { return Ok(None) };
            match reply.piece().await {
                Some(piece) => self.rest.push_str(&piece),
                None => self.reply = None,
            }
        }
    }
}

/// The outcome that a settled task shows, as a response would.
pub(super) fn detail(task: &Value) -> Value {
    match task.get("error") {
        Some(error) => json!({"error": error}),
        None => json!({"result": task["result"]}),
    }
}

pub(super) fn ending(message: &Value) -> Result<Ending, String> {
    if let Some(code) = message["error"]["code"].as_i64() {
        return Ok(Ending::Error(code));
    }
    let result = &message["result"];
    let Some(text) = result["content"][0]["text"].as_str() else { return Err(format!("no result: {message}")) };
    Ok(if result["isError"] == true { Ending::ToolError(text.to_owned()) } else { Ending::Result(text.to_owned()) })
}
