//! Opens connections to the database, and drives them.
//!
//! A connection is driven by `poll_message`, so that nothing the server says besides its answers is lost: a warning on a
//! commit makes it unsure (rule 2), and notifications go to whoever listens. A connection that is dropped is closed at once,
//! whatever the server does for it, and never sends a cancel request: that would make a commit that waits for its standby
//! look like one that was made.

use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_platform_verifier::Verifier;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Notification, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::TaskTracker;

use super::health::PostgresHealth;
use super::hosts::{each_address, each_host};
use super::notices::SessionNotices;
use super::open_error::{PostgresOpenError, Retry, away};
use super::settings::PostgresSettings;
use super::shared_clock::boot_time;
use crate::replica::commit_trust::is_doubtful;
use crate::replica::{ReadTrust, ServerMark};
use crate::tls;

/// What a server's list shows of a gateway's name: the whole has 63 bytes.
const NAME_LEN_MAX: usize = 24;
/// How long nothing comes before either side asks whether the other is there; how long it waits for an answer, and how often it asks.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// How long the server waits at least for the rest of a batch.
const IDLE_MIN: Duration = Duration::from_secs(2);
/// The shortest and the longest wait before a connect is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What every session is set to, whatever role and database say: a warning is to be heard, an acknowledged commit is a durable
/// one, and a plan is the same with and without statistics. Rows are found by their keys; a cost for pages would let
/// the planner read a table instead that it takes for a small one.
const SESSION: &str = "SET client_min_messages = warning; SET synchronous_commit = on; SET statement_timeout = 0; \
    SET lock_timeout = 0; SET default_transaction_isolation = 'read committed'; \
    SET default_transaction_deferrable = off; SET bytea_output = hex; SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; \
    SET random_page_cost = 0; SET seq_page_cost = 0; SET max_parallel_workers_per_gather = 0; SET work_mem = '64MB';";

/// Statements of this process's earlier connections for the same duty that go on; and what tells one run of one server from any
/// other: its start, its address, and its timeline. As long as there are any such statements nothing new is begun, so that no more than one waits for
/// a standby that is away, however long that takes.
const ARRIVAL: &str = "SELECT (SELECT count(*) FROM pg_stat_activity
        WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND state <> 'idle'),
    concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), inet_server_addr(), current_setting('port'),
        left(pg_walfile_name(pg_current_wal_lsn()), 8))";

/// What the server promises about commits, and how the session is called that says so; asked in each transaction. The server takes
/// a setting of whatever name that has a dot.
const PROMISE: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
    current_setting('taskgate.session', true)";

/// What only something between says: of statements that are missing, or there already, without this connection's doing; and that
/// a transaction must not be begun.
const OF_POOLERS: [&str; 3] = ["26000", "42P05", "08P01"];

/// Tells this process's connections from those of others, in the server's list. It stays the same for as long as the process runs:
/// a try to open the store, and a life that begins anew, find what an earlier one has left under way.
static PROCESS_TOKEN: LazyLock<u32> = LazyLock::new(|| u32::from_be_bytes(crate::random::bytes()));

type TlsConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// One connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) settings: Arc<PostgresSettings>,
    /// Asks what the server promises, and how the session is called that says so.
    pub(super) promise: Statement,
    /// What it was called when it was set up.
    pub(super) name: String,
    /// The server at its other end.
    pub(super) server: ServerMark,
    pub(super) notices: SessionNotices,
    /// What transactions prove, and doubts take away, for all connections.
    pub(super) trust: SharedReadTrust,
    _driver: SessionDriver,
}

/// Which reads may be believed, for all connections of this life.
pub(super) type SharedReadTrust = Arc<Mutex<ReadTrust>>;

#[derive(Debug)]
struct SessionDriver(AbortHandle);

impl Drop for SessionDriver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where the session's notifications go; what finds no room there is lost, which is said by leaving the channel full.
pub(super) type Listener = mpsc::Sender<Notification>;

