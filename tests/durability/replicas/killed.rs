//! Gateways that are killed: others go on with their tasks, or they themselves do, started again in their folders.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use support::crowd::Job;
use support::history::{Fact, PollResult};
use support::postgres;
use support::wire_client::Flavour;
use tokio::time::{Instant, sleep, timeout};

use super::harness::{
    OPEN, PATIENCE, PLAIN, RESUMABLE, Settings, Site, Tables, WITH_POSITION, client, job, until, until_none_is_left,
};

/// The number of tasks that F77 promises to take over.
const MANY: usize = 1_000;
/// How often one is killed in a run of all tests.
const KILLS: usize = 1;
/// A busy machine takes a minute to begin a thousand calls, and the first of them waits for the last.
const SETTLE_MAX: Duration = Duration::from_secs(5 * 60);

/// How many tasks the killed gateway certainly has: their servers hold them until it is dead, however slow the machine is.
const HELD_AT_KILL: usize = 8;
/// How many of the other calls have become tasks when it is killed.
const HANDED: usize = 20;

/// A call of each kind in turn: its path and flavour, and when it is made.
pub(super) fn mixed(nth: u64) -> (Job, &'static str, Flavour, Duration) {
    let session = Flavour::Core(None);
    let (tool, path, flavour, calls_max) = match nth % 8 {
        0 | 4 | 7 => ("work", RESUMABLE, Flavour::Extension, 1),
        1 => ("work", PLAIN, Flavour::Extension, 1),
        2 => ("work_safe", PLAIN, Flavour::Extension, 4),
        3 => ("work_auto", RESUMABLE, Flavour::Extension, 1),
        5 => ("work", RESUMABLE, session, 1),
        _ => ("work", PLAIN, session, 1),
    };
    let ms = 1_000 + nth * 137 % 4_000;
    let cancels_after = (nth % 8 == 7).then(|| Duration::from_millis(nth * 53 % 2_000));
    let arguments = json!({"ms": ms, "steps": 4, "asks": nth % 8 == 4});
    let job = Job { tool, calls_max, cancels_after, arguments, ..job(&format!("k{nth}-"), ms) };
    (job, path, flavour, Duration::from_millis(nth * 40 % 1_000))
}

/// How often clients saw an outcome with this text.
fn seen_of(site: &Site<'_>, text: &str) -> usize {
    let is_meant = |fact: &Fact| matches!(fact, Fact::Polled { seen: PollResult::Settled { status, payload, .. }, .. } if status == text || payload.contains(text));
    site.history.entries().iter().filter(|entry| is_meant(&entry.fact)).count()
}

/// F77, L1 to L8: forty calls of each kind run at two gateways, one of which is killed in the middle, while it holds
/// eight more. Each acknowledged task settles once; a call that may not be repeated is sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f77_l4_calls_of_a_killed_gateway_go_on_at_the_other_and_none_is_sent_twice() {
    let Some(server) = postgres::shared() else { return };
    let settings = Settings { settle_max: 3 * PATIENCE, ..Settings::default() };
    let mut site = Site::of(2, "killed", server, settings).await;
    site.hold_calls_at(0, HELD_AT_KILL).await;
    let tables = site.tables;
    until("positions are stored", async || tables.count(WITH_POSITION) == HELD_AT_KILL).await;
    site.show_only(&[0, 1]);
    let Site { crowd, replicas, resumable, plain, .. } = &mut site;
    let work = join_all((0..40).map(|nth| {
        let (job, path, flavour, wait) = mixed(nth);
        let crowd = &*crowd;
        async move {
            sleep(wait).await;
            crowd.run(job, client(flavour, path), PATIENCE).await;
        }
    }));
    let kill = async {
        let mut handed = crowd.handed.subscribe();
        let enough = timeout(PATIENCE, handed.wait_for(|handed| *handed >= HELD_AT_KILL + HANDED)).await;
        enough.expect("calls become tasks").expect("the crowd is there");
        replicas[0].kill().await;
        resumable.state.release();
        plain.state.release();
    };
    tokio::join!(work, kill);
    let log = replicas[1].keeper.log_text();
    let line = log.lines().find(|line| line.contains("a replica is silent, and was declared dead"));
    assert!(line.is_some_and(|line| line.contains("\"replica\":")), "{log}");
    // On a busy machine, the clients of all lost tasks may have left before they saw the outcome.
    until("a task that may not be repeated is lost", async || {
        site.crowd.poll_all().await;
        seen_of(&site, "replica_lost") > 0
    })
    .await;
    let (lost, resumed) = (seen_of(&site, "replica_lost"), site.resumable.state.count("resumed"));
    let completed = seen_of(&site, "completed");
    let settled = site.judge().await;
    println!(
        "{settled} tasks settled, {resumed} taken up again, {lost} looks at lost ones, {completed} at completed ones"
    );
    assert!(settled >= 30 + HELD_AT_KILL && completed >= 20 && resumed > 0 && lost > 0, "too little was tried");
}

