//! One call from begin to end: events, questions, cancel.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::upstream::{Answer, ExchangeEvent, UpstreamRequest};
use taskgate::wire::{Payload, RpcError};
use tokio_util::task::TaskTracker;

use super::server::{BodySender, Once, ScriptedServer, ScriptedState, SeenRequest, answer, json_text};
use super::{begin, call, context, in_time, line, lines, next, progress, try_begin, upstream};

fn question(id: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "elicitation/create", "params": {"message": "sure?"}})
}

fn is_cancel(seen: &SeenRequest) -> bool {
    seen.rpc() == "notifications/cancelled"
}

fn is_response(seen: &SeenRequest) -> bool {
    seen.body.get("method").is_none() && seen.body.get("id").is_some()
}

fn asked_of(event: &ExchangeEvent) -> Payload {
    let ExchangeEvent::Asked { ask, .. } = event else { panic!("expected a question, got {}", line(event)) };
    ask.clone()
}

#[tokio::test]
async fn a_call_carries_its_params_and_the_gateways_own_marks_alone() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream(&server.url());
    let params =
        r#"{"arguments":{"b":1.10,"a":12345678901234567890123},"_meta":{"progressToken":7,"x/y":"z"},"name":"slow"}"#;
    let params: Box<serde_json::value::RawValue> = serde_json::from_str(params).unwrap();
    let request = UpstreamRequest { method: Arc::from("tools/call"), params: Some(Payload::of(&params)) };
    let mut exchange = try_begin(&upstream, request.clone(), context()).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["returned {}"]);
    let seen = server.world.first(SeenRequest::is_call).await;
    assert_eq!(seen.token(), seen.id(), "UPC-20: the client's token is replaced");
    assert!(seen.id().starts_with("tg:"));
    assert_eq!(seen.body["params"]["_meta"]["x/y"], "z");
    assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"), "UPC-15");
    assert_eq!(seen.header("accept-encoding"), Some("identity"));
    assert_eq!(seen.header("mcp-session-id"), Some("s-1"), "UPC-17");
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(seen.header("host"), Some(server.url().authority()));

    let silent = taskgate::upstream::CallContext { progress: false, ..context() };
    lines(&mut try_begin(&upstream, request, silent).await.unwrap()).await;
    let second = server.world.nth(1, SeenRequest::is_call).await;
    assert_eq!(second.body["params"]["_meta"], json!({"x/y": "z"}), "no progress wanted, no token");
}

/// T-67: the client could not use the server's id of the task.
#[tokio::test]
async fn t_67_a_task_is_no_result_of_a_call_that_asked_for_none() {
    let server = ScriptedServer::answering(|seen| {
        let task = match seen.body["params"]["arguments"]["n"] == 1 {
            true => json!({"taskId": "u-1", "status": "working"}),
            false => json!("due"),
        };
        answer(seen, &json!({"task": task}))
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = try_begin(&upstream, call(&json!({"n": 1})), context()).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["lost UpstreamMalformed Yes"]);
    let mut exchange = try_begin(&upstream, call(&json!({"n": 2})), context()).await.unwrap();
    assert_eq!(lines(&mut exchange).await, [r#"returned {"task":"due"}"#], "a member of an ordinary result");
}

#[tokio::test]
async fn progress_and_log_messages_come_in_order_before_the_answer() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        events.raw("id: 1\nretry: 500\ndata: \n\nevent: ping\ndata: now\n\n");
        events.message(&progress(seen, 1));
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}}));
        let other = json!({"progressToken": "tg:other", "progress": 9});
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": other}));
        events.message(&progress(seen, 2));
        events.result(seen, &json!({"content": []}));
        reply
    })
    .await;
    let expected =
        ["progress 1 of 2 on it", "log {\"level\":\"info\"}", "progress 2 of 2 on it", "returned {\"content\":[]}"];
    assert_eq!(lines(&mut begin(&upstream(&server.url())).await).await, expected);
}

#[tokio::test]
async fn a_dropped_wait_loses_no_event() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        for n in 0..200 {
            events.message(&progress(seen, n));
        }
        events.result(seen, &json!({}));
        reply
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let mut heard = 0;
    let last = in_time(async {
        loop {
            let event = tokio::select! {
                biased;
                event = exchange.next() => event,
                () = tokio::task::yield_now() => continue,
            };
            if !matches!(event, ExchangeEvent::Progress(_)) {
                return line(&event);
            }
            heard += 1;
        }
    })
    .await;
    assert_eq!((heard, last.as_str()), (200, "returned {}"));
}

