//! One answer has one verdict, by whichever way it comes and whoever hears it: an answer, an error of the server's, or no MCP.
//! Where the pipe passes on what the bridge refuses stands in a list with its reason.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::StandaloneClient;
use super::gate::GatewayProcess;
use super::server::Sse;
use super::unreadable::{stdio, unreadable};

const ALWAYS: &str = "[upstreams.up.tasks]\nmode = \"always\"\n";

/// The rows that pipes pass on as they came, what clients make of them, and why the gateway judges none of it. Bridges and tasks
/// refuse each.
const PASSED_ON: [(&str, &str, &str); 18] = [
    ("cut off", RAW, VALUE),
    ("cut off before its id", RAW, VALUE),
    ("trailing comma", RAW, VALUE),
    ("NaN", RAW, VALUE),
    ("a raw tab", RAW, VALUE),
    ("an unknown escape", RAW, VALUE),
    ("two on a line", RAW, VALUE),
    ("a mark of the encoding", RAW, VALUE),
    ("Latin-1", RAW, VALUE),
    ("UTF-8 that is cut", RAW, VALUE),
    ("200 levels", RAW, VALUE),
    ("half a pair in a key", RAW, VALUE),
    ("a number beyond all bounds", RAW, VALUE),
    // Readers differ in which of the two they take, so whatever has to read the result refuses it.
    ("a key twice", ANSWER, VALUE),
    ("the id twice", ANSWER, ENVELOPE),
    ("the id as another number", ANSWER, ENVELOPE),
    ("no version", ANSWER, ENVELOPE),
    ("an error without a code", ERROR, ENVELOPE),
];
const RAW: &str = "as it came";
const VALUE: &str = "a result goes through piece by piece; to judge its value the pipe would hold it whole";
const ENVELOPE: &str = "one connection carries one request, so the client alone goes by what stands around the result";

/// The rows that every way takes for an answer, and those for an error.
fn readable() -> Vec<(&'static str, String, &'static str)> {
    let result = |value: &str| format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{value}}}"#);
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32050,"message":"m","data":[1]}}"#;
    vec![
        ("fine", result(r#"{"content":[]}"#), ANSWER),
        ("an error", error.to_owned(), ERROR),
        ("an array", format!("[{}]", result(r#"{"content":[]}"#)), ANSWER),
        ("an error in an array", format!("[{error}]"), ERROR),
        (
            "an error that is null",
            r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[]},"error":null}"#.to_owned(),
            ANSWER,
        ),
        (
            "a result that is null",
            r#"{"jsonrpc":"2.0","id":{id},"result":null,"error":{"code":-32050,"message":"m"}}"#.to_owned(),
            ERROR,
        ),
    ]
}

const ANSWER: &str = "answer";
const ERROR: &str = "error";
const NO_MCP: &str = "no MCP";

/// What a client makes of what it is told.
fn verdict(told: &str) -> &'static str {
    let message = told.rsplit("data: ").next().unwrap_or_default();
    if message.contains(char::REPLACEMENT_CHARACTER) {
        return RAW;
    }
    let Ok(message) = serde_json::from_str::<Value>(message.trim()) else { return RAW };
    verdict_of(&message)
}

fn verdict_of(message: &Value) -> &'static str {
    match (
        message.get("result").filter(|result| !result.is_null()),
        message.get("error").filter(|error| !error.is_null()),
    ) {
        (Some(_), None) => ANSWER,
        (None, Some(error)) if error["data"]["reason"] == "upstream_malformed" => NO_MCP,
        (None, Some(error)) if error["data"]["source"] == "gateway" => "another fault",
        (None, Some(_)) => ERROR,
        (Some(_), Some(_)) | (None, None) => RAW,
    }
}

/// Who hears an answer.
#[derive(Clone, Copy, PartialEq)]
enum Listener {
    Session,
    Stateless,
    /// A task of the extension.
    Task,
    /// A task of 2025-11-25.
    CoreTask,
}

