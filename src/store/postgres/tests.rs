//! Tests the store against real servers: the contract, and behaviour specific to PostgreSQL.

mod bad_input;
mod bloat;
mod clock;
mod doubts;
mod incarnations;
mod metrics_page;
mod plan;
mod pooled;
mod rules;
mod settled;
mod starts;
mod sweeps;
mod trouble;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::fault_proxy::{Fault, FaultProxy, Verb};
use support::postgres::{PostgresServer, shared};
use tokio::time::Instant;

use super::*;
use crate::replica::{Incarnation, LeaseTerms};
use crate::store::contract::{self, PATIENCE, START, StoreOpener, is_condemned, known, task, until};
use crate::task::Timestamp;

fn new_schema() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::SeqCst))
}

fn settings(server: &PostgresServer, schema: &str) -> PostgresSettings {
    PostgresSettings {
        access: DatabaseAccess {
            url: DatabaseUrl::Here(server.url()),
            password_file: None,
            ca: None,
            schema: schema.to_owned(),
            durability: Durability::Single,
            // More than any write takes on a busy machine.
            write_max: Duration::from_secs(30),
            read_trust: Duration::from_secs(1),
            accept_loss: None,
        },
        terms: lease(LeaseTerms::LEASE_MAX),
        stored_bytes_max: 64 << 20,
        replica: ReplicaDescription { name: schema.to_owned(), ..ReplicaDescription::default() },
        prior: None,
        folder: None,
    }
}

/// With a long lease no replica is taken for dead, however busy the machine is.
fn lease(span: Duration) -> LeaseTerms {
    LeaseTerms::new(span, Duration::from_secs(300)).unwrap()
}

fn with(mut settings: PostgresSettings, change: impl FnOnce(&mut DatabaseAccess)) -> PostgresSettings {
    change(&mut settings.access);
    settings
}

/// The same through a proxy. If the proxy is silent, a write fails after three seconds.
fn behind(proxy: &FaultProxy, settings: PostgresSettings) -> PostgresSettings {
    with(settings, |access| {
        access.url = DatabaseUrl::Here(format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address));
        access.write_max = Duration::from_secs(3);
    })
}

async fn open_with(settings: PostgresSettings) -> Result<Arc<PostgresStore>, PostgresOpenError> {
    PostgresStore::open(settings).await
}

/// A store of a database that is there, however busy the machine is.
async fn opened(settings: PostgresSettings) -> Arc<PostgresStore> {
    let begin = Instant::now();
    loop {
        match open_with(settings.clone()).await {
            Err(PostgresOpenError::Unavailable(_)) if begin.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Tries until the store can be used, as some time after its server can be.
async fn in_the_end<T>(attempt: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let begin = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits for a heartbeat from now on: by then the control connection listens, and has said that hints may be missing.
async fn listens(store: &PostgresStore) {
    let begun = boot_time();
    until("it beats", || store.view.now().heartbeat_sent > begun).await;
}

async fn name_standbys(server: &PostgresServer, names: &str) {
    server.configure(&[&format!("synchronous_standby_names = '{names}'")]);
    server.reload();
    until("the names are set", || server.psql("SHOW synchronous_standby_names") == names).await;
    // Commits follow a flag of the checkpointer, which reads the configuration before it obeys.
    server.psql("CHECKPOINT");
}

/// Stores on one server, each in its own schema.
struct Postgres {
    server: &'static PostgresServer,
}

impl StoreOpener for Postgres {
    type Store = PostgresStore;

    async fn open(&self, stored_bytes_max: usize) -> Arc<PostgresStore> {
        let settings = PostgresSettings { stored_bytes_max, ..settings(self.server, &new_schema()) };
        opened(settings).await
    }

    async fn next_incarnation(&self, ended: Arc<PostgresStore>) -> Arc<PostgresStore> {
        ended.close().await;
        opened((*ended.state.settings).clone()).await
    }

    async fn next_incarnation_ahead(&self, ended: Arc<PostgresStore>) -> Option<(Arc<PostgresStore>, Timestamp)> {
        let schema = ended.state.settings.access.schema.clone();
        ended.close().await;
        // Long before the server's own clock.
        clock::used_at(self.server, &schema, START);
        let store = opened((*ended.state.settings).clone()).await;
        let shown = store.clock().now();
        Some((store, shown))
    }

    async fn beside(&self, store: &Arc<PostgresStore>) -> Option<Arc<PostgresStore>> {
        let mut settings = (*store.state.settings).clone();
        settings.replica.name.push('+');
        Some(opened(settings).await)
    }

    async fn open_losing_acknowledgements(&self) -> Option<(Arc<PostgresStore>, contract::AcknowledgementLoss)> {
        let proxy = FaultProxy::start(([127, 0, 0, 1], self.server.port()).into()).await;
        let store = opened(behind(&proxy, settings(self.server, &new_schema()))).await;
        Some((store, Box::new(move |loses| proxy.set(loses.then(|| Fault::down("", 0, Verb::Hold))))))
    }

    async fn declare_ended(&self, by: &PostgresStore, ended: Incarnation) {
        assert!(by.declare_dead(ended).await.unwrap());
    }
}

#[tokio::test]
async fn a_row_is_found_as_it_was_written() {
    let Some(server) = shared() else { return };
    let store = opened(settings(server, &new_schema())).await;
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let found = store.load(&one.key, START).await.unwrap().unwrap();
    assert_eq!((&*found.task, found.revision, found.holder), (&one, first, Some(store.holder())));
    let changed = Task { status_message: Some("half".into()), ..one };
    let second = store.replace(first, WriteRole::Holder, &changed).await.unwrap();
    assert_eq!(second, Revision(2));
    assert_eq!(*store.load(&changed.key, START).await.unwrap().unwrap().task, changed);
    store.close().await;
}

#[tokio::test]
async fn keeps_the_contract_of_every_store() {
    let Some(server) = shared() else { return };
    contract::check_all(&Postgres { server }).await;
}