/// A server that asks on the call's stream and returns the answer that it is given.
async fn asking() -> ScriptedServer {
    ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if !seen.is_call() {
            return None;
        }
        let (events, reply) = BodySender::open();
        events.message(&question("q-1"));
        let tracker = TaskTracker::new();
        tracker.spawn(async move {
            let answer = world.first(is_response).await;
            events.result(&seen, &answer.body);
        });
        Some(reply)
    })
    .await
}

#[tokio::test]
async fn a_question_on_the_calls_stream_is_answered_by_a_post() {
    for (answer, expected) in [
        (Answer::Result(Payload::of(&json!({"action": "accept"}))), json!({"result": {"action": "accept"}})),
        (Answer::Error(RpcError::new(-1, "no")), json!({"error": {"code": -1, "message": "no"}})),
    ] {
        let server = asking().await;
        let upstream = upstream(&server.url());
        let mut exchange = begin(&upstream).await;
        let event = next(&mut exchange).await;
        assert_eq!(line(&event), "asked \"q-1\" elicitation/create {\"message\":\"sure?\"}");
        in_time(exchange.answer(&asked_of(&event), answer)).await.unwrap();
        let ExchangeEvent::Returned(result) = next(&mut exchange).await else { panic!("the call returns") };
        let mut told: Value = result.read().unwrap();
        assert_eq!((told["id"].take(), told["jsonrpc"].take()), (json!("q-1"), json!("2.0")));
        told.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        assert_eq!(told, expected);
    }
}

/// Lets half a minute pass for timers, and some real time for their effects.
async fn pass() {
    tokio::time::sleep(Duration::from_millis(5)).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(5)).await;
}

fn is_progress(seen: &SeenRequest) -> bool {
    seen.rpc() == "notifications/progress"
}

/// T-47: an upstream with a progress token in its question gets progress while the user thinks.
#[tokio::test]
async fn t_47_progress_under_a_questions_token_keeps_the_upstream_waiting_until_it_is_answered() {
    for token in [json!("t"), json!(0), json!(null), json!({})] {
        let is_token = token.is_string() || token.is_number();
        let related = json!({"io.modelcontextprotocol/related-task": {"taskId": "u"}});
        let mut asked = question("q-1");
        asked["params"]["_meta"] = related.clone();
        asked["params"]["_meta"]["progressToken"] = token.clone();
        let (events, once) = Once::events();
        let server = ScriptedServer::start(move |seen| if seen.is_call() { once.take() } else { None }).await;
        let upstream = upstream(&server.url());
        let mut exchange = begin(&upstream).await;
        events.message(&asked);
        let event = next(&mut exchange).await;
        for _ in 0..100 {
            pass().await;
            if server.world.all(is_progress).len() >= 3 {
                break;
            }
        }
        let signs = server.world.all(is_progress);
        assert_eq!(signs.len() >= 3, is_token, "{token}");
        for (n, sign) in signs.iter().enumerate() {
            let params = &sign.body["params"];
            assert_eq!((&params["progressToken"], &params["progress"]), (&token, &json!(n + 1)));
            assert_eq!(params["_meta"], related);
        }
        in_time(exchange.answer(&asked_of(&event), Answer::Result(Payload::empty_object()))).await.unwrap();
        pass().await;
        let sent = server.world.all(is_progress).len();
        for _ in 0..10 {
            pass().await;
        }
        assert_eq!(server.world.all(is_progress).len(), sent, "{token}: none after the answer");
    }
}

#[tokio::test]
async fn a_question_that_is_taken_back_is_not_answered() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        events.message(&question(7));
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}));
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}}));
        events.message(&question(7));
        events.result(seen, &json!({}));
        reply
    })
    .await;
    let mut exchange = begin(&upstream(&server.url())).await;
    let event = next(&mut exchange).await;
    assert_eq!(line(&next(&mut exchange).await), "withdrawn 7");
    in_time(exchange.answer(&asked_of(&event), Answer::Result(Payload::empty_object()))).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["returned {}"], "the repetition is not asked again");
    assert!(server.world.all(is_response).is_empty());
}

#[tokio::test]
async fn the_transport_answers_pings_unknown_methods_and_floods_itself() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        events.message(&json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}));
        events.message(&json!({"jsonrpc": "2.0", "id": "u", "method": "tasks/get", "params": {}}));
        for n in 0..33 {
            events.message(&question(n));
        }
        events.result(seen, &json!({}));
        reply
    })
    .await;
    let upstream = upstream(&server.url());
    let all = lines(&mut begin(&upstream).await).await;
    assert_eq!(all.iter().filter(|line| line.starts_with("asked")).count(), 32, "U29");
    for (id, expected) in [
        (json!("p"), json!({"result": {}})),
        (json!("u"), json!({"error": {"code": -32601, "message": "method not found"}})),
        (
            json!(32),
            json!({"error": {"code": -32603, "message": "too many questions: one call may have 32 open, and ask 1,000 in all"}}),
        ),
    ] {
        let mut seen = server.world.first(|seen| is_response(seen) && seen.body["id"] == id).await;
        seen.body.as_object_mut().unwrap().retain(|key, _| key == "result" || key == "error");
        assert_eq!(seen.body, expected, "U30, U29: {id}");
    }
}

