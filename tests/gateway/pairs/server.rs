//! One scripted server in six kinds: its tools do the same, in different forms.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::pair_client::SLOW;
use tokio_util::task::TaskTracker;

use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};

const TOOLS: [&str; 8] = ["result", "tool_error", "rpc_error", "slow", "ask", "ask_two", "wait", "die"];
/// A further tool of servers with sessions: it does the same as `result`.
pub(crate) const OWN_TOOL: &str = "of_sessions";
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const RELATED: &str = "io.modelcontextprotocol/related-task";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A server's version, and whether it has tasks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Session,
    Stateless,
    CoreTasks,
    /// Its tools run in no other way.
    CoreRequired,
    ExtensionTasks,
    /// taskgate, in front of one with sessions.
    Gateway,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Session, Self::Stateless, Self::CoreTasks, Self::CoreRequired, Self::ExtensionTasks, Self::Gateway];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Session => "2025-11-25",
            Self::Stateless => "2026-07-28",
            Self::CoreTasks => "2025-11-25 with tasks",
            Self::CoreRequired => "2025-11-25, tasks alone",
            Self::ExtensionTasks => "2026-07-28 with tasks",
            Self::Gateway => "taskgate in front of 2025-11-25",
        }
    }

    const fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::ExtensionTasks)
    }

    const fn is_core(self) -> bool {
        matches!(self, Self::CoreTasks | Self::CoreRequired)
    }
}

/// One call that was run.
struct Job {
    tool: String,
    /// Id of the request that waits for the end, and its stream, where there is one.
    waiting: Vec<(Value, BodySender)>,
    answers: BTreeMap<String, Value>,
    end: Option<Value>,
    is_cancelled: bool,
}

impl Job {
    fn questions(&self) -> &'static [&'static str] {
        match self.tool.as_str() {
            "ask" => &["first"],
            "ask_two" => &["first", "second"],
            _ => &[],
        }
    }

    fn open(&self) -> Vec<&'static str> {
        self.questions().iter().copied().filter(|key| !self.answers.contains_key(*key)).collect()
    }

    fn status(&self) -> &'static str {
        match &self.end {
            _ if self.is_cancelled => "cancelled",
            Some(end) if end.get("error").is_some() => "failed",
            Some(_) => "completed",
            None if !self.open().is_empty() => "input_required",
            None => "working",
        }
    }
}

/// The jobs that the server was given.
#[derive(Default)]
pub(crate) struct Ledger {
    jobs: Mutex<Vec<Job>>,
    tracker: TaskTracker,
}

impl Ledger {
    /// How often a tool was run.
    pub(crate) fn runs(&self, tool: &str) -> usize {
        self.jobs.lock().iter().filter(|job| job.tool == tool).count()
    }

    /// How many runs of a tool were called off.
    pub(crate) fn cancelled(&self, tool: &str) -> usize {
        self.jobs.lock().iter().filter(|job| job.tool == tool && job.is_cancelled).count()
    }

    fn begin(self: &Arc<Self>, tool: &str) -> usize {
        let job = Job {
            tool: tool.to_owned(),
            waiting: Vec::new(),
            answers: BTreeMap::new(),
            end: None,
            is_cancelled: false,
        };
        let number = {
            let mut jobs = self.jobs.lock();
            jobs.push(job);
            jobs.len() - 1
        };
        let ledger = Arc::clone(self);
        match tool {
            "result" | "tool_error" | "rpc_error" | OWN_TOOL => self.end(number),
            "slow" => {
                self.tracker.spawn(async move {
                    tokio::time::sleep(SLOW).await;
                    ledger.end(number);
                });
            }
            _ => {}
        }
        number
    }

    /// Ends a run, and wakes its waiting requests.
    fn end(&self, number: usize) {
        let mut jobs = self.jobs.lock();
        let job = &mut jobs[number];
        if job.is_cancelled || job.end.is_some() {
            return;
        }
        let text = |text: &str| json!({"result": {"content": [{"type": "text", "text": text}]}});
        let end = match job.tool.as_str() {
            "tool_error" => {
                json!({"result": {"content": [{"type": "text", "text": "it broke"}], "isError": true}})
            }
            "rpc_error" => json!({"error": {"code": 4711, "message": "bad luck"}}),
            "ask" | "ask_two" => {
                let said: Vec<String> = job.answers.values().map(told).collect();
                text(&said.join(", "))
            }
            _ => text("done"),
        };
        for (id, events) in job.waiting.drain(..) {
            events.raw(message(&id, &end));
        }
        job.end = Some(end);
    }

