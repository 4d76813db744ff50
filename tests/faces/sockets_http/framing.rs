//! Bad HTTP/1 framing and connections (B01 to B30).

use std::time::Duration;

use taskgate::server::ListenerLimits;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::column::{HEX, LENGTH, MESSAGE};
use super::harness::{BODY_MAX, JSON, PATIENCE, Row, check_rows, gate, gate_with, outcome, post, settings};

/// A POST whose framing lines and body are given as they are.
fn framed(lines: &str, body: &str) -> String {
    format!("POST /mcp HTTP/1.1\r\n{JSON}{lines}\r\n{body}")
}

#[tokio::test]
async fn framing_is_strict() {
    let chunked = "Transfer-Encoding: chunked\r\n";
    let good = &format!("{HEX}\r\n{MESSAGE}\r\n0\r\n\r\n");
    let length = format!("Content-Length: {LENGTH}\r\n");
    let many = "X-Filler: 1\r\n".repeat(59);
    let rows: &[Row<'_>] = &[
        ("a plain request", post("", MESSAGE), "200", 1),
        ("B02", framed("Transfer-Encoding: xchunked\r\n", good), "400∅ close", 0),
        ("B03", framed("Transfer-Encoding: chunked, identity\r\n", good), "400∅ close", 0),
        ("B04", framed("Transfer-Encoding: gzip, chunked\r\n", good), "501 -32600 close", 0),
        ("B05", framed("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", good), "400∅ close", 0),
        ("B06", framed("Content-Length: 2\r\nContent-Length: 3\r\n", "{} "), "400∅ close", 0),
        ("B07", framed(&length.repeat(2), MESSAGE), "200", 1),
        ("B08", framed("Content-Length: 2, 2\r\n", "{}"), "400∅ close", 0),
        ("B09 plus", framed("Content-Length: +2\r\n", "{}"), "400∅ close", 0),
        ("B09 minus", framed("Content-Length: -1\r\n", "{}"), "400∅ close", 0),
        ("B09 20 digits", framed("Content-Length: 99999999999999999999\r\n", "{}"), "400∅ close", 0),
        ("B10", framed("Content-Length : 2\r\n", "{}"), "400∅ close", 0),
        ("B11", framed("X-A: 1\r\n folded\r\nContent-Length: 2\r\n", "{}"), "400∅ close", 0),
        ("B12 CR", framed("X-A: a\rb\r\nContent-Length: 2\r\n", "{}"), "400∅ close", 0),
        ("B12 NUL", framed("X-A: a\0b\r\nContent-Length: 2\r\n", "{}"), "400∅ close", 0),
        ("B13", framed("X A: 1\r\nContent-Length: 2\r\n", "{}"), "400∅ close", 0),
        ("B14", post("", MESSAGE).replace("\r\n", "\n"), "200", 1),
        ("B15 hex prefix", framed(chunked, "0x1\r\n{\r\n0\r\n\r\n"), "400 -32700 close", 0),
        ("B15 17 digits", framed(chunked, "10000000000000002\r\n{}\r\n0\r\n\r\n"), "400 -32700 close", 0),
        ("B15 bare LF", framed(chunked, "2\n{}\n0\n\n"), "400 -32700 close", 0),
        ("B16", framed(chunked, &good.replacen("\r\n", ";a=b\r\n", 1)), "200", 1),
        (
            "B16 over",
            framed(chunked, &format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(17 << 10))),
            "400 -32600 close",
            0,
        ),
        ("B18 1.0 with TE", framed(chunked, good).replace("HTTP/1.1", "HTTP/1.0"), "400∅ close", 0),
        ("B18 0.9", "GET /mcp\r\n\r\n".to_owned(), "400∅ close", 0),
        ("B18 3.0", post("", MESSAGE).replace("HTTP/1.1", "HTTP/3.0"), "400∅ close", 0),
        ("B19 64 fields", post(&many, MESSAGE), "200", 1),
        ("B19 65 fields", post(&format!("{many}X-Last: 1\r\n"), MESSAGE), "431 -32600 close", 0),
        ("B20", post(&format!("X-Long: {}\r\n", "x".repeat(500_000)), "{}"), "431∅ close", 0),
        ("B20 beyond 32 KiB", post(&format!("X-Long: {}\r\n", "x".repeat(33 << 10)), "{}"), "431 -32600 close", 0),
        ("B21", post("", MESSAGE).replace("/mcp", &format!("/{}", "x".repeat(70_000))), "414∅ close", 0),
        (
            "B21 beyond 8 KiB",
            post("", MESSAGE).replace("/mcp", &format!("/{}", "x".repeat(9_000))),
            "414 -32600 close",
            0,
        ),
        (
            "B23",
            framed(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n", BODY_MAX + 1), ""),
            "413 -32600 close",
            0,
        ),
        ("B24", post("Expect: 200-ok\r\n", MESSAGE), "417 -32600 close", 0),
        ("B29", "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03".to_owned(), "400∅ close", 0),
    ];
    check_rows(rows).await;
}

/// B01: the smuggled request is neither answered nor served.
#[tokio::test]
async fn length_beside_chunks_ends_the_connection_after_one_answer() {
    let gate = gate().await;
    let smuggled = post("", "{}");
    let sent = format!(
        "POST /mcp HTTP/1.1\r\n{JSON}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{smuggled}"
    );
    assert_eq!(outcome(&gate, sent.as_bytes()).await, "200 close");
    assert_eq!(gate.reached(), 1);
}

