//! Questions of a hostile upstream in mid-call, streams that no client resumes, and one upstream beside others.

use std::time::Duration;

use serde_json::{Value, json};
use support::scripted::in_time;

use super::gate::{Ask, Gate};
use super::server::Act;

const TASKS: &str = "io.modelcontextprotocol/tasks";

fn events(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{text}").into_bytes()
}

fn asks(params: &Value) -> Act {
    let question = json!({ "jsonrpc": "2.0", "id": 5, "method": "elicitation/create", "params": params });
    Act::Stays(events(&format!("data: {question}\n\n")))
}

/// The client's answer to the upstream's question.
async fn told(gate: &Gate, row: usize) -> Value {
    in_time(async {
        loop {
            let told = gate.server.seen(row).into_iter().map(|seen| seen.body);
            if let Some(answer) = told.into_iter().find(|body| body["id"] == 5 && body.get("method").is_none()) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// U31, U32: a client never gets a question of an undeclared capability, or with an address that is no web page.
#[tokio::test]
async fn u31_u32_questions_that_may_not_be_asked_are_answered_and_never_shown() {
    let form = json!({ "message": "Secret?", "requestedSchema": { "type": "object", "properties": {} } });
    let address = |url: &str| json!({ "mode": "url", "message": "Secret?", "elicitationId": "e", "url": url });
    let both = json!({ "form": {}, "url": {} });
    let declined = json!({ "action": "decline" });
    let rows = [
        ("undeclared", asks(&form), None, json!({ "code": -32602 })),
        ("script", asks(&address("javascript:alert(1)")), Some(&both), declined.clone()),
        ("file", asks(&address("file:///etc/passwd")), Some(&both), declined.clone()),
        ("credentials", asks(&address("https://bank.example@evil.example/")), Some(&both), declined),
    ];
    let gate = Gate::with(rows.iter().map(|(_, act, ..)| act.clone()).collect(), "1m").await;
    for (row, (name, _, declared, expected)) in rows.iter().enumerate() {
        let mut capabilities = json!({ "extensions": { TASKS: {} } });
        if let Some(declared) = declared {
            capabilities["elicitation"] = (*declared).clone();
        }
        let call = Ask::modern(row, "tools/call", json!({ "name": "t", "arguments": {} }), &capabilities);
        let made = gate.send(&call).await;
        let id = made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{name}: {made:?}")).to_owned();
        let answer = told(&gate, row).await;
        let found = if answer.get("error").is_some() {
            json!({ "code": answer["error"]["code"] })
        } else {
            answer["result"].clone()
        };
        assert_eq!(found, *expected, "{name}: {answer}");
        let get = Ask::modern(row, "tasks/get", json!({ "taskId": id }), &capabilities);
        let seen = gate.send(&get).await;
        assert_eq!(seen.json()["result"]["status"], "working", "{name}: the call goes on");
        assert!(!String::from_utf8_lossy(&seen.body).contains("Secret?"), "{name}");
    }
}

/// U24: a stream with an event id, at an upstream that does not know it any more.
#[tokio::test]
async fn u24_a_stream_that_is_not_taken_up_within_thirty_seconds_is_lost() {
    let first = "id: e-1\nretry: 1000\ndata:\n\n";
    // The first one answers a resumption with 405, the second one with an empty stream.
    let acts = vec![Act::Says(events(first)), Act::Resumed(events(first), events(""))];
    let gate = Gate::with(acts, "2m").await;
    let began = tokio::time::Instant::now();
    let both = async {
        tokio::join!(gate.task_within(0, Duration::from_secs(60)), gate.task_within(1, Duration::from_secs(60)))
    };
    let closed = || "failed -32603 upstream_closed unknown".to_owned();
    assert_eq!(both.await, (closed(), closed()));
    assert!(began.elapsed() >= Duration::from_secs(29), "{:?}", began.elapsed());
    assert_eq!((gate.server.calls(0).len(), gate.server.calls(1).len()), (1, 1), "nothing is sent again");
}

/// F42: an upstream that hangs with all its places taken is the only one that notices.
#[tokio::test]
async fn f42_an_upstream_that_hangs_does_not_hold_up_the_others() {
    let fine = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":1}}}"#;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n";
    let acts = vec![Act::Stays(Vec::new()), Act::SaysOn(format!("{head}{fine}").into_bytes())];
    let gate = Gate::set(acts, "in_flight_max = 2\nqueue_max = 2\nqueue_deadline = \"1m\"").await;
    let call = || Ask::modern(0, "tools/call", json!({ "name": "t", "arguments": {} }), &json!({}));
    let mut held = Vec::new();
    for n in 1..=4 {
        held.push(gate.connect(&call()).await);
        in_time(async {
            while gate.server.calls(0).len() < n.min(2) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    let refused = in_time(async {
        loop {
            // The fourth one may still be on its way into the queue.
            let answer = tokio::time::timeout(Duration::from_millis(500), gate.plain(0)).await;
            if let Ok(answer) = answer {
                return answer.summary();
            }
        }
    });
    assert_eq!(refused.await, "503 -32603 queue_full no");
    for n in 0..50 {
        assert_eq!(gate.plain(1).await.summary(), "200 fine {\"n\":1}", "{n}");
    }
    assert_eq!(gate.server.calls(0).len(), 2, "who waits was not sent");
}
