//! Gateways that run without a path to the database, to each other, or to both; no error reports the loss of a packet.

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::fault_proxy::FaultProxy;
use support::postgres;
use support::wire_client::{Answer, Flavour};
use tokio::time::timeout;

use super::harness::{
    PATIENCE, PLAIN, RESUMABLE, Replica, SILENCE, Settings, Site, WITH_POSITION, client, held_job, is_refused_for_now,
    nothing_more_was_sent, until,
};

/// A tool call that no server may receive.
fn unwanted(nonce: &str) -> Value {
    let mut arguments = held_job(nonce).arguments;
    arguments["nonce"] = json!(format!("{nonce}x"));
    json!({"name": "work", "arguments": arguments})
}

/// An open task of each server: the last that was handed out.
pub(super) fn open_tasks(site: &Site<'_>) -> [String; 2] {
    let handles = site.handles();
    [RESUMABLE, PLAIN].map(|path| {
        let of_path = handles.iter().rfind(|(nonce, _)| nonce.starts_with(&path[1..3]));
        of_path.map(|(_, task)| task.clone()).unwrap()
    })
}

/// A gateway without its database begins nothing, says when to come again, and never that a task is not there.
pub(super) async fn refuses_requests(replica: &Replica, tasks: &[String; 2]) {
    // Calls that were in progress at the cut have an unknown result; after them, each call is refused unsent.
    let calls = until("calls are refused for now", async || {
        let answer = replica.ask(RESUMABLE, "tools/call", unwanted("unwanted-")).await;
        assert!(answer.text.contains("store_failed"), "{answer:?}");
        is_refused_for_now(&answer)
    });
    tokio::join!(calls, refuses_polls(replica, tasks));
}

/// It does not say how tasks stand, as others may know better.
pub(super) async fn refuses_polls(replica: &Replica, tasks: &[String; 2]) {
    let polls = [RESUMABLE, PLAIN].into_iter().zip(tasks).map(async |(path, task)| {
        let answer = replica.poll(path, task).await;
        assert!(is_refused_for_now(&answer), "{answer:?}");
    });
    join_all(polls).await;
}

/// The number of unsettled tasks of both servers in a gateway's metrics.
async fn tasks_in_flight(replica: &Replica) -> f64 {
    let page = replica.admin_get("/metrics").await.text;
    let counted = page
        .lines()
        .filter_map(|line| line.strip_prefix("taskgate_tasks_in_flight{")?.rsplit(' ').next()?.parse().ok());
    counted.map(f64::abs).sum()
}

/// F75, L1, L4, L8: the other gateway takes over the tasks of the one that is cut off; answers that the first one receives meanwhile change
/// nothing. It restarts on its open sockets: a released port could belong to another process by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_a_gateway_cut_off_from_its_database_begins_nothing_and_is_replaced() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "cut_off", server, Settings::default()).await;
    site.hold_calls_at(0, 8).await;
    let (tables, cut_off) = (site.tables, &site.replicas[0]);
    until("positions are stored", async || tables.count(WITH_POSITION) == 8).await;
    assert_eq!(tasks_in_flight(cut_off).await, 8.0);
    let tasks = open_tasks(&site);
    site.records_outage(true);
    cut_off.cut_off();
    cut_off.is_unready("store unavailable").await;
    refuses_requests(cut_off, &tasks).await;
    site.show_only(&[1]);
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    // The answers end the first gateway's own streams, too.
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert_eq!(site.crowd.poll_all_until_answered(PATIENCE).await, 8, "settled, says the other one");
    refuses_polls(cut_off, &tasks).await;
    let revisions = tables.sql("SELECT sum(rev) FROM tg_task");
    cut_off.heal();
    let begins_anew = cut_off.until_logged("restarted beside the other replicas", 1);
    assert_eq!(cut_off.refusals_during(begins_anew).await, 0);
    until("it is ready again", async || cut_off.is_ready().await).await;
    until("it counts no task of the process before", async || tasks_in_flight(cut_off).await == 0.0).await;
    site.records_outage(false);
    assert_eq!(tables.sql("SELECT sum(rev) FROM tg_task"), revisions, "late answers of its calls change no row");
    nothing_more_was_sent(&site, [4, 4]);
    site.show_only(&[0, 1]);
    assert_eq!(site.judge().await, 8);
}

/// F75: no gateway is replaced if the database is back before the lease ends, and no running call is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_a_gateway_that_is_back_within_its_lease_goes_on_with_its_calls() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { lease: "60s", ..Settings::default() };
    let site = Site::of(1, "back_in_time", server, settings).await;
    site.hold_calls_at(0, 8).await;
    let (tables, cut_off) = (site.tables, &site.replicas[0]);
    let incarnations = tables.incarnations_of("a");
    site.records_outage(true);
    cut_off.cut_off();
    site.release_calls();
    // The answers have come, and wait: no client can get them yet.
    cut_off.is_unready("store unavailable").await;
    assert_eq!(tables.count("tg_task WHERE settled"), 0);
    cut_off.heal();
    until("outcomes are stored", async || tables.are_all_settled()).await;
    site.records_outage(false);
    assert_eq!(tables.incarnations_of("a"), incarnations);
    assert_eq!(tables.count("tg_task WHERE settled"), 8);
    until("it is ready again", async || cut_off.is_ready().await).await;
    let completed = site.completed().await;
    assert_eq!((completed, site.resumable.state.count("resumed")), (8, 0), "as if nothing had been");
    nothing_more_was_sent(&site, [4, 4]);
    assert_eq!(site.judge().await, 8);
}

