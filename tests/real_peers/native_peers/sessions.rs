//! Clients with sessions in front of real servers whose tools run as tasks.

use http::StatusCode;
use serde_json::{Value, json};
use support::peers::in_time;

use super::client::{Reply, TestGateway};
use super::install::Peers;
use super::peer::{PeerServer, Program};
use super::talk::{RELATED, SessionMessages, SessionUser};

const ELICIT: &str = "elicitation/create";
const SAMPLE: &str = "sampling/createMessage";

/// A gateway in front of a real server.
async fn before(program: Program, test: &'static str) -> Option<(PeerServer, TestGateway)> {
    let peers = Peers::find("real servers with tasks, in front of clients with sessions")?;
    let server = PeerServer::start(program, &peers, test).await.unwrap();
    let gate = TestGateway::open("", &server.url(), "[upstreams.up.tasks]\npoll_interval = \"100ms\"").await;
    Some((server, gate))
}

async fn meet(gate: &TestGateway, version: &str) -> SessionUser {
    let person = SessionUser::meet(gate, version, &json!({"elicitation": {}, "sampling": {}})).await;
    let said = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(person.client.post(said.to_string()).await.status, StatusCode::ACCEPTED);
    person
}

/// Reads an answer to its end, and answers every question alike; the questions' methods, and the answer.
async fn follow(person: &SessionUser, reply: Reply, answer: &Value) -> (Vec<String>, Value) {
    if reply.header("content-type") == Some("application/json") {
        return (Vec::new(), reply.json().await);
    }
    let (mut stream, mut questions) = (SessionMessages::of(reply), Vec::new());
    loop {
        let message = stream.next().await.expect("the stream goes on");
        assert!(message["params"]["_meta"][RELATED].is_null(), "T-67: {message}");
        if message["id"] == 4 && message.get("method").is_none() {
            return (questions, message);
        }
        if message.get("id").is_some() {
            questions.push(message["method"].as_str().unwrap_or_default().to_owned());
            person.respond(&message["id"], answer).await;
        }
    }
}

/// One plain call of each version; checks its questions, and that its result holds a text.
async fn check(
    program: Program,
    test: &'static str,
    (tool, arguments): (&str, Value),
    answer: Value,
    expected: (&[&str], &str),
) {
    let Some((_server, gate)) = before(program, test).await else { return };
    for version in ["2025-11-25", "2025-06-18"] {
        let person = meet(&gate, version).await;
        let reply = person.request(4, "tools/call", &json!({"name": tool, "arguments": arguments})).await;
        let (questions, message) = follow(&person, reply, &answer).await;
        assert_eq!(questions, expected.0, "{program:?} {version}: {message}");
        let text = message["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.contains(expected.1), "{program:?} {version}: {message}");
        assert!(message["result"]["_meta"][RELATED].is_null(), "T-67: {message}");
    }
}

#[tokio::test]
async fn server_everything_is_called_plainly_where_it_wants_a_task() {
    let call = ("simulate-research-query", json!({"topic": "tea"}));
    check(Program::Everything, "plain-everything", call, json!({}), (&[], "Research Report: tea")).await;
}

#[tokio::test]
async fn upc_07_server_everything_asks_a_plain_client_on_the_calls_stream() {
    let call = ("simulate-research-query", json!({"topic": "python", "ambiguous": true}));
    let snake = json!({"action": "accept", "content": {"interpretation": "snake"}});
    check(Program::Everything, "plain-asks", call, snake, (&[ELICIT], "Research Report: python (snake)")).await;
}

#[tokio::test]
async fn the_typescript_sdks_task_example_is_called_plainly() {
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    let call = ("confirm_delete", json!({"filename": "a.txt"}));
    check(Program::TypeScriptTasks, "plain-confirm", call, yes, (&[ELICIT], "Deleted 'a.txt'")).await;
    let poem = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "old pond"}});
    let call = ("write_haiku", json!({"topic": "frogs"}));
    check(Program::TypeScriptTasks, "plain-haiku", call, poem, (&[SAMPLE], "old pond")).await;
}

#[tokio::test]
async fn fastmcp_is_called_plainly_where_it_wants_a_task() {
    let call = ("only_as_task", json!({"seconds": 1}));
    check(Program::FastMcpTasks, "plain-fastmcp", call, json!({}), (&[], "worked 1 s as a task")).await;
}

/// Calls that ask for a task, in the client's own session: the client sees the gateway's task alone.
#[tokio::test]
async fn a_call_that_asks_for_a_task_is_one_at_a_real_server_too() {
    let yes = json!({"action": "accept", "content": {"confirm": true, "interpretation": "snake"}});
    for (program, tool, arguments, text) in [
        (Program::Everything, "simulate-research-query", json!({"topic": "tea"}), "Research Report: tea"),
        (Program::TypeScriptTasks, "confirm_delete", json!({"filename": "a.txt"}), "Deleted 'a.txt'"),
        (Program::FastMcpTasks, "only_as_task", json!({"seconds": 1}), "worked 1 s as a task"),
        (Program::FastMcpTasks, "greet", json!({"name": "Ada"}), "Hello, Ada!"),
    ] {
        let Some((_server, gate)) = before(program, "task").await else { return };
        let person = meet(&gate, "2025-11-25").await;
        let mut own = person.listen().await;
        let hearing = person.client.connections.spawn(async move {
            let mut heard = Vec::new();
            while let Some(message) = own.next().await {
                heard.push(message);
                if heard.last().unwrap()["params"]["status"] == "completed" {
                    break;
                }
            }
            heard
        });
        let params = json!({"name": tool, "arguments": arguments, "task": {}});
        let task = person.start_with(&params).await["taskId"].clone();
        let waiting = in_time(person.result(4, &task)).await;
        let outcome = in_time(outcome(&person, waiting, &task, &yes)).await;
        assert!(outcome["result"]["content"][0]["text"].as_str().unwrap_or_default().contains(text), "{outcome}");
        assert_eq!(outcome["result"]["_meta"][RELATED]["taskId"], task, "{outcome}");
        for message in in_time(hearing).await.unwrap() {
            let named = &message["params"]["taskId"];
            assert!(named.is_null() || *named == task, "T-67, {program:?}: {message}");
        }
    }
}

/// The outcome that `tasks/result` answers with; its questions are all answered alike.
async fn outcome(person: &SessionUser, reply: Reply, task: &Value, answer: &Value) -> Value {
    if reply.header("content-type") == Some("application/json") {
        return reply.json().await;
    }
    let mut stream = SessionMessages::of(reply);
    loop {
        let message = stream.next().await.expect("the stream goes on");
        if message["id"] == 4 && message.get("method").is_none() {
            return message;
        }
        assert_eq!(message["params"]["_meta"][RELATED]["taskId"], *task, "T-67: {message}");
        if message.get("id").is_some() {
            person.respond(&message["id"], answer).await;
        }
    }
}
