//! Bad heads (B49 to B77): hosts, origins, paths, methods, media, sizes.

use taskgate::face::http::AcceptedTypes;
use taskgate::task::Principal;

use super::column::{Column, LENGTH, MESSAGE};
use super::harness::{BODY_MAX, JSON, Row, check_rows, connect, gate, outcome, post};

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
        ("B49", posted("/mcp", ""), "400 -32600 close", 0),
        ("B50", posted("/mcp", "Host: localhost\r\nHost: localhost\r\n"), "400 -32600 close", 0),
        ("B51 target foreign", posted("http://evil.example/mcp", "Host: localhost\r\n"), "403 -32600 close", 0),
        ("B51 field foreign", posted("http://localhost/mcp", "Host: evil.example\r\n"), "403 -32600 close", 0),
        ("B51 both known", posted("http://gate.example/mcp", "Host: localhost\r\n"), "200", 1),
        ("B52", posted("http://localhost:80/mcp", "Host: localhost:80\r\n"), "200", 1),
        ("listed host", posted("/mcp", "Host: gate.example:9\r\n"), "200", 1),
        ("B58", posted("/mcp", "Host: evil.example\r\n"), "403 -32600 close", 0),
        ("B59 suffix", posted("/mcp", "Host: localhost.evil.example\r\n"), "403 -32600 close", 0),
        ("B59 address suffix", posted("/mcp", "Host: 127.0.0.1.evil\r\n"), "403 -32600 close", 0),
        ("B59 bracket suffix", posted("/mcp", "Host: [::1].evil\r\n"), "403 -32600 close", 0),
        ("B59 trailing dot", posted("/mcp", "Host: localhost.\r\n"), "403 -32600 close", 0),
        ("B59 user", posted("/mcp", "Host: user@localhost\r\n"), "403 -32600 close", 0),
        ("no body to wait for", bare("GET", "Host: evil.example\r\n"), "403 -32600", 0),
    ];
    check_rows(rows).await;
}

/// LEG-01.
#[tokio::test]
async fn origins_must_be_known_where_there_is_one() {
    let preflight = "Host: localhost\r\nAccess-Control-Request-Method: POST\r\n";
    let rows: &[Row<'_>] = &[
        ("loopback page", post("Origin: http://localhost:3000\r\n", MESSAGE), "200 cors=http://localhost:3000", 1),
        ("listed page", post("Origin: https://app.example:8443\r\n", MESSAGE), "200 cors=https://app.example:8443", 1),
        (
            "a refusal is read, too",
            post("Origin: http://localhost\r\n", "{}").replace("/mcp", "/none"),
            "404 -32600 cors=http://localhost close",
            0,
        ),
        ("B60", post("Origin: http://evil.example\r\n", "{}"), "403 -32600 close", 0),
        ("B61", post("Origin: null\r\n", "{}"), "403 -32600 close", 0),
        ("B62", post("Origin: http://localhost\r\nOrigin: http://localhost\r\n", "{}"), "403 -32600 close", 0),
        ("B63 path", post("Origin: http://localhost/\r\n", "{}"), "403 -32600 close", 0),
        ("B63 scheme", post("Origin: ftp://localhost\r\n", "{}"), "403 -32600 close", 0),
        ("B63 port", post("Origin: https://app.example\r\n", "{}"), "403 -32600 close", 0),
        ("B64 bad host", posted("/mcp", "Host: evil.example\r\nOrigin: http://localhost\r\n"), "403 -32600 close", 0),
        ("B64 bad origin", posted("/mcp", "Host: localhost\r\nOrigin: http://evil.example\r\n"), "403 -32600 close", 0),
        ("B65", bare("OPTIONS", &format!("{preflight}Origin: http://evil.example\r\n")), "403 -32600", 0),
        (
            "preflight of a known page",
            bare("OPTIONS", &format!("{preflight}Origin: http://localhost\r\n")),
            "204 cors=http://localhost",
            0,
        ),
        (
            "preflight to no path",
            bare("OPTIONS", &format!("{preflight}Origin: http://localhost\r\n")).replace("/mcp", "/none"),
            "204 cors=http://localhost",
            0,
        ),
        ("preflight of no page", bare("OPTIONS", preflight), "405 -32600 allow=POST", 0),
        (
            "no preflight",
            bare("OPTIONS", "Host: localhost\r\nOrigin: http://localhost\r\n"),
            "405 -32600 allow=POST cors=http://localhost",
            0,
        ),
        (
            "preflight with a body",
            format!("OPTIONS /mcp HTTP/1.1\r\n{preflight}Origin: http://localhost\r\nContent-Length: 2\r\n\r\n{{}}"),
            "204 cors=http://localhost close",
            0,
        ),
    ];
    check_rows(rows).await;
}

