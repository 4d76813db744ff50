//! A server whose slow tool waits for the test, a gateway in front of it, and clients of either kind.

use std::sync::Arc;

use ::bytes::Bytes;
use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use support::hostile_twin;
use taskgate::app::Gateway;
use taskgate::config;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::client::{BOTH, Client, HttpOptions, Reply, initialize};
use super::upstream::{
    BodySender, ScriptedServer, ScriptedState, SeenRequest, answer, in_time, json_text, polite, status,
};

pub(crate) const STATELESS: &str = "2026-07-28";
pub(crate) const SESSION: &str = "2025-11-25";
pub(crate) const OLDER: &str = "2025-03-26";

/// How clients and servers meet: every pair of kinds.
pub(crate) const PAIRS: [(&str, &str); 5] =
    [(SESSION, SESSION), (OLDER, SESSION), (SESSION, STATELESS), (STATELESS, SESSION), (STATELESS, STATELESS)];

/// A quick tool has all the time of a busy machine.
pub(crate) const TOOLS: &str = "[upstreams.up.tasks]\nfallback = \"tools\"\n\
    [[upstreams.up.tools]]\nmatch = \"slow\"\ngrace = \"100ms\"\n\
    [[upstreams.up.tools]]\nmatch = \"asks\"\ngrace = \"100ms\"\n";

/// The same with more keys for `slow`: of two sections that fit a tool the first is its own.
pub(crate) fn tools_with(keys_of_slow: &str) -> String {
    let slow = "match = \"slow\"\n";
    TOOLS.replace(slow, &format!("{slow}{keys_of_slow}\n"))
}

pub(crate) const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
pub(crate) const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";

/// A server: `slow` ends when the test says so, and asks before where its arguments say `ask`; `quick` ends at once.
pub(crate) struct Setup {
    pub(crate) server: ScriptedServer,
    ends: Arc<Semaphore>,
}

impl Setup {
    /// `more` are tools of its second page.
    pub(crate) async fn of(version: &'static str, more: &'static [&'static str]) -> Self {
        let ends = Arc::new(Semaphore::new(0));
        let given = Arc::clone(&ends);
        let server = ScriptedServer::slow(move |seen, world| {
            let ends = Arc::clone(&given);
            async move { Some(act(version, more, &seen, &world, &ends).await) }
        })
        .await;
        Self { server, ends }
    }

    /// Lets one slow call end.
    pub(crate) fn end_one(&self) {
        self.ends.add_permits(1);
    }
}

async fn act(
    version: &'static str,
    more: &[&str],
    seen: &SeenRequest,
    world: &Arc<ScriptedState>,
    ends: &Arc<Semaphore>,
) -> super::upstream::ScriptedReply {
    let is_stateless = version == STATELESS;
    let complete = |mut result: Value| {
        if is_stateless {
            result["resultType"] = json!("complete");
        }
        answer(seen, &result)
    };
    let tool = |name: &&str| match *name {
        "slow" => {
            json!({ "name": name, "inputSchema": { "type": "object" }, "outputSchema": { "type": "object", "required": ["n"] } })
        }
        _ => json!({ "name": name, "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" } }),
    };
    let list = |names: &[&str]| names.iter().map(tool).collect::<Vec<_>>();
    match (seen.rpc(), seen.body["params"]["name"].as_str()) {
        ("tools/list", _) if seen.body["params"]["cursor"].is_null() => {
            complete(json!({ "tools": list(&["slow", "quick"]), "nextCursor": "more" }))
        }
        ("tools/list", _) => complete(json!({ "tools": list(&[&["last"], more].concat()) })),
        ("tools/call", Some("slow")) => {
            ends.acquire().await.unwrap().forget();
            complete(json!({ "content": [{ "type": "text", "text": "done" }], "structuredContent": { "n": 1 } }))
        }
        ("tools/call", Some("asks")) if !is_stateless => asks(seen, world, ends),
        ("tools/call", Some("asks")) => asks_by_result(seen),
        ("tools/call", Some(name)) => {
            complete(json!({ "content": [{ "type": "text", "text": name }], "structuredContent": {} }))
        }
        ("server/discover", _) if is_stateless => complete(json!({
            "supportedVersions": [STATELESS],
            "capabilities": { "tools": {} },
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "scripted", "version": "1" } },
        })),
        ("initialize", _) if is_stateless => {
            let error = json!({ "code": -32022, "message": "no sessions", "data": { "supported": [STATELESS] } });
            let text = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }).to_string();
            let mut refusal = json_text(text);
            *refusal.status_mut() = http::StatusCode::BAD_REQUEST;
            refusal
        }
        ("server/discover", _) => {
            let error = json!({ "code": -32601, "message": "Method not found" });
            json_text(json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error }).to_string())
        }
        _ if is_stateless && seen.method != http::Method::POST => status(405),
        _ => polite(seen, world),
    }
}

/// Asks at once, or when the test says so, and returns the answer.
fn asks(seen: &SeenRequest, world: &Arc<ScriptedState>, ends: &Arc<Semaphore>) -> super::upstream::ScriptedReply {
    let (events, reply) = BodySender::open();
    let (seen, world, ends) = (seen.clone(), Arc::clone(world), Arc::clone(ends));
    TaskTracker::new().spawn(async move {
        if seen.body["params"]["arguments"]["waits"] == true {
            ends.acquire().await.unwrap().forget();
        }
        let params = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
        events.message(&json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params }));
        let told = world.first(|other| other.body["id"] == "q" && other.body.get("method").is_none()).await;
        let said = told.body["result"]["action"].as_str().unwrap_or("refused").to_owned();
        events.result(&seen, &json!({ "content": [{ "type": "text", "text": said }] }));
    });
    reply
}

