//! Tasks of upstreams, and their outcomes: UPC-01 to UPC-08, rule by rule.

use std::time::Duration;

use serde_json::{Value, json};
use taskgate::upstream::{CallContext, Upstream, UpstreamRequest, UpstreamTaskMode};

use super::server::{ScriptedServer, SeenRequest};
use super::task_server::Step::{Cut, Error, Garbage, Result, Status};
use super::task_server::{
    DEADLINE, Script, Step, Times, begin, count, declaring, is, native, rpc, says, task_with, tasks_declared,
};
use super::{call, context, in_time, line, lines, next, try_begin, upstream};

/// The rules that hold in every run.
fn check_manners(name: &str, server: &ScriptedServer) {
    let about = server.world.all(|seen| seen.rpc().starts_with("tasks/"));
    for seen in &about {
        assert_eq!(seen.body["params"], json!({"taskId": "u-1"}), "{name}: UPC-03, T-34");
        assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "{name}");
    }
    let calls = server.world.all(SeenRequest::is_call);
    assert_eq!(calls.len(), 1, "{name}: sent once");
    assert_eq!(calls[0].body["params"]["task"], json!({"ttl": 600_000}), "{name}: kept up to the deadline");
    assert_eq!(count(&server.world, "notifications/cancelled"), 0, "{name}: UPC-06");
}

/// Runs one call; `(gets, results)` is how often the task and its result were asked for.
async fn check(name: &str, script: Script, asked: (usize, usize), expected: &[&str]) {
    let server = script.serve().await;
    let upstream = upstream(&server.url());
    assert_eq!(lines(&mut begin(&upstream).await).await, expected, "{name}");
    let seen = (count(&server.world, "tasks/get"), count(&server.world, "tasks/result"));
    assert_eq!(seen, asked, "{name}");
    check_manners(name, &server);
}

const DONE: &str = r#"returned {"content":[{"text":"done","type":"text"}]}"#;
const LOST: &str = "lost UpstreamSessionLost Unknown";

fn new() -> Script {
    Script::new()
}

fn made(task: &Value) -> [Step; 1] {
    [Result(json!({ "task": task }))]
}

#[tokio::test]
async fn t_03_the_outcome_of_a_task_is_always_fetched() {
    check("completed", new(), (1, 1), &[DONE]).await;
    let failed = || new().on("tasks/get", [is("failed")]);
    let tool_error = json!({"content": [], "isError": true});
    let kept = r#"returned {"content":[],"isError":true}"#;
    check("isError", failed().on("tasks/result", [Result(tool_error)]), (1, 1), &[kept]).await;
    let own = failed().on("tasks/result", [Error(-32_050, "broke")]);
    check("the call's own error", own, (1, 1), &["faulted -32050 broke"]).await;
    let own = failed().on("tasks/result", [Error(-32_602, "bad arguments")]);
    check("one that looks like that of an unknown task", own, (2, 1), &["faulted -32602 bad arguments"]).await;
    let at_once = new().on("tools/call", made(&super::task_server::task("completed")));
    check("done before its handle came", at_once, (0, 1), &[DONE]).await;
    let gone = new().on("tasks/get", [is("completed"), Error(-32_602, "unknown")]);
    let gone = gone.on("tasks/result", [Error(-32_602, "unknown")]);
    check("gone before it was fetched", gone, (2, 1), &["lost UpstreamSessionLost Yes"]).await;
}

/// GW-38: the deadline alone would end such a call as one that may not have run.
#[tokio::test]
async fn gw_38_a_task_that_ended_was_executed_although_its_outcome_never_comes() {
    let server = new().on("tasks/result", [Status(500)]).serve().await;
    let deadline = UpstreamTaskMode::WhereServed { deadline: Duration::from_secs(5) };
    let context = CallContext { native_task: deadline, ..context() };
    let mut exchange = try_begin(&upstream(&server.url()), call(&json!({})), context).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["lost UpstreamHttpStatus Yes"]);
    assert!(count(&server.world, "tasks/result") > 1, "it is asked for again before that");
}

#[tokio::test]
async fn upc_01_a_task_is_asked_for_until_it_ends() {
    let steps = [is("working"), is("paused"), is("input_required"), is("working"), is("completed")];
    let script = new().on("tasks/get", steps).on("tasks/result", [Error(-32_602, "not yet"), says("done")]);
    check("T-45: a tasks/result that does not wait", script, (5, 2), &[DONE]).await;
    let ok = || is("working");
    let broken =
        [Error(-32_603, "internal"), Status(503), ok(), Cut, Garbage, ok(), Result(json!({})), is("completed")];
    check("polls that fail", new().on("tasks/get", broken), (8, 1), &[DONE]).await;
    let broken = [Status(500), Cut, Garbage, says("done")];
    check("outcomes that do not come", new().on("tasks/result", broken), (4, 4), &[DONE]).await;
}

