//! The database fails: at the start or later, by refused connections, or by another client's long transaction.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use support::ports::reserved_address;
use support::postgres::{self, PostgresServer, ServerStop};
use support::wire_client::Flavour;
use tokio::time::timeout;

use super::harness::{
    PATIENCE, PLAIN, RESUMABLE, Replica, Settings, Site, client, get, held_job, is_refused_for_now, job, until,
};
use super::starts::refused;
use super::writes::{creates_no_task, recovers};

/// The time of a first start until it says that it waits. `write_max` gives the database as long as it may have.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// A gateway that has been started and does not serve yet; where it listens for clients and for operators.
async fn started_without_database(
    site: &Site<'_>,
    name: &'static str,
    is_unavailable: fn(&Replica),
) -> (Replica, [SocketAddr; 2]) {
    let mut replica = site.replica(name).await;
    let listens = [reserved_address(), reserved_address()];
    replica.keeper.configure_at(listens, site.upstreams());
    is_unavailable(&replica);
    replica.keeper.launch(&[]);
    let waits = until("it says why it is not ready", async || {
        let answer = get(listens[1], "/readyz").await;
        answer.status == Some(503) && answer.text.lines().any(|line| line == "store unavailable")
    });
    timeout(LISTENS_WITHIN, waits).await.expect("it listens before the database's time is over");
    (replica, listens)
}

/// No process listens at the database's address.
fn is_closed(replica: &Replica) {
    replica.to_database[0].retarget(reserved_address());
}

/// F70: both listeners are open, clients are told to retry, and a signal ends the gateway; also if the database's
/// address is silent. Once the database is there, the gateway serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_gateway_waits_for_a_database_that_is_unavailable_at_the_start() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { write_max: "60s", ..Settings::default() };
    let mut site = Site::open("away_at_the_start", server, settings).await;
    for is_unavailable in [is_closed, Replica::cut_off] {
        let (mut ended, [clients, _]) = started_without_database(&site, "a", is_unavailable).await;
        let call = json!({"name": "work", "arguments": held_job("early-").arguments});
        let asking = client(Flavour::Extension, PLAIN);
        for (method, params) in [("tools/call", call), ("tasks/get", json!({"taskId": "0".repeat(32)}))] {
            let answer = asking.ask(clients, method, params).await;
            assert!(is_refused_for_now(&answer), "{method}: {answer:?}");
        }
        ended.keeper.signal(Signal::TERM);
        assert_eq!(ended.keeper.ends().await, Some(0), "{}", ended.keeper.log_text());
        ended.keeper.forget_log();
    }
    let (mut waiting, [clients, admin]) = started_without_database(&site, "b", is_closed).await;
    waiting.to_database[0].retarget(SocketAddr::from(([127, 0, 0, 1], server.port())));
    assert!(waiting.keeper.serves().await.is_some(), "{}", waiting.keeper.log_text());
    assert_eq!([waiting.keeper.address(), waiting.keeper.admin()], [clients, admin], "where it listened all the time");
    until("it is ready", async || waiting.is_ready().await).await;
    site.replicas.push(waiting);
    site.hold_calls_at(0, 2).await;
    site.release_calls();
    until("all are settled", async || site.tables.are_all_settled()).await;
    assert_eq!(site.judge().await, 2);
}

/// F70: a waiting gateway retries an error that ends a first start, as a serving gateway does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_gateway_that_waits_for_its_database_waits_for_its_standby_to_be_named_too() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { durability: "replicated", ..Settings::default() };
    let site = Site::open("unnamed_standby", server, settings).await;
    let mut first = site.replica("a").await;
    let message = refused(&mut first, 64).await;
    assert!(message.contains("names no synchronous standby"), "{message}");
    let (mut waiting, [_, admin]) = started_without_database(&site, "b", is_closed).await;
    waiting.to_database[0].retarget(SocketAddr::from(([127, 0, 0, 1], server.port())));
    until("it says that none is named", async || {
        let answer = get(admin, "/readyz").await;
        answer.text.lines().any(|line| line == "store without standby")
    })
    .await;
    waiting.keeper.signal(Signal::TERM);
    assert_eq!(waiting.keeper.ends().await, Some(0), "{}", waiting.keeper.log_text());
    for replica in [&first, &waiting] {
        replica.keeper.forget_log();
    }
}

