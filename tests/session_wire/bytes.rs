//! Bytes that are not the gateway's leave as they came, both ways, in every form an answer has.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use crate::client::{Gate, call};
use crate::upstream::{Once, Seen, Server, answer, json_text};

/// Key order, number spelling, escapes, whitespace, nesting, members that nobody knows.
const ODD: [&str; 8] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"z":1.10,"a":1e5,"m":-0}}}"#,
    r#"{"method":"tools/call","params":{"arguments":{"n":12345678901234567890123},"name":"t"},"id":"x","jsonrpc":"2.0"}"#,
    "  {\r\n\t\"jsonrpc\" : \"2.0\" , \"id\" : \"\\u0041\\n\" , \"method\" : \"unknown/method\" , \"params\" : [1.0, null] }\n",
    r#"{"jsonrpc":"2.0","id":-7,"method":"tools\/call","params":{"name":"\u0074","arguments":{"s":"\ud83d\ude00 \u00e9 é"}}}"#,
    r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"prompts/get","params":{"name":"p","_meta":{"k":{"k":[]}}}}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"x://y","extra":{"":"","\u0000":0}}}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"a":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}"#,
    r#"{"jsonrpc":"2.0","id":4,"method":"completion/complete"}"#,
];

#[tokio::test]
async fn requests_reach_the_upstream_byte_for_byte() {
    let server = Server::polite().await;
    let gate = Gate::before(&server).await;
    let client = gate.client().await;
    for text in ODD {
        let reply = client.post(text).await;
        assert_eq!(reply.status, StatusCode::OK, "{text}");
        let seen = server.world.all(|seen| seen.bytes == text.as_bytes());
        assert_eq!(seen.len(), 1, "{text} arrived as it was sent");
    }
}

#[tokio::test]
async fn notifications_and_responses_reach_the_upstream_byte_for_byte() {
    let server = Server::polite().await;
    let gate = Gate::before(&server).await;
    let client = gate.client().await;
    for text in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{ "method":"notifications/unknown", "params":{"n":1.10},"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#,
        r#"{"jsonrpc":"2.0","id":"q-1","result":{"z":1.0,"a":[]}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no","data":{"b":1,"a":2}}}"#,
    ] {
        let reply = client.post(text).await;
        assert_eq!((reply.status, reply.text().await), (StatusCode::ACCEPTED, String::new()), "LEG-06 {text}");
        assert_eq!(server.world.all(|seen| seen.bytes == text.as_bytes()).len(), 1, "{text}");
    }
}

#[tokio::test]
async fn json_answers_reach_the_client_byte_for_byte() {
    for text in [
        r#"{"result":{"z":1.10,"a":12345678901234567890123,"s":"\u0041\/"},"id":1,"jsonrpc":"2.0"}"#,
        "\n {\"jsonrpc\":\"2.0\",\r\n\t\"id\":1, \"result\" : { } } \n",
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"\ud83d\ude00","data":[1e400]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2,"resultType":"x"},"odd":true}"#,
    ] {
        let server = Server::start(move |seen| seen.is_call().then(|| json_text(text))).await;
        let gate = Gate::before(&server).await;
        let reply = gate.client().await.post(call(1)).await;
        assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("application/json")));
        assert_eq!(reply.text().await, text);
    }
}

#[tokio::test]
async fn event_streams_reach_the_client_byte_for_byte() {
    let text = "\u{feff}: hello\r\nid: e-1\ndata:\n\nretry: 17\nid:e-2\nevent: message\ndata:  {\"jsonrpc\":\"2.0\",\n\
                data: \"method\":\"notifications/odd\",\"params\":{\"n\":1.10}}\n\nx-unknown: 1\n\n\
                data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":12345678901234567890123}}\r\n\r\n: bye\r\r";
    let (events, stream) = Once::events();
    let kept = Arc::clone(&stream);
    let server = Server::start(move |seen| seen.is_call().then(|| kept.take()).flatten()).await;
    let gate = Gate::before(&server).await;
    for piece in text.as_bytes().chunks(7) {
        events.raw(piece.to_vec());
    }
    drop((events, stream));
    let reply = gate.client().await.post(call(1)).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    assert_eq!(reply.text().await, text);
}

#[tokio::test]
async fn the_first_bytes_arrive_before_the_last_are_sent() {
    for media in ["text/event-stream", "application/json"] {
        let (body, stream) = Once::body(media);
        let server = Server::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = Gate::before(&server).await;
        body.raw("data: 1\n\n");
        let mut reply = gate.client().await.post(call(1)).await;
        assert_eq!(reply.until("data: 1\n\n").await, "data: 1\n\n", "{media}");
        body.raw("data: 2");
        assert_eq!(reply.until("data: 2").await, "data: 2", "half an event of {media} is not held back");
        drop(body);
        assert_eq!(reply.piece().await, None);
    }
}

#[tokio::test]
async fn answers_of_any_size_go_through() {
    let server = Server::start(|seen| {
        let text = "x".repeat(40 << 20);
        seen.is_call().then(|| answer(seen, &json!({ "text": text })))
    })
    .await;
    let gate = Gate::before(&server).await;
    let length = gate.client().await.post(call(1)).await.text().await.len();
    assert!(length > 40 << 20, "{length} bytes, more than are kept of any result");
}

/// B75, protocol.md 1.2: an allow-list both ways.
#[tokio::test]
async fn only_the_headers_that_belong_to_the_protocol_go_through() {
    let server = Server::polite().await;
    let gate = Gate::before(&server).await;
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
    let seen = server.world.first(Seen::is_call).await;
    let mut names: Vec<&str> = seen.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let allowed = [
        "accept",
        "accept-encoding",
        "content-length",
        "content-type",
        "host",
        "mcp-protocol-version",
        "mcp-session-id",
        "user-agent",
    ];
    assert_eq!(names, allowed);
    assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "the upstream's own id");
    assert_ne!(sealed, "s-1");
}
