//! Opens connections to the database, and drives them. `poll_message` drives a connection, so no notice or notification
//! is lost: a warning on a commit makes its outcome unknown. Dropping sends no cancel request: a cancelled commit that
//! waits for its standby looks made.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_platform_verifier::Verifier;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Notification, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::boot_time;
use super::health::PostgresHealth;
use super::notices::SessionNotices;
use super::open_error::{PostgresOpenError, unavailable};
use super::settings::PostgresSettings;
use crate::replica::commit_trust::voids_acknowledgement;
use crate::replica::{ReadTrust, ServerMark};
use crate::tls;

/// Characters of the replica's name in `application_name`, which is limited to 63 bytes.
const NAME_LEN_MAX: usize = 24;
/// Idle time before TCP keepalive probes, the interval between them, and their number.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// Minimum time that the server waits for the rest of a batch.
const IDLE_MIN: Duration = Duration::from_secs(2);
/// The shortest and the longest delay before a reconnect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Overrides settings of the role and database: warnings arrive, an acknowledged commit is durable, and plans do not
/// depend on statistics. With page costs the planner might scan a table that it believes to be small.
const SESSION: &str = "SET client_min_messages = warning; SET synchronous_commit = on; SET statement_timeout = 0; \
    SET lock_timeout = 0; SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_deferrable = off; SET bytea_output = hex; SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; \
    SET random_page_cost = 0; SET seq_page_cost = 0; SET max_parallel_workers_per_gather = 0; SET work_mem = '64MB';";

/// Counts unfinished statements of earlier connections for the same duty, and returns the mark of the server's run. A
/// new connection waits until the count is zero: at most one statement waits for an unavailable standby.
const ARRIVAL: &str = "SELECT (SELECT count(*) FROM pg_stat_activity
        WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND state <> 'idle'),
    concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), inet_server_addr(), current_setting('port'),
        left(pg_walfile_name(pg_current_wal_lsn()), 8))";

/// Returns the server's commit settings, and the session's name; part of each transaction.
const PROMISE: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
    current_setting('taskgate.session', true)";

/// Codes that imply a pooler: prepared statements that are unexpectedly missing or there, and a refused `BEGIN`.
const OF_POOLERS: [&str; 3] = ["26000", "42P05", "08P01"];

/// Constant for the process: a retried open or a new incarnation finds unfinished statements of old connections.
static PROCESS_TOKEN: LazyLock<u32> = LazyLock::new(|| u32::from_be_bytes(crate::random::bytes()));

type TlsConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) promise: Statement,
    pub(super) name: String,
    pub(super) server: ServerMark,
    pub(super) notices: SessionNotices,
    pub(super) trust: SharedReadTrust,
    _driver: AbortOnDropHandle<()>,
}

pub(super) type SharedReadTrust = Arc<Mutex<ReadTrust>>;

/// Receives notifications. Those that find it full are dropped; a full channel reveals the loss.
pub(super) type Listener = mpsc::Sender<Notification>;

#[derive(Debug)]
pub(super) struct DatabaseConnector {
    settings: Arc<PostgresSettings>,
    tracker: TaskTracker,
    pub(super) trust: SharedReadTrust,
}

impl DatabaseConnector {
    pub(super) fn new(settings: Arc<PostgresSettings>, tracker: TaskTracker) -> Self {
        let trust = Arc::new(Mutex::new(ReadTrust::new(settings.access.read_trust, boot_time())));
        Self { settings, tracker, trust }
    }

