//! Calls whose stream breaks and is resumed, in the same process or in a later one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::Method;
use serde_json::json;
use taskgate::upstream::{Answer, BeginError, ExchangeEvent, Upstream};
use taskgate::wire::Payload;
use tokio_util::task::TaskTracker;

use super::server::{BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, status};
use super::{begin, context, in_time, line, lines, next, progress, upstream};

fn is_resume(seen: &SeenRequest) -> bool {
    seen.method == Method::GET && seen.headers.contains_key("last-event-id")
}

/// Answers a call with a stream that pauses, as 2025-11-25 allows, and each resume by `rest`.
async fn pausing(
    rest: impl Fn(&SeenRequest, &SeenRequest, usize) -> ScriptedReply + Clone + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let rest = rest.clone();
        async move {
            if seen.is_call() {
                let (events, reply) = BodySender::open();
                events.raw("id: e-1\nretry: 0\ndata: \n\n");
                events.message(&progress(&seen, 1));
                return Some(reply);
            }
            let call = world.all(SeenRequest::is_call);
            (is_resume(&seen)).then(|| rest(&seen, &call[0], world.all(is_resume).len()))
        }
    })
    .await
}

#[tokio::test]
async fn a_stream_that_pauses_is_taken_up_after_its_last_event() {
    let server = pausing(|_, call, n| {
        let (events, reply) = BodySender::open();
        match n {
            1 => {
                events.numbered("e-2", &progress(call, 2));
                events.numbered("e-2", &json!({"jsonrpc": "2.0", "id": "tg:other", "result": {}}));
            }
            2 => return status(503),
            _ => events.result(call, &json!({"ok": true})),
        }
        reply
    })
    .await;
    let upstream = upstream(&server.url());
    let expected = ["progress 1 of 2 on it", "progress 2 of 2 on it", "returned {\"ok\":true}"];
    assert_eq!(lines(&mut begin(&upstream).await).await, expected, "T-29, U23");
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 1, "a held call is never sent again");
    let after: Vec<_> =
        server.world.all(is_resume).iter().map(|seen| seen.header("last-event-id").unwrap().to_owned()).collect();
    assert_eq!(after, ["e-1", "e-2", "e-2"], "T-29");
}

#[tokio::test]
async fn a_call_is_taken_up_by_another_process_life() {
    let server = pausing(|_, call, n| {
        if n == 1 {
            return status(503);
        }
        let (events, reply) = BodySender::open();
        events.result(call, &json!({"ok": true}));
        reply
    })
    .await;
    let token = {
        let first = upstream(&server.url());
        let mut exchange = begin(&first).await;
        assert!(exchange.resume_token().is_none(), "nothing to resume after yet");
        assert_eq!(line(&next(&mut exchange).await), "progress 1 of 2 on it");
        exchange.resume_token().unwrap()
    };
    let second = upstream(&server.url());
    let mut exchange = in_time(second.resume(token, context())).await.unwrap();
    assert!(exchange.resume_token().is_some(), "it can be taken up once more");
    assert_eq!(lines(&mut exchange).await, ["returned {\"ok\":true}"]);
    let resume = server.world.first(is_resume).await;
    assert_eq!(resume.header("mcp-session-id"), Some("s-1"));
    assert_eq!(resume.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(server.world.all(|seen| seen.rpc() == "initialize").len(), 1);
}

/// A step and a question come at once. The owner of the call receives the step, and the process ends: the next process
/// receives the question, as the server will not ask it again.
#[tokio::test]
async fn a_call_is_resumed_before_the_first_event_that_its_owner_did_not_receive() {
    let server = ScriptedServer::slow(|seen, _| async move {
        let (events, reply) = BodySender::open();
        let step = |step| {
            let params = json!({"progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": step});
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        };
        let question = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}});
        let (second, question) = (format!("id: e-2\ndata: {}\n\n", step(2)), format!("id: e-3\ndata: {question}\n\n"));
        match seen.header("last-event-id") {
            None if seen.is_call() => {
                events.numbered("e-1", &step(1));
                TaskTracker::new().spawn(async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    events.raw(second + &question);
                    events.abandoned().await;
                });
                return Some(reply);
            }
            None => return None,
            Some("e-1") => events.raw(second + &question),
            Some("e-2") => events.raw(question),
            Some(_) => events.raw(":\n\n"),
        }
        // Open for as long as the gateway reads.
        TaskTracker::new().spawn(async move { events.abandoned().await });
        Some(reply)
    })
    .await;
    let first = upstream(&server.url());
    let mut exchange = begin(&first).await;
    for _ in 0..2 {
        assert!(matches!(next(&mut exchange).await, ExchangeEvent::Progress { .. }));
    }
    let token = exchange.resume_token().unwrap();
    drop(exchange);
    let second = upstream(&server.url());
    let mut exchange = in_time(second.resume(token, context())).await.unwrap();
    let mut event = next(&mut exchange).await;
    while matches!(event, ExchangeEvent::Progress { .. }) {
        event = next(&mut exchange).await;
    }
    assert!(matches!(event, ExchangeEvent::Asked { .. }), "{event:?}");
    let token = exchange.resume_token().unwrap();
    drop(exchange);
    assert_eq!(server.world.nth(0, is_resume).await.header("last-event-id"), Some("e-2"));
    // The received events are before the token's offset, and the question may be answered.
    let third = upstream(&server.url());
    let mut exchange = in_time(third.resume(token, context())).await.unwrap();
    let answer = Answer::Result(Payload::of(&json!({"action": "decline"})));
    exchange.answer(&Payload::of(&json!("q")), answer).await.unwrap();
    server.world.first(|seen| seen.body["id"] == "q" && seen.body["result"]["action"] == "decline").await;
}

