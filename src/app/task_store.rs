//! Opens the store that the configuration names, and passes on what the store says of itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::config::{Config, StoreSettings};
use crate::server::admin::Readiness;
use crate::store::{DiskSettings, DiskStore, MemoryStore, OpenError, StoreHealth, TaskStore, disk};
use crate::task::{Clock, SteadyClock, SystemClock, Timestamp};
use crate::upstream::TaskScope;

/// The store cannot be read, a file of it is damaged, or its disk has no room to bring it up (`EX_IOERR`).
const EXIT_IO: u8 = 74;
/// Somebody else has the store; later it may be free (`EX_TEMPFAIL`).
const EXIT_LOCKED: u8 = 75;

const STORE_FULL: &str = "store full";
const STORE_FAILING: &str = "store failing";
const STORE_DAMAGED: &str = "store damaged";
const STORE_ENDED: &str = "store ended";
const STORE_SLOW: &str = "store slow";

/// A store in which a write waits for longer is not ready for more.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often that is looked at.
const WAIT_POLL: Duration = Duration::from_millis(500);

/// A store at work, and the clock that its tasks go by.
pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn TaskStore>,
    /// The same, where it has to be closed.
    pub(super) disk: Option<Arc<DiskStore>>,
    pub(super) clock: Arc<dyn Clock>,
}

/// Opens the store. While it takes no new tasks, the gateway is not ready.
///
/// # Errors
/// See [`OpenError`].
pub(super) async fn open(config: &Config, life: &TaskScope, readiness: &Readiness) -> Result<OpenedStore, OpenError> {
    let Some(settings) = settings(config) else {
        let store = Arc::new(MemoryStore::new(config.store.limits().stored_bytes_max));
        return Ok(OpenedStore { store, disk: None, clock: steady(SystemClock.now()) });
    };
    let disk = DiskStore::open(settings).await?;
    let clock = steady(SystemClock.now().max(disk.last_seen()));
    let (watched, readiness, stop) = (Arc::clone(&disk), readiness.clone(), life.stop.clone());
    life.tracker.spawn(async move {
        stop.run_until_cancelled(watch(&watched, &readiness)).await;
    });
    Ok(OpenedStore { store: Arc::<DiskStore>::clone(&disk), disk: Some(disk), clock })
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

/// What has passed since the machine started, the time that it slept included (F59).
fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // Elsewhere the steady clock goes on while the machine sleeps, or nobody can tell.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

/// Says whether new tasks are taken.
fn tell(health: StoreHealth, readiness: &Readiness) {
    let why = match health {
        StoreHealth::Good => None,
        StoreHealth::Full => Some(STORE_FULL),
        StoreHealth::Failing => Some(STORE_FAILING),
        StoreHealth::Damaged => Some(STORE_DAMAGED),
        StoreHealth::Ended => Some(STORE_ENDED),
    };
    for reason in [STORE_FULL, STORE_FAILING, STORE_DAMAGED, STORE_ENDED] {
        match why {
            // What is there is read, and calls that need no new task are served.
            Some(STORE_FULL) if reason == STORE_FULL => readiness.limit(reason),
            Some(why) if why == reason => readiness.block(reason),
            Some(_) | None => readiness.clear(reason),
        }
    }
}

fn settings(config: &Config) -> Option<DiskSettings> {
    match config.store {
        StoreSettings::Memory(_) => None,
        StoreSettings::Disk { limits, is_ephemeral } => {
            let mut settings = DiskSettings::new(config.folder.clone(), limits.stored_bytes_max);
            settings.is_ephemeral = is_ephemeral;
            settings.clock = Some(SystemClock.now());
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
        OpenError::Corrupt { .. } | OpenError::NoRoom { .. } | OpenError::Failed { .. } => EXIT_IO,
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

    /// F59: the system's own count, which goes on while the machine sleeps.
    #[cfg(target_os = "linux")]
    #[test]
    fn f59_the_time_of_a_sleep_counts() {
        // In hundredths of a second.
        let resolution = Duration::from_millis(10);
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
        };
        let (before, now) = (uptime(), since_boot());
        assert!(before <= now + resolution && now <= uptime() + resolution);
    }
}
