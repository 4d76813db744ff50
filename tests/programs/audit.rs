//! The audit file: its lines, and its chain after crashes and failures of the disk.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod sinks;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set};
use support::scripted::{ScriptedServer, answer, in_time};
use taskgate::task::reference::principal_reference;
use taskgate::task::{Clock as _, Principal, SystemClock};
use tempfile::TempDir;

use crate::operations::program::{Answer, Call, Folder, Program, Worker, block, send};

const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
const EVE: &str = "tg_eve1_ffeeddccbbaa00998877665544332211";
/// A text that must be in no file.
const CANARY: &str = "canary-5e1f0c";
/// The number of calls that are counted, unless `AUDIT_CALLS` is set. Every twentieth becomes a task.
const CALLS: usize = 2_000;
const CALLS_FOR_A_TASK: usize = 20;
const AT_ONCE: usize = 16;

/// An audit file in a folder, with the keys of `[audit]` for it.
struct Audit {
    dir: TempDir,
    keys: String,
}

impl Audit {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = format!("[audit]\npath = \"{}\"\n{more}\n", dir.path().join("audit.jsonl").display());
        Self { dir, keys }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit.jsonl")
    }

    /// The whole lines so far.
    fn lines(&self) -> Vec<Value> {
        lines(&self.path())
    }

    /// Waits for a matching line.
    async fn until(&self, is_meant: impl Fn(&Value) -> bool) -> Value {
        in_time(async {
            loop {
                if let Some(line) = self.lines().into_iter().find(&is_meant) {
                    return line;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    fn count(&self, what: &str) -> usize {
        self.lines().iter().filter(|line| line["what"] == what).count()
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

fn verify(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taskgate")).args(["audit", "verify"]).args(arguments).output().unwrap()
}

#[track_caller]
fn is_one_chain(files: &[&Path]) {
    let output = verify(files);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

fn echo() -> impl Future<Output = ScriptedServer> {
    echo_after(|| ())
}

/// A server with the tools `work` and `task`. `call` runs at each call.
fn echo_after(call: impl Fn() + Send + Sync + 'static) -> impl Future<Output = ScriptedServer> {
    let tools = ["work", "task"].map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
    let tools = json!({"tools": tools});
    ScriptedServer::start(move |seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &tools)),
        "tools/call" => {
            call();
            Some(answer(seen, &json!({"content": [{"type": "text", "text": CANARY}]})))
        }
        _ => None,
    })
}

/// Makes `count` calls, several at once; returns the number of results.
async fn load(program: &Program, count: usize) -> usize {
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = async || {
        while begun.fetch_add(1, Ordering::Relaxed) < count {
            let answered = Call::plain(&json!({"secret": CANARY})).send(program.clients, "/up/mcp").await;
            done.fetch_add(usize::from(answered.body.contains("\"result\"")), Ordering::Relaxed);
        }
    };
    join_all((0..AT_ONCE).map(|_| one())).await;
    done.into_inner()
}

async fn as_key(program: &Program, key: &str, mut call: Call) -> Answer {
    call.headers.push(("authorization", format!("Bearer {key}")));
    call.send(program.clients, "/up/mcp").await
}

fn asking() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}})
}

/// A client and an operator that do each kind of act once.
struct Doers<'a> {
    audit: &'a Audit,
    worker: &'a Worker,
    program: &'a Program,
}

