//! A scripted server, and a scripted user.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::scripted::WAIT_MAX;
use taskgate::cli::call::{CallCommand, CallExit, Flavour, FollowPolicy, QuestionPolicy, RetryPolicy, Wait};
use taskgate::cli::flavour;
use taskgate::cli::server_address::ServerAddress;
use taskgate::cli::tool_arguments::ToolArguments;
use taskgate::cli::ui::{CallStatus, StepCount, Ui};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) async fn bounded<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(WAIT_MAX, what).await.expect("the call ends in time")
}

/// The scripted server's answer to one request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Result(Value),
    Error(u16, Value),
    /// Progress notifications, then this result, as a stream. A token of 1 stands for the request's own.
    Stream(Vec<Value>, Value),
    /// Asks this on the request's own stream, waits for the answer, and gives this result.
    Ask(Value, Value),
    /// The same, but it asks on the session's stream.
    AskElsewhere(Value, Value),
    /// Asks this, withdraws it at once, and gives this result.
    Withdraw(Value, Value),
    /// Ends the stream before the answer, which can be had from a further one.
    Pause(Value),
    /// A body that is no JSON-RPC.
    Page(u16),
    /// Closes the connection without an answer.
    Drop,
    /// Never answers.
    Hang,
    /// Has the user press Ctrl-C, and never answers.
    Interrupt,
}

pub(crate) struct Seen {
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) message: Value,
}

impl Seen {
    /// The method of a request or notification, `answer`, or the HTTP method where there is no message.
    fn title(&self) -> String {
        self.message["method"].as_str().unwrap_or("answer").to_owned()
    }
}

pub(crate) struct Server {
    pub(crate) url: url::Url,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    pub(crate) left: Arc<Notify>,
    _stop: DropGuard,
}

/// State that all requests to the scripted server share.
struct Script {
    steps: Mutex<VecDeque<Step>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    interrupt: mpsc::Sender<()>,
    /// Notified of each client that disconnected before its answer.
    left: Arc<Notify>,
    /// Notified of each answer to a question.
    answered: Notify,
    /// The session's own stream, once it is open.
    listener: Mutex<Option<mpsc::Sender<Bytes>>>,
    paused: Mutex<Option<Value>>,
}

/// Notifies at the end of a request that is never answered.
struct OnLeave(Arc<Notify>);

impl Drop for OnLeave {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

type Body = StreamBody<ReceiverStream>;
type Answer = io::Result<Response<Body>>;

/// A body that is written while it is sent.
struct ReceiverStream(mpsc::Receiver<Bytes>);

impl futures_util::Stream for ReceiverStream {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Server {
    /// Serves `steps`, one per request; further requests hang.
    pub(crate) async fn start(steps: Vec<Step>, interrupt: mpsc::Sender<()>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let (seen, left) = (Arc::default(), Arc::new(Notify::new()));
        let script = Arc::new(Script {
            steps: Mutex::new(VecDeque::from(steps)),
            seen: Arc::clone(&seen),
            interrupt,
            left: Arc::clone(&left),
            answered: Notify::new(),
            listener: Mutex::default(),
            paused: Mutex::default(),
        });
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let accept = {
            let (tracker, cancel) = (tracker.clone(), cancel.clone());
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (script, of_connection) = (Arc::clone(&script), tracker.clone());
                    let service =
                        service_fn(move |request| answer(Arc::clone(&script), of_connection.clone(), request));
                    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let cancel = cancel.clone();
                    tracker.spawn(async move { cancel.run_until_cancelled(serving).await.map(drop) });
                }
            }
        };
        let until = cancel.clone();
        tracker.spawn(async move { until.run_until_cancelled(accept).await });
        Self { url, seen, left, _stop: cancel.drop_guard() }
    }
}

fn respond(status: u16, kind: &'static str, pieces: impl IntoIterator<Item = String>) -> Answer {
    let pieces: Vec<_> = pieces.into_iter().collect();
    let (sender, receiver) = mpsc::channel(pieces.len().max(1));
    pieces.into_iter().for_each(|piece| sender.try_send(Bytes::from(piece)).unwrap());
    reply(status, kind, receiver)
}

fn reply(status: u16, kind: &'static str, receiver: mpsc::Receiver<Bytes>) -> Answer {
    let response = Response::builder().status(StatusCode::from_u16(status).unwrap()).header(CONTENT_TYPE, kind);
    Ok(response.header("mcp-session-id", "s1").body(StreamBody::new(ReceiverStream(receiver))).unwrap())
}

