//! A gateway, a client with tasks, and a server with calls that the test answers.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::TaskTracker;

use crate::scripted::in_time;
use crate::scripted::{BodySender, ScriptedServer, SeenRequest};
use crate::session_client::{BOTH, Client, HttpOptions, Reply, TestGateway};

pub const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A call that has arrived at the server, and its stream. Dropped, it ends the stream without an answer.
#[must_use = "dropped, it ends the call without an answer"]
pub struct ArrivedRequest {
    pub seen: SeenRequest,
    pub events: BodySender,
}

impl ArrivedRequest {
    pub fn send(&self, message: &Value) {
        self.events.raw(event(message));
    }

    /// Answers the call and ends its stream.
    pub fn answer(self, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": self.seen.body["id"], "result": result}));
    }

    pub fn log(&self) {
        let params = json!({"level": "info", "data": 1});
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
    }

    pub fn ask(&self, id: &Value, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }
}

pub fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// A gateway in front of a server that answers no call and no GET by itself.
pub struct ManualSetup {
    pub gate: TestGateway,
    pub server: ScriptedServer,
    calls: Mutex<mpsc::Receiver<ArrivedRequest>>,
    gets: Mutex<mpsc::Receiver<ArrivedRequest>>,
}

impl ManualSetup {
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// `keys` stand in the upstream's section.
    pub async fn with(keys: &str) -> Self {
        Self::open("", keys).await
    }

    /// `listen` stands in the section of the listener, `keys` in the upstream's.
    pub async fn open(listen: &str, keys: &str) -> Self {
        let (call, calls) = mpsc::channel(100);
        let (get, gets) = mpsc::channel(100);
        let tools = json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]});
        let server = ScriptedServer::start(move |seen| {
            if seen.rpc() == "tools/list" {
                return Some(crate::scripted::answer(seen, &tools));
            }
            let to = match (seen.is_call(), seen.method == "GET") {
                (true, _) => &call,
                (false, true) => &get,
                (false, false) => return None,
            };
            let (events, reply) = BodySender::open();
            // They are dropped once the test has ended.
            let _ = to.try_send(ArrivedRequest { seen: seen.clone(), events });
            Some(reply)
        })
        .await;
        let gate = TestGateway::open(listen, server.url().as_str(), keys).await;
        Self { gate, server, calls: Mutex::new(calls), gets: Mutex::new(gets) }
    }

    /// A gateway, its client, and the id of a task that the client has started.
    pub async fn started() -> (Self, SessionUser, Value) {
        let stage = Self::new().await;
        let person = stage.person().await;
        let task = person.start().await["taskId"].clone();
        (stage, person, task)
    }

    /// The next call at the server.
    pub async fn call(&self) -> ArrivedRequest {
        in_time(async { self.calls.lock().await.recv().await.unwrap() }).await
    }

    /// The next GET at the server.
    pub async fn get(&self) -> ArrivedRequest {
        in_time(async { self.gets.lock().await.recv().await.unwrap() }).await
    }

    /// A client that can be asked anything.
    pub async fn person(&self) -> SessionUser {
        let capabilities = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}});
        SessionUser::meet(&self.gate, "2025-11-25", &capabilities).await
    }
}

/// A client with a session.
#[derive(Clone)]
pub struct SessionUser {
    pub client: Client,
}

impl SessionUser {
    pub async fn meet(gate: &TestGateway, version: &str, capabilities: &Value) -> Self {
        let mut client = gate.client_without_session();
        let reply = client.post(crate::session_client::initialize(version, capabilities)).await;
        assert_eq!(reply.status, StatusCode::OK);
        let Some(session) = reply.header("mcp-session-id").map(str::to_owned) else {
            panic!("no session: {}", reply.json().await);
        };
        (client.session, client.version) = (Some(session), Some(version.to_owned()));
        Self { client }
    }

