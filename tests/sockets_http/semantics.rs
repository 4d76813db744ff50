//! Group 3: hosts, origins, paths, methods, media, sizes.

use taskgate::face::http::AcceptedTypes;
use taskgate::task::Principal;

use crate::column::{LENGTH, MESSAGE};
use crate::harness::{BODY_MAX, JSON, Row, check_rows, gate, outcome, post};

/// A request to `/mcp` with these header lines and no body.
fn bare(method: &str, lines: &str) -> String {
    format!("{method} /mcp HTTP/1.1\r\n{lines}\r\n")
}

/// A POST to `target` with these header lines in front of the ordinary ones but Host.
fn posted(target: &str, lines: &str) -> String {
    let typed = "Content-Type: application/json\r\n";
    format!("POST {target} HTTP/1.1\r\n{lines}{typed}Content-Length: {LENGTH}\r\n\r\n{MESSAGE}")
}

#[tokio::test]
async fn hosts_must_be_named_and_known() {
    let rows: &[Row<'_>] = &[
        ("B49", posted("/mcp", ""), "400∅ close", 0),
        ("B50", posted("/mcp", "Host: localhost\r\nHost: localhost\r\n"), "400∅ close", 0),
        ("B51 target foreign", posted("http://evil.example/mcp", "Host: localhost\r\n"), "403∅ close", 0),
        ("B51 field foreign", posted("http://localhost/mcp", "Host: evil.example\r\n"), "403∅ close", 0),
        ("B51 both known", posted("http://gate.example/mcp", "Host: localhost\r\n"), "200", 1),
        ("B52", posted("http://localhost:80/mcp", "Host: localhost:80\r\n"), "200", 1),
        ("listed host", posted("/mcp", "Host: gate.example:9\r\n"), "200", 1),
        ("B58", posted("/mcp", "Host: evil.example\r\n"), "403∅ close", 0),
        ("B59 suffix", posted("/mcp", "Host: localhost.evil.example\r\n"), "403∅ close", 0),
        ("B59 address suffix", posted("/mcp", "Host: 127.0.0.1.evil\r\n"), "403∅ close", 0),
        ("B59 bracket suffix", posted("/mcp", "Host: [::1].evil\r\n"), "403∅ close", 0),
        ("B59 trailing dot", posted("/mcp", "Host: localhost.\r\n"), "403∅ close", 0),
        ("B59 user", posted("/mcp", "Host: user@localhost\r\n"), "403∅ close", 0),
        ("no body to wait for", bare("GET", "Host: evil.example\r\n"), "403∅", 0),
    ];
    check_rows(rows).await;
}

/// LEG-01.
#[tokio::test]
async fn origins_must_be_known_where_there_is_one() {
    let preflight = "Host: localhost\r\nAccess-Control-Request-Method: POST\r\n";
    let rows: &[Row<'_>] = &[
        ("loopback page", post("Origin: http://localhost:3000\r\n", MESSAGE), "200", 1),
        ("listed page", post("Origin: https://app.example:8443\r\n", MESSAGE), "200", 1),
        ("B60", post("Origin: http://evil.example\r\n", "{}"), "403∅ close", 0),
        ("B61", post("Origin: null\r\n", "{}"), "403∅ close", 0),
        ("B62", post("Origin: http://localhost\r\nOrigin: http://localhost\r\n", "{}"), "403∅ close", 0),
        ("B63 path", post("Origin: http://localhost/\r\n", "{}"), "403∅ close", 0),
        ("B63 scheme", post("Origin: ftp://localhost\r\n", "{}"), "403∅ close", 0),
        ("B63 port", post("Origin: https://app.example\r\n", "{}"), "403∅ close", 0),
        ("B64 bad host", posted("/mcp", "Host: evil.example\r\nOrigin: http://localhost\r\n"), "403∅ close", 0),
        ("B64 bad origin", posted("/mcp", "Host: localhost\r\nOrigin: http://evil.example\r\n"), "403∅ close", 0),
        ("B65", bare("OPTIONS", &format!("{preflight}Origin: http://evil.example\r\n")), "403∅", 0),
        (
            "preflight of a known page",
            bare("OPTIONS", &format!("{preflight}Origin: http://localhost\r\n")),
            "405∅ allow=POST",
            0,
        ),
    ];
    check_rows(rows).await;
}

