//! Bounds of one tool's calls: the size of its arguments, the silence of its server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;

use super::client::TestGateway;
use super::peers::{PAIRS, Person, SESSION, said, server};
use super::upstream::{BodySender, ScriptedServer, in_time};

#[tokio::test]
async fn arguments_larger_than_the_tool_takes_are_refused_by_name_and_not_sent() {
    let keys =
        "arguments_bytes_max = \"40B\"\n[[upstreams.up.tools]]\nmatch = \"region\"\narguments_bytes_max = \"1KiB\"\n";
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, keys).await;
        let person = Person::meet(&gate, client).await;
        // {"s":""} is 8 bytes.
        for (tool, length, fits) in
            [("plain", 32, true), ("plain", 33, false), ("region", 33, true), ("region", 1017, false)]
        {
            let before = server.world.count("tools/call");
            let arguments = json!({"s": "x".repeat(length)});
            let answer = person.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
            let sent = server.world.count("tools/call") - before;
            if fits {
                assert_eq!((said(&answer).as_str(), sent), (tool, 1), "{client} {kind} {length}");
            } else {
                assert_eq!((answer["error"]["code"].as_i64(), sent), (Some(-32602), 0), "{client} {kind} {answer}");
                assert!(said(&answer).contains("arguments"), "{client} {kind} {answer}");
            }
        }
        if client == SESSION {
            let params = json!({"name": "plain", "arguments": {"s": "x".repeat(33)}, "task": {}});
            assert_eq!(person.ask("tools/call", params).await["error"]["code"], -32602, "{client} {kind}");
        }
    }
}

#[tokio::test]
async fn an_array_is_no_way_around_the_size_of_arguments() {
    let server = server(SESSION).await;
    let gate = TestGateway::with(server.address, "arguments_bytes_max = \"40B\"\n").await;
    let client = gate.client_of("2025-03-26").await;
    let call = |id: u32, length: usize| {
        let params = json!({"name": "plain", "arguments": {"s": "x".repeat(length)}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    let text = client.post(json!([call(1, 32), call(2, 33)]).to_string()).await.text().await;
    assert!(text.contains("-32602") && text.contains("arguments"), "{text}");
    assert_eq!(server.world.count("tools/call"), 1, "{text}");
}

/// A server that never answers a call; `begins` says whether it begins to.
async fn silent(kind: &'static str, begins: bool) -> ScriptedServer {
    // Open until the server ends.
    let open = Arc::new(Mutex::new(Vec::new()));
    ScriptedServer::slow(move |seen, world| {
        let open = Arc::clone(&open);
        async move {
            if seen.is_call() {
                if !begins {
                    std::future::pending::<()>().await;
                }
                let (events, reply) = BodySender::open();
                open.lock().push(events);
                return Some(reply);
            }
            super::peers::served(kind, &seen).or_else(|| Some(super::upstream::polite(&seen, &world)))
        }
    })
    .await
}

#[tokio::test]
async fn the_silence_of_one_tools_server_is_bounded_by_that_tools_block() {
    for (begins, key) in [(false, "call_first_byte_max"), (true, "call_idle_max")] {
        let keys = format!(
            "call_first_byte_max = \"1h\"\ncall_idle_max = \"1h\"\n[[upstreams.up.tools]]\nmatch = \"plain\"\n{key} = \"50ms\"\n"
        );
        for (client, kind) in PAIRS {
            let server = silent(kind, begins).await;
            let gate = TestGateway::with(server.address, &keys).await;
            let person = Person::meet(&gate, client).await;
            let answer = in_time(person.ask("tools/call", json!({"name": "plain", "arguments": {}}))).await;
            let data = &answer["error"]["data"];
            assert!(data.to_string().contains("upstream_timeout"), "{client} {kind} {key} {answer}");
            let other = person.ask("tools/call", json!({"name": "region", "arguments": {}}));
            let waits = tokio::time::timeout(Duration::from_millis(300), other).await.is_err();
            assert!(waits, "{client} {kind} {key}: other tools have their own bounds");
        }
    }
}
