//! Opens the configured store, and reports its health.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::shared_store::{self, ReplicaFile, ReplicaFileError, SharedStoreError, SharedStoreOpening};
use crate::config::{Config, StoreSettings};
use crate::face::sealed::KeyPrint;
use crate::metric;
use crate::replica::OwnStanding;
use crate::replica::membership::LOOK_EVERY;
use crate::server::admin::{Readiness, ReasonWeight};
use crate::store::postgres::{PostgresOpenError, PostgresStore, PriorIncarnation};
use crate::store::{DiskSettings, DiskStore, MemoryStore, OpenError, StoreHealth, StoreLimits, TaskStore, disk};
use crate::system::{self, since_boot};
use crate::task::{Clock, SteadyClock, SystemClock, Timestamp};
use crate::upstream::TaskScope;

/// The exit code for a store that is unreadable, damaged, out of disk space, or has lost acknowledged writes (`EX_IOERR`).
pub const EXIT_IO: u8 = 74;
/// The exit code for a store that another process has locked (`EX_TEMPFAIL`).
pub(super) const EXIT_LOCKED: u8 = 75;

const STORE_FULL: &str = "store full";
const STORE_FAILING: &str = "store failing";
const STORE_DAMAGED: &str = "store damaged";
const STORE_ENDED: &str = "store ended";
const STORE_SLOW: &str = "store slow";

/// If a write waits longer, the gateway is not ready.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_POLL: Duration = Duration::from_millis(500);
/// How long the tasks of a start that a reload replaced may hold the replica's file.
const UNLOCK_MAX: Duration = Duration::from_secs(3);
const LOOK_MAX: Duration = Duration::from_millis(200);

pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn TaskStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shared: Option<SharedIncarnation>,
}

#[derive(Debug)]
pub(super) struct SharedIncarnation {
    pub(super) store: Arc<PostgresStore>,
    /// Cancelled once its incarnation has ended.
    replaced: CancellationToken,
    file: Option<Arc<Mutex<ReplicaFile>>>,
}

/// The interval at which the heartbeat is written: the next start detects a database that is older by more than that.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// Writes the heartbeat at intervals, until stopped: so the file of a killed process is at most one interval old.
async fn write_at_intervals(
    file: &Mutex<ReplicaFile>,
    as_prior: impl Fn() -> PriorIncarnation,
    stop: &CancellationToken,
) {
    while stop.run_until_cancelled(tokio::time::sleep(WRITE_EVERY)).await.is_some() {
        file.lock().write_or_warn(as_prior());
    }
}

