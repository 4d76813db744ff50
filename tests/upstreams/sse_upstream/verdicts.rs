//! One answer has one verdict, by every path and for every client: an answer, an error of the server's, or no MCP. A
//! list has the answers that the pipe forwards and the bridge refuses, each with its reason.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::StandaloneClient;
use super::gate::GatewayProcess;
use super::server::Sse;
use super::unreadable::{stdio, unreadable};

const ALWAYS: &str = "[upstreams.up.tasks]\nmode = \"always\"\n";

/// The rows that pipes forward unchanged, their verdicts at clients, and the reason why the gateway does not judge
/// them. Bridges and tasks refuse each.
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
    // Readers differ in which of the two they take, so the gateway refuses a result that it has to read.
    ("a key twice", ANSWER, VALUE),
    ("the id twice", ANSWER, ENVELOPE),
    ("the id as another number", ANSWER, ENVELOPE),
    ("no version", ANSWER, ENVELOPE),
    ("an error without a code", ERROR, ENVELOPE),
];
/// The rows that the pipe of 2026-07-28 refuses although sessions' pass them on, and why.
const REFUSED_WITHOUT_SESSIONS: [(&str, &str); 1] = [(
    "half a pair in a key",
    "a result of 2026-07-28 may be a question or a handle, and readers differ about such keys",
)];
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
const MAY_HAVE_RUN: &str = "may have run";

/// The client's verdict about a response.
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
        (None, Some(error)) if error["data"]["source"] == "gateway" && error["data"]["executed"] == "unknown" => {
            MAY_HAVE_RUN
        }
        (None, Some(error)) if error["data"]["source"] == "gateway" => "another fault",
        (None, Some(_)) => ERROR,
        (Some(_), Some(_)) | (None, None) => RAW,
    }
}

/// The client of an answer.
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

/// Gateways in front of servers of each kind. Those with `tasks` make a task of each call of a client that takes tasks.
struct Setup {
    program: GatewayProcess,
    program_tasks: GatewayProcess,
    sse: GatewayProcess,
    sse_tasks: GatewayProcess,
    http: GatewayProcess,
    http_tasks: GatewayProcess,
    modern: GatewayProcess,
    modern_tasks: GatewayProcess,
    servers: [Sse; 3],
}

impl Setup {
    async fn open() -> Self {
        let (dir, upstream) = stdio();
        let servers = [Sse::start().await, Sse::start().await, Sse::start().await];
        let [sse, http, modern] = &servers;
        http.habits(|habits| habits.is_streamable = true);
        modern.habits(|habits| (habits.is_streamable, habits.is_stateless) = (true, true));
        let over_sse = "transport = \"sse\"\n";
        Self {
            program: GatewayProcess::start(dir, &upstream).await,
            // That server lists the tool: calls of an unlisted one are no tasks.
            program_tasks: GatewayProcess::with("stateless", ALWAYS).await,
            sse: sse.gate(over_sse).await,
            sse_tasks: sse.gate(&format!("{over_sse}{ALWAYS}")).await,
            http: http.gate("").await,
            http_tasks: http.gate(ALWAYS).await,
            modern: modern.gate("").await,
            modern_tasks: modern.gate(ALWAYS).await,
            servers,
        }
    }

    /// Every way of an answer that the gateway reads, in JSON where nothing else is said.
    fn read(&self) -> Vec<Way<'_>> {
        use Listener::{CoreTask, Session, Stateless, Task};
        let way = |name, gate, listener| Way { name, gate, listener, is_stream: false };
        let stream = |name, gate, listener| Way { name, gate, listener, is_stream: true };
        vec![
            way("stdio, session", &self.program, Session),
            way("stdio, stateless", &self.program, Stateless),
            way("stdio, task", &self.program_tasks, Task),
            way("stdio, core task", &self.program_tasks, CoreTask),
            way("HTTP+SSE, session", &self.sse, Session),
            way("HTTP+SSE, stateless", &self.sse, Stateless),
            way("HTTP+SSE, task", &self.sse_tasks, Task),
            way("HTTP+SSE, core task", &self.sse_tasks, CoreTask),
            way("HTTP, bridged", &self.http, Stateless),
            stream("HTTP, bridged, events", &self.http, Stateless),
            way("HTTP, task", &self.http_tasks, Task),
            stream("HTTP, task, events", &self.http_tasks, Task),
            way("HTTP, core task", &self.http_tasks, CoreTask),
            stream("HTTP, core task, events", &self.http_tasks, CoreTask),
            way("2026-07-28, bridged", &self.modern, Session),
            stream("2026-07-28, bridged, events", &self.modern, Session),
            way("2026-07-28, task", &self.modern_tasks, Task),
            stream("2026-07-28, task, events", &self.modern_tasks, Task),
            way("2026-07-28, core task", &self.modern_tasks, CoreTask),
        ]
    }

    fn pipes(&self) -> [Way<'_>; 2] {
        [
            Way { name: "HTTP, session pipe", gate: &self.http, listener: Listener::Session, is_stream: false },
            Way { name: "2026-07-28 pipe", gate: &self.modern, listener: Listener::Stateless, is_stream: false },
        ]
    }
}

