//! The pipe forwards byte for byte, both ways.

use ::bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::in_time;
use super::peers::{ACCEPT, body, body_of, client, gate, post, request, server};
use super::upstream::{BodySender, Once, SeenRequest, answer, json_text};

/// Spelling, order, whitespace and unknown members that must survive.
const ODD: &str = r#" { "result" : {"z":1.10,"content":[ ],"a":12345678901234567890123,"t":"caf\u00e9 \/"} ,"x":null, "id":"a\u0062","jsonrpc":"2.0"} "#;

fn stream() -> String {
    let told = r#"{"method":"notifications/x","params":{"progress":1.0,"progressToken":"p"},"jsonrpc":"2.0"}"#;
    format!(": hello\r\n\r\nevent: message\r\ndata: {told}\r\n\r\ndata:{ODD}\n\n")
}

fn is_asked(seen: &SeenRequest) -> bool {
    matches!(seen.rpc(), "tools/call" | "prompts/get" | "resources/read" | "x/unknown" | "completion/complete")
}

/// Every forwarded method, with params in a spelling of their own.
fn bodies() -> Vec<String> {
    [
        ("tools/call", r#""name":"t" ,"arguments":{"n":1.10,"big":12345678901234567890123,"s":"\u0041"}"#),
        ("prompts/get", r#""name":"p","arguments":{}"#),
        ("resources/read", r#""uri":"a:b\/c""#),
        ("completion/complete", r#""ref":{}"#),
        ("x/unknown", ""),
    ]
    .map(|(method, params)| body(method, params))
    .to_vec()
}

#[tokio::test]
async fn json_passes_both_ways_byte_for_byte_over_http_1() {
    let server = server(|seen| is_asked(seen).then(|| json_text(ODD))).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    for body in bodies() {
        let reply = post(&client, &body).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("application/json")));
        assert_eq!(reply.text().await, ODD, "{body}");
        assert!(server.world.all(is_asked).iter().any(|seen| seen.bytes == body), "{body}");
    }
    assert_eq!(server.world.count("initialize"), 0);
}

#[tokio::test]
async fn events_pass_byte_for_byte_over_http_2() {
    let server = server(|seen| {
        is_asked(seen).then(|| {
            let (events, reply) = BodySender::open();
            let text = stream();
            // Cut in odd places.
            for piece in text.as_bytes().chunks(11) {
                events.raw(Bytes::copy_from_slice(piece));
            }
            reply
        })
    })
    .await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let stream_of = in_time(TcpStream::connect(client.address)).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream_of)).await.unwrap();
    client.connections.spawn(connection);
    for body in bodies() {
        let (mut head, content): (http::request::Parts, Full<Bytes>) = request(&client, &body).into_parts();
        head.uri = "http://localhost/mcp".parse().unwrap();
        head.headers.remove("host");
        let response = in_time(sender.send_request(Request::from_parts(head, content))).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = in_time(response.into_body().collect()).await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&text), stream(), "{body}");
        assert!(server.world.all(is_asked).iter().any(|seen| seen.bytes == body), "{body}");
    }
}

/// UPC-15, UPC-20: headers that repeat the body are forwarded, and no others.
#[tokio::test]
async fn upc15_upc20_headers_that_repeat_the_body_go_on_and_no_others() {
    let server = server(|_| None).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let body = body("tools/call", r#""name":"region","arguments":{"r":"eu"}"#);
    let mut request = request(&client, &body);
    for (name, value) in [
        ("mcp-param-region", "=?base64?ZXU=?="),
        ("mcp-param-other", "o"),
        ("authorization", "Bearer x"),
        ("cookie", "a=b"),
        ("mcp-session-id", "s"),
        ("x-forwarded-for", "1.2.3.4"),
        ("last-event-id", "1"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(client.send(request).await.status.as_u16(), 200);
    let seen = server.world.first(SeenRequest::is_call).await;
    for (name, value) in [
        ("mcp-protocol-version", Some("2026-07-28")),
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("region")),
        ("mcp-param-region", Some("=?base64?ZXU=?=")),
        ("mcp-param-other", Some("o")),
        ("accept", Some(ACCEPT)),
        ("authorization", None),
        ("cookie", None),
        ("mcp-session-id", None),
        ("x-forwarded-for", None),
        ("last-event-id", None),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
}

/// A forwarded call takes no task: the client could not reach the upstream's.
#[tokio::test]
async fn a_call_that_is_passed_on_declares_no_extension() {
    let server = server(|_| None).await;
    let gate = super::client::TestGateway::with(server.address, "[upstreams.up.tasks]\nmode = \"never\"").await;
    let client = client(&gate);
    let capabilities = r#"{"roots":{ },"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{"k":1.0}}}"#;
    let body = body_of("tools/call", capabilities, r#""name":"t","arguments":{"n":1.10}"#);
    assert_eq!(post(&client, &body).await.json().await["result"]["n"], 1.1);
    let seen = server.world.first(SeenRequest::is_call).await;
    let text = String::from_utf8(seen.bytes.to_vec()).unwrap();
    assert!(text.contains(r#"{"roots":{ },"extensions":{"a/b":{"k":1.0}}},"x":1.10}"#), "{text}");
    assert!(text.contains(r#""arguments":{"n":1.10}"#) && text.contains(r#""id":"a\u0062""#), "{text}");
}

#[tokio::test]
async fn an_answer_of_ten_megabytes_passes_and_its_beginning_before_its_end() {
    let (large, once) = Once::body("application/json");
    let server = server(move |seen| if seen.is_call() { once.take() } else { None }).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let call = body("tools/call", r#""name":"t""#);
    let head = format!(r#"{{"jsonrpc":"2.0","id":"ab","result":{{"x":"{}"#, "a".repeat(300 * 1024));
    large.raw(head.clone());
    let mut reply = post(&client, &call).await;
    let mut read = reply.piece().await.unwrap();
    while read.len() < head.len() {
        read.push_str(&reply.piece().await.unwrap());
    }
    assert_eq!(read, head, "the rest is not there yet");
    let piece = "b".repeat(1 << 20);
    for _ in 0..10 {
        large.raw(piece.clone());
    }
    large.raw(r#""}}"#);
    drop(large);
    let rest = reply.text().await;
    assert_eq!(rest.len(), (10 << 20) + 3);
}

#[tokio::test]
async fn a_client_that_takes_one_type_alone_gets_the_answer_in_it() {
    let server = server(|seen| match seen.rpc() {
        "prompts/get" => {
            let (events, reply) = BodySender::open();
            // An envelope with further members passes, but is not opened.
            events.raw(stream().replace(r#","x":null"#, ""));
            Some(reply)
        }
        "resources/read" => Some(answer(seen, &serde_json::json!({"contents": []}))),
        _ => None,
    })
    .await;
    let gate = gate(&server).await;
    let mut client = client(&gate);
    client.accept = "application/json";
    let reply = post(&client, &body("prompts/get", r#""name":"p""#)).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let text = reply.text().await;
    assert!(text.contains(r#"{"z":1.10,"content":[ ],"a":12345678901234567890123,"t":"caf\u00e9 \/","#), "{text}");
    client.accept = "text/event-stream";
    let reply = post(&client, &body("resources/read", r#""uri":"a:b""#)).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert!(reply.text().await.starts_with("event: message\ndata: {"));
}
