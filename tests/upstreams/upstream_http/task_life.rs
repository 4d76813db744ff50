//! Questions, hints and losses on the way of an upstream's own task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use taskgate::upstream::{Answer, CallContext, Exchange, ExchangeEvent, SubtaskQuota, Upstream};
use taskgate::wire::Payload;
use tokio::sync::{Mutex, Semaphore};

use super::server::{BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, polite, status};
use super::task_server::{Script, Step, begin, count, declaring, is, native, rpc, says, task_with, tasks_declared};
use super::{call, in_time, line, lines, next, try_begin, upstream};

const RELATED: &str = "io.modelcontextprotocol/related-task";
const DONE: &str = r#"returned {"content":[{"text":"done","type":"text"}]}"#;
const ASKED: &str = r#"elicitation/create {"message":"sure?"}"#;

/// A question, of a task if one is named.
fn question(id: u32, task: Option<&str>) -> Value {
    let mut params = json!({"message": "sure?"});
    if let Some(task) = task {
        params["_meta"] = json!({ RELATED: { "taskId": task } });
    }
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params})
}

fn changed(task: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task})
}

async fn answer_to(world: &ScriptedState, id: u32) -> Value {
    world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == id).await.body
}

async fn accept(exchange: &mut Box<dyn Exchange>, event: &ExchangeEvent) {
    let ExchangeEvent::Asked { ask, .. } = event else { panic!("expected a question, got {}", line(event)) };
    let answer = Answer::Result(Payload::of(&json!({"action": "accept"})));
    in_time(exchange.answer(ask, answer)).await.unwrap();
}

/// Polls the exchange until the server has seen such a request; nothing is to happen meanwhile.
async fn until_seen(
    exchange: &mut Box<dyn Exchange>,
    world: &ScriptedState,
    n: usize,
    method: &'static str,
) -> SeenRequest {
    in_time(async {
        tokio::select! {
            event = exchange.next() => panic!("nothing happens, not {}", line(&event)),
            seen = world.nth(n, rpc(method)) => seen,
        }
    })
    .await
}

/// A server with a GET stream, whose sending end comes too.
async fn with_stream(script: Script) -> (ScriptedServer, BodySender) {
    with_stream_and(script, |_, _| async { None }).await
}

/// As [`with_stream`]. `before` may wait, or answer in place of the script.
async fn with_stream_and<F>(
    script: Script,
    before: impl Fn(SeenRequest, Arc<ScriptedState>) -> F + Send + Sync + 'static,
) -> (ScriptedServer, BodySender)
where
    F: Future<Output = Option<ScriptedReply>> + Send + 'static,
{
    let (events, reply) = BodySender::open();
    let reply = Arc::new(Mutex::new(Some(reply)));
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let (reply, script) = (Arc::clone(&reply), script.clone());
        let before = before(seen.clone(), Arc::clone(&world));
        async move {
            if seen.method == Method::GET {
                return reply.lock().await.take();
            }
            match before.await {
                None => Some(script.polite(&seen, &world).await),
                answer => answer,
            }
        }
    })
    .await;
    (server, events)
}

