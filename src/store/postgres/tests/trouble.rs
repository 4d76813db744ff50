//! Tests unusable servers: the store reports the reason, and recovers by itself.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use support::fault_proxy::{Fault, FaultProxy, Verb};
use support::postgres::ServerStop;

use super::*;
use crate::store::postgres::session::name_of;
use crate::store::postgres::settings::read_url;

const ROLE: &str = "keeper";

/// A store that connects with its own role and a password from a file.
struct RoleStore {
    server: PostgresServer,
    folder: tempfile::TempDir,
    store: Arc<PostgresStore>,
}

fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

impl RoleStore {
    async fn begin() -> Option<Self> {
        Self::leased(LeaseTerms::LEASE_MAX).await
    }

    async fn leased(span: Duration) -> Option<Self> {
        let server = PostgresServer::start(&[])?;
        server.psql(&format!("CREATE ROLE {ROLE} LOGIN PASSWORD 'first'; GRANT CREATE ON DATABASE postgres TO {ROLE}"));
        server.add_hba_lines(&[&format!("local all {ROLE} scram-sha-256")]);
        let folder = tempfile::tempdir().unwrap();
        write_secret(&folder.path().join("password"), "first\n");
        let settings = with(settings(&server, &new_schema()), |access| {
            access.url = DatabaseUrl::Here(server.url().replace("postgres@", &format!("{ROLE}@")));
            access.password_file = Some(folder.path().join("password"));
        });
        let store = opened(PostgresSettings { terms: lease(span), ..settings }).await;
        store.insert(&task("a", 1)).await.unwrap();
        let begun = Self { server, folder, store };
        begun.connected().await;
        Some(begun)
    }

    fn password_file(&self) -> PathBuf {
        self.folder.path().join("password")
    }

    /// After a write: waits until the control connection is open too, so that none escapes a cut.
    async fn connected(&self) {
        listens(&self.store).await;
    }

    fn cut(&self) {
        let sql = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{ROLE}'");
        self.server.psql(&sql);
    }

    /// The text of a connection that does not open, which names the server.
    fn unopened(&self, reason: &str) -> String {
        format!("{}: {reason}", name_of(&read_url(&self.server.url()).unwrap()))
    }

    async fn is_in_trouble(&self, kind: fn(String) -> PostgresHealth, reason: &str) {
        self.becomes(kind(self.unopened(reason))).await;
        // The first write finds the connection gone.
        for _ in 0..2 {
            let refused = self.store.insert(&task("a", 2)).await;
            assert!(matches!(refused, Err(StoreError::Io(_) | StoreError::UnknownCommit(_))), "{refused:?}");
        }
    }

