//! Clients that are newer or older than their upstream.

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Client, TestGateway, call, initialize};
use super::upstream::{Once, ScriptedServer, SeenRequest};

/// Opens a session of version `client` at an upstream that speaks `upstream` alone (`""`: any version). Returns the
/// version that the gateway asked for, the one that the client got, and the header of a later request.
async fn handshake(client: &str, upstream: &'static str) -> (String, String, Option<String>) {
    let server = ScriptedServer::polite().await;
    if !upstream.is_empty() {
        *server.world.initialize_result.lock() = json!({ "protocolVersion": upstream });
    }
    let gate = TestGateway::before(&server).await;
    let client = gate.client_of(client).await;
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
    let asked = server.world.first(|seen| seen.rpc() == "initialize").await;
    let header = server.world.first(SeenRequest::is_call).await.header("mcp-protocol-version").map(str::to_owned);
    (asked.body["params"]["protocolVersion"].as_str().unwrap().to_owned(), client.version.unwrap(), header)
}

/// LEG-02: at most 2025-11-25 is answered.
#[tokio::test]
async fn a_version_without_sessions_is_answered_with_the_newest_that_has_them() {
    for (client, upstream, asked, told, header) in [
        ("2026-07-28", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
        ("2026-06-30", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
        ("1999-01-01", "", "2025-11-25", "2025-11-25", Some("2025-11-25")),
    ] {
        let expected = (asked.to_owned(), told.to_owned(), header.map(str::to_owned));
        assert_eq!(handshake(client, upstream).await, expected, "{client} before {upstream}");
    }
}

#[tokio::test]
async fn an_upstream_that_speaks_no_session_version_is_malformed() {
    let server = ScriptedServer::polite().await;
    *server.world.initialize_result.lock() = json!({ "protocolVersion": "2026-07-28" });
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    let error = reply.json().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("upstream_malformed")));
    let ended = server.world.first(|seen| seen.method == "DELETE").await;
    assert_eq!(ended.header("mcp-session-id"), Some("s-1"), "B268");
}

/// UPC-22.
#[tokio::test]
async fn an_upstream_that_refuses_newer_versions_is_asked_for_its_own() {
    let server = ScriptedServer::start(|seen| {
        let is_newer = seen.body["params"]["protocolVersion"] != "2025-03-26";
        let error =
            json!({"code": -32602, "message": "Unsupported", "data": {"supported": ["2025-03-26", "2024-11-05"]}});
        (seen.rpc() == "initialize" && is_newer).then(|| {
            super::upstream::json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string())
        })
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client_of("2025-11-25").await;
    assert_eq!(client.version.as_deref(), Some("2025-11-25"));
    let asked: Vec<Value> = server
        .world
        .all(|seen| seen.rpc() == "initialize")
        .iter()
        .map(|seen| seen.body["params"]["protocolVersion"].clone())
        .collect();
    assert_eq!(asked, [json!("2025-11-25"), json!("2025-03-26")]);
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
}

/// LEG-05.
#[tokio::test]
async fn only_an_unknown_version_in_the_header_is_refused() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client().await;
    for (version, status) in [(None, 200), (Some("2025-03-26"), 200), (Some("2025-11-25"), 200), (Some("v9"), 400)] {
        client.version = version.map(str::to_owned);
        assert_eq!(client.post(call(1)).await.status.as_u16(), status, "{version:?}");
    }
}

/// A kind of client: its version, whether it names it in a header, whether it knows priming events and arrays, and
/// whether it is offered tasks.
struct Kind {
    version: &'static str,
    names_it: bool,
    knows_primers: bool,
    knows_arrays: bool,
    has_tasks: bool,
}

/// GW-01: 2024-11-05 too.
const CLIENTS: [Kind; 4] = [
    Kind { version: "2024-11-05", names_it: false, knows_primers: false, knows_arrays: false, has_tasks: false },
    Kind { version: "2025-03-26", names_it: false, knows_primers: false, knows_arrays: true, has_tasks: false },
    Kind { version: "2025-06-18", names_it: true, knows_primers: false, knows_arrays: false, has_tasks: false },
    Kind { version: "2025-11-25", names_it: true, knows_primers: true, knows_arrays: false, has_tasks: true },
];

/// A version of upstreams, and the header with which they want it repeated (UPC-25).
const UPSTREAMS: [(&str, Option<&str>); 4] = [
    ("2024-11-05", None),
    ("2025-03-26", None),
    ("2025-06-18", Some("2025-06-18")),
    ("2025-11-25", Some("2025-11-25")),
];

