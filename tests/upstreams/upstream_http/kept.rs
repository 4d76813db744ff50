//! A task keeps only memory that it counts: a small result, error or question from a large text keeps nothing of that
//! text. Each text has some hundred thousand blanks around the small part, so any buffer of it is large, and the test
//! examines the buffers of the stored parts themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::serving;
use taskgate::engine::{CallEvent, CallSpec, Engine};
use taskgate::shared_limits::SharedLimits;
use taskgate::store::{MemoryStore, TaskStore};
use taskgate::task::{
    Failure, ManualClock, Outcome, Phase, Plan, Principal, Task, TaskKey, TaskMode, Timestamp, ToolPolicy,
};
use taskgate::upstream::http::HttpTransport;
use taskgate::upstream::{CallContext, ExchangeEvent, Upstream, UpstreamRequest};
use taskgate::wire::{Object, Payload, ScanLimits};

use super::server::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, in_time, json_text, status};
use super::{call, context, next, settings, try_begin, upstream_of};

/// The blanks on both sides of each small part.
const LARGE: usize = 200_000;
/// Far more than anything that is kept here, and far less than [`LARGE`].
const SMALL: usize = 4_096;

fn large() -> String {
    " ".repeat(LARGE)
}

/// The server's text for a call: its answer, after a question if the test is about that.
fn said(id: &Value, what: &str) -> String {
    let pad = large();
    match what {
        "result" => format!(r#"{{"jsonrpc":"2.0",{pad}"id":{id},"result":{{"content":[]}}}}"#),
        "error" => {
            format!(r#"{{"jsonrpc":"2.0",{pad}"id":{id},"error":{{"code":-1,"message":"no","data":{{"n":1}}}}}}"#)
        }
        "question" => {
            format!(r#"{{"jsonrpc":"2.0",{pad}"id":"q","method":"elicitation/create","params":{{"message":"sure?"}}}}"#)
        }
        other => panic!("{other}"),
    }
}

fn policy() -> ToolPolicy {
    let span = Duration::from_secs(600);
    ToolPolicy { ttl: span, ttl_max: span, keep_result_min: span, ..serving::policy(TaskMode::Always) }
}

/// A small part of a large text, as a client's request is read.
fn part_of_a_large_one(member: &str, value: &Value) -> Payload {
    let text = format!(r#"{{{}"{member}":{value}}}"#, large());
    let whole = Payload::parse(&Bytes::from(text), ScanLimits::UPSTREAM).unwrap();
    Object::of(&whole).unwrap().get(member).unwrap()
}

fn spec(upstream: Arc<dyn Upstream>) -> CallSpec {
    let request = UpstreamRequest {
        method: Arc::from("tools/call"),
        params: Some(part_of_a_large_one("params", &json!({"name": "t", "arguments": {}}))),
    };
    let capabilities = part_of_a_large_one("capabilities", &json!({"elicitation": {}}));
    let maker = serving::maker(&Principal::local(), capabilities);
    let permits = serving::served(Arc::clone(&upstream), serving::Unreachable::named("scripted")).permits;
    let target = serving::target(upstream, &permits, serving::settings(policy()));
    let mut spec = target.plain_call(maker, request, Some((Arc::from("t"), policy())));
    spec.plan = Plan::Task;
    spec.context.progress = true;
    spec
}

/// Makes a call, waits for the tested part of its task, and takes the task out of its store: there is no other reference.
async fn kept(upstream: Arc<dyn Upstream>, is_there: impl Fn(&Task) -> bool) -> Task {
    let store = Arc::new(MemoryStore::new(1 << 30));
    let limits = SharedLimits::default();
    let next = AtomicU64::new(1);
    let ids = Box::new(move || u128::from(next.fetch_add(1, Ordering::Relaxed)));
    let engine = Engine::new(Arc::<MemoryStore>::clone(&store), Arc::new(ManualClock::default()), ids, 9, limits);
    let mut stream = engine.call(spec(upstream));
    let key = match in_time(stream.next()).await {
        Some(CallEvent::Created(task)) => task.key.clone(),
        other => panic!("{other:?}"),
    };
    let mut watcher = engine.watchers().watch(&key).unwrap();
    in_time(async {
        while !is_there(&engine.load_visible(&key).await.unwrap()) {
            watcher.changed().await;
        }
    })
    .await;
    taken(&store, &key).await
}

async fn taken(store: &MemoryStore, key: &TaskKey) -> Task {
    let row = store.load(key, Timestamp::from_millis(0)).await.unwrap().unwrap();
    store.remove(key).await.unwrap();
    let mut task = row.task;
    in_time(async {
        // The last reader of the task drops its reference soon.
        loop {
            task = match Arc::try_unwrap(task) {
                Ok(task) => return task,
                Err(shared) => shared,
            };
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Checks the sizes of the buffers of a task.
#[track_caller]
fn check(task: Task, what: &str) {
    let mut held = Vec::new();
    match task.phase {
        Phase::Settled(Outcome::Returned { result, .. }) => held.push(("result", result)),
        Phase::Settled(Outcome::Faulted(Failure::Upstream(error))) => held.push(("data", error.data.unwrap())),
        Phase::AwaitingInput(open) => {
            for question in open.into_values() {
                held.extend([("ask", question.ask), ("request", question.request)]);
            }
        }
        other @ (Phase::Queued | Phase::Working | Phase::Settled(_)) => panic!("{what}: {other:?}"),
    }
    if let Some(call) = task.recovery.call {
        held.extend([("params", call.params), ("capabilities", call.capabilities)]);
    }
    for (part, payload) in held {
        let bytes = payload.into_bytes();
        assert!(bytes.is_unique(), "{what}: {part} shares the buffer of something else");
        let size = Vec::from(bytes).capacity();
        assert!(size <= SMALL, "{what}: {part} keeps {size} bytes");
    }
}

fn settled(task: &Task) -> bool {
    task.is_settled()
}

fn asked(task: &Task) -> bool {
    matches!(task.phase, Phase::AwaitingInput(_))
}

/// The stored part, and whether a task has it.
type Kind = (&'static str, fn(&Task) -> bool);

const KINDS: [Kind; 3] = [("result", settled), ("error", settled), ("question", asked)];

fn http(url: &url::Url, transport: HttpTransport) -> Arc<dyn Upstream> {
    let mut settings = settings(url);
    settings.transport = transport;
    Arc::new(upstream_of(settings))
}

#[tokio::test]
async fn a_task_keeps_none_of_the_json_around_its_result() {
    for (what, is_there) in &KINDS[..2] {
        let server = ScriptedServer::answering(move |seen| json_text(said(&seen.body["id"], what))).await;
        check(kept(http(&server.url(), HttpTransport::Streamable), is_there).await, what);
    }
}

/// Streams that stay open as long as their server does.
type Open = Arc<Mutex<Vec<BodySender>>>;

#[tokio::test]
async fn a_task_keeps_none_of_the_event_around_its_result() {
    for (what, is_there) in KINDS {
        let open = Open::default();
        let server = ScriptedServer::answering(move |seen| {
            let (events, reply) = BodySender::open();
            events.raw(format!("data: {}\n\n", said(&seen.body["id"], what)));
            open.lock().push(events);
            reply
        })
        .await;
        check(kept(http(&server.url(), HttpTransport::Streamable), is_there).await, what);
    }
}

#[tokio::test]
async fn a_task_keeps_none_of_the_sse_event_around_its_result() {
    for (what, is_there) in KINDS {
        let open = Open::default();
        let server = ScriptedServer::start(move |seen| Some(over_sse(seen, &open, &|id| said(id, what)))).await;
        check(kept(http(&server.url(), HttpTransport::Sse), is_there).await, what);
    }
}

/// A question may be as large as the connection takes: one with a picture is.
#[tokio::test]
async fn a_question_of_megabytes_reaches_the_call_that_it_belongs_to() {
    let open = Open::default();
    let text = "x".repeat(1_500_000);
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {"text": text}});
    let server = ScriptedServer::start(move |seen| Some(over_sse(seen, &open, &|_| question.to_string()))).await;
    let mut settings = settings(&server.url());
    settings.transport = HttpTransport::Sse;
    let upstream = upstream_of(settings);
    let context = CallContext { result_bytes_max: 4 << 20, ..context() };
    let mut exchange = try_begin(&upstream, call(&json!({})), context).await.unwrap();
    let ExchangeEvent::Asked { params, .. } = next(&mut exchange).await else { panic!("no question came") };
    assert!(params.unwrap().len() > 1_500_000);
}

fn over_sse(seen: &SeenRequest, open: &Open, said: &dyn Fn(&Value) -> String) -> ScriptedReply {
    if seen.method == "GET" {
        let (events, reply) = BodySender::open();
        events.raw("event: endpoint\ndata: /message\n\n");
        open.lock().push(events);
        return reply;
    }
    let id = &seen.body["id"];
    let text = match seen.rpc() {
        "initialize" => {
            let info = json!({"name": "s", "version": "1"});
            let result = json!({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info});
            json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
        }
        "tools/call" => said(id),
        _ => return status(202),
    };
    open.lock().iter().for_each(|events| events.raw(format!("event: message\ndata: {text}\n\n")));
    status(202)
}
