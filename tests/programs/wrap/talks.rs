//! The messages for each kind of host.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use http::HeaderValue;
use serde_json::{Value, json};
use support::scripted::{ScriptedServer, whole};
use taskgate::demo::DemoServer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::host::{Host, alone, faulty_demo, greet, slow, text};
use super::served::Served;

const GRACE: &[&str] = &["--grace", "200ms"];
/// Seconds of a call that becomes a task, on a busy machine too.
const OUTLASTS_GRACE: f64 = 2.0;

#[tokio::test]
async fn a_host_with_a_session_gets_its_calls_and_the_tasks_of_its_version() {
    let mut host = Host::new(GRACE);
    let server = host.initialize().await;
    assert_eq!(server["protocolVersion"], "2025-11-25");
    assert!(server["capabilities"]["tasks"]["requests"]["tools"]["call"].is_object(), "{server}");
    let tools = host.result(1, "tools/list", json!({})).await;
    assert!(tools["tools"].as_array().unwrap().iter().any(|tool| tool["execution"]["taskSupport"] == "optional"));
    assert_eq!(text(&host.result(2, "tools/call", greet()).await), "Hello, Ada!");
    // Longer than the grace period, and held.
    let mut params = slow(0.6);
    params["_meta"] = json!({ "progressToken": "p" });
    assert!(text(&host.result(3, "tools/call", params).await).contains("2 sections"));
    assert_eq!(host.aside().iter().filter(|message| message["params"]["progressToken"] == "p").count(), 2);
    let mut params = slow(0.6);
    params["task"] = json!({ "ttl": 60_000 });
    let task = host.result(4, "tools/call", params).await["task"].take();
    let id = json!({ "taskId": task["taskId"] });
    assert!(text(&host.result(5, "tasks/result", id.clone()).await).contains("2 sections"));
    assert_eq!(host.result(6, "tasks/get", id).await["status"], "completed");
    assert_eq!(host.result(7, "ping", json!({})).await, json!({}));
}

/// The extension over stdio has no headers at all.
#[tokio::test]
async fn t_70_a_host_without_a_session_gets_the_extension() {
    let mut host = Host::new(GRACE);
    let server = host.result(1, "server/discover", alone(json!({}), true)).await;
    assert!(server["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{server}");
    let tools = host.result(2, "tools/list", alone(json!({}), true)).await;
    assert!(tools["tools"].as_array().unwrap().len() > 5);
    // A quick call is no task; on a busy machine it may take longer than the grace period of this host.
    let mut patient = Host::new(&["--grace", "30s"]);
    assert_eq!(text(&patient.result(3, "tools/call", alone(greet(), true)).await), "Hello, Ada!");
    let handle = host.result(4, "tools/call", alone(slow(OUTLASTS_GRACE), true)).await;
    assert_eq!(handle["resultType"], "task");
    let id = json!({ "taskId": handle["taskId"] });
    let listening = json!({ "notifications": { "taskIds": [handle["taskId"]] } });
    host.ask(5, "subscriptions/listen", alone(listening, true)).await;
    let settled = host.find(|message| message["params"]["status"] == "completed").await;
    assert_eq!(settled["method"], "notifications/tasks", "{settled}");
    let task = host.result(6, "tasks/get", alone(id, true)).await;
    assert!(text(&task["result"]).contains("2 sections"), "{task}");
    // Without the extension the call is held.
    assert!(text(&host.result(7, "tools/call", alone(slow(0.6), false)).await).contains("2 sections"));
}

#[tokio::test]
async fn both_kinds_of_messages_may_come_over_one_pipe() {
    let mut host = Host::new(GRACE);
    assert_eq!(text(&host.result(1, "tools/call", alone(greet(), false)).await), "Hello, Ada!");
    host.initialize().await;
    host.ask(2, "tools/call", greet()).await;
    host.ask(3, "tools/call", alone(greet(), false)).await;
    assert!(host.answer(3).await["result"]["resultType"].is_string());
    assert!(host.answer(2).await["result"].get("resultType").is_none());
}

/// The supervisor between the gateway and the program, in a list of processes.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_process_that_supervises_the_program_is_listed_by_the_gateways_name() {
    let mut host = Host::new(GRACE);
    host.initialize().await;
    let read = |id: u32, file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
    let listed: Vec<_> = host.processes().into_iter().map(|id| (read(id, "comm"), read(id, "cmdline"))).collect();
    let supervises = |(_, line): &&(String, String)| line.split('\0').nth(1) == Some("supervise");
    let (name, line) = listed.iter().find(supervises).unwrap_or_else(|| panic!("{listed:?}"));
    assert_eq!((name.trim_end(), line.split('\0').next()), ("taskgate", Some("taskgate")));
}

