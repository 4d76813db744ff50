//! Clients of six kinds make calls under a few idempotency keys while the program is killed again and again: each call
//! runs once, and all its clients get the same outcome (GW-46).
//!
//! `KEY_CALLS` is how many calls there are (240), ten under each key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![allow(clippy::print_stdout, reason = "a run says how many of its calls ran")]

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::history::History;
use support::hostile_twin;
use support::scripted::{ScriptedServer, SeenRequest, answer, polite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::kill_cycles::keeper::Keeper;

const CALLS_UNDER_A_KEY: usize = 10;
const KILLS: usize = 3;
/// Clients of each kind at a time.
const CLIENTS: usize = 2;
/// How long one request may take, and how long all of it.
const REQUEST_MAX: Duration = Duration::from_secs(20);
const ALL_MAX: Duration = Duration::from_secs(300);

/// How often the call of each key has run at the server.
type Runs = Arc<Mutex<HashMap<String, usize>>>;

async fn server(runs: Runs) -> ScriptedServer {
    ScriptedServer::slow(move |seen: SeenRequest, world| {
        let runs = Arc::clone(&runs);
        async move {
            match seen.rpc() {
                "tools/list" => {
                    let tool = json!({"name": "pay", "inputSchema": {"type": "object"}});
                    Some(answer(&seen, &json!({"tools": [tool]})))
                }
                "tools/call" => {
                    let key = seen.body["params"]["arguments"]["key"].as_str().unwrap().to_owned();
                    *runs.lock().entry(key.clone()).or_default() += 1;
                    // A call takes a while, so that a kill meets some of them on their way.
                    sleep(Duration::from_millis(30)).await;
                    Some(answer(&seen, &json!({"content": [{"type": "text", "text": key}]})))
                }
                _ => Some(polite(&seen, &world)),
            }
        }
    })
    .await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stateless,
    StatelessTasks,
    Session,
    SessionTasks,
    Array,
    Sse,
}

const KINDS: [Kind; 6] =
    [Kind::Stateless, Kind::StatelessTasks, Kind::Session, Kind::SessionTasks, Kind::Array, Kind::Sse];

/// A client of one kind. Its methods return `None` if the connection broke.
struct Caller {
    kind: Kind,
    session: Option<String>,
}

/// The client's knowledge of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KnownOutcome {
    Ran(String),
    MayHaveRun,
    /// It did not run, or nothing is known: the call is made again under its key.
    Again,
}

impl Caller {
    const fn new(kind: Kind) -> Self {
        Self { kind, session: None }
    }

    const fn version(&self) -> &'static str {
        match self.kind {
            Kind::Stateless | Kind::StatelessTasks => "2026-07-28",
            Kind::Session | Kind::SessionTasks | Kind::Sse => "2025-11-25",
            Kind::Array => "2025-03-26",
        }
    }

    async fn call(&mut self, at: SocketAddr, key: &str) -> Option<KnownOutcome> {
        let mut params = json!({"name": "pay", "arguments": {"key": key}});
        if self.kind == Kind::Sse {
            return sse_call(at, key, params).await.map(|answer| outcome_of(&answer));
        }
        if self.kind == Kind::SessionTasks {
            params["task"] = json!({});
        }
        if self.kind == Kind::Array {
            params["_meta"] = json!({"io.taskgate/idempotency-key": key});
        }
        if self.session.is_none() && !matches!(self.kind, Kind::Stateless | Kind::StatelessTasks) {
            self.open(at).await?;
        }
        let answer = self.ask(at, "tools/call", params, Some(key)).await?;
        match (self.kind, &answer["result"]) {
            (Kind::StatelessTasks, result) if result["taskId"].is_string() => loop {
                let params = json!({"taskId": result["taskId"]});
                let task = self.ask(at, "tasks/get", params, None).await?["result"].take();
                if task["status"] != "working" {
                    return Some(outcome_of(&task));
                }
                sleep(Duration::from_millis(20)).await;
            },
            (Kind::SessionTasks, result) if result["task"].is_object() => {
                let params = json!({"taskId": result["task"]["taskId"]});
                Some(outcome_of(&self.ask(at, "tasks/result", params, None).await?))
            }
            _ => Some(outcome_of(&answer)),
        }
    }

    async fn open(&mut self, at: SocketAddr) -> Option<()> {
        let params = json!({
            "protocolVersion": self.version(), "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"},
        });
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let response = send(at, "/mcp", &[], &body).await?;
        self.session = Some(response.headers().get("mcp-session-id")?.to_str().ok()?.to_owned());
        Some(())
    }

    async fn ask(&self, at: SocketAddr, method: &str, mut params: Value, key: Option<&str>) -> Option<Value> {
        let mut headers = vec![("mcp-protocol-version", self.version().to_owned())];
        headers.extend(self.session.as_ref().map(|session| ("mcp-session-id", session.clone())));
        if matches!(self.kind, Kind::Stateless | Kind::StatelessTasks) {
            let extensions = match self.kind == Kind::StatelessTasks {
                true => json!({"io.modelcontextprotocol/tasks": {}}),
                false => json!({}),
            };
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": self.version(),
                "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions},
            });
            headers.push(("mcp-method", method.to_owned()));
            let name = params["name"].as_str().or_else(|| params["taskId"].as_str()).unwrap();
            headers.push(("mcp-name", name.to_owned()));
        }
        headers.extend(key.filter(|_| self.kind != Kind::Array).map(|key| ("idempotency-key", key.to_owned())));
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let body = if self.kind == Kind::Array { json!([request]) } else { request };
        let text = send(at, "/mcp", &headers, &body).await?.into_body().collect().await.ok()?.to_bytes();
        Some(last(&String::from_utf8_lossy(&text)))
    }
}

