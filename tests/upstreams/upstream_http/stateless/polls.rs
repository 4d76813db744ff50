//! Checks that polls of tasks which a server of 2026-07-28 answers late or never delay no other principal, task or cancel.

use std::future::pending;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use taskgate::task::Principal;
use taskgate::upstream::{CallContext, EraUpstream, Exchange, Upstream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::server::{ScriptedServer, SeenRequest, answer as result};
use super::super::{call, context, in_time, lines};
use super::{handle, task, upstream};

const POLLS_AT_ONCE: usize = 64;

async fn begin(upstream: &EraUpstream, who: &Principal) -> Box<dyn Exchange> {
    let context = CallContext { principal: who.clone(), ..context() };
    in_time(upstream.begin(call(&json!({"n": 1})), context)).await.unwrap()
}

/// Makes as many calls as polls may run at the server. Returns once the server has received `polls` of them.
async fn poll_many(
    server: &ScriptedServer,
    upstream: &EraUpstream,
    who: &Principal,
    polls: usize,
) -> Vec<Box<dyn Exchange>> {
    let mut exchanges = Vec::new();
    for _ in 0..POLLS_AT_ONCE {
        exchanges.push(begin(upstream, who).await);
    }
    let polling = join_all(exchanges.iter_mut().map(|exchange| exchange.next()));
    tokio::select! {
        _ = polling => panic!("no poll is answered"),
        () = async {
            server.world.nth(polls - 1, is_poll).await;
            sleep(Duration::from_millis(300)).await;
        } => (),
    }
    exchanges
}

fn is_poll(seen: &SeenRequest) -> bool {
    seen.rpc() == "tasks/get"
}

/// UPC-06: a server that answers no poll is sent a cancel nevertheless, while polls of further tasks wait.
#[tokio::test]
async fn upc06_a_cancel_goes_ahead_of_the_polls_of_other_tasks() {
    let server = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        match seen.rpc() {
            "tools/call" => Some(result(&seen, &handle().1)),
            "tasks/get" => pending().await,
            _ => Some(result(&seen, &json!({"resultType": "complete"}))),
        }
    })
    .await;
    let (upstream, local) = (upstream(&server), Principal::local());
    let _polled = poll_many(&server, &upstream, &local, POLLS_AT_ONCE).await;
    let mut exchange = begin(&upstream, &local).await;
    in_time(async {
        while exchange.resume_token().is_none() {
            let event = timeout(Duration::from_millis(20), exchange.next()).await;
            assert!(event.is_err(), "{event:?}");
        }
    })
    .await;
    in_time(exchange.cancel("enough")).await;
    server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(server.world.count("tasks/get"), POLLS_AT_ONCE);
}

/// A server that answers no poll of one principal's tasks is polled for another's.
#[tokio::test]
async fn sec_92_polls_of_one_principals_tasks_keep_no_others_waiting() {
    let server = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        match seen.rpc() {
            "tasks/get" => pending().await,
            _ => Some(result(&seen, &handle().1)),
        }
    })
    .await;
    let upstream = upstream(&server);
    let share = POLLS_AT_ONCE / 4 * 3;
    let _polled = poll_many(&server, &upstream, &Principal::new("key:ada"), share).await;
    let mut others = begin(&upstream, &Principal::new("key:bob")).await;
    tokio::select! {
        event = others.next() => panic!("no poll is answered: {event:?}"),
        _ = server.world.nth(share, is_poll) => (),
        () = sleep(Duration::from_secs(20)) => panic!("it waits for the polls of ada"),
    }
    assert_eq!(server.world.count("tasks/get"), share + 1, "ada has her share alone");
}

/// U50: a poll ends even if its client does not read, so its call keeps no permit.
#[tokio::test]
async fn u50_polls_of_calls_that_are_not_read_keep_no_other_task_waiting() {
    let gate = CancellationToken::new();
    let opened = gate.clone();
    let server = ScriptedServer::slow(move |seen: SeenRequest, _| {
        let opened = opened.clone();
        async move {
            if seen.rpc() != "tasks/get" {
                return Some(result(&seen, &handle().1));
            }
            opened.cancelled().await;
            Some(result(&seen, &task("completed", &json!({"result": {"content": []}}))))
        }
    })
    .await;
    let (upstream, local) = (upstream(&server), Principal::local());
    let mut exchanges = poll_many(&server, &upstream, &local, POLLS_AT_ONCE).await;
    gate.cancel();
    let mut read = begin(&upstream, &local).await;
    assert_eq!(lines(&mut read).await, [r#"returned {"content":[]}"#]);
    for exchange in &mut exchanges {
        assert_eq!(lines(exchange).await, [r#"returned {"content":[]}"#], "its poll has ended");
    }
    assert_eq!(server.world.count("tasks/get"), POLLS_AT_ONCE + 1);
}
