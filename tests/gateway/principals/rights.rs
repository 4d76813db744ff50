//! Rights of a request whose credential, path or session has lost them: by a reload meanwhile, by an audience, by a narrower token.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set, with};
use taskgate::config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::gate::{ADA, Answer, Ask, BOB, Gate, act};
use super::tokens::{auth, claims};
use super::upstream::{
    BodySender, Once, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, in_time, polite,
};
use super::withdrawn::{
    LISTEN, OTHER, RULES, UNKNOWN, WAYS, World, access, named, resume, resume_by, stateless, until, without_sessions,
};

async fn acting() -> ScriptedServer {
    ScriptedServer::slow(async |seen: SeenRequest, world: Arc<ScriptedState>| Some(act(&seen, &world).await)).await
}

/// An issuer whose keys are in a file.
struct Issuer {
    key: IssuerKey,
    folder: TempDir,
}

impl Issuer {
    fn new() -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        std::fs::write(folder.path().join("keys.json"), key_set([&key])).unwrap();
        Self { key, folder }
    }

    fn auth(&self) -> String {
        auth(&format!("jwks_file = \"{}\"", Path::join(self.folder.path(), "keys.json").display()), "")
    }

    fn token(&self, paths: &[&str]) -> String {
        let audiences: Vec<_> = paths.iter().map(|path| format!("https://mcp.example{path}")).collect();
        self.key.token(&with(&claims("ada"), &json!({ "aud": audiences })))
    }
}

impl Gate {
    /// Puts another `[auth]` in force, and leaves only the gate's own upstream.
    fn admit(&mut self, auth: &str) {
        let text = format!("[listen]\n{LISTEN}\n[auth]\n{auth}\n[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n");
        let loaded = config::parse("test.toml", &text, &|_| None).unwrap().config;
        self.reload_with(|config| {
            config.upstreams.retain(|one| *one.name == *"up");
            (config.auth, config.access) = (loaded.auth, loaded.access);
        })
        .unwrap();
    }

    /// Sends a request whose head is admitted before `meanwhile`, and whose body comes after it.
    async fn interrupted(&mut self, ask: &Ask, meanwhile: impl FnOnce(&mut Self)) -> Answer {
        let bytes = ask.clone().with("Expect", "100-continue").bytes();
        let (head, body) = bytes.split_at(bytes.len() - ask.body.len());
        let (mut stream, mut text) = (TcpStream::connect(self.gateway.address()).await.unwrap(), String::new());
        stream.write_all(head).await.unwrap();
        until(&mut stream, &mut text, "HTTP/1.1 100 Continue\r\n\r\n").await;
        meanwhile(self);
        stream.write_all(body).await.unwrap();
        let mut rest = Vec::new();
        in_time(stream.read_to_end(&mut rest)).await.unwrap();
        Answer::of(&rest)
    }
}

/// The lists of a key, and the rules that name a caller, go with the credential. Its last request must not gain by that.
#[tokio::test]
async fn sec_45_a_request_whose_credential_is_removed_meanwhile_gains_no_rights() {
    let key = |id: &str, key: &str, more: &str| format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n{more}");
    let keys = |all: &[String]| format!("mode = \"api_keys\"\n{}", all.concat());
    let bob = || keys(&[key("bob", BOB, "")]);
    let issuer = Issuer::new();
    let of_issuer = "[[auth.rules]]\nwho = { issuer = \"https://login.example\" }\ntools = [\"task\"]\nallow = true\n";
    let denied = "[[auth.rules]]\nwho = { ids = [\"key:ada\"] }\ntools = [\"quick\"]\nallow = false\n";
    let open = "[[auth.rules]]\nallow = true\n";
    for (name, before, credential, after) in [
        ("a key with tools", keys(&[key("ada", ADA, "tools = [\"task\"]\n")]), ADA.to_owned(), bob()),
        (
            "a key that a rule denies",
            keys(&[key("ada", ADA, ""), key("bob", BOB, "")]) + denied + open,
            ADA.to_owned(),
            bob() + open,
        ),
        ("a token of a removed issuer", issuer.auth() + of_issuer, issuer.token(&["/mcp"]), bob()),
        ("a client without a credential", String::new(), String::new(), bob()),
    ] {
        let mut gate = Gate::of(LISTEN, &before, "").await;
        let call = Ask::call(&credential, "quick", &json!({}));
        let lost = gate.interrupted(&call, |gate| gate.admit(&after)).await;
        assert_eq!(lost.status(), "404", "{name}: {lost:?}");
        assert_eq!(gate.server.world.count("tools/call"), 0, "{name}");
        assert_eq!(gate.send(&Ask::call(BOB, "quick", &json!({}))).await.summary(), "200 ok", "{name}: others go on");
    }
}

