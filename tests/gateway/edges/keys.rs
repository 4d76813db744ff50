//! An idempotency key holds for every kind of client, also for those without tasks (GW-46): the call is made once, and each
//! repetition is answered with its outcome.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;

use super::client::{TestGateway, initialize};
use super::faces::Sse;
use super::peers::{PAIRS, Person, SESSION, STATELESS, served};
use super::upstream::{ScriptedServer, SeenRequest, answer, in_time, polite};

const META: &str = "io.taskgate/idempotency-key";
const ARRAYS: &str = "2025-03-26";

/// A server that answers a call with how many it has had, once the test lets it.
struct Counting {
    server: ScriptedServer,
    may_answer: Arc<Semaphore>,
}

impl Counting {
    async fn start(version: &'static str) -> Self {
        let (runs, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let gate = Arc::clone(&may_answer);
        let server = ScriptedServer::slow(move |seen: SeenRequest, world| {
            let (runs, gate) = (Arc::clone(&runs), Arc::clone(&gate));
            async move {
                if !seen.is_call() {
                    return Some(served(version, &seen).unwrap_or_else(|| polite(&seen, &world)));
                }
                let run = runs.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.unwrap().forget();
                let mut result = json!({"content": [{"type": "text", "text": format!("run {run}")}]});
                if version == STATELESS {
                    result["resultType"] = json!("complete");
                }
                Some(answer(&seen, &result))
            }
        });
        Self { server: server.await, may_answer }
    }

    fn runs(&self) -> usize {
        self.server.world.count("tools/call")
    }
}

fn params(key: Option<&str>, n: u32) -> Value {
    let mut params = json!({"name": "plain", "arguments": {"n": n}});
    if let Some(key) = key {
        params["_meta"] = json!({META: key});
    }
    params
}

/// A client of any kind that is its principal's alone.
enum Caller {
    Header(Person),
    Meta(Person),
    Array(Person),
    Sse(Sse),
    Lines(Host),
}

impl Caller {
    async fn all(gate: &TestGateway, server: &ScriptedServer) -> Vec<(&'static str, [Self; 2])> {
        let person = async |version| [Person::meet(gate, version).await, Person::meet(gate, version).await];
        let host = format!("http://{}/mcp", server.address);
        let hosts = Host::open(&host).await;
        vec![
            ("no session", person(STATELESS).await.map(Self::Header)),
            ("a session, by header", person(SESSION).await.map(Self::Header)),
            ("a session, by _meta", person("2025-06-18").await.map(Self::Meta)),
            ("an array", person(ARRAYS).await.map(Self::Array)),
            ("HTTP+SSE", [Self::Sse(Sse::open(gate).await), Self::Sse(Sse::open(gate).await)]),
            ("stdio", [Self::Lines(hosts.clone()), Self::Lines(hosts)]),
        ]
    }

    async fn call(&mut self, id: u32, key: &str, n: u32) -> Value {
        let request = |key| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params(key, n)});
        match self {
            Self::Header(person) => person.ask_with("tools/call", params(None, n), &[("idempotency-key", key)]).await,
            Self::Meta(person) => person.ask("tools/call", params(Some(key), n)).await,
            Self::Array(person) => person.ask_all(&json!([request(Some(key))])).await.remove(0),
            Self::Sse(stream) => {
                assert_eq!(stream.post(request(Some(key)).to_string()).await.status, 202);
                let part = format!("\"id\":{id}");
                let read = stream.until(&part).await;
                let line = read.lines().find(|line| line.contains(&part)).unwrap();
                serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap()
            }
            Self::Lines(host) => host.ask(id, &request(Some(key))).await,
        }
    }
}

/// A host with the gateway as its server over stdio. Clones are one.
#[derive(Clone)]
struct Host(Arc<tokio::sync::Mutex<HostPipes>>, Arc<tokio::sync::Mutex<ChildStdin>>);

struct HostPipes {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Answers to others.
    read: Vec<Value>,
}

impl Host {
    async fn open(url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_taskgate"))
            .args(["wrap", "--url", url])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let pipes = HostPipes { _child: child, lines: BufReader::new(from).lines(), read: Vec::new() };
        let host = Self(Arc::new(tokio::sync::Mutex::new(pipes)), Arc::new(tokio::sync::Mutex::new(to)));
        host.write(&initialize(SESSION, &json!({}))).await;
        host.answer(0).await;
        host.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        host
    }

    async fn write(&self, line: &str) {
        self.1.lock().await.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&self, id: u32, request: &Value) -> Value {
        self.write(&request.to_string()).await;
        self.answer(id).await
    }