fn event(message: &Value) -> String {
    format!(":\n\ndata: {message}\n\n")
}

async fn answer(script: Arc<Script>, tracker: TaskTracker, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    match head.method {
        Method::GET => return listen(&script, &head.headers),
        Method::DELETE => {
            let message = json!({ "method": "DELETE" });
            script.seen.lock().push(Seen { headers: head.headers, body: String::new(), message });
            return respond(200, "text/plain", []);
        }
        _ => (),
    }
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let message: Value = serde_json::from_str(&body).unwrap();
    let token = message["params"]["_meta"]["progressToken"].clone();
    let (id, is_request) = (message["id"].clone(), message["id"] != Value::Null && message["method"] != Value::Null);
    if message["method"] == Value::Null {
        script.answered.notify_one();
    }
    script.seen.lock().push(Seen { headers: head.headers, body, message });
    if !is_request {
        return respond(202, "text/plain", []);
    }
    let step = script.steps.lock().pop_front().unwrap_or(Step::Hang);
    perform(script, tracker, (id, token), step).await
}

/// The session's own stream, or the rest of one that was paused.
fn listen(script: &Script, headers: &HeaderMap) -> Answer {
    if headers.get("last-event-id").is_some_and(|id| id == "e1") {
        return respond(200, "text/event-stream", script.paused.lock().take().map(|message| event(&message)));
    }
    let wants_stream = script.steps.lock().iter().any(|step| matches!(step, Step::AskElsewhere(..)));
    if !wants_stream {
        return respond(405, "text/plain", []);
    }
    let (sender, receiver) = mpsc::channel(1);
    *script.listener.lock() = Some(sender);
    reply(200, "text/event-stream", receiver)
}

