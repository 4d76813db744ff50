//! How a stream is opened, its owner, and the messages that reach it.

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use serde_json::{Value, json};
use taskgate::task::PrincipalLimits;

use super::client::{ADA, BOB, Gate, Stream, exchange, request, whole};
use super::program;
use super::upstream::{ScriptedServer, answer, in_time};

const PING: &str = r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;

#[tokio::test]
async fn leg_15_the_endpoint_comes_first_and_every_message_is_an_event() {
    let gate = Gate::before(ScriptedServer::polite().await).await;
    let mut stream = gate.stream(ADA).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert_eq!(stream.headers["cache-control"], "no-cache");
    let token = stream.endpoint.strip_prefix("/up/sse?session_id=").expect("a path of the same origin");
    assert!(token.len() > 40 && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    let result = stream.initialize("2024-11-05").await;
    assert_eq!(result["serverInfo"]["name"], "scripted");
    stream.call(1, "t", json!({ "n": 1 })).await;
    assert_eq!(stream.message().await, json!({ "jsonrpc": "2.0", "id": 1, "result": { "n": 1 } }));
    assert!(stream.is_silent().await);
}

/// LEG-02, LEG-17, GW-01: also in front of a server that speaks another version.
#[tokio::test]
async fn leg_02_a_client_speaks_any_version_over_it() {
    for theirs in ["2025-03-26", "2025-11-25"] {
        let server = ScriptedServer::polite().await;
        *server.world.initialize_result.lock() = json!({ "protocolVersion": theirs });
        let gate = Gate::before(server).await;
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            let mut stream = gate.stream(ADA).await;
            let result = stream.initialize(version).await;
            assert_eq!(result["protocolVersion"], version, "the server speaks {theirs}");
            assert_eq!(result["capabilities"].get("tasks").is_some(), version == "2025-11-25", "{result}");
            stream.call(1, "t", json!({ "n": 1.5 })).await;
            assert_eq!(stream.message().await["result"], json!({ "n": 1.5 }));
        }
        for version in ["2023-01-01", "2026-07-28"] {
            let mut stream = gate.stream(ADA).await;
            assert_eq!(stream.initialize(version).await["protocolVersion"], "2025-11-25", "asked for {version}");
        }
    }
}

/// LEG-17: a server that knows no sessions shows nothing of it to a client of the oldest version.
#[tokio::test]
async fn leg_02_the_oldest_version_is_spoken_in_front_of_the_newest_server() {
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "server/discover" => Some(answer(
            seen,
            &json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                "capabilities": { "tools": {} },
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "stateless", "version": "7" } },
            }),
        )),
        "tools/list" => {
            let tools = json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
            let result = json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" });
            Some(answer(seen, &result))
        }
        "tools/call" => Some(answer(seen, &json!({ "resultType": "complete", "content": [], "n": 1.5 }))),
        _ => None,
    });
    let gate = Gate::with(server.await, "protocol = \"2026-07-28\"").await;
    let mut stream = gate.stream(ADA).await;
    let result = stream.initialize("2024-11-05").await;
    assert_eq!(
        (&result["protocolVersion"], &result["serverInfo"]["name"]),
        (&json!("2024-11-05"), &json!("stateless"))
    );
    stream.ask(1, "tools/list", json!({})).await;
    let tools = json!([{ "name": "t", "inputSchema": { "type": "object" } }]);
    assert_eq!(stream.response().await.0["result"], json!({ "tools": tools }));
    stream.call(2, "t", json!({})).await;
    assert_eq!(stream.response().await.0["result"], json!({ "content": [], "n": 1.5 }));
}

#[tokio::test]
async fn leg_02_the_oldest_version_is_spoken_in_front_of_a_program() {
    let gate = program::GatewayProcess::new().await;
    let mut stream = Stream::open(gate.address, ADA).await;
    assert_eq!(stream.initialize("2024-11-05").await["protocolVersion"], "2024-11-05");
    let arguments = json!({ "seconds": 1, "steps": 2 });
    let meta = json!({ "progressToken": "p" });
    stream.ask(1, "tools/call", json!({ "name": "slow_report", "arguments": arguments, "_meta": meta })).await;
    let (report, before) = stream.response().await;
    assert!(report["result"]["content"][0]["text"].is_string(), "{report}");
    assert!(before.iter().any(|step| step["method"] == "notifications/progress"), "{before:?}");
    stream.call(2, "summarise", json!({ "text": "long" })).await;
    let question = stream.message().await;
    assert_eq!(question["method"], "sampling/createMessage");
    let said = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "short" } });
    stream.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": said })).await;
    let (summary, _) = stream.response().await;
    assert!(summary["result"]["content"][0]["text"].as_str().unwrap().contains("short"), "{summary}");
}

