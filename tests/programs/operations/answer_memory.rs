//! B190: however many large answers a client asks for and does not read, resident memory stays below [`CONSTANT`] and the budget of
//! `answer_bytes_max`, for clients over HTTP and servers over each transport. The answers are held meanwhile, and reach a client that begins
//! to read. A few rows run with all tests, which have each face, transport, reader and store; `make memory` runs the whole matrix.

mod servers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::program::{Call, Folder, Program, block, send};
use super::upstream::{ScriptedServer, answer, in_time, json_text};
use servers::{Over, reply, server};

/// The memory of the process without answers: its connections and caches.
const CONSTANT: usize = 150 << 20;
/// `answer_bytes_max`, as it is where the configuration says nothing.
const BUDGET: usize = 128 << 20;
/// The text of each answer.
const BIG: usize = 8 << 20;
/// The least that a client has read of an answer that reached it.
const READ_MIN: usize = BIG / 2;
/// `stored_bytes_max` of a store in memory: more than the tasks of any row.
const STORED: usize = 256 << 20;
/// Requests of one client: all their answers are far more than the bound.
const REQUESTS: usize = 60;
/// How long a client goes on without reading, once it has asked for all.
const UNREAD_FOR: Duration = Duration::from_secs(2);
/// How long it may take at most until memory does not grow any more, or until a client has read an answer.
const SETTLED_MAX: Duration = Duration::from_secs(120);

const CUT_OFF: &str = "taskgate_http_refused_total{reason=\"write_stall\"}";

/// The clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// `tasks/get` of one task with a large result.
    Poll,
    /// `tasks/result` of the same in a session.
    Result,
    /// `resources/read` that the gateway makes itself.
    Read,
    /// `resources/read` in a session that is forwarded.
    PipedRead,
    /// `tools/call` in a session of a client without tasks.
    PipedCall,
    /// `tools/call` that the gateway makes itself, with a result that it edits twice: its type, and its large `_meta`.
    EditedCall,
    /// The call of that task again, under its key, by a client without tasks.
    Repetition,
    /// `tools/list` at an endpoint of two servers.
    List,
    /// `tools/list` in a session that is forwarded, with a list that the gateway edits.
    SessionList,
    /// `tools/list` in a session at a server without sessions.
    BridgedList,
    /// `resources/read` in a session at that endpoint.
    EndpointRead,
    /// `resources/read` in arrays at an endpoint.
    EndpointArray,
    /// The same at the server's own path.
    Array,
    /// A held call of which each element has a large answer.
    Split,
}

/// How the client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Over HTTP/1, nothing.
    Unread,
    /// Over HTTP/1, half a kilobyte a second.
    Dripped,
    /// One connection of HTTP/2 whose streams have no window.
    NoWindow,
}

/// Where the gateway keeps its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Disk,
    Memory,
}

impl Store {
    fn folder(self) -> Folder {
        if self == Self::Disk { Folder::on_disk() } else { Folder::new() }
    }

    fn limits(self) -> String {
        if self == Self::Disk {
            String::new()
        } else {
            format!("[limits]\nstored_bytes_max = \"{}MiB\"\n", STORED >> 20)
        }
    }

    /// The most memory that the process may take.
    const fn bound(self) -> usize {
        match self {
            Self::Disk => CONSTANT + BUDGET,
            Self::Memory => CONSTANT + BUDGET + STORED,
        }
    }
}

struct Bench {
    program: Program,
    _servers: [Option<ScriptedServer>; 2],
    _folder: Folder,
    connections: TaskTracker,
    clients: Clients,
}

/// State that the clients of one bench share.
#[derive(Clone, Default)]
struct Clients {
    /// Has them begin to read.
    reads: CancellationToken,
    /// Bytes that they have read together.
    read: Arc<AtomicUsize>,
}

