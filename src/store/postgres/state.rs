//! The parts' shared state: sums, rows with an unknown commit, health, and listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::health::PostgresHealth;
use super::settings::PostgresSettings;
use super::settled_rows::SettledRows;
use super::sums::StoreSums;
use super::task_write::TaskWrite;
use crate::replica::Incarnation;
use crate::store::clock_trust::ClockTrust;
use crate::store::record::UnreadableRows;
use crate::store::tasks::StoreHint;
use crate::task::TaskKey;

/// How far a listener may lag. Beyond that it gets [`StoreHint::Missed`].
const HINTS_MAX: usize = 4_096;

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) holder: Incarnation,
    pub(super) clock_trust: ClockTrust,
    pub(super) sums: StoreSums,
    pub(super) settled: SettledRows,
    pub(super) unresolved: UnresolvedWrites,
    pub(super) unreadable: UnreadableRows,
    pub(super) hints: broadcast::Sender<StoreHint>,
    parts: Mutex<PartsHealth>,
    health: watch::Sender<PostgresHealth>,
}

#[derive(Debug)]
struct PartsHealth {
    control: PostgresHealth,
    writer: PostgresHealth,
    /// The readers in trouble, by duty.
    readers: BTreeMap<String, PostgresHealth>,
}

impl PartsHealth {
    fn readers(&self) -> PostgresHealth {
        self.readers.values().next().cloned().unwrap_or(PostgresHealth::Good)
    }

    /// The first health that is not good, in the order of control, writer and readers.
    fn together(&self) -> PostgresHealth {
        let parts = [self.control.clone(), self.writer.clone(), self.readers()];
        parts.into_iter().find(|health| *health != PostgresHealth::Good).unwrap_or(PostgresHealth::Good)
    }
}

impl StoreState {
    pub(super) fn new(settings: Arc<PostgresSettings>, holder: Incarnation, clock_trust: ClockTrust) -> Self {
        Self {
            settings,
            holder,
            clock_trust,
            sums: StoreSums::default(),
            settled: SettledRows::new(),
            unresolved: UnresolvedWrites::default(),
            unreadable: UnreadableRows::default(),
            hints: broadcast::Sender::new(HINTS_MAX),
            parts: Mutex::new(PartsHealth {
                control: PostgresHealth::Good,
                writer: PostgresHealth::Good,
                readers: BTreeMap::new(),
            }),
            health: watch::Sender::new(PostgresHealth::Good),
        }
    }

    pub(super) fn writer_is(&self, health: PostgresHealth) {
        self.note(|parts| parts.writer.clone(), |parts| parts.writer = health);
    }

    pub(super) fn control_is(&self, health: PostgresHealth) {
        self.note(|parts| parts.control.clone(), |parts| parts.control = health);
    }

    pub(super) fn reader_is(&self, duty: &str, health: PostgresHealth) {
        self.note(PartsHealth::readers, |parts| {
            if health == PostgresHealth::Good {
                parts.readers.remove(duty);
            } else {
                parts.readers.insert(duty.to_owned(), health);
            }
        });
    }

    /// Changes one part's health, and logs that change; followers see the combined health.
    fn note(&self, part: impl Fn(&PartsHealth) -> PostgresHealth, change: impl FnOnce(&mut PartsHealth)) {
        let mut parts = self.parts.lock();
        let old = part(&parts);
        change(&mut parts);
        let new = part(&parts);
        if old == new {
            return;
        }
        if new == PostgresHealth::Good {
            tracing::info!("the database is used again");
        } else {
            tracing::warn!("the database has a fault: {new}; {}", new.remedy());
        }
        let together = parts.together();
        // Sent under the lock, so that the newest health is sent last.
        self.health.send_if_modified(|shown| std::mem::replace(shown, together) != *shown);
    }

    pub(super) fn is_reader_in_trouble(&self, duty: &str) -> bool {
        self.parts.lock().readers.contains_key(duty)
    }

    pub(super) fn health(&self) -> PostgresHealth {
        self.health.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<PostgresHealth> {
        self.health.subscribe()
    }

    pub(super) fn room(&self) -> usize {
        self.settings.stored_bytes_max.saturating_sub(self.sums.usage().bytes)
    }

    pub(super) fn publish(&self, hint: StoreHint) {
        match &hint {
            StoreHint::Changed(key) => self.settled.remove(key),
            StoreHint::Missed => self.settled.clear(),
        }
        let _ = self.hints.send(hint);
    }
}

/// The remains of writes with an unknown commit. Excludes rows that their writers look up by key.
#[derive(Debug, Default)]
pub(super) struct UnresolvedWrites(Mutex<UnresolvedWritesState>);

#[derive(Debug, Default)]
struct UnresolvedWritesState {
    /// Their callers got an error, so these rows are invisible here, and the first transaction of the next connection
    /// removes them, unless another replica has shown them meanwhile. At most one batch at a time.
    inserts: BTreeSet<TaskKey>,
    /// Whether a claim's commit is unknown.
    is_claim: bool,
    /// Rows held by this replica, including unknown claims; the next claims return them.
    held: BTreeSet<TaskKey>,
}

impl UnresolvedWrites {
    pub(super) fn add(&self, writes: &[TaskWrite]) {
        let mut open = self.0.lock();
        open.inserts.extend(writes.iter().filter_map(TaskWrite::new_row).map(|row| row.key.clone()));
        open.is_claim |= writes.iter().any(|write| matches!(write, TaskWrite::Claim { .. }));
    }

    pub(super) fn inserts(&self) -> Vec<TaskKey> {
        self.0.lock().inserts.iter().cloned().collect()
    }

    pub(super) fn decided(&self, inserts: &[TaskKey]) {
        let mut open = self.0.lock();
        for key in inserts {
            open.inserts.remove(key);
        }
    }

    pub(super) fn is_claim(&self) -> bool {
        self.0.lock().is_claim
    }

    /// Records all rows that this replica holds, which resolves unknown claims.
    pub(super) fn holds(&self, rows: impl IntoIterator<Item = TaskKey>) {
        let mut open = self.0.lock();
        open.is_claim = false;
        open.held.extend(rows);
    }

    /// Takes rows that an unknown claim may have claimed.
    pub(super) fn take_held(&self, limit: usize) -> Vec<TaskKey> {
        let mut open = self.0.lock();
        std::iter::from_fn(|| open.held.pop_first()).take(limit).collect()
    }

    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        self.0.lock().inserts.contains(key)
    }
}