impl Doers<'_> {
    async fn ask(&self, method: &str, params: Value) -> Value {
        as_key(self.program, ADA, Call::declaring(method, &params, &asking())).await.json()["result"].take()
    }

    /// A refused login, a denied call, a call without a task.
    async fn call(&self) {
        let Self { worker, program, .. } = *self;
        assert_eq!(Call::plain(&json!({})).send(program.clients, "/up/mcp").await.status, 401);
        assert!(as_key(program, EVE, Call::plain(&json!({}))).await.body.contains("error"));
        let plain = as_key(program, ADA, Call::plain(&json!({"secret": CANARY})));
        let answering = async {
            worker.calls(1).await;
            worker.answer_all();
        };
        assert!(tokio::join!(plain, answering).0.body.contains("done"));
    }

    /// Three tasks: the client cancels one, an operator another, and the third ends.
    async fn tasks(&self) -> Vec<String> {
        let Self { audit, worker, program } = *self;
        let mut ids = Vec::new();
        for n in 0..3 {
            let params = json!({"name": "work", "arguments": {"secret": CANARY}});
            let mut call = Call::declaring("tools/call", &params, &asking());
            call.headers.push(("idempotency-key", format!("k{n}")));
            let made = as_key(program, ADA, call).await.json();
            ids.push(made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned());
        }
        worker.calls(4).await;
        self.ask("tasks/cancel", json!({"taskId": ids[1]})).await;
        let cancelled = audit.until(|line| line["what"] == "task.cancelled").await["task"].clone();
        let listed = program.get("/tasks").await.json()["tasks"].take();
        let working = listed.as_array().unwrap().iter().find(|task| task["state"] == "working").unwrap();
        assert_ne!(cancelled, working["ref"]);
        let target = format!("/tasks/{}/cancel", working["ref"].as_str().unwrap());
        let media = [("content-type", "application/json")];
        assert_eq!(send(program.admin, "POST", &target, &media, "{}").await.status, 200);
        self.end_the_last(&ids).await;
        ids
    }

    /// Answers the question of the last task, and reads its outcome.
    async fn end_the_last(&self, ids: &[String]) {
        let Self { audit, worker, .. } = *self;
        worker.ask_all(&json!({"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}));
        let open = in_time(async {
            loop {
                for id in ids {
                    let shown = self.ask("tasks/get", json!({"taskId": id})).await;
                    if let Some(open) = shown["inputRequests"].as_object() {
                        return (id.clone(), open.keys().next().unwrap().clone());
                    }
                }
            }
        });
        let (left, key) = open.await;
        let responses = json!({ key: {"action": "accept", "content": {}} });
        self.ask("tasks/update", json!({"taskId": left, "inputResponses": responses})).await;
        worker.answer_all();
        audit.until(|line| line["what"] == "task.settled" && line["outcome"] == "returned").await;
        let reads = audit.count("task.read");
        assert_eq!(self.ask("tasks/get", json!({"taskId": left})).await["status"], "completed");
        audit.until(|_| audit.count("task.read") == reads + 1).await;
    }
}

/// SEC-32: each act of a client or an operator has one line, with its principal.
#[tokio::test]
async fn sec_32_each_kind_of_event_is_recorded_once_with_its_principal() {
    let audit = Audit::new("arguments_sha256 = true");
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.api_keys]]\nid = \"eve\"\n\
         key = \"{EVE}\"\ntools = [\"other\"]\n{}",
        audit.keys
    );
    let (worker, folder) = (Worker::start().await, Folder::with(&keys));
    folder.write(&block("up", &worker.server));
    let mut program = Program::serve(&folder).await;
    let doers = Doers { audit: &audit, worker: &worker, program: &program };
    doers.call().await;
    let ids = doers.tasks().await;
    program.signal("HUP");
    audit.until(|line| line["what"] == "reload" && line["outcome"] == "applied").await;
    folder.write("[upstreams.up]\nurl = 7\n");
    audit.until(|line| line["what"] == "reload" && line["outcome"] == "rejected").await;
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);
    assert_eq!(events(&audit), expected_events());
    check_secrets(&audit, &ids);
}

type EventTable = BTreeMap<[String; 5], usize>;

fn events(audit: &Audit) -> EventTable {
    let mut found = EventTable::new();
    // Polls of cancelled tasks are reads.
    for line in audit.lines().iter().filter(|line| line["what"] != "task.read") {
        let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        *found.entry([text("what"), text("who"), text("via"), text("tool"), text("outcome")]).or_default() += 1;
    }
    found
}