impl Clients {
    fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Runs the program as its unit and images do: its allocator keeps freed memory for a moment, not for a second.
async fn start(folder: &Folder) -> Program {
    let mut command = folder.command();
    command.env("MIMALLOC_PURGE_DELAY", "10");
    Program::launch(command).await
}

impl Bench {
    async fn start(asked: Asked, over: Over, store: Store) -> Self {
        let folder = store.folder();
        let [(one, one_keys), (two, two_keys)] =
            [server(asked, over, &folder).await, server(asked, over, &folder).await];
        let how = if asked == Asked::Split { "split = { argument = \"items\" }" } else { "mode = \"always\"" };
        let upstream = |(keys, name): (&String, &str)| {
            format!("[upstreams.{name}]\n{keys}[[upstreams.{name}.tools]]\nmatch = \"work\"\n{how}\n")
        };
        let upstreams: String = [&one_keys, &two_keys].into_iter().zip(["up", "other"]).map(upstream).collect();
        let limits = store.limits();
        folder.write(&format!(
            "{upstreams}{limits}[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"other\"]\n"
        ));
        let program = start(&folder).await;
        let (connections, clients) = (TaskTracker::new(), Clients::default());
        Self { program, _servers: [one, two], _folder: folder, connections, clients }
    }

    fn address(&self) -> SocketAddr {
        self.program.clients
    }