/// A gateway with two servers and two endpoints, and a task of ada's at the first server.
async fn with_a_task(issuer: &Issuer) -> (Gate, String) {
    let server = acting().await;
    let more = format!(
        "[upstreams.files]\nurl = \"{}\"\npath = \"/files/mcp\"\n[upstreams.files.tasks]\nfallback = \"tools\"\n\
         [[endpoints]]\npath = \"/few/mcp\"\nupstreams = [\"files\"]\n\
         [[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"files\", \"up\"]\n",
        server.url()
    );
    let gate = Gate::behind(server, LISTEN, &(issuer.auth() + &more), "").await;
    let made = gate.send(&Ask::call(&issuer.token(&["/mcp"]), "held", &json!({}))).await.json();
    let task = made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (gate, task)
}

/// RFC 8707: a task is its owner's, and a token is for one resource.
#[tokio::test]
async fn sec_46_a_token_reaches_the_tasks_of_the_path_that_it_is_for_and_of_no_other() {
    let issuer = Issuer::new();
    for path in ["/files/mcp", "/few/mcp", "/all/mcp", "/mcp"] {
        // One for each: many unknown tasks in a minute are answered in another way.
        let (gate, task) = with_a_task(&issuer).await;
        let (token, is_inside) = (issuer.token(&[path]), matches!(path, "/all/mcp" | "/mcp"));
        let session = gate.session_at(path, &token).await;
        let in_session = |method: &str, params: &Value| Ask::session(&token, Some(&session), method, params).at(path);
        let modern = |method: &str, id: &str| {
            let answers = json!({ "1": { "action": "accept" } });
            Ask::new(&token, method, json!({ "taskId": id, "inputResponses": answers })).at(path)
        };
        let older = |method: &str, id: &str| in_session(method, &json!({ "taskId": id }));
        let by_tool =
            |tool: &str, id: &str| in_session("tools/call", &json!({ "name": tool, "arguments": { "id": id } }));
        let listed = gate.send(&in_session("tasks/list", &json!({}))).await.json();
        let listed = listed["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{listed}")).len();
        assert_eq!(listed, usize::from(is_inside), "{path}");
        let filter = json!({ "notifications": { "taskIds": [task] } });
        let (first, _stream) = gate.open(&Ask::new(&token, "subscriptions/listen", filter).at(path)).await;
        assert_eq!(first.contains(&task), is_inside, "{path}: {first}");
        let names = match path {
            "/files/mcp" => &["task_status", "task_result", "task_cancel"][..],
            _ => &[],
        };
        let by_tools = names.iter().map(|tool| (*tool, by_tool(tool, &task), by_tool(tool, UNKNOWN)));
        let names = if is_inside { &["tasks/get"][..] } else { &["tasks/get", "tasks/update", "tasks/cancel"] };
        let moderns = names.iter().map(|name| (*name, modern(name, &task), modern(name, UNKNOWN)));
        let names = if is_inside { &["tasks/get"][..] } else { &["tasks/get", "tasks/result", "tasks/cancel"] };
        let olders = names.iter().map(|name| (*name, older(name, &task), older(name, UNKNOWN)));
        for (name, own, unknown) in moderns.chain(olders).chain(by_tools) {
            let (own, unknown) = (gate.send(&own).await, gate.send(&unknown).await);
            let is_unknown = own.text().replace(&task, UNKNOWN) == unknown.text();
            assert_eq!(is_unknown, !is_inside, "{path} {name}: {own:?} {unknown:?}");
        }
        let own = issuer.token(&["/mcp"]);
        let get = Ask::new(&own, "tasks/get", json!({ "taskId": task }));
        assert_eq!(gate.send(&get).await.json()["result"]["status"], "working", "{path}: it goes on");
        let key = Ask::new(ADA, "tasks/get", json!({ "taskId": task })).at(path);
        assert_eq!(gate.send(&key).await.summary(), "200 -32602", "{path}: a key is another owner");
        if is_inside {
            assert_eq!(gate.send(&modern("tasks/cancel", &task)).await.summary(), "200 ok", "{path}");
            assert_eq!(gate.send(&get).await.json()["result"]["status"], "cancelled", "{path}");
        }
    }
}

