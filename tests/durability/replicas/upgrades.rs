//! Upgrade by halves: gateways of another build of the program and of this one, on one database.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use rustix::process::Signal;
use support::postgres;
use support::wire_client::Flavour;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::harness::{PATIENCE, RESUMABLE, Settings, Site, client, get, job, until};
use super::killed::mixed;

/// How many calls are under way.
const CALLS: usize = 24;
/// How long both builds work side by side, before and after a gateway is replaced.
const SIDE_BY_SIDE: Duration = Duration::from_secs(4);

/// `TASKGATE_EARLIER` names a program of an earlier version; `UPGRADED_ROWS` is how many settled tasks it leaves (20,000). Each
/// gateway of three is replaced by this build's in order, and then by the earlier one's again, while clients make calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs another build of the program"]
async fn gateways_are_replaced_by_those_of_another_version_forth_and_back_under_load() {
    let Some(server) = postgres::shared() else { return };
    let earlier = env::var("TASKGATE_EARLIER").expect("TASKGATE_EARLIER names a program");
    let rows: usize = env::var("UPGRADED_ROWS").map_or(20_000, |rows| rows.parse().expect("UPGRADED_ROWS is a number"));
    let mut site = Site::open("upgraded", server, Settings { write_max: "5s", ..Settings::default() }).await;
    for name in ["a", "b", "c"] {
        let mut replica = site.replica(name).await;
        replica.keeper.run_program(&earlier);
        replica.start().await;
        site.replicas.push(replica);
    }
    store_rows(&site, rows).await;
    let is_over = AtomicBool::new(false);
    let Site { crowd, replicas, .. } = &mut site;
    let work = stream::iter((0..).take_while(|_| !is_over.load(Ordering::Relaxed)))
        .map(|nth| {
            let (job, path, flavour, wait) = mixed(nth);
            let crowd = &*crowd;
            async move {
                sleep(wait).await;
                crowd.run(job, client(flavour, path), PATIENCE).await;
            }
        })
        .buffer_unordered(CALLS)
        .count();
    let replacing = async {
        for program in [support::taskgate(), &earlier] {
            for replica in &mut *replicas {
                sleep(SIDE_BY_SIDE).await;
                // As a balancer that asks for readiness: nothing new comes to one that ends.
                replica.keeper.show(false);
                replica.keeper.signal(Signal::TERM);
                assert_eq!(replica.keeper.ends().await, Some(0), "{}", replica.keeper.log_text());
                replica.keeper.run_program(program);
                let began = Instant::now();
                replica.start().await;
                let serves = began.elapsed();
                until("it is ready", async || replica.is_ready().await).await;
                println!("{}: served after {serves:?}, ready after {:?}", replica.name, began.elapsed());
            }
        }
        sleep(SIDE_BY_SIDE).await;
        is_over.store(true, Ordering::Relaxed);
    };
    let (calls, ()) = tokio::join!(work, replacing);
    let settled = site.judge().await;
    println!("{calls} calls, {settled} tasks settled, beside {rows} rows");
    assert!(settled >= calls / 2, "too little was tried");
}

/// A balancer without health checks takes a gateway for living until it refuses connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ends_beside_another_refuses_connections_while_it_waits_for_its_calls() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(2, "ends", server, Settings::default()).await;
    site.hold_calls_at(0, 2).await;
    let ending = &site.replicas[0];
    until("the gateways know each other", async || {
        let page = get(ending.keeper.admin(), "/metrics").await.text;
        page.lines().any(|line| line.starts_with("taskgate_replicas_living") && line.ends_with(" 2"))
    })
    .await;
    site.show_only(&[1]);
    ending.keeper.signal(Signal::TERM);
    until("connections are refused", async || TcpStream::connect(ending.keeper.address()).await.is_err()).await;
    assert!(site.tables.open_tasks_of("a") > 0, "{}", ending.keeper.log_text());
    site.release_calls();
    assert_eq!(site.replicas[0].keeper.ends().await, Some(0), "{}", site.replicas[0].keeper.log_text());
    assert_eq!(site.judge().await, 2);
}

/// Settled tasks of another owner, as many as they are: copies of one.
async fn store_rows(site: &Site<'_>, rows: usize) {
    site.crowd.run(job("first", 20), client(Flavour::Extension, RESUMABLE), PATIENCE).await;
    let tables = site.tables;
    let columns = tables.sql(
        "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'tg_task'::regclass AND attnum > 0
        AND NOT attisdropped AND attgenerated = '' AND attname NOT IN ('id', 'owner')",
    );
    tables.sql(&format!(
        "INSERT INTO tg_task (id, owner, {columns}) SELECT sha256(n::text::bytea), 'rows', {columns}
        FROM generate_series(1, {rows}) AS n, (SELECT * FROM tg_task WHERE settled LIMIT 1) AS one"
    ));
}