/// The same as a server without sessions does it.
fn asks_by_result(seen: &SeenRequest) -> super::upstream::ScriptedReply {
    let params =
        json!({ "mode": "form", "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let question = json!({ "method": "elicitation/create", "params": params });
    let said = &seen.body["params"]["inputResponses"]["q"];
    if said.is_null() {
        let requests = json!({ "q": question });
        let result = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s" });
        return answer(seen, &result);
    }
    assert_eq!(seen.body["params"]["requestState"], "s");
    answer(seen, &json!({ "resultType": "complete", "content": [{ "type": "text", "text": said["action"] }] }))
}

/// A gateway in front of a server.
pub(crate) struct Gate {
    pub(crate) gateway: Gateway,
    _folder: TempDir,
    _hostile: Option<ScriptedServer>,
}

impl Gate {
    /// `keys` stand in the upstream's section, `before` in front of it.
    pub(crate) async fn open(server: &ScriptedServer, before: &str, keys: &str) -> Self {
        let (section, hostile) = hostile_twin::section("up", "/mcp", server.url().as_str()).await;
        let text = format!(
            "[store]\nkind = \"memory\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{before}\n\
             {section}{keys}\n"
        );
        let mut config = config::parse("test", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = in_time(Gateway::start(config, metrics)).await.unwrap();
        Self { gateway, _folder: folder, _hostile: hostile }
    }

    /// Ada and Bob may come, each with a key.
    pub(crate) async fn for_two(server: &ScriptedServer) -> Self {
        let keys = [("ada", ADA), ("bob", BOB)];
        let keys = keys.map(|(id, key)| format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n")).concat();
        Self::open(server, &format!("[auth]\nmode = \"api_keys\"\n{keys}"), TOOLS).await
    }
}

/// A client of one kind.
pub(crate) struct Person {
    pub(crate) client: Client,
    pub(crate) is_stateless: bool,
    /// The capabilities on every request, or in its handshake.
    capabilities: Value,
    key: Option<&'static str>,
}

impl Person {
    pub(crate) async fn meet(gate: &Gate, version: &str) -> Self {
        Self::with(gate, version, json!({}), None).await
    }

    pub(crate) async fn with(gate: &Gate, version: &str, capabilities: Value, key: Option<&'static str>) -> Self {
        let is_stateless = version == STATELESS;
        let client = Client {
            address: gate.gateway.address(),
            session: None,
            version: is_stateless.then(|| version.to_owned()),
            accept: BOTH,
            over: HttpOptions::default(),
            connections: TaskTracker::new(),
        };
        let mut person = Self { client, is_stateless, capabilities, key };
        if !is_stateless {
            let hello = initialize(version, &person.capabilities);
            let reply = person.post(&hello, &[]).await;
            person.client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
            person.client.version = Some(version.to_owned());
            let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            assert!(person.post(text, &[]).await.status.is_success());
        }
        person
    }

    pub(crate) async fn post(&self, body: &str, more: &[(&str, &str)]) -> Reply {
        let mut request = self.client.request("POST").header("content-type", "application/json");
        if let Some(key) = self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let request: http::Request<Full<Bytes>> = request.body(Full::from(body.to_owned())).unwrap();
        self.client.send(request).await
    }

    /// Sends a request; the head of its answer.
    pub(crate) async fn begin(&self, id: u32, method: &str, mut params: Value) -> Reply {
        if self.is_stateless {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        let name = params["name"].as_str().map(str::to_owned);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        let mut headers = Vec::new();
        if self.is_stateless {
            headers.push(("mcp-method", method));
            headers.extend(name.as_deref().map(|name| ("mcp-name", name)));
        }
        self.post(&body, &headers).await
    }

    /// The whole answer, as text.
    pub(crate) async fn text(&self, method: &str, params: Value) -> String {
        hostile_twin::unprefixed(in_time(self.begin(7, method, params)).await.text().await, "up")
    }

    /// The answer, be it JSON or the last event of a stream.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        last(&self.text(method, params).await)
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await["result"].take()
    }

    /// A call that outlives its grace period; the id of its task.
    pub(crate) async fn task(&self, tool: &str) -> String {
        let notice = self.call(tool, json!({})).await;
        let id = notice["structuredContent"]["taskId"].as_str().unwrap_or_else(|| panic!("no notice: {notice}"));
        id.to_owned()
    }

    /// All tools, page by page.
    pub(crate) async fn pages(&self) -> Vec<Vec<Value>> {
        let mut pages = Vec::new();
        let mut params = json!({});
        for _ in 0..5 {
            let answer = self.ask("tools/list", params).await;
            let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
            pages.push(hostile_twin::own_items(tools.clone()));
            match answer["result"]["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        pages
    }

    pub(crate) async fn tools(&self) -> Vec<String> {
        self.pages().await.concat().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn last(text: &str) -> Value {
    let event = text.lines().rev().find_map(|line| line.strip_prefix("data:"));
    serde_json::from_str(event.unwrap_or(text)).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

pub(crate) fn said(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}
