//! `taskgate call` against a scripted 2026-07-28 server: what it sends, shows, prints, and ends with.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use taskgate::cli::call::{self, Call, Retry, Status, Steps, Ui, Verdict, Wait};
use taskgate::cli::client::TaskSupport;
use taskgate::wire::{Payload, ScanLimits};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Nothing here takes long; what takes this long hangs.
async fn bounded<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("the call ends in time")
}

/// What the scripted server does with one request.
#[derive(Clone, Debug)]
enum Step {
    Result(Value),
    Error(u16, Value),
    /// Progress notifications, then this result, as a stream.
    Stream(Vec<Value>, Value),
    /// A body that is no JSON-RPC.
    Page(u16),
    /// Closes the connection without an answer.
    Drop,
    /// Never answers.
    Hang,
    /// Has the user press Ctrl-C, and never answers.
    Interrupt,
}

struct Seen {
    headers: HeaderMap,
    body: String,
    message: Value,
}

struct Server {
    url: url::Url,
    seen: Arc<Mutex<Vec<Seen>>>,
    left: Arc<Notify>,
    _stop: DropGuard,
}

/// What all requests to the scripted server share.
struct Script {
    steps: Mutex<VecDeque<Step>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    interrupt: mpsc::Sender<()>,
    /// Told of each client that left before its answer.
    left: Arc<Notify>,
}

/// Lives as long as a request that is never answered.
struct OnLeave(Arc<Notify>);

impl Drop for OnLeave {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Serves `steps`, one per request; further requests hang.
    async fn start(steps: Vec<Step>, interrupt: mpsc::Sender<()>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let (seen, left) = (Arc::default(), Arc::new(Notify::new()));
        let steps = Mutex::new(VecDeque::from(steps));
        let script = Arc::new(Script { steps, seen: Arc::clone(&seen), interrupt, left: Arc::clone(&left) });
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let accept = {
            let (tracker, cancel) = (tracker.clone(), cancel.clone());
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let script = Arc::clone(&script);
                    let service = service_fn(move |request| answer(Arc::clone(&script), request));
                    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let cancel = cancel.clone();
                    tracker.spawn(async move { cancel.run_until_cancelled(serving).await });
                }
            }
        };
        let until = cancel.clone();
        tracker.spawn(async move { until.run_until_cancelled(accept).await });
        Self { url, seen, left, _stop: cancel.drop_guard() }
    }
}

async fn answer(script: Arc<Script>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let message: Value = serde_json::from_str(&body).unwrap();
    let id = message["id"].clone();
    script.seen.lock().push(Seen { headers: head.headers, body, message });
    let step = script.steps.lock().pop_front().unwrap_or(Step::Hang);
    let respond = |status: u16, kind: &'static str, body: String| {
        let response = Response::builder().status(StatusCode::from_u16(status).unwrap()).header(CONTENT_TYPE, kind);
        Ok(response.body(Full::from(body)).unwrap())
    };
    let result = |result| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    match step {
        Step::Result(value) => respond(200, "application/json", result(value).to_string()),
        Step::Error(status, error) => {
            let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
            respond(status, "application/json", body.to_string())
        }
        Step::Stream(progress, value) => {
            let notify = |params| json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
            let messages = progress.into_iter().map(notify).chain([result(value)]);
            respond(200, "text/event-stream", messages.map(|message| format!(":\n\ndata: {message}\n\n")).collect())
        }
        Step::Page(status) => respond(status, "text/html", "<p>hello".to_owned()),
        Step::Drop => Err(io::Error::other("the script says so")),
        Step::Hang | Step::Interrupt => {
            let _leaving = OnLeave(Arc::clone(&script.left));
            if matches!(step, Step::Interrupt) {
                script.interrupt.try_send(()).unwrap();
            }
            std::future::pending().await
        }
    }
}

/// A user who writes down what is shown, and presses Ctrl-C on cue.
struct User {
    shown: Vec<(String, Option<String>, Option<Steps>)>,
    notes: Vec<String>,
    output: Vec<String>,
    /// Status words that make the user press Ctrl-C, in order.
    cues: VecDeque<&'static str>,
    interrupt: mpsc::Sender<()>,
}

