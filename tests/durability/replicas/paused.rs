//! A gateway that stands still for longer than the lease, and goes on as if no time had passed.

use std::time::Duration;

use support::postgres;
use tokio::time::sleep;

use super::harness::{PATIENCE, Settings, Site, WITH_POSITION, nothing_more_was_sent, until};

/// How long clients wait at a gateway that stands still.
const WAITED: Duration = Duration::from_millis(300);

/// F79, L2, L4: the other gateway took over its tasks. After the pause its answers agree with the other's; it settles
/// nothing itself, restarts in the same process, and takes new calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f79_a_gateway_paused_for_longer_than_its_lease_restarts_and_contradicts_no_outcome() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(2, "paused", server, Settings::default()).await;
    site.hold_calls_at(0, 12).await;
    let tables = site.tables;
    until("positions are stored", async || tables.count(WITH_POSITION) == 12).await;
    let [former] = tables.incarnations_of("a")[..] else { panic!("one incarnation") };
    site.show_only(&[1]);
    site.pause(0);
    until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
    until("the others have failed", async || tables.count("tg_task WHERE NOT settled") == 6).await;
    // Their answers wait for it at its own streams.
    site.plain.state.release();
    assert_eq!(site.crowd.poll_all_until_answered(PATIENCE).await, 6, "settled, says the other one");
    site.show_only(&[0]);
    let asked = site.crowd.poll_all();
    let goes_on = async {
        sleep(WAITED).await;
        site.go_on(0);
    };
    tokio::join!(asked, goes_on);
    let replica = &site.replicas[0];
    replica.until_logged("restarted beside the other replicas", 1).await;
    until("it is ready again", async || replica.is_ready().await).await;
    let incarnations = tables.incarnations_of("a");
    assert_eq!((incarnations.len(), incarnations[1]), (2, former), "another incarnation, of the same process");
    assert_eq!(tables.count("tg_replica WHERE name = 'b' AND NOT dead"), 1);
    nothing_more_was_sent(&site, [6, 6]);
    site.resumable.state.release();
    until("what the other one took up has ended", async || tables.are_all_settled()).await;
    assert_eq!(site.completed().await, 6);
    site.hold_calls_at(0, 2).await;
    site.show_only(&[0, 1]);
    until("new calls end, too", async || tables.are_all_settled()).await;
    assert_eq!(site.judge().await, 14);
}