/// A browser's preflight: methods and headers are a list, and nothing on it is a star.
#[tokio::test]
async fn a_preflight_lists_the_allowed_methods_and_headers_alone() {
    let gate = gate().await;
    for (asked, taken) in [
        ("", None),
        ("Access-Control-Request-Headers: content-type\r\n", Some("content-type")),
        (
            "Access-Control-Request-Headers: Authorization,content-type, mcp-protocol-version , MCP-Session-Id\r\n",
            Some("authorization, content-type, mcp-protocol-version, mcp-session-id"),
        ),
        (
            "Access-Control-Request-Headers: last-event-id\r\nAccess-Control-Request-Headers: mcp-param-Region\r\n",
            Some("last-event-id, mcp-param-region"),
        ),
        ("Access-Control-Request-Headers: X-Taskgate-Key\r\n", Some("x-taskgate-key")),
        ("Access-Control-Request-Headers: x-evil, content-type\r\n", Some("content-type")),
        ("Access-Control-Request-Headers: *\r\n", None),
        ("Access-Control-Request-Headers: cookie, x-forwarded-for, host, a b, \r\n", None),
        ("Access-Control-Request-Private-Network: true\r\n", None),
    ] {
        for method in ["POST", "DELETE", "PUT", "*"] {
            let mut client = gate.connect().await;
            let lines = "Host: localhost\r\nOrigin: https://app.example:8443\r\nAccess-Control-Request-Method: ";
            client.send(bare("OPTIONS", &format!("{lines}{method}\r\n{asked}")).as_bytes()).await;
            let answer = client.answer().await.unwrap();
            assert_eq!(answer.status(), "204", "{asked}");
            assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example:8443"));
            assert_eq!(answer.header("access-control-allow-methods"), Some("GET, POST, DELETE"));
            assert_eq!(answer.header("access-control-allow-headers"), taken, "{asked}");
            assert_eq!(answer.header("access-control-max-age"), Some("600"));
            assert_eq!(
                answer.head.matches("ccess-control").count() + answer.head.matches("ccess-Control").count(),
                4 + usize::from(taken.is_some()),
                "{}",
                answer.head
            );
        }
    }
    assert_eq!(gate.reached(), 0);
}