impl Ui for User {
    fn status(&mut self, status: &Status<'_>) {
        self.shown.push((status.word.to_owned(), status.message.map(str::to_owned), status.steps));
        if self.cues.front() == Some(&status.word) {
            self.cues.pop_front();
            self.interrupt.try_send(()).unwrap();
        }
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn output(&mut self, text: &str) {
        self.output.push(text.to_owned());
    }
}

/// One scenario. Most differ from `Scenario::of` in a field or two.
struct Scenario {
    script: Vec<Step>,
    tasks: TaskSupport,
    wait: Wait,
    cues: &'static [&'static str],
}

impl Scenario {
    fn of(script: impl IntoIterator<Item = Step>) -> Self {
        let script = script.into_iter().collect();
        Self { script, tasks: TaskSupport::Extension, wait: Wait::ToTheEnd, cues: &[] }
    }

    async fn run(self) -> Run {
        let (interrupt, mut interrupts) = mpsc::channel(2);
        let server = Server::start(self.script, interrupt.clone()).await;
        let arguments = Bytes::from_static(br#"{"b":1.10,"a":12345678901234567890123}"#);
        let call = Call {
            tool: "grüße".to_owned(),
            arguments: Payload::parse(&arguments, ScanLimits::CLIENT).unwrap(),
            tasks: self.tasks,
            wait: self.wait,
            retry: Retry { attempts_max: 3, pause: Duration::from_millis(1), pause_max: Duration::from_millis(2) },
        };
        let cues = self.cues.iter().copied().collect();
        let mut user = User { shown: Vec::new(), notes: Vec::new(), output: Vec::new(), cues, interrupt };
        let verdict = bounded(call::run(&server.url, &call, &mut user, &mut interrupts)).await;
        Run { verdict, user, server }
    }
}

struct Run {
    verdict: Verdict,
    user: User,
    server: Server,
}

impl Run {
    fn methods(&self) -> Vec<String> {
        self.server.seen.lock().iter().map(|seen| seen.message["method"].as_str().unwrap().to_owned()).collect()
    }
}

/// Runs a script and compares how it ends, what is printed, and which methods were called.
async fn check(scenario: Scenario, verdict: Verdict, output: &[&str], methods: &[&str]) -> Run {
    let script = format!("{:?}", scenario.script);
    let run = scenario.run().await;
    assert_eq!(run.verdict, verdict, "{script}: {:?}", run.user.notes);
    assert_eq!(run.user.output, output, "{script}");
    assert_eq!(run.methods(), methods, "{script}");
    run
}

fn text(text: &str) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] })
}

fn error(code: i64) -> Value {
    json!({ "code": code, "message": "no" })
}

