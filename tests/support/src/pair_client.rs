//! One client in many kinds. Each goes the whole way of a call as its flavour has it, and is strict on the way.

mod chosen_ids;
mod extension;
mod filtered;
mod messages;
mod subtasks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

pub use crate::kind::Kind;
use crate::scripted::WAIT_MAX;
use crate::session_client::{Client, Reply};
use messages::{Messages, ending};

/// The behaviour of the client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserBehaviour {
    /// Answers every question, and waits for the end.
    Patient,
    /// Declines every question.
    Declining,
    /// Answers no question.
    Silent,
    /// Cancels once the call is under way; before a question, or at it.
    Cancelling,
    CancellingWhenAsked,
    /// Cancels a call that waits for its turn.
    CancellingQueued,
    /// Disconnects once the call is in progress.
    Leaving,
}

/// How a call ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Result(String),
    ToolError(String),
    Error(i64),
    Cancelled,
    Left,
}

/// The client's record of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub ending: Ending,
    /// Whether there was a handle.
    pub is_task: bool,
    pub questions: usize,
}

/// How long a question may be open, in the gateway's configuration.
pub const INPUT_DEADLINE: Duration = Duration::from_secs(4);
/// How long the slow tool of the server takes; the gateway's grace is shorter.
pub const SLOW: Duration = Duration::from_millis(3_500);

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const RELATED: &str = "io.modelcontextprotocol/related-task";
const POLL: Duration = Duration::from_millis(100);
const LONGEST: Duration = WAIT_MAX;

pub struct PairClient {
    kind: Kind,
    client: Client,
    next_id: u64,
    questions: usize,
    seen_keys: BTreeSet<String>,
    runs: Runs,
    /// Notified once a call of a client without tasks waits for a permit.
    queued: Arc<Notify>,
    /// The parent of the task that is looked after, if it is a subtask.
    parent: Option<String>,
    /// The prefix of the tools' names.
    prefix: String,
}

/// How often the server has begun to run a tool, as the server tells it.
type Runs = Arc<dyn Fn(&str) -> usize + Send + Sync>;

/// Until the server runs the tool.
async fn under_way(runs: &Runs, tool: &str) -> Result<(), String> {
    let begun = Instant::now();
    while runs(tool) == 0 {
        if begun.elapsed() > LONGEST {
            return Err(format!("{tool} was never begun"));
        }
        sleep(POLL).await;
    }
    Ok(())
}

impl PairClient {
    /// A client at the same place, without a session. `runs` tells it when a call is in progress, for a cancel or disconnect.
    pub async fn new(
        kind: Kind,
        mut client: Client,
        runs: impl Fn(&str) -> usize + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let mut next_id = 1;
        if kind.is_stateless() {
            client.version = Some("2026-07-28".to_owned());
        } else {
            let params = json!({
                "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}},
                "clientInfo": {"name": "raw", "version": "1"},
            });
            let opening = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
            let reply = client.post(opening.to_string()).await;
            client.session = reply.header("mcp-session-id").map(str::to_owned);
            client.version = Some("2025-11-25".to_owned());
            let result = reply.json().await;
            if client.session.is_none() {
                return Err(format!("no session: {result}"));
            }
            let tasks = &result["result"]["capabilities"]["tasks"];
            let is_offered = !kind.has_tasks() || tasks["requests"]["tools"]["call"].is_object();
            if !is_offered || (kind == Kind::FilteredTasks && !tasks["list"]["filter"].is_object()) {
                return Err(format!("tasks are not offered: {result}"));
            }
            client.post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
            next_id += 1;
        }
        let (seen_keys, parent, prefix) = (BTreeSet::new(), None, String::new());
        let (runs, queued) = (Arc::new(runs), Arc::default());
        Ok(Self { kind, client, next_id, questions: 0, seen_keys, runs, queued, parent, prefix })
    }

