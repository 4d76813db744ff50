//! Gateways whose machines have other times.

use std::time::{Duration, UNIX_EPOCH};

use humantime::parse_rfc3339;
use serde_json::Value;
use support::clock_shift::ClockShift;
use support::postgres;

use super::harness::{PLAIN, RESUMABLE, Settings, Site, WITH_POSITION, true_time, until};

/// Ahead, or behind, by as much.
const SHIFT: Duration = Duration::from_secs(300);

fn time(task: &Value, key: &str) -> Duration {
    parse_rfc3339(task[key].as_str().unwrap()).unwrap().duration_since(UNIX_EPOCH).unwrap()
}

/// F83: if the clocks of gateways differ, all of them show the same times of a task, and it ends neither early nor late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_gateways_whose_clocks_are_ahead_and_behind_end_no_task_early_or_late() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(1, "clocks", server, Settings::default()).await;
    let seconds = i64::try_from(SHIFT.as_secs()).unwrap();
    for (name, seconds) in [("b", seconds), ("c", -seconds)] {
        let mut other = site.replica(name).await;
        let clock = ClockShift::build(other.keeper.folder());
        clock.set(seconds);
        assert!(other.keeper.start(&clock.environment()).await.is_some(), "{}", other.keeper.log_text());
        site.replicas.push(other);
    }
    let tables = site.tables;
    let times = || tables.sql("SELECT max(now_ms) - min(now_ms) FROM tg_replica").parse::<i64>().unwrap();
    assert!(times() < 60_000, "each says the same of the time");
    // The ttl is an hour, and a call's deadline is five minutes: by a clock ahead it would end at once, by one behind never.
    for at in 0..3 {
        site.hold_calls_at(at, 2).await;
    }
    for (nonce, task) in site.handles() {
        let path = if nonce.starts_with("up") { RESUMABLE } else { PLAIN };
        let mut seen = Vec::new();
        for replica in &site.replicas {
            let shown = replica.task_state(path, &task).await;
            assert_eq!(shown["status"], "working", "{shown}");
            seen.push((time(&shown, "createdAt"), shown["ttlMs"].clone()));
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "the same at each: {seen:?}");
        assert!(seen[0].0.abs_diff(true_time()) < SHIFT / 2, "by the clock of the first one: {seen:?}");
    }
    until("positions are stored", async || tables.count(WITH_POSITION) == 6).await;
    // The gateways with wrong clocks take over the tasks of the other one.
    site.show_only(&[1, 2]);
    site.replicas[0].kill().await;
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 5, "all but the one that cannot be taken up");
    assert_eq!(site.judge().await, 6);
}
