//! Gateways in processes of their own on one database, each behind a proxy of its own, in front of two servers that keep
//! ledgers: one with resumable streams, one without.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::crowd::{Crowd, Job};
use support::fault_proxy::{Fault, FaultProxy, Verb};
use support::history::{Bounds, Fact, History, PollResult, story, violations};
use support::ledger::Ledger;
use support::ports::reserved_address;
use support::postgres::Database;
use support::session_client::KEY;
use support::wire_client::{Answer, Flavour, WireClient, send};
use taskgate::task::{Clock as _, SystemClock, Timestamp};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, NoTls};
use tokio_util::task::TaskTracker;

use crate::kill_cycles::keeper::Keeper;

use super::waits::LOOK;
pub(super) use super::waits::{PATIENCE, is_in_time, until, until_none_is_left};

/// Time of service until a released task must be settled: no call runs that long (L3).
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// How many broken laws are printed with their stories.
const STORIES_MAX: usize = 10;
/// How long before its gateway ended an answer may have been on its way.
const ON_ITS_WAY_MAX: Duration = Duration::from_millis(500);

/// Nothing comes through any more, and no error reports it.
pub(super) const SILENCE: Fault = Fault::up("", 0, Verb::Stall);

/// The paths of the two servers: streams of the first one are resumable.
pub(super) const RESUMABLE: &str = "/up/mcp";
pub(super) const PLAIN: &str = "/plain/mcp";

/// Tasks whose calls have sent an event, and whose rows have the resume position, if the server has one. The position may follow an
/// event's own write within a second.
pub(super) const WITH_POSITION: &str =
    "tg_task WHERE rev > 1 AND (position('last_event'::bytea IN record) > 0 OR position('plain'::bytea IN record) > 0)";

/// Tasks that have not ended.
pub(super) const OPEN: &str = "tg_task WHERE NOT settled";

/// The settings of the gateways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) lease: &'static str,
    pub(super) alone_max: &'static str,
    pub(super) durability: &'static str,
    pub(super) write_max: &'static str,
    /// Time of service until a task must be settled, with held calls and outages (L3).
    pub(super) settle_max: Duration,
    /// How many calls run at each server, at all gateways together.
    pub(super) in_flight_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Settings {
    pub(super) const USUAL: Self = Self {
        lease: "4s",
        alone_max: "5m",
        durability: "single",
        write_max: "2s",
        settle_max: SETTLE_MAX,
        in_flight_max: 1_800,
    };
}

/// The tables of one set of tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'a> {
    pub(super) server: &'a dyn Database,
    schema: &'static str,
}

/// One gateway, and its proxies in front of the database's servers.
pub(super) struct Replica {
    pub(super) name: &'static str,
    pub(super) keeper: Keeper,
    pub(super) to_database: Vec<FaultProxy>,
    /// Its address for the other replicas.
    pub(super) internal: SocketAddr,
}

/// The gateways, servers and clients of one test.
pub(super) struct Site<'a> {
    pub(super) tables: Tables<'a>,
    pub(super) replicas: Vec<Replica>,
    pub(super) resumable: Ledger,
    pub(super) plain: Ledger,
    pub(super) crowd: Crowd,
    pub(super) history: Arc<History>,
    addresses: watch::Sender<Vec<SocketAddr>>,
    settings: Settings,
    upstreams: String,
    calls: AtomicUsize,
}

/// Since 1970, by the machine's own clock.
pub(super) fn true_time() -> Duration {
    SystemClock.now().since(Timestamp::from_millis(0))
}