/// U99.
#[tokio::test]
async fn a_task_that_ends_without_an_outcome_ends_its_call() {
    check("cancelled", new().on("tasks/get", [is("cancelled")]), (1, 0), &["cancelled"]).await;
    let why = Result(task_with("cancelled", &json!({"statusMessage": "maintenance"})));
    check("with words", new().on("tasks/get", [why]), (1, 0), &["status maintenance", "cancelled"]).await;
    check("unknown", new().on("tasks/get", [Error(-32_602, "unknown task")]), (1, 0), &[LOST]).await;
    check("locked out", new().on("tasks/get", [Status(401)]), (1, 0), &["lost UpstreamAuth Unknown"]).await;
    let malformed = "lost UpstreamMalformed Unknown";
    check("never a task", new().on("tasks/get", [Result(json!({"taskId": "u-2"}))]), (5, 0), &[malformed]).await;
    check("U99: not served", new().on("tasks/get", [Error(-32_601, "no such method")]), (5, 0), &[LOST]).await;
    let no_id = new().on("tools/call", made(&json!({"status": "working"})));
    check("a handle of no use", no_id, (0, 0), &[malformed]).await;
    let surrogate = Step::Text(r#"{"jsonrpc":"2.0","id":ID,"result":{"a":"\ud800"}}"#);
    let half = new().on("tasks/result", [surrogate]);
    check("U28: half a pair", half, (1, 1), &["returned {\"a\":\"\\ud800\"}"]).await;
    let twice = Step::Text(r#"{"jsonrpc":"2.0","id":ID,"result":{"a":1,"a":2}}"#);
    let odd = new().on("tasks/result", [twice]);
    check("U28: never an outcome", odd, (5, 5), &["lost UpstreamMalformed Yes"]).await;
    let large = Result(json!({"content": ["x".repeat(2 << 20)]}));
    check("too large", new().on("tasks/result", [large]), (1, 1), &["lost ResultTooLarge Yes"]).await;
}

#[tokio::test]
async fn t_46_an_ordinary_answer_to_a_call_that_asked_for_a_task_is_taken() {
    check("result", new().on("tools/call", [says("done")]), (0, 0), &[DONE]).await;
    let error = Error(-32_601, "not as a task");
    check("error", new().on("tools/call", [error]), (0, 0), &["faulted -32601 not as a task"]).await;
}

#[tokio::test]
async fn each_status_message_of_an_upstreams_task_is_forwarded_once() {
    let say = |state, words: &str| Result(task_with(state, &json!({"statusMessage": words})));
    let gets = [say("working", "a"), say("working", "b\u{1b}"), say("working", "b"), is("working"), say("failed", "c")];
    let first = task_with("working", &json!({"statusMessage": "a"}));
    let script = new().on("tools/call", made(&first)).on("tasks/get", gets);
    check("status messages", script, (5, 1), &["status a", "status b", "status c", DONE]).await;
}

#[tokio::test]
async fn upc_05_a_task_is_asked_for_only_where_it_is_declared_and_wanted() {
    let of_calls = json!({"requests": {"tools": {"call": {}}}});
    let wanted = UpstreamTaskMode::WhereServed { deadline: DEADLINE };
    for (tasks, version, native_task, method, expected) in [
        (&of_calls, "2025-11-25", wanted, "tools/call", true),
        (&of_calls, "2025-11-25", UpstreamTaskMode::Never, "tools/call", false),
        (&of_calls, "2025-11-25", wanted, "prompts/get", false),
        (&of_calls, "2025-06-18", wanted, "tools/call", false),
        (&json!({"cancel": {}}), "2025-11-25", wanted, "tools/call", false),
        (&json!({"requests": {"tools": {"call": false}}}), "2025-11-25", wanted, "tools/call", false),
    ] {
        let capabilities = json!({"tools": {}, "tasks": tasks});
        let server = ScriptedServer::slow(move |seen, world| {
            let capabilities = capabilities.clone();
            async move {
                let mut seen = seen;
                seen.body["params"]["protocolVersion"] = json!(version);
                (seen.rpc() == "initialize").then(|| declaring(&seen, &world, &capabilities))
            }
        })
        .await;
        let upstream = upstream(&server.url());
        let request = UpstreamRequest { method: method.into(), ..call(&json!({})) };
        let context = CallContext { native_task, ..context() };
        drop(try_begin(&upstream, request, context).await.unwrap());
        let seen = server.world.first(rpc(method)).await;
        let asked = seen.body["params"].get("task").is_some();
        assert_eq!(asked, expected, "{tasks} {version} {native_task:?} {method}");
    }
}

#[tokio::test]
async fn upc_01_the_upstreams_interval_lies_between_two_polls() {
    let times = Times::default();
    let script = Script::new().on("tools/call", made(&task_with("working", &json!({"pollInterval": 300})))).on(
        "tasks/get",
        [task_with("working", &json!({"pollInterval": 300})), task_with("completed", &json!({}))].map(Result),
    );
    let noted = times.clone();
    let server = ScriptedServer::slow(move |seen, world| {
        let (script, noted) = (script.clone(), noted.clone());
        async move {
            if matches!(seen.rpc(), "tools/call" | "tasks/get") {
                noted.note();
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await;
    lines(&mut begin(&upstream(&server.url())).await).await;
    let gaps = times.gaps();
    assert_eq!(gaps.len(), 2);
    assert!(gaps.iter().all(|gap| *gap >= Duration::from_millis(300)), "{gaps:?}");
}

#[tokio::test]
async fn a_result_is_copied_before_the_upstream_forgets_it() {
    // Asked for every five minutes it would be gone after one second.
    let brief = |state| task_with(state, &json!({"ttl": 1_000, "pollInterval": 300_000}));
    let script = new()
        .on("tools/call", made(&brief("working")))
        .on("tasks/get", [Result(brief("working")), Result(brief("completed"))]);
    in_time(check("5.14", script, (2, 1), &[DONE])).await;
}

#[tokio::test]
async fn a_task_is_asked_for_once_more_just_before_the_deadline() {
    let slow = |state| task_with(state, &json!({"pollInterval": 300_000}));
    let server =
        new().on("tools/call", made(&slow("working"))).on("tasks/get", [Result(slow("completed"))]).serve().await;
    let upstream = upstream(&server.url());
    let native_task = UpstreamTaskMode::WhereServed { deadline: Duration::from_millis(1_500) };
    let mut exchange = try_begin(&upstream, call(&json!({})), CallContext { native_task, ..native() }).await.unwrap();
    assert_eq!(lines(&mut exchange).await, [DONE]);
    let sent = server.world.first(SeenRequest::is_call).await;
    assert_eq!(sent.body["params"]["task"], json!({"ttl": 1_500}));
}

/// Cancels a call once its task is known; returns the upstream's requests.
async fn told_of_cancel(capabilities: Value) -> Vec<String> {
    let script = new().on("tasks/get", [is("working")]);
    let server = ScriptedServer::slow(move |seen, world| {
        let (script, capabilities) = (script.clone(), capabilities.clone());
        async move {
            if seen.rpc() == "initialize" {
                return Some(declaring(&seen, &world, &capabilities));
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    in_time(async {
        tokio::select! {
            event = exchange.next() => panic!("nothing happens, not {}", line(&event)),
            _ = server.world.first(rpc("tasks/get")) => (),
        }
    })
    .await;
    in_time(exchange.cancel("not wanted")).await;
    assert_eq!(line(&next(&mut exchange).await), "lost UpstreamClosed Unknown");
    let cancels = server.world.all(|seen| seen.rpc().contains("cancel"));
    for seen in &cancels {
        assert_eq!(seen.body["params"], json!({"taskId": "u-1"}), "UPC-03");
    }
    cancels.iter().map(|seen| seen.rpc().to_owned()).collect()
}

#[tokio::test]
async fn upc_06_a_task_is_cancelled_as_a_task_where_that_is_served() {
    assert_eq!(told_of_cancel(tasks_declared()).await, ["tasks/cancel"]);
    let without = json!({"tasks": {"requests": {"tools": {"call": {}}}}});
    assert_eq!(told_of_cancel(without).await, Vec::<String>::new(), "otherwise the task gets no cancel");
}

#[tokio::test]
async fn upc_06_a_cancel_waits_for_the_handle_that_is_on_its_way() {
    let script = new().on("tasks/get", [is("working")]);
    let server = ScriptedServer::slow(move |seen, world: std::sync::Arc<super::server::ScriptedState>| {
        let script = script.clone();
        async move {
            if seen.is_call() {
                // The handle is held back until the cancel is under way.
                world.first(rpc("tools/list")).await;
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let list = UpstreamRequest { method: "tools/list".into(), params: None };
    let release = async { drop(try_begin(&upstream, list, context()).await) };
    in_time(async { tokio::join!(exchange.cancel("not wanted"), release) }).await;
    check_manners("cancel", &server);
    assert_eq!(count(&server.world, "tasks/cancel"), 1);
}

#[tokio::test]
async fn a_call_that_gives_no_handle_is_cancelled_as_the_plain_call_that_it_is() {
    let server = new().on("tools/call", [Step::Hang]).serve().await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let call = server.world.first(SeenRequest::is_call).await;
    in_time(exchange.cancel("late")).await;
    let cancel = server.world.first(rpc("notifications/cancelled")).await;
    assert_eq!(cancel.body["params"]["requestId"], call.body["id"]);
    assert_eq!(count(&server.world, "tasks/cancel"), 0);
}

#[tokio::test]
async fn closing_leaves_the_session_of_a_task_alone() {
    let server = new().on("tasks/get", [is("working")]).serve().await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    in_time(async {
        tokio::select! {
            event = exchange.next() => panic!("nothing happens, not {}", line(&event)),
            _ = server.world.first(rpc("tasks/get")) => (),
        }
    })
    .await;
    in_time(upstream.close()).await;
    assert!(server.world.all(|seen| seen.method == http::Method::DELETE).is_empty(), "T-31");
}