    /// The most memory that the program has had.
    fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.program.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// The id of a task that has ended with a large result.
    async fn task(&self) -> Value {
        let made = self.program.task("/up/mcp", "one").await;
        in_time(async {
            while self.program.status("/up/mcp", &made).await != "completed" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        made
    }

    /// A session at `path`, and the headers of its requests.
    async fn session(&self, path: &str, version: &str) -> Vec<(&'static str, String)> {
        let capabilities = json!({});
        let params = json!({"protocolVersion": version, "capabilities": capabilities,
                            "clientInfo": {"name": "reader", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
        let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        let opened = send(self.address(), "POST", path, &headers, &body).await;
        let id = opened
            .head
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "))
            .unwrap_or_else(|| panic!("{opened:?}"));
        vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json".to_owned()),
            ("mcp-session-id", id.to_owned()),
            ("mcp-protocol-version", version.to_owned()),
        ]
    }

    /// The requests of a row: where they go, and each in turn.
    async fn requests(&self, asked: Asked) -> (&'static str, Vec<Call>) {
        let rpc = |id: usize, method: &str, params: &Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let read = json!({"uri": "a:b"});
        let in_session = |headers: &[(&'static str, String)], body: String| Call { headers: headers.to_vec(), body };
        match asked {
            Asked::Poll => {
                let task = self.task().await;
                ("/up/mcp", (0..REQUESTS).map(|_| Call::new("tasks/get", &json!({"taskId": task}))).collect())
            }
            Asked::Result => {
                let task = self.task().await;
                let headers = self.session("/up/mcp", "2025-11-25").await;
                let ask = |id| in_session(&headers, rpc(id, "tasks/result", &json!({"taskId": task})).to_string());
                ("/up/mcp", (0..REQUESTS).map(ask).collect())
            }
            Asked::Repetition => {
                self.task().await;
                let call = || {
                    let mut call = Call::plain(&json!({"secret": "one"}));
                    call.headers.push(("idempotency-key", "one".to_owned()));
                    call
                };
                ("/up/mcp", (0..REQUESTS).map(|_| call()).collect())
            }
            Asked::Read => {
                let mut call = Call::new("resources/read", &read);
                call.headers.push(("mcp-name", "a:b".to_owned()));
                let call = || Call { headers: call.headers.clone(), body: call.body.clone() };
                ("/up/mcp", (0..REQUESTS).map(|_| call()).collect())
            }
            Asked::EditedCall => ("/up/mcp", (0..REQUESTS).map(|_| Call::plain(&json!({}))).collect()),
            Asked::List => ("/all/mcp", (0..REQUESTS).map(|_| Call::new("tools/list", &json!({}))).collect()),
            Asked::Split => {
                // Together no larger than a result may be.
                let arguments = json!({"items": ["a", "b", "c"]});
                ("/up/mcp", (0..REQUESTS / 3).map(|_| Call::plain(&arguments)).collect())
            }
            Asked::SessionList | Asked::BridgedList => {
                let headers = self.session("/up/mcp", "2025-11-25").await;
                let ask = |id| in_session(&headers, rpc(id, "tools/list", &json!({})).to_string());
                ("/up/mcp", (0..REQUESTS).map(ask).collect())
            }
            Asked::PipedRead | Asked::PipedCall | Asked::EndpointRead => {
                let path = if asked == Asked::EndpointRead { "/all/mcp" } else { "/up/mcp" };
                let mut headers = self.session(path, "2025-06-18").await;
                if asked == Asked::EndpointRead {
                    headers[1].1 = "application/json, text/event-stream".to_owned();
                }
                let call = ("tools/call", json!({"name": "work", "arguments": {}}));
                let (method, params) = if asked == Asked::PipedCall { call } else { ("resources/read", read) };
                let ask = |id| in_session(&headers, rpc(id, method, &params).to_string());
                (path, (0..REQUESTS).map(ask).collect())
            }
            Asked::Array | Asked::EndpointArray => {
                let path = if asked == Asked::Array { "/up/mcp" } else { "/all/mcp" };
                let headers = self.session(path, "2025-03-26").await;
                let items: Vec<_> = (0..REQUESTS).map(|id| rpc(id, "resources/read", &read)).collect();
                (path, vec![in_session(&headers, Value::from(items).to_string())])
            }
        }
    }

    /// Waits until answers have held `held_min` bytes and memory has not grown for a while, or until a busy machine has had time for it.
    /// Returns the most bytes that they held at one moment: a list takes fewer when it is complete than while it is being put together.
    async fn settle(&self, held_min: usize) -> usize {
        let mut last = (self.peak(), tokio::time::Instant::now());
        let mut held_max = self.held().await;
        let settling = async {
            while last.1.elapsed() < UNREAD_FOR || held_max < held_min {
                tokio::time::sleep(Duration::from_millis(100)).await;
                held_max = held_max.max(self.held().await);
                let peak = self.peak();
                if peak > last.0 {
                    last = (peak, tokio::time::Instant::now());
                }
                assert!(peak < 1 << 30, "memory goes on growing");
            }
        };
        // Whether they hold as much is asserted later.
        let _ = tokio::time::timeout(SETTLED_MAX, settling).await;
        held_max
    }

    /// The bytes that answers hold.
    async fn held(&self) -> usize {
        usize::try_from(self.program.counted("taskgate_answer_bytes").await).unwrap()
    }

    /// A client of HTTP+SSE with a session that asks for a large answer, and reads nothing from then on.
    async fn unread_stream(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address()).await.unwrap();
        let get = "GET /up/sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
        stream.write_all(get.as_bytes()).await.unwrap();
        let heard = read_until(&mut stream, "/up/sse?").await;
        let address = &heard[heard.find("/up/sse?").unwrap()..];
        let address = address.split(['\r', '\n']).next().unwrap().to_owned();
        let info =
            json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}});
        let say = async |message: Value| {
            let headers = [("content-type", "application/json")];
            let taken = send(self.address(), "POST", &address, &headers, &message.to_string()).await;
            assert_eq!(taken.status, 202, "{taken:?}");
        };
        say(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info})).await;
        read_until(&mut stream, "serverInfo").await;
        say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        say(json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a:b"}})).await;
        stream
    }

    /// Sends all requests; how many bytes of its answer each client has read in the end.
    async fn send(&self, reader: Reader, path: &'static str, calls: Vec<Call>) -> JoinSet<usize> {
        if reader == Reader::NoWindow {
            return self.send_without_window(path, calls).await;
        }
        let mut clients = JoinSet::new();
        for call in calls {
            let mut socket = TcpStream::connect(self.address()).await.unwrap();
            socket.write_all(&call.bytes(path)).await.unwrap();
            let all = self.clients.clone();
            clients.spawn(async move {
                let mut some = vec![0; 512];
                while all.reads.run_until_cancelled(tokio::time::sleep(Duration::from_secs(1))).await.is_some() {
                    if reader == Reader::Dripped && !matches!(socket.read(&mut some).await, Ok(1..)) {
                        return 0;
                    }
                }
                read_on(&mut socket, &all).await
            });
        }
        clients
    }

    async fn send_without_window(&self, path: &'static str, calls: Vec<Call>) -> JoinSet<usize> {
        let socket = TcpStream::connect(self.address()).await.unwrap();
        let (mut client, mut connection) =
            h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
        let reads = self.clients.reads.clone();
        self.connections.spawn(async move {
            if reads.run_until_cancelled(&mut connection).await.is_none() {
                connection.set_initial_window_size(1 << 20).unwrap();
                let _ = connection.await;
            }
        });
        let mut clients = JoinSet::new();
        for call in calls {
            client = in_time(client.ready()).await.unwrap();
            let mut request = http::Request::post(format!("http://localhost{path}"));
            for (name, value) in &call.headers {
                request = request.header(*name, value);
            }
            let (answered, mut stream) = client.send_request(request.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from(call.body), true).unwrap();
            let all = self.clients.clone();
            clients.spawn(async move {
                let answer = answered.await;
                all.reads.cancelled().await;
                match answer {
                    Ok(answer) => read_stream(answer.into_body(), &all).await,
                    Err(_) => 0,
                }
            });
        }
        clients
    }

    /// Returns the most that a client has read, once one has read an answer or all have ended, or once neither the read bytes nor the
    /// memory of answers change any more: the gateway may still put the first list together. Streams of one connection share its window.
    async fn most_read(&self, clients: &mut JoinSet<usize>) -> usize {
        let (mut most, mut before) = (0, None);
        while most < READ_MIN {
            match tokio::time::timeout(SETTLED_MAX, clients.join_next()).await {
                Ok(Some(read)) => most = most.max(read.unwrap()),
                Ok(None) => break,
                Err(_) => {
                    let now = (self.clients.read.load(Ordering::Relaxed), self.held().await);
                    if before.replace(now) == Some(now) {
                        break;
                    }
                }
            }
        }
        most
    }
}

/// Reads a stream until it has this text.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut heard, mut piece) = (String::new(), vec![0; 4096]);
    in_time(async {
        while !heard.contains(text) || !heard.ends_with('\n') {
            let read = stream.read(&mut piece).await.unwrap();
            assert!(read > 0, "it ended: {heard}");
            heard.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    })
    .await;
    heard
}

/// Reads until a large text was there, or the end; how many bytes came.
async fn read_on(socket: &mut TcpStream, all: &Clients) -> usize {
    let (mut read, mut piece) = (0, vec![0; 64 << 10]);
    while read < READ_MIN
        && let Ok(more @ 1..) = socket.read(&mut piece).await
    {
        all.read(more);
        read += more;
    }
    read
}

async fn read_stream(mut body: RecvStream, all: &Clients) -> usize {
    let mut read = 0;
    while read < READ_MIN
        && let Some(Ok(piece)) = body.data().await
    {
        all.read(piece.len());
        body.flow_control().release_capacity(piece.len()).unwrap();
        read += piece.len();
    }
    read
}

/// The least that unread answers of a row hold: polls share one text, one answer of an array is built at a time, and
/// answers that are forwarded piece by piece are not counted.
const fn held_min(asked: Asked, over: Over) -> usize {
    match (asked, over) {
        (Asked::PipedRead | Asked::PipedCall, Over::Json | Over::Events) | (Asked::EndpointRead, Over::Json) => 0,
        (Asked::Poll | Asked::Result | Asked::Repetition | Asked::EndpointArray | Asked::Array, _) => BIG,
        _ => 4 * BIG,
    }
}

#[allow(clippy::print_stdout, reason = "the figure is what the matrix is run for")]
async fn failures_of(asked: Asked, reader: Reader, over: Over, store: Store) -> Vec<String> {
    let bench = Bench::start(asked, over, store).await;
    let (path, calls) = bench.requests(asked).await;
    let again = Call { headers: calls[0].headers.clone(), body: calls[0].body.clone() };
    let before = bench.peak();
    let mut clients = bench.send(reader, path, calls).await;
    let held = bench.settle(held_min(asked, over)).await;
    let peak = bench.peak();
    bench.clients.reads.cancel();
    let mut read = bench.most_read(&mut clients).await;
    if read < READ_MIN && bench.program.counted(CUT_OFF).await > 0 {
        // On a busy machine it all took longer than an answer may be left unread (B28). A client that reads gets one now.
        let mut reader = bench.send(Reader::Unread, path, vec![again]).await;
        read = bench.most_read(&mut reader).await;
    }
    // Of an array, one answer at a time is complete, and the others wait for no bytes that it does not give back.
    let is_array = matches!(asked, Asked::Array | Asked::EndpointArray);
    let refused = if is_array { bench.program.counted("taskgate_answers_refused_total").await } else { 0 };
    let mib = |bytes: usize| bytes >> 20;
    println!(
        "{asked:?} {reader:?} {over:?} {store:?}: {} MiB, {} MiB before, {} MiB held, {} MiB read",
        mib(peak),
        mib(before),
        mib(held),
        mib(read)
    );
    let failures = [
        (peak > store.bound(), format!("{} MiB", mib(peak))),
        (held < held_min(asked, over), format!("answers hold {} MiB", mib(held))),
        (read < READ_MIN, format!("no client read a whole answer, and none more than {read} bytes")),
        (refused > 0, format!("{refused} answers were refused")),
    ];
    let failures = failures.into_iter().filter(|(is_failure, _)| *is_failure);
    failures.map(|(_, what)| format!("{asked:?} {reader:?} {over:?} {store:?}: {what}")).collect()
}

macro_rules! rows {
    ($($name:ident: $asked:ident, $reader:ident, $over:ident, $store:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let failures = failures_of(Asked::$asked, Reader::$reader, Over::$over, Store::$store).await;
                assert!(failures.is_empty(), "{failures:?}");
            }
        )*
    };
}

rows! {
    b190_polls_of_a_large_result_share_its_bytes_however_many_are_not_read: Poll, Unread, Json, Disk;
    bridged_reads_that_drip_hold_no_more_than_the_budget: Read, Dripped, Events, Disk;
    lists_of_two_servers_hold_no_more_than_the_budget: List, Unread, Json, Disk;
    lists_in_a_session_hold_no_more_than_the_budget: SessionList, Unread, Json, Disk;
    lists_across_the_eras_hold_no_more_than_the_budget: BridgedList, Unread, Json, Disk;
    arrays_at_an_endpoint_hold_no_more_than_the_budget: EndpointArray, Unread, Json, Disk;
    split_calls_hold_no_more_than_the_budget: Split, Unread, Json, Disk;
    edited_results_of_calls_hold_no_more_than_the_budget: EditedCall, Unread, Json, Disk;
    calls_of_a_program_hold_no_more_than_the_budget: PipedCall, Unread, Stdio, Disk;
    passed_on_reads_over_sse_hold_no_more_than_the_budget: PipedRead, NoWindow, Sse, Disk;
    results_of_a_large_task_in_memory_share_its_bytes_in_a_session: Result, NoWindow, Json, Memory;
}

/// Asserts how much memory a program took, and that it was for answers.
#[allow(clippy::print_stdout, reason = "the figure is what the matrix is run for")]
async fn assert_bounded(bench: &Bench, what: &str, held: usize) {
    let peak = bench.peak();
    println!("{what}: {} MiB, {} MiB held", peak >> 20, held >> 20);
    assert!(peak <= CONSTANT + BUDGET, "{what}: {} MiB", peak >> 20);
    assert!(held >= 4 * BIG, "{what}: answers hold {} MiB", held >> 20);
}

/// The buffers of many streams together stay within the budget.
#[tokio::test]
async fn clients_of_http_sse_that_do_not_read_hold_no_more_than_the_budget() {
    let bench = Bench::start(Asked::PipedRead, Over::Json, Store::Disk).await;
    let mut streams = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        streams.push(bench.unread_stream().await);
    }
    let held = bench.settle(4 * BIG).await;
    assert_bounded(&bench, "streams of HTTP+SSE", held).await;
}