/// Repeats a request while a busy machine's database takes too long.
pub(super) async fn answered(wire: &WireClient, address: SocketAddr, method: &str, params: Value) -> Answer {
    let asked = async {
        loop {
            let answer = wire.ask(address, method, params.clone()).await;
            if answer.is_whole && !is_refused_for_now(&answer) {
                return answer;
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("not answered in time: {method}"))
}

impl Tables<'_> {
    /// Runs statements in the schema, and returns their output.
    pub(super) fn sql(self, statements: &str) -> String {
        let Self { server, schema } = self;
        tokio::task::block_in_place(|| server.psql(&format!("SET search_path TO {schema}; {statements}")))
    }

    /// Another client's session, after these statements; dropping it ends it.
    pub(super) async fn session(self, statements: &str) -> Client {
        let address = self.server.addresses()[0];
        let there = format!("host={} port={} user=postgres dbname=postgres", address.ip(), address.port());
        let (client, connection) = tokio_postgres::connect(&there, NoTls).await.unwrap();
        TaskTracker::new().spawn(connection);
        client.batch_execute(&format!("SET search_path TO {}; {statements}", self.schema)).await.unwrap();
        client
    }

    pub(super) fn count(self, from: &str) -> usize {
        self.sql(&format!("SELECT count(*) FROM {from}")).parse().unwrap()
    }

    /// How many unsettled tasks any process of a gateway holds.
    pub(super) fn open_tasks_of(self, name: &str) -> usize {
        self.count(&format!("tg_task JOIN tg_replica ON holder = incarnation WHERE NOT settled AND name = '{name}'"))
    }

    /// The incarnations of a gateway, the last one first.
    pub(super) fn incarnations_of(self, name: &str) -> Vec<u64> {
        let incarnations =
            self.sql(&format!("SELECT incarnation FROM tg_replica WHERE name = '{name}' ORDER BY 1 DESC"));
        incarnations.lines().map(|line| line.parse().unwrap()).collect()
    }

    pub(super) fn are_all_settled(self) -> bool {
        self.count(OPEN) == 0
    }
}

impl Replica {
    pub(super) async fn start(&mut self) {
        assert!(self.keeper.start(&[]).await.is_some(), "{} does not start: {}", self.name, self.keeper.log_text());
    }

    /// `kill -9`.
    pub(super) async fn kill(&mut self) {
        self.keeper.kill().await;
    }

    /// Drops everything that it sends to the database, until [`Replica::heal`].
    pub(super) fn cut_off(&self) {
        self.to_database.iter().for_each(|server| server.set(Some(SILENCE)));
    }

    pub(super) fn heal(&self) {
        self.to_database.iter().for_each(|server| server.set(None));
    }

    /// The answer of the operators' listener at `target`.
    pub(super) async fn admin_get(&self, target: &str) -> Answer {
        get(self.keeper.admin(), target).await
    }

    /// Fails if its process runs and does not answer `/healthz`.
    async fn check_alive(&self) {
        let is_alive = self.admin_get("/healthz").await.status == Some(200);
        assert!(is_alive, "{} stands still, its threads in\n{}", self.name, self.keeper.threads());
    }

    pub(super) async fn is_ready(&self) -> bool {
        self.admin_get("/readyz").await.status == Some(200)
    }

    /// Waits until it is not ready for this reason.
    pub(super) async fn is_unready(&self, reason: &str) {
        until(reason, async || {
            let answer = self.admin_get("/readyz").await;
            answer.status == Some(503) && answer.text.lines().any(|line| line == reason)
        })
        .await;
    }

    /// Waits until its log has a text this often.
    pub(super) async fn until_logged(&self, text: &str, times: usize) {
        let is_logged = is_in_time(async || self.keeper.log_text().matches(text).count() >= times).await;
        assert!(is_logged, "the log has {text:?} fewer than {times} times: {}", self.keeper.log_text());
    }

    /// How often any of its listeners refused a connection while `meanwhile` ran.
    pub(super) async fn refusals_during(&self, meanwhile: impl Future<Output = ()>) -> usize {
        let mut refusals = 0;
        let connecting = async {
            loop {
                for address in [self.keeper.address(), self.keeper.admin(), self.internal] {
                    refusals += usize::from(TcpStream::connect(address).await.is_err());
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = meanwhile => refusals,
            () = connecting => unreachable!("it goes on until it is dropped"),
        }
    }

    /// Asks it as a client without a session.
    pub(super) async fn ask(&self, path: &'static str, method: &str, params: Value) -> Answer {
        client(Flavour::Extension, path).ask(self.keeper.address(), method, params).await
    }

    pub(super) async fn poll(&self, path: &'static str, task: &str) -> Answer {
        self.ask(path, "tasks/get", json!({"taskId": task})).await
    }

    /// The state of a task, as soon as the gateway shows it.
    pub(super) async fn task_state(&self, path: &'static str, task: &str) -> Value {
        let asking = client(Flavour::Extension, path);
        let answer = answered(&asking, self.keeper.address(), "tasks/get", json!({"taskId": task})).await;
        answer.json()["result"].take()
    }
}

/// One GET.
pub(super) async fn get(address: SocketAddr, target: &str) -> Answer {
    send(address, Request::get(target).header("host", "localhost").body(Full::<Bytes>::default()).unwrap()).await
}

pub(super) fn client(flavour: Flavour, path: &'static str) -> WireClient {
    WireClient { path, ..WireClient::new(flavour) }
}

/// A call that its server holds until it is released, and that may be sent once.
pub(super) fn held_job(nonce: &str) -> Job {
    Job { arguments: json!({"ms": 20, "held": true}), ..job(nonce, 20) }
}

/// A call that takes so long, and that may be sent once.
pub(super) fn job(nonce: &str, ms: u64) -> Job {
    let (nonce, owner) = (format!("{nonce}x"), "local".to_owned());
    Job { nonce, owner, tool: "work", arguments: json!({"ms": ms}), cancels_after: None, calls_max: 1 }
}

/// The answer of a gateway that sent nothing, with a time to retry.
pub(super) fn is_refused_for_now(answer: &Answer) -> bool {
    answer.status == Some(503) && answer.retry_after.is_some() && answer.text.contains("store_failed")
}

/// No refused call has reached a server, and no call was cancelled.
pub(super) fn nothing_more_was_sent(site: &Site<'_>, calls: [usize; 2]) {
    let ledgers = [&site.resumable, &site.plain];
    assert_eq!(
        ledgers.map(|ledger| ledger.state.count("called")),
        calls,
        "nothing is sent twice, and nothing that was refused"
    );
    assert_eq!(ledgers.map(|ledger| ledger.state.count("cancelled")), [0, 0], "no call is cancelled");
    for (ledger, path) in ledgers.into_iter().zip([RESUMABLE, PLAIN]) {
        let ended = ledger.server.world.all(|seen| seen.method == "DELETE");
        assert!(ended.is_empty(), "a session of {path} is ended that others may go on with: {ended:?}");
    }
}

impl<'a> Site<'a> {
    /// Without gateways yet. `schema` names it everywhere.
    pub(super) async fn open(schema: &'static str, server: &'a dyn Database, settings: Settings) -> Self {
        let history = Arc::new(History::begin(true_time()));
        let resumable = Ledger::open(Arc::clone(&history), true).await;
        let plain = Ledger::open(Arc::clone(&history), false).await;
        let addresses = watch::Sender::default();
        let crowd = Crowd::new(Arc::clone(&history), addresses.subscribe());
        let in_flight_max = settings.in_flight_max;
        let upstream = |name: &str, ledger: &Ledger| {
            format!(
                "[upstreams.{name}]\nurl = \"{}\"\ndeadline = \"5m\"\nin_flight_max = {in_flight_max}\n\
                 [upstreams.{name}.tasks]\nmode = \"always\"\nttl = \"1h\"\npoll_interval = \"100ms\"\ninput_deadline = \"5m\"\n\
                 [[upstreams.{name}.tools]]\nmatch = \"work_auto\"\nmode = \"auto\"\ngrace = \"60ms\"\n\
                 [[upstreams.{name}.tools]]\nmatch = \"work_safe\"\nafter_crash = \"rerun\"\n",
                ledger.server.url()
            )
        };
        let upstreams = format!("{}{}", upstream("up", &resumable), upstream("plain", &plain));
        let (tables, replicas) = (Tables { server, schema }, Vec::new());
        Self {
            tables,
            replicas,
            resumable,
            plain,
            crowd,
            history,
            addresses,
            settings,
            upstreams,
            calls: AtomicUsize::default(),
        }
    }

    /// With so many gateways, `a`, `b` and `c`, that serve.
    pub(super) async fn of(many: usize, schema: &'static str, server: &'a dyn Database, settings: Settings) -> Self {
        let mut site = Self::open(schema, server, settings).await;
        for name in &["a", "b", "c"][..many] {
            let mut replica = site.replica(name).await;
            replica.start().await;
            site.replicas.push(replica);
        }
        site
    }

    /// A gateway that is not started yet, with a folder of its own.
    pub(super) async fn replica(&self, name: &'static str) -> Replica {
        let to_database = join_all(self.tables.server.addresses().into_iter().map(FaultProxy::start)).await;
        let hosts = to_database.iter().map(|server| server.address).collect::<Vec<_>>();
        Replica { to_database, ..self.replica_at(name, &hosts, reserved_address()) }
    }

    /// The same without proxies: it reaches the database at these addresses, and is reached by the others at one.
    pub(super) fn replica_at(&self, name: &'static str, hosts: &[SocketAddr], address: SocketAddr) -> Replica {
        let Tables { schema, .. } = self.tables;
        let Settings { lease, alone_max, durability, write_max, .. } = self.settings;
        let hosts = hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let sections = move |folder: &Path| {
            let data = folder.join("data");
            fs::create_dir(&data).unwrap();
            let key = data.join("seal.key");
            fs::write(&key, KEY).unwrap();
            fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
            format!(
                "[replica]\nname = \"{name}\"\naddress = \"{address}\"\nlease = \"{lease}\"\nalone_max = \"{alone_max}\"\n\
                 [store]\nkind = \"postgres\"\nurl = \"postgres://postgres@{hosts}/postgres?sslmode=disable\"\n\
                 schema = \"{schema}\"\ndurability = \"{durability}\"\nwrite_max = \"{write_max}\"\npath = \"{}\"\n",
                data.display()
            )
        };
        let label = format!("{schema}-{name}-{}", address.port());
        let (history, addresses) = (Arc::clone(&self.history), self.addresses.clone());
        let keeper = Keeper::beside((&label, &sections), &self.upstreams, history, addresses);
        Replica { name, keeper, to_database: Vec::new(), internal: address }
    }

    /// The part of each gateway's configuration that is the same for all.
    pub(super) fn upstreams(&self) -> &str {
        &self.upstreams
    }

    /// Clients ask these gateways alone, as behind a balancer.
    pub(super) fn show_only(&self, shown: &[usize]) {
        for (at, replica) in self.replicas.iter().enumerate() {
            replica.keeper.show(shown.contains(&at));
        }
    }

    /// Stops a gateway like a machine that is suspended. Requests to it are answered later, or never.
    pub(super) fn pause(&self, at: usize) {
        self.history.record(Fact::Ends);
        self.replicas[at].keeper.signal(Signal::STOP);
    }

    pub(super) fn go_on(&self, at: usize) {
        self.replicas[at].keeper.signal(Signal::CONT);
        self.history.record(Fact::Starts);
    }

    /// Makes so many calls at a gateway that their servers hold, half of them at each server; all have arrived there.
    pub(super) async fn hold_calls_at(&self, at: usize, many: usize) {
        self.show_only(&[at]);
        let half = many / 2;
        let before = [&self.resumable, &self.plain].map(|ledger| ledger.state.count("called"));
        join_all((0..half).flat_map(|_| [RESUMABLE, PLAIN]).map(|path| self.hold_call(path))).await;
        for (ledger, before) in [&self.resumable, &self.plain].into_iter().zip(before) {
            let arrived = ledger.state.reached("called", before + half);
            timeout(PATIENCE, arrived).await.expect("all calls arrive");
        }
    }

    /// Makes a call that its server holds, at a gateway that is shown; once more where a busy machine's database does not take it in time.
    pub(super) async fn hold_call(&self, path: &'static str) {
        until("a call becomes a task", async || {
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            let job = held_job(&format!("{}-{number}-", path.trim_matches('/').replace('/', "-")));
            self.crowd.create_task(&job, client(Flavour::Extension, path)).await
        })
        .await;
    }

    pub(super) fn release_calls(&self) {
        self.resumable.state.release();
        self.plain.state.release();
    }

    /// Servers hold such calls again from now on.
    pub(super) fn hold_calls(&self) {
        self.resumable.state.hold();
        self.plain.state.hold();
    }

    /// All tasks whose handles clients have, with the nonces of their calls.
    pub(super) fn handles(&self) -> Vec<(String, String)> {
        let entries = self.history.entries().into_iter();
        let handles = entries.filter_map(|entry| {
            if let Fact::Handle { nonce, task, .. } = entry.fact { Some((nonce, task)) } else { None }
        });
        handles.collect()
    }

    /// How many tasks a client sees completed with the server's own answer.
    pub(super) async fn completed(&self) -> usize {
        self.crowd.poll_all_until_answered(PATIENCE).await;
        let mut completed = BTreeSet::new();
        for entry in self.history.entries() {
            if let Fact::Polled { task, seen: PollResult::Settled { status, .. }, .. } = entry.fact
                && status == "completed"
            {
                completed.insert(task);
            }
        }
        completed.len()
    }

    /// Records that the database fails for clients, or works again.
    pub(super) fn records_outage(&self, is_out: bool) {
        self.history.record(if is_out { Fact::StoreFails } else { Fact::StoreHeals });
    }

    /// Checks that each running gateway answers, polls all tasks once more at each shown one, kills all gateways, and judges the
    /// history. Returns how many tasks were settled.
    pub(super) async fn judge(mut self) -> usize {
        let is_running = |replica: &&Replica| replica.keeper.is_running();
        join_all(self.replicas.iter().filter(is_running).map(Replica::check_alive)).await;
        let handed = || self.history.entries().iter().filter(|entry| matches!(entry.fact, Fact::Handle { .. })).count();
        // No client waits for the end of calls that were held.
        let begin = Instant::now();
        let settled = loop {
            let settled = self.crowd.poll_all_until_answered(PATIENCE).await;
            if settled == handed() || begin.elapsed() >= PATIENCE {
                break settled;
            }
            sleep(Duration::from_millis(100)).await;
        };
        for replica in &mut self.replicas {
            if replica.keeper.is_running() {
                replica.keeper.kill().await;
            }
        }
        let entries = self.history.entries();
        let found =
            violations(&entries, Bounds { settle_max: self.settings.settle_max, on_its_way_max: ON_ITS_WAY_MAX });
        let stories: Vec<_> =
            found.iter().take(STORIES_MAX).map(|one| format!("{one}\n{}", story(&entries, one))).collect();
        let logs: Vec<_> = self.replicas.iter().map(|replica| replica.keeper.log().display().to_string()).collect();
        assert!(found.is_empty(), "{}\nsee {}", stories.join("\n"), logs.join(", "));
        let handles = entries.iter().filter(|entry| matches!(entry.fact, Fact::Handle { .. })).count();
        assert_eq!(
            settled,
            handles,
            "all that were handed out are settled, wherever they are asked for; see {}",
            logs.join(", ")
        );
        self.replicas.iter().for_each(|replica| replica.keeper.forget_log());
        settled
    }
}
