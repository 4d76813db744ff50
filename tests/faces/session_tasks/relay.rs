//! A server with tasks of its own. Its tools do nothing by themselves: the test says how their tasks stand.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::client::TestGateway;
use super::in_time;
use super::talk::RELATED;
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};

/// One task, or one plain call.
struct Made {
    seen: SeenRequest,
    status: &'static str,
    end: Value,
    /// Streams of `tasks/result` that wait, and their ids.
    waiting: Vec<(Value, BodySender)>,
}

#[derive(Default)]
struct Kept {
    made: Vec<Made>,
    /// The stream of the first session.
    get: Option<BodySender>,
    /// How often it was opened.
    opened: usize,
    /// How often it is still refused, as by a server that has not noticed yet that the one before was closed.
    refusals: usize,
    /// How often it is still refused with 503.
    outages: usize,
    others: Vec<BodySender>,
    /// The request that is asked on every stream of `tasks/result`.
    question: Option<Value>,
    /// Sessions are not ended.
    keeps_sessions: bool,
    /// Streams are not resumed after any event.
    drops_events: bool,
    /// The tool list is empty.
    hides_tools: bool,
    /// Who asked for them meanwhile.
    lists: Vec<(SeenRequest, BodySender)>,
}

/// A gateway in front of such a server.
pub(crate) struct Relay {
    pub(crate) gate: TestGateway,
    pub(crate) server: ScriptedServer,
    kept: Arc<Mutex<Kept>>,
}

const KEYS: &str = "[upstreams.up.tasks]\npoll_interval = \"100ms\"\n[limits]\nresult_bytes_max = \"1MiB\"";

/// The upstream's id of its task `n`.
pub(crate) fn id_of(n: usize) -> String {
    format!("upstream-{n}")
}