    /// Ends all runs of a tool that waits.
    pub(crate) fn release(&self, tool: &str) {
        let jobs = self.jobs.lock();
        let runs: Vec<_> =
            jobs.iter().enumerate().filter(|(_, job)| job.tool == tool).map(|(number, _)| number).collect();
        drop(jobs);
        runs.into_iter().for_each(|number| self.end(number));
    }

    fn answered(&self, number: usize, key: &str, answer: Value) {
        let is_complete = {
            let job = &mut self.jobs.lock()[number];
            job.answers.entry(key.to_owned()).or_insert(answer);
            job.open().is_empty()
        };
        if is_complete {
            self.end(number);
        }
    }

    fn cancel(&self, number: usize) {
        let job = &mut self.jobs.lock()[number];
        job.is_cancelled |= job.end.is_none();
    }
}

/// An answer in words.
fn told(answer: &Value) -> String {
    match (answer["action"].as_str(), answer["content"]["name"].as_str(), answer["code"].as_i64()) {
        (Some(action), Some(name), _) => format!("{action} {name}"),
        (Some(action), None, _) => action.to_owned(),
        (None, _, Some(code)) => format!("error {code}"),
        (None, _, None) => format!("odd {answer}"),
    }
}

fn message(id: &Value, end: &Value) -> String {
    let mut message = end.clone();
    message["jsonrpc"] = json!("2.0");
    message["id"] = id.clone();
    format!("data: {message}\n\n")
}

fn question(key: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    json!({"method": "elicitation/create", "params": {"message": format!("the {key} name?"), "requestedSchema": schema}})
}

/// A server of this kind, and its record of its runs.
pub(crate) async fn start(kind: Kind) -> (ScriptedServer, Arc<Ledger>) {
    let ledger = Arc::new(Ledger::default());
    let kept = Arc::clone(&ledger);
    let server = ScriptedServer::start(move |seen| serve(kind, &kept, seen)).await;
    if kind.is_core() {
        let tasks = json!({"requests": {"tools": {"call": {}}}, "cancel": {}});
        *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "tasks": tasks}});
    }
    (server, ledger)
}

fn serve(kind: Kind, ledger: &Arc<Ledger>, seen: &SeenRequest) -> Option<ScriptedReply> {
    let declares = seen.body["params"]["_meta"][CAPABILITIES]["extensions"][EXTENSION].is_object();
    match (seen.method.as_str(), seen.rpc()) {
        ("POST", "initialize" | "server/discover") if kind.is_stateless() != (seen.rpc() == "server/discover") => {
            Some(refused(seen))
        }
        ("POST", "server/discover") => Some(answer(seen, &discovered(kind))),
        ("POST", "tools/list") => Some(answer(seen, &tools(kind))),
        ("POST", "tools/call") => Some(match kind {
            Kind::Session | Kind::Gateway => session_call(ledger, seen),
            Kind::CoreTasks | Kind::CoreRequired if seen.body["params"]["task"].is_object() => {
                core_handle(ledger, seen)
            }
            Kind::CoreTasks => session_call(ledger, seen),
            Kind::CoreRequired => refused(seen),
            Kind::ExtensionTasks if declares => extension_call(ledger, seen),
            Kind::Stateless | Kind::ExtensionTasks => stateless_call(ledger, seen),
        }),
        ("POST", "tasks/get" | "tasks/result" | "tasks/cancel" | "tasks/update") => Some(task(kind, ledger, seen)),
        ("POST", "notifications/cancelled") => {
            cancelled(ledger, &seen.body["params"]["requestId"]);
            None
        }
        ("POST", "") => {
            responded(ledger, seen);
            None
        }
        _ => None,
    }
}