#[tokio::test]
async fn questions_reach_the_host_and_its_answers_the_server() {
    let mut host = Host::new(GRACE);
    host.initialize().await;
    host.ask(1, "tools/call", json!({ "name": "confirm_delete", "arguments": { "path": "/a" } })).await;
    let asked = host.find(|message| message["method"] == "elicitation/create").await;
    assert_eq!(asked["params"]["message"], "Delete /a?");
    let yes = json!({ "action": "accept", "content": { "confirm": true } });
    host.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": yes })).await;
    assert_eq!(text(&host.answer(1).await["result"]), "Deleted /a.");
    host.ask(2, "tools/call", json!({ "name": "summarise", "arguments": { "text": "long" } })).await;
    let asked = host.find(|message| message["method"] == "sampling/createMessage").await;
    let said = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "short" } });
    host.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": said })).await;
    assert_eq!(text(&host.answer(2).await["result"]), "Summary: short");
    // A host without a session is asked in the answer, and answers with the call.
    let call = json!({ "name": "confirm_delete", "arguments": { "path": "/b" } });
    let mut asked = host.result(3, "tools/call", alone(call.clone(), false)).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let mut again = call;
    again["requestState"] = asked["requestState"].take();
    again["inputResponses"] = json!({ key: yes });
    assert_eq!(text(&host.result(4, "tools/call", alone(again, false)).await), "Deleted /b.");
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server_and_not_answered() {
    // The server ends when it reads a cancel, which shows that it got it.
    for is_alone in [false, true] {
        let mut host = Host::with(GRACE, &faulty_demo("cancel"), &[]);
        if !is_alone {
            host.initialize().await;
        }
        let params = |params: Value| if is_alone { alone(params, false) } else { params };
        host.result(1, "tools/call", params(greet())).await;
        assert!(host.has_a_server());
        // The server has it once it reports progress; a call that is cancelled before is never sent.
        let mut call = json!({ "name": "slow_report", "arguments": { "seconds": 60, "steps": 1_000 } });
        call["_meta"] = json!({ "progressToken": "p" });
        host.ask(2, "tools/call", params(call)).await;
        host.find(|message| message["params"]["progressToken"] == "p").await;
        host.note("notifications/cancelled", json!({ "requestId": 2 })).await;
        host.until_nothing_is_left().await;
        // The program's end may not be noticed yet when the next call is sent: that one fails, and the one after it is served.
        host.ask(3, "tools/call", params(greet())).await;
        let mut next = host.answer(3).await;
        if next["error"]["data"]["reason"] == "upstream_closed" {
            host.ask(4, "tools/call", params(greet())).await;
            next = host.answer(4).await;
        }
        assert_eq!(text(&next["result"]), "Hello, Ada!", "by a new one");
        if is_alone {
            assert!(host.aside().iter().all(|message| message["id"] != 2), "{:?}", host.aside());
        }
    }
}

#[tokio::test]
async fn a_bad_request_gets_the_error_that_it_gets_over_http() {
    let mut host = Host::new(GRACE);
    host.ask(1, "nonsense", alone(json!({}), false)).await;
    assert_eq!(host.answer(1).await["error"]["code"], -32601);
    let mut wrong = alone(greet(), false);
    wrong["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("1999-01-01");
    host.ask(2, "tools/call", wrong).await;
    assert_eq!(host.answer(2).await["error"]["code"], -32022);
    host.ask(3, "tools/call", greet()).await;
    assert_eq!(host.answer(3).await["error"]["code"], -32600, "there is no session");
}

/// Answers calls with an array of a log message and the result, as servers of 2025-03-26 may.
const ARRAYS: &str = r#"while read -r line; do
    id=$(printf '%s' "$line" | sed -E 's/.*"id":("[^"]*"|[0-9]+).*/\1/')
    case "$line" in
        *'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"arrays","version":"1"}}}\n' "$id" ;;
        *'"tools/call"'*) printf '[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"beside"}},{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}]\n' "$id" ;;
    esac
done"#;