/// The gateway keeps the beginning of a large error alone: a copy of it would hold no bytes of the budget.
#[tokio::test]
async fn large_errors_of_calls_hold_no_more_than_the_budget() {
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => {
            let (id, words) = (&seen.body["id"], "x".repeat(BIG));
            let error = format!("{{\"code\":-32077,\"message\":\"{words}\"}}");
            Some(json_text(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")))
        }
        _ => None,
    })
    .await;
    let folder = Folder::on_disk();
    folder.write(&block("up", &server));
    let program = start(&folder).await;
    let (connections, clients) = (TaskTracker::new(), Clients::default());
    let bench = Bench { program, _servers: [None, None], _folder: folder, connections, clients };
    let error = Call::plain(&json!({})).send(bench.address(), "/up/mcp").await.json()["error"].clone();
    let words = error["message"].as_str().unwrap();
    assert!(error["code"] == -32077 && words.starts_with("xxx") && words.len() < 64 << 10, "{}", words.len());
    // Their errors would be larger than the bound.
    let calls = (0..REQUESTS * 2 / 3).map(|_| Call::plain(&json!({}))).collect();
    let _clients = bench.send(Reader::Unread, "/up/mcp", calls).await;
    bench.settle(0).await;
    let peak = bench.peak();
    assert!(peak <= CONSTANT + BUDGET, "{} MiB", peak >> 20);
}

