//! An endpoint of several upstreams, changed in the file while a client with a session has a call and a stream there.

use http::StatusCode;
use http_body_util::Full;
use serde_json::{Value, json};
use support::session_client::{BOTH, Client, HttpOptions, Reply};
use tokio_util::task::TaskTracker;

use super::program::{Folder, Program, Worker, block};
use super::upstream::{Once, ScriptedServer, answer, in_time};

const READ: &str = "the configuration was read again";

fn endpoint(upstreams: &[&str]) -> String {
    format!("[[endpoints]]\npath = \"/mcp\"\nupstreams = {upstreams:?}\n")
}

pub(super) fn client(program: &Program) -> Client {
    let (over, connections) = (HttpOptions::default(), TaskTracker::new());
    Client { address: program.clients, session: None, version: None, accept: BOTH, over, connections }
}

fn request(id: u32, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

async fn tools(client: &Client) -> Vec<String> {
    let reply = client.post(request(1, "tools/list", &json!({}))).await;
    assert_eq!(reply.status, StatusCode::OK, "its session is as good as before");
    let list = reply.json().await["result"]["tools"].take();
    list.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Sends a call in the background; returns its outcome.
fn called(client: &Client, tool: &str) -> tokio::task::JoinHandle<String> {
    let (client, call) = (client.clone(), request(7, "tools/call", &json!({"name": tool, "arguments": {}})));
    TaskTracker::new().spawn(async move { client.post(call).await.text().await })
}

/// A 2026-07-28 client that subscribes to changes of tools, once that is acknowledged.
pub(super) async fn listening(client: &Client) -> Reply {
    listening_to(client, &json!({"toolsListChanged": true})).await
}

async fn listening_to(client: &Client, notifications: &Value) -> Reply {
    let params = json!({
        "notifications": notifications,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        },
    });
    let client = Client { session: None, version: Some("2026-07-28".to_owned()), ..client.clone() };
    let request_head = client.request("POST").header("content-type", "application/json");
    let body = Full::from(request(8, "subscriptions/listen", &params));
    let mut reply = client.send(request_head.header("mcp-method", "subscriptions/listen").body(body).unwrap()).await;
    let granted = reply.until("\n\n").await;
    assert!(granted.contains("acknowledged"), "{granted}");
    reply
}

/// Three servers, two of which are at one path, with a client that has used both: a call runs at each.
struct Setup {
    workers: [Worker; 3],
    folder: Folder,
    program: Program,
    client: Client,
    /// The outcomes of the calls.
    calls: [tokio::task::JoinHandle<String>; 2],
    own_stream: Reply,
    listening: Reply,
}

const NAMES: [&str; 3] = ["one", "two", "three"];

impl Setup {
    async fn set() -> Self {
        let (workers, folder) = ([Worker::start().await, Worker::start().await, Worker::start().await], Folder::new());
        for worker in &workers {
            *worker.server.world.initialize_result.lock() = json!({"capabilities": {"tools": {"listChanged": true}}});
        }
        folder.write(&(Self::blocks(&workers, &NAMES) + &endpoint(&NAMES[..2])));
        let program = Program::serve(&folder).await;
        let client = client(&program).opened("2025-11-25").await;
        assert_eq!(tools(&client).await, ["one__work", "two__work"]);
        let calls = [called(&client, "one__work"), called(&client, "two__work")];
        for worker in &workers[..2] {
            worker.calls(1).await;
        }
        let (own_stream, listening) = (client.get(None).await, listening(&client).await);
        Self { workers, folder, program, client, calls, own_stream, listening }
    }

    fn blocks(workers: &[Worker; 3], names: &[&str]) -> String {
        let named = NAMES.iter().zip(workers).filter(|(name, _)| names.contains(name));
        named.map(|(name, worker)| block(name, &worker.server)).collect()
    }

    /// Writes a file in which these upstreams are, and then `rest`; both streams end with it, and both calls in their own time.
    async fn changed(self, names: &[&str], rest: &str) -> ([Worker; 3], Folder, Program, Client) {
        self.folder.write(&(Self::blocks(&self.workers, names) + rest));
        self.program.says(READ, 1).await;
        assert!(self.own_stream.try_text().await.is_some(), "its end is in order");
        let last = self.listening.text().await;
        assert!(last.contains("\"id\":8") && last.contains("\"result\""), "the result of listening: {last}");
        for (worker, call) in self.workers.iter().zip(self.calls) {
            assert!(!call.is_finished(), "the call goes on");
            worker.answer_all();
            let said = in_time(call).await.unwrap();
            assert!(said.contains("done"), "{said}");
        }
        (self.workers, self.folder, self.program, self.client)
    }
}

/// The answer to a client of an endpoint that calls this tool.
async fn verdict(client: &Client, tool: &str) -> String {
    client.post(request(9, "tools/call", &json!({"name": tool, "arguments": {}}))).await.verdict().await
}

#[tokio::test]
async fn an_upstream_that_joins_is_there_for_sessions_that_are_open() {
    let (workers, _folder, _program, client) = Setup::set().await.changed(&NAMES, &endpoint(&NAMES)).await;
    let opened = workers[0].sessions_opened();
    assert_eq!(tools(&client).await, ["one__work", "two__work", "three__work"]);
    assert_eq!(client.get(None).await.status, StatusCode::OK, "and its stream is opened again");
    let call = called(&client, "three__work");
    workers[2].calls(1).await;
    workers[2].answer_all();
    assert!(in_time(call).await.unwrap().contains("done"));
    assert_eq!(workers[0].sessions_opened(), opened, "sessions at the others stay open");
}

#[tokio::test]
async fn an_upstream_that_leaves_an_endpoint_takes_its_tools_along_and_no_call() {
    // It is served at its own path still, or not at all.
    for names in [&NAMES[..], &NAMES[..1]] {
        let setup = Setup::set().await;
        let task = setup.program.task("/two/mcp", "k").await;
        setup.workers[1].calls(2).await;
        let (_workers, _folder, program, client) = setup.changed(names, &endpoint(&NAMES[..1])).await;
        program.until("/mcp", &task, "completed").await;
        assert_eq!(tools(&client).await, ["one__work"], "{names:?}");
        assert_eq!(verdict(&client, "two__work").await, "200 -32602 id 9", "{names:?}");
        assert_eq!(client.get(None).await.status, StatusCode::OK, "{names:?}");
    }
}

#[tokio::test]
async fn a_session_outlives_an_endpoint_that_is_taken_away_and_given_back() {
    let (workers, folder, program, client) = Setup::set().await.changed(&NAMES, "").await;
    let list = request(1, "tools/list", &json!({}));
    assert_eq!(client.post(list).await.status, StatusCode::NOT_FOUND);
    folder.write(&(Setup::blocks(&workers, &NAMES) + &endpoint(&NAMES[1..])));
    program.says(READ, 2).await;
    assert_eq!(tools(&client).await, ["two__work", "three__work"]);
}

#[tokio::test]
async fn an_upstream_that_moved_is_asked_at_its_new_place() {
    let setup = Setup::set().await;
    let moved = Worker::start().await;
    let rest = block("two", &moved.server) + &endpoint(&NAMES[..2]);
    let (workers, _folder, _program, client) = setup.changed(&["one", "three"], &rest).await;
    assert_eq!(tools(&client).await, ["one__work", "two__work"]);
    let call = called(&client, "two__work");
    moved.calls(1).await;
    moved.answer_all();
    assert!(in_time(call).await.unwrap().contains("done"));
    assert_eq!(workers[1].server.world.count("tools/call"), 1, "the one before");
}

#[tokio::test]
async fn streams_of_an_endpoint_that_stays_as_it_is_stay_too() {
    let (events, stream) = Once::events();
    let tools_of = json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]});
    let server = ScriptedServer::start(move |seen| match (seen.method.as_str(), seen.rpc()) {
        ("GET", _) => stream.take(),
        (_, "tools/list") => Some(answer(seen, &tools_of)),
        _ => None,
    })
    .await;
    let (other, folder) = (Worker::start().await, Folder::new());
    folder.write(&(block("one", &server) + &endpoint(&["one"])));
    let program = Program::serve(&folder).await;
    let client = client(&program).opened("2025-11-25").await;
    assert_eq!(tools(&client).await, ["one__work"]);
    let mut own = client.get(None).await;
    server.world.first(|seen| seen.method == "GET").await;
    folder.write(&(block("one", &server) + &block("other", &other.server) + &endpoint(&["one"])));
    program.says(READ, 1).await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
    own.until("notifications/tools/list_changed\"}\n\n").await;
}

/// The client would otherwise ask again and again until the drain is over, and miss the outcome.
#[tokio::test]
async fn f116_a_listener_of_a_task_at_an_endpoint_gets_its_outcome_in_a_drain() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&(block("one", &worker.server) + &endpoint(&["one"])));
    let program = Program::serve(&folder).await;
    let task = program.task("/one/mcp", "k").await;
    worker.calls(1).await;
    let client = client(&program).opened("2025-11-25").await;
    let (own_stream, listening) = (client.get(None).await, listening_to(&client, &json!({"taskIds": [task]})).await);
    program.signal("INT");
    assert!(in_time(own_stream.try_text()).await.is_some(), "its end is in order");
    // The outcome and the end of the drain come at once.
    worker.answer_all();
    let last = in_time(listening.text()).await;
    assert!(last.contains("\"completed\"") && last.contains("\"id\":8"), "{last}");
}