/// A task, as a handle and as `tasks/get` shows it.
fn task(status: &str, more: Value) -> Value {
    let mut task = json!({
        "resultType": "complete", "taskId": "t1", "status": status, "ttlMs": 60_000, "pollIntervalMs": 1,
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
    });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

fn handle() -> Step {
    Step::Result(task("working", json!({ "resultType": "task" })))
}

fn working() -> Step {
    Step::Result(task("working", json!({ "statusMessage": "section 3/10 written" })))
}

fn completed(result: Value) -> Step {
    Step::Result(task("completed", json!({ "result": result })))
}

const CALL: &str = "tools/call";
const GET: &str = "tasks/get";
const CANCEL: &str = "tasks/cancel";

#[tokio::test]
async fn a_plain_answer_is_printed() {
    let image = json!({ "type": "image", "data": "", "mimeType": "image/png" });
    let mixed = json!({ "content": [{ "type": "text", "text": "a" }, image.clone()] });
    let failed = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    let structured = json!({ "content": [], "structuredContent": { "n": 1 } });
    for (step, verdict, output) in [
        (Step::Result(text("Hello")), Verdict::Returned, &["Hello"][..]),
        (Step::Stream(Vec::new(), text("Hello")), Verdict::Returned, &["Hello"]),
        (Step::Result(mixed), Verdict::Returned, &["a", &image.to_string()]),
        (Step::Result(structured), Verdict::Returned, &[r#"{"n":1}"#]),
        (Step::Result(failed), Verdict::ToolFailed, &["b"]),
        (Step::Error(200, error(-32603)), Verdict::Faulted, &[]),
        (Step::Error(400, error(-32020)), Verdict::Faulted, &[]),
        (Step::Error(503, error(-32603)), Verdict::Faulted, &[]),
    ] {
        check(Scenario::of([step]), verdict, output, &[CALL]).await;
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_a_lost_call() {
    for step in [
        Step::Page(200),
        Step::Page(502),
        Step::Drop,
        Step::Result(json!([])),
        Step::Result(json!({ "resultType": "surprise" })),
        Step::Result(json!({ "resultType": "task" })),
        Step::Result(json!({ "resultType": "complete", "content": 1 })),
    ] {
        // Never sent again: the tool may have run.
        check(Scenario::of([step]), Verdict::Lost, &[], &[CALL]).await;
    }
}

/// UPC-10, UPC-15; protocol.md 1.6.
#[tokio::test]
async fn every_request_carries_what_a_stateless_server_needs() {
    let run =
        check(Scenario::of([handle(), completed(text("done"))]), Verdict::Returned, &["done"], &[CALL, GET]).await;
    let seen = run.server.seen.lock();
    for (seen, name) in seen.iter().zip(["=?base64?Z3LDvMOfZQ==?=", "t1"]) {
        let header = |name: &'static str| seen.headers[HeaderName::from_static(name)].to_str().unwrap();
        assert_eq!(header("accept"), "application/json, text/event-stream");
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("mcp-protocol-version"), "2026-07-28");
        assert_eq!(header("mcp-method"), seen.message["method"]);
        assert_eq!(header("mcp-name"), name);
        let meta = &seen.message["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "taskgate");
        let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(capabilities, &json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }));
    }
    assert_ne!(seen[0].message["id"], seen[1].message["id"]);
    assert!(seen[0].body.contains(r#"{"b":1.10,"a":12345678901234567890123}"#), "arguments go out as they were given");
}

/// UPC-01, UPC-09.
#[tokio::test]
async fn a_task_is_polled_until_it_settles() {
    let failed = Step::Result(task("failed", json!({ "error": error(-32603) })));
    let is_error = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    for (last, verdict, output) in [
        (completed(text("done")), Verdict::Returned, &["done"][..]),
        (completed(is_error), Verdict::ToolFailed, &["b"]),
        (failed, Verdict::Faulted, &[]),
        (Step::Result(task("cancelled", json!({}))), Verdict::Cancelled, &[]),
        (Step::Error(200, error(-32602)), Verdict::Faulted, &[]),
        (Step::Result(task("completed", json!({}))), Verdict::Lost, &[]),
    ] {
        let run = check(Scenario::of([handle(), working(), last]), verdict, output, &[CALL, GET, GET]).await;
        let shown = ("working".to_owned(), Some("section 3/10 written".to_owned()), Some(Steps { done: 3, total: 10 }));
        assert!(run.user.shown.contains(&shown), "{:?}", run.user.shown);
    }
}

#[tokio::test]
async fn progress_of_a_plain_call_is_shown() {
    let progress = json!({ "progressToken": 1, "progress": 2, "total": 4, "message": "half" });
    let scenario = Scenario::of([Step::Stream(vec![progress], text("done"))]);
    let run = check(scenario, Verdict::Returned, &["done"], &[CALL]).await;
    let shown = ("calling".to_owned(), Some("half".to_owned()), Some(Steps { done: 2, total: 4 }));
    assert_eq!(run.user.shown.last(), Some(&shown));
}

#[tokio::test]
async fn a_handle_is_enough_where_nobody_waits() {
    let scenario = Scenario { wait: Wait::ForTheHandle, ..Scenario::of([handle()]) };
    let run = scenario.run().await;
    assert_eq!((run.verdict, run.methods()), (Verdict::Returned, vec![CALL.to_owned()]));
    let printed: Value = serde_json::from_str(&run.user.output[0]).unwrap();
    assert_eq!(printed, task("working", json!({ "resultType": "task" })));
}

#[tokio::test]
async fn without_the_extension_a_handle_is_a_mistake_of_the_server() {
    for (step, verdict, output) in
        [(Step::Result(text("Hello")), Verdict::Returned, &["Hello"][..]), (handle(), Verdict::Lost, &[])]
    {
        let scenario = Scenario { tasks: TaskSupport::Undeclared, ..Scenario::of([step]) };
        let run = check(scenario, verdict, output, &[CALL]).await;
        let seen = run.server.seen.lock();
        let meta = &seen[0].message["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({}));
    }
}

/// UPC-06, and protocol.md 3.4: a cancel is a wish; the task may end otherwise.
#[tokio::test]
async fn ctrl_c_cancels_the_task_and_waits_for_how_it_ends() {
    let acknowledged = Step::Result(json!({ "resultType": "complete" }));
    for (last, verdict, output) in [
        (Step::Result(task("cancelled", json!({}))), Verdict::Cancelled, &[][..]),
        (completed(text("too late")), Verdict::Returned, &["too late"]),
    ] {
        let script = [handle(), acknowledged.clone(), working(), last];
        let scenario = Scenario { cues: &["working"], ..Scenario::of(script) };
        check(scenario, verdict, output, &[CALL, CANCEL, GET, GET]).await;
    }
}

#[tokio::test]
async fn a_second_ctrl_c_leaves_at_once() {
    let scenario = Scenario { cues: &["working", "cancelling"], ..Scenario::of([handle(), Step::Hang]) };
    let run = scenario.run().await;
    assert_eq!(run.verdict, Verdict::Cancelled);
    assert!(run.user.notes.iter().any(|note| note.contains("t1") && note.contains("may still run")));
}

/// On 2026-07-28 closing the stream is the cancellation (protocol.md 1.1).
#[tokio::test]
async fn ctrl_c_closes_the_stream_of_a_plain_call() {
    let run = check(Scenario::of([Step::Interrupt]), Verdict::Cancelled, &[], &[CALL]).await;
    bounded(run.server.left.notified()).await;
}

#[tokio::test]
async fn questions_that_nobody_can_answer_end_the_call() {
    let ask = json!({ "k": { "method": "elicitation/create", "params": {} } });
    let asking = Step::Result(task("input_required", json!({ "inputRequests": ask.clone() })));
    let acknowledged = Step::Result(json!({ "resultType": "complete" }));
    let scenario = Scenario::of([handle(), asking, acknowledged]);
    check(scenario, Verdict::ToolFailed, &[], &[CALL, GET, CANCEL]).await;
    let scenario = Scenario::of([Step::Result(json!({ "resultType": "input_required", "inputRequests": ask }))]);
    check(scenario, Verdict::ToolFailed, &[], &[CALL]).await;
}

#[tokio::test]
async fn polls_are_repeated_while_the_server_is_away() {
    for lost in [Step::Drop, Step::Page(502), Step::Page(503), Step::Error(503, error(-32603)), Step::Page(429)] {
        let done = completed(text("done"));
        let scenario = Scenario::of([handle(), lost.clone(), lost.clone(), done]);
        let run = check(scenario, Verdict::Returned, &["done"], &[CALL, GET, GET, GET]).await;
        assert_eq!(run.user.notes.iter().filter(|note| note.ends_with("trying again")).count(), 2);

        let script = [handle(), lost.clone(), lost.clone(), lost.clone()];
        let verdict = if matches!(lost, Step::Error(..)) { Verdict::Faulted } else { Verdict::Lost };
        check(Scenario::of(script), verdict, &[], &[CALL, GET, GET, GET]).await;
    }
    // What a repetition cannot heal is not repeated.
    check(Scenario::of([handle(), Step::Page(404)]), Verdict::Lost, &[], &[CALL, GET]).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_lost_call() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let output = program(&["call", &url, "greet"]).output();
    assert_eq!(bounded(output).await.unwrap().status.code(), Some(69));
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_program_ends_with_the_code_that_scripts_rely_on() {
    let cancelled = Step::Result(task("cancelled", json!({})));
    let failed = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    for (script, code, stdout) in [
        (vec![Step::Result(text("Hello"))], 0, "Hello\n"),
        (vec![handle(), working(), completed(text("done"))], 0, "done\n"),
        (vec![Step::Result(failed)], 1, "b\n"),
        (vec![Step::Error(200, error(-32603))], 2, ""),
        (vec![handle(), cancelled], 3, ""),
        (vec![Step::Page(502)], 69, ""),
    ] {
        let server = Server::start(script, mpsc::channel(1).0).await;
        let output = program(&["call", server.url.as_str(), "greet", r#"{"name":"Ada"}"#]).output();
        let output = bounded(output).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), stdout);
        assert!(!stderr.is_empty(), "the status goes to stderr");
    }
}

#[tokio::test]
async fn the_demo_server_prints_its_address_and_stops_on_sigterm() {
    let mut child = program(&["demo-server", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url: url::Url = bounded(lines.next_line()).await.unwrap().unwrap().parse().unwrap();
    assert_eq!((url.host_str(), url.path()), (Some("127.0.0.1"), "/mcp"));
    assert_ne!(url.port(), Some(0));
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert_eq!(bounded(child.wait()).await.unwrap().code(), Some(0));
}