/// A server that does not know the method says so promptly.
fn refused(seen: &SeenRequest) -> ScriptedReply {
    let error = json!({"code": -32601, "message": "Method not found"});
    let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    *reply.status_mut() = http::StatusCode::NOT_FOUND;
    reply
}

fn discovered(kind: Kind) -> Value {
    let mut capabilities = json!({"tools": {}});
    if kind == Kind::ExtensionTasks {
        capabilities["extensions"] = json!({EXTENSION: {}});
    }
    json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
        "ttlMs": 0, "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
    })
}

fn tools(kind: Kind) -> Value {
    let tool = |name: &&str| {
        let mut tool = json!({"name": name, "inputSchema": {"type": "object"}});
        if kind.is_core() {
            let support = if kind == Kind::CoreRequired { "required" } else { "optional" };
            tool["execution"] = json!({"taskSupport": support});
        }
        tool
    };
    let own = (kind == Kind::Session).then_some(&OWN_TOOL);
    let tools: Vec<Value> = TOOLS.iter().chain(own).map(tool).collect();
    if kind.is_stateless() {
        json!({"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"})
    } else {
        json!({"tools": tools})
    }
}

fn tool_of(seen: &SeenRequest) -> &str {
    seen.body["params"]["name"].as_str().unwrap_or_default()
}

/// A plain call at a server with sessions: the answer, and questions before it, on one stream.
fn session_call(ledger: &Arc<Ledger>, seen: &SeenRequest) -> ScriptedReply {
    let number = ledger.begin(tool_of(seen));
    let (events, reply) = BodySender::open();
    attach(ledger, number, &seen.body["id"], &events);
    ask_on(ledger, number, &events, None);
    if tool_of(seen) == "die" {
        events.cut();
    }
    reply
}

/// Sends the end on a stream, now or later.
fn attach(ledger: &Ledger, number: usize, id: &Value, events: &BodySender) {
    let job = &mut ledger.jobs.lock()[number];
    match &job.end {
        Some(end) => events.raw(message(id, end)),
        None => job.waiting.push((id.clone(), events.clone())),
    }
}

/// Sends the open questions on a stream.
fn ask_on(ledger: &Ledger, number: usize, events: &BodySender, task: Option<&str>) {
    for key in ledger.jobs.lock()[number].open() {
        let mut request = question(key);
        request["jsonrpc"] = json!("2.0");
        request["id"] = json!(format!("q-{number}-{key}"));
        if let Some(task) = task {
            request["params"]["_meta"] = json!({RELATED: {"taskId": task}});
        }
        events.raw(format!("data: {request}\n\n"));
    }
}

/// A client's answer to one of these questions.
fn responded(ledger: &Ledger, seen: &SeenRequest) {
    let id = seen.body["id"].as_str().unwrap_or_default();
    let mut parts = id.strip_prefix("q-").unwrap_or_default().splitn(2, '-');
    let (Some(Ok(number)), Some(key)) = (parts.next().map(str::parse), parts.next()) else { return };
    let said = seen.body.get("result").or_else(|| seen.body.get("error")).cloned().unwrap_or_default();
    ledger.answered(number, key, said);
}

fn cancelled(ledger: &Ledger, request: &Value) {
    let found = ledger.jobs.lock().iter().position(|job| job.waiting.iter().any(|(id, _)| id == request));
    if let Some(number) = found {
        ledger.cancel(number);
    }
}

/// A call at a stateless server: questions are its answer, and the answers come with the next call.
fn stateless_call(ledger: &Arc<Ledger>, seen: &SeenRequest) -> ScriptedReply {
    let params = &seen.body["params"];
    let (tool, given) = (tool_of(seen), params["inputResponses"].as_object());
    let number = match params["requestState"].as_str().and_then(|state| state.strip_prefix("state \u{e9} ")) {
        Some(number) => number.parse().expect("the state comes back as it was"),
        None => ledger.begin(tool),
    };
    for (key, said) in given.into_iter().flatten() {
        ledger.answered(number, key, said.clone());
    }
    let open = ledger.jobs.lock()[number].open();
    if !open.is_empty() {
        let entries: BTreeMap<_, _> = open.into_iter().map(|key| (key, question(key))).collect();
        let state = format!("state \u{e9} {number}");
        return answer(seen, &json!({"resultType": "input_required", "inputRequests": entries, "requestState": state}));
    }
    let (events, reply) = BodySender::open();
    attach(ledger, number, &seen.body["id"], &events);
    if tool == "die" {
        events.cut();
        return reply;
    }
    // Leaving is how a client of this version cancels.
    let (kept, left) = (Arc::clone(ledger), events);
    ledger.tracker.spawn(async move {
        left.left().await;
        kept.cancel(number);
    });
    reply
}