/// One call over HTTP+SSE, in a session of its own.
async fn sse_call(at: SocketAddr, key: &str, mut params: Value) -> Option<Value> {
    params["_meta"] = json!({"io.taskgate/idempotency-key": key});
    let get = Request::get("/sse").header("host", "localhost").header("accept", "text/event-stream");
    let mut stream = open(at, get.body(Full::default()).unwrap()).await?.into_body();
    let mut read = String::new();
    let endpoint = until(&mut stream, &mut read, "data: ").await?;
    let opening =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}});
    let post = async |id: u32, method: &str, params: &Value| {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        send(at, &endpoint, &[], &body).await
    };
    post(1, "initialize", &opening).await?;
    until(&mut stream, &mut read, "\"id\":1").await?;
    post(2, "tools/call", &params).await?;
    let line = until(&mut stream, &mut read, "\"id\":2").await?;
    serde_json::from_str(&line).ok()
}

/// The rest of the next whole line of data that holds `part`.
async fn until(stream: &mut Incoming, read: &mut String, part: &str) -> Option<String> {
    loop {
        if let Some(end) = read.find('\n') {
            let line: String = read.drain(..=end).collect();
            if line.contains(part) {
                return Some(line.trim().strip_prefix("data: ")?.to_owned());
            }
            continue;
        }
        let frame = timeout(REQUEST_MAX, stream.frame()).await.ok()??.ok()?;
        read.push_str(&String::from_utf8_lossy(&frame.into_data().ok()?));
    }
}

async fn send(
    at: SocketAddr,
    path: &str,
    headers: &[(&str, String)],
    body: &Value,
) -> Option<http::Response<Incoming>> {
    let mut request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
    request = request.header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    open(at, request.body(Full::from(body.to_string())).unwrap()).await
}

async fn open(at: SocketAddr, request: Request<Full<Bytes>>) -> Option<http::Response<Incoming>> {
    let request = hostile_twin::addressed(request, "up").await;
    let socket = TcpStream::connect(at).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.ok()?;
    // It ends with its connection, which the gateway's end cuts at the latest.
    TaskTracker::new().spawn(connection);
    timeout(REQUEST_MAX, sender.send_request(request)).await.ok()?.ok()
}

/// The last message of an answer: JSON, an array or events.
fn last(text: &str) -> Value {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    let read: Value = serde_json::from_str(data.unwrap_or(text)).unwrap_or_default();
    if read.is_array() { read[0].clone() } else { read }
}

fn outcome_of(answer: &Value) -> KnownOutcome {
    match (&answer["result"]["content"][0]["text"], &answer["error"]["data"]["executed"]) {
        (Value::String(text), _) => KnownOutcome::Ran(text.clone()),
        (_, executed) if *executed == "unknown" => KnownOutcome::MayHaveRun,
        _ => KnownOutcome::Again,
    }
}

/// Which keys a kill may have met: those under which a client made a call meanwhile.
#[derive(Default)]
struct KillExposure {
    in_flight: Vec<String>,
    is_killing: bool,
    met: BTreeSet<String>,
}

impl KillExposure {
    fn enter(&mut self, key: &str) {
        self.in_flight.push(key.to_owned());
        if self.is_killing {
            self.met.insert(key.to_owned());
        }
    }

    fn leave(&mut self, key: &str) {
        let place = self.in_flight.iter().position(|known| known == key).unwrap();
        self.in_flight.swap_remove(place);
    }
}

/// Calls under keys, in their order, at a server that counts them.
pub(crate) struct KeyCourse {
    calls: usize,
    section: String,
    _hostile: Option<ScriptedServer>,
    _server: ScriptedServer,
    runs: Runs,
    next: AtomicUsize,
    outcomes: Mutex<Vec<(String, Kind, KnownOutcome)>>,
    exposure: Mutex<KillExposure>,
}

