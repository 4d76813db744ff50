//! One gateway's machine has another time.

use std::time::{Duration, UNIX_EPOCH};

use humantime::parse_rfc3339;
use serde_json::Value;
use support::clock_shift::ClockShift;
use support::postgres;

use super::harness::{PLAIN, RESUMABLE, Site, Terms, true_time, until};

/// Ahead by as much.
const SHIFT: Duration = Duration::from_secs(300);

fn time(task: &Value, key: &str) -> Duration {
    parse_rfc3339(task[key].as_str().unwrap()).unwrap().duration_since(UNIX_EPOCH).unwrap()
}

/// F83: whichever gateway's clock is ahead, a task has one time at all of them, and ends neither early nor late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_a_gateway_whose_clock_is_ahead_ends_no_task_early() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(1, "ahead", server, Terms::default()).await;
    let mut ahead = site.replica("b").await;
    let clock = ClockShift::build(ahead.keeper.folder());
    clock.set(i64::try_from(SHIFT.as_secs()).unwrap());
    assert!(ahead.keeper.start(&clock.environment()).await.is_some(), "{}", ahead.keeper.said());
    site.replicas.push(ahead);
    let tables = site.tables;
    let times = || tables.sql("SELECT max(now_ms) - min(now_ms) FROM tg_replica").parse::<i64>().unwrap();
    assert!(times() < 60_000, "each says the same of the time");
    // The ttl is an hour, and what a call may take five minutes: it would be over at once.
    site.hold_calls_at(0, 2).await;
    site.hold_calls_at(1, 2).await;
    for (nonce, task) in site.handles() {
        let path = if nonce.starts_with("up") { RESUMABLE } else { PLAIN };
        let mut seen = Vec::new();
        for replica in &site.replicas {
            let shown = replica.shows(path, &task).await;
            assert_eq!(shown["status"], "working", "{shown}");
            seen.push((time(&shown, "createdAt"), shown["ttlMs"].clone()));
        }
        assert_eq!(seen[0], seen[1], "the same at each");
        assert!(seen[0].0 < true_time() + SHIFT / 2, "by the clock of the first one: {seen:?}");
    }
    // The one that is ahead takes over what the other one had.
    site.show_only(&[1]);
    site.replicas[0].kill().await;
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 3, "all but the one that cannot be taken up");
    assert_eq!(site.judge().await, 4);
}