/// B17.
#[tokio::test]
async fn trailers_are_dropped() {
    let gate = gate().await;
    let sent = format!(
        "POST /mcp HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n2\r\n{{}}\r\n0\r\nHost: evil.example\r\n\r\n"
    );
    assert_eq!(outcome(&gate, sent.as_bytes()).await, "200");
    let seen = gate.recorder.seen.lock();
    assert_eq!(seen[0].headers.get_all("host").iter().collect::<Vec<_>>(), ["localhost"]);
}

/// B22.
#[tokio::test]
async fn an_upgrade_is_ignored_and_pipelined_requests_are_answered_in_turn() {
    let gate = gate().await;
    let mut client = gate.connect().await;
    let upgrade = post("Connection: Upgrade\r\nUpgrade: foo\r\n", "{\"n\":1}");
    client.send((upgrade + &post("", "{\"n\":2}")).as_bytes()).await;
    for _ in 0..2 {
        assert_eq!(client.answer().await.unwrap().status(), "200");
    }
    let bodies: Vec<_> = gate.recorder.seen.lock().iter().map(|inbound| inbound.body.clone()).collect();
    assert_eq!(bodies, ["{\"n\":1}", "{\"n\":2}"]);
}

#[tokio::test]
async fn an_expected_continue_is_sent_before_the_body() {
    let gate = gate().await;
    let mut client = gate.connect().await;
    client
        .send(format!("POST /mcp HTTP/1.1\r\n{JSON}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n").as_bytes())
        .await;
    assert_eq!(client.answer().await.unwrap().status(), "100");
    client.send(b"{}").await;
    assert_eq!(client.answer().await.unwrap().status(), "200");
}

fn hurried() -> ListenerLimits {
    let span = Duration::from_millis(300);
    ListenerLimits {
        head_deadline: span,
        idle_deadline: span * 4,
        body_deadline: span * 3,
        body_window: span,
        body_window_bytes_min: 100,
        write_stall: span,
        ..ListenerLimits::default()
    }
}

/// B25, B27: half a head, half a preface and silence end alike.
#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection_without_answer() {
    let gate = gate_with(settings(), hurried()).await;
    for sent in ["", "POST /mcp HT", "PRI * HT", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"] {
        assert_eq!(outcome(&gate, sent.as_bytes()).await, "nothing close", "{sent:?}");
    }
    assert_eq!(gate.reached(), 0);
}

/// Between two requests a client may wait longer than inside a head, but not for ever.
#[tokio::test]
async fn an_idle_connection_is_kept_for_a_while() {
    let gate = gate_with(settings(), hurried()).await;
    let mut client = gate.connect().await;
    client.send(post("", "{}").as_bytes()).await;
    assert_eq!(client.answer().await.unwrap().status(), "200");
    let early = timeout(hurried().head_deadline * 2, client.stream.readable()).await;
    assert!(early.is_err(), "still there when a head would have been late");
    assert!(client.answer().await.is_none());
}

/// B25, on a connection that has served a request.
#[tokio::test]
async fn a_later_head_has_no_more_time_than_the_first() {
    let patient = ListenerLimits { idle_deadline: PATIENCE * 2, ..hurried() };
    let gate = gate_with(settings(), patient).await;
    let mut client = gate.connect().await;
    client.send(post("", "{}").as_bytes()).await;
    assert_eq!(client.answer().await.unwrap().status(), "200");
    client.send(b"POST /mcp HT").await;
    assert!(client.answer().await.is_none());
}

/// A request in flight has all the time of its handler, with any idle time.
#[tokio::test]
async fn a_held_request_outlives_the_idle_time() {
    let gate = gate_with(settings(), hurried()).await;
    let mut client = gate.connect().await;
    client.send(post("", "{}").replace("/mcp", "/hold").as_bytes()).await;
    let waited = timeout(hurried().idle_deadline * 2, client.stream.readable()).await;
    assert!(waited.is_err(), "neither an answer nor an end");
    gate.recorder.released.add_permits(1);
    assert_eq!(client.answer().await.unwrap().status(), "200");
}

/// B26: too slow within one window, and fast enough for each but never done.
#[tokio::test]
async fn a_body_that_trickles_or_never_ends_is_answered_408() {
    let gate = gate_with(settings(), hurried()).await;
    let head = format!("POST /mcp HTTP/1.1\r\n{JSON}Content-Length: 60000\r\n\r\n");
    assert_eq!(outcome(&gate, format!("{head}{{").as_bytes()).await, "408 -32600 close");

    let unhurried = ListenerLimits { body_window_bytes_min: 0, ..hurried() };
    let gate = gate_with(settings(), unhurried).await;
    assert_eq!(outcome(&gate, format!("{head}{{").as_bytes()).await, "408 -32600 close");
    assert_eq!(gate.reached(), 0);
}

/// B28: the connection of a peer that does not read is reset.
#[tokio::test]
async fn an_unread_answer_resets_the_connection() {
    let gate = gate_with(settings(), hurried()).await;
    let mut client = gate.connect().await;
    client.send(post("", "{}").replace("/mcp", "/flood").as_bytes()).await;
    gate.arrivals(1).await;
    gate.emptied().await;
    let mut answer = Vec::new();
    let error = timeout(PATIENCE, client.stream.read_to_end(&mut answer)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
