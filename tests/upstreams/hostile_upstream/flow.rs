//! Faults of an upstream over time: late answers, floods, unusable connections, answers without end.

use std::time::Duration;

use serde_json::{Value, json};
use support::scripted::in_time;
use tokio::io::AsyncReadExt;

use super::gate::{Ask, Gate};
use super::server::Act;

const MIB: usize = 1 << 20;

fn events(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{text}").into_bytes()
}

fn answer() -> Vec<u8> {
    let body = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":1}}}"#;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n";
    format!("{head}{body}").into_bytes()
}

/// Repeats `look` until it sees something.
async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    in_time(async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

async fn task(gate: &Gate) -> String {
    gate.handle(0).await.json()["result"]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn u11_an_answer_after_a_cancel_changes_nothing() {
    for gate in Gate::of_each_era(&[Act::Held(answer())], "1h").await {
        let id = task(&gate).await;
        eventually(async || (!gate.server.calls(0).is_empty()).then_some(())).await;
        let cancel = Ask::modern(
            0,
            "tasks/cancel",
            json!({ "taskId": id }),
            &json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }),
        );
        assert_eq!(gate.send(&cancel).await.summary(), "200 fine null");
        assert_eq!(gate.get(0, &id).await["status"], "cancelled");
        gate.server.release.cancel();
        eventually(async || (*gate.server.written.lock() == 1).then_some(())).await;
        assert_eq!(gate.get(0, &id).await["status"], "cancelled", "the late answer came to nothing");
    }
}

/// The bytes behind an answer could be read as the next one, so nothing else is asked on that connection.
#[tokio::test]
async fn u15_a_connection_with_bytes_too_many_is_not_used_again() {
    let body = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":1}}}"#;
    let extra = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let acts = [answer(), [answer(), extra.as_bytes().to_vec()].concat()];
    // The second one announces the length of its first answer alone.
    let fixed = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).unwrap().replace("{len}", &(body.len() - 4 + ID_LEN).to_string())
    };
    let acts = acts.iter().map(|act| Act::SaysOn(fixed(act).into_bytes())).collect();
    let gate = Gate::with(acts, "1h").await;
    for (row, is_same) in [(0, true), (1, false)] {
        for n in 0..3 {
            assert_eq!(gate.plain(row).await.summary(), "200 fine {\"n\":1}", "{row} {n}");
        }
        let used: Vec<_> = gate.server.calls(row).iter().map(|seen| seen.connection).collect();
        assert_eq!(used.windows(2).all(|two| two[0] == two[1]), is_same, "{row}: {used:?}");
    }
}

/// How long the ids are that the gateway gives its own requests, in JSON.
const ID_LEN: usize = "\"tg:0011223344556677:00112233445566778899aabbccddeeff\"".len();

/// The visible status message of a task is short, and plain text.
#[tokio::test]
async fn u26_words_of_progress_are_cut_and_cleaned() {
    let words = format!(r"\u001b[31mred\u202e{}", "x".repeat(50_000));
    let progress = format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{{id}},\"progress\":1,\"message\":\"{words}\"}}}}\n\n"
    );
    for gate in Gate::of_each_era(&[Act::Stays(events(&progress))], "1h").await {
        let id = task(&gate).await;
        let shown = eventually(async || gate.get(0, &id).await["statusMessage"].as_str().map(str::to_owned)).await;
        assert!(shown.starts_with("[31mred") && shown.len() <= 1024, "{} bytes", shown.len());
        assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}'), "{shown:?}");
    }
}

fn question(id: usize, method: &str) -> String {
    let params = json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
    format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// The upstream's ids of its refused questions.
fn told(gate: &Gate, code: i64) -> Vec<Value> {
    let seen = gate.server.seen(0).into_iter().map(|seen| seen.body);
    seen.filter(|body| body["error"]["code"] == code).map(|body| body["id"].clone()).collect()
}

#[tokio::test]
async fn u29_thirty_two_questions_are_open_and_the_next_ones_refused() {
    let flood: String = (1..=40).map(|id| question(id, "elicitation/create")).collect();
    let gate = Gate::with(vec![Act::Stays(events(&flood))], "1h").await;
    let id = task(&gate).await;
    eventually(async || (told(&gate, -32603).len() == 8).then_some(())).await;
    let open = eventually(async || {
        let task = gate.get(0, &id).await;
        task["inputRequests"].as_object().filter(|open| open.len() == 32).cloned()
    });
    assert_eq!(open.await.len(), 32);
}

#[tokio::test]
async fn u30_a_question_of_an_unknown_method_is_refused_and_the_call_goes_on() {
    let gate = Gate::with(vec![Act::Stays(events(&question(5, "tools/dance")))], "1h").await;
    let id = task(&gate).await;
    let refused = eventually(async || told(&gate, -32601).pop()).await;
    assert_eq!((refused, gate.get(0, &id).await["status"].as_str()), (json!(5), Some("working")));
}

/// F36: a large answer waits at the upstream until its client reads; the gateway's buffers in between are bounded.
#[tokio::test]
async fn f36_an_unread_answer_fills_no_memory() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n\
                {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"content\":[]";
    let gate = Gate::with(vec![Act::Endless(head.as_bytes().to_vec(), vec![b' '; 64 << 10])], "1h").await;
    let session = gate.session(0).await.unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": "t", "arguments": {} } });
    let mut client = gate.connect(&Ask::session(0, Some(&session), &call)).await;
    let written = || *gate.server.written.lock();
    // Written until both sides' buffers are full, and no further.
    let still = || {
        eventually(async || {
            let before = written();
            tokio::time::sleep(Duration::from_millis(300)).await;
            (before > 0 && written() == before).then_some(before)
        })
    };
    let stalled = still().await;
    // Nearly all of it is the kernel's: two sockets of loopback, each way.
    assert!(stalled < 24 * MIB, "{stalled} bytes were read without a reader");
    // It flows again.
    let mut read = 0;
    let mut piece = vec![0; 1 << 16];
    while read < 64 * MIB {
        let more = in_time(client.read(&mut piece)).await.unwrap();
        assert!(more > 0, "it ended after {read} bytes");
        read += more;
    }
    drop(client);
    // An answer that is kept is read to its bound and not beyond.
    let before = written();
    assert_eq!(gate.task(0).await, "failed -32603 result_too_large yes");
    let taken = still().await - before;
    assert!(taken < 24 * MIB, "{taken} bytes were taken beyond the bound");
}
