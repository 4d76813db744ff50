//! A course of faults in random order over three gateways under load: killed, stopped, cut off, drained, without a database.
//!
//! `REPLICA_FAULTS` is how many befall them (3), `KILL_SEED` repeats their order.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use support::history::{Fact, History};
use support::postgres::{PostgresServer, ServerStop};
use support::wire_client::Flavour;
use tokio::time::sleep;

use super::harness::{PATIENCE, PLAIN, RESUMABLE, Replica, Settings, Site, answered, client, is_in_time, until};
use super::killed::mixed;
use crate::kill_cycles::dice::{Dice, seed};

/// Faults of one course: its history is in memory until it is judged.
const FAULTS_PER_COURSE: u64 = 15;
/// Clients that make one call after the other.
const CLIENTS: usize = 10;

/// The targets of faults.
struct FaultTargets<'a> {
    replicas: &'a mut [Replica],
    history: &'a History,
    server: &'a PostgresServer,
}

impl FaultTargets<'_> {
    /// Injects a fault, and ends it; returns its name.
    async fn inject(&mut self, dice: &mut Dice) -> String {
        let at = usize::try_from(dice.between(0, self.replicas.len() as u64 - 1)).unwrap();
        let span = Duration::from_millis(dice.between(300, 8_000));
        let replica = &mut self.replicas[at];
        let what = match dice.between(0, 6) {
            0 | 1 => {
                replica.kill().await;
                sleep(span).await;
                replica.start().await;
                "killed"
            }
            2 => {
                replica.keeper.signal(Signal::TERM);
                replica.keeper.leaves().await.unwrap();
                replica.start().await;
                "drained"
            }
            3 => {
                self.history.record(Fact::Ends);
                replica.keeper.show(false);
                replica.keeper.signal(Signal::STOP);
                sleep(span).await;
                replica.keeper.signal(Signal::CONT);
                self.history.record(Fact::Starts);
                replica.keeper.show(true);
                "stopped"
            }
            4 | 5 => {
                // Its process may lose the store at an unknown moment.
                for fact in [Fact::Ends, Fact::StoreFails] {
                    self.history.record(fact);
                }
                replica.cut_off();
                sleep(span).await;
                replica.heal();
                until("it is ready again", async || replica.is_ready().await).await;
                for fact in [Fact::StoreHeals, Fact::Starts] {
                    self.history.record(fact);
                }
                "cut off"
            }
            _ => {
                self.history.record(Fact::StoreFails);
                tokio::task::block_in_place(|| self.server.stop(ServerStop::Immediate));
                sleep(span).await;
                tokio::task::block_in_place(|| self.server.restart());
                for replica in &*self.replicas {
                    until("it is ready again", async || replica.is_ready().await).await;
                }
                self.history.record(Fact::StoreHeals);
                "without a database"
            }
        };
        format!("{} {what} for {span:?}", self.replicas[at].name)
    }
}

/// Waits until all tasks are settled. Tasks with a handle that was lost on its way to a client are cancelled before, as no client
/// answers their questions; returns their number.
async fn settle(site: &Site<'_>) -> usize {
    let known: BTreeSet<_> = site.handles().into_iter().map(|(_, task)| task).collect();
    let unsettled = "FROM tg_task WHERE NOT settled";
    let open = site.tables.sql(&format!("SELECT encode(id, 'hex') {unsettled}"));
    let lost: Vec<_> = open.lines().filter(|id| !known.contains(*id)).collect();
    for id in &lost {
        for path in [RESUMABLE, PLAIN] {
            let asking = client(Flavour::Extension, path);
            answered(&asking, site.replicas[0].keeper.address(), "tasks/cancel", json!({"taskId": id})).await;
        }
    }
    if !is_in_time(async || site.tables.are_all_settled()).await {
        let rows = site.tables.sql(&format!("SELECT encode(id, 'hex'), holder, rev {unsettled}"));
        let logs: Vec<_> = site.replicas.iter().map(|replica| replica.keeper.log().display().to_string()).collect();
        panic!("not settled in time: {rows}\nsee {}", logs.join(", "));
    }
    // A replaced gateway shows no task before it has restarted.
    for replica in site.replicas.iter().filter(|replica| replica.keeper.is_running()) {
        until("it is ready", async || replica.is_ready().await).await;
    }
    lost.len()
}

/// Runs one course; returns its faults, and how many tasks settled.
async fn run(server: &PostgresServer, faults: u64, dice: &mut Dice) -> (String, usize) {
    let mut site = Site::of(3, "course", server, Settings { alone_max: "10s", ..Settings::default() }).await;
    let (is_over, next) = (AtomicBool::new(false), AtomicU64::new(0));
    let Site { crowd, replicas, history, .. } = &mut site;
    let clients = join_all((0..CLIENTS).map(|_| async {
        while !is_over.load(Ordering::Relaxed) {
            let (job, path, flavour, _) = mixed(next.fetch_add(1, Ordering::Relaxed));
            // A client that gives up leaves its question open; on a busy machine, gateways take long to start after three faults.
            crowd.run(job, client(flavour, path), 2 * PATIENCE).await;
        }
    }));
    let faults = async {
        let mut targets = FaultTargets { replicas, history, server };
        let mut names = Vec::new();
        for _ in 0..faults {
            sleep(Duration::from_millis(dice.between(500, 3_000))).await;
            names.push(targets.inject(dice).await);
        }
        is_over.store(true, Ordering::Relaxed);
        names
    };
    let (_, names) = tokio::join!(clients, faults);
    let (lost, tables) = (settle(&site).await, site.tables);
    let settled = site.judge().await;
    tables.sql("DROP SCHEMA course CASCADE");
    (format!("{}; {lost} handles were lost", names.join(", ")), settled)
}

/// L1 to L8, F71, F75 to F79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promises_hold_under_any_faults_of_gateways_and_their_database() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let faults = std::env::var("REPLICA_FAULTS");
    let mut left: u64 = faults.map_or(3, |count| count.parse().expect("REPLICA_FAULTS is a number"));
    let mut seed = seed();
    while left > 0 {
        let of_this = left.min(FAULTS_PER_COURSE);
        println!("KILL_SEED={seed}, {of_this} faults");
        let (summary, settled) = Box::pin(run(&server, of_this, &mut Dice::new(seed))).await;
        println!("{summary}: {settled} tasks settled");
        assert!(settled > CLIENTS, "too little was tried");
        (left, seed) = (left - of_this, seed + 1);
    }
}
