//! Opens the store that the configuration names, and passes on what the store says of itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::replica_file::{ReplicaFile, ReplicaFileError};
use super::shared_store::{self, SharedStoreError, SharedStoreOpening};
use crate::boot_clock::since_boot;
use crate::cause::CauseChain;
use crate::config::{Config, StoreSettings};
use crate::face::sealed::KeyPrint;
use crate::replica::OwnStanding;
use crate::replica::membership::LOOK_EVERY;
use crate::server::admin::{Readiness, ReasonWeight};
use crate::store::postgres::{PostgresOpenError, PostgresStore, PriorLife};
use crate::store::{DiskSettings, DiskStore, MemoryStore, OpenError, StoreHealth, StoreLimits, TaskStore, disk};
use crate::task::{Clock, SteadyClock, SystemClock, Timestamp};
use crate::telemetry;
use crate::upstream::TaskScope;

/// The store cannot be read, a file of it is damaged, its disk has no room to bring it up, or it lost what it acknowledged
/// (`EX_IOERR`).
pub(super) const EXIT_IO: u8 = 74;
/// Somebody else has the store; later it may be free (`EX_TEMPFAIL`).
pub(super) const EXIT_LOCKED: u8 = 75;

const STORE_FULL: &str = "store full";
const STORE_FAILING: &str = "store failing";
const STORE_DAMAGED: &str = "store damaged";
const STORE_ENDED: &str = "store ended";
const STORE_SLOW: &str = "store slow";

/// A store in which a write waits for longer is not ready for more.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often that is looked at.
const WAIT_POLL: Duration = Duration::from_millis(500);
/// What a look at the gateways' lines may take.
const LOOK_MAX: Duration = Duration::from_millis(200);

/// A store at work, and the clock that its tasks go by.
pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn TaskStore>,
    pub(super) clock: Arc<dyn Clock>,
    /// Where other gateways have it open, too.
    pub(super) shared: Option<SharedLife>,
}

/// The life of a gateway among others on one store.
#[derive(Debug)]
pub(super) struct SharedLife {
    pub(super) store: Arc<PostgresStore>,
    /// Cancelled once it has ended.
    replaced: CancellationToken,
    /// Locked as long as it lasts, where there is a place for it.
    file: Option<Arc<Mutex<ReplicaFile>>>,
}

/// How often the last acknowledged beat is written down: a database that is older by more than that is noticed at the next start, also
/// after a kill.
const REMEMBER_EVERY: Duration = Duration::from_secs(60);

/// Writes down which life this is, and its last acknowledged beat.
fn remember(file: &Mutex<ReplicaFile>, store: &PostgresStore) {
    if let Err(error) = file.lock().remember(store.life()) {
        tracing::debug!(error = %CauseChain(&error), "the last beat was not written down");
    }
}

/// Waits until the others have looked, where there are any: a session whose home they have not seen is taken for one whose home is
/// gone. Drop it at any time.
pub(super) async fn be_seen(shared: Option<&SharedLife>) {
    let beside = |shared: &SharedLife| shared.store.replicas().taking_beside(shared.store.holder());
    if shared.is_some_and(|shared| beside(shared) > 0) {
        tokio::time::sleep(LOOK_EVERY + LOOK_MAX).await;
    }
}

/// Why a gateway's life among others has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEnd {
    /// The others go on without it.
    Replaced(PriorLife),
    /// The store lost what it acknowledged.
    StoreLost,
}

impl SharedLife {
    /// Returns once it has ended.
    pub(super) async fn ended(&self) -> LifeEnd {
        self.replaced.cancelled().await;
        // By what ended it: how the store is may be said later.
        let standing = self.store.replicas().standing;
        if matches!(standing, OwnStanding::StoreLost(_)) {
            LifeEnd::StoreLost
        } else {
            LifeEnd::Replaced(self.store.life())
        }
    }

    /// Has the next start refuse this store.
    pub(super) fn remember_loss(&self) {
        if let Some(file) = &self.file {
            file.lock().remember_loss(self.store.life());
        }
    }

    /// Has the next start refuse this store if it is older than it is now.
    pub(super) fn remember(&self) {
        if let Some(file) = &self.file {
            remember(file, &self.store);
        }
    }
}

