//! B190: however many large answers a client asks for and does not read, resident memory stays below [`CONSTANT`] and the budget of
//! `answer_bytes_max`, for clients and servers over HTTP (stdio and HTTP+SSE have no rows yet). Ten rows run with all tests; `make memory` runs the whole matrix.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::program::{Call, Folder, Program, send};
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, in_time};

/// What the process has without answers, its connections and caches.
const CONSTANT: usize = 150 << 20;
/// `answer_bytes_max`, as it is where the configuration says nothing.
const BUDGET: usize = 128 << 20;
/// The text of each answer.
const BIG: usize = 8 << 20;
/// Requests of one client: all their answers are far more than the bound.
const REQUESTS: usize = 60;
/// How long a client goes on without reading, once it has asked for all.
const UNREAD_FOR: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// `tasks/get` of one task with a large result.
    Poll,
    /// `tasks/result` of the same in a session.
    Result,
    /// `resources/read` that the gateway makes itself.
    Read,
    /// `resources/read` in a session that is passed on.
    PipedRead,
    /// `tools/list` at an endpoint of two servers.
    List,
    /// `resources/read` in arrays at an endpoint.
    EndpointArray,
    /// The same at the server's own path.
    Array,
    /// A call whose list is made one by one, each with a large answer.
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

fn big() -> &'static str {
    static BIG_TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    BIG_TEXT.get_or_init(|| "x".repeat(BIG))
}

fn reply(seen: &SeenRequest, before: &str, after: &str, media: &str) -> ScriptedReply {
    let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{before}\"", seen.body["id"]);
    let text = format!("{head}{}\"{after}}}", big());
    let text = if media == "text/event-stream" { format!("event: message\ndata: {text}\n\n") } else { text };
    let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut reply = http::Response::new(body);
    reply.headers_mut().insert("content-type", media.parse().unwrap());
    reply
}

/// A server with sessions whose every answer is large, its list of tools where that is asked for.
async fn server(asked: Asked, media: &'static str) -> ScriptedServer {
    let server = ScriptedServer::start(move |seen| match seen.rpc() {
        "tools/list" if asked == Asked::List => {
            let before = "{\"tools\":[{\"name\":\"work\",\"inputSchema\":{\"type\":\"object\"},\"description\":";
            Some(reply(seen, before, "}]}", media))
        }
        "tools/list" => {
            let items = json!({"type": "array", "items": {"type": "string"}});
            let schema = json!({"type": "object", "properties": {"items": items}});
            Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": schema}]})))
        }
        "tools/call" => Some(reply(seen, "{\"content\":[{\"type\":\"text\",\"text\":", "}]}", media)),
        "resources/read" => Some(reply(seen, "{\"contents\":[{\"uri\":\"a:b\",\"text\":", "}]}", media)),
        _ => None,
    })
    .await;
    *server.world.introduction.lock() = json!({"capabilities": {"tools": {}, "resources": {}}});
    server
}

struct Bench {
    program: Program,
    _servers: [ScriptedServer; 2],
    _folder: Folder,
    connections: TaskTracker,
}

