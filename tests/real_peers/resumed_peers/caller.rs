//! Clients of both kinds of tasks, which outlive the gateway that they talk to.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use support::peers::WAIT_MAX;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::client::{BOTH, Client, HttpOptions, initialize};
use super::talk::{RELATED, SessionMessages, SessionUser};
use super::wire_client::{Flavour, LEGACY, WireClient};

const POLL: Duration = Duration::from_millis(50);

/// The answer to each question.
fn ada(content: &Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Someone who makes tasks and comes back for them.
pub(crate) enum Caller {
    Extension { wire: WireClient, address: SocketAddr },
    Core(SessionUser),
}

/// A question as its client knows it.
pub(crate) struct Question {
    pub(crate) key: Value,
    pub(crate) message: Value,
}

impl Caller {
    /// One of each kind.
    pub(crate) async fn both(address: SocketAddr) -> [Self; 2] {
        let wire = WireClient { path: "/mcp", ..WireClient::new(Flavour::Extension) };
        let over = HttpOptions::default();
        let mut client =
            Client { address, session: None, version: None, accept: BOTH, over, connections: TaskTracker::new() };
        let reply = client.post(initialize(LEGACY, &json!({"elicitation": {}}))).await;
        assert_eq!(reply.status, StatusCode::OK);
        client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
        client.version = Some(LEGACY.to_owned());
        let said = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.post(said.to_string()).await.status, StatusCode::ACCEPTED);
        [Self::Extension { wire, address }, Self::Core(SessionUser { client })]
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Extension { .. } => "extension",
            Self::Core(_) => "core",
        }
    }

    /// The gateway serves somewhere else by now.
    pub(crate) const fn moves(&mut self, to: SocketAddr) {
        match self {
            Self::Extension { address, .. } => *address = to,
            Self::Core(person) => person.client.address = to,
        }
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        match self {
            Self::Extension { wire, address } => wire.ask(*address, method, params).await.json(),
            Self::Core(person) => person.answered(method, &params).await,
        }
    }

    /// Calls a tool; the task's id.
    pub(crate) async fn start(&self, tool: &str, arguments: &Value) -> Value {
        let mut params = json!({"name": tool, "arguments": arguments});
        let place = match self {
            Self::Extension { .. } => "/result/taskId",
            Self::Core(_) => {
                params["task"] = json!({});
                "/result/task/taskId"
            }
        };
        let answer = self.ask("tools/call", params).await;
        answer.pointer(place).unwrap_or_else(|| panic!("{} {tool}: {answer}", self.name())).clone()
    }

    pub(crate) async fn task(&self, id: &Value) -> Value {
        self.ask("tasks/get", json!({"taskId": id})).await["result"].take()
    }

    /// Polls until the task has this status; nothing else may come instead.
    async fn until(&self, id: &Value, status: &str) -> Value {
        let polled = async {
            loop {
                let task = self.task(id).await;
                let is_open = ["working", "input_required"].iter().any(|open| task["status"] == *open);
                if task["status"] == status || !is_open {
                    return task;
                }
                sleep(POLL).await;
            }
        };
        let name = self.name();
        let task = timeout(WAIT_MAX, polled).await.unwrap_or_else(|_| panic!("{name} {id} never is {status}"));
        assert_eq!(task["status"], status, "{name}: {task}");
        task
    }

    /// Waits for the task's question. A core client has to come for it.
    pub(crate) async fn question(&self, id: &Value) -> Question {
        let task = self.until(id, "input_required").await;
        match self {
            Self::Extension { .. } => {
                let open: Vec<_> = task["inputRequests"].as_object().into_iter().flatten().collect();
                let [(key, question)] = open.as_slice() else { panic!("one question: {task}") };
                Question { key: json!(key), message: question["params"]["message"].clone() }
            }
            Self::Core(person) => {
                let mut stream = SessionMessages::of(person.result(8, id).await);
                let question = stream.next_of("elicitation/create").await;
                assert_eq!(question["params"]["_meta"][RELATED]["taskId"], *id, "{question}");
                Question { key: question["id"].clone(), message: question["params"]["message"].clone() }
            }
        }
    }

    /// Reads again a question that was `seen` in an earlier process, and answers it by its earlier key.
    pub(crate) async fn answer_as_seen(&self, id: &Value, seen: &Question, content: &Value) {
        let now = self.question(id).await;
        assert_eq!(now.message, seen.message, "{}", self.name());
        match self {
            Self::Extension { .. } => assert_eq!(now.key, seen.key),
            // Each stream gives the question an id of its own. All of them are good.
            Self::Core(_) => assert_ne!(now.key, seen.key),
        }
        self.answer(id, &seen.key, content).await;
    }

    pub(crate) async fn answer(&self, id: &Value, key: &Value, content: &Value) {
        match self {
            Self::Extension { .. } => {
                let mut answers = json!({});
                answers[key.as_str().unwrap()] = ada(content);
                let said = self.ask("tasks/update", json!({"taskId": id, "inputResponses": answers})).await;
                assert!(said["result"].is_object(), "{said}");
            }
            Self::Core(person) => person.respond(key, &ada(content)).await,
        }
    }

    /// The text of the result that the task ends with.
    pub(crate) async fn text(&self, id: &Value) -> String {
        let task = self.until(id, "completed").await;
        let result = match self {
            Self::Extension { .. } => task["result"].clone(),
            Self::Core(_) => self.ask("tasks/result", json!({"taskId": id})).await["result"].take(),
        };
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{}: {result}", self.name())).to_owned()
    }
}
