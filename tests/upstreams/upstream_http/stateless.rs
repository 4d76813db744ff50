//! A server of 2026-07-28 as exchanges: rounds of questions, tasks of its own, headers, loss.

mod polls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use taskgate::dialect::subscriptions::{ListKind, SubscriptionFilter};
use taskgate::upstream::http::HttpUpstreamSettings;
use taskgate::upstream::{
    Answer, CallContext, Era, EraUpstream, Exchange, ExchangeEvent, Upstream, UpstreamRequest, UpstreamTaskMode,
};
use taskgate::wire::{Payload, ProtocolVersion, RpcError};
use tokio::time::Instant;

use super::server::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer as result, json_text, status};
use super::{call, context, in_time, line, lines, next, until_some_are_held, upstream_of, upstream_of_4_mib};

fn upstream(server: &ScriptedServer) -> EraUpstream {
    let settings = HttpUpstreamSettings {
        protocol: Some(ProtocolVersion::V2026_07_28),
        ..HttpUpstreamSettings::new(Arc::from("scripted"), server.url())
    };
    Arc::new(upstream_of(settings)).for_stateless_clients()
}

async fn begin(upstream: &EraUpstream) -> Box<dyn Exchange> {
    in_time(upstream.begin(call(&json!({"n": 1})), context())).await.unwrap()
}

/// A server whose answers to `tools/call` and `tasks/*` come in this order; the last one goes on for ever.
async fn answering(replies: Vec<(&'static str, Value)>) -> ScriptedServer {
    let count = AtomicUsize::new(0);
    ScriptedServer::slow(move |seen: SeenRequest, _| {
        let at = count.fetch_add(1, Ordering::SeqCst).min(replies.len() - 1);
        let (method, answer) = &replies[at];
        assert_eq!(seen.rpc(), *method, "request {at}");
        let reply = match answer.get("error").filter(|_| answer.get("taskId").is_none()) {
            Some(error) => {
                let text = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string();
                let mut reply = json_text(text);
                *reply.status_mut() = http::StatusCode::BAD_REQUEST;
                reply
            }
            None => result(&seen, answer),
        };
        async move { Some(reply) }
    })
    .await
}

fn question(state: Option<&str>, keys: &[&str]) -> Value {
    let entry = json!({"method": "elicitation/create", "params": {"message": "m"}});
    let requests: serde_json::Map<_, _> = keys.iter().map(|key| ((*key).to_owned(), entry.clone())).collect();
    let mut result = json!({"resultType": "input_required", "inputRequests": requests});
    if let Some(state) = state {
        result["requestState"] = json!(state);
    }
    result
}

async fn answer(exchange: &mut Box<dyn Exchange>, ask: &str, answer: Value) {
    exchange.answer(&Payload::of(ask), Answer::Result(Payload::of(&answer))).await.unwrap();
}

/// UPC-14, MOD-27: one question per key; the retry has them all, another id, and the state if there was one.
#[tokio::test]
async fn upc14_a_round_is_retried_once_all_of_it_is_answered() {
    let done = json!({"resultType": "complete", "content": []});
    let rounds = vec![
        ("tools/call", question(Some("s é"), &["a", "b"])),
        ("tools/call", question(None, &["a"])),
        ("tools/call", done),
    ];
    let server = answering(rounds).await;
    let mut exchange = begin(&upstream(&server)).await;
    for asked in
        ["asked \"1/a\" elicitation/create {\"message\":\"m\"}", "asked \"1/b\" elicitation/create {\"message\":\"m\"}"]
    {
        assert_eq!(line(&next(&mut exchange).await), asked);
    }
    answer(&mut exchange, "1/b", json!({"action": "accept", "n": 2})).await;
    let early = tokio::time::timeout(Duration::from_millis(50), exchange.next()).await;
    assert!(early.is_err(), "half a round is not retried");
    answer(&mut exchange, "1/a", json!({"action": "decline"})).await;
    assert!(
        line(&next(&mut exchange).await).starts_with("asked \"2/a\""),
        "a key of another round is another question"
    );
    answer(&mut exchange, "2/a", json!({"action": "accept"})).await;
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[],"resultType":"complete"}"#]);
    let calls = server.world.all(SeenRequest::is_call);
    let params = |at: usize| &calls[at].body["params"];
    assert_eq!(params(1)["inputResponses"], json!({"a": {"action": "decline"}, "b": {"action": "accept", "n": 2}}));
    assert_eq!(params(1)["requestState"], "s é");
    assert_eq!((params(2).get("requestState"), &params(2)["arguments"]), (None, &json!({"n": 1})));
    assert_ne!(calls[0].id(), calls[1].id());
    let capabilities = &params(2)["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(
        capabilities,
        &json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}),
        "UPC-21"
    );
}

