//! Defines a row's columns, for sums, indexes and lists.

use rusqlite::{ErrorCode, Row, ToSql, params};

pub(super) use crate::store::integers::{at, id, number, time};
use crate::store::integers::{count, revision, revision_column};
use crate::store::record::{self, RecordError};
use crate::store::tasks::Revision;
use crate::task::{Digest, PendingEffects, Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp};

/// A row without its record: enough for every sum and every index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowOutline {
    pub(super) is_settled: bool,
    pub(super) pending_effects: PendingEffects,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) bytes: usize,
}

impl RowOutline {
    /// Rounds times to a column's range.
    pub(super) fn of(task: &Task) -> Self {
        Self {
            is_settled: task.is_settled(),
            pending_effects: task.recovery.pending_effects,
            created_at: time(at(task.created_at)),
            expires_at: time(at(task.expires_at())),
            bytes: task.stored_bytes(),
        }
    }

    /// As [`crate::store::tasks::needs_holder`] says of the task.
    pub(super) fn needs_holder(&self) -> bool {
        !self.is_settled || !self.pending_effects.is_empty()
    }

    /// Whether it matches the task, except for its size, which another version may count differently.
    pub(super) fn fits(&self, task: &Task) -> bool {
        Self { bytes: self.bytes, ..Self::of(task) } == *self
    }
}

/// All columns of a row except its number and its summary, which has their checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowColumns {
    pub(super) key: TaskKey,
    pub(super) reference: ShortReference,
    pub(super) revision: Revision,
    pub(super) outline: RowOutline,
    pub(super) name: Option<Digest>,
    pub(super) record: i64,
    pub(super) updated_at: Timestamp,
}

/// The columns that [`RowColumns::of_row`] reads, in order.
pub(super) const COLUMNS: &str =
    "owner, id, revision, settled, pending, created_at, expires_at, bytes, name, record, ref, updated_at";
const COUNT: usize = 12;
/// The columns that an update changes, and their parameters: SQLite rewrites only indexes with one of them.
pub(super) const MOVING: (&str, &str) =
    ("revision, settled, pending, expires_at, bytes, record, updated_at", "?3, ?4, ?5, ?7, ?8, ?10, ?12, ?13");

impl RowColumns {
    pub(super) fn of(task: &Task, reference: ShortReference, revision: Revision, record: i64) -> Self {
        Self {
            key: task.key.clone(),
            reference,
            revision,
            outline: RowOutline::of(task),
            name: task.idempotency.map(|named| named.key),
            record,
            updated_at: time(at(task.updated_at)),
        }
    }

    /// Whether the columns differ from the others only in [`MOVING`].
    pub(super) fn stands_with(&self, other: &Self) -> bool {
        let fixed = |columns: &Self| (columns.reference, columns.outline.created_at, columns.name);
        self.key == other.key && fixed(self) == fixed(other)
    }

    /// Reads [`COLUMNS`] from column `from` on, and the summary that follows them.
    pub(super) fn of_row(row: &Row<'_>, from: usize) -> rusqlite::Result<(Self, Result<Summary, RecordError>)> {
        let columns = Self::read(row, from)?;
        let summary = row.get_ref(from + COUNT)?.as_blob()?;
        let summary = record::summary::decode(&columns.key, &columns.sealed(), summary);
        Ok((columns, summary))
    }

    /// As [`Self::of_row`], but only checks whether columns and summary are as written.
    pub(super) fn checked(row: &Row<'_>, from: usize) -> rusqlite::Result<(Self, Result<(), RecordError>)> {
        let columns = Self::read(row, from)?;
        let summary = row.get_ref(from + COUNT)?.as_blob()?;
        let checked = record::summary::check(&columns.sealed(), summary).map(|_| ());
        Ok((columns, checked))
    }

    fn read(row: &Row<'_>, from: usize) -> rusqlite::Result<Self> {
        Ok(Self {
            key: key(row, from)?,
            revision: revision(row.get(from + 2)?),
            outline: outline(row, from + 3)?,
            name: row.get::<_, Option<[u8; 32]>>(from + 8)?.map(Digest),
            record: row.get(from + 9)?,
            reference: ShortReference(row.get(from + 10)?),
            updated_at: time(row.get(from + 11)?),
        })
    }

    /// The bytes that the summary's checksum covers. Unambiguous, since every part but the owner has a fixed length.
    fn sealed(&self) -> Vec<u8> {
        let owner = self.key.owner.as_str();
        let mut bytes = Vec::with_capacity(192 + owner.len());
        bytes.extend_from_slice(&(owner.len() as u64).to_be_bytes());
        bytes.extend_from_slice(owner.as_bytes());
        bytes.extend_from_slice(&id(&self.key));
        bytes.extend_from_slice(&self.reference.0);
        let RowOutline { is_settled, pending_effects, created_at, expires_at, bytes: size } = self.outline;
        bytes.extend_from_slice(&[u8::from(is_settled), pending_effects.bits(), u8::from(self.name.is_some())]);
        let times = [at(created_at), at(expires_at), at(self.updated_at)];
        for value in [revision_column(self.revision), number(size), self.record].into_iter().chain(times) {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend_from_slice(&self.name.map_or([0; 32], |name| name.0));
        bytes
    }

    pub(super) fn bind<T>(
        &self,
        summary: &Summary,
        run: impl FnOnce(&[&dyn ToSql]) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        run(params![
            self.key.owner.as_str(),
            id(&self.key),
            revision_column(self.revision),
            self.outline.is_settled,
            self.outline.pending_effects.bits(),
            at(self.outline.created_at),
            at(self.outline.expires_at),
            number(self.outline.bytes),
            self.name.map(|name| name.0),
            self.record,
            self.reference.0,
            at(self.updated_at),
            record::summary::encode(summary, &self.sealed()),
        ])
    }
}

pub(super) fn id_of(column: [u8; 16]) -> TaskId {
    TaskId::from_bits(u128::from_be_bytes(column))
}

pub(super) fn key(row: &Row<'_>, from: usize) -> rusqlite::Result<TaskKey> {
    Ok(TaskKey { owner: Principal::new(row.get_ref(from)?.as_str()?), id: id_of(row.get(from + 1)?) })
}

pub(super) fn outline(row: &Row<'_>, from: usize) -> rusqlite::Result<RowOutline> {
    Ok(RowOutline {
        is_settled: row.get(from)?,
        pending_effects: PendingEffects::from_bits_retain(row.get(from + 1)?),
        created_at: time(row.get(from + 2)?),
        expires_at: time(row.get(from + 3)?),
        bytes: count(row.get(from + 4)?),
    })
}

pub(super) const OUTLINE: &str = "settled, pending, created_at, expires_at, bytes";

pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};

    let is_another_kind =
        matches!(error, FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..));
    is_another_kind || is_corrupt(error)
}

pub(super) fn is_corrupt(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}
