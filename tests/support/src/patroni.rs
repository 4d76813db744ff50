//! Starts three PostgreSQL servers under Patroni: one leads, one is its synchronous standby, and if the leader's node
//! is gone, the standby is promoted. Patroni's shared state is in etcd, which is one process here.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::peers::install::{Peers, program};
use crate::ports::reserved_address;
use crate::postgres::{self, Database, psql};
use crate::processes::{children, signal};
use crate::unprivileged::{ProgramKeeper, folder};
use crate::wire_client::send;

const NODES: usize = 3;
/// How long nodes may take to agree, to copy a database, or to come back.
const READY_MAX: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(200);

/// Three nodes and their etcd. All of them end with it.
#[derive(Debug)]
pub struct PatroniCluster {
    programs: PathBuf,
    nodes: Vec<PatroniNode>,
    _etcd: ProgramKeeper,
}

/// A Patroni with a PostgreSQL server.
#[derive(Debug)]
struct PatroniNode {
    folder: PathBuf,
    database: SocketAddr,
    control: SocketAddr,
    keeper: ProgramKeeper,
}

impl PatroniCluster {
    /// `None` where PostgreSQL, etcd or Patroni is missing, of which the output tells.
    ///
    /// # Panics
    /// If the nodes do not come to agree.
    pub async fn start() -> Option<Self> {
        let programs = postgres::programs()?;
        let peers = Peers::find("failovers by Patroni")?;
        let etcd = program("etcd").expect("etcd is missing: install the package `etcd-server`");
        let (etcd, agreed) = start_etcd(&etcd);
        let nodes = (0..NODES).map(|nth| PatroniNode::new(nth, &programs, &peers, agreed)).collect();
        let cluster = Self { programs, nodes, _etcd: etcd };
        for node in &cluster.nodes {
            node.keeper.start();
        }
        cluster.agrees().await;
        Some(cluster)
    }

    /// Waits until one leads, and the others follow, one of them as synchronous standby. Who leads.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn agrees(&self) -> usize {
        let begin = Instant::now();
        loop {
            let members = self.members().await;
            let of_role = |role: &str, state: &str| {
                let is_it = |member: &&Value| member["role"] == role && member["state"] == state;
                members.iter().filter(is_it).count()
            };
            let counts =
                [of_role("leader", "running"), of_role("sync_standby", "streaming"), of_role("replica", "streaming")];
            if counts == [1; NODES] {
                let leader = members.iter().find(|member| member["role"] == "leader");
                return leader.and_then(|leader| leader["name"].as_str()?.strip_prefix("node")?.parse().ok()).unwrap();
            }
            assert!(begin.elapsed() < READY_MAX, "the nodes do not agree: {members:?}\n{}", self.logs());
            sleep(LOOK).await;
        }
    }

    /// All nodes, as one that runs lists them.
    async fn members(&self) -> Vec<Value> {
        for node in &self.nodes {
            let request = Request::get("/cluster").header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
            let answer = send(node.control, request).await;
            if answer.is_whole
                && let Value::Array(members) = answer.json()["members"].take()
            {
                return members;
            }
        }
        Vec::new()
    }

    /// `kill -9` of everything that runs on a node.
    pub fn kill(&self, node: usize) {
        let node = &self.nodes[node];
        let server = node.server();
        let processes: Vec<u32> = children(server).into_iter().chain([server]).collect();
        node.keeper.end("KILL");
        // The processes of the server may end by themselves meanwhile.
        for process in processes.into_iter().rev() {
            signal(process, "KILL");
        }
    }

    /// Starts a node that was killed.
    pub fn start_again(&self, node: usize) {
        self.nodes[node].keeper.start();
    }

    /// The last lines in the logs of all nodes.
    pub fn logs(&self) -> String {
        self.nodes.iter().fold(String::new(), |mut all, node| {
            let log = fs::read_to_string(node.folder.join("log")).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(25).collect();
            let _ = writeln!(all, "{}:", node.folder.display());
            last.into_iter().rev().for_each(|line| all = std::mem::take(&mut all) + line + "\n");
            all
        })
    }
}

