//! A scripted HTTP+SSE server, and a gateway in front of it. Tools: `echo` answers at once, `late` after a progress
//! notification and half a second, `ask` puts a question first, `silent` ends with its progress, `giant` with more than may be.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::client::StandaloneClient;
use super::gate::{GatewayProcess, in_time};
use super::scripted::{
    BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer as result_of, json_text, polite,
    status, whole,
};

/// The server's deviations.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// The address in the `endpoint` event; `None` sends no such event. The session's number is added.
    pub(crate) endpoint: Option<String>,
    /// The status that a stream is refused with.
    pub(crate) get: Option<u16>,
    /// The status that tool calls are refused with, the first so many times.
    pub(crate) refuses: Option<(u16, usize)>,
    /// The answer to a POST comes after its events.
    pub(crate) tells_late: bool,
    /// The answer to a tool call's POST never comes; its result does.
    pub(crate) never_tells: bool,
    /// The server speaks streamable HTTP instead.
    pub(crate) is_streamable: bool,
    /// It does so without sessions, as servers of 2026-07-28 alone do.
    pub(crate) is_stateless: bool,
}

impl Default for Habits {
    fn default() -> Self {
        let endpoint = Some("/message".to_owned());
        Self {
            endpoint,
            get: None,
            refuses: None,
            tells_late: false,
            never_tells: false,
            is_streamable: false,
            is_stateless: false,
        }
    }
}

#[derive(Default)]
struct State {
    habits: Mutex<Habits>,
    streams: Mutex<Vec<BodySender>>,
    /// The POSTs without an answer.
    unanswered: TaskTracker,
}

pub(crate) struct Sse {
    pub(crate) server: ScriptedServer,
    state: Arc<State>,
}

impl Sse {
    pub(crate) async fn start() -> Self {
        let state = Arc::<State>::default();
        let script = Arc::clone(&state);
        let server = ScriptedServer::slow(move |seen, world| answer(seen, world, Arc::clone(&script))).await;
        Self { server, state }
    }

    pub(crate) fn habits(&self, change: impl FnOnce(&mut Habits)) {
        change(&mut self.state.habits.lock());
    }

    pub(crate) fn world(&self) -> &ScriptedState {
        &self.server.world
    }

    /// How many streams were asked for and opened.
    pub(crate) fn streams(&self) -> usize {
        self.state.streams.lock().len()
    }

    /// Returns once no POST without an answer is open.
    pub(crate) async fn all_answered(&self) {
        self.state.unanswered.close();
        in_time(self.state.unanswered.wait()).await;
    }

    /// Cuts every stream there is.
    pub(crate) fn cut(&self) {
        self.state.streams.lock().iter().for_each(BodySender::cut);
    }

    /// Ends all streams in order.
    pub(crate) fn end(&self) {
        self.state.streams.lock().clear();
    }

    pub(crate) fn send(&self, message: &Value) {
        self.state.streams.lock().iter().for_each(|stream| stream.raw(format!("event: message\ndata: {message}\n\n")));
    }

    pub(crate) async fn gate(&self, keys: &str) -> GatewayProcess {
        let address = self.server.address;
        let upstream = format!("url = \"http://{address}/sse\"\n{keys}");
        GatewayProcess::start(tempfile::tempdir().unwrap(), &upstream).await
    }
}

/// A client with a session and one without.
pub(crate) async fn both(gate: &GatewayProcess) -> [StandaloneClient; 2] {
    [StandaloneClient::session(gate).await, StandaloneClient::stateless(gate)]
}

