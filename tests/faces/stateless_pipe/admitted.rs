//! Messages of a server of 2026-07-28 that break its version's rules do not reach its clients; the answers that they asked for do.

use serde_json::{Value, json};

use super::client::{Client, Reply};
use super::peers::{body, body_of, client, gate, post, request, server};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer};

/// Asks for progress, and for log messages from `warning` on.
const WANTS: &str = r#""progressToken":"p\u0041","io.modelcontextprotocol/logLevel":"warning""#;

fn told(method: &str, params: &Value) -> String {
    let message = json!({ "jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params });
    format!("data: {message}\n\n")
}

/// A server that says this on the stream of each call or subscription, and answers it.
async fn saying(events: Vec<String>) -> ScriptedServer {
    server(move |seen: &SeenRequest| {
        let is_asked = seen.is_call() || seen.rpc() == "subscriptions/listen";
        is_asked.then(|| said(seen, &events))
    })
    .await
}

fn said(seen: &SeenRequest, messages: &[String]) -> ScriptedReply {
    let (events, reply) = BodySender::open();
    messages.iter().for_each(|message| events.raw(message.clone()));
    events.result(seen, &json!({ "resultType": "complete", "content": [] }));
    reply
}

/// The names of the notifications on a stream, with the text that tells them apart.
fn names(text: &str) -> Vec<String> {
    let messages = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let read = messages.map(|data| serde_json::from_str::<Value>(data).unwrap());
    let name = |message: &Value| {
        let params = &message["params"];
        let mark = ["level", "uri", "progressToken"].into_iter().find_map(|key| params[key].as_str());
        Some(format!("{} {}", message["method"].as_str()?.strip_prefix("notifications/")?, mark.unwrap_or_default()))
    };
    read.filter_map(|message| name(&message)).collect()
}

async fn ask(client: &Client, body: &str) -> String {
    client.send(request(client, body)).await.text().await
}

/// All that no request asked for, and one that no version knows.
fn everything() -> Vec<String> {
    vec![
        told("progress", &json!({ "progressToken": "pA", "progress": 1 })),
        told("progress", &json!({ "progressToken": "another", "progress": 1 })),
        told("progress", &json!({ "progress": 1 })),
        told("message", &json!({ "level": "error", "data": 1 })),
        told("message", &json!({ "level": "info", "data": 1 })),
        told("message", &json!({ "level": "loud", "data": 1 })),
        told("tools/list_changed", &json!({})),
        told("prompts/list_changed", &json!({})),
        told("resources/updated", &json!({ "uri": "a:b/c" })),
        told("resources/updated", &json!({ "uri": "x:y" })),
        told("subscriptions/acknowledged", &json!({ "notifications": {} })),
        told("cancelled", &json!({ "requestId": "ab" })),
        told("tasks", &json!({ "taskId": "theirs", "status": "working" })),
        told("tasks/status", &json!({ "taskId": "theirs", "status": "working" })),
        told("x", &json!({})),
    ]
}

/// U58, MOD-22, MOD-23, T-67.
#[tokio::test]
async fn u58_only_notifications_that_a_request_asked_for_come_on_its_stream() {
    let server = saying(everything()).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    let call = body("tools/call", r#""name":"t""#);
    let wanting = call.replacen(r#""x":1.10"#, WANTS, 1);
    assert_eq!(names(&ask(&client, &call).await), ["x "]);
    assert_eq!(names(&ask(&client, &wanting).await), ["progress pA", "message error", "x "]);
}

/// U58, MOD-24.
#[tokio::test]
async fn u58_a_subscription_has_the_notifications_that_it_wants() {
    let server = saying(everything()).await;
    let gate = gate(&server).await;
    let wanted = r#""notifications":{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#;
    assert_eq!(
        names(&ask(&client(&gate), &body("subscriptions/listen", wanted)).await),
        [
            "tools/list_changed ",
            "resources/updated a:b/c",
            "resources/updated x:y",
            "subscriptions/acknowledged ",
            "x "
        ]
    );
}

/// U57, MOD-21.
#[tokio::test]
async fn u57_a_stream_has_no_positions_wherever_they_stand() {
    let big = told("x", &json!({ "pad": "x".repeat(300 << 10) }));
    let events = vec![
        "retry: 1\nid: 1\n\n".to_owned(),
        ": c\n\n".to_owned(),
        format!("id: 2\nevent: message\nretry: 2\n{}", told("x", &json!({}))),
        told("x", &json!({})).replace("\n\n", "\r\nid:3\r\nid\r\n\r\n"),
        format!("id: 4\r{big}"),
    ];
    let server = saying(events).await;
    let gate = gate(&server).await;
    let text = ask(&client(&gate), &body("tools/call", r#""name":"t""#)).await;
    let fields: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    assert!(!fields.iter().any(|field| ["id", "retry"].contains(field)), "{fields:?}");
    assert!(text.contains(": c\n") && text.matches("notifications/x").count() == 3, "{fields:?}");
}

async fn result_of(server: &ScriptedServer, capabilities: &str, method: &str, params: &str) -> Value {
    let gate = gate(server).await;
    let reply: Reply = post(&client(&gate), &body_of(method, capabilities, params)).await;
    reply.json().await
}

/// U56, MOD-11, MOD-14, UPC-09, EXT-02.
#[tokio::test]
async fn u56_a_result_has_a_type_that_its_client_may_get() {
    let other = r#"{"extensions":{"a/b":{}}}"#;
    let tasks = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let handle = json!({ "resultType": "task", "taskId": "theirs", "status": "working" });
    let large = json!({ "content": [], "pad": "x".repeat(300 << 10), "resultType": "task" });
    let rows = [
        ("{}", json!({ "content": [] }), Some("complete")),
        ("{}", json!({ "resultType": "complete" }), Some("complete")),
        ("{}", handle.clone(), None),
        (other, handle.clone(), None),
        (tasks, handle, None),
        ("{}", json!({ "resultType": "later" }), None),
        (other, json!({ "resultType": "later" }), Some("later")),
        (tasks, json!({ "resultType": "later" }), None),
        ("{}", json!({ "ResultType": "task" }), None),
        ("{}", json!({ "resultType": "input_required" }), None),
    ];
    for (capabilities, result, expected) in rows {
        let said = result.clone();
        let server = server(move |seen| seen.is_call().then(|| answer(seen, &said))).await;
        let keys = "[upstreams.up.tasks]\nmode = \"never\"";
        let gate = super::client::TestGateway::with(server.address, keys).await;
        let answer = post(&client(&gate), &body_of("tools/call", capabilities, r#""name":"t""#)).await.json().await;
        assert_eq!(answer["result"]["resultType"].as_str(), expected, "{capabilities} {result}: {answer}");
        let data = &answer["error"]["data"];
        assert_eq!(data["reason"] == "upstream_malformed", expected.is_none(), "{capabilities} {result}: {answer}");
    }
    // An answer whose beginning hides its kind is cut off, unless it came in one piece.
    let server = server(move |seen| seen.is_call().then(|| answer(seen, &large))).await;
    let gate = gate(&server).await;
    let reply = post(&client(&gate), &body("tools/call", r#""name":"t""#)).await;
    let shown = reply.try_text().await;
    assert!(shown.as_ref().is_none_or(|text| text.contains("upstream_malformed")), "{shown:?}");
}

/// U56: a large result is forwarded before its type shows.
#[tokio::test]
async fn u56_a_large_result_may_end_with_the_type_of_an_extension_that_its_client_declared() {
    for is_stream in [false, true] {
        let server = server(move |seen| {
            let large = json!({ "content": [], "pad": "x".repeat(600 << 10), "resultType": "later" });
            let reply = || match is_stream {
                true => {
                    let (events, reply) = BodySender::open();
                    events.result(seen, &large);
                    reply
                }
                false => answer(seen, &large),
            };
            seen.is_call().then(reply)
        })
        .await;
        for (capabilities, is_whole) in [(r#"{"extensions":{"a/b":{}}}"#, true), ("{}", false)] {
            let gate = gate(&server).await;
            let reply = post(&client(&gate), &body_of("tools/call", capabilities, r#""name":"t""#)).await;
            let shown = reply.try_text().await;
            let has_type = shown.as_ref().is_some_and(|text| text.contains(r#""resultType":"later""#));
            assert_eq!(has_type, is_whole, "in a stream: {is_stream}");
        }
    }
}

/// SEC-48: some clients read arrays and malformed messages.
#[tokio::test]
async fn sec_48_an_update_in_an_unreadable_message_reaches_no_client() {
    let update = told("resources/updated", &json!({ "uri": "a:b" }));
    let message = update.trim().strip_prefix("data: ").unwrap();
    let server = saying(vec![
        format!("data: [{message}]\n\n"),
        format!("data: [{}]\n\n", message.replace('/', r"\/")),
        update.replace("2.0", "1.0"),
        told("x", &json!({})),
    ])
    .await;
    let gate = gate(&server).await;
    let wanted = r#""notifications":{"resourceSubscriptions":["a:b"]}"#;
    let text = ask(&client(&gate), &body("subscriptions/listen", wanted)).await;
    assert!(!text.contains("updated"), "{text}");
    assert_eq!(names(&text), ["x "]);
}

/// U56, MOD-14: a cacheable result has its ttl and scope, as the server set them or else none.
#[tokio::test]
async fn u56_a_cacheable_result_has_its_hints() {
    for (hints, ttl, scope) in [
        (json!({}), 0, "private"),
        (json!({ "ttlMs": 5 }), 5, "private"),
        (json!({ "cacheScope": "public" }), 0, "public"),
    ] {
        for method in ["resources/read", "prompts/list", "resources/list", "tools/list"] {
            let mut result = json!({ "resultType": "complete", "contents": [], "tools": [] });
            hints.as_object().unwrap().iter().for_each(|(key, value)| result[key] = value.clone());
            let server = server(move |seen| (seen.rpc() == method).then(|| answer(seen, &result))).await;
            let params = if method == "resources/read" { r#""uri":"a:b""# } else { "" };
            let shown = result_of(&server, "{}", method, params).await;
            assert_eq!(
                (&shown["result"]["ttlMs"], &shown["result"]["cacheScope"]),
                (&json!(ttl), &json!(scope)),
                "{method} {hints}: {shown}"
            );
        }
    }
}

/// U82, MOD-15: a cache that callers share would show one caller a result that the gateway withholds from it.
#[tokio::test]
async fn u82_a_result_that_other_callers_do_not_get_is_private() {
    const KEY: &str = "tg_ada1_0011223344556677889900aabbccddee";
    let auth = format!("[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{KEY}\"\n");
    let bob = "[[auth.api_keys]]\nid = \"bob\"\nkey = \"tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90\"\n";
    let rows = [
        (format!("{auth}{bob}"), "public", "public"),
        (format!("{auth}{bob}tools = [\"none\"]\n"), "private", "public"),
        (format!("{auth}{bob}upstreams = [\"up\"]\n"), "private", "private"),
        (format!("{auth}{bob}[[auth.rules]]\nallow = true\n"), "private", "private"),
    ];
    for (keys, of_tools, of_others) in rows {
        for method in ["server/discover", "resources/read", "prompts/list", "resources/list", "tools/list"] {
            let expected = if method == "tools/list" { of_tools } else { of_others };
            let result = json!({ "resultType": "complete", "ttlMs": 5, "cacheScope": "public", "contents": [],
                "pad": "x".repeat(300 << 10), "supportedVersions": ["2026-07-28"], "capabilities": {} });
            let server = server(move |seen| (seen.rpc() == method).then(|| answer(seen, &result))).await;
            let gate = super::client::TestGateway::with(server.address, &keys).await;
            let params = if method == "resources/read" { r#""uri":"a:b""# } else { "" };
            let mut request = request(&client(&gate), &body(method, params));
            request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
            let shown = client(&gate).send(request).await.json().await;
            assert_eq!(
                (&shown["result"]["ttlMs"], &shown["result"]["cacheScope"]),
                (&json!(5), &json!(expected)),
                "{method} {keys}"
            );
        }
    }
}
