//! Bad heads over HTTP/2: the rows B19 to B24 and B49 to B77 about heads over HTTP/1.

use super::client::UPSTREAM_FIELDS;
use super::column::{Column, MESSAGE};
use super::frames::{ACK, DATA, Http2, NONE, ORDINARY, SETTINGS, check_rows, dress, fields, frame, head, posted};
use super::harness::BODY_MAX;

#[tokio::test]
async fn heads_are_judged_as_over_http_1() {
    let with = |name: &'static str, value: &'static str| {
        fields(&ORDINARY.map(|(found, old)| if found == name { (name, value) } else { (found, old) }))
    };
    let more = |name: &'static str, value: &'static str| posted(1, &[(name, value)]);
    let untyped: Vec<_> = ORDINARY.into_iter().filter(|(name, _)| *name != "content-type").collect();
    // Three of the four pseudo-headers count as no field; `Host` is made of the authority.
    let fillers = |count: usize| posted(1, &vec![("x-filler", "1"); count]);
    let long: &'static str = "/".repeat(9_000).leak();
    let mut rows = vec![
        ("B19 within", fillers(60), "200", 1),
        ("B19 beyond", fillers(64), "431", 0),
        ("B21", with(":path", long), "414", 0),
        ("B24", more("expect", "200-ok"), "417", 0),
        ("B57", with(":path", "/mcp?a=b"), "200", 1),
        ("B64 both good", more("origin", "http://localhost"), "200", 1),
        ("B62", posted(1, &[("origin", "http://localhost"), ("origin", "http://localhost")]), "403", 0),
        (
            "B65",
            fields(&[
                (":method", "OPTIONS"),
                (":scheme", "http"),
                (":authority", "localhost"),
                (":path", "/mcp"),
                ("origin", "http://evil.example"),
                ("access-control-request-method", "POST"),
            ]),
            "403",
            0,
        ),
        ("B67 missing", fields(&untyped), "415", 0),
        ("B67 text", with("content-type", "text/plain"), "415", 0),
        ("B67 two", more("content-type", "application/json"), "415", 0),
        ("B67 charset", with("content-type", "application/json; charset=utf-16"), "415", 0),
        ("B68", more("content-encoding", "gzip"), "415", 0),
        ("B69", more("accept", "text/html"), "406", 0),
    ];
    for path in ["/", "/mcp//", "/mcp/../admin", "/%6dcp", "//mcp", "/mcp;x", "/MCP"] {
        rows.push(("B56", with(":path", path), "404", 0));
    }
    for method in ["HEAD", "PUT", "PATCH", "TRACE"] {
        rows.push(("B54", with(":method", method), "405", 0));
    }
    for name in ["evil.example", "localhost.evil.example", "127.0.0.1.evil", "localhost."] {
        rows.push(("B58, B59", with(":authority", name), "403", 0));
    }
    for origin in ["http://evil.example", "null", "http://localhost/", "ftp://localhost", "https://app.example"] {
        rows.push(("B60, B61, B63, B64", more("origin", origin), "403", 0));
    }
    check_rows(rows).await;
}

/// B07, B73, B75: fields of other hops are not forwarded.
#[tokio::test]
async fn no_field_beside_the_protocols_comes_through() {
    let column = Column::session().await;
    let mut http2 = Http2::connect_to(column.address).await;
    let odd = [("cookie", "c=1"), ("forwarded", "for=192.0.2.1"), ("x-forwarded-for", "192.0.2.1"), ("te", "trailers")];
    http2.send(&dress(&posted(1, &odd), &column.fields())).await;
    assert_eq!(http2.fate(1).await, "200");
    let seen = column.server().world.first(|seen| seen.bytes == MESSAGE.as_bytes()).await;
    assert_eq!(seen.fields(), UPSTREAM_FIELDS);
    assert_eq!(seen.header("cookie"), Some("a=b"), "what the server gave to this session, and nothing of a client's");
}

/// B71.
#[tokio::test]
async fn a_body_without_length_ends_at_the_limit() {
    for column in Column::all().await {
        let mut http2 = Http2::connect_to(column.address).await;
        // The wider windows hold once their settings were acknowledged.
        http2.send(&frame(SETTINGS, ACK, 0, &[])).await;
        assert!(http2.lives().await);
        let endless = frame(DATA, NONE, 1, &[b' '; 16 << 10]).repeat(BODY_MAX / (16 << 10) + 1);
        http2.send(&dress(&[head(NONE, 1, &[]), endless].concat(), &column.fields())).await;
        assert_eq!(http2.fate(1).await, "413", "{}", column.name);
        assert!(http2.lives().await, "{}", column.name);
        assert_eq!(column.reached(), 0, "{}", column.name);
    }
}
