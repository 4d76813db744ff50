//! Sessions at a server with a running task of an earlier gateway process: the gateway does not end them (T-31).

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::program::{Answer, Folder, Program, block, send};
use super::upstream::{BodySender, ScriptedServer, ScriptedState, SeenRequest, in_time, status};

/// A server with resumable streams of calls, which end once they may.
async fn resumable(may_end: &Arc<Notify>) -> ScriptedServer {
    let may_end = Arc::clone(may_end);
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let may_end = Arc::clone(&may_end);
        async move {
            let is_taken_up = seen.method == Method::GET && seen.header("last-event-id").is_some();
            if !seen.is_call() && !is_taken_up {
                return (seen.method == Method::GET).then(|| status(405));
            }
            let call = world.all(SeenRequest::is_call).into_iter().next()?;
            let (events, reply) = BodySender::open();
            events.raw("id: e-1\nretry: 100\ndata: \n\n");
            TaskTracker::new().spawn(async move {
                if is_taken_up {
                    may_end.notified().await;
                    events.result(&call, &json!({"content": []}));
                }
                events.left().await;
            });
            Some(reply)
        }
    })
    .await
}

/// A client with a session that knows tasks.
struct Client(String);

impl Client {
    async fn open(program: &Program) -> Self {
        let mut client = Self(String::new());
        let initialize =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let opened = client.ask(program, "initialize", initialize).await;
        let id = opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).map(str::to_owned);
        client.0 = id.unwrap_or_else(|| panic!("no session: {opened:?}"));
        client
    }

    async fn ask(&self, program: &Program, method: &str, params: Value) -> Answer {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(program, "POST", &request.to_string()).await
    }

    async fn send(&self, program: &Program, verb: &str, body: &str) -> Answer {
        let both = "application/json, text/event-stream";
        let mut headers = vec![("content-type", "application/json"), ("accept", both)];
        if !self.0.is_empty() {
            headers.extend([("mcp-session-id", self.0.as_str()), ("mcp-protocol-version", "2025-11-25")]);
        }
        send(program.clients, verb, "/up/mcp", &headers, body).await
    }

    /// Makes a task of whose call's stream the gateway knows where it stands.
    async fn task(&self, program: &Program) -> String {
        let made =
            self.ask(program, "tools/call", json!({"name": "work", "arguments": {}, "task": {"ttl": 600_000}})).await;
        let body: Value =
            serde_json::from_str(made.body.trim_start_matches("data: ").trim()).unwrap_or_else(|_| made.json());
        body["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {made:?}")).to_owned()
    }

    async fn ends(&self, program: &Program) -> u16 {
        self.send(program, "DELETE", "").await.status
    }

    /// The outcome of a task, as any session reads it, once it has left `working`.
    async fn outcome(&self, program: &Program, task: &str) -> Value {
        in_time(async {
            loop {
                let status =
                    self.ask(program, "tasks/get", json!({"taskId": task})).await.json()["result"]["status"].take();
                if status != "working" {
                    return status;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await
    }
}

fn deletes(server: &ScriptedServer) -> usize {
    server.world.all(|seen| seen.method == Method::DELETE).len()
}

/// Its client ends the session before the gateway ends, while the gateway drains, or once the next process has resumed the call.
#[tokio::test]
async fn t_31_a_session_is_left_to_its_server_while_a_task_of_an_earlier_life_may_go_on_in_it() {
    for moment in ["before", "meanwhile", "afterwards"] {
        let may_end = Arc::new(Notify::new());
        let server = resumable(&may_end).await;
        let folder = Folder::on_disk();
        folder.write(&block("up", &server));
        let mut program = Program::serve(&folder).await;
        let client = Client::open(&program).await;
        let task = client.task(&program).await;
        server.world.first(SeenRequest::is_call).await;
        if moment == "before" {
            assert_eq!(client.ends(&program).await, 200);
        }
        // A drain with nothing else to wait for would be over at once.
        let plain = Client::open(&program).await;
        let held = plain.ask(&program, "tools/call", json!({"name": "work", "arguments": {"of": "another"}}));
        let ending = async {
            server.world.nth(1, SeenRequest::is_call).await;
            program.signal("INT");
            program.says("a call is left to a later process", 1).await;
            if moment == "meanwhile" {
                assert_eq!(client.ends(&program).await, 200);
            }
            program.signal("TERM");
        };
        tokio::select! {
            () = ending => (),
            answer = held => panic!("it is held: {answer:?}"),
        }
        assert_eq!(program.ended().await, Some(0), "{moment}: {}", program.log());
        let mut next = Program::serve(&folder).await;
        server.world.first(|seen| seen.method == Method::GET && seen.header("last-event-id").is_some()).await;
        if moment == "afterwards" {
            assert_eq!(client.ends(&next).await, 200);
        }
        assert_eq!(client.ends(&next).await, if moment == "afterwards" { 404 } else { 200 }, "a token says no more");
        may_end.notify_one();
        let other = Client::open(&next).await;
        assert_eq!(other.outcome(&next, &task).await, "completed", "{moment}");
        assert_eq!(deletes(&server), 0, "{moment}");
        // No call of the earlier process runs any more.
        assert_eq!(plain.ends(&next).await, 200);
        assert_eq!(deletes(&server), 1, "{moment}");
        next.signal("INT");
        assert_eq!(next.ended().await, Some(0));
    }
}