/// UPC-14, T-54: rounds without a question are gone through at a growing pace, and not for ever.
#[tokio::test]
async fn upc14_rounds_without_questions_are_paced() {
    let silent = || ("tools/call", json!({"resultType": "input_required", "requestState": "s"}));
    let server = answering(vec![silent(), silent(), ("tools/call", json!({"content": []}))]).await;
    let began = Instant::now();
    let mut exchange = begin(&upstream(&server)).await;
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
    assert!(began.elapsed() >= Duration::from_millis(750), "250 ms and 500 ms");
}

/// U59: rounds that no client sees are paced and bounded like those without questions; a client's answer ends that.
#[tokio::test]
async fn u59_rounds_that_the_gateway_answers_itself_are_paced() {
    let asks = || ("tools/call", question(None, &["a"]));
    let done = ("tools/call", json!({"content": []}));
    let server = answering(vec![asks(), asks(), asks(), asks(), done]).await;
    let mut exchange = begin(&upstream(&server)).await;
    let began = Instant::now();
    for round in 1..=4 {
        assert!(line(&next(&mut exchange).await).starts_with(&format!("asked \"{round}/a\"")));
        let ask = Payload::of(&format!("{round}/a"));
        let declined = Answer::Result(Payload::of(&json!({"action": "decline"})));
        match round {
            1 => exchange.answer(&ask, declined).await.unwrap(),
            _ => exchange.refuse(&ask, declined).await.unwrap(),
        }
    }
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
    assert!(began.elapsed() >= Duration::from_millis(1_500), "500 ms and 1 s, and none for the first");
}

/// T-48: an answer that is an error cannot be expressed.
#[tokio::test]
async fn t_48_a_refused_sampling_ends_the_call() {
    let asks = json!({"resultType": "input_required", "inputRequests": {"s": {"method": "sampling/createMessage", "params": {}}}});
    let server = answering(vec![("tools/call", asks)]).await;
    let mut exchange = begin(&upstream(&server)).await;
    next(&mut exchange).await;
    let refusal = Answer::Error(RpcError::new(-1, "not today"));
    exchange.answer(&Payload::of("1/s"), refusal).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["faulted -1 not today"]);
}

/// UPC-09: the allowed types of a result.
#[tokio::test]
async fn upc09_results_of_types_that_they_may_not_have_are_malformed() {
    for (answer, last) in [
        (json!({"content": []}), r#"returned {"content":[]}"#),
        (json!({"resultType": "soon"}), "lost UpstreamMalformed Yes"),
        (json!({"resultType": 7}), "lost UpstreamMalformed Yes"),
        (json!({"resultType": "input_required"}), "lost UpstreamMalformed Unknown"),
        (json!({"resultType": "task"}), "lost UpstreamMalformed Yes"),
        (question(None, &[""; 0]), "lost UpstreamMalformed Unknown"),
    ] {
        let server = answering(vec![("tools/call", answer.clone())]).await;
        assert_eq!(lines(&mut begin(&upstream(&server)).await).await, [last], "{answer}");
    }
    let server = answering(vec![("prompts/list", json!({"resultType": "task", "taskId": "x"}))]).await;
    let request = UpstreamRequest { method: Arc::from("prompts/list"), params: None };
    let mut exchange = in_time(upstream(&server).begin(request, context())).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["lost UpstreamMalformed Yes"], "a task answers a call alone");
}