fn expected_events() -> EventTable {
    let expected = [
        (["audit.closed", "-", "-", "-", "-"], 1),
        (["audit.opened", "-", "-", "-", "new"], 1),
        (["call.ended", "key:ada", "api_key", "work", "returned"], 1),
        (["login.refused", "-", "-", "-", "unauthorized"], 1),
        (["operator.cancelled", "local", "local", "-", "200"], 1),
        (["reload", "-", "-", "-", "applied"], 1),
        (["reload", "-", "-", "-", "rejected"], 1),
        (["rule.denied", "key:eve", "api_key", "work", "denied"], 1),
        (["task.answered", "key:ada", "api_key", "work", "-"], 1),
        (["task.cancelled", "key:ada", "api_key", "work", "-"], 1),
        (["task.created", "key:ada", "api_key", "work", "-"], 3),
        (["task.settled", "key:ada", "api_key", "work", "cancelled"], 2),
        (["task.settled", "key:ada", "api_key", "work", "returned"], 1),
    ];
    expected.map(|(texts, count)| (texts.map(str::to_owned), count)).into()
}

/// No line has an argument, result, question, key or id; the digest of the arguments is there.
fn check_secrets(audit: &Audit, ids: &[String]) {
    let text = fs::read_to_string(audit.path()).unwrap();
    let secrets = [CANARY, ADA, EVE, "0011223344", "done", "Who?", "accept"];
    for secret in secrets.into_iter().chain(ids.iter().map(String::as_str)) {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let mut hashing = Command::new("sh");
    hashing.args(["-c", "printf '%s' \"$1\" | sha256sum", "-"]).arg(json!({"secret": CANARY}).to_string());
    let digest = String::from_utf8(hashing.output().unwrap().stdout).unwrap();
    let line = |what: &str| audit.lines().into_iter().find(|line| line["what"] == what).unwrap();
    for what in ["call.ended", "task.created"] {
        assert!(digest.starts_with(line(what)["arguments_sha256"].as_str().unwrap()), "{digest}");
    }
    assert_eq!(line("login.refused")["client"], "127.0.0.1");
}

/// The line of a token has its issuer and subject in clear, also where the token lacks a scope.
#[tokio::test]
async fn a_person_is_named_by_issuer_and_subject_also_where_a_scope_is_missing() {
    let (audit, server, key) = (Audit::new(""), echo().await, IssuerKey::es256("k1"));
    let set = audit.dir.path().join("keys.json");
    fs::write(&set, key_set([&key])).unwrap();
    let head = format!(
        "public_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\n\
         issuer = \"https://login.example\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n{}",
        set.display(),
        audit.keys
    );
    let folder = Folder::with(&head);
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    let end = SystemClock.now().as_millis() / 1_000 + 300;
    let claims = |scope: &str| json!({"iss": "https://login.example", "sub": "ada", "aud": "https://mcp.example/up/mcp", "exp": end, "scope": scope});
    assert_eq!(as_key(&program, &key.token(&claims("mcp")), Call::plain(&json!({}))).await.status, 200);
    let refused = key.token(&claims("other"));
    assert_eq!(as_key(&program, &refused, Call::plain(&json!({}))).await.status, 403);
    let ada = Principal::of_subject("https://login.example", "ada");
    for (what, outcome) in [("call.ended", "returned"), ("login.refused", "insufficient_scope")] {
        let line = audit.until(|line| line["what"] == what).await;
        assert_eq!((&line["who"], &line["outcome"]), (&ada.as_str().into(), &outcome.into()), "{line}");
        assert_eq!(line["via"], "https://login.example");
    }
    program.says("insufficient_scope", 1).await;
    assert!(program.log().contains(&principal_reference(&ada)), "the refusal's line names it: {}", program.log());
    assert!(!fs::read_to_string(audit.path()).unwrap().contains(refused.rsplit('.').next().unwrap()));
}

/// A session client's forwarded call. Its tool has a name with terminal codes.
#[tokio::test]
async fn a_forwarded_call_is_recorded_and_its_name_is_escaped() {
    let (audit, server) = (Audit::new(""), ScriptedServer::polite().await);
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    let session = std::cell::RefCell::new(String::new());
    let ask = async |method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let id = session.borrow().clone();
        let mut headers = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        if !id.is_empty() {
            headers.extend([("mcp-session-id", id.as_str()), ("mcp-protocol-version", "2025-11-25")]);
        }
        headers.push(("x-canary", CANARY));
        send(program.clients, "POST", "/up/mcp", &headers, &body).await
    };
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let opened = ask("initialize", hello).await;
    let id = opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    *session.borrow_mut() = id.to_owned();
    let tool = "w\u{202e}\n\u{9b}31m\u{1b}[2J";
    let called = ask("tools/call", json!({"name": tool, "arguments": {"secret": CANARY}})).await;
    assert!(called.body.contains(CANARY), "{called:?}");
    let line = audit.until(|line| line["what"] == "call.ended").await;
    assert_eq!((&line["tool"], &line["who"], &line["outcome"]), (&tool.into(), &"local".into(), &"answered".into()));
    let text = fs::read_to_string(audit.path()).unwrap();
    assert!(text.contains(r"w\u202e\u000a\u009b31m\u001b[2J") && !text.contains(CANARY), "{text}");
}

