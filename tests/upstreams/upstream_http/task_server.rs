//! A scripted server that makes tasks of calls in the words of 2025-11-25, and the calls that ask it to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use taskgate::upstream::http::SessionUpstream;
use taskgate::upstream::{CallContext, Exchange, UpstreamTaskMode};
use tokio::time::Instant;

use super::server::{
    BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer as result, json_text, polite, status,
};
use super::{call, context, try_begin};

pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// The answer to one request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Result(Value),
    Error(i64, &'static str),
    Status(u16),
    /// The connection breaks.
    Cut,
    /// Text that is no message, as JSON.
    Garbage,
    /// This as JSON, with the request's id for `ID`.
    Text(&'static str),
    /// Never.
    Hang,
}

impl Step {
    async fn reply(self, seen: &SeenRequest) -> ScriptedReply {
        match self {
            Self::Result(value) => result(seen, &value),
            Self::Error(code, message) => {
                let error = json!({"code": code, "message": message});
                json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string())
            }
            Self::Status(code) => status(code),
            Self::Cut => {
                let (events, reply) = BodySender::open();
                events.cut();
                reply
            }
            Self::Garbage => json_text("{oops"),
            Self::Text(text) => json_text(text.replace("ID", &seen.body["id"].to_string())),
            Self::Hang => std::future::pending().await,
        }
    }
}

/// `u-1` in this state, asked for every 100 ms.
pub(crate) fn task(state: &str) -> Value {
    task_with(state, &json!({}))
}

/// The same with other members.
pub(crate) fn task_with(state: &str, others: &Value) -> Value {
    let mut task = json!({
        "taskId": "u-1", "status": state, "ttl": null, "pollInterval": 100,
        "createdAt": "2026-11-22T00:00:00Z", "lastUpdatedAt": "2026-11-22T00:00:00Z",
    });
    task.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    task
}

pub(crate) fn is(state: &str) -> Step {
    Step::Result(task(state))
}

pub(crate) fn says(text: &str) -> Step {
    Step::Result(json!({ "content": [{ "type": "text", "text": text }] }))
}

/// The answers to each method, in order; the last one is repeated.
#[derive(Clone, Debug)]
pub(crate) struct Script(Arc<Mutex<HashMap<&'static str, Vec<Step>>>>);

impl Script {
    /// A server that makes `u-1` of a call, which is done at the first look.
    pub(crate) fn new() -> Self {
        let script = Self(Arc::default());
        script
            .on("tools/call", [Step::Result(json!({ "task": task("working") }))])
            .on("tasks/get", [is("completed")])
            .on("tasks/result", [says("done")])
            .on("tasks/cancel", [is("cancelled")])
    }

    pub(crate) fn on(self, method: &'static str, steps: impl IntoIterator<Item = Step>) -> Self {
        self.0.lock().insert(method, steps.into_iter().collect());
        self
    }

    fn step(&self, method: &str) -> Option<Step> {
        let mut steps = self.0.lock();
        let steps = steps.get_mut(method)?;
        if steps.len() > 1 { Some(steps.remove(0)) } else { steps.first().cloned() }
    }

    pub(crate) async fn answer(&self, seen: &SeenRequest) -> Option<ScriptedReply> {
        Some(self.step(seen.rpc())?.reply(seen).await)
    }

    pub(crate) async fn serve(self) -> ScriptedServer {
        ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
            let script = self.clone();
            async move { Some(script.polite(&seen, &world).await) }
        })
        .await
    }

    /// By the script, else as any server that declares tasks.
    pub(crate) async fn polite(&self, seen: &SeenRequest, world: &ScriptedState) -> ScriptedReply {
        match self.answer(seen).await {
            Some(reply) => reply,
            None if seen.rpc() == "initialize" => declaring(seen, world, &tasks_declared()),
            None => polite(seen, world),
        }
    }
}

pub(crate) fn tasks_declared() -> Value {
    json!({"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}})
}

/// A handshake with these capabilities, in a session of its own.
pub(crate) fn declaring(seen: &SeenRequest, world: &ScriptedState, capabilities: &Value) -> ScriptedReply {
    let session = polite(seen, world).headers_mut().remove("mcp-session-id").unwrap();
    let mut reply = result(
        seen,
        &json!({
            "protocolVersion": seen.body["params"]["protocolVersion"], "capabilities": capabilities,
            "serverInfo": {"name": "scripted", "version": "1"},
        }),
    );
    reply.headers_mut().insert("mcp-session-id", session);
    reply
}

/// The context of a call that may become a task of the upstream's.
pub(crate) fn native() -> CallContext {
    CallContext { native_task: UpstreamTaskMode::WhereServed { deadline: DEADLINE }, ..context() }
}

pub(crate) async fn begin(upstream: &SessionUpstream) -> Box<dyn Exchange> {
    try_begin(upstream, call(&json!({})), native()).await.unwrap()
}

pub(crate) fn rpc(method: &'static str) -> impl Fn(&SeenRequest) -> bool {
    move |seen| seen.rpc() == method
}

pub(crate) fn count(world: &ScriptedState, method: &'static str) -> usize {
    world.all(rpc(method)).len()
}

/// When requests of a method came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Arc<Mutex<Vec<Instant>>>);

impl Times {
    pub(crate) fn note(&self) {
        self.0.lock().push(Instant::now());
    }

    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.0.lock().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}