impl Gate {
    async fn session_at(&self, path: &str, token: &str) -> String {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} },
            "clientInfo": { "name": "raw", "version": "1" },
        });
        let opened = self.send(&Ask::session(token, None, "initialize", &hello).at(path)).await;
        opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned()
    }
}

/// A server that repeats an answer for the event `e1`, and the events of its first call.
async fn repeating() -> (BodySender, ScriptedServer) {
    let (call, once) = Once::events();
    let server = ScriptedServer::start(move |seen| match seen.method.as_str() {
        "GET" => {
            let (events, reply) = BodySender::open();
            match seen.header("last-event-id") {
                Some(_) => events.raw("id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"canary\":1}}\n\n"),
                None => events.message(&json!({ "jsonrpc": "2.0", "method": "notifications/marker" })),
            }
            events.stay_open();
            Some(reply)
        }
        _ if seen.is_call() || seen.rpc() == "completion/complete" => once.take(),
        _ if seen.rpc() == "tools/list" => {
            let tools = ["quick", "free"].map(|name| json!({ "name": name, "inputSchema": {} }));
            Some(answer(seen, &json!({ "tools": tools })))
        }
        _ => None,
    });
    (call, server.await)
}

/// Leaves a request behind its event `e1`.
async fn leave(gate: &Gate, request: Ask, events: BodySender) {
    events.numbered("e1", &json!({ "jsonrpc": "2.0", "method": "notifications/begun" }));
    let (first, stream) = gate.open(&request.with("MCP-Protocol-Version", "2025-11-25")).await;
    assert!(first.contains("id: e1"), "{first}");
    drop(stream);
    events.left().await;
}

/// The stream begins again from the start, and the gateway asks the server for no events.
async fn nothing_is_repeated(gate: &Gate, resumed: Ask) {
    let (mut text, mut stream) = gate.open(&resumed).await;
    until(&mut stream, &mut text, "jsonrpc").await;
    assert!(text.contains("notifications/marker"), "{text}");
    let repeats = |seen: &SeenRequest| seen.header("last-event-id").is_some();
    assert!(gate.server.world.all(repeats).is_empty());
}

/// A client that left a running call: the server may repeat its events, as the event's id is the server's.
#[tokio::test]
async fn sec_47_a_servers_event_id_brings_nothing_of_a_lost_tools_call() {
    for way in WAYS {
        let (events, server) = repeating().await;
        let mut world = World::before(server, "").await;
        let session = world.gate.session_of(&world.token).await;
        leave(&world.gate, world.in_session(&session, "tools/call", &named("quick")), events).await;
        let wide = world.token.clone();
        world.lose(way);
        nothing_is_repeated(&world.gate, resume(&world, &session, "e1")).await;
        world.token = wide;
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        let (mut text, mut stream) = world.gate.open(&resume(&world, &session, "e1")).await;
        until(&mut stream, &mut text, "canary").await;
    }
}

/// Rules decide about clients without a credential, too. A completion names a prompt.
#[tokio::test]
async fn sec_47_a_servers_event_id_brings_no_event_of_a_call_that_rules_deny_to_all() {
    let all = "[[auth.rules]]\nallow = true\n";
    let completion =
        json!({ "ref": { "type": "ref/prompt", "name": "write_b" }, "argument": { "name": "a", "value": "" } });
    for (before, method, params) in [
        (all, "tools/call", named("quick")),
        (all, "completion/complete", completion),
        // The session called before the first rules, so the tool of its call is unknown.
        ("", "tools/call", named("quick")),
    ] {
        let (events, server) = repeating().await;
        let mut gate = Gate::behind(server, LISTEN, before, "").await;
        let session = gate.session_of("").await;
        leave(&gate, Ask::session("", Some(&session), method, &params), events).await;
        gate.admit("[[auth.rules]]\ntools = [\"free\"]\nallow = true\n");
        nothing_is_repeated(&gate, resume_by("", &session, "e1")).await;
        gate.admit(all);
        if !before.is_empty() {
            let (mut text, mut stream) = gate.open(&resume_by("", &session, "e1")).await;
            until(&mut stream, &mut text, "canary").await;
        }
    }
}