/// Answers to polls of the gateway's own, each large: the server's task names many subtasks, and each is followed.
#[tokio::test]
#[ignore = "takes long: `make memory` runs it"]
async fn polls_of_a_servers_subtasks_hold_no_more_than_the_budget() {
    let children: Vec<_> = (0..100).map(|n| format!("child-{n}")).collect();
    let task = |id: &str| {
        let at = "2026-01-01T00:00:00.000Z";
        json!({"taskId": id, "status": "working", "createdAt": at, "lastUpdatedAt": at, "ttl": null, "pollInterval": 100})
    };
    let server = ScriptedServer::start(move |seen| match (seen.rpc(), seen.body["params"]["taskId"].as_str()) {
        ("tools/list", _) => {
            let tool = json!({"name": "work", "inputSchema": {}, "execution": {"taskSupport": "optional"}});
            Some(answer(seen, &json!({"tools": [tool]})))
        }
        ("tools/call", _) => {
            let mut top = task("top");
            top["childTaskIds"] = json!(children);
            Some(answer(seen, &json!({"task": top})))
        }
        ("tasks/get", Some(child)) if child != "top" => {
            let mut before = task(child).to_string();
            before.pop();
            before.push_str(",\"pad\":");
            Some(reply(seen, (&before, "}"), "application/json"))
        }
        ("tasks/get", Some(top)) => Some(answer(seen, &task(top))),
        _ => None,
    })
    .await;
    let tasks = json!({"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}});
    *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "tasks": tasks}});
    let folder = Folder::on_disk();
    folder.write(&format!("{}[upstreams.up.tasks]\ndrafts = [\"sep-2268\"]\n", block("up", &server)));
    let program = start(&folder).await;
    let (connections, clients) = (TaskTracker::new(), Clients::default());
    let bench = Bench { program, _servers: [None, None], _folder: folder, connections, clients };
    let headers = bench.session("/up/mcp", "2025-11-25").await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "work", "arguments": {}, "task": {}}});
    let made = Call { headers, body: call.to_string() }.send(bench.address(), "/up/mcp").await;
    assert!(made.body.contains("taskId"), "{made:?}");
    server.world.nth(REQUESTS, |seen| seen.rpc() == "tasks/get").await;
    bench.settle(0).await;
    let peak = bench.peak();
    assert!(peak <= CONSTANT + BUDGET, "{} MiB", peak >> 20);
}

