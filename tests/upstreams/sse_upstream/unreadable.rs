//! Unreadable answers, over every transport: each ends its call at once, and the connection serves the next. And text
//! that only resembles one of them.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, faulty_demo};
use super::server::{Sse, both};

/// Texts in place of an answer, a byte for each character.
pub(super) fn unreadable() -> Vec<(&'static str, String)> {
    let of = |text: &str| text.to_owned();
    let result = |value: &str| format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{value}}}"#);
    let fine = result(r#"{"content":[]}"#);
    vec![
        ("cut off", of(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"te"#)),
        ("cut off before its id", of(r#"{"jsonrpc":"2.0","result":{"content":[{"type":"te"#)),
        ("trailing comma", result(r#"{"content":[],}"#)),
        ("NaN", result(r#"{"content":[],"n":NaN}"#)),
        ("a raw tab", result("{\"content\":[],\"t\":\"a\tb\"}")),
        ("an unknown escape", result(r#"{"content":[],"t":"\x41"}"#)),
        ("two on a line", format!("{fine}{fine}")),
        ("a mark of the encoding", format!("\u{ef}\u{bb}\u{bf}{fine}")),
        ("Latin-1", result("{\"content\":[],\"t\":\"caf\u{e9}\"}")),
        ("UTF-8 that is cut", result("{\"content\":[],\"t\":\"\u{f0}\u{9f}\"}")),
        ("200 levels", result(&format!("{}{}", "[".repeat(200), "]".repeat(200)))),
        ("the id twice", of(r#"{"jsonrpc":"2.0","id":{id},"id":{id},"result":{"content":[]}}"#)),
        ("the id as another number", of(r#"{"jsonrpc":"2.0","id":{id}.0,"result":{"content":[]}}"#)),
        ("no version", of(r#"{"id":{id},"result":{"content":[]}}"#)),
        ("a result and an error", of(r#"{"jsonrpc":"2.0","id":{id},"result":{},"error":{"code":1,"message":"m"}}"#)),
        ("an error without a code", of(r#"{"jsonrpc":"2.0","id":{id},"error":{"message":"m"}}"#)),
        ("a key twice", result(r#"{"content":[],"a":1,"a":2}"#)),
        ("half a pair in a key", result(r#"{"content":[],"\ud83d":1}"#)),
        ("a number beyond all bounds", result(r#"{"content":[],"n":1e400}"#)),
    ]
}

/// The same for every client: `tool` says it, and another one answers afterwards.
async fn check(transport: &str, client: &StandaloneClient, extra: Value, next: (&str, Value, &str)) {
    for (number, (name, says)) in (1..).zip(unreadable()) {
        let mut arguments = json!({ "how": "says", "text": says });
        arguments.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = client.call(2 * number, "broken", arguments).await;
        // A line may begin with a mark (RFC 8259, 8.1); the data of an event, and a body, may not.
        if (transport, name) == ("stdio", "a mark of the encoding") {
            assert_eq!(answer["result"], json!({ "content": [] }), "{name}");
        } else {
            let said = (&fault(&answer)["reason"], &fault(&answer)["executed"]);
            assert_eq!(said, (&json!("upstream_malformed"), &json!("yes")), "{transport}, {name}");
        }
        let (tool, arguments, expected) = &next;
        let answer = client.call(2 * number + 1, tool, arguments.clone()).await;
        assert_eq!(text(&answer), *expected, "{transport}, after {name}");
    }
}

pub(super) fn stdio() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let upstream = faulty_demo("", dir.path().to_str().unwrap());
    (dir, upstream)
}

/// U07, U08, U27, U28.
#[tokio::test]
async fn an_unreadable_answer_ends_its_call_at_once_over_every_transport() {
    let (dir, upstream) = stdio();
    let gate = GatewayProcess::start(dir, &upstream).await;
    let greet = ("greet", json!({ "name": "Ada" }), "Hello, Ada!");
    check("stdio", &StandaloneClient::session(&gate).await, json!({}), greet).await;
    assert_eq!(gate.programs().len(), 1, "it is the same process to the end");

    let echo = || ("echo", json!({ "text": "next" }), "next");
    let sse = Sse::start().await;
    let gate = sse.gate("transport = \"sse\"\n").await;
    for (client, who) in both(&gate).await.into_iter().zip(["HTTP+SSE, session", "HTTP+SSE"]) {
        check(who, &client, json!({}), echo()).await;
    }
    assert_eq!(sse.streams(), 2, "the same sessions to the end");

    let http = Sse::start().await;
    http.habits(|habits| habits.is_streamable = true);
    let gate = http.gate("").await;
    // A session's pipe judges only answers that it keeps.
    let client = StandaloneClient::stateless(&gate);
    check("JSON", &client, json!({}), echo()).await;
    check("events", &client, json!({ "as": "events" }), echo()).await;
}

/// U97: without an id, the error can belong to the only call.
#[tokio::test]
async fn u97_a_parse_error_without_an_id_ends_the_only_call() {
    let says = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
    let check = async |client: &StandaloneClient| {
        let answer = client.call(1, "broken", json!({ "how": "says", "text": says })).await;
        let said = (&fault(&answer)["reason"], &fault(&answer)["executed"]);
        assert_eq!(said, (&json!("upstream_malformed"), &json!("unknown")), "{client:?}");
    };
    let (dir, upstream) = stdio();
    let gate = GatewayProcess::start(dir, &upstream).await;
    check(&StandaloneClient::session(&gate).await).await;
    let sse = Sse::start().await;
    for client in both(&sse.gate("transport = \"sse\"\n").await).await {
        check(&client).await;
    }
}

/// Tools that cut a text write it, and clients read it: the gateway forwards unchanged a text that it need not read.
#[tokio::test]
async fn half_a_surrogate_pair_in_a_text_passes_as_it_came_over_every_transport() {
    let cut = r#"{"content":[{"type":"text","text":"a smile: \ud83d"}],"isError":false}"#;
    let says = format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{cut}}}"#);
    let check = async |transport: &str, client: &StandaloneClient| {
        let answer = client.call_verbatim(1, "broken", json!({ "how": "says", "text": says })).await;
        assert!(answer.contains(r#""text":"a smile: \ud83d"}]"#), "{transport}: {answer}");
    };
    let (dir, upstream) = stdio();
    let gate = GatewayProcess::start(dir, &upstream).await;
    check("stdio", &StandaloneClient::session(&gate).await).await;
    let always = "[upstreams.up.tasks]\nmode = \"always\"\n";
    for (keys, is_streamable) in [("transport = \"sse\"\n", false), ("", true)] {
        let sse = Sse::start().await;
        sse.habits(|habits| habits.is_streamable = is_streamable);
        for client in both(&sse.gate(keys).await).await {
            check(&format!("streamable: {is_streamable}, {client:?}"), &client).await;
        }
        let gate = sse.gate(&format!("{keys}{always}")).await;
        let client = StandaloneClient::stateless(&gate).with_tasks();
        let handle = client.call(1, "broken", json!({ "text": says })).await;
        let params = json!({ "taskId": handle["result"]["taskId"] });
        let stored = super::gate::in_time(async {
            loop {
                let found = client.ask_verbatim(2, "tasks/get", params.clone()).await;
                if !found.contains("\"working\"") {
                    return found;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        let stored = stored.await;
        assert!(stored.contains(&cut[1..]), "streamable: {is_streamable}: {stored}");
    }
}

/// A log line is no answer, with an id or without, and neither is a request of the server's own.
#[tokio::test]
async fn a_line_that_is_no_answer_ends_no_call() {
    let (dir, upstream) = stdio();
    let gate = GatewayProcess::start(dir, &upstream).await;
    let client = StandaloneClient::session(&gate).await;
    for (number, line) in [
        r#"{"level":"info","id":{id}}"#,
        r#"{"level":"info","id":{id},"n":NaN}"#,
        r#"{"jsonrpc":"2.0","id":{id},"method":"roots/list","more":1}"#,
        r#"[debug] sent {"jsonrpc":"2.0","id":{id},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let id = 1 + u32::try_from(number).unwrap();
        let answer = client.call(id, "broken", json!({ "how": "says", "text": line })).await;
        assert_eq!(answer["error"]["code"], -32602, "its own answer comes: {answer}");
    }
    assert!(gate.dropped("malformed_event").await >= 4);
}
