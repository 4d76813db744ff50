//! Many clients at once that all use the same few ids (SEC-03, B105).

use std::sync::Arc;

use serde_json::json;
use tokio_util::task::TaskTracker;

use super::gate::{Ask, Gate};

#[tokio::test]
async fn fifty_mixed_calls_at_once_are_never_mixed_up() {
    let gate = Arc::new(Gate::start().await);
    let (clients, mut running) = (TaskTracker::new(), Vec::new());
    for n in 0..50 {
        let gate = Arc::clone(&gate);
        let id = format!("\"id\":{}", n % 3);
        running.push(clients.spawn(async move {
            let name = format!("client {n}");
            match n % 5 {
                0 => {
                    let list = gate.send(&Ask::new("tools/list", json!({})).edit("\"id\":7", &id)).await;
                    assert_eq!(list.json()["result"]["tools"].as_array().unwrap().len(), 7);
                    list
                }
                1 => {
                    let ask = Ask::call("slow_report", json!({ "seconds": 1, "steps": n }));
                    let handle = gate.send(&ask.edit("\"id\":7", &id)).await;
                    let task = handle.json()["result"]["taskId"].as_str().unwrap().to_owned();
                    let text = loop {
                        let seen = gate.result(&Ask::new("tasks/get", json!({ "taskId": task }))).await;
                        if seen["status"] != "working" {
                            break seen["result"]["content"][0]["text"].to_string();
                        }
                    };
                    assert!(text.contains(&format!(": {n} sections")), "{text}");
                    handle
                }
                _ => {
                    let greeting = gate.send(&Ask::call("greet", json!({ "name": name })).edit("\"id\":7", &id)).await;
                    assert_eq!(greeting.json()["result"]["content"][0]["text"], format!("Hello, {name}!"));
                    greeting
                }
            }
        }));
    }
    for (n, client) in running.into_iter().enumerate() {
        assert_eq!(client.await.unwrap().json()["id"], n % 3);
    }
}
