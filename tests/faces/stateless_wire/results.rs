//! Discovery, lists, and results that keep the upstream's bytes.

use serde_json::json;

use super::gate::{Ask, Gate, MODERN};
use super::odd::{RESULTS, SERVER_INFO, TOOLS};

/// EXT-01, EXT-60, EXT-61, MOD-12, MOD-13, MOD-14, T-18: exactly this.
#[tokio::test]
async fn discovery_is_exact() {
    let gate = Gate::start().await;
    let answer = gate.send(&Ask::new("server/discover", json!({})).at_odd()).await;
    let expected = format!(
        r#"{{"jsonrpc":"2.0","id":7,"result":{{"resultType":"complete","supportedVersions":["{MODERN}"],"capabilities":{{"tools":{{"listChanged":true}},"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}},"ttlMs":0,"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}}}}}}"#
    );
    assert_eq!(answer.text(), expected);
}

/// MOD-13, MOD-14, MOD-17, MOD-32, UPC-16: one page, always in the same order, without members for the gateway alone.
#[tokio::test]
async fn the_tool_list_is_the_upstreams_without_members_for_the_gateway() {
    let gate = Gate::start().await;
    let tools = TOOLS.map(|(_, published)| published).join(",");
    let expected = format!(
        r#"{{"jsonrpc":"2.0","id":7,"result":{{"odd":0.50, "tools":[{tools}],"_meta":{{"k":1.0,"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}},"resultType":"complete","ttlMs":0,"cacheScope":"private"}}}}"#
    );
    for _ in 0..3 {
        let answer = gate.send(&Ask::new("tools/list", json!({})).at_odd()).await;
        assert_eq!(answer.text(), expected);
        assert!(!answer.text().contains("\"execution\""));
        gate.result(&Ask::new("server/discover", json!({})).at_odd()).await;
    }
}

/// MOD-11, MOD-13, T-14: byte for byte, but for the members that 2026-07-28 adds.
#[tokio::test]
async fn results_keep_the_upstreams_bytes() {
    let gate = Gate::start().await;
    for (tool, written) in &RESULTS[..3] {
        let answer = gate.send(&Ask::call(tool, json!({})).at_odd()).await;
        let open = written.strip_suffix('}').unwrap();
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{open},"resultType":"complete","_meta":{{"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}}}}}}"#
        );
        assert_eq!(answer.text(), expected, "{tool}");
    }
}

/// MOD-14: all cacheable methods say so, and no other.
/// MOD-15.
#[tokio::test]
async fn cacheable_results_have_a_ttl_and_a_scope() {
    let gate = Gate::start().await;
    for (ask, is_cacheable) in [
        (Ask::new("tools/list", json!({})), true),
        (Ask::new("prompts/list", json!({})), true),
        (Ask::call("texts", json!({})), false),
    ] {
        let result = gate.result(&ask.at_odd()).await;
        let hints = (result["ttlMs"].as_u64(), result["cacheScope"].as_str());
        assert_eq!(hints, if is_cacheable { (Some(0), Some("private")) } else { (None, None) });
        assert_eq!(result["resultType"], "complete");
    }
}

/// MOD-09, MOD-30, MOD-31, T-19, T-50.
#[tokio::test]
async fn errors_of_session_versions_are_put_in_the_words_of_this_one() {
    let gate = Gate::start().await;
    let answer = gate.send(&Ask::new("resources/read", json!({ "uri": "file:///a" })).at_odd()).await;
    assert_eq!(answer.summary(), "200 -32602 id=7");
    assert_eq!(answer.json()["error"], json!({ "code": -32602, "message": "gone", "data": { "uri": "file:///a" } }));
    // The upstream does not know this one, so neither do we.
    let answer = gate.send(&Ask::new("completion/complete", json!({})).at_odd()).await;
    assert_eq!(answer.summary(), "404 -32601 id=7");
    let answer = gate.send(&Ask::call("crash", json!({}))).await;
    assert_eq!(answer.summary(), "200 -32603 id=7");
    assert_eq!(answer.json()["error"]["data"]["tool"], "crash");
}

/// B69: one admitted type is the type of every answer that can have it.
#[tokio::test]
async fn clients_that_admit_one_type_get_that_type() {
    let gate = Gate::start().await;
    let streamed = Ask::call("greet", json!({ "name": "Ada" })).set("Accept", "text/event-stream");
    let answer = gate.send(&streamed).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    let message = answer.text().strip_prefix("event: message\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
    let message: serde_json::Value = serde_json::from_str(message).unwrap();
    assert_eq!(message["result"]["content"][0]["text"], "Hello, Ada!");
    for (accept, status) in [
        ("application/json", "200 ok id=7"),
        ("*/*", "200 ok id=7"),
        ("application/*;q=0.1, text/event-stream;q=0", "200 ok id=7"),
        ("text/html", "406 -32600"),
    ] {
        let answer = gate.send(&Ask::call("greet", json!({ "name": "Ada" })).set("Accept", accept)).await;
        assert_eq!(answer.summary(), status, "{accept}");
    }
}

/// MOD-21, MOD-22: progress of a call that cannot be a task, on the stream of its own request.
#[tokio::test]
async fn progress_is_streamed_without_event_ids() {
    let gate = Gate::start().await;
    let mut said = super::gate::meta(&json!({}));
    said["progressToken"] = json!("p");
    let params = json!({ "name": "slow_report", "arguments": { "seconds": 0.3, "steps": 3 }, "_meta": said });
    let answer = gate.send(&Ask::new("tools/call", params)).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let text = answer.text();
    assert!(!text.contains("\nid:") && !text.starts_with("id:"), "{text}");
    let messages: Vec<serde_json::Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (last, progress) = messages.split_last().unwrap();
    let values: Vec<_> = progress.iter().map(|one| one["params"]["progress"].as_u64().unwrap()).collect();
    assert_eq!(values, [1, 2, 3]);
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(7), &json!("complete")));
}