async fn perform(script: Arc<Script>, tracker: TaskTracker, (id, token): (Value, Value), step: Step) -> Answer {
    let result = |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let ask =
        |params: &Value| json!({ "jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params });
    let notify = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "method": method, "params": params });
    match step {
        Step::Result(value) => respond(200, "application/json", [result(value).to_string()]),
        Step::Error(status, error) => {
            let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
            respond(status, "application/json", [body.to_string()])
        }
        Step::Stream(progress, value) => {
            let messages = progress.into_iter().map(|mut params| {
                if params["progressToken"] == 1 {
                    params["progressToken"] = token.clone();
                }
                notify("notifications/progress", params)
            });
            respond(200, "text/event-stream", messages.chain([result(value)]).map(|message| event(&message)))
        }
        Step::Ask(params, value) => {
            let (sender, receiver) = mpsc::channel(2);
            sender.try_send(Bytes::from(event(&ask(&params)))).unwrap();
            let last = event(&result(value));
            tracker.spawn(async move {
                script.answered.notified().await;
                let _ = sender.send(Bytes::from(last)).await;
            });
            reply(200, "text/event-stream", receiver)
        }
        Step::AskElsewhere(params, value) => {
            let listener = script.listener.lock().clone().unwrap();
            listener.send(Bytes::from(event(&ask(&params)))).await.unwrap();
            script.answered.notified().await;
            respond(200, "application/json", [result(value).to_string()])
        }
        Step::Withdraw(params, value) => {
            let withdrawal = notify("notifications/cancelled", json!({ "requestId": "q1" }));
            let messages = [ask(&params), withdrawal, result(value)];
            respond(200, "text/event-stream", messages.iter().map(event))
        }
        Step::Pause(value) => {
            *script.paused.lock() = Some(result(value));
            respond(200, "text/event-stream", ["id: e1\nretry: 1\ndata:\n\n".to_owned()])
        }
        Step::Page(status) => respond(status, "text/html", ["<p>hello".to_owned()]),
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

/// The user's input at a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Typed {
    Line(&'static str),
    /// Nothing, for ever.
    Nothing,
    CtrlC,
}

/// A user who records the output, and types and presses Ctrl-C on cue.
pub(crate) struct User {
    pub(crate) shown: Vec<(String, Option<String>, Option<StepCount>)>,
    pub(crate) notes: Vec<String>,
    pub(crate) output: Vec<String>,
    /// Status words that make the user press Ctrl-C, in order.
    cues: VecDeque<&'static str>,
    /// Then the input ends.
    typed: VecDeque<Typed>,
    interrupt: mpsc::Sender<()>,
}

#[async_trait]
impl Ui for User {
    fn status(&mut self, status: &CallStatus<'_>) {
        self.shown.push((status.text.to_owned(), status.message.map(str::to_owned), status.steps));
        if self.cues.front() == Some(&status.text) {
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

    async fn line(&mut self, prompt: &str) -> Option<String> {
        self.notes.push(prompt.to_owned());
        match self.typed.pop_front()? {
            Typed::Line(line) => Some(line.to_owned()),
            Typed::Nothing => std::future::pending().await,
            Typed::CtrlC => {
                self.interrupt.try_send(()).unwrap();
                std::future::pending().await
            }
        }
    }
}

/// One scenario. Most differ from `Scenario::of` in a field or two.
pub(crate) struct Scenario {
    pub(crate) script: Vec<Step>,
    pub(crate) flavour: Option<Flavour>,
    pub(crate) key: Option<&'static str>,
    pub(crate) wait: Wait,
    pub(crate) input: QuestionPolicy,
    pub(crate) cues: &'static [&'static str],
    pub(crate) typed: Vec<Typed>,
    pub(crate) arguments: &'static str,
    pub(crate) retry: RetryPolicy,
}

impl Scenario {
    pub(crate) fn of(flavour: Option<Flavour>, script: impl IntoIterator<Item = Step>) -> Self {
        let (script, wait, input) = (script.into_iter().collect(), Wait::ToTheEnd, QuestionPolicy::Asked);
        let retry = RetryPolicy {
            attempts_max: 3,
            pause: Duration::from_millis(1),
            pause_max: Duration::from_millis(2),
            ..RetryPolicy::default()
        };
        Self { script, flavour, key: None, wait, input, cues: &[], typed: Vec::new(), arguments: "{}", retry }
    }

    pub(crate) fn typing(self, lines: impl IntoIterator<Item = &'static str>) -> Self {
        Self { typed: lines.into_iter().map(Typed::Line).collect(), ..self }
    }

    pub(crate) async fn run(self) -> Run {
        let (interrupt, mut interrupts) = mpsc::channel(2);
        let server = Server::start(self.script, interrupt.clone()).await;
        let call = CallCommand {
            tool: "grüße".to_owned(),
            arguments: ToolArguments::read(&[self.arguments.to_owned()]).unwrap(),
            flavour: self.flavour,
            idempotency_key: self.key.map(str::to_owned),
            following: FollowPolicy {
                wait: self.wait,
                input: self.input,
                retry: self.retry,
                ..FollowPolicy::to_the_end()
            },
        };
        let address = ServerAddress { url: server.url.clone(), ca: None, authorization: None };
        let (cues, typed) = (self.cues.iter().copied().collect(), self.typed.into());
        let (shown, notes, output) = (Vec::new(), Vec::new(), Vec::new());
        let mut user = User { shown, notes, output, cues, typed, interrupt };
        let verdict = bounded(flavour::run(&address, &call, &mut user, &mut interrupts)).await;
        Run { verdict, user, server }
    }
}

pub(crate) struct Run {
    pub(crate) verdict: CallExit,
    pub(crate) user: User,
    pub(crate) server: Server,
}

impl Run {
    pub(crate) fn methods(&self) -> Vec<String> {
        self.server.seen.lock().iter().map(Seen::title).collect()
    }

    /// The client's answers to the server's questions.
    pub(crate) fn answers(&self) -> Vec<Value> {
        let seen = self.server.seen.lock();
        seen.iter().filter(|seen| seen.title() == "answer").map(|seen| seen.message["result"].clone()).collect()
    }

    #[track_caller]
    pub(crate) fn assert_note(&self, part: &str) {
        assert!(self.user.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", self.user.notes);
    }
}

/// Runs a script and compares its exit, its output, and the methods that were called.
pub(crate) async fn check(scenario: Scenario, verdict: CallExit, output: &[&str], methods: &[&str]) -> Run {
    let script = format!("{:?}", scenario.script);
    let run = scenario.run().await;
    assert_eq!(run.verdict, verdict, "{script}: {:?}", run.user.notes);
    assert_eq!(run.user.output, output, "{script}");
    assert_eq!(run.methods(), methods, "{script}");
    run
}

pub(crate) fn text(text: &str) -> Value {
    json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] })
}

pub(crate) fn error(code: i64) -> Value {
    json!({ "code": code, "message": "no" })
}

/// The parameters of a question with one field, which the lines `y` and an empty one answer.
pub(crate) fn question() -> Value {
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
    json!({ "message": "Sure?", "requestedSchema": schema })
}

/// The answer that accepts.
pub(crate) fn accepted() -> Value {
    json!({ "action": "accept", "content": { "ok": true } })
}