    /// Connects to the first host that accepts writes and lets no commit wait. Reads the files with secrets again.
    /// `Unavailable` for faults that may pass, even a wrong password; others as [`super::PostgresStore::open`].
    pub(super) async fn connect(&self, duty: &str, listener: Option<Listener>) -> Result<Session, PostgresOpenError> {
        let (config, tls, within) = (self.settings.access.read()?, self.tls()?, self.write_max());
        let (mut last, mut faults) = (PostgresHealth::silent(), BTreeSet::new());
        for mut host in each_host(&config) {
            let server = name_of(&host);
            host.application_name(self.name_of_connections() + duty)
                .keepalives_idle(KEEPALIVE.0)
                .keepalives_interval(KEEPALIVE.1)
                .keepalives_retries(KEEPALIVE.2);
            let addresses = timeout(within, each_address(host)).await.unwrap_or_default();
            if addresses.is_empty() {
                faults.insert(format!("{server}: the lookup of this name takes too long"));
            }
            for address in addresses {
                // Boxed, since opening a store awaits several of these inline.
                match Box::pin(self.reach(&address, tls.clone(), listener.clone())).await {
                    Ok(session) => return Ok(session),
                    Err(PostgresOpenError::Unavailable(health)) => {
                        faults.insert(format!("{server}: {health}"));
                        // A host with waiting commits is more important to report than one that is no primary.
                        if !matches!(last, PostgresHealth::Behind(_)) {
                            last = health;
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Err(PostgresOpenError::Unavailable(last.with_reason(faults.into_iter().collect::<Vec<_>>().join(", "))))
    }

    pub(super) fn write_max(&self) -> Duration {
        self.settings.access.write_max
    }

    /// Sets up a session. Each step is limited as a write, so a silent or busy server does not hold up the others.
    async fn reach(
        &self,
        address: &Config,
        tls: MakeRustlsConnect,
        listener: Option<Listener>,
    ) -> Result<Session, PostgresOpenError> {
        let within = self.write_max();
        let connecting = async { address.connect(tls).await.map_err(unavailable) };
        let (client, connection) = in_time(within, connecting).await?;
        in_time(within, self.arrive(client, connection, listener)).await
    }

    /// The prefix of this process's connection names in the server's list.
    pub(super) fn name_of_connections(&self) -> String {
        let name = self.settings.replica.name.chars().filter(char::is_ascii_graphic);
        format!("taskgate {} {:08x} ", name.take(NAME_LEN_MAX).collect::<String>(), *PROCESS_TOKEN)
    }

    async fn arrive(
        &self,
        client: Client,
        connection: TlsConnection,
        listener: Option<Listener>,
    ) -> Result<Session, PostgresOpenError> {
        let schema = &self.settings.access.schema;
        let notices = SessionNotices::default();
        let driver = AbortOnDropHandle::new(self.tracker.spawn(drive(connection, notices.clone(), listener)));
        let name = format!("{:032x}", u128::from_be_bytes(crate::random::bytes()));
        let arriving = async {
            let named = format!("SET taskgate.session = '{name}'; SET search_path = {schema};");
            client.batch_execute(&format!("{SESSION} {} {named}", self.bounds())).await?;
            let arrived = client.query_one(ARRIVAL, &[]).await?;
            let promise = client.prepare(PROMISE).await?;
            Ok((arrived.try_get::<_, i64>(0)?, mark(arrived.try_get(1)?), promise))
        };
        let (left, server, promise) = arriving.await.map_err(arrival_error)?;
        if left > 0 {
            return Err(PostgresOpenError::behind("an earlier statement still waits, as for a standby or a lock"));
        }
        self.trust.lock().connected(boot_time());
        let (settings, trust) = (Arc::clone(&self.settings), Arc::clone(&self.trust));
        Ok(Session { client, settings, promise, name, server, notices, trust, _driver: driver })
    }

    /// Lets the server end sessions of a crashed gateway, which hold locks. A commit waiting for a standby is not idle.
    fn bounds(&self) -> String {
        let (idle, interval, count) = KEEPALIVE;
        format!(
            "SET idle_in_transaction_session_timeout = {}; SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; \
             SET tcp_keepalives_count = {count};",
            (self.write_max() * 2).max(IDLE_MIN).as_millis(),
            idle.as_secs(),
            interval.as_secs()
        )
    }

    fn tls(&self) -> Result<MakeRustlsConnect, PostgresOpenError> {
        let wrong = |error: rustls::Error| PostgresOpenError::Tls(tls::in_words(&error));
        let builder = ClientConfig::builder_with_provider(tls::provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
        let builder = match &self.settings.access.ca {
            Some(path) => builder.with_root_certificates(tls::read_roots(path)?),
            None => {
                let verifier = Verifier::new(tls::provider()).map_err(wrong)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        Ok(MakeRustlsConnect::new(builder.with_no_client_auth()))
    }
}

/// Limits a step of opening a connection: `Unavailable` after `within`.
pub(super) async fn in_time<T>(
    within: Duration,
    step: impl Future<Output = Result<T, PostgresOpenError>>,
) -> Result<T, PostgresOpenError> {
    let done = timeout(within, step).await;
    done.unwrap_or_else(|_| Err(PostgresOpenError::Unavailable(PostgresHealth::silent())))
}

async fn drive<S, T>(mut connection: Connection<S, T>, notices: SessionNotices, listener: Option<Listener>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                if voids_acknowledgement(&notices.add(&notice).as_sql()) {
                    tracing::warn!(code = notice.code().code(), "the database warns: {}", notice.message());
                }
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                // The receiver finds the channel full, and concludes that some are missing.
                let _ = listener.as_ref().map(|listener| listener.try_send(notification));
            }
            Some(Ok(_)) => (),
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to the database ended");
                return;
            }
            None => return,
        }
    }
}

fn mark(server: &str) -> ServerMark {
    let mut hasher = DefaultHasher::new();
    server.hash(&mut hasher);
    ServerMark(hasher.finish())
}

pub(super) fn arrival_error(error: tokio_postgres::Error) -> PostgresOpenError {
    let is_of_pooler = error.code().is_some_and(|code| OF_POOLERS.contains(&code.code()));
    if is_of_pooler { PostgresOpenError::Pooled } else { unavailable(error) }
}

/// The delay before the next try: doubles with each failure, with jitter.
pub(super) fn back_off(failures: u32) -> Duration {
    let (first, last) = BACK_OFF;
    let span = first.saturating_mul(1 << failures.min(8)).min(last);
    let [random] = crate::random::bytes::<1>();
    span.mul_f64(0.5 + f64::from(random) / 512.0)
}

const PORT: u16 = 5432;

/// The host's name and port, without user and password.
pub(super) fn name_of(host: &Config) -> String {
    let port = host.get_ports().first().copied().unwrap_or(PORT);
    match host.get_hosts() {
        [Host::Tcp(name), ..] if name.contains(':') => format!("[{name}]:{port}"),
        [Host::Tcp(name), ..] => format!("{name}:{port}"),
        [Host::Unix(path), ..] => format!("{}:{port}", path.display()),
        [] => format!("port {port}"),
    }
}

/// The configuration of each host alone, in the order of tries. Drops settings that a URL cannot express.
pub(super) fn each_host(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let many = hosts.len();
    // The library rejects numbers that do not match.
    if many < 2 || ![0, many].contains(&addresses.len()) || ![0, 1, many].contains(&ports.len()) {
        return vec![config.clone()];
    }
    let each = hosts.iter().enumerate().map(|(nth, host)| {
        let mut one = without_host(config);
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(path) => one.host_path(path),
        };
        if let Some(address) = addresses.get(nth) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(nth).or_else(|| ports.first()) {
            one.port(*port);
        }
        one
    });
    balanced(config, each.collect())
}

/// The configuration of each address of a host. If the lookup fails, the library reports the error.
pub(super) async fn each_address(host: Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else { return vec![host] };
    let port = host.get_ports().first().copied().unwrap_or(PORT);
    let found: Vec<_> = lookup_host((name.as_str(), port)).await.map(Iterator::collect).unwrap_or_default();
    if found.is_empty() {
        return vec![host];
    }
    let each = found.iter().map(|address| {
        let mut one = host.clone();
        one.hostaddr(address.ip());
        one
    });
    balanced(&host, each.collect())
}

fn balanced(config: &Config, mut each: Vec<Config>) -> Vec<Config> {
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        let [random] = crate::random::bytes::<1>();
        let many = each.len().max(1);
        each.rotate_left(usize::from(random) % many);
    }
    each
}

fn without_host(config: &Config) -> Config {
    let mut one = Config::new();
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_tcp_user_timeout().map(|span| one.tcp_user_timeout(*span));
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::settings::read_url;

    #[test]
    fn a_host_alone_has_all_that_the_url_says() {
        let of = |hosts: &str| {
            let url = format!(
                "postgres://me:secret@{hosts}/base?options=-c%20a%3Db&sslmode=require&tcp_user_timeout=7&channel_binding=require&keepalives=0"
            );
            read_url(&url).unwrap()
        };
        assert!(each_host(&of("a:1,b:2,[::1]:3")) == ["a:1", "b:2", "[::1]:3"].map(of));
        let sockets = |hosts: &str| read_url(&format!("postgres://me@{hosts}/base")).unwrap();
        assert!(each_host(&sockets("%2Frun,%2Fvar")) == ["%2Frun", "%2Fvar"].map(sockets));
    }

    #[test]
    fn names_of_servers_have_no_secrets() {
        for (host, expected) in
            [("db1", "db1:5432"), ("[::1]:7", "[::1]:7"), ("%2Frun:6", "/run:6"), ("db1:1,db2:2", "db1:1 db2:2")]
        {
            let hosts = each_host(&read_url(&format!("postgres://me:secret@{host}/base")).unwrap());
            assert_eq!(hosts.iter().map(name_of).collect::<Vec<_>>().join(" "), expected);
        }
    }

    #[test]
    fn other_parameters_are_left_to_the_library() {
        for url in ["postgres://me@a/base", "host=a,b,c port=1,2 user=me"] {
            let config = read_url(url).unwrap();
            assert!(each_host(&config) == [config]);
        }
    }

    #[tokio::test]
    async fn a_name_is_tried_by_its_addresses_and_keeps_its_name() {
        let host = read_url("postgres://me@localhost:7/base").unwrap();
        let each = each_address(host.clone()).await;
        assert!(each.iter().all(|one| one.get_hosts() == host.get_hosts() && one.get_hostaddrs()[0].is_loopback()));
        assert!(!each.is_empty() && each.iter().all(|one| one.get_hostaddrs().len() == 1));
        let socket = read_url("postgres://me@%2Frun/base").unwrap();
        assert!(each_address(socket.clone()).await == [socket]);
    }
}
