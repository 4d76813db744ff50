//! The database itself is away, at the start or later, or one of its standbys is.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::json;
use support::ports::reserved_address;
use support::postgres::{self, PostgresServer, ServerStop};
use support::wire_client::Flavour;
use tokio::time::timeout;

use super::harness::{PATIENCE, PLAIN, Replica, Site, Terms, client, get, held_job, is_refused_for_now, until};

/// A gateway that has been started and does not serve yet; where it listens for clients and for operators.
async fn started_without_database(site: &Site<'_>, name: &'static str) -> (Replica, [SocketAddr; 2]) {
    let mut replica = site.replica(name).await;
    let listens = [reserved_address(), reserved_address()];
    replica.keeper.configure_at(listens, site.upstreams());
    replica.to_database[0].retarget(reserved_address());
    replica.keeper.launch(&[]);
    until("it says why it is not ready", async || {
        let answer = get(listens[1], "/readyz").await;
        answer.status == Some(503) && answer.text.lines().any(|line| line == "store away")
    })
    .await;
    (replica, listens)
}

/// F70: both listeners are there, clients are told to come again, and a signal ends it. Once the database is there it serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_gateway_whose_database_is_away_at_the_start_waits_for_it() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::open("away_at_the_start", server, Terms::default()).await;
    let (mut ended, [clients, _]) = started_without_database(&site, "a").await;
    let call = json!({"name": "work", "arguments": held_job("early-").arguments});
    let asking = client(Flavour::Extension, PLAIN);
    for (method, params) in [("tools/call", call), ("tasks/get", json!({"taskId": "0".repeat(32)}))] {
        let answer = asking.ask(clients, method, params).await;
        assert!(is_refused_for_now(&answer), "{method}: {answer:?}");
    }
    ended.keeper.signal(Signal::TERM);
    assert_eq!(ended.keeper.ends().await, Some(0), "{}", ended.keeper.said());
    ended.keeper.forget_log();
    let (mut waiting, [clients, admin]) = started_without_database(&site, "b").await;
    waiting.to_database[0].retarget(SocketAddr::from(([127, 0, 0, 1], server.port())));
    assert!(waiting.keeper.serves().await.is_some(), "{}", waiting.keeper.said());
    assert_eq!([waiting.keeper.address(), waiting.keeper.admin()], [clients, admin], "where it listened all the time");
    until("it is ready", async || waiting.is_ready().await).await;
    let mut site = site;
    site.replicas.push(waiting);
    site.hold_calls_at(0, 2).await;
    site.release_calls();
    until("all are settled", async || site.tables.are_all_settled()).await;
    assert_eq!(site.judge().await, 2);
}

/// F71, L1, L2, L8: the database crashes while calls run, and is back. Each outcome is stored, and nobody is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f71_calls_outlive_a_crash_of_the_database() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let site = Site::of(2, "crashed", &server, Terms::default()).await;
    site.hold_calls_at(0, 8).await;
    site.hold_calls_at(1, 8).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    tokio::task::block_in_place(|| server.stop(ServerStop::Immediate));
    for replica in &site.replicas {
        replica.is_unready("store away").await;
        let answer =
            replica.ask(PLAIN, "tools/call", json!({"name": "work", "arguments": {"nonce": "unwanted-x"}})).await;
        assert!(is_refused_for_now(&answer), "{answer:?}");
    }
    site.release_calls();
    for replica in &site.replicas {
        replica.says("an outcome is not stored yet", 8).await;
    }
    tokio::task::block_in_place(|| server.restart());
    until("outcomes are stored", async || site.tables.are_all_settled()).await;
    site.records_outage(false);
    for replica in &site.replicas {
        until("it is ready again", async || replica.is_ready().await).await;
        assert_eq!(site.tables.lives_of(replica.name).len(), 1, "it was not replaced");
    }
    assert_eq!(site.completed().await, 16, "no running call is lost");
    assert_eq!(site.judge().await, 16);
}

/// N01: commits wait for the standby that is gone, so nobody is given a handle; when it is back, all is well again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n01_without_its_standby_nothing_is_acknowledged_and_with_it_again_all_goes_on() {
    let Some(primary) = PostgresServer::start(&["wal_level = replica", "max_wal_senders = 4"]) else { return };
    let standby = tokio::task::block_in_place(|| PostgresServer::standby_of(&primary, "one"));
    primary.configure(&["synchronous_standby_names = 'one'"]);
    primary.reload();
    let names = || tokio::task::block_in_place(|| primary.psql("SHOW synchronous_standby_names"));
    until("commits wait for the standby", async || names() == "one").await;
    let site = Site::of(2, "without_standby", &primary, Terms { durability: "replicated", ..Terms::default() }).await;
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    tokio::task::block_in_place(|| standby.stop(ServerStop::Fast));
    for replica in &site.replicas {
        let refused = async {
            loop {
                let call = json!({"name": "work", "arguments": {"nonce": "unwanted-x"}});
                let answer = replica.ask(PLAIN, "tools/call", call).await;
                assert!(!answer.text.contains("taskId"), "a handle without a second copy: {answer:?}");
                if is_refused_for_now(&answer) {
                    break;
                }
            }
        };
        timeout(PATIENCE, refused).await.expect("calls are refused for now");
        until("it is not ready", async || replica.tells("/readyz").await.status == Some(503)).await;
    }
    site.release_calls();
    tokio::task::block_in_place(|| standby.restart());
    for replica in &site.replicas {
        until("it is ready again", async || replica.is_ready().await).await;
    }
    until("outcomes are stored", async || site.tables.are_all_settled()).await;
    site.records_outage(false);
    site.hold_calls_at(0, 2).await;
    site.show_only(&[0, 1]);
    until("new calls end, too", async || site.tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 10, "no running call is lost");
    assert_eq!(site.judge().await, 10);
}
