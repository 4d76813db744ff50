//! Idempotency keys at two gateways on one database, of which one after the other is killed (GW-46).

use futures_util::future::join;
use support::postgres;

use super::harness::{Settings, Site};
use crate::keys::KeyCourse;

const KILLS: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_run_once_under_each_key_at_two_gateways_of_which_one_after_the_other_is_killed() {
    let Some(server) = postgres::shared() else { return };
    let course = KeyCourse::open(120).await;
    let mut site = Site::open("keys", server, Settings::default()).await;
    for name in ["a", "b"] {
        let mut replica = site.replica(name).await;
        replica.keeper.configure(course.upstream());
        replica.start().await;
        site.replicas.push(replica);
    }
    let addresses = site.replicas[0].keeper.addresses();
    let replicas = &mut site.replicas;
    let kills = async {
        for kill in 1..=KILLS {
            course.is_at(kill, KILLS + 1).await;
            course.meet(replicas[kill % 2].kill()).await;
            replicas[kill % 2].start().await;
        }
    };
    join(course.clients(addresses), kills).await;
    course.check();
    site.replicas.iter().for_each(|replica| replica.keeper.forget_log());
}
