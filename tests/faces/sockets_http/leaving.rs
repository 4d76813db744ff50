//! Clients that disconnect as soon as they have sent their request: a message without an answer is carried out all the same.

use std::sync::atomic::Ordering;

use tokio::time::timeout;

use super::frames::{DATA, END_STREAM, Http2, NONE, frame, head};
use super::harness::{Gate, JSON, PATIENCE, gate, post};

/// How often each body is sent: whether a client is missed is a matter of luck.
const TIMES: usize = 20;

const KEPT: [&str; 6] = [
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#,
    r#"{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"a"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/update","params":{"taskId":"a"}}"#,
    r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/cancelled"}]"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.taskgate/idempotency-key":"k"}}}"#,
];
const DROPPED: [&str; 2] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tasks/cancel"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"a"}}"#,
];

/// Sends a request on a connection of its own, and closes it at once.
async fn send_and_leave(gate: &Gate, is_http2: bool, body: &str) {
    if is_http2 {
        let mut peer = Http2::connect(gate).await;
        let length = body.len().to_string();
        let head = head(NONE, 1, &[("content-length", &length)]);
        peer.send(&[head, frame(DATA, END_STREAM, 1, body.as_bytes())].concat()).await;
    } else {
        let mut client = gate.connect().await;
        client.send(post("", body).as_bytes()).await;
    }
}

/// T-83.
#[tokio::test]
async fn a_request_whose_client_leaves_at_once_arrives() {
    for is_http2 in [false, true] {
        for body in KEPT {
            let gate = gate().await;
            for _ in 0..TIMES {
                send_and_leave(&gate, is_http2, body).await;
            }
            let arrived = async {
                while gate.reached() < TIMES {
                    tokio::task::yield_now().await;
                }
            };
            let is_there = timeout(PATIENCE, arrived).await;
            assert!(is_there.is_ok(), "{} of {TIMES} arrived: HTTP/2: {is_http2}, {body}", gate.reached());
        }
    }
}

/// T-83.
#[tokio::test]
async fn a_request_that_outlives_its_client_is_carried_out_to_its_end() {
    for (bodies, is_kept) in [(&KEPT[..], true), (&DROPPED[..], false)] {
        for body in bodies {
            let gate = gate().await;
            let mut client = gate.connect().await;
            let request = format!("POST /hold HTTP/1.1\r\n{JSON}Content-Length: {}\r\n\r\n{body}", body.len());
            client.send(request.as_bytes()).await;
            gate.arrivals(1).await;
            drop(client);
            gate.emptied().await;
            assert_eq!(gate.recorder.dropped.load(Ordering::Relaxed), usize::from(!is_kept), "{body}");
            gate.recorder.released.add_permits(1);
            let is_carried_out = async {
                while is_kept && gate.recorder.released.available_permits() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, is_carried_out).await.expect(body);
        }
    }
}