/// Waits until other replicas have read this one's row: else they take its sessions' owner for dead. Cancel safe.
pub(super) async fn be_seen(shared: Option<&SharedIncarnation>) {
    let others = |shared: &SharedIncarnation| shared.store.replicas().accepting_others(shared.store.holder());
    if shared.is_some_and(|shared| others(shared) > 0) {
        tokio::time::sleep(LOOK_EVERY + LOOK_MAX).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncarnationEnd {
    /// The other replicas have taken over.
    Replaced(PriorIncarnation),
    StoreLost,
}

impl SharedIncarnation {
    pub(super) async fn ended(&self) -> IncarnationEnd {
        self.replaced.cancelled().await;
        // From the standing that ended it: the health may be updated later.
        let standing = self.store.replicas().standing;
        if matches!(standing, OwnStanding::StoreLost(_)) {
            IncarnationEnd::StoreLost
        } else {
            IncarnationEnd::Replaced(self.store.as_prior())
        }
    }

    /// Makes the next start refuse this store.
    pub(super) fn write_loss(&self) {
        if let Some(file) = &self.file {
            file.lock().write_loss(self.store.as_prior());
        }
    }

    /// Makes the next start refuse an older state of this store.
    pub(super) fn write_prior(&self) {
        if let Some(file) = &self.file {
            file.lock().write_or_warn(self.store.as_prior());
        }
    }
}

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

pub(super) enum StoreOpening {
    Open(OpenedStore),
    Waiting(Box<SharedStoreOpening>),
}

/// Opens the store, or prepares to; [`wait`] opens a database. Not ready while it takes no tasks. `prints`: of sealing keys.
pub(super) async fn open(
    config: &Config,
    prints: Vec<KeyPrint>,
    scope: &TaskScope,
    readiness: &Readiness,
) -> Result<StoreOpening, StoreRefusal> {
    let (store, clock): (Arc<dyn TaskStore>, _) = match &config.store {
        StoreSettings::Memory(limits) => {
            (Arc::new(MemoryStore::new(limits.stored_bytes_max)), steady(SystemClock.now()))
        }
        StoreSettings::Disk { limits, is_ephemeral } => {
            let disk = DiskStore::open(disk_settings(config, *limits, *is_ephemeral)).await?;
            let clock = steady(SystemClock.now().max(disk.last_seen()));
            let (watched, readiness, stop) = (Arc::clone(&disk), readiness.clone(), scope.stop.clone());
            scope.tracker.spawn(async move {
                stop.run_until_cancelled(watch(&watched, &readiness)).await;
            });
            (disk, clock)
        }
        StoreSettings::Postgres(database) => {
            metric::begin_database();
            let opening = SharedStoreOpening::new(config, database, prints, readiness)?;
            return Ok(StoreOpening::Waiting(Box::new(opening)));
        }
    };
    Ok(StoreOpening::Open(OpenedStore { store, clock, shared: None }))
}

/// Opens a database; waits while it is unavailable, and fails only permanently.
pub(super) async fn wait(
    mut opening: Box<SharedStoreOpening>,
    scope: &TaskScope,
    readiness: &Readiness,
) -> Result<OpenedStore, StoreRefusal> {
    let store = opening.wait().await?;
    Ok(join(store, *opening, scope, readiness))
}

fn join(
    store: Arc<PostgresStore>,
    opening: SharedStoreOpening,
    scope: &TaskScope,
    readiness: &Readiness,
) -> OpenedStore {
    let replaced = CancellationToken::new();
    let (watched, readiness, stop, token) =
        (Arc::clone(&store), readiness.clone(), scope.stop.clone(), replaced.clone());
    scope.tracker.spawn(async move {
        stop.run_until_cancelled(shared_store::watch(&watched, &readiness, &token)).await;
    });
    let file = opening.file.map(|file| Arc::new(Mutex::new(file)));
    if let Some(file) = file.clone() {
        let (store, stop) = (Arc::clone(&store), scope.stop.clone());
        scope.tracker.spawn(async move { write_at_intervals(&file, || store.as_prior(), &stop).await });
    }
    let shared = SharedIncarnation { store: Arc::clone(&store), replaced, file };
    OpenedStore { clock: store.clock(), store, shared: Some(shared) }
}

async fn watch(disk: &DiskStore, readiness: &Readiness) {
    let mut health = disk.watch_health();
    let mut is_slow = false;
    loop {
        set_readiness(*health.borrow_and_update(), readiness);
        // Checked here, because the store's thread itself waits for the disk.
        log_pace(disk.waited(), &mut is_slow, readiness);
        if let Ok(Err(_)) = tokio::time::timeout(WAIT_POLL, health.changed()).await {
            return;
        }
    }
}

fn log_pace(waited: Duration, is_slow: &mut bool, readiness: &Readiness) {
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

fn steady(begin: Timestamp) -> Arc<dyn Clock> {
    let began = since_boot();
    Arc::new(SteadyClock::new(begin, move || since_boot().saturating_sub(began)))
}

fn set_readiness(health: StoreHealth, readiness: &Readiness) {
    let why = match health {
        StoreHealth::Good => None,
        // Stored tasks are read, and calls that need no new task are served.
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

fn settings(config: &Config) -> Option<DiskSettings> {
    let StoreSettings::Disk { limits, is_ephemeral } = &config.store else { return None };
    Some(disk_settings(config, *limits, *is_ephemeral))
}

/// Examines the store's files without opening it; creates none.
pub(super) fn check(config: &Config) -> Result<(), OpenError> {
    settings(config).map_or(Ok(()), |settings| disk::examine(&settings))
}

/// Why a start by this user would end now. A check only warns of it (B260): another user may start the gateway, or this one later.
pub fn hindrances(config: &Config) -> Vec<String> {
    let disk = settings(config).map(|settings| ("store.path", settings.folder));
    let in_use = disk.iter().filter(|(_, folder)| disk::is_open_elsewhere(folder));
    let in_use = in_use.map(|(key, at)| format!("key `{key}`: {}: a gateway has the store open now", at.display()));
    let places = disk.iter().cloned().chain(config.audit.iter().map(|audit| ("audit.path", audit.path.clone())));
    let unwritable = places.filter_map(|(key, at)| {
        let error = system::check_writing(&at).err()?;
        Some(format!("key `{key}`: {}: {error}; `serve` as this user would end", at.display()))
    });
    in_use.chain(unwritable).collect()
}

pub(super) const fn exit_code(error: &StoreRefusal) -> u8 {
    match error {
        StoreRefusal::Disk(OpenError::Locked { .. })
        | StoreRefusal::Shared(
            SharedStoreError::File(ReplicaFileError::Locked { .. })
            | SharedStoreError::Database(PostgresOpenError::NameTaken { .. }),
        ) => EXIT_LOCKED,
        StoreRefusal::Disk(OpenError::Corrupt { .. } | OpenError::Failed { .. })
        | StoreRefusal::Shared(SharedStoreError::Database(PostgresOpenError::Lost { .. })) => EXIT_IO,
        StoreRefusal::Disk(_) | StoreRefusal::Shared(_) => super::EXIT_CONFIG,
    }
}

impl StoreRefusal {
    /// Whether a successor in this process tries again after `tried`. Transient failures of a database have been waited for.
    pub(super) fn is_tried_by_a_successor(&self, tried: Duration) -> bool {
        let Self::Shared(SharedStoreError::File(error)) = self else { return false };
        match error {
            ReplicaFileError::File { .. } => true,
            ReplicaFileError::Locked { .. } => tried < UNLOCK_MAX,
            ReplicaFileError::Content { .. } => false,
        }
    }

    pub(super) const fn key(&self) -> &'static str {
        match self {
            Self::Disk(_) => "store.path",
            Self::Shared(error) => error.key(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::replica::{Incarnation, StoreGeneration};

    /// A database that was put back is older than the heartbeat in the file, though no process ended in order.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_killed_leaves_the_heartbeat_of_the_last_minute() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = ReplicaFile::lock(folder.path(), "a").unwrap();
        let heartbeat = AtomicU64::new(1);
        let prior = || PriorIncarnation {
            generation: StoreGeneration(7),
            holder: Incarnation(41),
            heartbeat: heartbeat.load(Ordering::Relaxed),
        };
        file.write(prior()).unwrap();
        let (file, stop) = (Mutex::new(file), CancellationToken::new());
        let life = async {
            for seconds in 0..150 {
                heartbeat.store(seconds, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = write_at_intervals(&file, prior, &stop) => panic!("it was not stopped"),
            () = life => (),
        }
        drop(file);
        let (_, left) = ReplicaFile::unlocked(folder.path(), "a");
        let left = left.unwrap().heartbeat;
        assert!((90..150).contains(&left), "{left} of 149 seconds");
    }

    /// A reload replaces a start that had locked the file.
    #[test]
    fn a_successor_waits_a_while_for_the_file_of_its_replica() {
        let folder = tempfile::tempdir().unwrap();
        let _held = ReplicaFile::lock(folder.path(), "a").unwrap();
        let refusal = StoreRefusal::from(ReplicaFile::lock(folder.path(), "a").unwrap_err());
        let tried = [Duration::ZERO, UNLOCK_MAX].map(|tried| refusal.is_tried_by_a_successor(tried));
        assert_eq!((tried, exit_code(&refusal)), ([true, false], EXIT_LOCKED));
    }

    #[test]
    fn a_store_in_which_a_write_waits_long_is_not_ready_until_it_writes_again() {
        let (readiness, mut is_slow) = (Readiness::new(), false);
        let mut after = |waited| {
            log_pace(waited, &mut is_slow, &readiness);
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