fn task(status: &str, more: &Value) -> Value {
    let mut task = json!({"resultType": "complete", "taskId": "up", "status": status, "pollIntervalMs": 50});
    for (key, value) in more.as_object().unwrap() {
        task[key] = value.clone();
    }
    task
}

fn handle() -> (&'static str, Value) {
    ("tools/call", task("working", &json!({"resultType": "task"})))
}

/// UPC-01, UPC-10, UPC-11, UPC-12: the upstream's own task from its handle to its result.
#[tokio::test]
async fn upc11_a_tasks_questions_are_asked_once_and_answered_under_their_keys() {
    let asks = |keys: &[&str]| {
        let requests = question(None, keys)["inputRequests"].take();
        ("tasks/get", task("input_required", &json!({"inputRequests": requests})))
    };
    let ack = ("tasks/update", json!({"resultType": "complete"}));
    let result = json!({"resultType": "complete", "content": [], "n": 1});
    let server = answering(vec![
        handle(),
        ("tasks/get", task("working", &json!({"statusMessage": "half"}))),
        asks(&["a", "b"]),
        ack.clone(),
        // The upstream has not seen to it yet, and asks no more for the other one.
        asks(&["a"]),
        ("tasks/get", task("completed", &json!({"result": result}))),
    ])
    .await;
    let upstream = upstream(&server);
    let mut exchange = begin(&upstream).await;
    assert_eq!(line(&next(&mut exchange).await), "status half");
    let token = exchange.resume_token().unwrap();
    assert_eq!(token.0.as_str(), r#"{"task":"up"}"#, "UPC-13");
    next(&mut exchange).await;
    assert!(matches!(next(&mut exchange).await, ExchangeEvent::Asked { .. }));
    assert_eq!(exchange.resume_token().unwrap().0.as_str(), r#"{"task":"up","open":["0/a","0/b"]}"#, "UPC-13");
    answer(&mut exchange, "0/a", json!({"action": "accept"})).await;
    assert_eq!(exchange.resume_token(), None, "no other process has the answer");
    let rest = lines(&mut exchange).await;
    assert_eq!(rest, ["withdrawn \"0/b\"", r#"returned {"content":[],"n":1,"resultType":"complete"}"#]);
    let update = server.world.first(|seen| seen.rpc() == "tasks/update").await;
    assert_eq!(update.body["params"]["inputResponses"], json!({"a": {"action": "accept"}}), "in part");
    assert_eq!(update.header("mcp-name"), Some("up"));
    assert_eq!(exchange.resume_token(), None);
}

/// UPC-09, EXT-24, EXT-30, U99: how a task of the upstream's may end, and that trouble passes.
#[tokio::test]
async fn a_task_of_the_upstreams_ends_as_it_says() {
    let get = |answer: Value| ("tasks/get", answer);
    let unknown = json!({"error": {"code": -32602, "message": "no such task"}});
    let trouble = json!({"error": {"code": -32603, "message": "later"}});
    let unserved = || get(json!({"error": {"code": -32601, "message": "no such method"}}));
    let error = json!({"error": {"code": -7, "message": "broke", "data": 1}});
    for (polls, last) in [
        (vec![get(task("failed", &error))], "faulted -7 broke"),
        (vec![get(task("cancelled", &json!({})))], "cancelled"),
        (vec![get(unknown)], "lost UpstreamSessionLost Unknown"),
        (vec![unserved()], "lost UpstreamSessionLost Unknown"),
        (vec![unserved(), unserved(), get(task("failed", &error))], "faulted -7 broke"),
        (vec![get(task("completed", &json!({})))], "lost UpstreamMalformed Yes"),
        (vec![get(task("odd", &json!({}))), get(trouble), get(task("failed", &error))], "faulted -7 broke"),
    ] {
        let server = answering([vec![handle()], polls].concat()).await;
        assert_eq!(lines(&mut begin(&upstream(&server)).await).await, [last]);
    }
}

/// GW-14: the text of a status has no bound, so an unknown one is counted and not logged.
#[tokio::test]
async fn gw_14_an_unknown_status_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let polls = [task("odd", &json!({})), task("completed", &json!({"result": {"content": []}}))];
    let server = answering([handle()].into_iter().chain(polls.map(|poll| ("tasks/get", poll))).collect()).await;
    assert_eq!(lines(&mut begin(&upstream(&server)).await).await, [r#"returned {"content":[]}"#]);
    let page = metrics.render();
    let counted = |line: &str| line.starts_with("taskgate_upstream_dropped_total") && line.contains("unknown_status");
    assert!(page.lines().any(|line| counted(line) && line.ends_with(" 1")), "{page}");
}

/// UPC-01: as of a task of 2025-11-25. Polled every five minutes, the outcome would be lost.
#[tokio::test]
async fn upc_01_a_task_is_polled_before_its_server_forgets_it_and_before_the_deadline() {
    for (deadline, ttl) in [(4, json!(null)), (600, json!(1_000))] {
        let told = |status, more: Value| {
            let mut told = task(status, &more);
            (told["ttlMs"], told["pollIntervalMs"]) = (ttl.clone(), json!(300_000));
            told
        };
        let server = answering(vec![
            ("tools/call", told("working", json!({"resultType": "task"}))),
            ("tasks/get", told("completed", json!({"result": {"content": []}}))),
        ])
        .await;
        let context = CallContext { deadline: Some(Duration::from_secs(deadline)), ..context() };
        let mut exchange = in_time(upstream(&server).begin(call(&json!({})), context)).await.unwrap();
        assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#], "{deadline}");
    }
}

/// UPC-01: `ttl` counts from the creation of a task, which the call's begin in an earlier process precedes.
#[tokio::test]
async fn upc_01_a_task_that_is_taken_up_late_is_polled_before_its_server_forgets_it() {
    let told = |status, more: Value| {
        let mut told = task(status, &more);
        (told["ttlMs"], told["pollIntervalMs"]) = (json!(250_000), json!(300_000));
        ("tasks/get", told)
    };
    let done = told("completed", json!({"result": {"content": []}}));
    let server = answering(vec![told("working", json!({})), done]).await;
    let [all, left] = [600, 366].map(Duration::from_secs);
    let native_task = UpstreamTaskMode::WhereServed { deadline: left };
    let context = CallContext { deadline: Some(all), native_task, ..context() };
    let token = taskgate::upstream::ResumeToken(Payload::of(&json!({"task": "up"})));
    let mut exchange = in_time(upstream(&server).resume(token, context)).await.unwrap();
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
}

/// UPC-01: the outcome of a task does not depend on an answer that its server does not take.
#[tokio::test]
async fn upc_01_a_task_whose_server_takes_no_answer_is_polled_to_its_end() {
    let asks = || {
        let requests = question(None, &["a"])["inputRequests"].take();
        ("tasks/get", task("input_required", &json!({"inputRequests": requests})))
    };
    let refused = || ("tasks/update", json!({"error": {"code": -32603, "message": "no such question"}}));
    let taken = ("tasks/update", json!({"resultType": "complete"}));
    let done = ("tasks/get", task("completed", &json!({"result": {"content": []}})));
    for replies in [
        vec![handle(), asks(), refused(), done.clone()],
        // As long as the task asks, the answer is sent again.
        vec![handle(), asks(), refused(), asks(), taken, done.clone()],
    ] {
        let server = answering(replies.clone()).await;
        let mut exchange = begin(&upstream(&server)).await;
        assert!(line(&next(&mut exchange).await).starts_with("asked \"0/a\""));
        answer(&mut exchange, "0/a", json!({"action": "accept"})).await;
        assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
        assert_eq!(server.world.all(|_| true).len(), replies.len());
    }
}

/// UPC-01: failures of updates delay updates, and not polls.
#[tokio::test]
async fn upc_01_an_update_that_fails_again_and_again_is_sent_less_often_than_its_task_is_polled() {
    const POLLS: usize = 24;
    let polls = AtomicUsize::new(0);
    let server = ScriptedServer::start(move |seen| {
        let answer = match seen.rpc() {
            "tools/call" => handle().1,
            "tasks/get" if polls.fetch_add(1, Ordering::SeqCst) + 1 < POLLS => {
                task("input_required", &json!({"inputRequests": question(None, &["a"])["inputRequests"]}))
            }
            "tasks/get" => task("completed", &json!({"result": {"content": []}})),
            _ => {
                let error = json!({"code": -32603, "message": "later"});
                let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
                *reply.status_mut() = http::StatusCode::BAD_REQUEST;
                return Some(reply);
            }
        };
        Some(result(seen, &answer))
    })
    .await;
    let mut exchange = begin(&upstream(&server)).await;
    assert!(line(&next(&mut exchange).await).starts_with("asked \"0/a\""));
    answer(&mut exchange, "0/a", json!({"action": "accept"})).await;
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
    let updates = server.world.count("tasks/update");
    assert!((2..POLLS * 2 / 3).contains(&updates), "{updates} updates beside {POLLS} polls");
}

/// UPC-13: the next process polls on.
#[tokio::test]
async fn upc13_a_task_is_taken_up_by_its_token() {
    let server = answering(vec![("tasks/get", task("completed", &json!({"result": {"content": []}})))]).await;
    let token = taskgate::upstream::ResumeToken(Payload::of(&json!({"task": "up"})));
    let mut exchange = in_time(upstream(&server).resume(token, context())).await.unwrap();
    assert_eq!(lines(&mut exchange).await, [r#"returned {"content":[]}"#]);
}

/// UPC-13: answers of earlier rounds are at the upstream by then, so a later process can resume the task.
#[tokio::test]
async fn upc13_a_task_that_is_made_after_a_round_can_be_taken_up_at_once() {
    let made = task("working", &json!({"resultType": "task", "pollIntervalMs": 60_000}));
    let server = answering(vec![("tools/call", question(None, &["a"])), ("tools/call", made)]).await;
    let mut exchange = begin(&upstream(&server)).await;
    assert!(line(&next(&mut exchange).await).starts_with("asked \"1/a\""));
    answer(&mut exchange, "1/a", json!({"action": "accept"})).await;
    in_time(async {
        while exchange.resume_token().is_none() {
            let event = tokio::time::timeout(Duration::from_millis(20), exchange.next()).await;
            assert!(event.is_err(), "{event:?}");
        }
    })
    .await;
    assert_eq!(exchange.resume_token().unwrap().0.as_str(), r#"{"task":"up"}"#);
    assert_eq!(server.world.count("tasks/get"), 0);
}

/// UPC-13: a question that was open when the process ended, and is not any more, is withdrawn.
#[tokio::test]
async fn upc13_a_question_that_a_task_asks_no_more_when_it_is_taken_up_is_taken_back() {
    let working = ("tasks/get", task("working", &json!({})));
    let done = ("tasks/get", task("completed", &json!({"result": {"content": []}})));
    let server = answering(vec![working, done]).await;
    let token = taskgate::upstream::ResumeToken(Payload::of(&json!({"task": "up", "open": ["0/a"]})));
    let mut exchange = in_time(upstream(&server).resume(token, context())).await.unwrap();
    assert_eq!(exchange.resume_token().unwrap().0.as_str(), r#"{"task":"up","open":["0/a"]}"#);
    answer(&mut exchange, "0/a", json!({"action": "accept"})).await;
    assert_eq!(lines(&mut exchange).await, ["withdrawn \"0/a\"", r#"returned {"content":[]}"#]);
    assert_eq!(server.world.count("tasks/update"), 0);
}

/// F11, F14: a question of an earlier process keeps its name, and its answer is sent only if the task still asks it.
#[tokio::test]
async fn f14_an_answer_from_another_life_goes_to_a_task_that_still_asks() {
    let asks = |keys: &[&str]| {
        let requests = question(None, keys)["inputRequests"].take();
        ("tasks/get", task("input_required", &json!({"inputRequests": requests})))
    };
    let done = ("tasks/get", task("completed", &json!({"result": {"content": []}})));
    let replies = vec![asks(&["a", "b"]), ("tasks/update", json!({"resultType": "complete"})), done];
    let server = answering(replies).await;
    let token = taskgate::upstream::ResumeToken(Payload::of(&json!({"task": "up"})));
    let mut exchange = in_time(upstream(&server).resume(token, context())).await.unwrap();
    answer(&mut exchange, "0/a", json!({"action": "accept"})).await;
    answer(&mut exchange, "0/gone", json!({"action": "accept"})).await;
    let events = lines(&mut exchange).await;
    assert_eq!(events[0], "withdrawn \"0/a\"", "another question may have its name");
    assert!(events[1].starts_with("asked \"0/b\""), "{events:?}");
    assert_eq!(events.last().unwrap(), r#"returned {"content":[]}"#);
    let update = server.world.first(|seen| seen.rpc() == "tasks/update").await;
    assert_eq!(update.body["params"]["inputResponses"], json!({"a": {"action": "accept"}}));
}

/// UPC-06: a task is cancelled by its name; a call without one by letting go of it (MOD-20).
#[tokio::test]
async fn upc06_a_cancel_goes_to_the_task_or_drops_the_request() {
    let server = answering(vec![handle(), ("tasks/get", task("working", &json!({"statusMessage": "m"})))]).await;
    let cancelled = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        Some(match seen.rpc() {
            "tools/call" => result(&seen, &handle().1),
            "tasks/get" => result(&seen, &task("working", &json!({"statusMessage": "m"}))),
            _ => result(&seen, &json!({"resultType": "complete"})),
        })
    })
    .await;
    drop(server);
    let mut exchange = begin(&upstream(&cancelled)).await;
    next(&mut exchange).await;
    in_time(exchange.cancel("enough")).await;
    let cancel = cancelled.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!((&cancel.body["params"]["taskId"], cancel.header("mcp-name")), (&json!("up"), Some("up")));
    assert_eq!(line(&next(&mut exchange).await), "lost UpstreamClosed Unknown");

    let (events, held) = BodySender::open();
    let held = parking_lot::Mutex::new(Some(held));
    let silent = ScriptedServer::slow(move |_, _| {
        let reply: Option<ScriptedReply> = held.lock().take();
        async move { Some(reply.unwrap_or_else(|| status(500))) }
    })
    .await;
    let mut exchange = begin(&upstream(&silent)).await;
    silent.world.first(SeenRequest::is_call).await;
    in_time(exchange.cancel("enough")).await;
    in_time(events.left()).await;
    assert_eq!(silent.world.all(|_| true).len(), 1, "nothing is said");
}

/// UPC-06: a call that ran before the cancel came is a task at the server, though its handle is still on its way.
#[tokio::test]
async fn upc06_a_cancel_that_crosses_the_handle_goes_to_the_task() {
    let crossing = Arc::new(tokio::sync::Notify::new());
    let begun = Arc::clone(&crossing);
    let server = ScriptedServer::slow(move |seen: SeenRequest, _| {
        let begun = Arc::clone(&begun);
        async move {
            if seen.rpc() != "tools/call" {
                return Some(result(&seen, &json!({"resultType": "complete"})));
            }
            begun.notified().await;
            Some(result(&seen, &handle().1))
        }
    })
    .await;
    let mut exchange = begin(&upstream(&server)).await;
    server.world.first(SeenRequest::is_call).await;
    let handle_sent = async {
        tokio::task::yield_now().await;
        crossing.notify_one();
    };
    let (_, ()) = tokio::join!(in_time(exchange.cancel("enough")), handle_sent);
    let cancel = server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(cancel.body["params"]["taskId"], "up");
}

/// T-30, UPC-18: a lost stream is lost, after any event.
#[tokio::test]
async fn t_30_a_lost_stream_is_an_end_and_nothing_is_sent_again() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        let progress = json!({"progressToken": seen.token(), "progress": 0.5, "total": 1});
        events.numbered("7", &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}));
        reply
    })
    .await;
    let mut exchange = begin(&upstream(&server)).await;
    assert_eq!(lines(&mut exchange).await, ["progress 0.5 of 1 -", "lost UpstreamClosed Unknown"]);
    assert_eq!(server.world.all(|_| true).len(), 1);
}

/// UPC-15, UPC-16: a mismatch of headers has the tool list read again, and the call is sent once more.
#[tokio::test]
async fn upc16_a_mismatch_refreshes_the_tool_list_and_retries_once() {
    let schema = json!({"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}});
    let list = json!({"resultType": "complete", "tools": [{"name": "slow", "inputSchema": schema}]});
    let mismatch = || ("tools/call", json!({"error": {"code": -32020, "message": "mismatch"}}));
    let done = ("tools/call", json!({"content": []}));
    let server = answering(vec![mismatch(), ("tools/list", list.clone()), done]).await;
    assert_eq!(lines(&mut begin(&upstream(&server)).await).await, [r#"returned {"content":[]}"#]);
    let calls = server.world.all(SeenRequest::is_call);
    assert_eq!((calls[0].header("mcp-param-n"), calls[1].header("mcp-param-n")), (None, Some("1")));
    let server = answering(vec![mismatch(), ("tools/list", list), mismatch()]).await;
    assert_eq!(lines(&mut begin(&upstream(&server)).await).await, ["faulted -32020 mismatch"], "once");
}

/// L4: a call that the server has begun is not sent again, after any error.
#[tokio::test]
async fn l4_a_call_that_reported_progress_is_not_sent_again() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        let progress = json!({"progressToken": seen.token(), "progress": 1});
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}));
        let error = json!({"code": -32020, "message": "of a server behind this one"});
        events.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}));
        reply
    })
    .await;
    let mut exchange = begin(&upstream(&server)).await;
    assert_eq!(lines(&mut exchange).await, ["progress 1 of ? -", "lost UpstreamMalformed Unknown"]);
    assert_eq!(server.world.all(|_| true).len(), 1);
}