/// The session's own stream, and the session that replaces a lost one.
#[tokio::test]
async fn sec_48_a_subscription_tells_nothing_of_a_resource_that_is_withheld_now() {
    for way in WAYS {
        let streams = Arc::new(Mutex::new(Vec::<BodySender>::new()));
        let opened = Arc::clone(&streams);
        let server = ScriptedServer::start(move |seen| match (seen.method.as_str(), seen.rpc()) {
            ("GET", _) => {
                let (events, reply) = BodySender::open();
                opened.lock().push(events);
                Some(reply)
            }
            (_, "tools/list") => Some(answer(seen, &json!({ "tools": [{ "name": "free", "inputSchema": {} }] }))),
            _ => None,
        })
        .await;
        *server.world.initialize_result.lock() =
            json!({ "capabilities": { "tools": {}, "resources": { "subscribe": true } } });
        let tell = |method: &str, params: Value| {
            let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
            streams.lock().iter().for_each(|events| events.message(&message));
        };
        let updated = || tell("notifications/resources/updated", json!({ "uri": SECRET }));
        let mut world = World::before(server, "").await;
        let session = world.gate.session_of(&world.token).await;
        let subscribe = world.in_session(&session, "resources/subscribe", &json!({ "uri": SECRET }));
        assert_eq!(world.ask(subscribe).await.summary(), "200 ok");
        let own = |world: &World| {
            let ask = world.in_session(&session, "x", &json!({})).without("content-type");
            Ask { verb: "GET", body: String::new(), ..ask.with("MCP-Protocol-Version", "2025-11-25") }
        };
        let is_get = |seen: &SeenRequest| seen.method == "GET";
        let (mut text, mut stream) = world.gate.begin(&own(&world)).await;
        world.gate.server.world.first(is_get).await;
        updated();
        until(&mut stream, &mut text, SECRET).await;
        let wide = world.token.clone();
        world.lose(way);
        drop(stream);
        let before = world.gate.server.world.all(is_get).len();
        let (mut text, mut stream) = world.gate.begin(&own(&world)).await;
        world.gate.server.world.nth(before, is_get).await;
        updated();
        tell("notifications/tools/list_changed", json!({}));
        until(&mut stream, &mut text, "list_changed").await;
        assert!(!text.contains(SECRET), "{way:?}: {text}");
        world.gate.server.world.forget();
        assert_eq!(world.ask(world.in_session(&session, "tools/call", &named("free"))).await.summary(), "200 ok");
        assert_eq!(world.gate.server.world.count("initialize"), 1, "{way:?}: the session was renewed");
        assert_eq!(world.gate.server.world.count("resources/subscribe"), 0, "{way:?}");
        // The wider token of the same session has its updates again with its next request.
        world.token = wide;
        world.gate.reload_with(|config| config.access = access(RULES)).unwrap();
        assert_eq!(world.ask(world.in_session(&session, "tools/call", &named("free"))).await.summary(), "200 ok");
        let told = world.gate.server.world.first(|seen| seen.rpc() == "resources/subscribe").await;
        assert_eq!(told.body["params"], json!({ "uri": SECRET }), "{way:?}");
    }
}

