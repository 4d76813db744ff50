//! F46 to F51: clients that leave, and a crowd that asks for one task.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::fault_proxy::{Fault, FaultProxy, Verb};
use super::setup::{Setup, wire};
use super::upstream::{WAIT_MAX, in_time};
use super::wire_client::{Flavour, WireClient};

/// F46: an incomplete request is not begun.
#[tokio::test]
async fn f46_a_client_that_leaves_before_its_body_is_whole_has_nothing_executed() {
    let setup = Setup::new(false, "").await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "work", "arguments": {"nonce": "n1x"}}});
    let body = body.to_string();
    for sent in [0, 1, body.len() / 2, body.len() - 1] {
        let mut stream = TcpStream::connect(setup.address()).await.unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
             mcp-method: tools/call\r\nmcp-name: work\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body[..sent]).as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = in_time(stream.read_to_end(&mut answer)).await;
        assert!(!String::from_utf8_lossy(&answer).contains("taskId"), "{sent} bytes");
    }
    assert_eq!(setup.calls("n1x"), 0);
}

/// F48, L1: wherever the answer is cut, a handle of which a byte was handed out is a task.
#[tokio::test]
async fn f48_a_handle_that_was_cut_on_its_way_is_a_task() {
    let setup = Setup::new(false, "").await;
    let mut owner = WireClient { path: "/mcp", patience: WAIT_MAX, ..WireClient::new(Flavour::Core(None)) };
    assert!(owner.open(setup.address()).await);
    for (nth, after) in [1, 60, 200, 350].into_iter().enumerate() {
        let line = FaultProxy::with(setup.address(), Fault::down("tools/call", after, Verb::Reset)).await;
        let call = json!({"name": "work", "arguments": {"nonce": format!("n{nth}x"), "ms": 50}});
        let answer = wire().ask(line.address, "tools/call", call).await;
        assert!(!answer.is_whole, "{after} bytes: {answer:?}");
        let tasks = owner.ask(setup.address(), "tasks/list", json!({})).await.json()["result"]["tasks"].take();
        let tasks = tasks.as_array().unwrap();
        assert_eq!(tasks.len(), nth + 1, "{after} bytes");
        for task in tasks {
            assert_eq!(setup.settled(task["taskId"].as_str().unwrap()).await["status"], "completed");
        }
        assert_eq!(setup.calls(&format!("n{nth}x")), 1);
    }
}

/// F51: no client sees a task go back, and all see the same end.
#[tokio::test]
async fn f51_a_hundred_clients_that_ask_at_once_see_one_course_of_a_task() {
    let setup = Setup::new(false, "").await;
    let id = setup.start("n1x", json!({"ms": 600, "steps": 3})).await;
    let watch = || async {
        let mut last = String::new();
        loop {
            let answer = in_time(setup.ask("tasks/get", json!({"taskId": id}))).await;
            let task = answer.json()["result"].take();
            let updated = task["lastUpdatedAt"].as_str().unwrap().to_owned();
            assert!(updated >= last, "{updated} came after {last}");
            last = updated;
            if task["status"] != "working" {
                return answer.result().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ends: BTreeSet<String> = join_all((0..100).map(|_| watch())).await.into_iter().collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(ends.iter().all(|end| end.contains("n1x done")));
}