    /// The same client, in the same session, at the tools of one upstream of an endpoint. Its requests have ids from
    /// `first_id` on, so that others of this client can be made at the same time.
    pub fn at_upstream(
        &self,
        upstream: &str,
        first_id: u64,
        runs: impl Fn(&str) -> usize + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind: self.kind,
            client: self.client.clone(),
            next_id: first_id,
            questions: 0,
            seen_keys: BTreeSet::new(),
            runs: Arc::new(runs),
            queued: Arc::default(),
            parent: None,
            prefix: format!("{upstream}__"),
        }
    }

    /// Notify it once the call of a client without tasks waits for a permit: the client then cancels the call, or disconnects.
    pub fn queued(&self) -> Arc<Notify> {
        Arc::clone(&self.queued)
    }

    /// Goes through one call.
    pub async fn call(&mut self, tool: &str, manner: UserBehaviour) -> Result<CallReport, String> {
        let (ending, is_task) = match self.kind {
            Kind::Session => (self.session_call(tool, manner).await?, false),
            Kind::Stateless => (self.stateless_call(tool, manner).await?, false),
            Kind::CoreTasks | Kind::FilteredTasks => (self.core_call(tool, manner).await?, true),
            Kind::Subtasks => (self.subtask_call(tool, manner).await?, true),
            Kind::ChosenIds => (self.chosen_call(tool, manner).await?, true),
            Kind::ExtensionTasks => self.extension_call(tool, manner).await?,
        };
        Ok(CallReport { ending, is_task, questions: self.questions })
    }

    async fn send(&mut self, method: &str, mut params: Value) -> (u64, Reply) {
        let id = self.next_id;
        self.next_id += 1;
        if method == "tools/call"
            && let Some(tool) = params["name"].as_str()
        {
            params["name"] = json!(format!("{}{tool}", self.prefix));
        }
        // The server must never see it.
        let request = self.client.request("POST").header("authorization", "Bearer secret");
        let mut request = request.header("content-type", "application/json");
        if self.kind.is_stateless() {
            let mut capabilities = json!({"elicitation": {"form": {}}});
            if self.kind.has_tasks() {
                capabilities["extensions"] = json!({EXTENSION: {}});
            }
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            });
            request = request.header("mcp-method", method);
            if let Some(name) = ["name", "taskId", "uri"].iter().find_map(|member| params[*member].as_str()) {
                request = request.header("mcp-name", name);
            }
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let reply = self.client.send(request.body(Full::new(body.to_string().into())).unwrap()).await;
        (id, reply)
    }

    /// Makes a request, and waits for its answer.
    pub async fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        let (id, reply) = self.send(method, params).await;
        let mut messages = Messages::of(reply);
        while let Some(message) = messages.next().await? {
            if message["id"] == id {
                return Ok(message);
            }
        }
        Err(format!("no answer to {method}"))
    }

    /// A plain call of a session: everything comes on its stream.
    async fn session_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let (client, id, queued) = (self.client.clone(), self.next_id, self.queued());
        let cancelling = async {
            if manner == UserBehaviour::CancellingQueued {
                queued.notified().await;
                cancel_request(&client, id).await;
            }
        };
        let sending = self.send("tools/call", json!({"name": tool, "arguments": {}}));
        let ((_, reply), ()) = tokio::join!(sending, cancelling);
        match manner {
            UserBehaviour::Leaving => return Ok(Ending::Left),
            UserBehaviour::Cancelling => {
                under_way(&self.runs, tool).await?;
                cancel_request(&self.client, id).await;
                return Ok(Ending::Cancelled);
            }
            UserBehaviour::Patient
            | UserBehaviour::Declining
            | UserBehaviour::Silent
            | UserBehaviour::CancellingWhenAsked
            | UserBehaviour::CancellingQueued => {}
        }
        let mut messages = Messages::of(reply);
        while let Some(message) = messages.next().await? {
            if message["id"] == id {
                return ending(&message);
            }
            if message["method"] == "elicitation/create" {
                self.questions += 1;
                if manner == UserBehaviour::CancellingWhenAsked {
                    cancel_request(&self.client, id).await;
                    return Ok(Ending::Cancelled);
                }
                self.respond(&message, manner).await;
            }
        }
        match manner {
            // A request that was cancelled has no response.
            UserBehaviour::CancellingQueued => Ok(Ending::Cancelled),
            UserBehaviour::Patient
            | UserBehaviour::Declining
            | UserBehaviour::Silent
            | UserBehaviour::Cancelling
            | UserBehaviour::CancellingWhenAsked
            | UserBehaviour::Leaving => Err("the stream ended without an answer".to_owned()),
        }
    }

    async fn respond(&mut self, question: &Value, manner: UserBehaviour) {
        let Some(answer) = answer_to(question, manner) else { return };
        let response = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        let reply = self.client.post(response.to_string()).await;
        assert_eq!(reply.status.as_u16(), 202, "an answer is accepted");
    }

    /// A plain call of 2026-07-28: questions are answers, and their answers the next call.
    async fn stateless_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let mut params = json!({"name": tool, "arguments": {}});
        for _ in 0..9 {
            if matches!(manner, UserBehaviour::Leaving | UserBehaviour::Cancelling | UserBehaviour::CancellingQueued) {
                return self.leave(tool, params, manner).await;
            }
            let message = self.ask("tools/call", params.clone()).await?;
            let result = &message["result"];
            if result["resultType"] != "input_required" {
                return ending(&message);
            }
            let Some(state) = result["requestState"].as_str() else { return Err(format!("no state: {result}")) };
            if state.contains("state") || state.contains("upstream") {
                return Err(format!("the upstream's own state: {state}"));
            }
            let mut answers = json!({});
            for (key, question) in result["inputRequests"].as_object().into_iter().flatten() {
                self.questions += 1;
                if !self.seen_keys.insert(key.clone()) {
                    return Err(format!("{key} was asked twice"));
                }
                match answer_to(question, manner) {
                    Some(answer) => answers[key] = answer,
                    None => return self.wait_for_refusals(params, state).await,
                }
            }
            params["inputResponses"] = answers;
            params["requestState"] = json!(state);
            if manner == UserBehaviour::CancellingWhenAsked {
                // A client that comes back and disconnects cancels (MOD-20); without it, only time passes.
                return Ok(Ending::Cancelled);
            }
        }
        Err("asked without end".to_owned())
    }

    /// Sends a call and closes its connection: once the tool runs, or while the call waits for its turn.
    async fn leave(&mut self, tool: &str, params: Value, manner: UserBehaviour) -> Result<Ending, String> {
        let (runs, queued) = (Arc::clone(&self.runs), self.queued());
        let time_to_go = async {
            if manner == UserBehaviour::CancellingQueued {
                queued.notified().await;
                return Ok(());
            }
            under_way(&runs, tool).await
        };
        // The answer's head may come before.
        let calling = async {
            let _reply = self.send("tools/call", params).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            gone = time_to_go => gone?,
            () = calling => {}
        }
        Ok(if manner == UserBehaviour::Leaving { Ending::Left } else { Ending::Cancelled })
    }

    /// Comes back without answers once the time for them is over.
    async fn wait_for_refusals(&mut self, mut params: Value, state: &str) -> Result<Ending, String> {
        sleep(INPUT_DEADLINE * 2).await;
        params["requestState"] = json!(state);
        ending(&self.ask("tools/call", params).await?)
    }

    /// 2025-11-25: a handle at once, its state by polls, questions on the stream of `tasks/result`.
    async fn core_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let created = self.ask("tools/call", json!({"name": tool, "arguments": {}, "task": {"ttl": 60_000}})).await?;
        let task = &created["result"]["task"];
        let id = own_id(task)?;
        check_fields(task, &["taskId", "status", "createdAt", "lastUpdatedAt", "ttl"])?;
        let ending = self.core_end(tool, &id, manner).await?;
        if self.kind == Kind::FilteredTasks {
            self.check_lists(&id).await?;
        }
        Ok(ending)
    }

    /// Everything behind the handle.
    async fn core_end(&mut self, tool: &str, id: &str, manner: UserBehaviour) -> Result<Ending, String> {
        if manner == UserBehaviour::Leaving {
            // Another connection comes back for it: nothing was lost.
            sleep(Duration::from_millis(200)).await;
        }
        match manner {
            UserBehaviour::Cancelling => under_way(&self.runs, tool).await?,
            UserBehaviour::CancellingQueued => sleep(Duration::from_millis(300)).await,
            UserBehaviour::Patient
            | UserBehaviour::Declining
            | UserBehaviour::Silent
            | UserBehaviour::CancellingWhenAsked
            | UserBehaviour::Leaving => {}
        }
        if matches!(manner, UserBehaviour::Cancelling | UserBehaviour::CancellingQueued) {
            return self.core_cancel(id).await;
        }
        let begun = Instant::now();
        while begun.elapsed() < LONGEST {
            let message = self.ask("tasks/get", json!({"taskId": id})).await?;
            let task = &message["result"];
            match task["status"].as_str() {
                Some("working") => sleep(POLL).await,
                Some("input_required") if manner == UserBehaviour::CancellingWhenAsked => {
                    self.questions += 1;
                    return self.core_cancel(id).await;
                }
                Some(status @ ("input_required" | "completed" | "failed" | "cancelled")) => {
                    return self.core_result(id, status, manner).await;
                }
                _ => return Err(format!("tasks/get: {message}")),
            }
        }
        Err("the task never ended".to_owned())
    }

    /// Whether a message names its task, and the parent of a subtask besides.
    fn is_related(&self, message: &Value, task: &str) -> bool {
        let related = match &self.parent {
            Some(parent) => json!({"taskId": task, "parentTaskId": parent}),
            None => json!({"taskId": task}),
        };
        message["_meta"][RELATED] == related
    }

    async fn core_cancel(&mut self, id: &str) -> Result<Ending, String> {
        let message = self.ask("tasks/cancel", json!({"taskId": id})).await?;
        if message["result"]["status"] != "cancelled" || !message["result"]["_meta"][RELATED].is_null() {
            return Err(format!("tasks/cancel: {message}"));
        }
        let again = self.ask("tasks/cancel", json!({"taskId": id})).await?;
        if again["error"]["code"] == -32602 { Ok(Ending::Cancelled) } else { Err(format!("a second cancel: {again}")) }
    }

    async fn core_result(&mut self, task: &str, status: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let (id, reply) = self.send("tasks/result", json!({"taskId": task})).await;
        let mut messages = Messages::of(reply);
        while let Some(message) = messages.next().await? {
            if message["id"] == id {
                let ended = ending(&message)?;
                let is_related = self.is_related(&message["result"], task);
                if message.get("result").is_some() && !is_related {
                    return Err(format!("not related to its task: {message}"));
                }
                let fits = match &ended {
                    Ending::Result(_) => status != "failed",
                    Ending::ToolError(_) | Ending::Error(_) => status != "completed",
                    Ending::Cancelled | Ending::Left => false,
                };
                return if fits { Ok(ended) } else { Err(format!("{status}, but {message}")) };
            }
            if message["method"] == "elicitation/create" {
                self.questions += 1;
                if !self.is_related(&message["params"], task) {
                    return Err(format!("a question of no task: {message}"));
                }
                self.respond(&message, manner).await;
            }
        }
        Err("tasks/result ended without an answer".to_owned())
    }

    /// Cancels a settled call: nothing changes, and each flavour has its own answer.
    pub async fn cancel_settled(&mut self) -> Result<(), String> {
        if self.kind == Kind::ChosenIds {
            return self.cancel_settled_call().await;
        }
        let is_core = matches!(self.kind, Kind::CoreTasks | Kind::FilteredTasks | Kind::Subtasks);
        let call = |task: bool| {
            if task {
                json!({"name": "slow", "arguments": {}, "task": {}})
            } else {
                json!({"name": "slow", "arguments": {}})
            }
        };
        let created = self.ask("tools/call", call(is_core)).await?;
        let task = if is_core { &created["result"]["task"] } else { &created["result"] };
        let id = own_id(task)?;
        let begun = Instant::now();
        while self.ask("tasks/get", json!({"taskId": id})).await?["result"]["status"] == "working" {
            if begun.elapsed() > LONGEST {
                return Err("the task never ended".to_owned());
            }
            sleep(POLL).await;
        }
        let ack = self.ask("tasks/cancel", json!({"taskId": id})).await?;
        let is_right = match self.kind {
            Kind::CoreTasks | Kind::FilteredTasks | Kind::Subtasks => ack["error"]["code"] == -32602,
            Kind::ExtensionTasks => ack["result"]["resultType"] == "complete",
            Kind::Session | Kind::Stateless | Kind::ChosenIds => false,
        };
        let after = self.ask("tasks/get", json!({"taskId": id})).await?;
        if is_right && after["result"]["status"] == "completed" { Ok(()) } else { Err(format!("{ack}, then {after}")) }
    }
}

async fn cancel_request(client: &Client, id: u64) {
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    client.post(notice.to_string()).await;
}

/// Nothing of the upstream's shows in a handle.
fn own_id(task: &Value) -> Result<String, String> {
    match task["taskId"].as_str() {
        Some(id) if !id.contains("upstream") => Ok(id.to_owned()),
        _ => Err(format!("no task of the gateway: {task}")),
    }
}

fn check_fields(task: &Value, names: &[&str]) -> Result<(), String> {
    let missing: Vec<_> = names.iter().filter(|name| task.get(**name).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are missing in {task}")) }
}

/// The user's answer to a question.
fn answer_to(question: &Value, manner: UserBehaviour) -> Option<Value> {
    let text = question["params"]["message"].as_str().unwrap_or_default();
    let name = if text.contains("first") { "Ada" } else { "Grace" };
    match manner {
        UserBehaviour::Declining => Some(json!({"action": "decline"})),
        UserBehaviour::Silent => None,
        UserBehaviour::Patient
        | UserBehaviour::Cancelling
        | UserBehaviour::CancellingWhenAsked
        | UserBehaviour::CancellingQueued
        | UserBehaviour::Leaving => Some(json!({"action": "accept", "content": {"name": name}})),
    }
}
