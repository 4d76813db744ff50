//! Bytes that are not the gateway's leave as they came, both ways, in every form an answer has.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{StatusCode, Version};

use super::certificates::{self, Authority};
use super::client::{Client, HttpOptions, TestGateway, UPSTREAM_FIELDS, call};
use super::upstream::{BodySender, Once, ScriptedReply, ScriptedServer, SeenRequest, json_text};

/// Key order, number spelling, escapes, whitespace, nesting, unknown members and methods.
const REQUESTS: [&str; 8] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"z":1.10,"a":1e5,"m":-0}}}"#,
    r#"{"method":"tools/call","params":{"arguments":{"n":12345678901234567890123},"name":"t"},"id":"x","jsonrpc":"2.0"}"#,
    "  {\r\n\t\"jsonrpc\" : \"2.0\" , \"id\" : \"\\u0041\\n\" , \"method\" : \"unknown/method\" , \"params\" : [1.0, null] }\n",
    r#"{"jsonrpc":"2.0","id":-7,"method":"tools\/call","params":{"name":"\u0074","arguments":{"s":"\ud83d\ude00 \u00e9 é"}}}"#,
    r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"prompts/get","params":{"name":"p","_meta":{"k":{"k":[]}}}}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"x://y","extra":{"":"","\u0000":0}}}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"a":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}"#,
    r#"{"jsonrpc":"2.0","id":4,"method":"completion/complete"}"#,
];

/// Messages without an answer: notifications, known and unknown, and answers to questions of the upstream.
const NOTES: [&str; 6] = [
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    r#"{ "method":"notifications/unknown", "params":{"n":1.10},"jsonrpc":"2.0"}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#,
    r#"{"jsonrpc":"2.0","id":"q-1","result":{"z":1.0,"a":[]}}"#,
    r#"{"result":{"n":12345678901234567890123,"s":"\/"},"jsonrpc":"2.0","id":0}"#,
    r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no","data":{"b":1,"a":2}}}"#,
];

const JSON_ANSWERS: [&str; 4] = [
    r#"{"result":{"z":1.10,"a":12345678901234567890123,"s":"\u0041\/"},"id":1,"jsonrpc":"2.0"}"#,
    "\n {\"jsonrpc\":\"2.0\",\r\n\t\"id\":1, \"result\" : { } } \n",
    r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"\ud83d\ude00","data":[1e400]}}"#,
    r#"{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2,"resultType":"x"},"odd":true}"#,
];

/// The stream of a call: every kind of line and line end, an odd notification, a question, the answer.
const STREAM: &str = "\u{feff}: hello\r\nid: e-1\ndata:\n\nretry: 17\nid:e-2\nevent: message\ndata:  {\"jsonrpc\":\"2.0\",\n\
    data: \"method\":\"notifications/odd\",\"params\":{\"n\":1.10}}\n\nx-unknown: 1\n\n\
    data: {\"params\":{\"z\":1.10,\"a\":[[]]},\"method\":\"sampling\\/createMessage\",\"id\":\"q-1\",\"jsonrpc\":\"2.0\"}\n\n\
    data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":12345678901234567890123}}\r\n\r\n: bye\r\r";

/// The session's own stream: a question out of the blue.
const NEWS: &str = "id: 1\ndata: {\"id\":0,\"jsonrpc\":\"2.0\",\"method\":\"roots/list\",\"params\":{\"n\":1.10}}\n\n";

/// Answers a call of the tool `json-N`, one of `events`, and a GET.
fn odd(seen: &SeenRequest) -> Option<ScriptedReply> {
    let tool = seen.body["params"]["name"].as_str().unwrap_or_default();
    match (seen.method.as_str(), tool) {
        ("GET", _) => Some(in_pieces(NEWS)),
        (_, "events") => Some(in_pieces(STREAM)),
        _ => tool.strip_prefix("json-").map(|at| json_text(JSON_ANSWERS[at.parse::<usize>().unwrap()])),
    }
}

fn in_pieces(text: &str) -> ScriptedReply {
    let (events, reply) = BodySender::open();
    for piece in text.as_bytes().chunks(7) {
        events.raw(piece.to_vec());
    }
    reply
}

fn call_of(tool: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}"}}}}"#)
}

async fn check_bytes(name: &str, client: &Client, server: &ScriptedServer, upstream: Version) {
    for (texts, status) in [(&REQUESTS[..], StatusCode::OK), (&NOTES, StatusCode::ACCEPTED)] {
        for text in texts {
            let reply = client.post(*text).await;
            assert_eq!(reply.status, status, "{name}: {text}");
            let is_empty = reply.text().await.is_empty();
            assert_eq!(is_empty, status == StatusCode::ACCEPTED, "LEG-06, {name}: {text}");
            let seen = server.world.all(|seen| seen.bytes == text.as_bytes());
            assert_eq!(seen.len(), 1, "{name}: {text} arrived as it was sent");
            assert_eq!(seen[0].version, upstream, "{name}");
        }
    }
    for (at, text) in JSON_ANSWERS.iter().enumerate() {
        let reply = client.post(call_of(&format!("json-{at}"))).await;
        assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("application/json")), "{name}");
        assert_eq!(reply.text().await, *text, "{name}");
    }
    // A byte order mark in front of a stream is no part of its text, and is left out.
    let stream = STREAM.strip_prefix('\u{feff}').unwrap();
    for (reply, text) in [(client.post(call_of("events")).await, stream), (client.get(None).await, NEWS)] {
        assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")), "{name}");
        assert_eq!(reply.text().await, text, "{name}");
    }
}

