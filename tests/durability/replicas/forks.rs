//! A database of two servers that part: each goes on by itself, and each of two gateways reaches one of them alone.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use support::crowd::Job;
use support::fault_proxy::{Fault, Verb};
use support::history::Fact;
use support::ports::reserved_address;
use support::postgres::{Database, PostgresServer, ServerStop};
use support::wire_client::Flavour;

use super::cut_off::{open_tasks, refuses_polls};
use super::harness::{
    PLAIN, RESUMABLE, Settings, Site, WITH_POSITION, answered, client, held_job, is_refused_for_now,
    nothing_more_was_sent, until,
};
use super::writes::{call_until_task, creates_no_task};

/// Connections end with the next byte that goes up.
const CUT: Fault = Fault::up("", 0, Verb::Cut);

/// By how much the clock of the server that is promoted is ahead, in seconds: as long as tasks are kept.
const AHEAD: i64 = 3_600;

/// The first primary, and the standby that is promoted while it still runs.
#[derive(Debug)]
struct ForkedDatabase {
    servers: [PostgresServer; 2],
    /// Which of them tests ask.
    asked: AtomicUsize,
}

impl Database for ForkedDatabase {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().flat_map(Database::addresses).collect()
    }

    fn psql(&self, statements: &str) -> String {
        self.servers[self.asked.load(Ordering::Relaxed)].psql(statements)
    }
}

impl ForkedDatabase {
    fn start() -> Option<Self> {
        let old = PostgresServer::start(&["wal_level = replica", "max_wal_senders = 4"])?;
        let new = tokio::task::block_in_place(|| PostgresServer::standby_with_clock(&old, "one", AHEAD));
        Some(Self { servers: [old, new], asked: AtomicUsize::new(0) })
    }

    fn ask(&self, at: usize, statements: &str) -> String {
        tokio::task::block_in_place(|| self.servers[at].psql(statements))
    }

    /// Promotes the standby, which has all that the second gateway wrote. The first one reaches the old server alone from now on, the
    /// second one the new one.
    async fn part(&self, site: &Site<'_>, schema: &str) {
        site.replicas[0].to_database[1].retarget(reserved_address());
        site.replicas[1].to_database[0].set(Some(CUT));
        let beats = format!("SELECT max(beat) FROM {schema}.tg_replica WHERE name = 'b'");
        until("no beat is on its way", async || self.ask(0, &beats) == self.ask(1, &beats)).await;
        tokio::task::block_in_place(|| self.servers[1].promote());
        self.asked.store(1, Ordering::Relaxed);
    }

    /// The old server is gone, and the first gateway reaches the new one.
    fn heal(&self, site: &Site<'_>) {
        tokio::task::block_in_place(|| self.servers[0].stop(ServerStop::Immediate));
        site.replicas[0].to_database[1].retarget(self.servers[1].addresses()[0]);
    }
}

/// N04, F83, L1, L4: a gateway that still uses the old primary sends no handle, and shows no task once its reads are too old to be trusted;
/// another gateway goes on at the new primary, whose clock is ahead. Back there the first one finds that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n04_a_gateway_left_with_an_old_primary_acknowledges_nothing_and_shows_nothing_for_long() {
    let Some(database) = ForkedDatabase::start() else { return };
    database.servers[0].configure(&["synchronous_standby_names = 'one'"]);
    database.servers[0].reload();
    let site = Site::of(2, "old_primary", &database, Settings::default()).await;
    until("commits wait", async || database.ask(0, "SHOW synchronous_standby_names") == "one").await;
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    let (tables, [left, other]) = (site.tables, [&site.replicas[0], &site.replicas[1]]);
    until("positions are stored", async || tables.count(WITH_POSITION) == 8).await;
    let tasks = open_tasks(&site);
    site.show_only(&[1]);
    site.records_outage(true);
    database.part(&site, "old_primary").await;
    until("its reads are not trusted any more", async || {
        let answer = left.poll(RESUMABLE, &tasks[0]).await;
        let is_open = answer.json()["result"]["status"] == "working";
        assert!(answer.is_whole && (is_open || is_refused_for_now(&answer)), "{answer:?}");
        !is_open
    })
    .await;
    refuses_polls(left, &tasks).await;
    creates_no_task(&site, 0).await;
    left.is_unready("store behind").await;
    until("its tasks are taken over at the new server", async || tables.open_tasks_of("a") == 0).await;
    until("the other one is ready", async || other.is_ready().await).await;
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    refuses_polls(left, &tasks).await;
    database.heal(&site);
    left.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || left.is_ready().await).await;
    site.records_outage(false);
    nothing_more_was_sent(&site, [4, 4]);
    assert_eq!(site.completed().await, 6, "all but those that cannot be taken up");
    assert_eq!(tables.count("tg_task"), 8, "no row of an unknown commit is left");
    site.show_only(&[0, 1]);
    assert_eq!(site.judge().await, 8);
}

/// N08, L4: where commits do not wait for the standby, each side goes on with the rows that both have, and knows no new
/// row of the other. A gateway that comes back from the lost side has acknowledged lost rows, and ends with 74.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n08_both_sides_of_a_fork_serve_alone_and_a_gateway_that_returns_reports_lost_writes() {
    let Some(database) = ForkedDatabase::start() else { return };
    let mut site = Site::of(2, "forked", &database, Settings::default()).await;
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    let tables = site.tables;
    let kept = format!("SELECT count(*) FROM forked.{WITH_POSITION}");
    until("both servers have all", async || database.ask(1, &kept) == "8").await;
    let tasks = open_tasks(&site);
    site.records_outage(true);
    database.part(&site, "forked").await;
    let [left, other] = [&site.replicas[0], &site.replicas[1]];
    site.show_only(&[1]);
    site.hold_call(PLAIN).await;
    until("a task of the new server", async || tables.count("tg_task") == 9).await;
    let new_there = site.handles().pop().unwrap().1;
    let new_here = call_until_task(async |tried| {
        let Job { nonce, owner, mut arguments, calls_max, .. } = held_job(&format!("left-behind-{tried}-"));
        arguments["nonce"] = json!(nonce);
        site.history.record(Fact::Sends { nonce, owner, calls_max });
        left.ask(PLAIN, "tools/call", json!({"name": "work", "arguments": arguments})).await
    })
    .await;
    for (replica, unknown) in [(left, &new_there), (other, &new_here)] {
        let (asking, place) = (client(Flavour::Extension, PLAIN), replica.keeper.address());
        let answer = answered(&asking, place, "tasks/get", json!({"taskId": unknown})).await;
        assert!(answer.error().is_some_and(|error| error.contains("-32602")), "{answer:?}");
        for (path, task) in [RESUMABLE, PLAIN].into_iter().zip(&tasks) {
            assert!(replica.task_state(path, task).await["status"].is_string(), "either has what both had");
        }
    }
    for (at, silent) in [(0, "b"), (1, "a")] {
        let sql = format!("SELECT bool_and(dead) FROM forked.tg_replica WHERE name = '{silent}'");
        until("the other one is silent here", async || database.ask(at, &sql) == "t").await;
    }
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    database.heal(&site);
    let left = &mut site.replicas[0];
    assert_eq!(left.keeper.ends().await, Some(74), "{}", left.keeper.log_text());
    assert!(left.keeper.log_text().contains("the database lost acknowledged writes"), "{}", left.keeper.log_text());
    site.records_outage(false);
    nothing_more_was_sent(&site, [4, 6]);
    assert_eq!(site.judge().await, 9);
}
