//! No bound holds on one face alone: each bound, met on every face, and the refusal that each gives.

use ::bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::client::{Client, Reply, TestGateway, call, initialize};
use super::peers::STATELESS;
use super::upstream::{BodySender, ScriptedServer, in_time};

const LISTENERS: usize = 64;
const SSE_STREAMS: usize = 256;

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// A request of a client without a session.
async fn alone(gate: &TestGateway, method: &str, mut params: Value) -> Reply {
    let client = Client { version: Some(STATELESS.to_owned()), ..gate.client_without_session() };
    params["_meta"] = meta();
    let request = client.request("POST").header("content-type", "application/json").header("mcp-method", method);
    let request = match params["name"].as_str() {
        Some(name) => request.header("mcp-name", name),
        None => request,
    };
    let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    client.send(request.body(Full::from(text)).unwrap()).await
}

async fn sse(gate: &TestGateway) -> Reply {
    let get = Request::get("/sse").header("host", "localhost").header("accept", "text/event-stream");
    gate.client_without_session().send(get.body(Full::default()).unwrap()).await
}

/// A stream of HTTP+SSE with its session open.
pub(crate) struct Sse {
    gate: Client,
    stream: Reply,
    endpoint: String,
}

impl Sse {
    pub(crate) async fn open(gate: &TestGateway) -> Self {
        let mut stream = sse(gate).await;
        let endpoint = stream.until("\n\n").await.split("data: ").nth(1).unwrap().trim().to_owned();
        let mut sse = Self { gate: gate.client_without_session(), stream, endpoint };
        sse.post(initialize("2025-11-25", &json!({}))).await;
        sse.until("protocolVersion").await;
        sse
    }

    pub(crate) async fn post(&self, text: impl Into<Bytes>) -> Reply {
        let request = Request::post(&self.endpoint).header("host", "localhost");
        let request = request.header("content-type", "application/json");
        self.gate.send(request.body(Full::new(text.into())).unwrap()).await
    }

    pub(crate) async fn until(&mut self, part: &str) -> String {
        let mut read = String::new();
        while !read.contains(part) {
            read.push_str(&self.stream.piece().await.unwrap_or_else(|| panic!("it ends: {read}")));
        }
        read
    }
}

/// A server that keeps calls and streams open, and says nothing.
async fn silent() -> ScriptedServer {
    let open = parking_lot::Mutex::new(Vec::new());
    ScriptedServer::start(move |seen| {
        let is_stream = seen.method == "GET" || seen.is_call();
        if seen.rpc() == "tools/list" {
            let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
            return Some(super::upstream::answer(seen, &tools));
        }
        is_stream.then(|| {
            let (events, reply) = BodySender::open();
            open.lock().push(events);
            reply
        })
    })
    .await
}

fn reason(text: &str) -> String {
    let at = text.find("\"reason\":\"").unwrap_or_else(|| panic!("no reason: {text}")) + 10;
    text[at..].split('"').next().unwrap().to_owned()
}

/// Streams of sessions and of listeners are counted together; those of HTTP+SSE, each of which is a session, separately.
#[tokio::test]
async fn open_streams_of_a_principal_meet_a_bound_on_every_face() {
    let server = silent().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let listen = async || alone(&gate, "subscriptions/listen", json!({"notifications": {}})).await;
    let mut open = Vec::new();
    for n in 0..LISTENERS {
        let reply = if n % 2 == 0 { client.get(None).await } else { listen().await };
        assert_eq!(reply.status, 200, "{n}");
        open.push(reply);
    }
    let refused = client.get(None).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after").is_some()), (429, true));
    let refused = client.get(Some("e-1")).await;
    assert_eq!(refused.status, 429, "taking one up is no way around");
    let refused = listen().await;
    assert_eq!((refused.status.as_u16(), reason(&refused.text().await).as_str()), (429, "too_many_listeners"));
    assert_eq!(server.world.all(|seen| seen.method == "GET").len(), LISTENERS / 2, "the server hears of no more");
    open.pop();
    // Its place is free once the gateway has noticed.
    in_time(async {
        while client.get(None).await.status != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut streams = Vec::new();
    for n in 0..SSE_STREAMS {
        let stream = sse(&gate).await;
        assert_eq!(stream.status, 200, "{n}");
        streams.push(stream);
    }
    let refused = sse(&gate).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after").is_some()), (429, true));
}

#[tokio::test]
async fn calls_in_progress_meet_a_bound_on_every_face() {
    let server = silent().await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0\n").await;
    let client = gate.client().await;
    let _running = client.post(call(1)).await;
    assert_eq!(reason(&client.post(call(3)).await.text().await), "queue_full", "a session");
    let params = json!({"name": "t", "arguments": {}});
    assert_eq!(reason(&alone(&gate, "tools/call", params).await.text().await), "queue_full", "no session");
    let mut stream = Sse::open(&gate).await;
    assert_eq!(stream.post(call(5)).await.status, 202);
    assert_eq!(reason(&stream.until("\"id\":5").await), "queue_full", "HTTP+SSE");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_on_every_face_and_the_next_is_heard() {
    let server = ScriptedServer::start(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let large = |bytes: usize| {
        let arguments = json!({"x": "x".repeat(bytes)});
        json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "t", "arguments": arguments}})
            .to_string()
    };
    let client = gate.client().await;
    assert_eq!(client.post(large(4 << 20)).await.status, 413);
    assert_eq!(client.post(call(1)).await.status, 200);
    let params = json!({"name": "t", "arguments": {"x": "x".repeat(4 << 20)}});
    assert_eq!(alone(&gate, "tools/call", params).await.status, 413);
    let mut stream = Sse::open(&gate).await;
    assert_eq!(stream.post(large(4 << 20)).await.status, 413);
    assert_eq!(stream.post(call(2)).await.status, 202);
    stream.until("\"id\":2").await;
    let mut host = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"))
        .args(["wrap", "--url", &format!("http://{}/mcp", server.address)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut to, from) = (host.stdin.take().unwrap(), host.stdout.take().unwrap());
    let mut lines = BufReader::new(from).lines();
    let ping = r#"{"jsonrpc":"2.0","id":10,"method":"ping"}"#;
    let writing = async { to.write_all(format!("{}\n{ping}\n", large(40 << 20)).as_bytes()).await.unwrap() };
    in_time(writing).await;
    for (id, part) in [(9, "-32600"), (10, "\"result\"")] {
        let line = in_time(lines.next_line()).await.unwrap().unwrap();
        assert!(line.contains(&format!("\"id\":{id}")) && line.contains(part), "{line}");
    }
}