/// The server's events of a call, each with its number: dozens in one read.
fn numbered(question: usize, messages: usize) -> Vec<String> {
    let message = |n| match n == question {
        true => json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}}),
        false => json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": n}}),
    };
    (1..=messages).map(|n| format!("id: {n}\ndata: {}\n\n", message(n))).collect()
}

/// More events come at once than a call's queue has room for. If its owner stops at any of them, the next process
/// receives the question behind the last received one.
#[tokio::test]
async fn a_call_is_resumed_before_the_first_event_that_its_queue_had_no_room_for() {
    const QUESTION: usize = 65;
    const MESSAGES: usize = 70;
    for looks_once_more in [false, true] {
        let server = ScriptedServer::slow(move |seen, _| async move {
            let (events, reply) = BodySender::open();
            let heard = match seen.header("last-event-id") {
                None if seen.is_call() => 0,
                None => return None,
                Some(heard) => heard.parse().unwrap(),
            };
            let all = numbered(QUESTION, MESSAGES);
            TaskTracker::new().spawn(async move {
                events.raw(all[heard..].concat());
                events.abandoned().await;
            });
            Some(reply)
        })
        .await;
        let first = upstream(&server.url());
        let mut exchange = begin(&first).await;
        for _ in 1..QUESTION {
            assert!(matches!(next(&mut exchange).await, ExchangeEvent::Notification(_)));
        }
        if looks_once_more && let Some(early) = exchange.next().now_or_never() {
            // It came in two parts, and the question is complete.
            assert!(matches!(early, ExchangeEvent::Asked { .. }), "{}", line(&early));
            continue;
        }
        let token = exchange.resume_token().unwrap();
        let place = format!("\"last_event\":\"{}\"", QUESTION - 1);
        assert!(token.0.as_str().contains(&place), "behind all that was heard, however much waits: {token:?}");
        drop(exchange);
        let second = upstream(&server.url());
        let mut exchange = in_time(second.resume(token, context())).await.unwrap();
        let mut event = next(&mut exchange).await;
        let last = format!("log {{\"data\":{MESSAGES}}}");
        while matches!(event, ExchangeEvent::Notification(_)) && line(&event) != last {
            event = next(&mut exchange).await;
        }
        assert!(matches!(event, ExchangeEvent::Asked { .. }), "{looks_once_more}: {}", line(&event));
    }
}

/// The server cancels a question, and the process ends before its owner reads that.
#[tokio::test]
async fn a_question_that_was_taken_back_unheard_is_withdrawn_in_the_next_life() {
    let server = ScriptedServer::slow(|seen, _| async move {
        let (events, reply) = BodySender::open();
        let is_first = seen.is_call();
        if !is_first && !is_resume(&seen) {
            return None;
        }
        let mut all = numbered(1, 2);
        let withdrawn = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q"}});
        all.push(format!("id: 3\ndata: {withdrawn}\n\n"));
        let heard: usize = seen.header("last-event-id").map_or(0, |heard| heard.parse().unwrap());
        TaskTracker::new().spawn(async move {
            let mut rest = all.split_off(heard);
            if is_first {
                events.raw(rest.remove(0));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            events.raw(rest.concat());
            events.abandoned().await;
        });
        Some(reply)
    })
    .await;
    let first = upstream(&server.url());
    let mut exchange = begin(&first).await;
    assert!(matches!(next(&mut exchange).await, ExchangeEvent::Asked { .. }));
    assert!(matches!(next(&mut exchange).await, ExchangeEvent::Notification(_)));
    let token = exchange.resume_token().unwrap();
    drop(exchange);
    let second = upstream(&server.url());
    let mut exchange = in_time(second.resume(token, context())).await.unwrap();
    assert_eq!(line(&next(&mut exchange).await), "withdrawn \"q\"");
}

#[tokio::test]
async fn a_foreign_resume_token_is_refused() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let token = taskgate::upstream::ResumeToken(Payload::empty_object());
    let refused = in_time(upstream(&server.url()).resume(token, context())).await;
    assert!(matches!(refused, Err(BeginError::Gateway(_))));
}