/// A host of 2025-11-25 reads one message a line; its server may write arrays.
#[tokio::test]
async fn upc_26_an_array_of_a_server_reaches_its_host_as_messages() {
    let server = ScriptedServer::start(|seen| {
        let note = json!({ "level": "info", "data": "beside" });
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": note });
        let result = json!({ "content": [{ "type": "text", "text": "done" }] });
        let result = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "result": result });
        let mut reply = whole(format!("data: {}\n\n", json!([note, result])));
        reply.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
        seen.is_call().then_some(reply)
    })
    .await;
    let over_http = ["--url".to_owned(), server.url().to_string()];
    let over_stdio = ["--", "sh", "-c", ARRAYS].map(str::to_owned);
    for wrapped in [&over_http[..], &over_stdio] {
        let mut host = Host::with(GRACE, wrapped, &[]);
        host.initialize().await;
        assert_eq!(text(&host.result(1, "tools/call", greet()).await), "done", "{wrapped:?}");
        host.find(|message| message["params"]["data"] == "beside").await;
        assert_eq!(host.arrays, 0, "{wrapped:?}");
    }
}

/// LEG-12: arrays are 2025-03-26's alone.
#[tokio::test]
async fn an_array_is_answered_in_a_session_of_its_version() {
    let array = json!([
        { "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": greet() },
        { "jsonrpc": "2.0", "id": 2, "method": "ping" },
    ]);
    for (version, is_taken) in [("2025-03-26", true), ("2025-11-25", false)] {
        let mut host = Host::new(GRACE);
        let who = json!({ "name": "host", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": who });
        assert_eq!(host.result(0, "initialize", params).await["protocolVersion"], version);
        host.note("notifications/initialized", json!({})).await;
        host.send(&array).await;
        if is_taken {
            assert_eq!(text(&host.answer(1).await["result"]), "Hello, Ada!");
            host.answer(2).await;
        } else {
            host.find(|message| message["error"]["code"] == -32600).await;
        }
    }
}

#[tokio::test]
async fn fifty_calls_at_once_are_answered_each_on_a_line_of_its_own() {
    let mut host = Host::new(GRACE);
    host.initialize().await;
    for id in 1..=50 {
        let params = json!({ "name": "flood", "arguments": { "bytes": 100_000 } });
        let params = if id % 2 == 0 { alone(params, false) } else { params };
        host.ask(id, "tools/call", params).await;
    }
    for id in 1..=50 {
        assert_eq!(text(&host.answer(id).await["result"]).len(), 100_000);
    }
}

#[tokio::test]
async fn only_messages_are_written_to_standard_output() {
    let loud = [("TASKGATE_LOG", "trace"), ("RUST_LOG", "trace")];
    let mut host = Host::with(GRACE, &faulty_demo("noise"), &loud);
    host.initialize().await;
    assert_eq!(text(&host.result(1, "tools/call", greet()).await), "Hello, Ada!");
    host.result(2, "tools/call", alone(slow(0.5), true)).await;
    host.write("no json\n\n  \n{\"jsonrpc\":\"2.0\",\"id\":3}\n").await;
    assert_eq!(host.find(|message| message["error"]["code"] == -32700).await.get("id"), None);
    assert_eq!(host.answer(3).await["error"]["code"], -32600);
    host.leave();
    let (status, rest) = host.ended().await;
    assert!(status.success());
    assert!(rest.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{rest}");
    assert!(host.log().contains("TRACE"), "there was something to write elsewhere");
}

#[tokio::test]
async fn a_server_that_is_reached_over_http_is_wrapped_too() {
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = DemoServer::start(anywhere, &tracker, stop.clone()).await.unwrap();
    let mut host = Host::with(GRACE, &["--url".to_owned(), server.url()], &[]);
    host.initialize().await;
    assert_eq!(text(&host.result(1, "tools/call", greet()).await), "Hello, Ada!");
    let handle = host.result(2, "tools/call", alone(slow(OUTLASTS_GRACE), true)).await;
    assert_eq!(handle["resultType"], "task");
    host.ask(3, "tools/call", json!({ "name": "confirm_delete", "arguments": { "path": "/a" } })).await;
    let asked = host.find(|message| message["method"] == "elicitation/create").await;
    host.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } })).await;
    assert_eq!(text(&host.answer(3).await["result"]), "Kept /a.");
    host.leave();
    assert!(host.ended().await.0.success());
    stop.cancel();
}

