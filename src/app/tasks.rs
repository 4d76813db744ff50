//! Where tasks rest, as the configuration says: the store is opened, and what it says of itself is passed on.

use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use crate::config::{Config, StoreSettings};
use crate::server::admin::Readiness;
use crate::store::{DiskSettings, DiskStore, Health, MemoryStore, OpenError, TaskStore, disk};
use crate::task::{Clock, SteadyClock, SystemClock, Timestamp};
use crate::upstream::http::Life;

/// The store cannot be read, or a file of it is damaged (`EX_IOERR`).
const EXIT_IO: u8 = 74;
/// Somebody else has the store; later it may be free (`EX_TEMPFAIL`).
const EXIT_LOCKED: u8 = 75;

const STORE_FULL: &str = "store full";
const STORE_FAILING: &str = "store failing";
const STORE_DAMAGED: &str = "store damaged";

/// A store at work, and the clock that its tasks go by.
pub(super) struct Opened {
    pub(super) store: Arc<dyn TaskStore>,
    /// The same, where it has to be closed.
    pub(super) disk: Option<Arc<DiskStore>>,
    pub(super) clock: Arc<dyn Clock>,
}

/// Opens the store. While it takes no new tasks, the gateway is not ready.
///
/// # Errors
/// See [`OpenError`].
pub(super) async fn open(config: &Config, life: &Life, readiness: &Readiness) -> Result<Opened, OpenError> {
    let Some(settings) = settings(config) else {
        let store = Arc::new(MemoryStore::new(config.store.limits().stored_bytes_max));
        return Ok(Opened { store, disk: None, clock: steady(SystemClock.now()) });
    };
    let disk = DiskStore::open(settings).await?;
    let clock = steady(SystemClock.now().max(disk.last_seen()));
    let (mut health, readiness, stop) = (disk.watch_health(), readiness.clone(), life.stop.clone());
    life.tracker.spawn(async move {
        loop {
            tell(*health.borrow_and_update(), &readiness);
            match stop.run_until_cancelled(health.changed()).await {
                Some(Ok(())) => (),
                Some(Err(_)) | None => return,
            }
        }
    });
    Ok(Opened { store: Arc::<DiskStore>::clone(&disk), disk: Some(disk), clock })
}

/// The time of tasks in this life of the process.
fn steady(begin: Timestamp) -> Arc<dyn Clock> {
    let began = Instant::now();
    Arc::new(SteadyClock::new(begin, move || began.elapsed()))
}

/// Says whether new tasks are taken.
fn tell(health: Health, readiness: &Readiness) {
    let why = match health {
        Health::Good => None,
        Health::Full => Some(STORE_FULL),
        Health::Failing => Some(STORE_FAILING),
        Health::Damaged => Some(STORE_DAMAGED),
    };
    for reason in [STORE_FULL, STORE_FAILING, STORE_DAMAGED] {
        if Some(reason) == why { readiness.block(reason) } else { readiness.clear(reason) }
    }
}

fn settings(config: &Config) -> Option<DiskSettings> {
    match config.store {
        StoreSettings::Memory(_) => None,
        StoreSettings::Disk { limits, is_ephemeral } => {
            let mut settings = DiskSettings::new(config.folder.clone(), limits.stored_bytes_max);
            settings.is_ephemeral = is_ephemeral;
            Some(settings)
        }
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
pub(super) const fn exit_code(error: &OpenError) -> u8 {
    match error {
        OpenError::Folder { .. }
        | OpenError::Medium { .. }
        | OpenError::NotADatabase { .. }
        | OpenError::Foreign { .. }
        | OpenError::Newer { .. } => super::EXIT_CONFIG,
        OpenError::Locked { .. } => EXIT_LOCKED,
        OpenError::Corrupt { .. } | OpenError::Failed { .. } => EXIT_IO,
    }
}