/// A server of 2026-07-28, whose streams are piped, may tell of parts of a resource, and of others.
#[tokio::test]
async fn sec_48_a_piped_stream_tells_nothing_of_a_resource_that_is_out_of_reach() {
    let server = stateless(|seen| {
        let (events, reply) = BodySender::open();
        let tell = |method: &str, params: Value| {
            events.message(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        };
        match seen.rpc() {
            "subscriptions/listen" => {
                let uris = ["file:///secret/b", "file:///public/a/1", "file:///public/c"];
                let granted = json!({ "resourceSubscriptions": uris, "x/y": true });
                tell("notifications/subscriptions/acknowledged", json!({ "notifications": granted }));
            }
            "tools/call" => (),
            _ => return None,
        }
        tell("notifications/resources/updated", json!({ "uri": "file:///secret/b" }));
        tell("notifications/resources/updated", json!({ "uri": "file:///secret/b", "pad": "x".repeat(1 << 20) }));
        tell("notifications/resources/updated", json!({ "uri": "file:///public/a" }));
        tell("notifications/x", json!({}));
        events.stay_open();
        Some(reply)
    });
    let rules = "[[auth.rules]]\nresources = [\"file:///public/*\"]\nallow = true\n\
                 [[auth.rules]]\ntools = [\"quick\"]\nallow = true\n";
    let gate = Gate::behind(server.await, LISTEN, rules, "").await;
    let wanted = json!({ "notifications": { "resourceSubscriptions": ["file:///public/a"] } });
    for (ask, is_shown) in
        [(Ask::new("", "subscriptions/listen", wanted), true), (Ask::call("", "quick", &json!({})), false)]
    {
        let (mut text, mut stream) = gate.begin(&ask).await;
        until(&mut stream, &mut text, "notifications/x").await;
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(text.contains("file:///public/a"), is_shown, "{text}");
        let granted = r#"{"resourceSubscriptions":["file:///public/a/1"]"#;
        assert_eq!(text.contains(granted), is_shown, "{text}");
    }
}

const SECRET: &str = "file:///secret/b";
const ALL: &str = "[[auth.rules]]\nallow = true\n";
const BUT_SECRET: &str =
    "[[auth.rules]]\nresources = [\"file:///secret/*\"]\nallow = false\n[[auth.rules]]\nallow = true\n";

/// The notifications on a server's streams: each in the subscription of the client's request.
fn tell(events: &BodySender, method: &str, mut params: Value) {
    params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": 7 });
    events.message(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
}

fn acknowledge(seen: &SeenRequest) -> (BodySender, ScriptedReply) {
    let (events, reply) = BodySender::open();
    let granted = json!({ "notifications": seen.body["params"]["notifications"] });
    tell(&events, "notifications/subscriptions/acknowledged", granted);
    (events, reply)
}

/// A server of either era, and the streams on which it sends notifications.
async fn notifying(is_stateless: bool) -> (ScriptedServer, Arc<Mutex<Vec<BodySender>>>) {
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&streams);
    let script = move |seen: &SeenRequest| {
        let (events, reply) = match (seen.method.as_str(), seen.rpc()) {
            ("GET", _) => BodySender::open(),
            (_, "subscriptions/listen") => acknowledge(seen),
            (_, "resources/list") => {
                let resources = json!([{ "uri": SECRET, "name": "r" }]);
                return Some(answer(seen, &json!({ "resultType": "complete", "resources": resources })));
            }
            _ => return None,
        };
        opened.lock().push(events);
        Some(reply)
    };
    let server = if is_stateless { stateless(script).await } else { ScriptedServer::start(script).await };
    *server.world.initialize_result.lock() =
        json!({ "capabilities": { "tools": { "listChanged": true }, "resources": { "subscribe": true } } });
    (server, streams)
}

/// Such a stream goes on when rules change, in front of a server of either era.
#[tokio::test]
async fn sec_48_a_subscription_over_http_and_sse_tells_nothing_of_a_resource_that_is_withheld_now() {
    for (is_stateless, path) in [(true, "/sse"), (true, "/all/sse"), (false, "/sse"), (false, "/all/sse")] {
        let (server, streams) = notifying(is_stateless).await;
        let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\"]\n";
        let mut gate = Gate::behind(server, LISTEN, ALL, endpoint).await;
        let open = Ask { verb: "GET", body: String::new(), ..Ask::session("", None, "x", &json!({})) };
        let (mut text, mut stream) = gate.open(&open.without("content-type").at(path)).await;
        let target = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
        let wanted = json!({ "notifications": { "resourceSubscriptions": [SECRET], "toolsListChanged": true } });
        let listen = Ask::new("", "subscriptions/listen", wanted).at(&target);
        assert_eq!(gate.send(&listen).await.status(), "202", "{path}");
        until(&mut stream, &mut text, "acknowledged").await;
        gate.server.world.first(|seen| seen.method == "GET" || seen.rpc() == "subscriptions/listen").await;
        let update = || {
            let streams = streams.lock();
            streams.iter().for_each(|events| tell(events, "notifications/resources/updated", json!({ "uri": SECRET })));
            streams.iter().for_each(|events| tell(events, "notifications/tools/list_changed", json!({})));
        };
        update();
        until(&mut stream, &mut text, "list_changed").await;
        assert!(text.contains("resources/updated"), "{is_stateless} {path}: {text}");
        gate.admit(BUT_SECRET);
        text.clear();
        update();
        until(&mut stream, &mut text, "list_changed").await;
        assert!(!text.contains(SECRET), "{is_stateless} {path}: {text}");
    }
}

/// The rules are read before the server is asked, and its stream begins after the reload.
#[tokio::test]
async fn sec_48_a_reload_while_the_server_answers_a_subscription_ends_it() {
    let answers = CancellationToken::new();
    let waits = answers.clone();
    let server = ScriptedServer::slow(move |seen: SeenRequest, _: Arc<ScriptedState>| {
        let waits = waits.clone();
        async move {
            if seen.rpc() != "subscriptions/listen" {
                return None;
            }
            waits.cancelled().await;
            let (events, reply) = acknowledge(&seen);
            tell(&events, "notifications/resources/updated", json!({ "uri": SECRET }));
            events.stay_open();
            Some(reply)
        }
    });
    let mut gate = Gate::behind(server.await, LISTEN, ALL, "protocol = \"2026-07-28\"\n").await;
    let wanted = json!({ "notifications": { "resourceSubscriptions": [SECRET] } });
    let mut stream = TcpStream::connect(gate.gateway.address()).await.unwrap();
    stream.write_all(&Ask::new("", "subscriptions/listen", wanted).bytes()).await.unwrap();
    gate.server.world.first(|seen| seen.rpc() == "subscriptions/listen").await;
    gate.admit(BUT_SECRET);
    answers.cancel();
    let mut text = String::new();
    in_time(stream.read_to_string(&mut text)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains(SECRET), "{text}");
}

/// The stream began before the reload, for a caller with all rights.
#[tokio::test]
async fn sec_48_a_running_calls_stream_tells_nothing_of_a_resource_that_is_withheld_now() {
    let (events, call) = Once::events();
    let script = move |seen: &SeenRequest| match seen.rpc() {
        "tools/call" => call.take(),
        "tools/list" => Some(answer(seen, &json!({ "tools": [{ "name": "quick", "inputSchema": {} }] }))),
        _ => None,
    };
    let mut gate = Gate::behind(ScriptedServer::start(script).await, LISTEN, ALL, "").await;
    let session = gate.session_of("").await;
    let update = || tell(&events, "notifications/resources/updated", json!({ "uri": SECRET }));
    update();
    let call = Ask::session("", Some(&session), "tools/call", &named("quick"));
    let (mut text, mut stream) = gate.begin(&call.with("MCP-Protocol-Version", "2025-11-25")).await;
    until(&mut stream, &mut text, SECRET).await;
    gate.admit(BUT_SECRET);
    text.clear();
    update();
    tell(&events, "notifications/tools/list_changed", json!({}));
    until(&mut stream, &mut text, "list_changed").await;
    assert!(!text.contains(SECRET), "{text}");
}

/// A server refuses a subscription with a resource that the client has lost; the others are subscribed to again.
#[tokio::test]
async fn sec_48_an_endpoint_subscribes_again_to_the_resources_that_are_left() {
    let (server, _streams) = notifying(true).await;
    let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\"]\n";
    let mut gate = Gate::behind(server, LISTEN, ALL, endpoint).await;
    let open = "file:///public/a";
    let wanted = json!({ "notifications": { "resourceSubscriptions": [SECRET, open] } });
    let (mut text, mut stream) = gate.begin(&Ask::new("", "subscriptions/listen", wanted).at("/all/mcp")).await;
    until(&mut stream, &mut text, "acknowledged").await;
    text.clear();
    gate.admit(BUT_SECRET);
    let again = gate.server.world.nth(1, |seen| seen.rpc() == "subscriptions/listen").await;
    assert_eq!(again.body["params"]["notifications"]["resourceSubscriptions"], json!([open]));
    // An update may have been missed.
    until(&mut stream, &mut text, open).await;
    assert!(!text.contains(SECRET), "{text}");
}

/// The messages that end a session, and cancel its call.
fn endings(key: &str, session: &str) -> [Ask; 2] {
    let ask = |body: String| Ask { body, ..Ask::session(key, Some(session), "x", &json!({})) };
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    [Ask { verb: "DELETE", ..ask(String::new()) }.without("content-type"), ask(cancelled.to_string())]
}

#[tokio::test]
async fn a_session_at_an_endpoint_ends_at_a_server_that_its_client_has_lost() {
    let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"other\"]\n\
                    [upstreams.other]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let mut world = World::start(endpoint).await;
    let session = world.gate.session_at("/all/mcp", &world.token).await;
    world.gate.reload_with(|config| config.access = access(OTHER)).unwrap();
    let [end, _] = endings(&world.token, &session);
    assert_eq!(world.ask(end.at("/all/mcp")).await.status(), "200");
    world.gate.server.world.first(|seen| seen.method == "DELETE").await;
}

/// The gateway looks for the tool in the server's list first, at a server of either era.
#[tokio::test]
async fn b240_a_call_is_not_sent_once_its_session_has_ended_or_its_client_cancels_it() {
    for (is_stateless, by) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let lists = CancellationToken::new();
        let waits = lists.clone();
        let server = ScriptedServer::slow(move |seen: SeenRequest, _: Arc<ScriptedState>| {
            let waits = waits.clone();
            async move {
                let is_list = seen.rpc() == "tools/list";
                if is_list {
                    waits.cancelled().await;
                }
                if is_stateless || is_list { without_sessions(&seen) } else { None }
            }
        });
        let rules = "[[auth.rules]]\ntools = [\"quick\"]\nallow = true\n";
        let gate = Gate::behind(server.await, LISTEN, rules, "").await;
        let session = gate.session_of("").await;
        let call = Ask::session("", Some(&session), "tools/call", &named("quick"));
        let ending = async {
            gate.server.world.first(|seen| seen.rpc() == "tools/list").await;
            let ended = gate.send(&endings("", &session)[by]).await;
            assert!(ended.status().starts_with('2'), "{ended:?}");
            lists.cancel();
        };
        let (answered, ()) = tokio::join!(gate.send(&call), ending);
        assert_eq!(gate.server.world.count("tools/call"), 0, "{is_stateless} {by}: {answered:?}");
    }
}