/// The time from a moment until no process of the gateway holds a task.
async fn taken_over(tables: Tables<'_>, from: Instant) -> Duration {
    until_none_is_left("its tasks are taken over", async || tables.open_tasks_of("a")).await;
    from.elapsed()
}

/// F77, F78: two others share a thousand tasks of a gateway that is killed, each of which one of them has; calls that can be taken
/// up end as if nothing had been, and those that had waited for their turn are sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_thousand_tasks_of_a_killed_gateway_have_new_holders_in_time() {
    let Some(server) = postgres::shared() else { return };
    let count = |kills: String| kills.parse().expect("REPLICA_KILLS is a number");
    let (kills, lease) = std::env::var("REPLICA_KILLS").map_or((KILLS, "4s"), |kills| (count(kills), "8s"));
    let mut histogram = BTreeMap::<u64, usize>::new();
    for nth in 1..=kills {
        let mut site =
            Site::of(3, "thousand", server, Settings { lease, settle_max: SETTLE_MAX, ..Settings::default() }).await;
        let (time, of) = kill_of_many(&mut site).await;
        println!("kill {nth} of {kills}: {MANY} tasks taken over after {time:?}, by the others {of:?}");
        *histogram.entry(time.as_secs()).or_default() += 1;
        let tables = site.tables;
        assert_eq!(site.judge().await, MANY);
        tables.sql("DROP SCHEMA thousand CASCADE");
    }
    println!("with a lease of {lease}, by whole seconds until all tasks were taken over: {histogram:?}");
}

/// How long it took until others had all tasks, and how many each had. They have ended by then.
async fn kill_of_many(site: &mut Site<'_>) -> (Duration, [usize; 2]) {
    site.show_only(&[0]);
    stream::iter(0..MANY).map(|_| site.hold_call(RESUMABLE)).buffer_unordered(16).for_each(std::future::ready).await;
    let tables = site.tables;
    // A third of in_flight_max run at a time.
    until_none_is_left("positions are stored", async || 600_usize.saturating_sub(tables.count(WITH_POSITION))).await;
    site.show_only(&[1, 2]);
    let killed = Instant::now();
    site.replicas[0].kill().await;
    let time = taken_over(tables, killed).await;
    let of = ["b", "c"].map(|name| tables.open_tasks_of(name));
    assert_eq!(of[0] + of[1], MANY, "each has one live holder");
    site.release_calls();
    until_none_is_left("all are settled", async || tables.count(OPEN)).await;
    assert_eq!(site.resumable.state.count("called"), MANY, "each was sent once");
    (time, of)
}

/// F77: a gateway that restarts in its folder knows that its last process is dead, and waits for no lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_started_again_in_its_folder_goes_on_with_its_tasks_at_once() {
    let Some(server) = postgres::shared() else { return };
    // With the longest lease, no other gateway would have declared it dead by then.
    let settings = Settings { lease: "60s", ..Settings::default() };
    let mut site = Site::of(1, "same_folder", server, settings).await;
    site.hold_calls_at(0, 8).await;
    let tables = site.tables;
    until("positions are stored", async || tables.count(WITH_POSITION) == 8).await;
    let killed = Instant::now();
    site.replicas[0].kill().await;
    site.replicas[0].start().await;
    let [own, former] = tables.incarnations_of("a")[..] else { panic!("two incarnations") };
    until("its tasks are its own again", async || tables.count(&format!("tg_task WHERE holder = {former}")) == 0).await;
    println!("its tasks were its own again {:?} after the kill", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(60), "as long as a lease");
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert!(tables.count(&format!("tg_replica WHERE incarnation = {own} AND NOT dead")) == 1);
    assert_eq!(site.resumable.state.count("resumed"), 4);
    let calls = [&site.resumable, &site.plain].map(|ledger| ledger.state.count("called"));
    assert_eq!(calls, [4, 4], "nothing is sent twice");
    assert_eq!(site.judge().await, 8);
}

/// N10: all are killed, and one comes back. It waits for the other's lease, as any gateway does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n10_the_first_gateway_back_after_all_were_killed_takes_over_every_task() {
    let Some(server) = postgres::shared() else { return };
    let mut site = Site::of(2, "all_killed", server, Settings::default()).await;
    site.hold_calls_at(0, 8).await;
    site.hold_calls_at(1, 8).await;
    let tables = site.tables;
    until("positions are stored", async || tables.count(WITH_POSITION) == 16).await;
    let [first, second] = &mut site.replicas[..] else { panic!("two") };
    tokio::join!(first.kill(), second.kill());
    first.start().await;
    until("all is its own", async || tables.open_tasks_of("b") == 0).await;
    site.release_calls();
    until("all are settled", async || tables.are_all_settled()).await;
    assert_eq!(site.resumable.state.count("resumed"), 8);
    let calls = [&site.resumable, &site.plain].map(|ledger| ledger.state.count("called"));
    assert_eq!(calls, [8, 8], "nothing is sent twice");
    assert_eq!(site.judge().await, 16);
}
