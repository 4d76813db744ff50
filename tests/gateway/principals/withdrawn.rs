//! A right that is withdrawn ends at once, by a reload of the rules or by a narrower token of the same person.

use std::sync::Arc;

use serde_json::{Value, json};
use support::hostile_twin;
use support::issuer::{IssuerKey, key_set, with};
use taskgate::config;
use taskgate::task::{Clock as _, SystemClock};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::gate::{ADA, Answer, Ask, Gate, act};
use super::tokens::{auth, claims};
use super::upstream::{
    BodySender, Once, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, in_time, json_text, whole,
};

pub(super) const LISTEN: &str = "public_url = \"https://mcp.example\"";
pub(super) const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";
const CHALLENGE: &str = "Bearer error=\"insufficient_scope\", scope=\"mcp tools\", \
                         resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/mcp\"";
/// A token with the scope `tools` has all tools, others have `free`.
pub(super) const RULES: &str =
    "[[auth.rules]]\nwho = { scopes = [\"tools\"] }\nallow = true\n[[auth.rules]]\ntools = [\"free\"]\nallow = true\n";
const FEWER: &str = "[[auth.rules]]\ntools = [\"free\"]\nallow = true\n";

/// Nothing of the server under test.
pub(super) const OTHER: &str = "[[auth.rules]]\nupstreams = [\"other\"]\nallow = true\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Reload,
    /// A token of the same person without the scope.
    Token,
}

pub(super) const WAYS: [Way; 2] = [Way::Reload, Way::Token];

pub(super) struct World {
    pub(super) gate: Gate,
    /// Ada's token.
    pub(super) token: String,
    pub(super) narrow: String,
    _folder: TempDir,
}

pub(super) fn access(rules: &str) -> Arc<taskgate::task::PrincipalAccessTable> {
    let text = format!(
        "[listen]\n{LISTEN}\n[auth]\n{}{rules}[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n\
         [upstreams.other]\nurl = \"http://127.0.0.1:9/mcp\"\n",
        auth("jwks_url = \"https://login.example/keys\"", "")
    );
    config::parse("test.toml", &text, &|_| None).unwrap().config.access
}

impl World {
    pub(super) async fn start(upstream: &str) -> Self {
        let server =
            ScriptedServer::slow(async |seen: SeenRequest, world: Arc<ScriptedState>| Some(act(&seen, &world).await));
        Self::before(server.await, upstream).await
    }

    pub(super) async fn before(server: ScriptedServer, upstream: &str) -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        let file = folder.path().join("keys.json");
        std::fs::write(&file, key_set([&key])).unwrap();
        let auth = auth(&format!("jwks_file = \"{}\"", file.display()), "");
        let gate = Gate::behind(server, LISTEN, &(auth + RULES), upstream).await;
        let audiences = ["/mcp", "/sse", "/all/mcp", "/all/sse"].map(|path| format!("https://mcp.example{path}"));
        let token = |scope: &str| key.token(&with(&claims("ada"), &json!({ "scope": scope, "aud": audiences })));
        Self { gate, token: token("mcp tools"), narrow: token("mcp"), _folder: folder }
    }

    pub(super) fn lose(&mut self, way: Way) {
        match way {
            Way::Reload => self.gate.reload_with(|config| config.access = access(FEWER)).unwrap(),
            Way::Token => self.token = self.narrow.clone(),
        }
    }

    pub(super) async fn ask(&self, ask: Ask) -> Answer {
        self.gate.send(&ask).await
    }

    fn get(&self, id: &str) -> Ask {
        Ask::new(&self.token, "tasks/get", json!({ "taskId": id }))
    }

    pub(super) fn in_session(&self, session: &str, method: &str, params: &Value) -> Ask {
        Ask::session(&self.token, Some(session), method, params)
    }

    fn calls(&self) -> usize {
        self.gate.server.world.count("tools/call")
    }

    /// A call of a lost tool is answered like a call of an unknown tool, or with the scope that it needs.
    #[track_caller]
    fn check_refused(way: Way, lost: &Answer, nowhere: &Answer) {
        match way {
            Way::Reload => assert_eq!(lost.text().replace("quick", "ghost"), nowhere.text()),
            Way::Token => {
                assert_eq!(lost.summary(), "403 -32600 insufficient_scope");
                assert_eq!(lost.header("www-authenticate"), Some(CHALLENGE));
            }
        }
    }
}