fn handle(number: usize) -> String {
    format!("upstream-task-{number}")
}

fn core_fields(number: usize, job: &Job) -> Value {
    json!({
        "taskId": handle(number), "status": job.status(), "createdAt": "2026-01-01T00:00:00.000Z",
        "lastUpdatedAt": "2026-01-01T00:00:00.000Z", "ttl": 60_000, "pollInterval": 100,
    })
}

fn core_handle(ledger: &Arc<Ledger>, seen: &SeenRequest) -> ScriptedReply {
    let number = ledger.begin(tool_of(seen));
    let mut task = core_fields(number, &ledger.jobs.lock()[number]);
    task["status"] = json!("working");
    answer(seen, &json!({"task": task}))
}

/// Only slow tools are tasks here.
fn extension_call(ledger: &Arc<Ledger>, seen: &SeenRequest) -> ScriptedReply {
    if tool_of(seen) == "result" {
        return stateless_call(ledger, seen);
    }
    let number = ledger.begin(tool_of(seen));
    let mut task = extension_fields(number, &ledger.jobs.lock()[number]);
    for (key, value) in [("resultType", "task"), ("status", "working")] {
        task[key] = json!(value);
    }
    for key in ["result", "error", "inputRequests"] {
        task.as_object_mut().expect("an object").remove(key);
    }
    answer(seen, &task)
}

fn extension_fields(number: usize, job: &Job) -> Value {
    let mut task = json!({
        "resultType": "complete", "taskId": handle(number), "status": job.status(),
        "createdAt": "2026-01-01T00:00:00+00:00", "lastUpdatedAt": "2026-01-01T00:00:00+00:00",
        "ttlMs": 60_000, "pollIntervalMs": 100,
    });
    match (&job.end, job.status()) {
        (Some(end), "completed") => {
            task["result"] = end["result"].clone();
            task["result"]["resultType"] = json!("complete");
        }
        (Some(end), "failed") => task["error"] = end["error"].clone(),
        (None, "input_required") => {
            let entries: BTreeMap<_, _> =
                job.open().into_iter().map(|key| (format!("{}:{key}", handle(number)), question(key))).collect();
            task["inputRequests"] = json!(entries);
        }
        _ => {}
    }
    task
}

/// `tasks/*` of both flavours.
fn task(kind: Kind, ledger: &Arc<Ledger>, seen: &SeenRequest) -> ScriptedReply {
    let params = &seen.body["params"];
    let named = params["taskId"].as_str().unwrap_or_default();
    let number = named.strip_prefix("upstream-task-").and_then(|number| number.parse::<usize>().ok());
    let known = number.filter(|number| ledger.jobs.lock().get(*number).is_some_and(|job| job.tool != "die"));
    let Some(number) = known else {
        let error = json!({"code": -32602, "message": "no such task"});
        return json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    };
    let is_core = kind.is_core();
    match seen.rpc() {
        "tasks/result" if is_core => {
            let (events, reply) = BodySender::open();
            ask_on(ledger, number, &events, Some(named));
            attach(ledger, number, &seen.body["id"], &events);
            return reply;
        }
        "tasks/cancel" => ledger.cancel(number),
        "tasks/update" => {
            for (key, said) in params["inputResponses"].as_object().into_iter().flatten() {
                let own = key.strip_prefix(&format!("{named}:")).expect("the key is the server's own");
                ledger.answered(number, own, said.clone());
            }
        }
        _ => {}
    }
    let job = &ledger.jobs.lock()[number];
    if is_core {
        answer(seen, &core_fields(number, job))
    } else if seen.rpc() == "tasks/get" {
        answer(seen, &extension_fields(number, job))
    } else {
        answer(seen, &json!({"resultType": "complete"}))
    }
}
