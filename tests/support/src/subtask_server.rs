//! A server of 2025-11-25 whose tasks have subtasks (SEP-2268). Its tools do nothing by themselves: the test sets the
//! states of their tasks, and their subtasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::scripted::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};
use crate::talk::RELATED;

/// The id of the task that the first call becomes. It is there before: a client may have its handle before the server has the call.
pub const TOP: &str = "top-0";

#[derive(Default)]
struct ServerTask {
    is_called: bool,
    status: &'static str,
    parent: Option<String>,
    children: Vec<Value>,
    end: Option<Value>,
    /// The id of the question that it asks on every stream of `tasks/result`.
    question: Option<u32>,
    /// Streams of `tasks/result` that wait, and their ids.
    waiting: Vec<(Value, BodySender)>,
}

/// The server.
pub struct SubtaskServer {
    pub server: ScriptedServer,
    tasks: Arc<Mutex<BTreeMap<String, ServerTask>>>,
}

impl SubtaskServer {
    pub async fn start() -> Self {
        let top = ServerTask { status: "working", ..ServerTask::default() };
        let tasks = Arc::new(Mutex::new(BTreeMap::from([(TOP.to_owned(), top)])));
        let script = Arc::clone(&tasks);
        let server = ScriptedServer::start(move |seen| serve(&mut script.lock(), seen)).await;
        let declared = json!({"requests": {"tools": {"call": {}}}, "cancel": {}});
        *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "tasks": declared}});
        Self { server, tasks }
    }

    /// Makes a task below another.
    pub fn add(&self, parent: &str, id: &str) {
        let task = ServerTask { status: "working", parent: Some(parent.to_owned()), ..ServerTask::default() };
        self.tasks.lock().insert(id.to_owned(), task);
        self.names(parent, &json!(id));
    }

    /// Names an entry below a task; the id may have any type.
    pub fn names(&self, parent: &str, id: &Value) {
        self.tasks.lock().get_mut(parent).expect("a task").children.push(id.clone());
    }

    /// Ends a task with this result.
    pub fn end(&self, id: &str, status: &'static str, result: &Value) {
        let mut tasks = self.tasks.lock();
        let task = tasks.get_mut(id).expect("a task");
        (task.status, task.end) = (status, Some(result.clone()));
        for (request, events) in task.waiting.drain(..) {
            events.message(&json!({"jsonrpc": "2.0", "id": request, "result": result}));
        }
    }

    /// Has a task ask something.
    pub fn ask(&self, id: &str, question: u32) {
        let mut tasks = self.tasks.lock();
        let task = tasks.get_mut(id).expect("a task");
        (task.status, task.question) = ("input_required", Some(question));
    }

    /// A task goes on without an answer, or with one.
    pub fn goes_on(&self, id: &str) {
        let mut tasks = self.tasks.lock();
        let task = tasks.get_mut(id).expect("a task");
        (task.status, task.question) = ("working", None);
    }

    /// Nothing is known of a task any more, but that it is named.
    pub fn forget(&self, id: &str) {
        self.tasks.lock().remove(id);
    }

    /// The ids that requests of this method named, in their order.
    #[must_use]
    pub fn named_by(&self, method: &str) -> Vec<String> {
        let about = self.server.world.all(|seen| seen.rpc() == method);
        about.iter().map(|seen| seen.body["params"]["taskId"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn serve(tasks: &mut BTreeMap<String, ServerTask>, seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "tools/list" => {
            let tool = json!({"name": "work", "inputSchema": {}, "execution": {"taskSupport": "optional"}});
            Some(answer(seen, &json!({"tools": [tool]})))
        }
        // It has sessions alone.
        "server/discover" => {
            let error = json!({"code": -32601, "message": "Method not found"});
            Some(json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()))
        }
        "tools/call" if seen.body["params"]["task"].is_object() => {
            let id = format!("top-{}", tasks.values().filter(|task| task.is_called).count());
            let new = || ServerTask { status: "working", ..ServerTask::default() };
            let task = tasks.entry(id.clone()).or_insert_with(new);
            task.is_called = true;
            Some(answer(seen, &json!({"task": fields(&id, task)})))
        }
        "tasks/get" | "tasks/result" | "tasks/cancel" => Some(about(tasks, seen)),
        _ => None,
    }
}

fn about(tasks: &mut BTreeMap<String, ServerTask>, seen: &SeenRequest) -> ScriptedReply {
    let id = seen.body["params"]["taskId"].as_str().unwrap_or_default();
    let Some(task) = tasks.get_mut(id) else {
        let error = json!({"code": -32602, "message": "unknown task"});
        return json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    };
    if seen.rpc() == "tasks/cancel" {
        task.status = "cancelled";
    }
    if seen.rpc() != "tasks/result" {
        return answer(seen, &fields(id, task));
    }
    let (events, reply) = BodySender::open();
    if let Some(question) = task.question {
        let related = json!({"taskId": id, "parentTaskId": task.parent});
        let params = json!({"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": {RELATED: related}});
        events.message(&json!({"jsonrpc": "2.0", "id": question, "method": "elicitation/create", "params": params}));
    }
    match &task.end {
        Some(end) => events.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": end})),
        None => task.waiting.push((seen.body["id"].clone(), events)),
    }
    reply
}

fn fields(id: &str, task: &ServerTask) -> Value {
    let mut fields = json!({
        "taskId": id, "status": task.status, "createdAt": "2026-01-01T00:00:00.000Z",
        "lastUpdatedAt": "2026-01-01T00:00:00.000Z", "ttl": null, "pollInterval": 20,
    });
    if let Some(parent) = &task.parent {
        fields["parentTaskId"] = json!(parent);
    }
    if !task.children.is_empty() {
        fields["childTaskIds"] = json!(task.children);
    }
    fields
}
