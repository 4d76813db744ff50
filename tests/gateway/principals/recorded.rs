//! The audit of clients' reads and answers: each denial once, each answer to a question, and no outcome without a record.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use taskgate::config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::gate::{ADA, Ask, EVE, Gate, act};
use super::upstream::{ScriptedServer, answer, in_time};

/// A gateway with an endpoint and an audit file.
struct Audited {
    gate: Gate,
    folder: TempDir,
}

fn auth(rules: &str) -> String {
    format!("mode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n{rules}")
}

fn audit_at(path: &Path, more: &str) -> String {
    format!("[audit]\npath = \"{}\"\n{more}\n", path.display())
}

fn events(text: &str) -> Vec<Value> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

impl Audited {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = ScriptedServer::slow(async |seen, world| Some(act(&seen, &world).await));
        let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\"]\n";
        let audit = audit_at(&folder.path().join("audit.jsonl"), "");
        let gate = Gate::behind(server.await, "", &auth(""), &format!("{endpoint}{audit}")).await;
        Self { gate, folder }
    }

    fn events(&self, what: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap_or_default();
        events(&text).into_iter().filter(|event| event["what"] == what).collect()
    }

    /// Waits for this many events of a kind.
    async fn until(&self, what: &str, count: usize) -> Vec<Value> {
        in_time(async {
            loop {
                let found = self.events(what);
                if found.len() >= count {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }
}

#[tokio::test]
async fn sec_58_a_denial_at_an_endpoint_has_one_line_and_a_cancel_none() {
    let mut at = Audited::start().await;
    let id = at.gate.task(ADA, "held").await;
    let rules = auth("[[auth.rules]]\ntools = [\"quick\"]\nallow = true\n");
    let text = format!("[auth]\n{rules}[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n");
    let access = config::parse("test.toml", &text, &|_| None).unwrap().config.access;
    at.gate.reload_with(|config| config.access = access).unwrap();
    let ask = |method: &str| Ask::new(ADA, method, json!({ "taskId": id })).at("/all/mcp");
    assert_eq!(at.gate.send(&ask("tasks/get")).await.summary(), "200 -32602");
    assert_eq!(at.gate.send(&ask("tasks/cancel")).await.summary(), "200 ok");
    at.until("task.cancelled", 1).await;
    // A later event shows that no further line is on its way.
    assert_eq!(at.gate.send(&Ask::new(EVE, "ping", json!({}))).await.status(), "401");
    at.until("login.refused", 1).await;
    let denied = at.events("rule.denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!((&denied[0]["who"], &denied[0]["tool"]), (&json!("key:ada"), &json!("held")));
}

#[tokio::test]
async fn sec_58_a_denied_prompt_at_an_endpoint_has_one_line() {
    let mut at = Audited::start().await;
    let rules = auth("[[auth.rules]]\ntools = [\"quick\"]\nallow = true\n");
    let text = format!("[auth]\n{rules}[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n");
    let access = config::parse("test.toml", &text, &|_| None).unwrap().config.access;
    at.gate.reload_with(|config| config.access = access).unwrap();
    let ask = Ask::new(ADA, "prompts/get", json!({ "name": "up__read_a" })).at("/all/mcp");
    assert_eq!(at.gate.send(&ask).await.summary(), "200 -32602");
    // A later event shows that no further line is on its way.
    assert_eq!(at.gate.send(&Ask::new(EVE, "ping", json!({}))).await.status(), "401");
    at.until("login.refused", 1).await;
    let denied = at.events("rule.denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!((&denied[0]["who"], &denied[0]["item"]), (&json!("key:ada"), &json!("read_a")));
}

#[tokio::test]
async fn sec_58_a_response_that_answers_no_question_is_named_so() {
    let at = Audited::start().await;
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "raw", "version": "1" },
    });
    let opened = at.gate.send(&Ask::session(ADA, None, "initialize", &params)).await;
    let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
    let respond = async |id: u32| {
        let result = json!({ "action": "accept", "content": {} });
        let mut answer = Ask::session(ADA, Some(&session), "", &json!({}));
        answer.body = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        assert_eq!(at.gate.send(&answer).await.status(), "202", "{id}");
    };
    respond(99).await;
    at.until("call.answered", 1).await;
    let call = Ask::session(ADA, Some(&session), "tools/call", &json!({ "name": "ask", "arguments": {} }));
    let (mut text, mut stream) = at.gate.open(&call).await;
    read_until(&mut stream, &mut text, "elicitation/create").await;
    respond(1).await;
    at.until("call.answered", 2).await;
    respond(1).await;
    let answered = at.until("call.answered", 3).await;
    let outcomes: Vec<_> = answered.iter().map(|event| &event["outcome"]).collect();
    assert_eq!(outcomes, [&json!("unasked"), &Value::Null, &json!("unasked")]);
}

async fn read_until(stream: &mut TcpStream, text: &mut String, part: &str) {
    while !text.contains(part) {
        let mut piece = vec![0; 4096];
        let read = in_time(stream.read(&mut piece)).await.unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
}

/// Reads a pipe until it is dropped; then nothing does.
struct PipeReader {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl PipeReader {
    fn start(path: &Path, text: &Arc<Mutex<Vec<u8>>>) -> Self {
        const WITHOUT_WAITING: i32 = 0o4000;
        let stop = Arc::new(AtomicBool::new(false));
        let mut pipe: File = OpenOptions::new().read(true).custom_flags(WITHOUT_WAITING).open(path).unwrap();
        let (is_over, text) = (Arc::clone(&stop), Arc::clone(text));
        let thread = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while !is_over.load(Ordering::SeqCst) {
                match pipe.read(&mut part) {
                    Ok(bytes @ 1..) => text.lock().extend_from_slice(&part[..bytes]),
                    // Without a writer, or without news.
                    Ok(0) | Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[tokio::test]
async fn sec_57_where_reads_must_be_recorded_lists_and_notifications_have_no_error_of_a_tool() {
    for is_required in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit.jsonl");
        let ended = Arc::new(Semaphore::new(0));
        let end = Arc::clone(&ended);
        let server = ScriptedServer::slow(move |seen, world| {
            let end = Arc::clone(&end);
            async move {
                if !seen.is_call() {
                    return Some(act(&seen, &world).await);
                }
                end.acquire().await.unwrap().forget();
                let text = json!({ "type": "text", "text": "canary" });
                Some(answer(&seen, &json!({ "isError": true, "content": [text] })))
            }
        });
        let settings = audit_at(&file, &format!("required = {is_required}"));
        let gate = Gate::behind(server.await, "", &auth(""), &settings).await;
        let session = gate.session(ADA).await;
        let ask = |method: &str, params: &Value| {
            Ask::session(ADA, Some(&session), method, params).with("MCP-Protocol-Version", "2025-11-25")
        };
        let get = ask("x", &json!({})).without("content-type");
        let mut stream = TcpStream::connect(gate.gateway.address()).await.unwrap();
        stream.write_all(&Ask { verb: "GET", body: String::new(), ..get }.bytes()).await.unwrap();
        gate.server.world.first(|seen| seen.method == "GET").await;
        let mut heard = String::new();
        // The task tells of its end once, on a stream that is open.
        read_until(&mut stream, &mut heard, "\r\n\r\n").await;
        let made = gate.send(&ask("tools/call", &json!({ "name": "task", "arguments": {}, "task": {} }))).await.json();
        let id = json!({ "taskId": made["result"]["task"]["taskId"] });
        ended.add_permits(1);
        read_until(&mut stream, &mut heard, "\"failed\"").await;
        assert_eq!(heard.contains("canary"), !is_required, "{heard}");
        let listed = gate.send(&ask("tasks/list", &json!({}))).await.json()["result"]["tasks"][0].clone();
        assert_eq!((&listed["status"], listed.get("statusMessage").is_some()), (&json!("failed"), !is_required));
        let read = gate.send(&ask("tasks/get", &id)).await.json();
        assert_eq!(read["result"]["statusMessage"], "canary", "{read}");
    }
}

/// The audit is a pipe: while nothing reads it, no record is written.
#[tokio::test(flavor = "multi_thread")]
async fn sec_57_an_outcome_is_not_sent_to_a_listener_while_its_read_cannot_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let pipe: PathBuf = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = Arc::new(Mutex::new(Vec::new()));
    let reader = PipeReader::start(&pipe, &text);
    let ended = Arc::new(Semaphore::new(0));
    let end = Arc::clone(&ended);
    let server = ScriptedServer::slow(move |seen, world| {
        let end = Arc::clone(&end);
        async move {
            if seen.is_call() {
                end.acquire().await.unwrap().forget();
            }
            Some(act(&seen, &world).await)
        }
    });
    let gate = Gate::behind(server.await, "", &auth(""), &audit_at(&pipe, "required = true")).await;
    let id = gate.task(ADA, "task").await;
    let listen = Ask::new(ADA, "subscriptions/listen", json!({ "notifications": { "taskIds": [id] } }));
    let (mut heard, mut stream) = gate.open(&listen).await;
    read_until(&mut stream, &mut heard, "\"working\"").await;
    drop(reader);
    // A record that cannot be written.
    assert_eq!(gate.send(&Ask::new(EVE, "ping", json!({}))).await.status(), "401");
    let poll = Ask::new(ADA, "tasks/get", json!({ "taskId": id }));
    in_time(async {
        while gate.send(&poll).await.status() != "503" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    ended.add_permits(1);
    assert_eq!(gate.send(&listen).await.summary(), "503 -32603 audit_unavailable");
    let reads = |text: &Mutex<Vec<u8>>| {
        let text = String::from_utf8(text.lock().clone()).unwrap();
        events(&text).into_iter().filter(|event| event["what"] == "task.read").collect::<Vec<_>>()
    };
    assert!(reads(&text).is_empty() && !heard.contains("\"completed\""));
    let _reader = PipeReader::start(&pipe, &text);
    read_until(&mut stream, &mut heard, "\"completed\"").await;
    let read = in_time(async {
        loop {
            let found = reads(&text);
            if !found.is_empty() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let read = read.await;
    assert_eq!((read.len(), &read[0]["who"], &read[0]["tool"]), (1, &json!("key:ada"), &json!("task")));
}