    /// Reads for all who wait, one line at a time.
    async fn answer(&self, id: u32) -> Value {
        in_time(async {
            loop {
                let mut pipes = self.0.lock().await;
                if let Some(at) = pipes.read.iter().position(|message| message["id"] == id) {
                    return pipes.read.remove(at);
                }
                let line = pipes.lines.next_line().await.unwrap().expect("it goes on");
                pipes.read.push(serde_json::from_str(&line).unwrap());
            }
        })
        .await
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {answer}"))
}

/// GW-46. A repetition while the call runs waits for it, one after its end has its outcome; other arguments are another call.
#[tokio::test]
async fn a_key_holds_for_every_kind_of_client_before_servers_of_both_eras() {
    for version in [SESSION, STATELESS] {
        let counting = Counting::start(version).await;
        let gate = TestGateway::before(&counting.server).await;
        for (number, (kind, [mut one, mut two])) in Caller::all(&gate, &counting.server).await.into_iter().enumerate() {
            let key = format!("key-{number}");
            let release = async {
                counting.server.world.nth(number, SeenRequest::is_call).await;
                counting.may_answer.add_permits(1);
            };
            let calls = join(one.call(11, &key, 1), two.call(12, &key, 1));
            let ((first, second), ()) = join(calls, release).await;
            assert_eq!(text(&first), format!("run {number}"), "{kind} before {version}");
            assert_eq!(text(&second), text(&first), "{kind} before {version}");
            assert_eq!(text(&one.call(13, &key, 1).await), text(&first), "{kind} before {version}");
            let other = two.call(14, &key, 2).await;
            assert_eq!(other["error"]["code"], -32602, "{kind} before {version}: {other}");
            assert_eq!(other["error"]["data"]["reason"], "idempotency_mismatch", "{kind} before {version}");
            assert_eq!(counting.runs(), number + 1, "{kind} before {version}");
        }
    }
}

/// GW-46: a principal's key means one call, for all its clients, in any form of the key.
#[tokio::test]
async fn a_key_is_one_for_all_clients_of_a_principal() {
    for version in [SESSION, STATELESS] {
        let counting = Counting::start(version).await;
        counting.may_answer.add_permits(9);
        let gate = TestGateway::before(&counting.server).await;
        for (kind, [mut one, _]) in Caller::all(&gate, &counting.server).await {
            if kind != "stdio" {
                assert_eq!(text(&one.call(11, "shared", 1).await), "run 0", "{kind} before {version}");
            }
        }
        let session = Person::meet(&gate, SESSION).await;
        let mut as_task = params(Some("shared"), 1);
        as_task["task"] = json!({});
        let handle = session.ask("tools/call", as_task).await;
        assert_eq!(handle["result"]["task"]["status"], "completed", "{handle}");
        assert_eq!(counting.runs(), 1, "before {version}");
    }
}

/// GW-46, at an endpoint of two servers.
#[tokio::test]
async fn a_key_holds_at_an_endpoint() {
    let servers = [Counting::start(SESSION).await, Counting::start(STATELESS).await];
    let mut served = "[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"a\", \"b\"]\n".to_owned();
    for (name, counting) in ["a", "b"].iter().zip(&servers) {
        counting.may_answer.add_permits(9);
        served.push_str(&format!("[upstreams.{name}]\nurl = \"http://{}/mcp\"\n", counting.server.address));
    }
    let gate = TestGateway::serving(&served).await;
    for (client, _) in PAIRS {
        let person = Person::meet(&gate, client).await;
        for (name, _) in ["a", "b"].iter().zip(&servers) {
            let call = json!({"name": format!("{name}__plain"), "arguments": {"n": 1}});
            let key = [("idempotency-key", *name)];
            for _ in 0..2 {
                let answer = person.ask_with("tools/call", call.clone(), &key).await;
                assert_eq!(text(&answer), "run 0", "{client} at {name}");
            }
        }
    }
    assert_eq!(servers.map(|counting| counting.runs()), [1, 1]);
}

/// GW-46: neither a connection that is cut nor a cancel ends the call: a client's SDK says so when its own patience is over.
#[tokio::test]
async fn a_client_that_leaves_or_cancels_ends_nothing_under_a_key() {
    let counting = Counting::start(SESSION).await;
    let gate = TestGateway::before(&counting.server).await;
    let (one, two) = (Person::meet(&gate, SESSION).await, Person::meet(&gate, SESSION).await);
    let cancel = async {
        counting.server.world.first(SeenRequest::is_call).await;
        let text = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
        one.client.post(text.to_string()).await
    };
    let key = [("idempotency-key", "k")];
    let asking = AssertUnwindSafe(one.ask_with("tools/call", params(None, 1), &key)).catch_unwind();
    let (first, reply) = join(asking, cancel).await;
    assert_eq!((first.is_err(), reply.status.as_u16()), (true, 202), "a call that was cancelled has no answer");
    let again = two.ask_with("tools/call", params(None, 1), &key);
    let release = async { counting.may_answer.add_permits(1) };
    let (answer, ()) = join(again, release).await;
    assert_eq!(text(&answer), "run 0");
    assert_eq!((counting.runs(), counting.server.world.count("notifications/cancelled")), (1, 0));
}

/// GW-46: a header cannot name the key of each message.
#[tokio::test]
async fn a_header_for_an_array_is_refused() {
    let counting = Counting::start(SESSION).await;
    let gate = TestGateway::before(&counting.server).await;
    let person = Person::with(&gate, ARRAYS, &[("idempotency-key", "k")]).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params(None, 1)});
    let refused = person.ask_all(&json!([call])).await.remove(0);
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains(META), "{refused}");
    assert_eq!(counting.runs(), 0);
}