const PRIMER: &str = "id: 1\nretry: 3000\ndata:\n\n";
const REST: &str = ": c\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
const LOG: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"n":1.10}}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"z":1,"a":2}}"#;

/// A client of one kind in front of an upstream of one version, whose first call is answered with `sent`.
struct Pair {
    server: ScriptedServer,
    client: Client,
    _gate: TestGateway,
}

impl Pair {
    async fn meet(kind: &Kind, upstream: &str, media: &'static str, sent: &str) -> Self {
        let (body, stream) = Once::body(media);
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        *server.world.initialize_result.lock() = json!({ "protocolVersion": upstream });
        for piece in sent.as_bytes().chunks(7) {
            body.raw(piece.to_vec());
        }
        let gate = TestGateway::before(&server).await;
        let mut client = gate.client_of(kind.version).await;
        assert_eq!(client.version.as_deref(), Some(kind.version), "LEG-02");
        if !kind.names_it {
            client.version = None;
        }
        Self { server, client, _gate: gate }
    }

    async fn shown(&self) -> String {
        let reply = self.client.post(call(1)).await;
        assert_eq!(reply.status, StatusCode::OK);
        reply.text().await
    }
}

fn pairs() -> impl Iterator<Item = (&'static Kind, &'static str, Option<&'static str>, String)> {
    CLIENTS.iter().flat_map(|kind| {
        UPSTREAMS.map(|(upstream, header)| (kind, upstream, header, format!("{} before {upstream}", kind.version)))
    })
}

/// UPC-25: the gateway asks the upstream for the client's version, and later sends the upstream's own on every request,
/// where that version has the header.
#[tokio::test]
async fn each_side_hears_of_its_own_version_alone() {
    for (kind, upstream, header, name) in pairs() {
        let pair = Pair::meet(kind, upstream, "application/json", RESULT).await;
        let ready = pair.client.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        assert_eq!(ready.status, StatusCode::ACCEPTED, "{name}");
        assert_eq!(pair.shown().await, RESULT, "{name}");
        // The server has no such stream. Where there are tasks, they may have something to say on it.
        let stream = if kind.has_tasks { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        assert_eq!(pair.client.get(None).await.status, stream, "{name}");
        assert_eq!(pair.client.delete().await.status, StatusCode::OK, "{name}");
        let seen = pair.server.world.all(|_| true);
        assert_eq!(seen[0].body["params"]["protocolVersion"], kind.version, "{name}");
        let headers: Vec<_> = seen.iter().map(|seen| seen.header("mcp-protocol-version")).collect();
        assert_eq!(headers, [None, header, header, header, header], "{name}");
    }
}

/// T-28: older clients take the empty data for JSON.
/// LEG-10.
#[tokio::test]
async fn priming_events_are_kept_from_clients_that_do_not_know_them() {
    for (kind, upstream, _, name) in pairs() {
        let pair = Pair::meet(kind, upstream, "text/event-stream", &format!("{PRIMER}{REST}")).await;
        let expected = if kind.knows_primers { format!("{PRIMER}{REST}") } else { REST.to_owned() };
        assert_eq!(pair.shown().await, expected, "{name}");
    }
}

/// UPC-26: arrays of a server are split for clients that have none, at any version of the server.
#[tokio::test]
async fn arrays_reach_only_clients_that_know_them() {
    let array = format!("[{LOG}, {RESULT}]");
    let event = format!("id: 7\ndata: {array}\n\n");
    let split = format!("event: message\ndata: {LOG}\n\nevent: message\ndata: {RESULT}\n\n");
    let split_event = format!("data: {LOG}\n\nid: 7\ndata: {RESULT}\n\n");
    for (kind, upstream, _, name) in pairs() {
        let is_split = !kind.knows_arrays;
        for (media, sent, taken_apart) in
            [("application/json", &array, &split), ("text/event-stream", &event, &split_event)]
        {
            let pair = Pair::meet(kind, upstream, media, sent).await;
            let expected = if is_split { taken_apart } else { sent };
            assert_eq!(pair.shown().await, *expected, "{name}, {media}");
        }
    }
}

/// UPC-26: the upstream gets no array, at any version.
#[tokio::test]
async fn arrays_are_taken_from_clients_that_have_them() {
    for (kind, upstream, _, name) in pairs() {
        let pair = Pair::meet(kind, upstream, "application/json", RESULT).await;
        let reply = pair.client.post(format!("[{},{}]", call(2), call(3))).await;
        let calls = if kind.knows_arrays {
            assert_eq!(reply.status, StatusCode::OK, "{name}");
            reply.text().await;
            2
        } else {
            assert_eq!(reply.verdict().await, "400 -32600", "{name}");
            0
        };
        assert_eq!(pair.server.world.count("tools/call"), calls, "{name}");
    }
}

/// GW-05: an upstream of an older version does not get capabilities that its version lacks.
/// LEG-16.
#[tokio::test]
async fn an_upstream_gets_only_capabilities_of_its_version() {
    let said = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}});
    let known = json!({"elicitation": {}, "sampling": {"tools": {}}});
    for (protocol, told) in [("2025-11-25", &said), ("2025-06-18", &known)] {
        let server = ScriptedServer::polite().await;
        let gate = TestGateway::with(server.address, &format!("protocol = \"{protocol}\"")).await;
        let mut client = gate.client_without_session();
        let reply = client.post(initialize("2025-11-25", &said)).await;
        client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
        assert_eq!(reply.json().await["result"]["protocolVersion"], "2025-11-25", "the client's own version");
        server.world.forget();
        assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
        let anew = server.world.first(|seen| seen.rpc() == "initialize").await;
        assert_eq!(anew.body["params"]["protocolVersion"], protocol);
        assert_eq!(anew.body["params"]["capabilities"], *told, "{protocol}");
    }
}