pub(super) fn named(tool: &str) -> Value {
    json!({ "name": tool, "arguments": {} })
}

#[tokio::test]
async fn a_session_loses_its_tool_with_its_next_message() {
    for way in WAYS {
        let mut world = World::start("").await;
        let session = world.gate.session_of(&world.token).await;
        let listed = async |world: &World| {
            let asks =
                [world.in_session(&session, "tools/list", &json!({})), Ask::new(&world.token, "tools/list", json!({}))];
            let [own, stateless] = asks;
            [world.ask(own).await.body.contains("quick"), world.ask(stateless).await.body.contains("quick")]
        };
        assert_eq!(listed(&world).await, [true, true], "{way:?}");
        assert_eq!(world.ask(world.in_session(&session, "tools/call", &named("quick"))).await.summary(), "200 ok");
        let before = world.calls();
        world.lose(way);
        assert_eq!(listed(&world).await, [false, false], "{way:?}");
        for (lost, nowhere) in [
            (
                world.in_session(&session, "tools/call", &named("quick")),
                world.in_session(&session, "tools/call", &named("ghost")),
            ),
            (Ask::call(&world.token, "quick", &json!({})), Ask::call(&world.token, "ghost", &json!({}))),
        ] {
            let nowhere = world.ask(nowhere).await;
            World::check_refused(way, &world.ask(lost).await, &nowhere);
        }
        assert_eq!(world.calls(), before, "nothing reached the server");
    }
}