#[tokio::test]
async fn paths_match_exactly_and_methods_are_few() {
    let host = "Host: localhost\r\n";
    let mut rows: Vec<Row<'_>> = vec![
        ("B54 PUT", bare("PUT", host), "405 -32600 allow=POST", 0),
        ("B54 PATCH", bare("PATCH", host), "405 -32600 allow=POST", 0),
        ("B54 TRACE", bare("TRACE", host), "405 -32600 allow=POST", 0),
        ("OPTIONS", bare("OPTIONS", host), "405 -32600 allow=POST", 0),
        ("B55", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n".to_owned(), "405 -32600 close", 0),
        ("B57", posted("/mcp?a=b", host), "200", 1),
    ];
    for target in ["/", "/mcp//", "/mcp/../admin", "/%6dcp", "//mcp", "/mcp;x", "/MCP"] {
        rows.push(("B56", posted(target, host), "404 -32600 close", 0));
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

/// B54: the answer to HEAD has no body, with any headers.
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
        ("B67 text", typed("Content-Type: text/plain\r\n"), "415 -32600 close", 0),
        ("B67 form", typed("Content-Type: application/x-www-form-urlencoded\r\n"), "415 -32600 close", 0),
        ("B67 missing", typed(""), "415 -32600 close", 0),
        (
            "B67 two",
            typed("Content-Type: application/json\r\nContent-Type: application/json\r\n"),
            "415 -32600 close",
            0,
        ),
        ("B67 charset", typed("Content-Type: application/json; charset=utf-16\r\n"), "415 -32600 close", 0),
        ("utf-8", typed("Content-Type: Application/JSON;charset=UTF-8\r\n"), "200", 1),
        ("B68", post("Content-Encoding: gzip\r\n", "{}"), "415 -32600 close", 0),
        ("identity", post("Content-Encoding: identity\r\n", MESSAGE), "200", 1),
        ("B69", post("Accept: text/html\r\n", "{}"), "406 -32600 close", 0),
        ("exactly the limit", post("", &full), "200", 1),
        ("B70", large, "413 -32600 close", 0),
        ("B71", chunks, "413 -32600 close", 0),
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

/// B69, B73, B75: the endpoint's view of a request; the identity never comes from its headers.
#[tokio::test]
async fn the_endpoint_gets_the_body_the_accepted_types_and_a_principal_of_ours() {
    let gate = gate().await;
    let lines = "Accept: text/event-stream\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n\
                 X-Real-IP: 192.0.2.1\r\nCookie: a=b\r\n";
    assert_eq!(outcome(&gate, post(lines, "{\"odd\" : 1.10}").as_bytes()).await, "200");
    let seen = gate.recorder.seen.lock();
    assert_eq!(seen[0].body, "{\"odd\" : 1.10}");
    assert_eq!(&*seen[0].path, "/mcp");
    assert_eq!(seen[0].accepted, AcceptedTypes::EventStream);
    assert_eq!(seen[0].caller.principal, Principal::local());
}

/// A redirect would lose the body, or the credential, of many a client.
#[tokio::test]
async fn a_slash_too_many_at_the_end_of_a_path_is_served_like_the_path() {
    let gate = gate().await;
    for (path, expected) in [("/mcp/", "200"), ("/mcp//", "404"), ("/other/", "404"), ("/", "404")] {
        let sent = posted(path, "Host: localhost\r\n");
        let outcome = outcome(&gate, sent.as_bytes()).await;
        assert!(outcome.starts_with(expected), "{path}: {outcome}");
    }
    let seen = gate.recorder.seen.lock();
    assert_eq!(seen.iter().map(|seen| &*seen.path).collect::<Vec<_>>(), ["/mcp"]);
}

/// The user of a client on this machine is the operator, where there are no keys and no other name.
#[tokio::test]
async fn a_client_on_this_machine_is_told_which_paths_there_are() {
    let gate = gate().await;
    let mut client = connect(gate.running.local_addr()).await;
    client.send(posted("/", "Host: localhost\r\n").as_bytes()).await;
    let body = String::from_utf8(client.answer().await.unwrap().body.clone()).unwrap();
    assert!(body.contains("no server has this path; there are servers at /flood, /hold, /mcp"), "{body}");
}

/// A refusal names its remedy in one sentence, with the operator's key if one decides it, and repeats nothing of the
/// request (GW-43).
#[tokio::test]
async fn a_refusal_names_its_remedy_in_a_sentence() {
    let host = "Host: localhost\r\n";
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\n{host}Accept: text/html\r\n\r\n");
    let typed = |line: &str| format!("POST /mcp HTTP/1.1\r\n{host}{line}Content-Length: 2\r\n\r\n{{}}");
    for column in Column::all().await {
        for (sent, status, told) in [
            (posted("/mcp", "Host: evil-canary.example\r\n"), "403", "`listen.allowed_hosts`"),
            (
                posted("/mcp", "Host: localhost\r\nOrigin: http://evil-canary.example\r\n"),
                "403",
                "`listen.allowed_origins`",
            ),
            (get("/canary"), "404", "no server has this path"),
            (get("/canary/.well-known/oauth-protected-resource"), "404", "no OAuth"),
            (posted("/register", host), "404", "no OAuth"),
            (bare("PUT", host), "405", "Allow"),
            (typed("Content-Type: text/canary\r\n"), "415", "Content-Type: application/json"),
            (typed("Content-Type: application/json\r\nContent-Encoding: canary\r\n"), "415", "Content-Encoding"),
            (typed("Content-Type: application/json\r\nAccept: text/canary\r\n"), "406", "text/event-stream"),
            (post(&format!("X-Canary: {}\r\n", "x".repeat(33 << 10)), "{}"), "431", "headers"),
            (post("", &"x".repeat(BODY_MAX + 1)), "413", "`limits.body_bytes_max`"),
        ] {
            let mut client = connect(column.address).await;
            client.send(sent.as_bytes()).await;
            let answer = client.answer().await.unwrap();
            let body = String::from_utf8(answer.body.clone()).unwrap();
            let what = format!("{}: {} {body}", column.name, answer.head);
            assert_eq!((answer.status(), answer.header("content-type")), (status, Some("application/json")), "{what}");
            assert!(body.starts_with(r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":""#), "{what}");
            assert!(body.contains(told) && !body.contains("canary"), "{what}");
        }
    }
}

/// A page of the host that serves it: a proxy in front may have both under one name.
#[tokio::test]
async fn pages_of_a_served_host_may_call_it() {
    let page = |host: &str, origin: &str| posted("/mcp", &format!("Host: {host}\r\nOrigin: {origin}\r\n"));
    let rows: &[Row<'_>] = &[
        ("same origin", page("gate.example", "https://gate.example"), "200 cors=https://gate.example", 1),
        (
            "same origin with a port",
            page("gate.example:8443", "https://gate.example:8443"),
            "200 cors=https://gate.example:8443",
            1,
        ),
        ("another port", page("gate.example", "https://gate.example:8443"), "403 -32600 close", 0),
        ("below it", page("gate.example", "https://evil.gate.example"), "403 -32600 close", 0),
        ("a host that is not served", page("evil.example", "https://evil.example"), "403 -32600 close", 0),
    ];
    check_rows(rows).await;
}