impl Database for PatroniCluster {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.database).collect()
    }

    fn psql(&self, statements: &str) -> String {
        let list =
            |text: &dyn Fn(SocketAddr) -> String| self.addresses().into_iter().map(text).collect::<Vec<_>>().join(",");
        let (hosts, ports) = (list(&|address| address.ip().to_string()), list(&|address| address.port().to_string()));
        let conninfo = format!(
            "host={hosts} port={ports} user=postgres dbname=postgres connect_timeout=5 target_session_attrs=read-write"
        );
        psql(&self.programs.join("psql"), &conninfo, statements)
    }
}

impl PatroniNode {
    fn new(nth: usize, programs: &Path, peers: &Peers, agreed: SocketAddr) -> Self {
        let (folder, database, control) = (folder("patroni"), reserved_address(), reserved_address());
        let config = folder.join("patroni.yml");
        // A JSON text is a YAML text, too.
        let text = settings(nth, programs, (&folder, database, control), agreed).to_string();
        fs::write(&config, text).expect("written");
        let arguments = [OsStr::new("-B"), OsStr::new("-m"), OsStr::new("patroni"), config.as_os_str()];
        let keeper = ProgramKeeper::anywhere(&folder, &peers.join("py-patroni/bin/python"), arguments);
        Self { folder, database, control, keeper }
    }

    /// The first process of its server.
    fn server(&self) -> u32 {
        let lines = fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("the server runs");
        lines.lines().next().and_then(|line| line.trim().parse().ok()).expect("a process id")
    }
}

/// An etcd, and where it listens.
fn start_etcd(program: &Path) -> (ProgramKeeper, SocketAddr) {
    let (folder, clients, peers) = (folder("etcd"), reserved_address(), reserved_address());
    let (data, clients_url, peers_url) =
        (folder.join("etcd").display().to_string(), format!("http://{clients}"), format!("http://{peers}"));
    let arguments = [
        ["--data-dir", &data],
        ["--listen-client-urls", &clients_url],
        ["--advertise-client-urls", &clients_url],
        ["--listen-peer-urls", &peers_url],
        ["--initial-advertise-peer-urls", &peers_url],
        ["--initial-cluster", &format!("default={peers_url}")],
        ["--logger", "zap"],
    ];
    let keeper = ProgramKeeper::new(&folder, program, arguments.concat());
    keeper.start();
    let begin = Instant::now();
    while TcpStream::connect(clients).is_err() {
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(begin.elapsed() < READY_MAX, "etcd does not start: {}", log());
        std::thread::sleep(LOOK);
    }
    (keeper, clients)
}

/// A node's own settings, and those that the first one sets for all.
fn settings(
    nth: usize,
    programs: &Path,
    (folder, database, control): (&Path, SocketAddr, SocketAddr),
    agreed: SocketAddr,
) -> Value {
    json!({
        "scope": "taskgate",
        "name": format!("node{nth}"),
        "restapi": {"listen": control, "connect_address": control},
        "etcd3": {"host": agreed},
        "bootstrap": {
            "dcs": {
                // Patroni's least values; a busy machine gets the remaining time for a try.
                "ttl": 20,
                "loop_wait": 1,
                "retry_timeout": 9,
                "synchronous_mode": true,
                "synchronous_mode_strict": true,
                "postgresql": {"use_pg_rewind": true},
            },
            "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}, "no-locale", "no-sync"],
        },
        "postgresql": {
            "listen": database,
            "connect_address": database,
            "data_dir": folder.join("data"),
            "bin_dir": programs,
            "pgpass": folder.join("pgpass"),
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
            "parameters": {
                "unix_socket_directories": folder,
                "shared_buffers": "32MB",
                "max_wal_size": "256MB",
            },
            "pg_hba": ["local all all trust", "host all all 127.0.0.0/8 trust", "host replication all 127.0.0.0/8 trust"],
            "basebackup": [{"checkpoint": "fast"}, "no-sync"],
            "remove_data_directory_on_rewind_failure": true,
            "remove_data_directory_on_diverged_timelines": true,
        },
    })
}