async fn heard(gate: &GatewayProcess, listener: Listener, arguments: Value) -> &'static str {
    let params = json!({ "name": "broken", "arguments": arguments });
    match listener {
        Listener::Session => {
            let client = StandaloneClient::session(gate).await;
            verdict(&client.ask_verbatim(1, "tools/call", params).await)
        }
        Listener::Stateless => verdict(&StandaloneClient::stateless(gate).ask_verbatim(1, "tools/call", params).await),
        Listener::Task => {
            let client = StandaloneClient::stateless(gate).with_tasks();
            let id = client.task(1, "broken", params["arguments"].clone()).await;
            verdict_of(&client.settled(&id).await)
        }
        Listener::CoreTask => {
            let client = StandaloneClient::session(gate).await;
            let params = json!({ "name": "broken", "arguments": params["arguments"], "task": {} });
            let handle = client.ask(1, "tools/call", params).await.answer().await.0;
            let task = handle["result"]["task"]["taskId"].clone();
            verdict(&client.ask_verbatim(2, "tasks/result", json!({ "taskId": task })).await)
        }
    }
}

#[tokio::test]
async fn each_answer_has_one_verdict_by_every_way_and_the_pipes_differ_by_a_list() {
    use Listener::{CoreTask, Session, Stateless, Task};
    let http = |is_stateless: bool| async move {
        let server = Sse::start().await;
        server.habits(|habits| (habits.is_streamable, habits.is_stateless) = (true, is_stateless));
        let gate = server.gate("").await;
        let tasks = server.gate(ALWAYS).await;
        (server, gate, tasks)
    };
    let (dir, upstream) = stdio();
    let program = GatewayProcess::start(dir, &upstream).await;
    let events = Sse::start().await;
    let over_sse = events.gate("transport = \"sse\"\n").await;
    let (_sessions, in_sessions, session_tasks) = http(false).await;
    let (_modern, piped, modern_tasks) = http(true).await;
    let mut rows = readable();
    rows.extend(unreadable().into_iter().map(|(name, text)| (name, text, NO_MCP)));
    let mut wrong = Vec::new();
    let mut passed_on = BTreeSet::new();
    for (name, text, expected) in &rows {
        let json = json!({ "how": "says", "text": text });
        let stream = json!({ "how": "says", "text": text, "as": "events" });
        for (way, gate, listener, arguments, is_pipe) in [
            ("stdio, session", &program, Session, &json, false),
            ("HTTP+SSE, session", &over_sse, Session, &json, false),
            ("HTTP+SSE, stateless", &over_sse, Stateless, &json, false),
            ("HTTP, bridged", &in_sessions, Stateless, &json, false),
            ("HTTP, bridged, events", &in_sessions, Stateless, &stream, false),
            ("HTTP, task", &session_tasks, Task, &json, false),
            ("HTTP, core task", &session_tasks, CoreTask, &json, false),
            ("HTTP, core task, events", &session_tasks, CoreTask, &stream, false),
            ("2026-07-28, task", &modern_tasks, Task, &json, false),
            ("2026-07-28, task, events", &modern_tasks, Task, &stream, false),
            ("HTTP, session pipe", &in_sessions, Session, &json, true),
            ("2026-07-28 pipe", &piped, Stateless, &json, true),
        ] {
            let found = heard(gate, listener, arguments.clone()).await;
            // A line may begin with a mark (RFC 8259, 8.1); the data of an event, and a body, may not.
            let expected = match (*name, way) {
                ("a mark of the encoding", "stdio, session") => ANSWER,
                (_, _) => expected,
            };
            match (found == expected, is_pipe) {
                (true, _) => (),
                (false, true) => drop(passed_on.insert(format!("{way}: {name}: {found}"))),
                (false, false) => wrong.push(format!("{way}: {name}: {found}, not {expected}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let listed = |way: &'static str, rows: &'static [(&str, &str, &str)]| {
        rows.iter().map(move |(name, found, _)| format!("{way}: {name}: {found}"))
    };
    let listed: BTreeSet<_> =
        listed("HTTP, session pipe", &PASSED_ON).chain(listed("2026-07-28 pipe", &PASSED_ON)).collect();
    assert_eq!(passed_on, listed);
}
