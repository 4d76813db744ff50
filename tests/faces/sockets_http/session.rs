//! Bad HTTP (B01 to B77) where the session face has answers of its own, or an upstream could be shown too much.

use super::client::UPSTREAM_FIELDS;
use super::column::{Column, HEX, LENGTH, MESSAGE};
use super::harness::{JSON, connect, outcome_at, post};
use super::upstream::SeenRequest;

/// The requests that came through, as the upstream saw them.
fn seen(column: &Column) -> Vec<SeenRequest> {
    column.server().world.all(|seen| seen.bytes == MESSAGE.as_bytes())
}

/// B01: the upstream sees exactly one request, framed by the gateway.
#[tokio::test]
async fn length_beside_chunks_brings_one_request_through() {
    let column = Column::session().await;
    let framing = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let lines = column.lines();
    let smuggled = post(&lines, MESSAGE);
    let sent = format!("POST /mcp HTTP/1.1\r\n{JSON}{lines}{framing}\r\n{HEX}\r\n{MESSAGE}\r\n0\r\n\r\n{smuggled}");
    assert_eq!(outcome_at(column.address, sent.as_bytes()).await, "200 close");
    let seen = seen(&column);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].header("content-length"), seen[0].header("transfer-encoding")), (Some(LENGTH), None));
}

/// B07, B17, B22, B73, B75: fields of the connection, of the peer, or of other hops are not forwarded.
#[tokio::test]
async fn no_field_of_the_hop_comes_through() {
    let column = Column::session().await;
    let lines = column.lines();
    let odd = "Connection: Upgrade, X-Hop\r\nUpgrade: foo\r\nX-Hop: 1\r\nCookie: c=1\r\nForwarded: for=192.0.2.1\r\n\
               X-Forwarded-For: 192.0.2.1\r\nX-Real-IP: 192.0.2.1\r\nTE: trailers\r\nExpect: 100-continue\r\n";
    let plain = post(&format!("{lines}{odd}"), MESSAGE);
    let chunked = format!(
        "POST /mcp HTTP/1.1\r\n{JSON}{lines}Transfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n\
         {HEX}\r\n{MESSAGE}\r\n0\r\nHost: evil.example\r\n\r\n"
    );
    let mut client = connect(column.address).await;
    client.send((plain + &chunked).as_bytes()).await;
    let mut answers = Vec::new();
    while answers.len() < 2 {
        let answer = client.answer().await.unwrap();
        if answer.status() != "100" {
            answers.push(answer);
        }
    }
    for answer in answers {
        assert_eq!((answer.status(), answer.header("upgrade")), ("200", None));
    }
    let seen = seen(&column);
    assert_eq!(seen.len(), 2, "no upgrade, two requests");
    for seen in seen {
        assert_eq!(seen.fields(), UPSTREAM_FIELDS);
        assert_eq!(
            seen.header("cookie"),
            Some("a=b"),
            "what the server gave to this session, and nothing of a client's"
        );
        assert_eq!(seen.header("host"), Some(column.server().address.to_string().as_str()));
    }
}

/// B53, B54, B69, B74: GET and DELETE are operations on a session.
#[tokio::test]
async fn methods_other_than_post_need_a_session() {
    let column = Column::session().await;
    let lines = column.lines();
    let version = "MCP-Protocol-Version: 2025-11-25\r\n";
    let stateless = lines.replace("2025-11-25", "2026-07-28");
    let unknown = format!("Mcp-Session-Id: s-1\r\n{version}");
    let resumed = format!("{lines}Last-Event-ID: e-1\r\n");
    let json = format!("{lines}Accept: application/json\r\n");
    let mut wrong = Vec::new();
    for (name, method, lines, expected) in [
        ("B53 GET without a session", "GET", "", "405 -32600 allow=POST"),
        ("B53 DELETE without a session", "DELETE", "", "405 -32600 allow=POST"),
        ("B53 GET of a stateless version", "GET", stateless.as_str(), "405 -32600 allow=POST"),
        ("B53 DELETE of a stateless version", "DELETE", stateless.as_str(), "405 -32600 allow=POST"),
        ("GET with the version alone", "GET", version, "400 -32600"),
        ("B53 GET of an unknown session", "GET", unknown.as_str(), "404 -32001"),
        ("B53 DELETE of an unknown session", "DELETE", unknown.as_str(), "404 -32001"),
        ("B69 GET for JSON", "GET", json.as_str(), "406∅"),
        ("GET of the rest of a stream that the upstream has not", "GET", resumed.as_str(), "405∅ allow=POST, DELETE"),
        ("B54 PUT", "PUT", lines.as_str(), "405 -32600 allow=GET, POST, DELETE"),
        ("B54 TRACE", "TRACE", lines.as_str(), "405 -32600 allow=GET, POST, DELETE"),
        ("DELETE", "DELETE", lines.as_str(), "200∅"),
        ("GET of an ended session", "GET", lines.as_str(), "404 -32001"),
    ] {
        let sent = format!("{method} /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
        let found = outcome_at(column.address, sent.as_bytes()).await;
        if found != expected {
            wrong.push(format!("{name}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