/// F71, L1, L2, L8: the database crashes while calls run, and is back. Each outcome is stored, and no gateway is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f71_calls_outlive_a_crash_of_the_database() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let site = Site::of(2, "crashed", &server, Settings::default()).await;
    site.hold_calls_at(0, 8).await;
    site.hold_calls_at(1, 8).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    tokio::task::block_in_place(|| server.stop(ServerStop::Immediate));
    for (at, replica) in site.replicas.iter().enumerate() {
        replica.is_unready("store unavailable").await;
        creates_no_task(&site, at).await;
    }
    site.release_calls();
    for replica in &site.replicas {
        replica.until_logged("an outcome is not stored yet", 8).await;
    }
    tokio::task::block_in_place(|| server.restart());
    until("outcomes are stored", async || site.tables.are_all_settled()).await;
    site.records_outage(false);
    for replica in &site.replicas {
        until("it is ready again", async || replica.is_ready().await).await;
        assert_eq!(site.tables.incarnations_of(replica.name).len(), 1, "it was not replaced");
    }
    assert_eq!(site.completed().await, 16, "no running call is lost");
    assert_eq!(site.judge().await, 16);
}

/// The error of a server with a full disk, for each row that is written.
const NO_ROOM: &str = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$;
    CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON tg_task FOR EACH ROW EXECUTE FUNCTION no_room()";

/// F87, L3, L8: the database has no room while calls end: new tasks are refused, each outcome is stored once there is room, and no row is
/// left without a runner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f87_calls_outlive_a_full_disk_of_the_database() {
    const AT_EACH: usize = 40;
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "filled", server, Settings::default()).await;
    site.hold_calls_at(0, AT_EACH).await;
    site.hold_calls_at(1, AT_EACH).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    site.tables.sql(NO_ROOM);
    for replica in &site.replicas {
        let unwanted = json!({"name": "work", "arguments": job("unwanted-full-", 20).arguments});
        let refused = replica.ask(PLAIN, "tools/call", unwanted).await;
        assert_eq!(refused.status, Some(503), "{refused:?}");
        assert_eq!(refused.json()["error"]["data"]["reason"], "store_full", "{refused:?}");
    }
    site.release_calls();
    for replica in &site.replicas {
        replica.until_logged("an outcome is not stored yet", AT_EACH).await;
    }
    site.tables.sql("DROP TRIGGER no_room ON tg_task");
    recovers(&site).await;
    assert_eq!(site.completed().await, 2 * AT_EACH, "no outcome is lost");
    assert_eq!(site.judge().await, 2 * AT_EACH);
}

/// A password that only this gateway may read.
fn write_password(replica: &Replica, password: &str) -> PathBuf {
    let path = replica.keeper.folder().join("password");
    fs::write(&path, password).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// F82, L1: open connections outlive a change of the password. New ones are refused, as operators and clients see,
/// until the new password is in the file, which is read without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f82_a_password_that_was_changed_is_read_without_a_restart_and_no_running_call_is_lost() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    server.psql("ALTER ROLE postgres PASSWORD 'first'");
    server.add_hba_lines(&["host all postgres 127.0.0.1/32 scram-sha-256"]);
    let mut site = Site::open("password", &server, Settings::default()).await;
    for name in ["a", "b"] {
        let mut replica = site.replica(name).await;
        let path = write_password(&replica, "first");
        replica.keeper.add_keys(&format!("password_file = \"{}\"\n", path.display()));
        replica.keeper.configure(site.upstreams());
        replica.start().await;
        site.replicas.push(replica);
    }
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    site.tables.sql("ALTER ROLE postgres PASSWORD 'second'");
    site.hold_calls_at(0, 2).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    site.tables.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'taskgate %'");
    for (at, replica) in site.replicas.iter().enumerate() {
        replica.is_unready("store refuses connections").await;
        creates_no_task(&site, at).await;
        replica.is_unready("store refuses connections").await;
    }
    site.release_calls();
    site.replicas.iter().for_each(|replica| drop(write_password(replica, "second")));
    recovers(&site).await;
    assert_eq!(site.completed().await, 10, "no running call is lost");
    assert_eq!(site.judge().await, 10);
}

/// N09: another client's transaction keeps the server from freeing old row versions. A metric shows the transaction's
/// age, and tasks go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n09_a_long_transaction_is_reported_and_tasks_go_on() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::open("held_back", server, Settings::default()).await;
    let lasting = site.tables.session("BEGIN; SELECT pg_current_xact_id()").await;
    let mut replica = site.replica("a").await;
    replica.start().await;
    site.replicas.push(replica);
    site.tables.sql("ALTER TABLE tg_task SET (autovacuum_enabled = off)");
    let calls = (0..24).map(|nth| {
        let wire = client(Flavour::Extension, [RESUMABLE, PLAIN][nth % 2]);
        site.crowd.run_as_task(job(&format!("beside-{nth}-"), 20), wire, PATIENCE)
    });
    join_all(calls).await;
    let name = "taskgate_database_oldest_transaction_seconds ";
    until("its age is in the metrics", async || {
        let page = site.replicas[0].admin_get("/metrics").await.text;
        let age = page.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        age.is_some_and(|age| age > 0.0)
    })
    .await;
    drop(lasting);
    assert_eq!(site.completed().await, 24);
    assert_eq!(site.judge().await, 24);
}
