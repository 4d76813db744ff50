//! The principals of `isolation` at two gateways on one database; one of them is killed.

use support::postgres;

use super::harness::{Settings, Site};
use crate::isolation::crowd::{Crowd, FEW_NAMES};
use crate::isolation::{
    each_is_notified_of_its_own_alone, each_sees_its_own_alone, each_still_sees_its_own_alone, make_all,
    nothing_was_cancelled_or_answered, server,
};

/// SEC-42: each gateway makes tasks, and the second one is asked for all of them, before and after the first one dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sec_42_the_principals_of_two_gateways_know_nothing_of_each_other() {
    let Some(database) = postgres::shared() else { return };
    let server = server().await;
    let crowd = Crowd::before(&server, FEW_NAMES).await;
    let mut site = Site::open("isolation", database, Settings::default()).await;
    for name in ["a", "b"] {
        let mut replica = site.replica(name).await;
        replica.keeper.listen_with(Crowd::LISTEN);
        replica.keeper.configure(&crowd.sections(""));
        replica.start().await;
        site.replicas.push(replica);
    }
    let addresses = [0, 1].map(|at: usize| site.replicas[at].keeper.address());
    let all = make_all(&crowd, &addresses).await;
    each_sees_its_own_alone(&crowd, &all, addresses[1]).await;
    nothing_was_cancelled_or_answered(&server);
    each_is_notified_of_its_own_alone(&crowd, &all, addresses[1]).await;
    site.replicas[0].kill().await;
    each_still_sees_its_own_alone(&crowd, &all, addresses[1]).await;
    site.replicas[1].kill().await;
    site.replicas.iter().for_each(|replica| replica.keeper.forget_log());
}
