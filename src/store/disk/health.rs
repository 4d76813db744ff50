//! Determines whether the store accepts new tasks, and if not, the reason.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::folder::DiskSpace;

/// In every state existing tasks can be read; in all but [`StoreHealth::Ended`] they are finished as far as the disk allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    Good,
    /// Too little disk space: no new tasks until there is more (F53).
    Full,
    /// Writes failed repeatedly: no new tasks until one succeeds (F54, F57).
    Failing,
    /// The file is damaged: no new tasks in this process (F56).
    Damaged,
    /// A bug ended the writer's thread: every write fails in this process.
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
    /// When the write that is being done was requested.
    writing_since: Mutex<Option<Instant>>,
}

impl StoreHealthMonitor {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            health: watch::Sender::new(StoreHealth::Good),
            writing_since: Mutex::default(),
        })
    }

    pub(super) fn set_ended(&self) {
        self.set_writing(None);
        self.note(|known| known.has_ended = true);
    }

    pub(super) fn set_damaged(&self) {
        self.note(|known| known.is_damaged = true);
    }

    pub(super) fn set_failing(&self, is_failing: bool) {
        self.note(|known| known.is_failing = is_failing);
    }

    pub(super) fn set_space(&self, space: DiskSpace) {
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
            StoreHealthFacts { .. } => StoreHealth::Good,
        };
        let changed = self.health.send_if_modified(|health| std::mem::replace(health, now) != now);
        if changed {
            match now {
                StoreHealth::Good => tracing::info!("the task store takes new tasks again"),
                StoreHealth::Full => {
                    let [free, wanted] = known.short.map_or([0; 2], |space| [space.free, space.wanted()]).map(ByteSize);
                    tracing::warn!(%free, %wanted, "the task store's disk is nearly full: no new tasks until there is room")
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

    /// Records when the write was requested that is being done; `None` once it is done.
    pub(super) fn set_writing(&self, requested_at: Option<Instant>) {
        *self.writing_since.lock() = requested_at;
    }

    pub(super) fn waited(&self) -> Duration {
        self.writing_since.lock().map_or(Duration::ZERO, |requested_at| requested_at.elapsed())
    }

    pub(super) fn now(&self) -> StoreHealth {
        *self.health.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<StoreHealth> {
        self.health.subscribe()
    }
}
