//! Two gateways on networks of their own, whose cables are pulled under load: towards the database, towards each other, or both.
//!
//! `tests/soak/cut_networks.sh` lays the cables, and names the network namespaces of the gateways in `TASKGATE_NAMESPACES`. All addresses
//! are loopback's, and yet no gateway reaches anything but over its cables.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use support::fault_proxy::FaultProxy;
use support::history::Fact;
use support::ports::reserved_address;
use support::postgres::{Database, PostgresServer};
use support::wire_client::Flavour;
use tokio::time::sleep;

use super::cut_off::{open_tasks, reason, refuses_requests};
use super::harness::{PATIENCE, PLAIN, Replica, Settings, Site, client, until};
use super::killed::mixed;

/// Clients that make one call after the other.
const CLIENTS: usize = 8;
/// Calls that run at the gateway that is cut off, beside those of the clients.
const HELD: usize = 4;
/// How long clients go on between two faults.
const QUIET: Duration = Duration::from_secs(2);

/// The networks of clients and servers, of the database, and of the gateways alone.
const CLIENTS_NET: u8 = 1;
const DATABASE_NET: u8 = 2;
const PEERS_NET: u8 = 3;

/// Where a host is on a network: the first is this one, the others are the gateways.
const fn host(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 98, network, host)
}

/// A server that gateways reach over their cables alone.
#[derive(Debug)]
struct WiredDatabase(PostgresServer);

impl Database for WiredDatabase {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::from((host(DATABASE_NET, 1), self.0.port()))]
    }

    fn psql(&self, statements: &str) -> String {
        self.0.psql(statements)
    }
}

/// The cable between a gateway and the database, or another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cable {
    Database,
    Peers,
}

/// Pulls a cable of the first gateway, or plugs it in.
fn set(namespace: &str, cable: Cable, state: &str) {
    let arguments: &[&str] = match cable {
        // The other end: the gateway sees only that its device has no carrier.
        Cable::Database => &["link", "set", "a-database", state],
        Cable::Peers => &["-n", namespace, "link", "set", "peers", state],
    };
    let done = Command::new("ip").args(arguments).output().expect("ip runs");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A gateway in a namespace, that reaches servers at these addresses.
async fn start(site: &Site<'_>, (name, namespace, at): (&'static str, &str, u8), upstreams: &str) -> Replica {
    let internal = SocketAddr::from((host(PEERS_NET, at), reserved_address().port()));
    let mut replica = site.replica_at(name, &site.tables.server.addresses(), internal);
    replica.keeper.run_in(namespace);
    let clients = SocketAddr::new(IpAddr::V4(host(CLIENTS_NET, at)), 0);
    replica.keeper.configure_at([clients; 2], upstreams);
    replica.start().await;
    replica
}

/// Cuts the first gateway off: its answers meanwhile, and its recovery.
async fn cut_and_heal(site: &Site<'_>, namespace: &str, cables: &[Cable]) {
    let (tables, cut_off, other) = (site.tables, &site.replicas[0], &site.replicas[1]);
    let incarnations = tables.incarnations_of("a").len();
    let mut session = client(Flavour::Core(None), PLAIN);
    assert!(session.open(cut_off.keeper.address()).await);
    let listed = || async { session.ask(other.keeper.address(), "tools/list", json!({})).await };
    until("the other one passes it on", async || listed().await.result().is_some()).await;
    site.hold_calls();
    site.hold_calls_at(0, HELD).await;
    let tasks = open_tasks(site);
    site.show_only(&[0, 1]);
    let is_without_database = cables.contains(&Cable::Database);
    if is_without_database {
        // Its process may lose the store at an unknown moment.
        for fact in [Fact::Ends, Fact::StoreFails] {
            site.history.record(fact);
        }
    }
    cables.iter().for_each(|cable| set(namespace, *cable, "down"));
    if cables.contains(&Cable::Peers) && !is_without_database {
        until("its home is away", async || reason(&listed().await) == "replica_unavailable").await;
        sleep(QUIET).await;
        assert!(cut_off.is_ready().await && other.is_ready().await, "either serves what needs no home");
        assert_eq!(tables.incarnations_of("a").len(), incarnations, "no gateway is replaced");
    }
    if is_without_database {
        cut_off.is_unready("store unavailable").await;
        refuses_requests(cut_off, &tasks).await;
        until("its tasks are taken over", async || tables.open_tasks_of("a") == 0).await;
        until("another goes on with the session", async || listed().await.result().is_some()).await;
        assert!(other.is_ready().await);
    }
    site.release_calls();
    sleep(QUIET).await;
    let anew = cut_off.keeper.log_text().matches("restarted beside the other replicas").count();
    cables.iter().for_each(|cable| set(namespace, *cable, "up"));
    if is_without_database {
        cut_off.until_logged("restarted beside the other replicas", anew + 1).await;
        assert_eq!(tables.incarnations_of("a").len(), incarnations + 1);
    }
    until("it is ready again", async || cut_off.is_ready().await).await;
    until("it is reached again", async || listed().await.result().is_some()).await;
    if is_without_database {
        for fact in [Fact::StoreHeals, Fact::Starts] {
            site.history.record(fact);
        }
    }
}

/// F75, F85, L1 to L8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root and network namespaces: part of `make soak`"]
async fn gateways_whose_cables_are_pulled_lose_no_task_and_send_nothing_twice() {
    let namespaces = std::env::var("TASKGATE_NAMESPACES").expect("see tests/soak/cut_networks.sh");
    let namespaces: Vec<&str> = namespaces.split_whitespace().collect();
    let listens = format!("listen_addresses = '127.0.0.1,{}'", host(DATABASE_NET, 1));
    let server = WiredDatabase(PostgresServer::start(&[&listens]).expect("PostgreSQL"));
    server.0.add_hba_lines(&["host all all 127.98.0.0/16 trust"]);
    let mut site = Site::open("cables", &server, Settings::default()).await;
    let mut upstreams = site.upstreams().to_owned();
    let mut servers = Vec::new();
    for ledger in [&site.resumable, &site.plain] {
        let there = ledger.server.url().socket_addrs(|| None).unwrap()[0];
        let wired = FaultProxy::start_on(host(CLIENTS_NET, 1), there).await;
        upstreams = upstreams.replace(&there.to_string(), &wired.address.to_string());
        servers.push(wired);
    }
    for (gateway, at) in [("a", namespaces[0]), ("b", namespaces[1])].into_iter().zip(2..) {
        let replica = start(&site, (gateway.0, gateway.1, at), &upstreams).await;
        site.replicas.push(replica);
    }
    let (is_over, next) = (AtomicBool::new(false), AtomicU64::new(0));
    let clients = join_all((0..CLIENTS).map(|_| async {
        while !is_over.load(Ordering::Relaxed) {
            let (job, path, flavour, _) = mixed(next.fetch_add(1, Ordering::Relaxed));
            site.crowd.run(job, client(flavour, path), PATIENCE).await;
        }
    }));
    let faults = async {
        for cables in [&[Cable::Database][..], &[Cable::Peers], &[Cable::Database, Cable::Peers]] {
            sleep(QUIET).await;
            cut_and_heal(&site, namespaces[0], cables).await;
            println!("{cables:?}: pulled and plugged in, after {} calls", next.load(Ordering::Relaxed));
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(clients, faults);
    until("all are settled", async || site.tables.are_all_settled()).await;
    let settled = site.judge().await;
    println!("{settled} tasks settled");
    assert!(settled > CLIENTS + 3 * HELD, "too little was tried");
}
