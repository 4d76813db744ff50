//! Holds what the parts of the store share: sums, rows in doubt, how the store is, and who listens to changes.

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
use crate::store::tasks::StoreHint;
use crate::task::TaskKey;

/// Hints that a listener may be behind; beyond that it is told that it missed some.
const HINTS_MAX: usize = 4_096;

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) holder: Incarnation,
    pub(super) sums: StoreSums,
    pub(super) settled: SettledRows,
    pub(super) doubt: StoreDoubts,
    pub(super) hints: broadcast::Sender<StoreHint>,
    parts: Mutex<PartsHealth>,
    /// What the parts say together.
    health: watch::Sender<PostgresHealth>,
}

/// How the store is, told apart by who finds it out.
#[derive(Debug)]
struct PartsHealth {
    /// The one who beats.
    control: PostgresHealth,
    writer: PostgresHealth,
    /// Of each reader in trouble, by its duty.
    readers: BTreeMap<String, PostgresHealth>,
}

impl PartsHealth {
    /// The first reader in trouble speaks for all.
    fn readers(&self) -> PostgresHealth {
        self.readers.values().next().cloned().unwrap_or(PostgresHealth::Good)
    }

    /// Whatever is not good counts, the life itself first.
    fn together(&self) -> PostgresHealth {
        let parts = [self.control.clone(), self.writer.clone(), self.readers()];
        parts.into_iter().find(|health| *health != PostgresHealth::Good).unwrap_or(PostgresHealth::Good)
    }
}

impl StoreState {
    pub(super) fn new(settings: Arc<PostgresSettings>, holder: Incarnation) -> Self {
        Self {
            settings,
            holder,
            sums: StoreSums::default(),
            settled: SettledRows::new(),
            doubt: StoreDoubts::default(),
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

    /// How the connection of one reader is.
    pub(super) fn reader_is(&self, duty: &str, health: PostgresHealth) {
        self.note(PartsHealth::readers, |parts| {
            if health == PostgresHealth::Good {
                parts.readers.remove(duty);
            } else {
                parts.readers.insert(duty.to_owned(), health);
            }
        });
    }

    /// Changes one part. The log tells of each by itself, whoever follows of all together.
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
            tracing::warn!(trouble = ?new, "the database is in trouble");
        }
        let together = parts.together();
        // Before another part changes: what is shown last is the newest.
        self.health.send_if_modified(|shown| std::mem::replace(shown, together) != *shown);
    }

    pub(super) fn is_reader_in_trouble(&self, duty: &str) -> bool {
        self.parts.lock().readers.contains_key(duty)
    }

    /// How the store is.
    pub(super) fn health(&self) -> PostgresHealth {
        self.health.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<PostgresHealth> {
        self.health.subscribe()
    }

    /// What is free.
    pub(super) fn room(&self) -> usize {
        self.settings.stored_bytes_max.saturating_sub(self.sums.usage().bytes)
    }

    /// Another life wrote something.
    pub(super) fn heard(&self, hint: StoreHint) {
        match &hint {
            StoreHint::Changed(key) => self.settled.forget(key),
            StoreHint::Missed => self.settled.forget_all(),
        }
        let _ = self.hints.send(hint);
    }
}

/// What writes in doubt left behind, other than rows whose writers ask for them by their keys.
#[derive(Debug, Default)]
pub(super) struct StoreDoubts(Mutex<OpenDoubts>);

#[derive(Debug, Default)]
struct OpenDoubts {
    /// Rows of which nobody knows whether they were inserted. Their callers were refused, so they are shown to nobody here, and
    /// removed by the first transaction of the next connection, unless another life has shown them meanwhile. At most those of
    /// one batch at a time.
    inserts: BTreeSet<TaskKey>,
    /// Whether rows may have been claimed of which nobody here knows.
    is_claim: bool,
    /// Rows that this life holds, of which some may be such; handed out by the next claims.
    held: BTreeSet<TaskKey>,
}

impl StoreDoubts {
    /// Takes note of writes of which nobody knows whether they were made.
    pub(super) fn add(&self, writes: &[TaskWrite]) {
        let mut open = self.0.lock();
        open.inserts.extend(writes.iter().filter_map(TaskWrite::new_row).map(|row| row.key.clone()));
        open.is_claim |= writes.iter().any(|write| matches!(write, TaskWrite::Claim { .. }));
    }

    pub(super) fn inserts(&self) -> Vec<TaskKey> {
        self.0.lock().inserts.iter().cloned().collect()
    }

    /// Those inserts are in doubt no longer.
    pub(super) fn decided(&self, inserts: &[TaskKey]) {
        let mut open = self.0.lock();
        for key in inserts {
            open.inserts.remove(key);
        }
    }

    pub(super) fn is_claim(&self) -> bool {
        self.0.lock().is_claim
    }

    /// All that this life holds, claims in doubt included: none is in doubt any more.
    pub(super) fn holds(&self, rows: impl IntoIterator<Item = TaskKey>) {
        let mut open = self.0.lock();
        open.is_claim = false;
        open.held.extend(rows);
    }

    /// Rows that may have been claimed without anybody's knowing.
    pub(super) fn take_held(&self, limit: usize) -> Vec<TaskKey> {
        let mut open = self.0.lock();
        std::iter::from_fn(|| open.held.pop_first()).take(limit).collect()
    }

    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        self.0.lock().inserts.contains(key)
    }
}