    async fn becomes(&self, health: PostgresHealth) {
        let begin = Instant::now();
        while self.store.health() != health {
            assert!(begin.elapsed() < PATIENCE, "{:?}, and not {health:?}: {}", self.store.health(), self.server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn goes_on(&self) {
        self.becomes(PostgresHealth::Good).await;
        let begin = Instant::now();
        loop {
            let written = self.store.insert(&task("a", 3)).await;
            let read = self.store.load(&task("a", 1).key, START).await;
            if matches!(written, Ok(_) | Err(StoreError::Exists)) && read.as_ref().is_ok_and(Option::is_some) {
                return self.connected().await;
            }
            assert!(begin.elapsed() < PATIENCE, "{written:?} {read:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kinds_of_temporary_trouble_of_a_server_are_distinguished() {
    let Some(at) = RoleStore::begin().await else { return };
    let read_only = |is: &str| format!("ALTER ROLE {ROLE} SET default_transaction_read_only = {is}");
    at.server.psql(&read_only("on"));
    at.cut();
    at.is_in_trouble(PostgresHealth::ReadOnly, "the database's server is read-only").await;
    at.server.psql(&read_only("off"));
    at.goes_on().await;

    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT 0"));
    at.cut();
    at.is_in_trouble(PostgresHealth::Refusing, "the database's server has no connection left (53300)").await;
    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT -1"));
    at.goes_on().await;

    at.server.stop(ServerStop::Fast);
    until("no server is there", || matches!(at.store.health(), PostgresHealth::Unavailable(_))).await;
    at.server.write_file("standby.signal", "");
    at.server.configure(&["hot_standby = off"]);
    at.server.launch();
    let reason = "the database's server takes no connections yet: it starts, stops, or is a standby (57P03)";
    at.is_in_trouble(PostgresHealth::Refusing, reason).await;
    at.server.stop(ServerStop::Fast);
    at.server.remove_file("standby.signal");
    at.server.restart();
    at.goes_on().await;
    at.store.close().await;
}

/// The control and writer connections are open, and the role's connection limit excludes others.
#[tokio::test(flavor = "multi_thread")]
async fn refused_readers_are_reported_and_connect_later_by_themselves() {
    let Some(at) = RoleStore::begin().await else { return };
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}'");
    until("no other client is connected", || at.server.psql(&count) == "2").await;
    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT 2"));
    let key = task("a", 1).key;
    let (row, page) =
        (at.store.load(&key, START).await, at.store.page(&key.owner, PageRange::new(None, 9, START)).await);
    assert!(row.is_err() && page.is_err(), "{row:?} {page:?}");
    let reason = "the database's server has no connection left (53300)";
    assert_eq!(at.store.health(), PostgresHealth::Refusing(at.unopened(reason)));
    at.store.insert(&task("a", 2)).await.expect("writes go on");
    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT -1"));
    at.becomes(PostgresHealth::Good).await;
    assert!(at.store.load(&key, START).await.unwrap().is_some());
    at.store.close().await;
}

/// A connection that ends within a read is reopened before the store reports trouble.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_whose_connection_ends_is_no_trouble_of_the_server() {
    let Some(at) = RoleStore::begin().await else { return };
    let schema = &at.store.state.settings.access.schema;
    let (client, connection) = tokio_postgres::connect(&at.server.conninfo(), tokio_postgres::NoTls).await.unwrap();
    TaskTracker::new().spawn(connection);
    client.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.tg_task IN ACCESS EXCLUSIVE MODE")).await.unwrap();
    let key = task("a", 1).key;
    let ended = async {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{ROLE}' AND wait_event_type = 'Lock'"
        );
        until("a read that waits", || at.server.psql(&sql) != "0").await;
    };
    let (read, ()) = tokio::join!(at.store.load(&key, START), ended);
    assert!(read.is_err(), "{read:?}");
    assert_eq!(at.store.health(), PostgresHealth::Good);
    drop(client);
    assert!(at.store.load(&key, START).await.unwrap().is_some());
    at.store.close().await;
}

/// Its standby is unavailable (N1): it answers, but acknowledges no commit.
#[tokio::test(flavor = "multi_thread")]
async fn n1_a_server_whose_commits_wait_is_behind_until_they_do_not() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let settings = with(settings(&server, &new_schema()), |access| access.write_max = Duration::from_secs(3));
    let store = opened(settings.clone()).await;
    name_standbys(&server, "missing").await;
    until("beats say so alone", || matches!(store.health(), PostgresHealth::Behind(_))).await;
    let mut beside = settings;
    beside.replica.name.push('+');
    let refused = open_with(beside).await;
    let is_behind =
        |error: &PostgresOpenError| matches!(error, PostgresOpenError::Unavailable(PostgresHealth::Behind(_)));
    assert!(refused.as_ref().is_err_and(is_behind), "{refused:?}");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        let _ = store.load(&task("a", 1).key, START).await;
        assert!(matches!(store.health(), PostgresHealth::Behind(_)), "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    name_standbys(&server, "").await;
    until("all is well again", || store.health() == PostgresHealth::Good).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_read_only_is_not_used() {
    let Some(at) = RoleStore::begin().await else { return };
    at.server.configure(&["default_transaction_read_only = on"]);
    at.server.reload();
    let begin = Instant::now();
    // Until the server has reloaded, it accepts writes.
    for id in 100.. {
        let refused = at.store.insert(&task("a", id)).await;
        if let Err(error) = refused {
            assert!(format!("{error:?}").contains("read-only"), "{error:?}");
            break;
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    at.is_in_trouble(PostgresHealth::ReadOnly, "the database's server is read-only").await;
    at.server.configure(&["default_transaction_read_only = off"]);
    at.server.reload();
    at.goes_on().await;
    at.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_read_again_at_the_next_connect() {
    let Some(at) = RoleStore::begin().await else { return };
    at.server.psql(&format!("ALTER ROLE {ROLE} PASSWORD 'second'"));
    at.store.insert(&task("a", 9)).await.expect("old connections live on");
    at.cut();
    at.is_in_trouble(PostgresHealth::Refusing, "the database's server refuses the password (28P01)").await;
    write_secret(&at.password_file(), "second\n");
    at.goes_on().await;
    at.store.close().await;
}

/// The other replicas declare such a gateway dead, and would claim a row that it inserts (7.5).
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_acknowledged_heartbeats_takes_no_tasks_and_continues_its_own() {
    let Some(at) = RoleStore::leased(LeaseTerms::LEASE_MIN).await else { return };
    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT 0"));
    let control =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE '% control'";
    assert_eq!(at.server.psql(control), "1");
    let begin = Instant::now();
    for id in 100.. {
        if let Err(refused) = at.store.insert(&task("a", id)).await {
            let unanswered = boot_time().since(at.store.view.now().heartbeat_sent);
            let is_late = unanswered >= at.store.state.settings.terms.insert_max();
            assert!(matches!(refused, StoreError::Io(_)) && is_late, "{refused:?}");
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "it still accepts tasks");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    at.store.replace(Revision(1), WriteRole::Holder, &task("a", 1)).await.unwrap();
    at.server.psql(&format!("ALTER ROLE {ROLE} CONNECTION LIMIT -1"));
    at.goes_on().await;
    at.store.close().await;
}

/// A gateway that ended within a batch does not block its rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_sent_batch_is_rolled_back_by_the_server() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let settings = with(settings(server, &schema), |access| access.write_max = Duration::from_secs(2));
    let store = opened(settings).await;
    let writes = || server.psql(&format!("SELECT sum(writes) FROM {schema}.tg_lane"));
    let before = writes();
    let session = store.connector.connect("half", None).await.unwrap();
    session.client.batch_execute("BEGIN; UPDATE tg_lane SET writes = writes + 1").await.unwrap();
    until("the server ends it", || session.client.is_closed()).await;
    assert_eq!(writes(), before);
    store.insert(&task("a", 1)).await.unwrap();
    store.close().await;
}

/// A server that falls silent between the connect and the first heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_reconnects_for_heartbeats_does_not_wait_for_ever() {
    let Some(server) = shared() else { return };
    let (schema, proxy) = (new_schema(), FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await);
    let store = opened(behind(&proxy, settings(server, &schema))).await;
    let name = store.connector.name_of_connections();
    proxy.set_times(Fault::down("LISTEN", 0, Verb::Stall), 1);
    let control = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{name}control'"
    );
    until("the one that beats is there", || server.psql(&control) == "1").await;
    tokio::time::timeout(PATIENCE, proxy.strikes()).await.expect("it connects anew");
    let heartbeat = || server.psql(&format!("SELECT beat FROM {schema}.tg_replica")).parse::<u64>().unwrap();
    let before = heartbeat();
    until("it beats again", || heartbeat() > before).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_owns_the_schema_need_not_be_allowed_to_make_one() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let schema = new_schema();
    server.psql(&format!("CREATE ROLE {ROLE} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {ROLE}"));
    server.add_hba_lines(&[&format!("local all {ROLE} trust")]);
    let settings = with(settings(&server, &schema), |access| {
        access.url = DatabaseUrl::Here(server.url().replace("postgres@", &format!("{ROLE}@")));
    });
    let store = opened(settings).await;
    store.insert(&task("a", 1)).await.unwrap();
    store.close().await;
}

/// Makes writes that need space fail.
fn disk_is_full(server: &PostgresServer, schema: &str, when: &str) {
    server.psql(&format!(
        "CREATE OR REPLACE FUNCTION {schema}.no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device'; END $$;
        CREATE OR REPLACE TRIGGER no_room BEFORE INSERT OR UPDATE ON {schema}.tg_task FOR EACH ROW WHEN ({when})
            EXECUTE FUNCTION {schema}.no_room()"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_only_writes_without_room() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let rows = futures_util::future::try_join_all((1..5).map(async |id| store.insert(&task("a", id)).await));
    rows.await.unwrap();
    disk_is_full(server, &schema, "NEW.rev = 1 OR NEW.id = decode(lpad(to_hex(4), 32, '0'), 'hex')");
    let replace = async |id| store.replace(Revision(1), WriteRole::Holder, &task("a", id)).await;
    let insert = async |id| store.insert(&task("a", id)).await;
    let (new, newer, ..) = tokio::join!(insert(11), insert(12));
    for refused in [new, newer] {
        assert!(matches!(refused, Err(StoreError::NoRoom)), "{refused:?}");
    }
    assert_eq!(store.health(), PostgresHealth::Full);
    // At the same time, so that they would join one batch.
    let (one, new, four, two) = tokio::join!(replace(1), insert(13), replace(4), replace(2));
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    for refused in [new, four] {
        assert!(matches!(refused, Err(StoreError::NoRoom)), "{refused:?}");
    }
    assert_eq!(store.health(), PostgresHealth::Full, "what settles says nothing of room");
    server.psql(&format!("DROP TRIGGER no_room ON {schema}.tg_task"));
    store.insert(&task("a", 14)).await.unwrap();
    assert_eq!(store.health(), PostgresHealth::Good, "the first that has room again");
    assert_eq!(store.usage().tasks, 5);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_full_is_tried_again_without_other_writes() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    disk_is_full(server, &schema, "true");
    assert!(matches!(store.insert(&task("a", 1)).await, Err(StoreError::NoRoom)));
    until("it is tried again", || store.health() == PostgresHealth::Good).await;
    store.close().await;
}

/// A host that accepts connections and stays silent, as with a stalled disk, does not keep the gateway from its replacement.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_says_nothing_is_passed_over() {
    let Some(server) = shared() else { return };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = format!("{},127.0.0.1:{}", silent.local_addr().unwrap(), server.port());
    let settings = with(settings(server, &new_schema()), |access| {
        access.url = DatabaseUrl::Here(format!("postgres://postgres@{hosts}/postgres?sslmode=disable"));
        access.write_max = Duration::from_secs(2);
    });
    let store = opened(settings).await;
    let one = task("a", 1);
    store.insert(&one).await.unwrap();
    assert!(store.load(&one.key, START).await.unwrap().is_some());
    store.close().await;
}

/// As an operator's survey of many tasks.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_takes_long_delays_no_look_for_a_single_task() {
    let Some(server) = shared() else { return };
    let store = opened(settings(server, &new_schema())).await;
    let (release, held) = oneshot::channel::<()>();
    let slow = async {
        let reader = store.lists.reader().unwrap();
        reader.read(async |_| Ok(held.await)).await
    };
    let looks = async {
        for key in 0..2 * LIST_READERS {
            let key = Digest([u8::try_from(key).unwrap(); 32]);
            assert!(store.find_idempotent(&Principal::new("a"), &key, START).await.unwrap().is_none());
        }
        release.send(()).unwrap();
    };
    let (slow, ()) = tokio::join!(biased; slow, looks);
    assert!(slow.is_ok_and(|held| held.is_ok()), "it is as long as the looks");
    store.close().await;
}