/// No client reads these: their memory until they are stored is bounded all the same, and each is stored.
#[allow(clippy::print_stdout, reason = "the figure is what the matrix is run for")]
async fn assert_tasks_bounded(what: &str, store: Store, asked: Asked, rule: &str, calls: usize) {
    let folder = store.folder();
    let (server, keys) = server(asked, Over::Json, &folder).await;
    folder.write(&format!(
        "[upstreams.up]\n{keys}[[upstreams.up.tools]]\nmatch = \"work\"\nmode = \"always\"\n{rule}{}",
        store.limits()
    ));
    let program = start(&folder).await;
    let (connections, clients) = (TaskTracker::new(), Clients::default());
    let bench = Bench { program, _servers: [server, None], _folder: folder, connections, clients };
    let call = Call::new("tools/call", &json!({"name": "work", "arguments": {"items": ["a", "b", "c"]}}));
    let mut made = Vec::with_capacity(calls);
    for _ in 0..calls {
        let handle = call.send(bench.address(), "/up/mcp").await.json();
        assert!(handle["result"]["taskId"].is_string(), "{handle}");
        made.push(handle["result"]["taskId"].clone());
    }
    for task in &made {
        let ended = async {
            loop {
                let state = Call::new("tasks/get", &json!({"taskId": task})).send(bench.address(), "/up/mcp").await;
                if state.json()["result"]["status"] != "working" {
                    return state;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let ended = tokio::time::timeout(SETTLED_MAX, ended).await.expect("it ends");
        assert_eq!(ended.json()["result"]["status"], "completed", "{}", ended.head);
    }
    let peak = bench.peak();
    println!("{what}: {} MiB", peak >> 20);
    assert!(peak <= store.bound(), "{} MiB", peak >> 20);
}

#[tokio::test]
#[ignore = "takes long: `make memory` runs it"]
async fn tasks_that_end_together_hold_no_more_than_the_budget() {
    assert_tasks_bounded("tasks", Store::Disk, Asked::Poll, "", REQUESTS / 2).await;
}

#[tokio::test]
#[ignore = "takes long: `make memory` runs it"]
async fn tasks_in_memory_that_end_together_hold_no_more_than_the_budget() {
    assert_tasks_bounded("tasks in memory", Store::Memory, Asked::Poll, "", REQUESTS / 2).await;
}

#[tokio::test]
async fn split_calls_as_tasks_hold_no_more_than_the_budget() {
    let rule = "split = { argument = \"items\" }\n";
    assert_tasks_bounded("split calls", Store::Disk, Asked::Split, rule, 4).await;
}

#[tokio::test]
#[ignore = "takes minutes: `make memory` runs it"]
async fn every_kind_of_answer_over_every_way_holds_no_more_than_the_budget() {
    use Asked::{
        Array, EditedCall, EndpointArray, EndpointRead, List, PipedCall, PipedRead, Poll, Read, Repetition, Result,
        SessionList, Split,
    };
    let all = [
        Poll,
        Result,
        Repetition,
        Read,
        PipedRead,
        PipedCall,
        EditedCall,
        List,
        SessionList,
        EndpointRead,
        EndpointArray,
        Array,
        Split,
    ];
    let mut failures = Vec::new();
    for over in [Over::Json, Over::Events, Over::Stdio, Over::Sse] {
        for reader in [Reader::Unread, Reader::Dripped, Reader::NoWindow] {
            for asked in all {
                for store in [Store::Disk, Store::Memory] {
                    failures.extend(failures_of(asked, reader, over, store).await);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