impl Relay {
    pub(crate) async fn new() -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let script = Arc::clone(&kept);
        let server = ScriptedServer::start(move |seen| serve(&mut script.lock(), seen)).await;
        let tasks = json!({"requests": {"tools": {"call": {}}}, "cancel": {}});
        *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "tasks": tasks}});
        let gate = TestGateway::with(server.address, KEYS).await;
        Self { gate, server, kept }
    }

    /// The upstream's task `n`, once it was made: the request that made it.
    pub(crate) async fn made(&self, n: usize) -> SeenRequest {
        self.server.world.nth(n, |seen| seen.is_call() && seen.body["params"]["task"].is_object()).await
    }

    /// How a task stands from now on.
    pub(crate) fn stands(&self, n: usize, status: &'static str) {
        self.kept.lock().made[n].status = status;
    }

    /// Ends a task with a result or an error.
    pub(crate) fn end(&self, n: usize, status: &'static str, end: &Value) {
        let mut kept = self.kept.lock();
        let made = &mut kept.made[n];
        (made.status, made.end) = (status, end.clone());
        for (id, events) in made.waiting.drain(..) {
            events.message(&message(&id, end, n));
        }
    }

    /// Asks something on every stream of `tasks/result`.
    pub(crate) fn ask(&self, question: Value) {
        self.kept.lock().question = Some(question);
    }

    /// Returns once the first session's stream was opened so often.
    pub(crate) async fn until_opened(&self, times: usize) {
        in_time(async {
            while self.kept.lock().opened < times {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// The server refuses the next streams of the first session, as if it still had one.
    pub(crate) fn notices_late(&self, refusals: usize) {
        self.kept.lock().refusals = refusals;
    }

    /// The server is unavailable for the next streams of the first session.
    pub(crate) fn is_unavailable(&self, outages: usize) {
        self.kept.lock().outages = outages;
    }

    /// Returns once no client reads the first session's stream.
    pub(crate) async fn until_closed(&self) {
        let stream = self.kept.lock().get.clone().expect("a stream is open");
        stream.left().await;
    }

    /// The server refuses to end sessions.
    pub(crate) fn keep_sessions(&self) {
        self.kept.lock().keeps_sessions = true;
    }

    /// The server does not answer who asks for its tools.
    pub(crate) fn hide_tools(&self) {
        self.kept.lock().hides_tools = true;
    }

    /// It does from now on, and answers those who asked.
    pub(crate) fn show_tools(&self) {
        let mut kept = self.kept.lock();
        kept.hides_tools = false;
        kept.lists.drain(..).for_each(|(seen, events)| events.result(&seen, &tools()));
    }

    /// Sends a message on the stream of the first session, which is a client's own.
    pub(crate) fn send(&self, message: &Value) {
        self.kept.lock().get.as_ref().expect("a stream is open").message(message);
    }
}

impl Relay {
    /// As [`Self::send`], with an id, as the last message of the stream.
    pub(crate) fn say_last(&self, id: &str, message: &Value) {
        self.kept.lock().get.take().expect("a stream is open").numbered(id, message);
    }

    /// As [`Self::send`], with an id.
    pub(crate) fn say_numbered(&self, id: &str, message: &Value) {
        self.kept.lock().get.as_ref().expect("a stream is open").numbered(id, message);
    }

    /// The server refuses to resume a stream.
    pub(crate) fn drop_events(&self) {
        self.kept.lock().drops_events = true;
    }
}

fn serve(kept: &mut Kept, seen: &SeenRequest) -> Option<ScriptedReply> {
    match (seen.method.as_str(), seen.rpc()) {
        ("GET", _) => {
            // One stream for each session, as the SDKs have it.
            let is_first = seen.header("mcp-session-id") == Some("s-1");
            if kept.drops_events && seen.header("last-event-id").is_some() {
                return Some(super::upstream::status(400));
            }
            if is_first && kept.outages > 0 {
                kept.outages -= 1;
                return Some(super::upstream::status(503));
            }
            if is_first && kept.refusals > 0 {
                kept.refusals -= 1;
                return Some(super::upstream::status(409));
            }
            if is_first && kept.get.as_ref().is_some_and(BodySender::is_open) {
                return Some(super::upstream::status(409));
            }
            let (events, reply) = BodySender::open();
            if is_first {
                kept.get = Some(events);
                kept.opened += 1;
            } else {
                // Of the gateway's own session, which is to stay open.
                kept.others.push(events);
            }
            Some(reply)
        }
        ("DELETE", _) if kept.keeps_sessions => Some(super::upstream::status(405)),
        (_, "tools/list") if kept.hides_tools => {
            let (events, reply) = BodySender::open();
            kept.lists.push((seen.clone(), events));
            Some(reply)
        }
        (_, "tools/list") => Some(answer(seen, &tools())),
        (_, "tools/call") if seen.body["params"]["task"].is_object() => {
            kept.made.push(Made { seen: seen.clone(), status: "working", end: Value::Null, waiting: Vec::new() });
            Some(answer(seen, &json!({"task": fields(kept, kept.made.len() - 1)})))
        }
        (_, "tools/call") if seen.body["params"]["name"] == "must" => Some(refused(seen, -32601)),
        (_, "tasks/get" | "tasks/result" | "tasks/cancel") => Some(about(kept, seen)),
        _ => None,
    }
}

fn tools() -> Value {
    let tool = |name: &str, support: &str| json!({"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}});
    json!({"tools": [tool("must", "required"), tool("may", "optional"), tool("plain", "forbidden")]})
}

fn about(kept: &mut Kept, seen: &SeenRequest) -> ScriptedReply {
    let named = seen.body["params"]["taskId"].as_str().and_then(|id| id.strip_prefix("upstream-")?.parse().ok());
    // A task belongs to the session that made it.
    let is_here = |n: &usize| {
        kept.made.get(*n).is_some_and(|made| made.seen.header("mcp-session-id") == seen.header("mcp-session-id"))
    };
    let Some(n) = named.filter(is_here) else { return refused(seen, -32602) };
    if seen.rpc() == "tasks/cancel" {
        kept.made[n].status = "cancelled";
    }
    if seen.rpc() != "tasks/result" {
        return answer(seen, &fields(kept, n));
    }
    let (events, reply) = BodySender::open();
    if let Some(question) = &kept.question {
        let mut question = question.clone();
        question["params"]["_meta"][RELATED] = json!({"taskId": id_of(n)});
        events.message(&question);
    }
    let made = &mut kept.made[n];
    if made.end.is_null() {
        made.waiting.push((seen.body["id"].clone(), events));
    } else {
        events.message(&message(&seen.body["id"], &made.end, n));
    }
    reply
}

fn fields(kept: &Kept, n: usize) -> Value {
    json!({
        "taskId": id_of(n), "status": kept.made[n].status, "createdAt": "2026-01-01T00:00:00.000Z",
        "lastUpdatedAt": "2026-01-01T00:00:00.000Z", "ttl": 60_000, "pollInterval": 50,
    })
}

fn message(id: &Value, end: &Value, n: usize) -> Value {
    let mut message = end.clone();
    message["jsonrpc"] = json!("2.0");
    message["id"] = id.clone();
    if message["result"].is_object() {
        message["result"]["_meta"][RELATED] = json!({"taskId": id_of(n)});
    }
    message
}

fn refused(seen: &SeenRequest, code: i64) -> ScriptedReply {
    let error = json!({"code": code, "message": "refused"});
    json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string())
}
