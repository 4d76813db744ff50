//! Gateways on one store, each with a listener for the others; clients that go from one to another.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use taskgate::app::sockets::Sockets;
use taskgate::app::{Gateway, ReplicaSetup};
use taskgate::config;
use taskgate::face::sealed::{Sealer, SealingKeys};
use taskgate::replica::{Incarnation, ReplicaDirectory, ReplicaMember, ReplicaPeer};
use taskgate::server::replica_link;
use taskgate::server::replicas::ReplicaTls;
use taskgate::store::{MemoryStore, TaskStore as _};
use taskgate::task::{Clock, ManualClock, Timestamp};
use tempfile::TempDir;

use crate::scripted::{ScriptedServer, in_time};
use crate::session_client::{BOTH, Client, HttpOptions, KEY};

/// The time of all replicas' clocks.
pub const NOW: Timestamp = Timestamp::from_millis(1_785_196_800_000);

/// How long one may take to be reached by the others: a busy machine is no reason to take it for gone.
pub const REACH_MAX: Duration = Duration::from_secs(10);

/// One gateway of several.
pub struct Replica {
    pub gateway: Gateway,
    pub incarnation: Incarnation,
    _folder: TempDir,
}

/// The gateways of one store, which go by one clock.
pub struct Replicas<C = ManualClock> {
    pub all: Vec<Replica>,
    store: Arc<MemoryStore>,
    reach_max: Duration,
    pub clock: Arc<C>,
}

/// The section of one upstream, which is served at `/mcp` and at `/up/sse`.
pub fn before(server: &ScriptedServer) -> String {
    format!("[upstreams.up]\nurl = \"{}\"\npath = \"/mcp\"\nsse_path = \"/up/sse\"\n", server.url())
}

impl Replicas {
    /// Two that know each other, in front of one server.
    pub async fn pair(server: &ScriptedServer) -> Self {
        Self::serving(2, &before(server), &[]).await
    }

    /// The same, with the time to connect that gateways have outside of tests.
    pub async fn pair_with_real_timeout(server: &ScriptedServer) -> Self {
        let clock = Arc::new(ManualClock::at(NOW));
        Self::reaching_within(replica_link::REACH_MAX, clock, 2, (&before(server), &[])).await
    }

    /// So many; `served` begins within the section of the listener. Replicas with certificates use them.
    pub async fn serving(many: usize, served: &str, tls: &[ReplicaTls]) -> Self {
        Self::with_clock(Arc::new(ManualClock::at(NOW)), many, served, tls).await
    }
}

impl<C: Clock + 'static> Replicas<C> {
    /// The same by another clock.
    pub async fn with_clock(clock: Arc<C>, many: usize, served: &str, tls: &[ReplicaTls]) -> Self {
        Self::reaching_within(REACH_MAX, clock, many, (served, tls)).await
    }

    async fn reaching_within(
        reach_max: Duration,
        clock: Arc<C>,
        many: usize,
        (served, tls): (&str, &[ReplicaTls]),
    ) -> Self {
        let mut replicas = Self { all: Vec::new(), store: Arc::new(MemoryStore::new(64 << 20)), reach_max, clock };
        for at in 0..many {
            let replica = replicas.start(served, tls.get(at).cloned()).await;
            replicas.all.push(replica);
        }
        replicas.share_members();
        replicas
    }

    async fn start(&self, served: &str, tls: Option<ReplicaTls>) -> Replica {
        let text = format!(
            "[store]\nkind = \"memory\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{served}\n"
        );
        let mut config = config::parse("test", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("seal.key");
        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        config.folder = folder.path().to_path_buf();
        let store = Arc::new(self.store.join());
        let incarnation = store.holder();
        let clock: Arc<dyn Clock> = Arc::<C>::clone(&self.clock);
        let address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let directory = ReplicaDirectory::alone(incarnation);
        let setup = ReplicaSetup { store, clock, address, tls, reach_max: self.reach_max, directory };
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let starting = Gateway::start_beside(config, metrics, Sockets::default(), setup);
        Replica { gateway: in_time(starting).await.unwrap(), incarnation, _folder: folder }
    }

    /// Gives each replica the list of all members.
    pub fn share_members(&self) {
        let living: Vec<_> = self.all.iter().map(|one| one.member()).collect();
        self.all.iter().for_each(|one| one.sees(living.clone()));
    }

    /// Ends one without a word.
    pub fn kill(&mut self, at: usize) {
        drop(self.all.remove(at));
    }

    /// A client at one of them, without a session.
    pub fn client_without_session(&self, at: usize) -> Client {
        client_at(self.all[at].gateway.address())
    }

    /// A client whose session was begun at the first one.
    pub async fn client(&self) -> Client {
        self.client_of("2025-11-25").await
    }

    pub async fn client_of(&self, version: &str) -> Client {
        self.client_without_session(0).opened(version).await
    }

    /// The same client, at another one.
    pub fn at(&self, at: usize, client: &Client) -> Client {
        Client { address: self.all[at].gateway.address(), ..client.clone() }
    }
}

impl Replica {
    /// As the others see it.
    pub fn member(&self) -> ReplicaMember {
        self.member_at(self.gateway.replica_address().unwrap())
    }

    /// The same, where they reach it elsewhere.
    pub const fn member_at(&self, address: SocketAddr) -> ReplicaMember {
        ReplicaMember { peer: ReplicaPeer { incarnation: self.incarnation, address }, is_leaving: false }
    }

    /// Replaces its directory of live replicas.
    pub fn sees(&self, living: Vec<ReplicaMember>) {
        self.gateway.session_owners().unwrap().replace(ReplicaDirectory::new(self.incarnation, living));
    }
}

/// A client at an address, without a session.
pub fn client_at(address: SocketAddr) -> Client {
    let (accept, connections) = (BOTH, tokio_util::task::TaskTracker::new());
    Client { address, session: None, version: None, accept, over: HttpOptions::default(), connections }
}

/// Seals as every replica does.
pub fn sealer() -> Sealer {
    Sealer::new(SealingKeys::parse(KEY).unwrap())
}
