//! An upstream that is ill: new calls are refused at once, those that run are left alone, and it is found out when it
//! is well again.

use std::time::Duration;

use support::scripted::in_time;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::gate::Gate;
use super::server::{Act, Server};

const OPEN: &str = "503 -32603 upstream_circuit_open no";

fn fine() -> Vec<u8> {
    let body = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":1}}}"#;
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {{len}}\r\n\r\n{body}").into_bytes()
}

/// The summary without the time until the next try, which differs.
fn without_wait(summary: &str) -> &str {
    summary.split_inclusive(" no").next().unwrap_or_default()
}

/// The summary of the first call after new calls are no longer refused.
async fn until_closed(gate: &Gate) -> String {
    in_time(async {
        loop {
            let summary = gate.plain(0).await.summary();
            if without_wait(&summary) != OPEN {
                return summary;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

#[tokio::test]
async fn f33_after_five_failures_new_calls_are_refused_at_once_and_held_ones_go_on() {
    // A busy machine makes the refused calls within these 15 s.
    let busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 15\r\nContent-Length: 0\r\n\r\n".to_vec();
    let turns = std::iter::once(Act::Held(fine())).chain(vec![Act::SaysOn(busy); 5]).chain([Act::SaysOn(fine())]);
    let gate = Gate::with(vec![Act::InTurn(turns.collect()), Act::SaysOn(fine())], "1m").await;
    let handle = gate.handle(0).await.json()["result"]["taskId"].as_str().unwrap().to_owned();
    in_time(async {
        while gate.server.calls(0).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let began = Instant::now();
    for n in 0..5 {
        assert_eq!(gate.plain(0).await.summary(), "200 -32603 upstream_http_status unknown 503 15000ms", "{n}");
    }
    let refused = gate.plain(0).await;
    assert_eq!(without_wait(&refused.summary()), OPEN);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let least = 15_u64.saturating_sub(began.elapsed().as_secs() + 1);
    assert!(wait <= 15 && wait >= least, "U02: as long as it asked for: {refused:?}");
    assert_eq!(gate.task(0).await.split_inclusive(" no").next(), Some("failed -32603 upstream_circuit_open no"));
    let session = gate.session(0).await.unwrap_err();
    assert_eq!(
        without_wait(&session.summary()),
        "200 -32603 upstream_circuit_open no",
        "session clients are told in 200"
    );
    assert_eq!(gate.server.calls(0).len(), 6, "nothing was sent");
    assert_eq!(gate.plain(1).await.summary(), "200 fine {\"n\":1}", "another upstream is another matter");
    assert_eq!(gate.get(0, &handle).await["status"], "working", "a held call goes on");
    gate.server.release.cancel();
    let ended = in_time(async {
        loop {
            let task = gate.get(0, &handle).await;
            if task["status"] != "working" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(ended["result"]["structuredContent"]["n"], 1, "the held call ends normally");
    let again = until_closed(&gate).await;
    assert_eq!(again, "200 fine {\"n\":1}", "the first try closes it");
    assert_eq!(gate.piped(0).await.summary(), "200 fine {\"n\":1}");
}

#[tokio::test]
async fn f26_an_upstream_that_refuses_connections_is_tried_again_and_then_left_alone() {
    let gate = Gate::with(vec![Act::SaysOn(fine())], "1m").await;
    let address = gate.server.address;
    // The same gateway, with its server gone.
    let Gate { server, .. } = &gate;
    server.end().await;
    let (began, mut tries) = (Instant::now(), 0);
    loop {
        let summary = gate.plain(0).await.summary();
        if without_wait(&summary) == OPEN {
            break;
        }
        assert_eq!(summary, "503 -32603 upstream_unreachable no", "{tries}");
        tries += 1;
        // A machine that takes its time leaves time for another try, each after two seconds or more.
        assert!(tries <= 5 + began.elapsed().as_secs() / 2, "{tries} tries");
    }
    assert!(tries >= 5, "{tries} tries");
    let _back = Server::serve(TcpListener::bind(address).await.unwrap(), vec![Act::SaysOn(fine())]);
    let again = until_closed(&gate).await;
    assert_eq!(again, "200 fine {\"n\":1}");
}