/// Makes all calls over open connections; returns the numbers of results and of handles.
async fn load_all(program: &Program, calls: usize) -> (usize, usize) {
    let (begun, results, handles) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let one = async || {
        let socket = tokio::net::TcpStream::connect(program.clients).await.unwrap();
        let (mut requests, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(socket)).await.unwrap();
        tokio_util::task::TaskTracker::new().spawn(connection);
        loop {
            let nth = begun.fetch_add(1, Ordering::Relaxed);
            if nth >= calls {
                return;
            }
            let call = match nth % CALLS_FOR_A_TASK {
                0 => Call::new("tools/call", &json!({"name": "task", "arguments": {"secret": CANARY}})),
                _ => Call::plain(&json!({"secret": CANARY})),
            };
            let mut request = http::Request::post("/up/mcp").header("host", "localhost");
            for (name, value) in &call.headers {
                request = request.header(*name, value);
            }
            let request = request.body(http_body_util::Full::new(bytes::Bytes::from(call.body))).unwrap();
            in_time(requests.ready()).await.unwrap();
            let answered = in_time(requests.send_request(request)).await.unwrap();
            let text = in_time(http_body_util::BodyExt::collect(answered.into_body())).await.unwrap().to_bytes();
            let text = String::from_utf8_lossy(&text);
            results.fetch_add(usize::from(text.contains(CANARY)), Ordering::Relaxed);
            handles.fetch_add(usize::from(text.contains("\"taskId\"")), Ordering::Relaxed);
        }
    };
    join_all((0..AT_ONCE).map(|_| one())).await;
    (results.into_inner(), handles.into_inner())
}