/// With clients' own credentials the server is asked for its capabilities each time.
#[tokio::test]
async fn b241_a_session_that_ends_while_its_stream_opens_has_no_stream() {
    let (asked, answers) = (Arc::new(Mutex::new(false)), CancellationToken::new());
    let (is_held, waits) = (Arc::clone(&asked), answers.clone());
    let server = ScriptedServer::slow(move |seen: SeenRequest, _: Arc<ScriptedState>| {
        let (is_held, waits) = (*is_held.lock() && seen.rpc() == "server/discover", waits.clone());
        async move {
            if is_held {
                waits.cancelled().await;
            }
            without_sessions(&seen)
        }
    });
    let gate = Gate::behind(server.await, LISTEN, "", "forward_authorization = true\n").await;
    let session = gate.session_of("token").await;
    *asked.lock() = true;
    let is_discover = |seen: &SeenRequest| seen.rpc() == "server/discover";
    let before = gate.server.world.all(is_discover).len();
    let get = Ask { verb: "GET", ..endings("token", &session)[0].clone() };
    let ending = async {
        gate.server.world.nth(before, is_discover).await;
        assert_eq!(gate.send(&endings("token", &session)[0]).await.status(), "200");
        answers.cancel();
    };
    let (opened, ()) = tokio::join!(gate.send(&get), ending);
    assert_eq!(opened.status(), "404", "{opened:?}");
}