/// A server that asks on `tasks/result` alone, as the TypeScript SDK does, and answers there when it has the user's answer.
async fn asking_on_result(script: Script) -> ScriptedServer {
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let script = script.clone();
        async move {
            if seen.rpc() == "tasks/result" && world.all(rpc("tasks/result")).len() == 1 {
                let (events, reply) = BodySender::open();
                events.message(&question(1, Some("u-1")));
                tokio_util::task::TaskTracker::new().spawn(async move {
                    let told = answer_to(&world, 1).await;
                    events.result(&seen, &json!({"told": told["result"]}));
                });
                return Some(reply);
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await
}

#[tokio::test]
async fn upc_07_upc_08_a_question_comes_on_the_stream_that_is_opened_for_it() {
    let server = asking_on_result(Script::new().on("tasks/get", [is("input_required")])).await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let event = next(&mut exchange).await;
    assert_eq!(line(&event), format!("asked 1 {ASKED}"), "T-67: without the upstream's id");
    // The task is asked for while the stream is open.
    let polls = count(&server.world, "tasks/get");
    until_seen(&mut exchange, &server.world, polls + 2, "tasks/get").await;
    accept(&mut exchange, &event).await;
    let told =
        r#"returned {"told":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u-1"}},"action":"accept"}}"#;
    assert_eq!(lines(&mut exchange).await, [told], "UPC-08, and the outcome comes on the same stream");
    assert_eq!(count(&server.world, "tasks/result"), 1, "one stream is enough");
}

#[tokio::test]
async fn a_handle_that_says_at_once_that_input_is_required_opens_the_stream_at_once() {
    let asking = task_with("input_required", &json!({"pollInterval": 300_000}));
    let script = Script::new().on("tools/call", [Step::Result(json!({ "task": asking }))]);
    let server = asking_on_result(script).await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let event = next(&mut exchange).await;
    accept(&mut exchange, &event).await;
    assert!(line(&next(&mut exchange).await).starts_with("returned"));
    assert_eq!(count(&server.world, "tasks/get"), 0);
}

#[tokio::test]
async fn an_outcome_on_the_open_stream_is_not_fetched_twice() {
    // Some upstreams return it only once.
    let script = Script::new().on("tasks/get", [is("input_required"), is("completed")]);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let script = script.clone();
        async move {
            if seen.rpc() == "tasks/result" {
                if world.all(rpc("tasks/result")).len() > 1 {
                    return Some(status(500));
                }
                world.nth(1, rpc("tasks/get")).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await;
    assert_eq!(lines(&mut begin(&upstream(&server.url())).await).await, [DONE]);
    assert_eq!(count(&server.world, "tasks/result"), 1);
}

#[tokio::test]
async fn polls_go_on_where_the_open_stream_breaks_off() {
    let script = Script::new()
        .on("tasks/get", [is("input_required"), is("working"), is("working"), is("completed")])
        .on("tasks/result", [Step::Cut, says("done")]);
    let server = script.serve().await;
    assert_eq!(lines(&mut begin(&upstream(&server.url())).await).await, [DONE]);
    assert_eq!((count(&server.world, "tasks/get"), count(&server.world, "tasks/result")), (4, 2));
}

/// UPC-02: the interval is long, so no other poll would find the end.
#[tokio::test]
async fn a_poll_after_a_notification_is_repeated_if_the_open_stream_fails_meanwhile() {
    let slow = |state| task_with(state, &json!({"pollInterval": 300_000}));
    let script = Script::new()
        .on("tools/call", [Step::Result(json!({ "task": slow("input_required") }))])
        .on("tasks/get", [Step::Hang, Step::Result(slow("completed"))])
        .on("tasks/result", [Step::Error(-32603, "broken"), says("done")]);
    let (server, events) = with_stream_and(script, |seen: SeenRequest, world| async move {
        if seen.rpc() == "tasks/result" {
            world.first(rpc("tasks/get")).await;
        }
        None
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    until_seen(&mut exchange, &server.world, 0, "tasks/result").await;
    events.message(&changed(&slow("working")));
    assert_eq!(lines(&mut exchange).await, [DONE]);
}

/// FastMCP 3.4 never says that input is required, and names no task in its questions.
#[tokio::test]
async fn t_20_a_question_on_the_sessions_stream_goes_to_the_task_it_names_or_to_the_only_one() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let (server, events) = with_stream(script.clone()).await;
    let upstream = upstream(&server.url());
    let mut first = begin(&upstream).await;
    until_seen(&mut first, &server.world, 0, "tasks/get").await;
    events.message(&question(1, None));
    let event = next(&mut first).await;
    assert_eq!(line(&event), format!("asked 1 {ASKED}"), "the only one");
    accept(&mut first, &event).await;
    let told = answer_to(&server.world, 1).await;
    assert_eq!(told["result"], json!({"action": "accept", "_meta": {RELATED: {"taskId": "u-1"}}}), "UPC-08");

    let other = |state| task_with(state, &json!({"taskId": "u-2"}));
    let script = script.on("tools/call", [Step::Result(json!({ "task": other("working") }))]);
    let mut second = begin(&upstream).await;
    drop(script.on("tasks/get", [Step::Result(other("working"))]));
    until_seen(&mut second, &server.world, 1, "tools/call").await;
    let is_second = |seen: &SeenRequest| seen.rpc() == "tasks/get" && seen.body["params"]["taskId"] == "u-2";
    in_time(async {
        tokio::select! {
            event = second.next() => panic!("nothing happens, not {}", line(&event)),
            _ = server.world.first(is_second) => (),
        }
    })
    .await;
    events.message(&question(2, Some("u-2")));
    assert_eq!(line(&next(&mut second).await), format!("asked 2 {ASKED}"), "the one it names");
    events.message(&question(3, None));
    assert_eq!(answer_to(&server.world, 3).await["error"]["code"], -32603, "its call is unknown");
    events.message(&question(4, Some("u-3")));
    assert_eq!(answer_to(&server.world, 4).await["error"]["code"], -32603, "an unknown task");
}

#[tokio::test]
async fn upc_02_a_notification_makes_a_poll_come_sooner_and_decides_nothing() {
    let slow = |state| task_with(state, &json!({"pollInterval": 300_000}));
    let script = Script::new()
        .on("tools/call", [Step::Result(json!({ "task": slow("working") }))])
        .on("tasks/get", [Step::Result(slow("working")), Step::Result(slow("completed"))]);
    let (server, events) = with_stream(script).await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    until_seen(&mut exchange, &server.world, 0, "tools/call").await;
    // The first says that all is done, which the poll contradicts.
    let deadline = async {
        loop {
            events.message(&changed(&slow("completed")));
            tokio::select! {
                event = exchange.next() => return line(&event),
                () = tokio::time::sleep(Duration::from_millis(20)) => (),
            }
        }
    };
    assert_eq!(in_time(deadline).await, DONE);
    assert_eq!(count(&server.world, "tasks/get"), 2, "the polls decide");
}

#[tokio::test]
async fn a_flood_of_notifications_is_no_flood_of_polls() {
    let slow = task_with("working", &json!({"pollInterval": 300_000}));
    let script = Script::new()
        .on("tools/call", [Step::Result(json!({ "task": slow }))])
        .on("tasks/get", [Step::Result(slow.clone())]);
    let (server, events) = with_stream(script).await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    until_seen(&mut exchange, &server.world, 0, "tools/call").await;
    let began = tokio::time::Instant::now();
    let flood = async {
        while count(&server.world, "tasks/get") < 3 {
            events.message(&changed(&slow));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time(async {
        tokio::select! {
            event = exchange.next() => panic!("nothing happens, not {}", line(&event)),
            () = flood => (),
        }
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(500), "three polls are 250 ms apart: {:?}", began.elapsed());
}

/// A server that knows its first session only up to a moment, and its tasks in the next one or not.
async fn forgetful(knows_task: bool) -> ScriptedServer {
    let script = Script::new().on("tasks/get", [is("working"), is("working"), is("completed")]);
    let unknown = Script::new().on("tasks/get", [Step::Error(-32_602, "unknown task")]);
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let (script, unknown) = (script.clone(), unknown.clone());
        async move {
            let is_first = seen.header("mcp-session-id") == Some("s-1");
            let is_about_task = seen.rpc().starts_with("tasks/");
            if is_first && is_about_task && world.all(rpc("tasks/get")).len() > 1 {
                return Some(status(404));
            }
            if !is_first && is_about_task && !knows_task {
                return Some(unknown.polite(&seen, &world).await);
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await
}

#[tokio::test]
async fn a_lost_session_is_opened_anew_and_the_task_asked_for_there() {
    for (knows_task, expected) in [(true, DONE), (false, "lost UpstreamSessionLost Unknown")] {
        let server = forgetful(knows_task).await;
        let upstream = upstream(&server.url());
        assert_eq!(lines(&mut begin(&upstream).await).await, [expected], "task known: {knows_task}");
        assert_eq!(count(&server.world, "initialize"), 2);
        assert_eq!(server.world.all(SeenRequest::is_call).len(), 1, "L4: the call is never sent again");
        let first_there =
            server.world.first(|seen| seen.rpc() == "tasks/get" && seen.header("mcp-session-id") == Some("s-2")).await;
        assert_eq!(first_there.body["params"], json!({"taskId": "u-1"}));
    }
}

#[tokio::test]
async fn questions_of_a_lost_session_are_withdrawn() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let (server, events) = with_stream_and(script, move |seen, _| {
        let is_lost = seen.header("mcp-session-id") == Some("s-1") && is_gone.load(Ordering::SeqCst);
        async move { is_lost.then(|| status(404)) }
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    until_seen(&mut exchange, &server.world, 0, "tasks/get").await;
    events.message(&question(1, Some("u-1")));
    assert!(line(&next(&mut exchange).await).starts_with("asked 1"));
    gone.store(true, Ordering::SeqCst);
    assert_eq!(line(&next(&mut exchange).await), "withdrawn 1");
}

/// The poll found the loss first, and opened another session; a question came there before the held request failed, too.
#[tokio::test]
async fn u70_a_question_of_the_next_session_stays_when_another_request_finds_the_last_one_lost() {
    let script = Script::new().on("tasks/get", [is("input_required")]).on("tasks/result", [Step::Hang]);
    let (events, reply) = BodySender::open();
    let reply = Arc::new(Mutex::new(Some(reply)));
    let (polls, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let released = Arc::clone(&held);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let (script, reply) = (script.clone(), Arc::clone(&reply));
        let (polls, held) = (Arc::clone(&polls), Arc::clone(&held));
        async move {
            let is_first = seen.header("mcp-session-id") == Some("s-1");
            match seen.rpc() {
                _ if seen.method == Method::GET && is_first => Some(BodySender::silent()),
                _ if seen.method == Method::GET => reply.lock().await.take(),
                "tasks/get" if is_first && polls.fetch_add(1, Ordering::SeqCst) > 0 => Some(status(404)),
                "tasks/result" if is_first => {
                    held.acquire().await.unwrap().forget();
                    Some(status(404))
                }
                _ => Some(script.polite(&seen, &world).await),
            }
        }
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    events.message(&question(1, Some("u-1")));
    let asked = next(&mut exchange).await;
    assert!(line(&asked).starts_with("asked 1"), "{}", line(&asked));
    let is_there = |seen: &SeenRequest| seen.rpc() == "tasks/get" && seen.header("mcp-session-id") == Some("s-2");
    server.world.first(is_there).await;
    let sent = count(&server.world, "tasks/result");
    released.add_permits(1);
    // It is repeated in the next session, and withdraws nothing.
    until_seen(&mut exchange, &server.world, sent, "tasks/result").await;
    accept(&mut exchange, &asked).await;
    assert!(answer_to(&server.world, 1).await.get("result").is_some());
}

#[tokio::test]
async fn upc_13_a_task_is_taken_up_in_another_life_by_polling() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let (server, events) = with_stream(script.clone()).await;
    let first_life = upstream(&server.url());
    let mut exchange = begin(&first_life).await;
    assert!(exchange.resume_token().is_none(), "nothing to take up yet");
    until_seen(&mut exchange, &server.world, 0, "tasks/get").await;
    let token = exchange.resume_token().expect("a task can be taken up");
    drop(exchange);
    in_time(first_life.close()).await;
    drop(first_life);
    assert!(server.world.all(|seen| seen.method == Method::DELETE).is_empty(), "T-31: the task would go with it");

    let second_life = upstream(&server.url());
    let polls = count(&server.world, "tasks/get");
    let mut resumed = in_time(second_life.resume(token, native())).await.unwrap();
    let poll = until_seen(&mut resumed, &server.world, polls, "tasks/get").await;
    assert_eq!(poll.header("mcp-session-id"), Some("s-1"), "in the session that made it");
    assert_eq!(count(&server.world, "initialize"), 1);
    let again = resumed.resume_token();
    assert!(again.is_some(), "and again");
    drop((script.on("tasks/get", [is("completed")]), events));
    assert_eq!(lines(&mut resumed).await, [DONE]);
}

/// A server whose `u-1` has subtasks: `c-1`, of which it says so more than once, and later `c-2`.
async fn with_subtasks() -> ScriptedServer {
    let named = |state, children| Step::Result(task_with(state, &json!({ "childTaskIds": children })));
    let script = Script::new().on(
        "tasks/get",
        [
            named("working", json!(["c-1", 7, "", "c-1", "u-1"])),
            named("working", json!(["c-1"])),
            named("working", json!(["c-2"])),
            named("completed", json!("c-9")),
        ],
    );
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let script = script.clone();
        async move {
            let of_child = seen.body["params"]["taskId"] == "c-1";
            Some(match seen.rpc() {
                "tasks/get" if of_child => {
                    let named = json!({ "taskId": "c-1", "childTaskIds": ["u-1", "c-3", "c-1"] });
                    answer(&seen, &task_with("completed", &named))
                }
                "tasks/result" if of_child => answer(&seen, &json!({ "content": [], "of": "c-1" })),
                _ => script.polite(&seen, &world).await,
            })
        }
    })
    .await
}

/// SUB-18: each once, and in the session that made them.
#[tokio::test]
async fn sub_18_subtasks_are_told_as_they_come_and_can_be_followed() {
    let server = with_subtasks().await;
    let upstream = upstream(&server.url());
    let hearing = CallContext { subtasks: SubtaskQuota::new(100), ..native() };
    let mut exchange = try_begin(&upstream, call(&json!({})), hearing.clone()).await.unwrap();
    let ExchangeEvent::Subtasks(first) = next(&mut exchange).await else { panic!("subtasks") };
    assert_eq!(first, [Arc::<str>::from("c-1")], "no task is a subtask of its own");
    let token = exchange.subtask_token(&first[0]).unwrap();
    let mut child = in_time(upstream.resume(token, hearing)).await.unwrap();
    assert_eq!(lines(&mut child).await, ["subtasks c-3", r#"returned {"content":[],"of":"c-1"}"#]);
    assert_eq!(lines(&mut exchange).await, ["subtasks c-2", DONE]);
    let session = |seen: &SeenRequest| seen.rpc() == "tasks/get" && seen.header("mcp-session-id") != Some("s-1");
    assert!(server.world.all(session).is_empty());
    let streams = server.world.all(|seen| seen.method == Method::GET).len();
    assert!(streams <= 1, "a session has one stream of its own: {streams}");
}

/// SUB-19: a poll reports 64 names at most, all polls together as many as are wanted, and none once the owner has enough.
#[tokio::test]
async fn sub_19_a_task_that_names_thousands_reports_them_in_parts_and_not_all() {
    let many: Vec<String> = (0..3_000).map(|number| format!("c-{number}")).collect();
    let named = |state| Step::Result(task_with(state, &json!({ "childTaskIds": many })));
    for (wanted, closes, expected) in
        [(100, false, vec![64, 36]), (150, false, vec![64, 64, 22]), (150, true, vec![64])]
    {
        let server = Script::new().on("tasks/get", [named("working"), named("completed")]).serve().await;
        let (upstream, quota) = (upstream(&server.url()), SubtaskQuota::new(wanted));
        let hearing = CallContext { subtasks: quota.clone(), ..native() };
        let mut exchange = try_begin(&upstream, call(&json!({})), hearing).await.unwrap();
        let mut parts = Vec::new();
        while let ExchangeEvent::Subtasks(part) = next(&mut exchange).await {
            parts.push(part);
            if closes {
                quota.close();
            }
        }
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), expected, "{wanted} {closes}");
        assert!(parts.concat().iter().map(|id| &**id).eq(many.iter().take(parts.concat().len())), "in order");
    }
}

#[tokio::test]
async fn a_client_that_did_not_ask_for_subtasks_gets_none() {
    let server = with_subtasks().await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    assert_eq!(lines(&mut exchange).await, [DONE]);
}

#[tokio::test]
async fn a_resumed_task_is_cancelled_and_asked_as_before() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let streams = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&streams);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let (script, opened) = (script.clone(), Arc::clone(&opened));
        async move {
            if seen.method == Method::GET {
                let (events, reply) = BodySender::open();
                opened.lock().await.push(events);
                return Some(reply);
            }
            Some(script.polite(&seen, &world).await)
        }
    })
    .await;
    let first_life = upstream(&server.url());
    let mut exchange = begin(&first_life).await;
    until_seen(&mut exchange, &server.world, 0, "tasks/get").await;
    let token = exchange.resume_token().unwrap();
    let mut other = begin(&first_life).await;
    let polls = count(&server.world, "tasks/get");
    until_seen(&mut other, &server.world, polls, "tasks/get").await;
    let other_token = other.resume_token().unwrap();
    drop((exchange, other, first_life));
    let second_life = upstream(&server.url());
    let mut resumed = in_time(second_life.resume(token, native())).await.unwrap();
    let also = in_time(second_life.resume(other_token, native())).await.unwrap();
    let is_get = |seen: &SeenRequest| seen.method == Method::GET;
    let poll = count(&server.world, "tasks/get");
    until_seen(&mut resumed, &server.world, poll, "tasks/get").await;
    server.world.nth(1, is_get).await;
    assert_eq!(server.world.all(is_get).len(), 2, "one stream in each life, however many tasks it has");
    drop(also);
    streams.lock().await[1].message(&question(1, Some("u-1")));
    assert!(line(&next(&mut resumed).await).starts_with("asked 1"), "a task's session has its stream again");
    in_time(resumed.cancel("not wanted")).await;
    assert_eq!(count(&server.world, "tasks/cancel"), 1, "UPC-06");
    assert_eq!(count(&server.world, "notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_resumed_task_that_is_gone_is_lost() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let server = script.clone().serve().await;
    let first_life = upstream(&server.url());
    let mut exchange = begin(&first_life).await;
    until_seen(&mut exchange, &server.world, 0, "tasks/get").await;
    let token = exchange.resume_token().unwrap();
    drop((exchange, first_life, script.on("tasks/get", [Step::Error(-32_602, "unknown task")])));
    let second_life = upstream(&server.url());
    let mut resumed = in_time(second_life.resume(token, native())).await.unwrap();
    assert_eq!(lines(&mut resumed).await, ["lost UpstreamSessionLost Unknown"]);
}

#[tokio::test]
async fn progress_and_log_messages_of_a_task_reach_its_call_from_every_stream() {
    let script = Script::new().on("tasks/get", [is("working")]);
    let (server, events) = with_stream(script.clone()).await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    until_seen(&mut exchange, &server.world, 0, "tasks/get").await;
    let token = server.world.first(SeenRequest::is_call).await.token().to_owned();
    let note = |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    events.message(&note("notifications/progress", json!({"progressToken": token, "progress": 1, "message": "on it"})));
    assert_eq!(line(&next(&mut exchange).await), "progress 1 of ? on it");
    let log = json!({"level": "info", "data": 1, "_meta": {RELATED: {"taskId": "u-1"}}});
    events.message(&note("notifications/message", log));
    assert_eq!(line(&next(&mut exchange).await), r#"log {"data":1,"level":"info"}"#, "T-67");
    drop(script.on("tasks/get", [is("completed")]));
    assert_eq!(lines(&mut exchange).await, [DONE]);
}

/// A server that names its tasks only by `task` in a session without an id.
#[tokio::test]
async fn a_server_without_sessions_has_tasks_too() {
    let script = Script::new().on("tasks/get", [is("working"), is("completed")]);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let script = script.clone();
        async move {
            let mut reply = match seen.rpc() {
                "initialize" => declaring(&seen, &world, &tasks_declared()),
                _ if seen.method == Method::GET => polite(&seen, &world),
                _ => script.polite(&seen, &world).await,
            };
            reply.headers_mut().remove("mcp-session-id");
            Some(reply)
        }
    })
    .await;
    assert_eq!(lines(&mut begin(&upstream(&server.url())).await).await, [DONE]);
}