/// F76: after `alone_max` a gateway ends its calls, goes on listening, and restarts once the database is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_gateway_that_is_alone_for_too_long_ends_its_calls_and_restarts() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { alone_max: "6s", ..Settings::default() };
    let site = Site::of(2, "alone_too_long", server, settings).await;
    site.hold_calls_at(0, 8).await;
    let (tables, cut_off) = (site.tables, &site.replicas[0]);
    until("positions are stored", async || tables.count(WITH_POSITION) == 8).await;
    let tasks = open_tasks(&site);
    site.show_only(&[1]);
    site.records_outage(true);
    cut_off.cut_off();
    cut_off.until_logged("this replica has lost its calls", 1).await;
    until("it listens again", async || cut_off.poll(PLAIN, &tasks[1]).await.status.is_some()).await;
    cut_off.is_unready("store unavailable").await;
    refuses_requests(cut_off, &tasks).await;
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    cut_off.heal();
    cut_off.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || cut_off.is_ready().await).await;
    site.records_outage(false);
    assert_eq!(tables.incarnations_of("a").len(), 2);
    nothing_more_was_sent(&site, [4, 4]);
    // The calls that the other gateway resumed go on all the time.
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 4, "all that can be taken up");
    site.show_only(&[0, 1]);
    assert_eq!(site.judge().await, 8);
}

/// The reason of an error in a session.
pub(super) fn reason(answer: &Answer) -> String {
    answer.json()["error"]["data"]["reason"].as_str().unwrap_or_default().to_owned()
}

/// Has a gateway reached by the others through a proxy from now on: they go by its line.
async fn through_a_proxy(site: &Site<'_>, at: usize) -> FaultProxy {
    let replica = &site.replicas[at];
    let proxy = FaultProxy::start(replica.internal).await;
    site.tables.sql(&format!("UPDATE tg_replica SET address = '{}' WHERE name = '{}'", proxy.address, replica.name));
    proxy
}

/// F85, L4: a request that needs the owner of its session is refused, and nothing is sent; tasks, and requests that
/// need no owner, work at any gateway. Then both paths fail at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_gateways_cut_off_from_each_other_refuse_foreign_sessions_and_share_tasks() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "cut_off_from_peers", server, Settings::default()).await;
    let (tables, home, other) = (site.tables, &site.replicas[0], &site.replicas[1]);
    let link = through_a_proxy(&site, 0).await;
    let mut session = client(Flavour::Core(None), PLAIN);
    assert!(session.open(home.keeper.address()).await);
    let there = other.keeper.address();
    // Once the other one goes by the proxy.
    let listed = || async { session.ask(there, "tools/list", json!({})).await };
    until("it is passed on through the proxy", async || listed().await.result().is_some() && link.carried() > 0).await;
    site.hold_calls_at(0, 4).await;
    let tasks = open_tasks(&site);
    link.set(Some(SILENCE));
    until("its home is away", async || reason(&listed().await) == "replica_unavailable").await;
    let refused = session.ask(there, "tools/call", unwanted("elsewhere-")).await;
    assert_eq!(reason(&refused), "replica_unavailable", "{refused:?}");
    // The owner may have received this poll, which changes nothing.
    let shown = session.ask(there, "tasks/get", json!({"taskId": tasks[1]})).await;
    assert!(shown.result().is_some_and(|task| task.contains(r#""status":"working""#)), "{shown:?}");
    for (path, task) in [RESUMABLE, PLAIN].into_iter().zip(&tasks) {
        assert_eq!(other.task_state(path, task).await["status"], "working");
    }
    assert_eq!(tables.count("tg_replica WHERE dead"), 0, "no gateway is declared dead");
    // Without the database, too, the owner is dead for the other gateway, which takes over from it.
    site.records_outage(true);
    home.cut_off();
    until("another goes on with the session", async || listed().await.result().is_some()).await;
    site.show_only(&[1]);
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    home.heal();
    link.set(None);
    home.until_logged("restarted beside the other replicas", 1).await;
    site.records_outage(false);
    until("it is ready again", async || home.is_ready().await).await;
    let again = async { session.ask(home.keeper.address(), "tools/list", json!({})).await.result().is_some() };
    assert!(timeout(PATIENCE, again).await.unwrap(), "either knows the session");
    nothing_more_was_sent(&site, [2, 2]);
    site.show_only(&[0, 1]);
    assert_eq!(site.judge().await, 4);
}