/// SEC-48: a result holds no update, so the gateway does not hold it to look for one.
#[tokio::test]
async fn a_caller_with_rules_about_resources_gets_a_piped_result_of_any_size() {
    let server = stateless(|seen| {
        let (events, reply) = BodySender::open();
        let result = json!({ "resultType": "complete", "content": [], "pad": "x".repeat(2 << 20), "z": "its end" });
        events.message(&json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result }));
        seen.is_call().then_some(reply)
    });
    let rules = "[[auth.rules]]\nresources = [\"file:///public/*\"]\nallow = true\n\
                 [[auth.rules]]\ntools = [\"quick\"]\nallow = true\n";
    let mut gate = Gate::behind(server.await, LISTEN, rules, "").await;
    gate.reload_with(|config| config.upstreams[0].service.result_bytes_max = 1 << 20).unwrap();
    let (mut text, mut stream) = gate.begin(&Ask::call("", "quick", &json!({}))).await;
    until(&mut stream, &mut text, "its end").await;
}

impl Gate {
    /// The head of an answer, and the rest of it.
    async fn begin(&self, ask: &Ask) -> (String, TcpStream) {
        let (mut stream, mut head) = (TcpStream::connect(self.gateway.address()).await.unwrap(), String::new());
        stream.write_all(&ask.bytes()).await.unwrap();
        until(&mut stream, &mut head, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        (head, stream)
    }
}

/// One session, with streams of a wide token and of a narrow one: the narrow one is the newest.
#[tokio::test]
async fn sec_49_messages_of_a_task_go_to_a_stream_whose_caller_may_read_it() {
    let world = World::start("").await;
    let session = world.gate.session_at("/mcp", &world.token).await;
    let own = |token: &str| {
        let ask = Ask::session(token, Some(&session), "x", &json!({})).without("content-type");
        Ask { verb: "GET", body: String::new(), ..ask.with("MCP-Protocol-Version", "2025-11-25") }
    };
    let (mut wide, mut wide_stream) = world.gate.begin(&own(&world.token)).await;
    let (mut narrow, narrow_stream) = world.gate.begin(&own(&world.narrow)).await;
    let call = json!({ "name": "ask", "arguments": {}, "task": {} });
    let made = world.ask(world.in_session(&session, "tools/call", &call)).await.json();
    let task = made["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    until(&mut wide_stream, &mut wide, "elicitation/create").await;
    let question =
        wide.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| data.contains("elicitation/create"));
    let question: Value = serde_json::from_str(question.unwrap()).unwrap();
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} } });
    let ask = Ask { body: reply.to_string(), ..world.in_session(&session, "x", &json!({})) };
    assert_eq!(world.ask(ask).await.status(), "202");
    until(&mut wide_stream, &mut wide, "\"completed\"").await;
    let mut rest = vec![0; 4_096];
    let read = narrow_stream.try_read(&mut rest).unwrap_or_default();
    narrow.push_str(&String::from_utf8_lossy(&rest[..read]));
    assert!(!narrow.contains(&task) && !narrow.contains("elicitation"), "{narrow}");
}

/// A reload that brings tokens, and removes a server to which clients' `Authorization` was forwarded.
#[tokio::test]
async fn sec_50_a_token_does_not_reach_a_removed_server() {
    let (issuer, server) = (Issuer::new(), ScriptedServer::slow(async |seen, world| Some(polite(&seen, &world))).await);
    let gone =
        format!("[upstreams.gone]\nurl = \"{}\"\npath = \"/gone/mcp\"\nforward_authorization = true\n", server.url());
    let keys = format!("mode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n");
    let mut gate = Gate::behind(server, LISTEN, &(keys + &gone), "").await;
    gate.admit(&issuer.auth());
    let token = issuer.token(&["/gone/mcp"]);
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    let listen = Ask::new(&token, "subscriptions/listen", filter).at("/gone/mcp");
    assert_eq!(gate.send(&listen).await.status(), "404", "F115");
    let shown = gate.server.world.all(|seen| seen.header("authorization").is_some());
    assert!(shown.is_empty(), "{shown:?}");
}