/// Opens connections.
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

    /// Opens a connection to the first host that can be written to and whose server lets nothing wait, and sets its session up. Reads
    /// files with secrets anew.
    ///
    /// # Errors
    /// `Away` for whatever may be otherwise later: a wrong password may be one that was changed. The others as
    /// [`super::PostgresStore::open`].
    pub(super) async fn connect(&self, duty: &str, listener: Option<Listener>) -> Result<Session, PostgresOpenError> {
        let (config, tls, within) = (self.settings.access.read()?, self.tls()?, self.write_max());
        let mut last = PostgresOpenError::Away(PostgresHealth::silent());
        for mut host in each_host(&config) {
            host.application_name(self.name_of_connections() + duty)
                .keepalives_idle(KEEPALIVE.0)
                .keepalives_interval(KEEPALIVE.1)
                .keepalives_retries(KEEPALIVE.2);
            for address in timeout(within, each_address(host)).await.unwrap_or_default() {
                // Boxed, as whoever opens a store waits for several of them, in place.
                match Box::pin(self.reach(&address, tls.clone(), listener.clone())).await {
                    Ok(session) => return Ok(session),
                    Err(error) if error.retry() != Retry::Always => return Err(error),
                    // Where commits wait is more to be known than which other host is no primary.
                    Err(_) if matches!(last, PostgresOpenError::Away(PostgresHealth::Behind(_))) => (),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    pub(super) fn write_max(&self) -> Duration {
        self.settings.access.write_max
    }

    /// A session at one address, which has as long as a write for each step: one that accepts connections and says nothing, as where
    /// the disk stands still, is passed over, as is one where an earlier statement goes on, and the others are asked.
    async fn reach(
        &self,
        address: &Config,
        tls: MakeRustlsConnect,
        listener: Option<Listener>,
    ) -> Result<Session, PostgresOpenError> {
        let within = self.write_max();
        let connecting = async { address.connect(tls).await.map_err(away) };
        let (client, connection) = in_time(within, connecting).await?;
        in_time(within, self.arrive(client, connection, listener)).await
    }

    /// What the name of each of this process's connections begins with, in the server's list.
    pub(super) fn name_of_connections(&self) -> String {
        let name = self.settings.replica.name.chars().filter(char::is_ascii_graphic);
        format!("taskgate {} {:08x} ", name.take(NAME_LEN_MAX).collect::<String>(), *PROCESS_TOKEN)
    }

    /// Sets up the session of a connection.
    async fn arrive(
        &self,
        client: Client,
        connection: TlsConnection,
        listener: Option<Listener>,
    ) -> Result<Session, PostgresOpenError> {
        let schema = &self.settings.access.schema;
        let notices = SessionNotices::default();
        let driver = SessionDriver(self.tracker.spawn(drive(connection, notices.clone(), listener)).abort_handle());
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
            return Err(PostgresOpenError::behind("an earlier statement goes on, as if it waited for a standby"));
        }
        self.trust.lock().connected(boot_time());
        let (settings, trust) = (Arc::clone(&self.settings), Arc::clone(&self.trust));
        Ok(Session { client, settings, promise, name, server, notices, trust, _driver: driver })
    }

    /// What the server is to do about a session whose gateway is gone: one that ends in the middle of a batch has locks, which
    /// everybody else would wait for. A commit that waits for its standby is not idle.
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

/// Bounds a step of a connection's beginning.
///
/// # Errors
/// Those of `step`; `Away` where it takes longer than `within`.
pub(super) async fn in_time<T>(
    within: Duration,
    step: impl Future<Output = Result<T, PostgresOpenError>>,
) -> Result<T, PostgresOpenError> {
    let done = timeout(within, step).await;
    done.unwrap_or_else(|_| Err(PostgresOpenError::Away(PostgresHealth::silent())))
}

async fn drive<S, T>(mut connection: Connection<S, T>, notices: SessionNotices, listener: Option<Listener>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                if is_doubtful(&notices.add(&notice).as_sql()) {
                    tracing::warn!(code = notice.code().code(), "the database warns: {}", notice.message());
                }
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                // Its receiver finds the channel full, and knows that some are missing.
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

/// What an error says of a connection that was just made.
pub(super) fn arrival_error(error: tokio_postgres::Error) -> PostgresOpenError {
    let is_of_pooler = error.code().is_some_and(|code| OF_POOLERS.contains(&code.code()));
    if is_of_pooler { PostgresOpenError::Pooled } else { away(error) }
}

/// How long to wait before the next try, after so many that failed: twice as long each time, and not all at once.
pub(super) fn back_off(failures: u32) -> Duration {
    let (first, last) = BACK_OFF;
    let span = first.saturating_mul(1 << failures.min(8)).min(last);
    let [random] = crate::random::bytes::<1>();
    span.mul_f64(0.5 + f64::from(random) / 512.0)
}
