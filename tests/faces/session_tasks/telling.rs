//! Messages about a task that a client did not ask for: progress, log messages, its state.

use serde_json::{Value, json};

use super::talk::{ArrivedRequest, ManualSetup, RELATED, SessionMessages, SessionUser};
use super::upstream::SeenRequest;

fn progress(call: &ArrivedRequest, progress: u32) {
    let token = &call.seen.body["params"]["_meta"]["progressToken"];
    let params =
        json!({"progressToken": token, "progress": progress, "total": 4, "message": format!("step {progress}")});
    call.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
}

fn with_token(token: &Value) -> Value {
    json!({"name": "work", "task": {}, "_meta": {"progressToken": token}})
}

/// L25-27, L25-46, L25-47, T-73: the call's own token, rising, until the end.
#[tokio::test]
async fn l25_46_47_progress_bears_the_token_of_the_call_until_the_end() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut own = person.listen().await;
    let task = person.start_with(&with_token(&json!("mine"))).await["taskId"].clone();
    let call = stage.call().await;
    assert_ne!(call.seen.body["params"]["_meta"]["progressToken"], "mine", "upstream it is the gateway's");
    progress(&call, 1);
    let first = own.next_of("notifications/progress").await;
    let expected = json!({
        "progressToken": "mine", "progress": 1, "total": 4, "message": "step 1", "_meta": {RELATED: {"taskId": task}},
    });
    assert_eq!(first["params"], expected);
    let waiting = person.client.connections.spawn(person.result(4, &task));
    // Until a request waits, the session's own stream gets it.
    let mut step = 2;
    while !waiting.is_finished() {
        progress(&call, step);
        step += 1;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let mut stream = SessionMessages::of(waiting.await.unwrap());
    let on_result = stream.next().await.unwrap();
    assert_eq!(
        (&on_result["method"], &on_result["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("mine"))
    );
    progress(&call, 1);
    person.answered("tasks/cancel", &json!({"taskId": task})).await;
    progress(&call, 1_000_000);
    let rest = stream.rest().await;
    let told: Vec<_> = rest.iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert!(told.iter().all(|message| message["params"]["progress"].as_u64() > Some(1)), "T-73: {told:?}");
    assert!(told.iter().all(|message| message["params"]["progress"] != 1_000_000), "L25-47");
    assert_eq!(rest.last().unwrap()["id"], 4);
}

/// L25-27: log messages too say which task they belong to; without a token there is no progress.
#[tokio::test]
async fn l25_27_log_messages_name_the_task_and_progress_needs_a_token() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut own = person.listen().await;
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    progress(&call, 1);
    let params = json!({"level": "info", "data": {"n": 1}});
    call.send(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
    loop {
        let message = own.next().await.unwrap();
        assert_ne!(message["method"], "notifications/progress", "there is no token");
        if message["method"] == "notifications/message" {
            assert_eq!(message["params"]["_meta"][RELATED], json!({"taskId": task}));
            assert_eq!(message["params"]["data"], json!({"n": 1}));
            return;
        }
    }
}

/// L25-31, L25-32.
#[tokio::test]
async fn l25_31_32_the_session_is_told_how_its_task_stands() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut own = person.listen().await;
    let task = person.start().await;
    let call = stage.call().await;
    progress(&call, 3);
    let working = own.next_of("notifications/tasks/status").await;
    assert_eq!(working["params"]["status"], "working");
    if working["params"]["statusMessage"].is_null() {
        assert_eq!(own.next_of("notifications/tasks/status").await["params"]["statusMessage"], "step 3");
    }
    call.answer(&json!({"content": []}));
    let ended = loop {
        let told = own.next_of("notifications/tasks/status").await;
        if told["params"]["status"] != "working" {
            break told;
        }
    };
    let mut keys: Vec<_> = ended["params"].as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let all = ["createdAt", "lastUpdatedAt", "pollInterval", "status", "statusMessage", "taskId", "ttl"];
    assert_eq!((keys, &ended["params"]["status"]), (all.to_vec(), &json!("completed")), "L25-31: no _meta");
    assert_eq!(ended["params"]["createdAt"], task["createdAt"]);
}

/// LEG-20: a plain call that the engine makes has them on its own stream, a task on the session's.
#[tokio::test]
async fn leg_20_notifications_about_no_request_on_the_stream_of_a_call_reach_its_client() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let news = |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    let sent = [
        news("notifications/elicitation/complete", json!({"elicitationId": "e-1"})),
        news("notifications/custom", json!({"n": 1})),
    ];
    let without_id = news("elicitation/create", json!({"message": "?", "requestedSchema": {"type": "object"}}));
    let say_all = |call: &ArrivedRequest| [&without_id].into_iter().chain(&sent).for_each(|news| call.send(news));

    let named = json!({"name": "work", "arguments": {}, "_meta": {"io.taskgate/idempotency-key": "k"}});
    let caller = person.clone();
    let calling = person.client.connections.spawn(async move { caller.request(5, "tools/call", &named).await });
    let call = stage.call().await;
    let session = call.seen.header("mcp-session-id").map(str::to_owned);
    say_all(&call);
    call.answer(&json!({"content": []}));
    let messages = SessionMessages::of(super::in_time(calling).await.unwrap()).rest().await;
    assert_eq!(messages[..2], sent, "{messages:?}");
    assert_eq!((messages.len(), &messages[2]["id"]), (3, &json!(5)), "{messages:?}");

    let mut own = person.listen().await;
    let is_own = |seen: &SeenRequest| seen.method == "GET" && seen.header("mcp-session-id") == session.as_deref();
    stage.server.world.first(is_own).await;
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    say_all(&call);
    for news in &sent {
        assert_eq!(own.next_of(news["method"].as_str().unwrap()).await, *news);
    }
    call.answer(&json!({"content": []}));
    person.until(&task, "completed").await;
}

/// LEG-20: also if the call's client has no tasks, and got an id in place of the result.
#[tokio::test]
async fn leg_20_notifications_of_a_call_reach_a_client_that_has_its_id() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nfallback = \"tools\"\ngrace = \"100ms\"\n").await;
    let person = SessionUser::meet(&stage.gate, "2025-06-18", &json!({})).await;
    let caller = person.clone();
    let work = json!({"name": "work", "arguments": {}});
    let calling = person.client.connections.spawn(async move { caller.request(5, "tools/call", &work).await });
    let call = stage.call().await;
    let text = super::in_time(calling).await.unwrap().text().await;
    assert!(text.contains("task_result"), "{text}");
    let session = call.seen.header("mcp-session-id");
    let mut own = person.listen().await;
    stage.server.world.first(|seen| seen.method == "GET" && seen.header("mcp-session-id") == session).await;
    let news = json!({"jsonrpc": "2.0", "method": "notifications/custom", "params": {"n": 1}});
    call.send(&news);
    assert_eq!(own.next_of("notifications/custom").await, news);
    call.answer(&json!({"content": []}));
}

/// A server without a stream of its own: its clients have one all the same, for their tasks.
#[tokio::test]
async fn a_session_has_a_stream_for_its_tasks_though_its_server_has_none() {
    let server = super::upstream::ScriptedServer::polite().await;
    let gate = super::client::TestGateway::before(&server).await;
    let person = SessionUser::meet(&gate, "2025-11-25", &json!({})).await;
    let mut own = person.listen().await;
    let task = person.start_with(&json!({"name": "work", "arguments": {"n": 1}, "task": {}})).await;
    let told = own.next_of("notifications/tasks/status").await;
    assert_eq!(told["params"]["taskId"], task["taskId"]);
}