/// The gateway of a desktop in front of the gateway of a company: each has its own requests, and neither takes the other's
/// for its own.
#[tokio::test]
async fn a_gateway_is_wrapped_too() {
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = DemoServer::start(anywhere, &tracker, stop.clone()).await.unwrap();
    let gateway = Served::before(&server.url(), "").await;
    let mut host = Host::with(GRACE, &["--url".to_owned(), gateway.url.clone()], &[]);
    host.initialize().await;
    assert_eq!(host.result(1, "tools/list", json!({})).await["tools"].as_array().unwrap().len(), 7);
    assert_eq!(text(&host.result(2, "tools/call", greet()).await), "Hello, Ada!");
    let mut call = slow(0.6);
    call["task"] = json!({});
    let task = host.result(3, "tools/call", call).await["task"]["taskId"].take();
    let result = host.result(4, "tasks/result", json!({ "taskId": task })).await;
    assert!(text(&result).contains("2 sections"), "{result}");
    // A question comes through both, as part of a call and of a task.
    let ask = json!({ "name": "confirm_delete", "arguments": { "path": "/a" } });
    let mut as_task = ask.clone();
    as_task["task"] = json!({});
    host.ask(5, "tools/call", ask).await;
    let asked = host.find(|message| message["method"] == "elicitation/create").await;
    host.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } })).await;
    assert_eq!(text(&host.answer(5).await["result"]), "Kept /a.");
    let task = host.result(6, "tools/call", as_task).await["task"]["taskId"].take();
    host.ask(7, "tasks/result", json!({ "taskId": task })).await;
    let asked = host.find(|message| message["method"] == "elicitation/create").await;
    host.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "action": "decline" } })).await;
    assert_eq!(text(&host.answer(7).await["result"]), "Kept /a.");
    // And without a session.
    let handle = host.result(8, "tools/call", alone(slow(0.6), true)).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    host.leave();
    assert!(host.ended().await.0.success());
    stop.cancel();
}

/// A host with an unreadable request waits for an answer under its id.
#[tokio::test]
async fn a_request_that_cannot_be_read_is_answered_under_its_id_where_that_can_be_told() {
    let mut host = Host::new(GRACE);
    host.initialize().await;
    let ask = |id: u32, rest: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{rest}"#);
    for (id, text) in [
        (1, ask(1, r#"{"name":"greet","arguments":{"name":"Ada",}}}"#)),
        (2, ask(2, r#"{"name":"greet","arguments":{"name":"Ada"#)),
        (3, ask(3, r#"{"name":"greet","arguments":{"name":NaN}}}"#)),
        (4, ask(4, &format!(r#"{{"name":"greet","arguments":{}{}}}}}"#, "[".repeat(200), "]".repeat(200)))),
    ] {
        host.write(&format!("{text}\n")).await;
        let refused = host.answer(id).await;
        assert!(refused["error"]["code"] == -32700 || refused["error"]["code"] == -32600, "{refused}");
    }
    let latin = [ask(5, r#"{"name":"greet","arguments":{"name":"caf"#).as_bytes(), b"\xe9\"}}}\n"].concat();
    host.write_bytes(&latin).await;
    assert_eq!(host.answer(5).await["error"]["code"], -32700);
    // An answer, or a line that is no message, has no id to answer under.
    host.write("{\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{},}\n").await;
    let refused = host.find(|message| message.get("error").is_some()).await;
    assert!(refused.get("id").is_none_or(Value::is_null), "{refused}");
    assert_eq!(text(&host.result(7, "tools/call", greet()).await), "Hello, Ada!");
}

/// T-84: a pipe of a few lines ends long before the first answer.
#[tokio::test]
async fn requests_read_before_the_input_ended_are_answered_by_a_program_that_starts_late() {
    let late = ["--", "/bin/sh", "-c", "sleep 3; exec \"$0\" demo-server", env!("CARGO_BIN_EXE_taskgate")];
    let late = late.map(str::to_owned);
    let talk = async |is_alone: bool| {
        let mut host = Host::with(GRACE, &late, &[]);
        let params = |params: Value| if is_alone { alone(params, false) } else { params };
        if !is_alone {
            let who = json!({ "name": "host", "version": "1" });
            let opening = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": who });
            host.ask(0, "initialize", opening).await;
            host.note("notifications/initialized", json!({})).await;
        }
        host.ask(1, "tools/list", params(json!({}))).await;
        host.ask(2, "tools/call", params(greet())).await;
        // The last line need not end.
        let last = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params(slow(0.5)) });
        host.write(&last.to_string()).await;
        host.leave();
        for id in [1, 2, 3] {
            let answer = host.answer(id).await;
            assert!(answer.get("error").is_none(), "{is_alone} {answer}");
        }
        assert_eq!(host.ended().await.0.code(), Some(0));
    };
    tokio::join!(talk(false), talk(true));
}