/// How the gateway ended a call: its message, its reason, and whether the call ran.
fn end_of(answer: &Value) -> [&str; 3] {
    let (error, data) = (&answer["error"], &answer["error"]["data"]);
    [&error["message"], &data["reason"], &data["executed"]]
        .map(|word| word.as_str().unwrap_or_else(|| panic!("{answer}")))
}

/// GW-46, GW-38, T-08: the first client, one that waits with it, and one that comes later.
#[tokio::test]
async fn a_call_under_a_key_whose_task_is_cancelled_says_so_to_every_kind_of_client() {
    let cancelled = ["The task was cancelled", "cancelled", "unknown"];
    for version in [SESSION, STATELESS] {
        let counting = Counting::start(version).await;
        let gate = TestGateway::before(&counting.server).await;
        let canceller = Person::meet(&gate, SESSION).await;
        let callers = Caller::all(&gate, &counting.server).await.into_iter().filter(|(kind, _)| *kind != "stdio");
        for (number, (kind, [mut one, mut two])) in callers.enumerate() {
            let key = format!("key-{number}");
            let cancel = async {
                counting.server.world.nth(number, SeenRequest::is_call).await;
                let mut as_task = params(Some(&key), 1);
                as_task["task"] = json!({});
                let task = canceller.ask("tools/call", as_task).await["result"]["task"]["taskId"].take();
                canceller.ask("tasks/cancel", json!({"taskId": task})).await
            };
            let calls = join(one.call(11, &key, 1), two.call(12, &key, 1));
            let ((first, second), ended) = join(calls, cancel).await;
            assert_eq!(ended["result"]["status"], "cancelled", "{kind} before {version}: {ended}");
            let later = one.call(13, &key, 1).await;
            for answer in [&first, &second, &later] {
                assert_eq!(end_of(answer), cancelled, "{kind} before {version}");
                assert_eq!(answer["error"]["code"], -32603, "{kind} before {version}");
            }
            assert_eq!(counting.runs(), number + 1, "{kind} before {version}");
        }
    }
}

/// GW-46, GW-38: also where nothing of the task is kept.
#[tokio::test]
async fn a_call_under_a_key_that_outlives_its_ttl_may_have_run_for_every_kind_of_client() {
    let expired = ["The task's time to live ended before its call did", "ttl_expired", "unknown"];
    for version in [SESSION, STATELESS] {
        let counting = Counting::start(version).await;
        // The calls of all kinds of clients are made at once, and each has to reach the server before its time to live is over.
        let keys = "[upstreams.up.tasks]\nttl = \"10s\"\nkeep_result_min = \"0s\"\n";
        let gate = TestGateway::with(counting.server.address, keys).await;
        let callers = Caller::all(&gate, &counting.server).await.into_iter().filter(|(kind, _)| *kind != "stdio");
        let calls = callers.enumerate().map(async |(number, (kind, [mut one, mut two]))| {
            let key = format!("key-{number}");
            let (first, second) = join(one.call(11, &key, 1), two.call(12, &key, 1)).await;
            for answer in [&first, &second] {
                assert_eq!(end_of(answer), expired, "{kind} before {version}");
            }
        });
        let all = join_all(calls).await.len();
        assert_eq!(counting.runs(), all, "before {version}: each once");
    }
}