#[tokio::test]
async fn paths_match_exactly_and_methods_are_few() {
    let host = "Host: localhost\r\n";
    let mut rows: Vec<Row<'_>> = vec![
        ("B54 PUT", bare("PUT", host), "405∅ allow=POST", 0),
        ("B54 PATCH", bare("PATCH", host), "405∅ allow=POST", 0),
        ("B54 TRACE", bare("TRACE", host), "405∅ allow=POST", 0),
        ("OPTIONS", bare("OPTIONS", host), "405∅ allow=POST", 0),
        ("B55", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n".to_owned(), "405∅ close", 0),
        ("B57", posted("/mcp?a=b", host), "200", 1),
    ];
    for target in ["/", "/mcp/", "/mcp/../admin", "/%6dcp", "//mcp", "/mcp;x", "/MCP"] {
        rows.push(("B56", posted(target, host), "404∅ close", 0));
    }
    for target in ["/mcp#x", "/mcp#", "/#/mcp", "#", "/mcp?a#b", "http://localhost/mcp#x"] {
        rows.push(("a fragment", posted(target, host), "400∅ close", 0));
    }
    rows.push(("a fragment elsewhere", posted("/mcp", &format!("{host}X-Hash: #\r\n")), "200", 1));
    rows.push(("behind an empty line", format!("\r\n{}", posted("/mcp#x", host)), "400∅ close", 0));
    check_rows(&rows).await;
}

/// In pieces, and as the second request of a connection.
#[tokio::test]
async fn a_fragment_is_refused_however_it_comes() {
    let gate = gate().await;
    for before in ["", &post("", MESSAGE)] {
        let mut client = gate.connect().await;
        if !before.is_empty() {
            client.send(before.as_bytes()).await;
            assert_eq!(client.answer().await.unwrap().status(), "200");
        }
        for piece in ["PO", "ST /mc", "p", "#x HT", "TP/1.1\r\nHost: localhost\r\n\r\n"] {
            client.send(piece.as_bytes()).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.answer().await.unwrap().status(), "400");
        assert!(client.ends().await);
    }
    assert_eq!(gate.reached(), 1);
}

/// B54: the answer to HEAD has no body whatever its headers say.
#[tokio::test]
async fn head_is_not_served() {
    let gate = gate().await;
    let mut client = gate.connect().await;
    client.send(bare("HEAD", "Host: localhost\r\n").as_bytes()).await;
    let answer = client.answer().await.unwrap();
    assert_eq!((answer.status(), answer.header("allow")), ("405", Some("POST")));
    assert_eq!(gate.reached(), 0);
}

#[tokio::test]
async fn bodies_are_json_within_bounds() {
    let typed = |lines: &str| {
        format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {LENGTH}\r\n\r\n{MESSAGE}")
    };
    let full = MESSAGE.to_owned() + &" ".repeat(BODY_MAX - MESSAGE.len());
    let chunk = format!("{:x}\r\n{}\r\n", BODY_MAX / 2, "x".repeat(BODY_MAX / 2));
    let chunks = format!("POST /mcp HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(3));
    let large = format!("POST /mcp HTTP/1.1\r\n{JSON}Content-Length: {}\r\n\r\n{}", 8 << 20, "x".repeat(8 << 20));
    let rows: &[Row<'_>] = &[
        ("B67 text", typed("Content-Type: text/plain\r\n"), "415∅ close", 0),
        ("B67 form", typed("Content-Type: application/x-www-form-urlencoded\r\n"), "415∅ close", 0),
        ("B67 missing", typed(""), "415∅ close", 0),
        ("B67 two", typed("Content-Type: application/json\r\nContent-Type: application/json\r\n"), "415∅ close", 0),
        ("B67 charset", typed("Content-Type: application/json; charset=utf-16\r\n"), "415∅ close", 0),
        ("utf-8", typed("Content-Type: Application/JSON;charset=UTF-8\r\n"), "200", 1),
        ("B68", post("Content-Encoding: gzip\r\n", "{}"), "415∅ close", 0),
        ("identity", post("Content-Encoding: identity\r\n", MESSAGE), "200", 1),
        ("B69", post("Accept: text/html\r\n", "{}"), "406∅ close", 0),
        ("exactly the limit", post("", &full), "200", 1),
        ("B70", large, "413∅ close", 0),
        ("B71", chunks, "413∅ close", 0),
        ("B72", post("", ""), "400 -32700", 0),
        (
            "B72 chunked",
            format!("POST /mcp HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400 -32700",
            0,
        ),
    ];
    check_rows(rows).await;
}

/// B69, B73, B75: what the endpoint is told, and what nobody asks the headers about.
#[tokio::test]
async fn the_endpoint_gets_the_body_the_accepted_types_and_a_principal_of_ours() {
    let gate = gate().await;
    let lines = "Accept: text/event-stream\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n\
                 X-Real-IP: 192.0.2.1\r\nCookie: a=b\r\n";
    assert_eq!(outcome(&gate, post(lines, "{\"odd\" : 1.10}").as_bytes()).await, "200");
    let seen = gate.recorder.seen.lock();
    assert_eq!(seen[0].body, "{\"odd\" : 1.10}");
    assert_eq!(seen[0].path, "/mcp");
    assert_eq!(seen[0].accepted, AcceptedTypes::EventStream);
    assert_eq!(seen[0].principal, Principal::local());
}