#[tokio::test]
async fn a_client_of_2026_07_28_needs_no_handshake_and_no_headers() {
    let server = ScriptedServer::start(|seen| {
        let tools = json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] });
        (seen.rpc() == "tools/list").then(|| answer(seen, &tools))
    });
    let gate = Gate::before(server.await).await;
    let mut stream = gate.stream(ADA).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    stream.ask(1, "tools/call", json!({ "name": "t", "arguments": { "content": [] }, "_meta": meta })).await;
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!(1), &json!("complete")), "{answer}");
}

fn posted(target: &str, key: &str, body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    let request = request("POST", target, key).header("content-type", "application/json");
    request.body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn sec_02_a_message_reaches_the_open_stream_of_its_own_principal_at_its_own_upstream_alone() {
    let gate = Gate::with(ScriptedServer::polite().await, "[upstreams.other]\nurl = \"http://127.0.0.1:9/mcp\"").await;
    let mut stream = gate.stream(ADA).await;
    stream.initialize("2024-11-05").await;
    let endpoint = stream.endpoint.clone();
    let elsewhere = endpoint.replace("/up/", "/other/");
    let (cut, longer) = (&endpoint[..endpoint.len() - 1], format!("{endpoint}A"));
    let gone = gate.stream(ADA).await.endpoint.clone();
    for (target, key) in [
        (endpoint.as_str(), BOB),
        (&elsewhere, ADA),
        (cut, ADA),
        (&longer, ADA),
        ("/up/sse?session_id=", ADA),
        ("/up/sse?session_id=00000000000000000000000000000000", ADA),
    ] {
        assert_eq!(whole(stream.address, posted(target, key, PING)).await, (404, String::new()), "{target}");
    }
    // The stream has ended, and the gateway notices it soon.
    in_time(async { while whole(stream.address, posted(&gone, ADA, PING)).await.0 != 404 {} }).await;
    assert!(stream.is_silent().await, "nothing of all that was for this stream");
    let others = format!("a=b&{}&c=d", endpoint.split_once('?').unwrap().1);
    assert_eq!(whole(stream.address, posted(&format!("/up/sse?{others}"), ADA, PING)).await.0, 202);
    assert_eq!(stream.message().await, json!({ "jsonrpc": "2.0", "id": 9, "result": {} }));
}

/// So that clients which try the current transport first find out (transports, backwards compatibility).
#[tokio::test]
async fn a_post_without_a_stream_and_other_methods_are_405() {
    let gate = Gate::before(ScriptedServer::polite().await).await;
    for (verb, target, allowed) in [
        ("POST", "/up/sse", "GET"),
        ("POST", "/up/sse?session=x", "GET"),
        ("DELETE", "/up/sse", "GET, POST"),
        ("PUT", "/up/sse", "GET, POST"),
    ] {
        let request = request(verb, target, ADA).header("content-type", "application/json");
        let (response, _connection) = exchange(gate.gateway.address(), request.body(Full::from(PING)).unwrap()).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["allow"]),
            (405, &allowed.parse().unwrap()),
            "{verb}"
        );
    }
}

/// B58 to B75: the rules of every path hold for this one.
#[tokio::test]
async fn every_guard_stands_before_the_stream_and_its_messages() {
    let gate = Gate::before(ScriptedServer::polite().await).await;
    let stream = gate.stream(ADA).await;
    let get = || request("GET", "/up/sse", ADA).header("accept", "text/event-stream");
    let post = || request("POST", &stream.endpoint, ADA).header("content-type", "application/json");
    let plain = |verb: &str, target: &str| http::Request::builder().method(verb).uri(target.to_owned());
    for (status, request, body) in [
        (406, request("GET", "/up/sse", ADA).header("accept", "application/json"), ""),
        (403, get().header("origin", "https://evil.example"), ""),
        // A client with a key may name any host.
        (401, plain("GET", "/up/sse").header("host", "evil.example"), ""),
        (401, plain("GET", "/up/sse").header("host", "localhost"), ""),
        (
            401,
            plain("POST", &stream.endpoint).header("host", "localhost").header("content-type", "application/json"),
            PING,
        ),
        (403, post().header("origin", "https://evil.example"), PING),
        (415, request("POST", &stream.endpoint, ADA).header("content-type", "text/plain"), PING),
        (400, post(), ""),
        (400, post(), "{"),
        (400, post(), r#"{"jsonrpc":"2.0","a":1,"a":2}"#),
        (400, post(), "7"),
        (202, post(), PING),
    ] {
        let what = format!("{request:?} {body}");
        let (found, _) = whole(stream.address, request.body(Full::from(body)).unwrap()).await;
        assert_eq!(found, status, "{what}");
    }
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"text":"{}"}}}}"#, "x".repeat(64 << 10));
    assert_eq!(stream.post(large).await.0, 413);
    let (status, body) = stream.post("{").await;
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()["error"]["code"].clone()), (400, json!(-32700)));
}