async fn answer(seen: SeenRequest, world: Arc<ScriptedState>, state: Arc<State>) -> Option<ScriptedReply> {
    let habits = state.habits.lock().clone();
    if habits.is_streamable {
        return Some(match (seen.rpc(), seen.body["params"]["name"].as_str().unwrap_or_default()) {
            ("server/discover", _) if habits.is_stateless => {
                let versions = json!({ "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} } });
                result_of(&seen, &versions)
            }
            ("initialize", _) if habits.is_stateless => status(404),
            ("tools/list", _) => result_of(&seen, &tools()),
            ("tools/call", "echo") => result_of(&seen, &text_of(&seen.body["params"]["arguments"])),
            ("tools/call", "broken") => said_over_http(&seen),
            _ => polite(&seen, &world),
        });
    }
    match seen.method.as_str() {
        "GET" if seen.target.starts_with("/sse") => Some(stream(&habits, &state)),
        "POST" if seen.target.starts_with("/message?n=") => Some(post(seen, &world, habits, &state).await),
        _ => Some(status(405)),
    }
}

fn stream(habits: &Habits, state: &State) -> ScriptedReply {
    if let Some(code) = habits.get {
        return status(code);
    }
    let (events, reply) = BodySender::open();
    let mut streams = state.streams.lock();
    if let Some(endpoint) = &habits.endpoint {
        events.raw(format!(": hello\n\nevent: endpoint\ndata: {endpoint}?n={}\n\n", streams.len()));
    }
    streams.push(events);
    reply
}

fn text_of(arguments: &Value) -> Value {
    json!({ "content": [{ "type": "text", "text": arguments["text"] }] })
}

/// The text of the tool `broken`: its argument `text`, a byte for each character, with the id in its place.
fn said(seen: &SeenRequest) -> Vec<u8> {
    let text = seen.body["params"]["arguments"]["text"].as_str().unwrap_or_default();
    let text = text.replace("{id}", &seen.body["id"].to_string());
    text.chars().map(|one| u8::try_from(one).unwrap()).collect()
}

fn event_of(bytes: Vec<u8>) -> Vec<u8> {
    [b"event: message\ndata: ".to_vec(), bytes, b"\n\n".to_vec()].concat()
}

/// The same as the response to the POST, under the status that the arguments name; `None` if they name none.
fn said_under_status(seen: &SeenRequest) -> Option<ScriptedReply> {
    let code = seen.body["params"]["arguments"]["status"].as_u64()?;
    let mut reply = json_text(said(seen));
    *reply.status_mut() = StatusCode::from_u16(u16::try_from(code).unwrap()).unwrap();
    Some(reply)
}

/// The same over streamable HTTP: as JSON, or on a stream that stays open.
fn said_over_http(seen: &SeenRequest) -> ScriptedReply {
    if let Some(reply) = said_under_status(seen) {
        return reply;
    }
    if seen.body["params"]["arguments"]["as"] != "events" {
        return json_text(said(seen));
    }
    let (events, reply) = BodySender::open();
    events.raw(event_of(said(seen)));
    events.stay_open();
    reply
}

fn tools() -> Value {
    let tools = ["echo", "late", "ask", "silent", "giant", "broken"];
    json!({ "tools": tools.map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })) })
}

async fn post(seen: SeenRequest, world: &ScriptedState, habits: Habits, state: &State) -> ScriptedReply {
    let number: usize = seen.target.rsplit('=').next().unwrap().parse().unwrap();
    let calls = world.count("tools/call");
    if let Some((code, _)) = habits.refuses.filter(|(_, times)| seen.is_call() && calls <= *times) {
        let mut reply = whole("no");
        *reply.status_mut() = StatusCode::from_u16(code).unwrap();
        return reply;
    }
    if let Some(reply) = said_under_status(&seen) {
        if seen.body["params"]["arguments"]["as"] == "both" {
            state.streams.lock()[number].raw(event_of(said(&seen)));
        }
        return reply;
    }
    let Some(stream) = state.streams.lock().get(number).filter(|stream| stream.is_open()).cloned() else {
        return status(404);
    };
    if habits.never_tells && seen.is_call() {
        let _open = state.unanswered.token();
        serve(&seen, &stream).await;
        std::future::pending::<()>().await;
    }
    if habits.tells_late {
        serve(&seen, &stream).await;
    } else {
        TaskTracker::new().spawn(async move { serve(&seen, &stream).await });
    }
    let mut reply = whole("Accepted");
    *reply.status_mut() = StatusCode::ACCEPTED;
    reply
}

async fn serve(seen: &SeenRequest, stream: &BodySender) {
    let say = |message: Value| stream.raw(format!("event: message\ndata: {message}\n\n"));
    let result = |result: Value| say(json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result }));
    let token = &seen.body["params"]["_meta"]["progressToken"];
    let progress = || {
        if !token.is_null() {
            let params = json!({ "progressToken": token, "progress": 1 });
            say(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
        }
    };
    let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
    let arguments = &seen.body["params"]["arguments"];
    match (seen.rpc(), seen.body["params"]["name"].as_str().unwrap_or_default()) {
        ("initialize", _) => result(json!({
            "protocolVersion": seen.body["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "scripted", "version": "1" },
        })),
        ("tools/list", _) => {
            result(tools());
        }
        ("tools/call", "echo") => result(text(arguments["text"].as_str().unwrap_or_default())),
        ("tools/call", "late") => {
            progress();
            tokio::time::sleep(Duration::from_millis(500)).await;
            result(text("late"));
        }
        ("tools/call", "ask") => {
            let form = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
            let params = json!({ "message": "who?", "requestedSchema": form });
            say(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params }));
        }
        ("tools/call", "broken") => stream.raw(event_of(said(seen))),
        ("tools/call", "giant") => result(text(&"g".repeat(2 << 20))),
        ("tools/call", _) => progress(),
        // The answer to the question: the call that asked is the only one.
        ("", _) if seen.body["id"] == "q" => {
            stream.message(&json!({ "jsonrpc": "2.0", "id": 7, "result": text("asked") }))
        }
        ("ping", _) => result(json!({})),
        _ => (),
    }
}