impl KeyCourse {
    /// As many calls as `KEY_CALLS` says, else `usual`.
    pub(crate) async fn open(usual: usize) -> Self {
        let calls = std::env::var("KEY_CALLS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
        let runs = Runs::default();
        let server = server(Arc::clone(&runs)).await;
        let (section, _hostile) = hostile_twin::section("up", "/mcp", server.url().as_str()).await;
        let next = AtomicUsize::new(0);
        Self {
            calls,
            section,
            _hostile,
            _server: server,
            runs,
            next,
            outcomes: Mutex::default(),
            exposure: Mutex::default(),
        }
    }

    /// The part of a configuration that names the server.
    pub(crate) fn upstream(&self) -> &str {
        &self.section
    }

    /// Clients of all kinds make the calls at the gateways that serve, each until it knows its call's outcome.
    pub(crate) async fn clients(&self, addresses: watch::Receiver<Vec<SocketAddr>>) {
        let all = join_all((0..CLIENTS * KINDS.len()).map(|_| self.client(addresses.clone())));
        timeout(ALL_MAX, all).await.expect("all calls are answered in time");
    }

    async fn client(&self, mut addresses: watch::Receiver<Vec<SocketAddr>>) {
        let mut callers = KINDS.map(Caller::new);
        loop {
            let call = self.next.fetch_add(1, Ordering::Relaxed);
            if call >= self.calls {
                return;
            }
            // Its calls come close together, so that a kill meets first ones and repetitions.
            let key = format!("key-{}", call / CALLS_UNDER_A_KEY);
            let caller = &mut callers[call % KINDS.len()];
            // A killed gateway may lose the answer of any call: the client asks again under the key.
            let mut is_unsure = false;
            self.exposure.lock().enter(&key);
            let outcome = loop {
                let at = {
                    let addresses = addresses.wait_for(|addresses| !addresses.is_empty()).await.unwrap();
                    addresses[call % addresses.len()]
                };
                match caller.call(at, &key).await {
                    Some(KnownOutcome::MayHaveRun) if !is_unsure => is_unsure = true,
                    Some(outcome) if outcome != KnownOutcome::Again => break outcome,
                    _ => sleep(Duration::from_millis(20)).await,
                }
            };
            self.exposure.lock().leave(&key);
            self.outcomes.lock().push((key, caller.kind, outcome));
        }
    }

    /// Returns once so many parts of all calls are answered.
    pub(crate) async fn is_at(&self, part: usize, parts: usize) {
        while self.outcomes.lock().len() < self.calls * part / parts {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills a gateway.
    pub(crate) async fn meet(&self, kill: impl Future<Output = ()>) {
        {
            let mut exposure = self.exposure.lock();
            let KillExposure { in_flight, is_killing, met } = &mut *exposure;
            *is_killing = true;
            met.extend(in_flight.iter().cloned());
        }
        kill.await;
        self.exposure.lock().is_killing = false;
    }

    /// Each key's call ran once, unless a kill met it, and all its clients got the same outcome.
    pub(crate) fn check(&self) {
        let (runs, outcomes, mut may_have_run) = (self.runs.lock(), self.outcomes.lock(), 0);
        let keys = self.calls / CALLS_UNDER_A_KEY;
        let met = &self.exposure.lock().met;
        for key in (0..keys).map(|number| format!("key-{number}")) {
            let ran = runs.get(&key).copied().unwrap_or_default();
            let of_key: Vec<_> = outcomes.iter().filter(|(name, ..)| *name == key).collect();
            let first = &of_key[0].2;
            assert!(of_key.iter().all(|(_, _, outcome)| outcome == first), "{key}: {of_key:?}");
            match first {
                KnownOutcome::Ran(text) => assert_eq!((ran, text), (1, &key), "{of_key:?}"),
                KnownOutcome::MayHaveRun | KnownOutcome::Again => {
                    assert!(ran <= 1, "{key} ran {ran} times");
                    assert!(met.contains(&key), "{key}: no kill met its call: {of_key:?}");
                    may_have_run += 1;
                }
            }
        }
        println!(
            "{} calls under {keys} keys ran {} times; {may_have_run} keys of {} that a kill met say that theirs may have run",
            outcomes.len(),
            runs.len(),
            met.len()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_six_kinds_of_clients_run_once_under_each_key_however_often_the_program_is_killed() {
    let course = KeyCourse::open(240).await;
    let mut keeper = Keeper::new("keys", course.upstream(), Arc::new(History::begin(Duration::ZERO)));
    keeper.start(&[]).await.unwrap();
    let addresses = keeper.addresses();
    let kills = async {
        for kill in 1..=KILLS {
            course.is_at(kill, KILLS + 1).await;
            course.meet(keeper.kill()).await;
            keeper.start(&[]).await.unwrap();
        }
    };
    join(course.clients(addresses), kills).await;
    course.check();
    keeper.forget_log();
}