/// The file, the metrics and the server have the same number of calls.
#[tokio::test(flavor = "multi_thread")]
async fn the_file_the_metrics_and_the_server_count_the_same_calls() {
    let calls = std::env::var("AUDIT_CALLS").map_or(CALLS, |calls| calls.parse().expect("AUDIT_CALLS is a number"));
    let tasks = calls.div_ceil(CALLS_FOR_A_TASK);
    let (audit, server) = (Audit::new(""), echo().await);
    let folder = Folder::with(&format!("{}[limits]\ntasks_per_principal_max = {calls}\n", audit.keys));
    folder.write(&(block("up", &server) + "[[upstreams.up.tools]]\nmatch = \"task\"\nmode = \"always\"\n"));
    let mut program = Program::serve(&folder).await;
    assert_eq!(load_all(&program, calls).await, (calls - tasks, tasks));
    let settled = "taskgate_tasks_settled_total{upstream=\"up\",outcome=\"returned\"}";
    in_time(async {
        while audit.count("call.ended") < calls - tasks || audit.count("task.settled") < tasks {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(server.world.count("tools/call"), calls);
    let counted = program.counted("taskgate_audit_records_total").await;
    assert_eq!(counted as usize, audit.lines().len());
    assert_eq!(program.counted("taskgate_audit_lost_total").await, 0);
    let sent = "taskgate_upstream_request_seconds_count{upstream=\"up\",class=\"call\"}";
    assert_eq!(program.counted(sent).await as usize, calls);
    assert_eq!(program.counted(settled).await as usize, tasks);
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);
    let counts = ["call.ended", "task.created", "task.settled"].map(|what| audit.count(what));
    assert_eq!(counts, [calls - tasks, tasks, tasks], "each once");
}

/// SEC-34: when the server gets a call, the call's record is in the file.
#[tokio::test(flavor = "multi_thread")]
async fn sec_34_a_required_record_is_written_before_its_call_is_sent() {
    let audit = Audit::new("required = true");
    let (path, seen_calls) = (audit.path(), Arc::new(AtomicUsize::new(0)));
    let calls = Arc::clone(&seen_calls);
    let server = echo_after(move || {
        // Each earlier call was recorded before it was sent.
        let sent = calls.fetch_add(1, Ordering::SeqCst) + 1;
        let begun = lines(&path).iter().filter(|line| line["what"] == "call.begun").count();
        assert!(begun >= sent, "sent without a record");
    })
    .await;
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    assert_eq!(load(&program, 100).await, 100);
    audit.until(|_| audit.count("call.ended") == 100).await;
    assert_eq!((audit.count("call.begun"), seen_calls.load(Ordering::SeqCst)), (100, 100));
    assert_eq!(server.world.count("tools/call"), 100, "none was sent again");
}

#[tokio::test]
async fn plain_calls_are_left_out_where_the_operator_says_so() {
    let (audit, server) = (Audit::new("calls = false"), echo().await);
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let mut program = Program::serve(&folder).await;
    assert_eq!(load(&program, 3).await, 3);
    let id = program.task("/up/mcp", "k").await;
    program.until("/up/mcp", &id, "completed").await;
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    assert_eq!((audit.count("call.ended"), audit.count("task.created"), audit.count("task.settled")), (0, 1, 1));
}

/// SEC-33: the gateway is killed at any line, and also leaves half a line, as after a power cut.
#[tokio::test(flavor = "multi_thread")]
async fn sec_33_a_killed_gateway_leaves_a_chain_that_the_next_one_continues() {
    let (audit, server) = (Audit::new(""), echo().await);
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    for round in 1..=4 {
        let mut program = Program::serve(&folder).await;
        let before = server.world.count("tools/call");
        let killing = async {
            server.world.nth(before + 40 * round, |seen| seen.is_call()).await;
            program.signal("KILL");
        };
        let calls = async {
            let one = async || loop {
                let Ok(mut socket) = tokio::net::TcpStream::connect(program.clients).await else { return };
                let call = Call::plain(&json!({})).bytes("/up/mcp");
                let mut read = Vec::new();
                let written = tokio::io::AsyncWriteExt::write_all(&mut socket, &call).await;
                if written.is_err() || tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut read).await.is_err() {
                    return;
                }
            };
            in_time(join_all((0..AT_ONCE).map(|_| one()))).await;
        };
        tokio::join!(killing, calls);
        program.ended().await;
        let output = verify(&[&audit.path()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(0) || said.contains("is incomplete"), "round {round}: {output:?}");
        if round == 2 {
            let mut text = fs::read(audit.path()).unwrap();
            text.extend_from_slice(b"{\"seq\":9");
            fs::write(audit.path(), text).unwrap();
            let output = verify(&[&audit.path()]);
            assert_eq!(output.status.code(), Some(1));
            assert!(String::from_utf8_lossy(&output.stderr).contains("is incomplete"), "{output:?}");
        }
    }
    let mut program = Program::serve(&folder).await;
    assert_eq!(load(&program, 5).await, 5);
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);
    let opened: Vec<Value> = audit.lines().into_iter().filter(|line| line["what"] == "audit.opened").collect();
    let outcomes: Vec<_> = opened.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["new", "continued", "continued", "continued", "continued"]);
    assert!(opened[2]["cut_bytes"].as_u64().is_some_and(|bytes| bytes >= 8), "{opened:?}");
}

/// A task that recovery settles has a line.
#[tokio::test]
async fn a_task_that_the_next_process_settles_is_recorded() {
    let (audit, worker) = (Audit::new(""), Worker::start().await);
    let folder = Folder::on_disk();
    folder.write(&(block("up", &worker.server) + &audit.keys));
    let mut program = Program::serve(&folder).await;
    program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    let created = audit.until(|line| line["what"] == "task.created").await;
    program.signal("KILL");
    program.ended().await;
    let _program = Program::serve(&folder).await;
    let settled = audit.until(|line| line["what"] == "task.settled").await;
    assert_eq!((&settled["task"], &settled["who"]), (&created["task"], &created["who"]));
    assert_eq!(settled["outcome"], "gateway_restart");
}
