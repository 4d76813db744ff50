//! Writes with an unknown commit: no client gets a handle, and no call is sent.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use support::crowd::Job;
use support::fault_proxy::{Fault, Verb};
use support::postgres::{self, PostgresServer, ServerStop};
use support::wire_client::{Answer, Flavour};
use tokio::time::timeout;

use super::failover::NewCall;
use super::harness::{
    PATIENCE, PLAIN, RESUMABLE, Settings, Site, client, held_job, is_in_time, job, nothing_more_was_sent, until,
};

/// Makes a call at a gateway; how it was answered.
pub(super) async fn call(site: &Site<'_>, at: usize, job: &Job) -> NewCall {
    let (place, wire) = (site.replicas[at].keeper.address(), client(Flavour::Extension, PLAIN));
    NewCall::of(&site.crowd.create_task_at(place, job, wire).await)
}

/// Makes calls until one becomes a task, and returns its id: a busy machine's database may not take it in time. `call` makes one that
/// differs from those of the tries before.
pub(super) async fn call_until_task(mut call: impl AsyncFnMut(usize) -> Answer) -> String {
    let (mut tried, mut answer, mut id) = (0, Answer::default(), None);
    let is_handed = is_in_time(async || {
        answer = call(tried).await;
        tried += 1;
        let result = &answer.json()["result"];
        id = [&result["task"]["taskId"], &result["taskId"]].into_iter().find_map(Value::as_str).map(str::to_owned);
        id.is_some()
    })
    .await;
    assert!(is_handed, "no call becomes a task: {answer:?}");
    id.unwrap()
}

/// The same with a call that must not be sent, and gets no handle.
async fn unwanted(site: &Site<'_>, at: usize, nonce: &str) -> NewCall {
    let answer = call(site, at, &Job { calls_max: 0, ..job(nonce, 20) }).await;
    assert_ne!(answer, NewCall::Handed, "a handle of what may not be there");
    answer
}

/// Makes calls until one is refused unsent. Calls that were in progress have an unknown commit, and are not sent either.
pub(super) async fn creates_no_task(site: &Site<'_>, at: usize) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let refused = async {
        let next = || format!("unwanted-{}-", NEXT.fetch_add(1, Ordering::Relaxed));
        while unwanted(site, at, &next()).await != NewCall::Refused {}
    };
    timeout(PATIENCE, refused).await.expect("calls are refused for now");
}

/// Each gateway is ready again by itself, and none was replaced; held outcomes are stored, and no row of an unknown commit is left.
pub(super) async fn recovers(site: &Site<'_>) {
    until("outcomes are stored", async || site.tables.are_all_settled()).await;
    until("rows in doubt are gone", async || site.tables.count("tg_task") == site.handles().len()).await;
    for replica in &site.replicas {
        until("it is ready again", async || replica.is_ready().await).await;
        assert_eq!(site.tables.incarnations_of(replica.name).len(), 1, "it was not replaced");
    }
    site.records_outage(false);
}

/// F72, L1: rows cannot be written for longer than `write_max`. Rows of refused calls are removed, though the server commits them later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_a_call_whose_row_takes_too_long_has_no_handle_and_leaves_no_row() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "slow", server, Settings::default()).await;
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    let locked = site.tables.session("BEGIN; LOCK TABLE tg_task IN EXCLUSIVE MODE").await;
    for (at, replica) in site.replicas.iter().enumerate() {
        creates_no_task(&site, at).await;
        replica.is_unready("store behind").await;
    }
    // Stored tasks are still shown.
    for (nonce, task) in site.handles() {
        let path = if nonce.starts_with("up") { RESUMABLE } else { PLAIN };
        assert_eq!(site.replicas[0].task_state(path, &task).await["status"], "working");
    }
    site.release_calls();
    drop(locked);
    recovers(&site).await;
    nothing_more_was_sent(&site, [4, 4]);
    assert_eq!(site.completed().await, 8, "no running call is lost");
    assert_eq!(site.judge().await, 8);
}

