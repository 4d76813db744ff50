//! Errors that answer a request are HTTP 200, from the server or the gateway; 400 is for a message without an id.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;

use super::client::{TestGateway, call};
use super::upstream::{Once, ScriptedServer, SeenRequest, json_text, status};

/// B78 to B97, towards session clients; B270: an error under the id of a response would end the client's own request.
#[tokio::test]
async fn an_invalid_message_is_refused_under_its_id() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    // At an endpoint the gateway opens sessions and asks for lists by itself.
    const OWN: [&str; 6] = [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
    ];
    let passed_on = || server.world.all(|seen| !OWN.contains(&seen.rpc())).len();
    let before = passed_on();
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#, "[".repeat(65), "]".repeat(65));
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "m".repeat(129));
    let id = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"x"}}"#, "i".repeat(257));
    for (name, body, verdict) in [
        ("B78 truncated", r#"{"jsonrpc":"2.0""#, "400 -32700"),
        ("B78 two", r#"{"jsonrpc":"2.0","id":1,"method":"x"}{}"#, "400 -32700"),
        ("B80", r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"\ud800":1}}"#, "200 -32700 id 1"),
        ("B80", r#"{"jsonrpc":"2.0","id":1,"method":"x\ud800"}"#, "200 -32600 id 1"),
        ("B81", r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\u0000"}}"#, "200 -32602 id 1"),
        ("B82", deep.as_str(), "400 -32600"),
        ("B83", r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, "400 -32600"),
        ("B84", r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1,"a":2}}"#, "200 -32600 id 1"),
        ("B85", r#"{"jsonrpc":"2.0","id":1,"Method":"x","method":"y"}"#, "200 -32600 id 1"),
        (
            "B85",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Name":"b"}}"#,
            "200 -32602 id 1",
        ),
        ("B86", r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1e400}}"#, "200 -32600 id 1"),
        ("B91", "7", "400 -32600"),
        ("B92", r#"{"id":1,"method":"x"}"#, "200 -32600 id 1"),
        ("B93", r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, "400 -32600"),
        ("B93", r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, "400 -32600"),
        ("B81", r#"{"jsonrpc":"2.0","id":"a\u0000","method":"x"}"#, "400 -32600"),
        ("B93", id.as_str(), "400 -32600"),
        ("B94", r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"x"}"#, "400 -32600"),
        ("B95", r#"{"jsonrpc":"2.0","id":1}"#, "200 -32600 id 1"),
        ("B95", long.as_str(), "200 -32600 id 1"),
        ("B97", r#"{"jsonrpc":"2.0","id":1,"method":"x","result":{}}"#, "200 -32600 id 1"),
        ("B98", r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#, "200 -32602 id 1"),
        ("no id", r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#, "400 -32600"),
        ("response without id", r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, "400 -32600"),
        ("B270", r#"{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}"#, "400 -32600"),
        ("B270", r#"{"jsonrpc":"2.0","id":1,"result":{},"_meta":{}}"#, "400 -32600"),
        ("B270", r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603}}"#, "400 -32600"),
    ] {
        assert_eq!(client.post(body.to_owned()).await.verdict().await, verdict, "{name}: {body}");
    }
    assert_eq!(passed_on(), before, "nothing was passed on");
}

/// U08: its client does not wait for another one, though the stream stays open.
#[tokio::test]
async fn u08_an_answer_that_readers_differ_about_ends_its_call_with_an_error() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"error\":{\"code\":1,\"message\":\"m\"}}\n\n");
    let told = client.post(call(1)).await.until("\n\n").await;
    assert!(told.contains("upstream_malformed") && told.contains("\"id\":1"), "{told}");
    assert!(server.world.all(|seen| seen.body["error"].is_object()).is_empty(), "the server asked nothing");
}

/// U08: an answer has one verdict, in any pieces.
#[tokio::test]
async fn u08_a_member_that_is_null_is_none_in_an_answer_of_several_pieces() {
    for (first, second) in [
        (r#"{"jsonrpc":"2.0","id":1,"result":{"n":1}"#, r#","error":null}"#),
        (r#"{"jsonrpc":"2.0","error":"#, r#"null,"id":1,"result":{"n":1}}"#),
        (r#"{"jsonrpc":"2.0","result":{"n":1},"\u0069"#, r#"d":1}"#),
    ] {
        let (body, reply) = Once::body("application/json");
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| reply.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        let client = gate.client().await;
        body.raw(first);
        let (mut reply, ()) = tokio::join!(client.post(call(1)), async {
            server.world.first(SeenRequest::is_call).await;
            body.raw(second);
            drop(body);
        });
        let mut read = String::new();
        while let Some(piece) = reply.piece().await {
            read.push_str(&piece);
        }
        assert_eq!(read, format!("{first}{second}"));
    }
}

/// Ids of the gateway's own requests are never taken for the client's, however they are written.
#[tokio::test]
async fn messages_that_name_the_gateways_own_ids_are_not_forwarded() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    // A call as a task goes upstream under an id of the gateway's.
    let task = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{},"task":{}}}"#;
    assert_eq!(client.post(task).await.status, StatusCode::OK);
    let made = server.world.first(|seen| seen.rpc() == "tools/call").await;
    let (prefix, random) = made.id().rsplit_once(':').unwrap();
    assert!(prefix.len() > "tg:".len() && random.len() == 32, "{}", made.id());
    let own = format!("{prefix}:1");
    let before = server.world.all(|_| true).len();
    let escaped = own.replacen("tg:", r"\u0074g:", 1);
    let request = format!(r#"{{"jsonrpc":"2.0","id":"{escaped}","method":"x"}}"#);
    assert_eq!(client.post(request).await.verdict().await, format!("200 -32600 id \"{own}\""));
    for text in [
        json!({"jsonrpc": "2.0", "id": own, "result": {}}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": own}}),
    ] {
        assert_eq!(client.post(text.to_string()).await.status, StatusCode::ACCEPTED);
    }
    assert_eq!(server.world.all(|_| true).len(), before, "nothing was passed on");
}

/// A client may be a gateway itself: its ids are its own, and pass.
#[tokio::test]
async fn the_ids_of_another_gateway_pass() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    for (n, id) in ["tg:0123456789abcdef:00", "tg:00112233445566778899aabbccddeeff"].into_iter().enumerate() {
        let params = json!({"name": "t", "arguments": {"n": n}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let answer = client.post(call.to_string()).await.json().await;
        assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &json!({"n": n})), "{answer}");
        for text in [
            json!({"jsonrpc": "2.0", "id": id, "result": {}}),
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
        ] {
            assert_eq!(client.post(text.to_string()).await.status, StatusCode::ACCEPTED);
            server.world.first(|seen| seen.bytes == text.to_string().as_bytes()).await;
        }
    }
}

/// GW-04: Python's client drops its connection otherwise.
#[tokio::test]
async fn an_upstreams_refusal_is_an_error_under_200() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32099,"message":"m","data":{"z":1.10}}}"#;
    let session = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"Your bank session has expired"}}"#;
    for (code, body, expected) in [
        (400, session, json!({"code": -32000, "message": "Your bank session has expired"})),
        (400, error, json!({"code": -32099, "message": "m", "data": {"z": 1.1}})),
        (
            500,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"m"}}"#,
            json!({"code": -32000, "message": "m"}),
        ),
    ] {
        let server = ScriptedServer::start(move |seen| {
            seen.is_call().then(|| {
                let mut reply = json_text(body);
                *reply.status_mut() = StatusCode::from_u16(code).unwrap();
                reply
            })
        })
        .await;
        let gate = TestGateway::before(&server).await;
        let reply = gate.client().await.post(call(1)).await;
        assert_eq!(reply.status, StatusCode::OK);
        let body = reply.json().await;
        assert_eq!((&body["id"], &body["error"]), (&json!(1), &expected));
        assert_eq!(server.world.count("tools/call"), 1, "a refusal that may be the tool's own is not a lost session");
    }
    for (code, reason) in
        [(500, "upstream_http_status"), (401, "upstream_auth"), (302, "upstream_redirect"), (202, "upstream_malformed")]
    {
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| status(code))).await;
        let gate = TestGateway::before(&server).await;
        let reply = gate.client().await.post(call(1)).await;
        assert_eq!(reply.status, StatusCode::OK, "{code}");
        let error = reply.json().await["error"].clone();
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!(reason)), "{code}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_down_is_an_error_under_200() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    drop(server);
    let reply = client.post(call(1)).await;
    assert_eq!(reply.status, StatusCode::OK);
    let error = reply.json().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["executed"]), (&json!(-32603), &json!("no")), "{error}");
    let note = client.post(r#"{"jsonrpc":"2.0","method":"notifications/n"}"#).await;
    assert_eq!(note.status, StatusCode::SERVICE_UNAVAILABLE, "a message without an id gets only a status");
    let reply = gate.client_without_session().post(super::client::initialize("2025-11-25", &json!({}))).await;
    assert_eq!((reply.status, &reply.json().await["error"]["code"]), (StatusCode::OK, &json!(-32603)));
}