/// 2025-03-26: each message of an array has an answer of its own.
#[tokio::test]
async fn an_array_loses_the_call_and_keeps_its_other_messages() {
    for way in WAYS {
        let mut world = World::start("").await;
        let hello = json!({
            "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        let opened = world.ask(Ask::session(&world.token, None, "initialize", &hello)).await;
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let batch = |world: &World, second: &str| {
            let message = |id: u32, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            let call = message(1, "tools/call", named("quick"));
            let other = match second {
                "ping" => message(2, "ping", json!({})),
                tool => message(2, "tools/call", named(tool)),
            };
            let ask = world.in_session(&session, "ping", &json!({}));
            Ask { body: json!([call, other]).to_string(), ..ask }.with("MCP-Protocol-Version", "2025-03-26")
        };
        let sent = world.ask(batch(&world, "ping")).await;
        assert!(!sent.body.contains("\"error\""), "{sent:?}");
        let before = world.calls();
        world.lose(way);
        let sent = world.ask(batch(&world, "ping")).await;
        assert_eq!(sent.status(), "200", "{sent:?}");
        assert!(sent.body.contains("\"error\"") && sent.body.contains("\"result\":{}"), "{sent:?}");
        // A client learns from one challenge which scopes all its messages need.
        let all = world.ask(batch(&world, "quick")).await;
        assert_eq!(all.status(), if way == Way::Token { "403" } else { "200" }, "{all:?}");
        assert_eq!(all.header("www-authenticate"), (way == Way::Token).then_some(CHALLENGE), "{all:?}");
        assert_eq!(all.body.matches("\"error\"").count(), 2, "{all:?}");
        assert_eq!(world.calls(), before, "nothing reached the server");
    }
}

/// Reads a stream until it has this text.
pub(super) async fn until(stream: &mut TcpStream, text: &mut String, end: &str) {
    while !text.contains(end) {
        more(stream, text).await;
    }
}

async fn more(stream: &mut TcpStream, text: &mut String) {
    let mut piece = vec![0; 4096];
    let read = in_time(stream.read(&mut piece)).await.unwrap();
    assert!(read > 0, "it ended: {text}");
    text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
}

#[tokio::test]
async fn a_client_over_http_and_sse_loses_its_tool_with_its_next_message() {
    for way in WAYS {
        let mut world = World::start("").await;
        let open = Ask::session(&world.token, None, "x", &json!({})).without("content-type").at("/sse");
        let (mut text, mut stream) = world.gate.open(&Ask { verb: "GET", body: String::new(), ..open }).await;
        let target =
            text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_else(|| panic!("{text}")).to_owned();
        let post = async |world: &World, id: u32, method: &str, params: Value| {
            let ask = Ask::session(&world.token, None, method, &params).at(&target);
            let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
            assert_eq!(world.ask(Ask { body, ..ask }).await.status(), "202", "{way:?} {method}");
        };
        let hello = json!({
            "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        post(&world, 1, "initialize", hello).await;
        until(&mut stream, &mut text, "\"id\":1,").await;
        post(&world, 2, "tools/call", named("quick")).await;
        until(&mut stream, &mut text, "\"id\":2,").await;
        let before = world.calls();
        world.lose(way);
        post(&world, 3, "tools/call", named("quick")).await;
        let expected = if way == Way::Token { "insufficient_scope" } else { "Unknown tool: quick" };
        until(&mut stream, &mut text, expected).await;
        assert_eq!(world.calls(), before, "nothing reached the server");
    }
}

/// Rules that leave nothing of the upstream, at its own paths and at an endpoint. The client's other streams go on.
#[tokio::test]
async fn a_stream_of_http_and_sse_ends_with_the_last_right_of_its_client() {
    let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"other\"]\n\
                    [upstreams.other]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let mut world = World::start(endpoint).await;
    let open = |target: &str| {
        let ask = Ask::session(&world.token, None, "x", &json!({})).without("content-type").at(target);
        Ask { verb: "GET", body: String::new(), ..ask }
    };
    let opens = ["/sse", "/all/sse"].map(open);
    let mut streams = Vec::new();
    for ask in &opens {
        let (text, stream) = world.gate.open(ask).await;
        assert!(text.contains("event: endpoint"), "{text}");
        streams.push(stream);
    }
    world.gate.reload_with(|config| config.access = access(OTHER)).unwrap();
    in_time(streams.remove(0).read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(world.ask(opens[0].clone()).await.status(), "404");
    let (text, _again) = world.gate.open(&opens[1]).await;
    assert!(text.contains("event: endpoint"), "one of its upstreams is left: {text}");
    world.gate.reload_with(|config| config.access = access("[[auth.rules]]\nallow = false\n")).unwrap();
    in_time(streams.remove(0).read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(world.ask(opens[1].clone()).await.status(), "404");
}

/// A call that is held between two rounds, and the question of a task.
#[tokio::test]
async fn a_client_that_lost_a_tool_cannot_answer_its_question() {
    for way in WAYS {
        let mut world = World::start("").await;
        let capabilities = json!({ "elicitation": {} });
        let asked = world.ask(Ask::declaring(&world.token, "tools/call", named("ask"), &capabilities)).await.json();
        let state = asked["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{asked}")).to_owned();
        let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let made = world.ask(Ask::call(&world.token, "ask", &json!({}))).await.json();
        let task = made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        world.lose(way);
        let answers = json!({ key.as_str(): { "action": "accept", "content": {} } });
        let params = json!({ "name": "ask", "arguments": {}, "requestState": state, "inputResponses": answers });
        let retried = world.ask(Ask::declaring(&world.token, "tools/call", params, &capabilities)).await;
        assert_eq!(retried.summary(), if way == Way::Token { "403 -32600 insufficient_scope" } else { "200 -32602" });
        let update = |id: &str| {
            let answers = json!({ "1": { "action": "accept", "content": {} } });
            Ask::new(&world.token, "tasks/update", json!({ "taskId": id, "inputResponses": answers }))
        };
        assert_eq!(world.ask(update(&task)).await, world.ask(update(UNKNOWN)).await, "{way:?}");
        let said = world.gate.server.world.all(|seen| seen.body.get("result").is_some());
        assert!(said.is_empty(), "{way:?}: {said:?}");
        let cancel = Ask::new(&world.token, "tasks/cancel", json!({ "taskId": task }));
        assert_eq!(world.ask(cancel).await.summary(), "200 ok", "{way:?}: its call can be ended");
    }
}

/// A session that can be asked.
async fn asking_session(world: &World) -> String {
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "raw", "version": "1" },
    });
    let opened = world.ask(Ask::session(&world.token, None, "initialize", &hello)).await;
    opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned()
}

/// The id of the question on the stream of a call, and the connection that keeps the stream open.
async fn asked(world: &World, session: &str, tool: &str) -> (Value, TcpStream) {
    let call = world.in_session(session, "tools/call", &named(tool)).with("MCP-Protocol-Version", "2025-11-25");
    let mut stream = TcpStream::connect(world.gate.gateway.address()).await.unwrap();
    stream.write_all(&call.bytes()).await.unwrap();
    let mut text = String::new();
    loop {
        let mut events =
            text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        if let Some(question) = events.find(|event| event["method"] == "elicitation/create") {
            return (question["id"].clone(), stream);
        }
        more(&mut stream, &mut text).await;
    }
}

async fn answers(world: &World, session: &str, question: &Value) -> Answer {
    let ask = world.in_session(session, "x", &json!({})).with("MCP-Protocol-Version", "2025-11-25");
    let content = json!({ "action": "accept", "content": { "canary": 1 } });
    let body = json!({ "jsonrpc": "2.0", "id": question, "result": content }).to_string();
    world.ask(Ask { body, ..ask }).await
}

/// The question of a call that runs: its server gets an error, so that the call can end.
#[tokio::test]
async fn sec_62_a_client_that_lost_a_tool_cannot_answer_a_question_of_its_running_call() {
    for way in WAYS {
        let mut world = World::start("[[upstreams.up.tools]]\nmatch = \"ask\"\nmode = \"never\"\n").await;
        let session = asking_session(&world).await;
        let (question, _stream) = asked(&world, &session, "ask").await;
        let wide = world.token.clone();
        world.lose(way);
        assert_eq!(answers(&world, &session, &question).await.status(), "202", "{way:?}");
        let refused = world.gate.server.world.first(|seen| seen.body.get("error").is_some()).await;
        assert_eq!(refused.body["id"], json!(1), "{way:?}: {refused:?}");
        let told = world.gate.server.world.all(|seen| seen.body.get("result").is_some());
        assert!(told.is_empty(), "{way:?}: {told:?}");
        // With the right a question is answered.
        world.token = wide;
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        let (question, mut stream) = asked(&world, &session, "ask").await;
        assert_eq!(answers(&world, &session, &question).await.status(), "202", "{way:?}");
        until(&mut stream, &mut String::new(), "accept").await;
    }
}

/// A name that is too long to be kept may be any tool's: a rule that allows all but some patterns does not count for it.
#[tokio::test]
async fn sec_63_a_question_of_a_tool_whose_name_is_not_kept_is_answered_by_callers_with_all_tools_alone() {
    const ALL_BUT_ASK: &str = "[[auth.rules]]\ntools = [\"ask*\"]\nallow = false\n[[auth.rules]]\nallow = true\n";
    let long = format!("ask{}", "k".repeat(1_100));
    let tools = json!({ "tools": [{ "name": long, "inputSchema": {} }] });
    let server = ScriptedServer::slow(move |seen: SeenRequest, world: Arc<ScriptedState>| {
        let listed = (seen.rpc() == "tools/list").then(|| answer(&seen, &tools));
        async move { if listed.is_some() { listed } else { Some(act(&seen, &world).await) } }
    });
    let mut world = World::before(server.await, "[[upstreams.up.tools]]\nmatch = \"ask*\"\nmode = \"never\"\n").await;
    let session = asking_session(&world).await;
    for (rules, said) in [(ALL_BUT_ASK, "error"), ("", "result")] {
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        let (question, _stream) = asked(&world, &session, &long).await;
        world.gate.reload_with(|config| config.access = access(rules)).unwrap();
        assert_eq!(answers(&world, &session, &question).await.status(), "202", "{rules}");
        let told =
            world.gate.server.world.first(|seen| ["error", "result"].iter().any(|key| seen.body.get(key).is_some()));
        assert!(told.await.body.get(said).is_some(), "{rules}");
        world.gate.server.world.forget();
    }
}

/// The same at a server without sessions: the call is sent again, without the client's answer.
#[tokio::test]
async fn sec_62_a_client_that_lost_a_tool_cannot_answer_a_question_of_a_stateless_server() {
    for way in WAYS {
        let server = stateless(|seen| {
            let params = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
            let request = json!({ "method": "elicitation/create", "params": params });
            let asks = json!({ "resultType": "input_required", "inputRequests": { "q": request } });
            let done = json!({ "resultType": "complete", "content": [] });
            let is_retry = seen.body["params"].get("inputResponses").is_some();
            seen.is_call().then(|| answer(seen, if is_retry { &done } else { &asks }))
        });
        let mut world = World::before(server.await, "").await;
        let session = asking_session(&world).await;
        let (question, mut stream) = asked(&world, &session, "quick").await;
        world.lose(way);
        assert_eq!(answers(&world, &session, &question).await.status(), "202", "{way:?}");
        until(&mut stream, &mut String::new(), "\"id\":7").await;
        let told = world.gate.server.world.all(|seen| seen.body.to_string().contains("canary"));
        assert!(told.is_empty(), "{way:?}: {told:?}");
    }
}

/// The first event of a listener for a task, and its text.
async fn listens(world: &World, id: &str) -> String {
    let ask = Ask::new(&world.token, "subscriptions/listen", json!({ "notifications": { "taskIds": [id] } }));
    let (first, _stream) = world.gate.open(&ask).await;
    first.split("data: ").nth(1).unwrap_or_else(|| panic!("{first}")).split("\n\n").next().unwrap().to_owned()
}

#[tokio::test]
async fn a_listener_hears_of_no_task_of_a_lost_tool() {
    for way in WAYS {
        let mut world = World::start("").await;
        let made = world.ask(Ask::call(&world.token, "held", &json!({}))).await.json();
        let task = made["result"]["taskId"].as_str().unwrap().to_owned();
        assert!(listens(&world, &task).await.contains(&task), "{way:?}");
        world.lose(way);
        assert_eq!(listens(&world, &task).await, listens(&world, UNKNOWN).await, "{way:?}");
        assert_eq!(world.ask(world.get(&task)).await, world.ask(world.get(UNKNOWN)).await, "{way:?}");
    }
}

/// The gateway's tools for tasks.
#[tokio::test]
async fn the_fallback_tools_know_no_task_of_a_lost_tool_and_cancel_it() {
    for way in WAYS {
        let upstream =
            "[upstreams.up.tasks]\nfallback = \"tools\"\n[[upstreams.up.tools]]\nmatch = \"held\"\ngrace = \"50ms\"\n";
        let mut world = World::start(upstream).await;
        let session = world.gate.session_of(&world.token).await;
        let given = world.ask(world.in_session(&session, "tools/call", &named("held"))).await;
        let text =
            given.body.lines().find_map(|line| line.strip_prefix("data: ").filter(|data| data.contains("taskId")));
        let given: Value = serde_json::from_str(text.unwrap_or(&given.body)).unwrap();
        let task =
            given["result"]["structuredContent"]["taskId"].as_str().unwrap_or_else(|| panic!("{given}")).to_owned();
        world.lose(way);
        let by = |tool: &str, id: &str| {
            world.in_session(&session, "tools/call", &json!({ "name": tool, "arguments": { "id": id } }))
        };
        for tool in ["task_status", "task_result"] {
            let (lost, unknown) = (world.ask(by(tool, &task)).await, world.ask(by(tool, UNKNOWN)).await);
            assert_eq!(lost.text().replace(&task, UNKNOWN), unknown.text(), "{way:?} {tool}");
        }
        let cancelled = world.ask(by("task_cancel", &task)).await;
        assert!(cancelled.body.contains("cancelled"), "{way:?}: {cancelled:?}");
    }
}

/// SEP-1686: ids that clients choose.
#[tokio::test]
async fn a_chosen_id_finds_no_task_of_a_lost_tool() {
    for way in WAYS {
        let mut world = World::start("[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\n").await;
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        let opened = world.ask(Ask::session(&world.token, None, "initialize", &hello)).await;
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let chosen = json!({ "name": "task", "arguments": {}, "_meta": { "modelcontextprotocol.io/task": { "taskId": "mine" } } });
        let made = world.ask(world.in_session(&session, "tools/call", &chosen)).await;
        assert_eq!(made.status(), "200", "{made:?}");
        let get = |world: &World, method: &str, id: &str| world.in_session(&session, method, &json!({ "taskId": id }));
        assert_eq!(world.ask(get(&world, "tasks/get", "mine")).await.summary(), "200 ok", "{way:?}");
        world.lose(way);
        for method in ["tasks/get", "tasks/result"] {
            let (lost, unknown) = (get(&world, method, "mine"), get(&world, method, "none"));
            assert_eq!(world.ask(lost).await, world.ask(unknown).await, "{way:?} {method}");
        }
        let before = world.calls();
        let again = world.ask(world.in_session(&session, "tools/call", &chosen)).await;
        assert!(again.body.contains("\"error\""), "{way:?}: {again:?}");
        assert_eq!(world.calls(), before);
    }
}

/// A server without sessions: the gateway keeps the events of its calls.
pub(super) async fn stateless(
    script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |seen| without_sessions(seen).or_else(|| script(seen))).await
}

/// Its responses to a handshake and to `tools/list`.
pub(super) fn without_sessions(seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "initialize" => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            let mut refused = json_text(json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }).to_string());
            *refused.status_mut() = http::StatusCode::NOT_FOUND;
            Some(refused)
        }
        "server/discover" => Some(answer(
            seen,
            &json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                "capabilities": { "tools": {}, "prompts": {}, "resources": {}, "completions": {} },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "stateless", "version": "7" } },
            }),
        )),
        "tools/list" => {
            let tools = ["quick", "free"].map(|name| json!({ "name": name, "inputSchema": {} }));
            Some(answer(seen, &json!({ "resultType": "complete", "tools": tools })))
        }
        _ => None,
    }
}