/// B94, B90: a message with an id is answered on the stream, where its client waits.
#[tokio::test]
async fn a_message_that_is_wrong_is_answered_on_the_stream_if_it_has_an_id() {
    let gate = Gate::before(ScriptedServer::polite().await).await;
    let mut stream = gate.client("2024-11-05").await;
    for (message, id, code) in [
        (r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":7}}"#, 3, -32602),
        (r#"{"jsonrpc":"1.0","id":4,"method":"ping"}"#, 4, -32600),
    ] {
        assert_eq!(stream.post(message).await.0, 202);
        let answer = stream.message().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(code)), "{answer}");
    }
    assert_eq!(stream.post(r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32603}}"#).await.0, 400, "B270");
}

#[tokio::test]
async fn before_the_handshake_only_ping_has_a_result() {
    let gate = Gate::before(ScriptedServer::polite().await).await;
    let mut stream = gate.stream(ADA).await;
    stream.ask(1, "ping", json!({})).await;
    assert_eq!(stream.message().await["result"], json!({}));
    stream.call(2, "t", json!({})).await;
    let refused = stream.message().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(2), &json!(-32600)), "{refused}");
    assert_eq!(gate.server.world.count("tools/call"), 0);
    stream.initialize("2024-11-05").await;
    stream.call(3, "t", json!({})).await;
    assert_eq!(stream.message().await["id"], 3);
}

#[tokio::test]
async fn sec_11_streams_of_one_principal_are_bounded_and_an_end_makes_room() {
    let gate = Gate::open(ScriptedServer::polite().await, "").await;
    let address = gate.gateway.address();
    let mut streams = Vec::new();
    for _ in 0..PrincipalLimits::SSE_STREAMS * PrincipalLimits::default().streams_max {
        streams.push(Stream::open(address, ADA).await);
    }
    let get = || request("GET", "/up/sse", ADA).header("accept", "text/event-stream").body(Full::default()).unwrap();
    let (refused, _connection) = exchange(address, get()).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert_eq!(whole(address, posted(&streams[0].endpoint, ADA, PING)).await.0, 202, "open streams are served");
    streams.pop();
    in_time(async { while exchange(address, get()).await.0.status() != 200 {} }).await;
}

#[tokio::test]
async fn b125_the_rate_of_a_principal_holds_for_streams_and_for_messages() {
    let rate = "requests_per_second = 1\nrequests_burst = 10";
    let gate = Gate::limited(ScriptedServer::polite().await, rate, "").await;
    let mut stream = gate.client("2024-11-05").await;
    let address = stream.address;
    // More than the burst; a request within a second of them is too much. Repeated until one comes so soon:
    let spend = || join_all((0..12).map(|_| whole(address, posted("/up/sse?session_id=x", ADA, PING))));
    let get = || request("GET", "/up/sse", ADA).body(Full::default()).unwrap();
    in_time(async {
        loop {
            spend().await;
            stream.post(PING).await;
            if stream.message().await["error"]["data"]["reason"] == "rate_limited" {
                break;
            }
        }
    })
    .await;
    in_time(async { while spend().await.iter().all(|(status, ..)| *status != 429) {} }).await;
    in_time(async {
        loop {
            spend().await;
            if exchange(address, get()).await.0.status() == 429 {
                break;
            }
        }
    })
    .await;
    assert_eq!(Stream::open(stream.address, BOB).await.key, BOB, "others do not feel it");
}

/// B125: an array counts as its messages. Each of these is worth the whole burst, which takes ten seconds to come back.
#[tokio::test]
async fn b125_the_rate_of_a_principal_counts_each_message_of_an_array() {
    let rate = "requests_per_second = 1\nrequests_burst = 10";
    let gate = Gate::limited(ScriptedServer::polite().await, rate, "").await;
    let mut stream = gate.client("2025-03-26").await;
    let pings = json!(vec![json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }); 11]).to_string();
    for _ in 0..2 {
        stream.post(pings.clone()).await;
    }
    while stream.message().await["error"]["data"]["reason"] != "rate_limited" {}
}
