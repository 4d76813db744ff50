//! Determines whether the store accepts new tasks, and if not, the reason.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::folder::DiskSpace;

/// In every state, existing tasks can be read and finished as far as the disk allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    Good,
    /// Too little disk space: no new tasks until there is more (F53).
    Full,
    /// Writes failed repeatedly: no new tasks until one succeeds (F54, F57).
    Failing,
    /// The file is damaged: no new tasks in this process (F56).
    Damaged,
    /// A bug ended the writer's thread: every write fails in this process. Existing tasks can be read.
    Ended,
}

/// The known facts, worst first.
#[derive(Clone, Copy, Debug, Default)]
struct StoreHealthFacts {
    has_ended: bool,
    is_damaged: bool,
    is_failing: bool,
    short: Option<DiskSpace>,
}

#[derive(Debug)]
pub(super) struct StoreHealthMonitor {
    known: Mutex<StoreHealthFacts>,
    health: watch::Sender<StoreHealth>,
    /// When the oldest unfinished write was requested.
    serves: Mutex<Option<Instant>>,
}

impl StoreHealthMonitor {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            health: watch::Sender::new(StoreHealth::Good),
            serves: Mutex::default(),
        })
    }

    pub(super) fn ended(&self) {
        self.serves(None);
        self.note(|known| known.has_ended = true);
    }

    pub(super) fn damaged(&self) {
        self.note(|known| known.is_damaged = true);
    }

    pub(super) fn failing(&self, is_failing: bool) {
        self.note(|known| known.is_failing = is_failing);
    }

    pub(super) fn room(&self, space: DiskSpace) {
        self.note(|known| known.short = space.is_low().then_some(space));
    }

    fn note(&self, change: impl FnOnce(&mut StoreHealthFacts)) {
        let mut known = self.known.lock();
        change(&mut known);
        let now = match *known {
            StoreHealthFacts { has_ended: true, .. } => StoreHealth::Ended,
            StoreHealthFacts { is_damaged: true, .. } => StoreHealth::Damaged,
            StoreHealthFacts { is_failing: true, .. } => StoreHealth::Failing,
            StoreHealthFacts { short: Some(_), .. } => StoreHealth::Full,
            StoreHealthFacts { has_ended: false, is_damaged: false, is_failing: false, short: None } => {
                StoreHealth::Good
            }
        };
        let changed = self.health.send_if_modified(|health| std::mem::replace(health, now) != now);
        if changed {
            match now {
                StoreHealth::Good => tracing::info!("the task store takes new tasks again"),
                StoreHealth::Full => {
                    let [free, wanted] = known.short.map_or([0; 2], |space| [space.free, space.wanted()]).map(ByteSize);
                    tracing::warn!(%free, %wanted, "the disk is nearly full: no new tasks until there is room")
                }
                StoreHealth::Failing => {
                    tracing::error!("the task store cannot write: no new tasks until it can")
                }
                StoreHealth::Damaged => {
                    tracing::error!("the task store's file is damaged: no new tasks")
                }
                StoreHealth::Ended => {
                    tracing::error!("the task store's writer ended: nothing is stored until the next start")
                }
            }
        }
    }

    /// Records when the next write was requested; `None` once it is done.
    pub(super) fn serves(&self, queued_at: Option<Instant>) {
        *self.serves.lock() = queued_at;
    }

    pub(super) fn waited(&self) -> Duration {
        self.serves.lock().map_or(Duration::ZERO, |queued_at| queued_at.elapsed())
    }

    pub(super) fn now(&self) -> StoreHealth {
        *self.health.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<StoreHealth> {
        self.health.subscribe()
    }
}