/// Why the store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreRefusal {
    #[error(transparent)]
    Disk(#[from] OpenError),
    #[error(transparent)]
    Shared(#[from] SharedStoreError),
}

impl From<ReplicaFileError> for StoreRefusal {
    fn from(error: ReplicaFileError) -> Self {
        Self::Shared(error.into())
    }
}

/// A store that is open, or a database that is yet to be opened.
pub(super) enum StoreOpening {
    Open(OpenedStore),
    Waiting(Box<SharedStoreOpening>),
}

/// Opens the store. While it takes no new tasks, the gateway is not ready. `prints` are those of the sealing keys. A database is
/// left to [`wait`].
///
/// # Errors
/// See [`StoreRefusal`].
pub(super) async fn open(
    config: &Config,
    prints: Vec<KeyPrint>,
    (life, readiness): (&TaskScope, &Readiness),
) -> Result<StoreOpening, StoreRefusal> {
    let (store, clock): (Arc<dyn TaskStore>, _) = match &config.store {
        StoreSettings::Memory(limits) => {
            (Arc::new(MemoryStore::new(limits.stored_bytes_max)), steady(SystemClock.now()))
        }
        StoreSettings::Disk { limits, is_ephemeral } => {
            let disk = DiskStore::open(disk_settings(config, *limits, *is_ephemeral)).await?;
            let clock = steady(SystemClock.now().max(disk.last_seen()));
            let (watched, readiness, stop) = (Arc::clone(&disk), readiness.clone(), life.stop.clone());
            life.tracker.spawn(async move {
                stop.run_until_cancelled(watch(&watched, &readiness)).await;
            });
            (disk, clock)
        }
        StoreSettings::Postgres(database) => {
            telemetry::begin_database();
            let opening = SharedStoreOpening::new(config, database, prints, readiness)?;
            return Ok(StoreOpening::Waiting(Box::new(opening)));
        }
    };
    Ok(StoreOpening::Open(OpenedStore { store, clock, shared: None }))
}

/// Opens a database, and waits for it where it is away.
///
/// # Errors
/// What does not pass.
pub(super) async fn wait(
    mut opening: Box<SharedStoreOpening>,
    life: &TaskScope,
    readiness: &Readiness,
) -> Result<OpenedStore, StoreRefusal> {
    let store = opening.wait().await?;
    Ok(join(store, *opening, life, readiness))
}

/// Follows how a database is that was opened.
fn join(
    store: Arc<PostgresStore>,
    opening: SharedStoreOpening,
    life: &TaskScope,
    readiness: &Readiness,
) -> OpenedStore {
    let replaced = CancellationToken::new();
    let (watched, readiness, stop, told) = (Arc::clone(&store), readiness.clone(), life.stop.clone(), replaced.clone());
    life.tracker.spawn(async move {
        stop.run_until_cancelled(shared_store::watch(&watched, &readiness, &told)).await;
    });
    let file = opening.into_file().map(|file| Arc::new(Mutex::new(file)));
    if let Some(file) = file.clone() {
        let (store, stop) = (Arc::clone(&store), life.stop.clone());
        life.tracker.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(REMEMBER_EVERY)).await.is_some() {
                remember(&file, &store);
            }
        });
    }
    let shared = SharedLife { store: Arc::clone(&store), replaced, file };
    OpenedStore { clock: store.clock(), store, shared: Some(shared) }
}

/// Says whether new tasks are taken, whenever that changes.
async fn watch(disk: &DiskStore, readiness: &Readiness) {
    let mut health = disk.watch_health();
    let mut is_slow = false;
    loop {
        tell(*health.borrow_and_update(), readiness);
        // The thread that would tell of it is the one that waits for the disk.
        tell_pace(disk.waited(), &mut is_slow, readiness);
        if let Ok(Err(_)) = tokio::time::timeout(WAIT_POLL, health.changed()).await {
            return;
        }
    }
}

/// Says whether writes wait too long, whenever that changes.
fn tell_pace(waited: Duration, is_slow: &mut bool, readiness: &Readiness) {
    if *is_slow == (waited > WAIT_MAX) {
        return;
    }
    *is_slow = !*is_slow;
    if *is_slow {
        tracing::warn!(seconds = waited.as_secs_f64(), "the task store takes long to write: the gateway is not ready");
        readiness.block(STORE_SLOW);
    } else {
        tracing::info!("the task store writes again");
        readiness.clear(STORE_SLOW);
    }
}