fn progress(seen: &SeenRequest) -> Value {
    let params = json!({ "progressToken": seen.token(), "progress": 1 });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

/// Begins a request with progress, reads the id of an event, and disconnects.
async fn lost_stream(world: &World, request: &Ask, events: &BodySender) -> (SeenRequest, String) {
    let mut stream = TcpStream::connect(world.gate.gateway.address()).await.unwrap();
    stream.write_all(&request.bytes()).await.unwrap();
    let asks = |seen: &SeenRequest| request.body.contains(&format!("\"{}\"", seen.rpc()));
    let seen = world.gate.server.world.first(asks).await;
    events.message(&progress(&seen));
    let mut text = String::new();
    until(&mut stream, &mut text, "notifications/progress").await;
    let id =
        text.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap_or_else(|| panic!("{text}")).to_owned();
    drop(stream);
    (seen, id)
}

pub(super) fn resume(world: &World, session: &str, event: &str) -> Ask {
    resume_by(&world.token, session, event)
}

pub(super) fn resume_by(token: &str, session: &str, event: &str) -> Ask {
    let ask = Ask::session(token, Some(session), "x", &json!({})).without("content-type").with("Last-Event-ID", event);
    Ask { verb: "GET", body: String::new(), ..ask.with("MCP-Protocol-Version", "2025-11-25") }
}

/// Events that the gateway keeps.
#[tokio::test]
async fn sec_43_the_stream_of_a_lost_tools_call_is_not_taken_up_by_last_event_id() {
    lost_streams_stay_lost(
        "tools/call",
        &named("quick"),
        &json!({ "content": [], "structuredContent": { "canary": 1 } }),
    )
    .await;
}

#[tokio::test]
async fn sec_43_the_stream_of_a_lost_resource_or_prompt_is_not_taken_up_by_last_event_id() {
    let contents = json!({ "contents": [{ "uri": "file:///secret/b", "text": "canary" }] });
    lost_streams_stay_lost("resources/read", &json!({ "uri": "file:///secret/b" }), &contents).await;
    let said = json!({ "role": "user", "content": { "type": "text", "text": "canary" } });
    lost_streams_stay_lost("prompts/get", &json!({ "name": "write_b" }), &json!({ "messages": [said] })).await;
}

async fn lost_streams_stay_lost(method: &'static str, params: &Value, result: &Value) {
    for way in WAYS {
        let (events, once) = Once::events();
        let server = stateless(move |seen| match seen.rpc() {
            rpc if rpc == method => once.take(),
            "prompts/list" => Some(answer(seen, &json!({ "prompts": [{ "name": "write_b" }] }))),
            "resources/list" => {
                Some(answer(seen, &json!({ "resources": [{ "uri": "file:///secret/b", "name": "b" }] })))
            }
            _ => None,
        })
        .await;
        let mut world = World::before(server, "").await;
        let session = world.gate.session_of(&world.token).await;
        let params = with(params, &json!({ "_meta": { "progressToken": "p" } }));
        let request = world.in_session(&session, method, &params).with("MCP-Protocol-Version", "2025-11-25");
        let (seen, event) = lost_stream(&world, &request, &events).await;
        let unknown = world.ask(resume(&world, &session, "x")).await;
        let wide = world.token.clone();
        world.lose(way);
        events.result(&seen, &with(result, &json!({ "resultType": "complete" })));
        assert_eq!(world.ask(resume(&world, &session, &event)).await, unknown, "{way:?}");
        // The events are kept: with the right, the client gets its answer.
        world.token = wide;
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        let (mut text, mut stream) = world.gate.open(&resume(&world, &session, &event)).await;
        until(&mut stream, &mut text, "canary").await;
    }
}

/// SEP-1699: the server ends a call's stream, and its client reconnects for the answer.
#[tokio::test]
async fn sec_43_a_client_does_not_come_back_for_the_answer_of_a_lost_tool() {
    for way in WAYS {
        let (events, once) = Once::events();
        let server = ScriptedServer::start(move |seen| match seen.method.as_str() {
            "GET" if seen.header("last-event-id").is_some() => {
                Some(whole_stream("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"canary\":1}}\n\n"))
            }
            _ if seen.is_call() => once.take(),
            _ if seen.rpc() == "tools/list" => {
                Some(answer(seen, &json!({ "tools": [{ "name": "quick", "inputSchema": {} }] })))
            }
            _ => None,
        });
        let mut world = World::before(server.await, "").await;
        let session = world.gate.session_of(&world.token).await;
        let call = world.in_session(&session, "tools/call", &named("quick")).with("MCP-Protocol-Version", "2025-11-25");
        events.raw("id: e1\nretry: 60000\ndata:\n\n");
        drop(events);
        let paused = world.ask(call).await;
        let event = paused.body.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
        assert!(event.ends_with("e1"), "{paused:?}");
        let wide = world.token.clone();
        world.lose(way);
        let refused = world.ask(resume(&world, &session, &event)).await;
        assert_eq!(refused.status(), "400", "{way:?}: {refused:?}");
        let resumed = |seen: &SeenRequest| seen.header("last-event-id").is_some();
        assert!(world.gate.server.world.all(resumed).is_empty(), "{way:?}");
        world.token = wide;
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        let (mut text, mut stream) = world.gate.open(&resume(&world, &session, &event)).await;
        until(&mut stream, &mut text, "canary").await;
    }
}

fn whole_stream(text: &str) -> ScriptedReply {
    let mut reply = whole(text.to_owned());
    reply.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    reply
}

/// B148, for the scopes of one tool: the challenge lists the scopes that the call needs, and the metadata lists all scopes.
#[tokio::test]
async fn b148_a_tool_with_scopes_of_its_own_is_403_without_them() {
    let scopes = "[[upstreams.up.tools]]\nmatch = \"quick\"\nmode = \"never\"\nscopes = [\"tools\"]\n";
    let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set([&key])).unwrap();
    let auth = auth(&format!("jwks_file = \"{}\"", file.display()), "");
    let rules = "[[auth.rules]]\nwho = { scopes = [\"prompts:read\"] }\nprompts = [\"*\"]\nallow = true\n[[auth.rules]]\nallow = true\n";
    let gate = Gate::of(LISTEN, &(auth + rules), scopes).await;
    let token = |scope: &str| key.token(&with(&claims("ada"), &json!({ "scope": scope })));
    let (narrow, wide) = (token("mcp"), token("mcp tools"));
    let session = gate.session_of(&narrow).await;
    let asks = |token: &str| {
        let in_session = Ask::session(token, Some(&session), "tools/call", &named("quick"));
        [Ask::call(token, "quick", &json!({})), in_session]
    };
    for ask in asks(&narrow) {
        let refused = gate.send(&ask).await;
        assert_eq!(refused.summary(), "403 -32600 insufficient_scope");
        assert_eq!(refused.header("www-authenticate"), Some(CHALLENGE));
        let data = json!({ "source": "gateway", "reason": "insufficient_scope", "executed": "no" });
        assert_eq!((&refused.json()["id"], &refused.json()["error"]["data"]), (&json!(7), &data));
    }
    assert_eq!(gate.server.world.count("tools/call"), 0);
    for ask in asks(&wide) {
        assert_eq!(gate.send(&ask).await.summary(), "200 ok");
    }
    let metadata = Ask::call("x", "quick", &json!({})).without("Authorization");
    let metadata = metadata.at("/.well-known/oauth-protected-resource/mcp");
    let metadata = gate.send(&Ask { verb: "GET", body: String::new(), ..metadata }).await.json();
    assert_eq!(metadata["scopes_supported"], json!(["mcp", "prompts:read", "tools"]));
}