/// Every way in and every way on: HTTP/1.1 and HTTP/2, plain and over TLS.
/// LEG-06.
#[tokio::test]
async fn bytes_pass_unchanged_over_every_version_of_http_and_tls() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let files = authority.vouch(|_| ()).write(folder.path(), "server");
    let ca = certificates::write(folder.path(), "ca.pem", "CERTIFICATE", authority.certificate());
    let trust = format!("tls = {{ ca = \"{}\" }}", ca.display());
    let identity = format!("certificate = \"{}\"\nkey = \"{}\"", files.certificate.display(), files.key.display());
    for (upstream, alpn) in
        [(Version::HTTP_11, None), (Version::HTTP_11, Some("http/1.1")), (Version::HTTP_2, Some("h2"))]
    {
        let tls = alpn.map(|alpn| authority.vouch(|_| ()).server(&[alpn], None));
        let server = ScriptedServer::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), tls, odd).await;
        let port = server.address.port();
        let (url, keys) = match alpn {
            None => (format!("http://127.0.0.1:{port}/mcp"), ""),
            Some(_) => (format!("https://localhost:{port}/mcp"), trust.as_str()),
        };
        for listen in [String::new(), format!("[listen.tls]\n{identity}")] {
            let gate = TestGateway::open(&listen, &url, keys).await;
            for (version, own) in [(Version::HTTP_11, "http/1.1"), (Version::HTTP_2, "h2")] {
                server.world.forget();
                let tls = (!listen.is_empty()).then(|| Arc::new(authority.client(&[own])));
                let over = if tls.is_some() { "TLS" } else { "TCP" };
                let name = format!("{version:?} over {over} to {upstream:?} with {alpn:?}");
                let client =
                    gate.client_over(HttpOptions { version, tls, ..HttpOptions::default() }, "2025-11-25").await;
                check_bytes(&name, &client, &server, upstream).await;
            }
        }
    }
}

#[tokio::test]
async fn the_first_bytes_arrive_before_the_last_are_sent() {
    for (media, version) in [
        ("text/event-stream", Version::HTTP_11),
        ("application/json", Version::HTTP_11),
        ("text/event-stream", Version::HTTP_2),
        ("application/json", Version::HTTP_2),
    ] {
        let (body, stream) = Once::body(media);
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        body.raw("data: 1\n\n");
        let client = gate.client_over(HttpOptions { version, ..HttpOptions::default() }, "2025-11-25").await;
        let mut reply = client.post(call(1)).await;
        assert_eq!(reply.until("data: 1\n\n").await, "data: 1\n\n", "{media} over {version:?}");
        body.raw("data: {\"jsonrpc\":\"2.0\",\"result\":{");
        // Once it is known to be an answer, and no question.
        assert!(reply.until("result\":{").await.starts_with("data: "), "half an event of {media} is not held back");
        let rest = "},\"id\":1}\n\n";
        body.raw(rest);
        drop(body);
        assert_eq!(reply.text().await, rest);
    }
}

#[tokio::test]
async fn answers_of_any_size_go_through() {
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{}"}}}}"#, "x".repeat(40 << 20));
    let large = ::bytes::Bytes::from(large);
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| json_text(large.clone()))).await;
    let gate = TestGateway::before(&server).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let client = gate.client_over(HttpOptions { version, ..HttpOptions::default() }, "2025-11-25").await;
        let length = client.post(call(1)).await.text().await.len();
        assert!(length > 40 << 20, "{length} bytes over {version:?}, more than are kept of any result");
    }
}

/// B75, SEC-08: an allow-list both ways.
#[tokio::test]
async fn only_the_headers_that_belong_to_the_protocol_go_through() {
    let server = ScriptedServer::polite().await;
    // All clients are one principal here, also those behind a proxy.
    let gate = TestGateway::open("[auth]\nanonymous = true", server.url().as_str(), "").await;
    let client = gate.client().await;
    let sealed = client.session.clone().unwrap();
    let request = client
        .request("POST")
        .header("content-type", "application/json; charset=utf-8")
        .header("cookie", "c=1")
        .header("authorization", "Bearer secret")
        .header("x-forwarded-for", "192.0.2.1")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("last-event-id", "e-9");
    let reply = client.send(request.body(http_body_util::Full::from(call(1))).unwrap()).await;
    let mut names: Vec<&str> = reply.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "content-type", "date"]);
    let seen = server.world.first(SeenRequest::is_call).await;
    assert_eq!(seen.fields(), UPSTREAM_FIELDS);
    assert_eq!(seen.header("cookie"), Some("a=b"), "what the server gave to this session, and nothing of a client's");
    assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "the upstream's own id");
    assert_ne!(sealed, "s-1");
}
