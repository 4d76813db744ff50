//! An upstream that is ill: new calls are refused at once, those that run are left alone, and it is found out when it
//! is well again.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;

use super::gate::{Gate, in_time};
use super::server::{Act, Server};

const OPEN: &str = "503 -32603 upstream_circuit_open no";

fn fine() -> Vec<u8> {
    let body = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":1}}}"#;
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {{len}}\r\n\r\n{body}").into_bytes()
}

/// Without the time until the next try, which differs.
fn without_wait(summary: &str) -> &str {
    summary.split_inclusive(" no").next().unwrap_or_default()
}

#[tokio::test]
async fn f33_after_five_failures_new_calls_are_refused_at_once_and_held_ones_go_on() {
    let busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n".to_vec();
    let held = Act::Late(Duration::from_secs(1), fine());
    let turns = std::iter::once(held).chain(vec![Act::SaysOn(busy); 5]).chain([Act::SaysOn(fine())]);
    let gate = Gate::with(vec![Act::InTurn(turns.collect()), Act::SaysOn(fine())], "1m").await;
    let handle = gate.handle(0).await.json()["result"]["taskId"].as_str().unwrap().to_owned();
    in_time(async {
        while gate.server.calls(0).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for n in 0..5 {
        assert_eq!(gate.plain(0).await.summary(), "200 -32603 upstream_http_status unknown 503 5000ms", "{n}");
    }
    let began = Instant::now();
    let refused = gate.plain(0).await;
    // Without a socket and a debug build around it, it takes microseconds.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(without_wait(&refused.summary()), OPEN);
    assert!(
        matches!(refused.header("retry-after"), Some("3" | "4" | "5")),
        "U02: as long as it asked for: {refused:?}"
    );
    assert_eq!(gate.task(0).await.split_inclusive(" no").next(), Some("failed -32603 upstream_circuit_open no"));
    let session = gate.session(0).await.unwrap_err();
    assert_eq!(
        without_wait(&session.summary()),
        "200 -32603 upstream_circuit_open no",
        "session clients are told in 200"
    );
    assert_eq!(gate.server.calls(0).len(), 6, "nothing was sent");
    assert_eq!(gate.plain(1).await.summary(), "200 fine {\"n\":1}", "another upstream is another matter");
    let ended = in_time(async {
        loop {
            let task = gate.get(0, &handle).await;
            if task["status"] != "working" {
                return task;
            }
        }
    })
    .await;
    assert_eq!(ended["result"]["structuredContent"]["n"], 1, "what was held ends as if nothing were");
    let again = in_time(async {
        loop {
            let summary = gate.plain(0).await.summary();
            if without_wait(&summary) != OPEN {
                return summary;
            }
        }
    })
    .await;
    assert_eq!(again, "200 fine {\"n\":1}", "the first try closes it");
    assert_eq!(gate.piped(0).await.summary(), "200 fine {\"n\":1}");
}

#[tokio::test]
async fn f26_an_upstream_that_refuses_connections_is_tried_again_and_then_left_alone() {
    let gate = Gate::before(vec![Act::SaysOn(fine())]).await;
    let address = gate.server.address;
    // The same gateway, with nobody behind it.
    let Gate { server, .. } = &gate;
    server.end().await;
    for n in 0..5 {
        assert_eq!(gate.plain(0).await.summary(), "503 -32603 upstream_unreachable no", "{n}");
    }
    assert_eq!(without_wait(&gate.plain(0).await.summary()), OPEN);
    let listener = in_time(async {
        loop {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, address.port())).await {
                Ok(listener) => return listener,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let _back = Server::serve(listener, vec![Act::SaysOn(fine())]);
    let again = in_time(async {
        loop {
            let summary = gate.plain(0).await.summary();
            if without_wait(&summary) != OPEN {
                return summary;
            }
        }
    })
    .await;
    assert_eq!(again, "200 fine {\"n\":1}");
}