/// UPC-16: an error of the list is not the outcome of the call.
#[tokio::test]
async fn upc16_a_mismatch_without_a_tool_list_ends_the_call_with_the_mismatch() {
    let mismatch = ("tools/call", json!({"error": {"code": -32020, "message": "mismatch"}}));
    let no_list = ("tools/list", json!({"error": {"code": -32601, "message": "no such method"}}));
    let server = answering(vec![mismatch, no_list]).await;
    assert_eq!(lines(&mut begin(&upstream(&server)).await).await, ["faulted -32020 mismatch"]);
}

/// B190: the beginning of an event takes bytes of its client's answers.
#[tokio::test]
async fn b190_an_event_that_begins_on_a_subscription_is_counted() {
    let server = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        assert_eq!(seen.rpc(), "subscriptions/listen");
        let (events, reply) = BodySender::open();
        let meta = json!({"io.modelcontextprotocol/subscriptionId": seen.body["id"]});
        let params = json!({"_meta": meta, "notifications": {"toolsListChanged": true}});
        let method = "notifications/subscriptions/acknowledged";
        events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
        events.raw(format!("data: {}", "x".repeat(3 << 20)));
        events.stay_open();
        Some(reply)
    })
    .await;
    let settings = HttpUpstreamSettings {
        protocol: Some(ProtocolVersion::V2026_07_28),
        ..HttpUpstreamSettings::new(Arc::from("scripted"), server.url())
    };
    let (upstream, limits) = upstream_of_4_mib(settings);
    let wishes = SubscriptionFilter { lists: [ListKind::Tools].into(), ..SubscriptionFilter::default() };
    let listening = in_time(Arc::new(upstream).for_stateless_clients().listen(&context(), &wishes)).await.unwrap();
    until_some_are_held(&limits).await;
    drop(listening);
}