/// LEG-13.
#[tokio::test]
async fn a_full_upstream_refuses_a_call_under_200_and_lets_all_else_pass() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
    let client = gate.client().await;
    events.raw("data: {}\n\n");
    let mut held = client.post(call(1)).await;
    held.until("\n\n").await;
    let reply = client.post(call(2)).await;
    assert_eq!(reply.status, StatusCode::OK);
    let error = reply.json().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("queue_full")));
    let ping = client.post(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#).await;
    assert_eq!(ping.json().await["result"], json!({}));
    drop(events);
    held.text().await;
    assert_eq!(client.post(call(4)).await.json().await["result"], json!({"n": 4}), "the place is free again");
}

#[tokio::test]
async fn a_call_past_its_deadline_is_an_error_and_is_cancelled_upstream() {
    join_all(["", "data: {}\n\n"].map(async |first| {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        // The server sees the call, and the client a first comment, within this time.
        let gate = TestGateway::with(server.address, "deadline = \"10s\"").await;
        let client = gate.client().await;
        events.raw(first);
        let text = client.post(call(1)).await.text().await;
        assert!(text.starts_with(first), "{text}");
        assert!(text.contains(r#""id":1,"error":{"code":-32603"#) && text.contains("deadline_exceeded"), "{text}");
        let cancel = server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
        assert_eq!(cancel.body["params"], json!({"requestId": 1, "reason": "deadline_exceeded"}));
        assert_eq!(cancel.header("mcp-session-id"), Some("s-1"));
        events.left().await;
    }))
    .await;
}