    /// A client at an address, in a session if it had one before.
    pub async fn at(address: SocketAddr, (version, capabilities): (&str, &Value), before: Option<&Self>) -> Self {
        let (over, connections) = (HttpOptions::default(), TaskTracker::new());
        let mut client = Client { address, session: None, version: None, accept: BOTH, over, connections };
        client.session = match before {
            Some(before) => before.client.session.clone(),
            None => {
                let reply = client.post(crate::session_client::initialize(version, capabilities)).await;
                Some(reply.header("mcp-session-id").unwrap().to_owned())
            }
        };
        client.version = Some(version.to_owned());
        Self { client }
    }

    /// The subtasks of a task, as soon as there are so many.
    pub async fn children(&self, id: &Value, count: usize) -> Vec<Value> {
        let named = |task: &Value| task["childTaskIds"].as_array().map_or(0, Vec::len);
        let task = self.until_so(id, |task| named(task) >= count).await;
        task["childTaskIds"].as_array().unwrap().clone()
    }

    /// Sends a request; the answer with its head.
    pub async fn request(&self, id: u32, method: &str, params: &Value) -> Reply {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.client.post(body.to_string()).await
    }

    /// The answer to a request that is answered at once.
    pub async fn answered(&self, method: &str, params: &Value) -> Value {
        let reply = self.request(77, method, params).await;
        assert_eq!(reply.status, StatusCode::OK, "{method}: errors of sessions are HTTP 200");
        assert_eq!(reply.header("content-type"), Some("application/json"), "{method}");
        let answer = reply.json().await;
        assert_eq!(answer["id"], 77, "{answer}");
        answer
    }

    /// Calls a tool as a task; the handle.
    pub async fn start(&self) -> Value {
        self.start_with(&json!({"name": "work", "arguments": {}, "task": {}})).await
    }

    pub async fn start_with(&self, params: &Value) -> Value {
        self.answered("tools/call", params).await["result"]["task"].clone()
    }

    pub async fn task(&self, id: &Value) -> Value {
        self.answered("tasks/get", &json!({"taskId": id})).await["result"].clone()
    }

    /// Polls until the task has this status.
    pub async fn until(&self, id: &Value, status: &str) -> Value {
        self.until_so(id, |task| task["status"] == status).await
    }

    /// Polls until the task is so.
    pub async fn until_so(&self, id: &Value, is_so: impl Fn(&Value) -> bool) -> Value {
        let polled = async {
            loop {
                let task = self.task(id).await;
                if is_so(&task) {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        in_time(polled).await
    }

    /// Begins to wait for an outcome; returns at the stream's first message or progress comment.
    pub fn result(&self, id: u32, task: &Value) -> impl Future<Output = Reply> + use<> {
        let (person, params) = (self.clone(), json!({"taskId": task}));
        async move { person.request(id, "tasks/result", &params).await }
    }

    /// Sends a response to a question.
    pub async fn respond(&self, id: &Value, result: &Value) {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result});
        assert_eq!(self.client.post(body.to_string()).await.status, StatusCode::ACCEPTED);
    }

    /// The session's own stream.
    pub async fn listen(&self) -> SessionMessages {
        let reply = self.client.get(None).await;
        assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
        SessionMessages::of(reply)
    }
}

/// An event stream, read message by message.
pub struct SessionMessages {
    reply: Reply,
    read: String,
}

impl SessionMessages {
    pub fn of(reply: Reply) -> Self {
        Self { reply, read: String::new() }
    }

    /// The next message; `None` at the end. Comments are passed over.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
                self.read = rest.to_owned();
                match data {
                    Some(data) => return Some(serde_json::from_str(&data).unwrap()),
                    None => continue,
                }
            }
            let piece = self.reply.piece().await?;
            self.read.push_str(&piece);
        }
    }

    /// Reads until the beginning of an event is there.
    pub async fn begun(&mut self, text: &str) {
        while !self.read.ends_with(text) {
            let piece = self.reply.piece().await.expect("the stream goes on");
            self.read.push_str(&piece);
        }
    }

    /// The next message with this method; others are passed over.
    pub async fn next_of(&mut self, method: &str) -> Value {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if message["method"] == method {
                return message;
            }
        }
    }

    /// All that is left.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(message) = self.next().await {
            rest.push(message);
        }
        rest
    }
}