#[tokio::test]
async fn a_cancel_does_not_overtake_its_call() {
    let server = ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if seen.is_call() {
            // The head is held back until another request has come.
            world.first(|seen| seen.rpc() == "tools/list").await;
            return Some(BodySender::silent());
        }
        None
    })
    .await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    let release = async {
        let list = UpstreamRequest { method: Arc::from("tools/list"), params: None };
        drop(try_begin(&upstream, list, context()).await);
    };
    in_time(async { tokio::join!(exchange.cancel("not wanted"), release) }).await;
    let cancel = server.world.first(is_cancel).await;
    let call = server.world.first(SeenRequest::is_call).await;
    assert_eq!(cancel.body["params"], json!({"requestId": call.id(), "reason": "not wanted"}));
    assert!(cancel.body.get("id").is_none());
    let order = server.world.all(|seen| is_cancel(seen) || seen.rpc() == "tools/list");
    assert!(is_cancel(&order[1]), "the cancel waited for the head of the answer");
    assert_eq!(line(&next(&mut exchange).await), "lost UpstreamClosed Unknown");
}

#[tokio::test]
async fn a_call_that_is_silent_is_cancelled_within_a_bound() {
    let server = ScriptedServer::holding_calls().await;
    let upstream = upstream(&server.url());
    let mut exchange = begin(&upstream).await;
    in_time(exchange.cancel("late")).await;
    assert_eq!(server.world.all(is_cancel).len(), 1);
}

#[tokio::test]
async fn a_call_that_ended_is_not_cancelled() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let mut exchange = begin(&upstream(&server.url())).await;
    in_time(exchange.cancel("late")).await;
    assert_eq!(lines(&mut exchange).await, ["returned {}"], "the answer was there first");
    assert!(server.world.all(is_cancel).is_empty());
}

#[tokio::test]
async fn twenty_calls_whose_answers_cross_are_never_mixed() {
    let server = ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if !seen.is_call() {
            return None;
        }
        // All are there before the first answer, and the last to come is answered first.
        let n = seen.body["params"]["arguments"]["n"].as_u64().unwrap();
        world.nth(19, SeenRequest::is_call).await;
        tokio::time::sleep(Duration::from_millis(2 * (20 - n))).await;
        if n.is_multiple_of(2) {
            return Some(answer(&seen, &json!({"n": n})));
        }
        let (events, reply) = BodySender::open();
        events.message(&progress(&seen, u32::try_from(n).unwrap()));
        events.result(&seen, &json!({"n": n}));
        Some(reply)
    })
    .await;
    let upstream = upstream(&server.url());
    let calls = (0..20).map(|n| {
        let upstream = &upstream;
        async move {
            let mut exchange = try_begin(upstream, call(&json!({"n": n})), context()).await.unwrap();
            (n, lines(&mut exchange).await)
        }
    });
    for (n, lines) in futures_util::future::join_all(calls).await {
        let mut expected = vec![format!("returned {{\"n\":{n}}}")];
        if n % 2 == 1 {
            expected.insert(0, format!("progress {n} of 2 on it"));
        }
        assert_eq!(lines, expected, "SEC-03");
    }
    assert_eq!(server.world.all(|seen| seen.rpc() == "initialize").len(), 1);
}

#[tokio::test]
async fn a_batch_answers_a_call_of_2025_03_26_alone() {
    let server = ScriptedServer::slow(|seen, _| async move {
        match seen.rpc() {
            "initialize" => Some(answer(&seen, &json!({"protocolVersion": "2025-03-26", "capabilities": {}}))),
            "tools/call" => {
                let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {}});
                Some(json_text(json!([progress(&seen, 1), answer]).to_string()))
            }
            _ => None,
        }
    })
    .await;
    let upstream = upstream(&server.url());
    assert_eq!(lines(&mut begin(&upstream).await).await, ["progress 1 of 2 on it", "returned {}"]);
    let seen = server.world.first(SeenRequest::is_call).await;
    assert_eq!(seen.header("mcp-protocol-version"), None, "the header exists from 2025-06-18 on");
}