/// A listening stream, and one of HTTP+SSE.
#[tokio::test]
async fn the_streams_of_a_key_end_when_it_expires() {
    let end = SystemClock.now().after(std::time::Duration::from_secs(10));
    let auth = format!("mode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\nexpires = {end}\n");
    let gate = Gate::of("", &auth, "").await;
    let modern = Ask::declaring(ADA, "subscriptions/listen", json!({ "notifications": {} }), &json!({}));
    let older = Ask::session(ADA, None, "x", &json!({})).without("content-type").at("/sse");
    let get = |ask: Ask| Ask { verb: "GET", body: String::new(), ..ask };
    let mut streams = Vec::new();
    for ask in [modern, get(older)] {
        let (mut head, mut stream) = (String::new(), TcpStream::connect(gate.gateway.address()).await.unwrap());
        stream.write_all(&ask.bytes()).await.unwrap();
        until(&mut stream, &mut head, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        streams.push(stream);
    }
    for mut stream in streams {
        in_time(stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
    assert_eq!(gate.send(&Ask::call(ADA, "quick", &json!({}))).await.status(), "401");
}

/// Clients of both eras list the tools of a server without sessions.
#[tokio::test]
async fn a_list_of_a_server_without_sessions_has_the_tools_of_its_caller() {
    for way in WAYS {
        let mut world = World::before(stateless(|_| None).await, "").await;
        let session = world.gate.session_of(&world.token).await;
        let listed = async |world: &World| {
            let [own, stateless] =
                [world.in_session(&session, "tools/list", &json!({})), Ask::new(&world.token, "tools/list", json!({}))];
            let names = |answer: Answer| {
                let tools = answer.json()["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer:?}")).clone();
                let tools = hostile_twin::own_items(tools);
                tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            [names(world.ask(own).await), names(world.ask(stateless).await)]
        };
        let both = |names: &[&str]| {
            [
                names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(),
                names.iter().map(|&name| name.to_owned()).collect(),
            ]
        };
        assert_eq!(listed(&world).await, both(&["quick", "free"]), "{way:?}");
        world.lose(way);
        assert_eq!(listed(&world).await, both(&["free"]), "{way:?}");
    }
}