/// The time of tasks in this life of the process.
fn steady(begin: Timestamp) -> Arc<dyn Clock> {
    let began = since_boot();
    Arc::new(SteadyClock::new(begin, move || since_boot().saturating_sub(began)))
}

/// Says whether new tasks are taken.
fn tell(health: StoreHealth, readiness: &Readiness) {
    let why = match health {
        StoreHealth::Good => None,
        // What is there is read, and calls that need no new task are served.
        StoreHealth::Full => Some((STORE_FULL, ReasonWeight::Limits)),
        StoreHealth::Failing => Some((STORE_FAILING, ReasonWeight::Blocks)),
        StoreHealth::Damaged => Some((STORE_DAMAGED, ReasonWeight::Blocks)),
        StoreHealth::Ended => Some((STORE_ENDED, ReasonWeight::Blocks)),
    };
    readiness.show_one_of(&[STORE_FULL, STORE_FAILING, STORE_DAMAGED, STORE_ENDED], why);
}

fn disk_settings(config: &Config, limits: StoreLimits, is_ephemeral: bool) -> DiskSettings {
    let mut settings = DiskSettings::new(config.folder.clone(), limits.stored_bytes_max);
    settings.is_ephemeral = is_ephemeral;
    settings.clock = Some(SystemClock.now());
    settings
}

/// What the store on the disk is opened with, where tasks rest there.
fn settings(config: &Config) -> Option<DiskSettings> {
    match &config.store {
        StoreSettings::Memory(_) | StoreSettings::Postgres(_) => None,
        StoreSettings::Disk { limits, is_ephemeral } => Some(disk_settings(config, *limits, *is_ephemeral)),
    }
}

/// Looks at the files of the store without opening it; makes none.
///
/// # Errors
/// What would keep a gateway from starting.
pub(super) fn check(config: &Config) -> Result<(), OpenError> {
    settings(config).map_or(Ok(()), |settings| disk::examine(&settings))
}

/// The folder of a store that a process has open now, which keeps nobody from checking a configuration.
#[must_use]
pub fn in_use(config: &Config) -> Option<&Path> {
    let is_used = settings(config).is_some_and(|settings| disk::is_open_elsewhere(&settings.folder));
    is_used.then_some(config.folder.as_path())
}

/// With which code a program ends that could not open its store.
pub(super) const fn exit_code(error: &StoreRefusal) -> u8 {
    match error {
        StoreRefusal::Disk(OpenError::Locked { .. })
        | StoreRefusal::Shared(
            SharedStoreError::File(ReplicaFileError::Locked { .. })
            | SharedStoreError::Database(PostgresOpenError::NameTaken { .. }),
        ) => EXIT_LOCKED,
        StoreRefusal::Disk(OpenError::Corrupt { .. } | OpenError::NoRoom { .. } | OpenError::Failed { .. })
        | StoreRefusal::Shared(SharedStoreError::Database(PostgresOpenError::Lost { .. })) => EXIT_IO,
        StoreRefusal::Disk(_) | StoreRefusal::Shared(_) => super::EXIT_CONFIG,
    }
}

impl StoreRefusal {
    /// Whether it may be otherwise later in a process that had the store open. What a database may say later was waited for.
    pub(super) const fn is_tried_by_a_successor(&self) -> bool {
        matches!(self, Self::Shared(SharedStoreError::File(ReplicaFileError::File { .. })))
    }

    /// The key of the configuration that says what was tried.
    pub(super) const fn key(&self) -> &'static str {
        match self {
            Self::Disk(_) => "store.path",
            Self::Shared(error) => error.key(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_which_a_write_waits_long_is_not_ready_until_it_writes_again() {
        let (readiness, mut is_slow) = (Readiness::new(), false);
        let mut after = |waited| {
            tell_pace(waited, &mut is_slow, &readiness);
            readiness.reasons()
        };
        assert!(after(WAIT_MAX).is_empty());
        let beyond = WAIT_MAX + WAIT_POLL;
        assert_eq!(after(beyond), [STORE_SLOW]);
        assert_eq!(after(beyond + WAIT_POLL), [STORE_SLOW]);
        assert!(after(Duration::ZERO).is_empty());
        assert_eq!(after(beyond), [STORE_SLOW], "as often as it happens");
    }
}