struct Way<'a> {
    name: &'static str,
    gate: &'a GatewayProcess,
    listener: Listener,
    is_stream: bool,
}

impl Way<'_> {
    /// The verdict of a text that is the response to the POST, under this status.
    async fn verdict_under(&self, status: u16, text: &str) -> &'static str {
        heard(self.gate, self.listener, json!({ "how": "says", "text": text, "status": status })).await
    }

    async fn verdict(&self, text: &str) -> &'static str {
        let mut arguments = json!({ "how": "says", "text": text });
        if self.is_stream {
            arguments["as"] = json!("events");
        }
        heard(self.gate, self.listener, arguments).await
    }
}

#[tokio::test]
async fn each_answer_has_one_verdict_by_every_way_and_the_pipes_differ_by_a_list() {
    let setup = Setup::open().await;
    let mut rows = readable();
    rows.extend(unreadable().into_iter().map(|(name, text)| (name, text, NO_MCP)));
    let mut wrong = Vec::new();
    let mut passed_on = BTreeSet::new();
    for (name, text, expected) in &rows {
        for way in setup.read() {
            // A line may begin with a mark (RFC 8259, 8.1); the data of an event, and a body, may not.
            let expected = match (*name, way.name.split(',').next()) {
                ("a mark of the encoding", Some("stdio")) => ANSWER,
                (_, _) => *expected,
            };
            let found = way.verdict(text).await;
            if found != expected {
                wrong.push(format!("{}: {name}: {found}, not {expected}", way.name));
            }
        }
        for way in setup.pipes() {
            let found = way.verdict(text).await;
            if found != *expected {
                passed_on.insert(format!("{}: {name}: {found}", way.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let is_refused = |way: &str, name: &str| {
        way.starts_with("2026-07-28") && REFUSED_WITHOUT_SESSIONS.iter().any(|(refused, _)| *refused == name)
    };
    let listed = PASSED_ON.iter().flat_map(|(name, found, _)| {
        let ways = setup.pipes().into_iter().filter(move |way| !is_refused(way.name, name));
        ways.map(move |way| format!("{}: {name}: {found}", way.name))
    });
    assert_eq!(passed_on, listed.collect());
}

/// The responses to a POST under a status that refuses it, and their verdicts by every way over HTTP.
fn refusals() -> Vec<(u16, String, &'static str)> {
    let answer = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[]}}"#;
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32077,"message":"m","data":[1]}}"#;
    let mut rows = Vec::new();
    for status in [400, 404, 409, 422, 500] {
        rows.push((status, answer.to_owned(), ANSWER));
        rows.push((status, error.to_owned(), ERROR));
    }
    for status in [400, 409, 413, 415, 422] {
        rows.push((status, "{}".to_owned(), MAY_HAVE_RUN));
    }
    rows.push((422, "no".to_owned(), MAY_HAVE_RUN));
    // Too large to be read under such a status.
    rows.push((400, error.replace("[1]", &format!("\"{}\"", "x".repeat(65 << 10))), MAY_HAVE_RUN));
    rows
}

/// U01, U04: a status is not judged before its body, and a call that a server refused in any other words may have run.
#[tokio::test]
async fn u04_each_answer_under_a_refusing_status_has_one_verdict_by_every_way() {
    let setup = Setup::open().await;
    let made = || setup.servers.iter().map(|server| server.world().count("tools/call")).sum::<usize>();
    let mut wrong = Vec::new();
    for (status, text, expected) in refusals() {
        let read = setup.read().into_iter().filter(|way| !way.name.starts_with("stdio") && !way.is_stream);
        for way in read.chain(setup.pipes()) {
            let before = made();
            let found = way.verdict_under(status, &text).await;
            let times = made() - before;
            if (found, times) != (expected, 1) {
                let text = text.get(..80).unwrap_or(&text);
                wrong.push(format!("{}: {status} {text}: {found}, not {expected}; made {times} times", way.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