/// GW-05: 2025-06-18 names the titles of choices in another member, and has no lists.
#[tokio::test]
async fn a_form_of_a_newer_upstream_reaches_a_client_in_its_version() {
    let choice = json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g"}]});
    let older = json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "g"]});
    let list = json!({"type": "array", "items": {"type": "string", "enum": ["a"]}});
    for (version, field, shown) in
        [("2025-06-18", &choice, &older), ("2025-06-18", &list, &list), ("2025-11-25", &choice, &choice)]
    {
        let (events, stream) = Once::events();
        let schema = json!({"type": "object", "properties": {"n": field}});
        let params = json!({"mode": "form", "message": "?", "requestedSchema": schema});
        events.message(&json!({"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": params}));
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        *server.world.initialize_result.lock() = json!({ "protocolVersion": "2025-11-25" });
        let gate = TestGateway::before(&server).await;
        let client = gate.client_of(version).await;
        let mut reply = client.post(call(1)).await;
        let mut asked = String::new();
        while !asked.contains("elicitation/create") {
            asked = reply.until("\n\n").await;
        }
        let data = asked.lines().find_map(|line| line.strip_prefix("data:")).unwrap();
        let question: Value = serde_json::from_str(data).unwrap();
        assert_eq!(question["params"]["requestedSchema"]["properties"]["n"], *shown, "{version}: {question}");
        assert_eq!(question["params"]["mode"].is_null(), shown == &older, "{version}: {question}");
        let said = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
        assert_eq!(client.post(said.to_string()).await.status, StatusCode::ACCEPTED);
        server.world.first(|seen| seen.body["id"] == 7 && seen.body["result"]["action"] == "decline").await;
    }
}

/// GW-05: until 2025-06-18 a sampling result has one content, no array.
#[tokio::test]
async fn an_older_upstream_gets_the_only_content_of_a_sampling_result() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (upstream, contents, member, heard) in [
        ("2025-06-18", json!([text("a")]), "/result/content", text("a")),
        ("2025-06-18", json!([text("a"), text("b")]), "/error/code", json!(-32603)),
        ("2025-11-25", json!([text("a"), text("b")]), "/result/content", json!([text("a"), text("b")])),
    ] {
        let (events, stream) = Once::events();
        let params = json!({ "messages": [], "maxTokens": 1 });
        events.message(&json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": params}));
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        *server.world.initialize_result.lock() = json!({ "protocolVersion": upstream });
        let gate = TestGateway::before(&server).await;
        let client = gate.client().await;
        let mut reply = client.post(call(1)).await;
        let mut asked = String::new();
        while !asked.contains("createMessage") {
            asked = reply.until("\n\n").await;
        }
        let data = asked.lines().find_map(|line| line.strip_prefix("data:")).unwrap();
        let id = serde_json::from_str::<Value>(data).unwrap()["id"].clone();
        let result = json!({"role": "assistant", "model": "m", "content": contents});
        let said = json!({"jsonrpc": "2.0", "id": id, "result": result});
        assert_eq!(client.post(said.to_string()).await.status, StatusCode::ACCEPTED);
        let told = server.world.first(|seen| seen.body["id"] == 7 && seen.body.get("method").is_none()).await;
        assert_eq!(told.body.pointer(member), Some(&heard), "{upstream}: {}", told.body);
    }
}
