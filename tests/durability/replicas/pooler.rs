//! A pooler between gateways and their database.

use std::net::{Ipv4Addr, SocketAddr};

use support::pgbouncer::Pooler;
use support::postgres::{Database, PostgresServer};
use tokio::time::timeout;

use super::failover::NewCall;
use super::harness::{PATIENCE, Settings, Site, job, nothing_more_was_sent};
use super::starts::refused;
use super::writes::{call, recovers};

#[derive(Debug)]
struct PooledDatabase<'a> {
    pooler: Pooler,
    server: &'a PostgresServer,
}

impl Database for PooledDatabase<'_> {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, self.pooler.port()))]
    }

    fn psql(&self, statements: &str) -> String {
        self.server.psql(statements)
    }
}

/// N05, L1: a pooler that lends sessions out by the transaction is refused at the start. One that is switched over under gateways lets
/// no call pass for one that was taken; switched back, all goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n05_a_pooler_that_shares_sessions_is_refused_and_loses_no_task() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let Some(pooler) = Pooler::start(&server, &["pool_mode = transaction"]) else { return };
    let lending = PooledDatabase { pooler, server: &server };
    let site = Site::open("lent", &lending, Settings::default()).await;
    let mut early = site.replica("a").await;
    let message = refused(&mut early, 64).await;
    assert!(message.contains("pool_mode = session"), "{message}");
    early.keeper.forget_log();
    let Some(pooler) = Pooler::start(&server, &["pool_mode = session"]) else { return };
    let database = PooledDatabase { pooler, server: &server };
    let mut site = Site::open("pooled", &database, Settings::default()).await;
    for name in ["a", "b"] {
        let mut replica = site.replica(name).await;
        replica.start().await;
        site.replicas.push(replica);
    }
    site.hold_calls_at(0, 4).await;
    site.hold_calls_at(1, 4).await;
    site.show_only(&[0, 1]);
    site.records_outage(true);
    database.pooler.configure(&["pool_mode = transaction"]);
    for at in 0..site.replicas.len() {
        // Until one is set up by the one and used by the other.
        let noticed = async {
            let next = |number: u32| job(&format!("through-{at}-{number}-"), 20);
            for number in 0.. {
                if call(&site, at, &next(number)).await != NewCall::Handed {
                    break;
                }
            }
        };
        timeout(PATIENCE, noticed).await.expect("a commit is not sure");
    }
    database.pooler.configure(&["pool_mode = session"]);
    site.release_calls();
    recovers(&site).await;
    let handed = site.handles().len();
    nothing_more_was_sent(&site, [4, handed - 4]);
    assert_eq!(site.completed().await, handed);
    assert_eq!(site.judge().await, handed);
}