/// F73, L1, L2: the database carries out a write, and its answer is lost: the connection stalls, or ends. A call whose
/// handle was not sent is not begun, and an outcome is stored once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f73_a_write_without_an_answer_is_resolved_before_anything_depends_on_it() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "answer_lost", server, Settings::default()).await;
    let (asked, way) = (&site.replicas[0], &site.replicas[0].to_database[0]);
    site.show_only(&[0, 1]);
    for (round, (verb, held)) in [(Verb::Stall, "held-stall-"), (Verb::Reset, "held-reset-")].into_iter().enumerate() {
        site.hold_calls();
        let place = asked.keeper.address();
        call_until_task(async |tried| {
            let job = held_job(&format!("{held}{tried}-"));
            site.crowd.create_task_at(place, &job, client(Flavour::Extension, RESUMABLE)).await
        })
        .await;
        timeout(PATIENCE, site.resumable.state.reached("called", round + 1)).await.expect("it arrives");
        // Nothing is written of it any more before it is answered.
        let last_event = "tg_task WHERE NOT settled AND position('step 2'::bytea IN record) > 0 AND position('x:2\"'::bytea IN record) > 0";
        until("its position is stored", async || site.tables.count(last_event) == 1).await;
        let struck = way.struck();
        site.records_outage(true);
        // On the connection that writes the row, which names its server.
        way.set_times(Fault::down("plain", 0, verb), 1);
        let mut tried = 0;
        until("a row is on its way", async || {
            tried += 1;
            unwanted(&site, 0, &format!("new-{round}-{tried}-")).await;
            way.struck() > struck
        })
        .await;
        assert_eq!(way.struck(), struck + 1);
        until("the row in doubt is gone", async || site.tables.count("tg_task") == site.handles().len()).await;
        // The write of the outcome contains this text.
        way.set_times(Fault::down(held, 0, verb), 1);
        site.release_calls();
        recovers(&site).await;
        assert_eq!(way.struck(), struck + 2, "{verb:?}");
        way.set(None);
    }
    nothing_more_was_sent(&site, [2, 0]);
    assert_eq!(site.resumable.state.count("resumed"), 0, "each call still has its first runner");
    assert_eq!(site.completed().await, 2);
    assert_eq!(site.judge().await, 2);
}

/// A server whose commits wait for the other one.
struct ReplicatedServer {
    primary: PostgresServer,
    standby: PostgresServer,
}

impl ReplicatedServer {
    async fn start() -> Option<Self> {
        let primary = PostgresServer::start(&["wal_level = replica", "max_wal_senders = 4"])?;
        let standby = tokio::task::block_in_place(|| PostgresServer::standby_of(&primary, "one"));
        let pair = Self { primary, standby };
        pair.name_standbys("one").await;
        Some(pair)
    }

    async fn name_standbys(&self, names: &str) {
        self.primary.configure(&[&format!("synchronous_standby_names = '{names}'")]);
        self.primary.reload();
        let shown = || tokio::task::block_in_place(|| self.primary.psql("SHOW synchronous_standby_names"));
        until("commits wait for these", async || shown() == names).await;
        // Commits follow a flag of the checkpointer, which reads the configuration before it obeys.
        tokio::task::block_in_place(|| self.primary.psql("CHECKPOINT"));
    }

    /// Has a person do something to a commit of a gateway that waits for its standby.
    async fn strike(&self, what: &str, name: &str) {
        let sql = format!(
            "SELECT count({what}(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'taskgate {name} % writer'"
        );
        until("a commit that waits", async || tokio::task::block_in_place(|| self.primary.psql(&sql)) != "0").await;
    }
}

/// N01: commits wait for the lost standby, so no client gets a handle; when it is back, all gateways recover by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n01_without_its_standby_nothing_is_acknowledged_and_with_it_again_all_goes_on() {
    let Some(pair) = ReplicatedServer::start().await else { return };
    let settings = Settings { durability: "replicated", ..Settings::default() };
    let site = Site::of(2, "without_standby", &pair.primary, settings).await;
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    tokio::task::block_in_place(|| pair.standby.stop(ServerStop::Fast));
    for (at, replica) in site.replicas.iter().enumerate() {
        creates_no_task(&site, at).await;
        until("it is not ready", async || replica.admin_get("/readyz").await.status == Some(503)).await;
    }
    site.release_calls();
    tokio::task::block_in_place(|| pair.standby.restart());
    recovers(&site).await;
    site.hold_calls_at(0, 2).await;
    site.show_only(&[0, 1]);
    until("new calls end, too", async || site.tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 10, "no running call is lost");
    assert_eq!(site.judge().await, 10);
}

/// N02, N03, L1: the names of standbys are emptied; a person cancels a commit that waits, or ends its connection. The
/// server reports the commit, or shows its row to other sessions, and no gateway takes that for an acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n02_n03_commits_that_the_standby_lacks_are_never_acknowledged() {
    let Some(pair) = ReplicatedServer::start().await else { return };
    let settings = Settings { durability: "replicated", ..Settings::default() };
    let site = Site::of(2, "unvouched", &pair.primary, settings).await;
    for (round, (names, what)) in
        [("", None), ("nobody", Some("pg_cancel_backend")), ("nobody", Some("pg_terminate_backend"))]
            .into_iter()
            .enumerate()
    {
        site.hold_calls();
        site.hold_calls_at(0, 2).await;
        site.hold_calls_at(1, 2).await;
        site.show_only(&[0, 1]);
        site.records_outage(true);
        pair.name_standbys(names).await;
        for (at, replica) in site.replicas.iter().enumerate() {
            if let Some(what) = what {
                let nonce = format!("struck-{round}-{at}-");
                tokio::join!(unwanted(&site, at, &nonce), pair.strike(what, replica.name));
            }
            creates_no_task(&site, at).await;
            replica.is_unready(if names.is_empty() { "store without standby" } else { "store behind" }).await;
        }
        site.release_calls();
        pair.name_standbys("one").await;
        recovers(&site).await;
    }
    nothing_more_was_sent(&site, [6, 6]);
    assert_eq!(site.completed().await, 12, "no running call is lost");
    assert_eq!(site.judge().await, 12);
}