impl Bench {
    async fn start(asked: Asked, media: &'static str, folder: Folder) -> Self {
        let servers = [server(asked, media).await, server(asked, media).await];
        let how = if asked == Asked::Split { "split = { argument = \"items\" }" } else { "mode = \"always\"" };
        let upstream = |(server, name): (&ScriptedServer, &str)| {
            let url = format!("http://{}/mcp", server.address);
            format!("[upstreams.{name}]\nurl = \"{url}\"\n[[upstreams.{name}.tools]]\nmatch = \"work\"\n{how}\n")
        };
        let upstreams: String = servers.iter().zip(["up", "other"]).map(upstream).collect();
        folder.write(&format!("{upstreams}[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"other\"]\n"));
        let program = Program::serve(&folder).await;
        Self { program, _servers: servers, _folder: folder, connections: TaskTracker::new() }
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

    /// A session at `path`, and what its requests bear.
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
            Asked::Read => {
                let mut call = Call::new("resources/read", &read);
                call.headers.push(("mcp-name", "a:b".to_owned()));
                let call = || Call { headers: call.headers.clone(), body: call.body.clone() };
                ("/up/mcp", (0..REQUESTS).map(|_| call()).collect())
            }
            Asked::List => ("/all/mcp", (0..REQUESTS).map(|_| Call::new("tools/list", &json!({}))).collect()),
            Asked::Split => {
                let arguments = json!({"items": (0..REQUESTS).map(|n| n.to_string()).collect::<Vec<_>>()});
                let call = json!({"name": "work", "arguments": arguments});
                ("/up/mcp", (0..4).map(|_| Call::new("tools/call", &call)).collect())
            }
            Asked::PipedRead => {
                let headers = self.session("/up/mcp", "2025-06-18").await;
                let ask = |id| in_session(&headers, rpc(id, "resources/read", &read).to_string());
                ("/up/mcp", (0..REQUESTS).map(ask).collect())
            }
            Asked::Array | Asked::EndpointArray => {
                let path = if asked == Asked::Array { "/up/mcp" } else { "/all/mcp" };
                let headers = self.session(path, "2025-03-26").await;
                let items: Vec<_> = (0..REQUESTS).map(|id| rpc(id, "resources/read", &read)).collect();
                (path, vec![in_session(&headers, Value::from(items).to_string())])
            }
        }
    }

    async fn send(&self, reader: Reader, path: &'static str, calls: Vec<Call>) {
        if reader == Reader::NoWindow {
            return self.send_without_window(path, calls).await;
        }
        for call in calls {
            let mut socket = TcpStream::connect(self.address()).await.unwrap();
            socket.write_all(&call.bytes(path)).await.unwrap();
            self.connections.spawn(async move {
                let mut some = vec![0; 512];
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    if reader == Reader::Dripped && !matches!(socket.read(&mut some).await, Ok(1..)) {
                        return;
                    }
                }
            });
        }
    }

    async fn send_without_window(&self, path: &'static str, calls: Vec<Call>) {
        let socket = TcpStream::connect(self.address()).await.unwrap();
        let (mut client, connection) =
            h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(socket).await.unwrap();
        self.connections.spawn(async move { drop(connection.await) });
        for call in calls {
            client = in_time(client.ready()).await.unwrap();
            let mut request = http::Request::post(format!("http://localhost{path}"));
            for (name, value) in &call.headers {
                request = request.header(*name, value);
            }
            let (answered, mut stream) = client.send_request(request.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from(call.body), true).unwrap();
            self.connections.spawn(async move {
                let _answer = answered.await;
                std::future::pending::<()>().await;
            });
        }
    }
}

#[allow(clippy::print_stdout, reason = "the figure is what the matrix is run for")]
async fn check(asked: Asked, reader: Reader, media: &'static str) {
    let bench = Bench::start(asked, media, Folder::on_disk()).await;
    let (path, calls) = bench.requests(asked).await;
    let before = bench.peak();
    bench.send(reader, path, calls).await;
    let mut last = (bench.peak(), tokio::time::Instant::now());
    // Until memory has not grown for a while.
    in_time(async {
        while last.1.elapsed() < UNREAD_FOR {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let peak = bench.peak();
            if peak > last.0 {
                last = (peak, tokio::time::Instant::now());
            }
            assert!(peak < 1 << 30, "{asked:?} {reader:?}: memory goes on growing");
        }
    })
    .await;
    println!("{asked:?} {reader:?} {media}: {} MiB, {} MiB before", last.0 >> 20, before >> 20);
    assert!(last.0 <= CONSTANT + BUDGET, "{asked:?} {reader:?}: {} MiB", last.0 >> 20);
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

macro_rules! rows {
    ($($name:ident: $asked:ident, $reader:ident, $media:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(Asked::$asked, Reader::$reader, $media).await;
            }
        )*
    };
}

rows! {
    b190_polls_of_a_large_result_share_its_bytes_however_many_are_not_read: Poll, Unread, JSON;
    polls_of_a_large_result_share_its_bytes_in_streams_without_window: Poll, NoWindow, JSON;
    results_of_a_large_task_share_its_bytes_in_a_session: Result, Unread, JSON;
    bridged_reads_that_nobody_reads_hold_no_more_than_the_budget: Read, Unread, JSON;
    bridged_reads_that_drip_hold_no_more_than_the_budget: Read, Dripped, EVENTS;
    bridged_reads_in_streams_without_window_hold_no_more_than_the_budget: Read, NoWindow, EVENTS;
    lists_of_two_servers_hold_no_more_than_the_budget: List, Unread, JSON;
    arrays_at_an_endpoint_hold_no_more_than_the_budget: EndpointArray, Unread, JSON;
    arrays_at_a_servers_own_path_hold_no_more_than_the_budget: Array, Unread, JSON;
    passed_on_reads_hold_no_more_than_the_budget: PipedRead, Unread, JSON;
}

#[tokio::test]
#[ignore = "takes minutes: `make memory` runs it"]
async fn every_kind_of_answer_over_every_way_holds_no_more_than_the_budget() {
    use Asked::{Array, EndpointArray, List, PipedRead, Poll, Read, Result, Split};
    for media in [JSON, EVENTS] {
        for reader in [Reader::Unread, Reader::Dripped, Reader::NoWindow] {
            for asked in [Poll, Result, Read, PipedRead, List, EndpointArray, Array, Split] {
                check(asked, reader, media).await;
            }
        }
    }
}