/// UPC-22: a server without sessions says so where it is asked for one.
#[tokio::test]
async fn upc22_a_refused_handshake_names_the_era() {
    let server = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        let refuse = |code: u16, data: &Value| {
            let error = json!({"code": -32022, "message": "m", "data": data});
            let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
            *reply.status_mut() = http::StatusCode::from_u16(code).unwrap();
            reply
        };
        Some(match seen.rpc() {
            // No verdict.
            "server/discover" => status(503),
            "initialize" => refuse(400, &json!({"supported": ["2026-07-28"]})),
            _ => result(&seen, &json!({"content": []})),
        })
    })
    .await;
    let upstream = Arc::new(super::upstream(&server.url())).for_stateless_clients();
    assert_eq!(
        in_time(upstream.era(&taskgate::upstream::ForwardedHeaders::default())).await,
        Era::Session,
        "for this once"
    );
    assert_eq!(lines(&mut begin(&upstream).await).await, [r#"returned {"content":[]}"#]);
    assert_eq!(in_time(upstream.era(&taskgate::upstream::ForwardedHeaders::default())).await, Era::Stateless);
}

/// U84: an unreachable or unusable server keeps the description that is known.
#[tokio::test]
async fn u84_a_server_is_asked_again_after_a_minute_how_it_describes_itself() {
    const DISCOVERED: &str = "server/discover";
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let server = ScriptedServer::slow(move |seen: SeenRequest, _| {
        let at = count.fetch_add(1, Ordering::SeqCst);
        assert_eq!(seen.rpc(), DISCOVERED);
        async move {
            let described = |words: Value, identity: Value| {
                let meta = json!({"io.modelcontextprotocol/serverInfo": identity});
                result(
                    &seen,
                    &json!({"supportedVersions": ["2026-07-28"], "capabilities": {}, "instructions": words, "_meta": meta}),
                )
            };
            Some(match at {
                0 => described(json!("old"), json!({"name": "s", "version": "1"})),
                1 => described(json!("new"), json!({"name": "s", "version": "2"})),
                2 => status(503),
                // Members of other types are repeated to no client.
                _ => described(json!(null), json!("s")),
            })
        }
    })
    .await;
    let upstream = upstream(&server);
    let described = async || {
        let handshake = in_time(upstream.handshake(&context())).await.unwrap();
        let version = handshake.server_info.as_ref().map(|info| info.as_str().contains("\"2\""));
        (handshake.instructions.as_ref().map(|words| words.as_str().to_owned()), version)
    };
    let (old, new) = ((Some("\"old\"".to_owned()), Some(false)), (Some("\"new\"".to_owned()), Some(true)));
    let rows =
        [(0, &old, 1), (0, &old, 1), (61, &new, 2), (0, &new, 2), (61, &new, 3), (0, &new, 3), (61, &(None, None), 4)];
    for (row, (seconds, expected, times)) in rows.into_iter().enumerate() {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
        assert_eq!(described().await, *expected, "row {row}");
        assert_eq!(asked.load(Ordering::SeqCst), times, "row {row}");
    }
}
