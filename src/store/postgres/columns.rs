//! Defines a row's contents: the record, the summary, and the columns for statements.

use bytes::Bytes;
use tokio_postgres::Row;

use crate::replica::Incarnation;
pub(super) use crate::store::integers::{at, count, id, number, revision, revision_column, time};
use crate::store::record::{self, RecordError};
use crate::store::tasks::{Revision, StoredTask, needs_holder};
use crate::task::{Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp};

/// A task in its stored form. The caller encodes it, which spares the writer that work.
#[derive(Debug)]
pub(super) struct EncodedRow {
    pub(super) key: TaskKey,
    pub(super) id: [u8; 16],
    pub(super) is_settled: bool,
    pub(super) needs_holder: bool,
    pub(super) parent: Option<Vec<u8>>,
    pub(super) upstream: Vec<u8>,
    pub(super) created: i64,
    pub(super) updated: i64,
    pub(super) expires: i64,
    pub(super) reference: Vec<u8>,
    /// Empty for a task that ended without its call, which releases the key.
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: i64,
    pub(super) summary: Vec<u8>,
    pub(super) record: Vec<u8>,
}

impl EncodedRow {
    pub(super) fn of(task: &Task) -> Self {
        let summary = Summary::of(task);
        let lists = ListedColumns::of(&summary);
        let (is_settled, expires, size) = (task.is_settled(), at(task.expires_at()), number(task.stored_bytes()));
        let sealed = lists.sealed(&task.key, is_settled, expires);
        let ListedColumns { parent, created, updated } = lists;
        Self {
            id: id(&task.key),
            is_settled,
            needs_holder: needs_holder(task),
            parent,
            upstream: task.origin.upstream.as_bytes().to_vec(),
            created,
            updated,
            expires,
            reference: ShortReference::of(&task.key).0.to_vec(),
            name: match task.certainly_did_not_run() {
                true => Some(Vec::new()),
                false => task.idempotency.map(|named| named.key.0.to_vec()),
            },
            size,
            summary: record::summary::encode(&summary, &sealed),
            record: record::encode(task),
            key: task.key.clone(),
        }
    }

    pub(super) fn owner(&self) -> &[u8] {
        self.key.owner.as_str().as_bytes()
    }

    /// The approximate size in a transaction.
    pub(super) fn bytes(&self) -> usize {
        self.record.len() + self.summary.len()
    }
}

#[derive(Debug)]
struct ListedColumns {
    parent: Option<Vec<u8>>,
    created: i64,
    updated: i64,
}

impl ListedColumns {
    fn of(task: &Summary) -> Self {
        Self {
            parent: task.tree.parent.map(|parent| parent.bits().to_be_bytes().to_vec()),
            created: at(task.created_at),
            updated: at(task.updated_at),
        }
    }

    /// The checksum has no revision and holder, which claims change, and no idempotency key, which expires.
    fn sealed(&self, key: &TaskKey, is_settled: bool, expires: i64) -> Vec<u8> {
        let owner = key.owner.as_str();
        let mut bytes = Vec::with_capacity(128 + owner.len());
        for text in [owner.as_bytes(), &id(key), self.parent.as_deref().unwrap_or_default()] {
            bytes.extend_from_slice(&number(text.len()).to_be_bytes());
            bytes.extend_from_slice(text);
        }
        bytes.push(u8::from(is_settled));
        for value in [self.created, self.updated, expires] {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes
    }
}

#[derive(Debug)]
pub(super) struct SummaryRow {
    pub(super) key: TaskKey,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// `None` if its checksum fails: reading the whole row finds the damage.
    pub(super) summary: Option<Summary>,
}

pub(super) const LISTED: &str = "id, owner, settled, parent, created, updated, expires, summary";

impl SummaryRow {
    /// Reads a row that starts with [`LISTED`].
    pub(super) fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let key = key(row, 0)?;
        let lists = ListedColumns { parent: row.try_get(3)?, created: row.try_get(4)?, updated: row.try_get(5)? };
        let sealed = lists.sealed(&key, row.try_get(2)?, row.try_get(6)?);
        let summary = record::summary::decode(&key, &sealed, row.try_get(7)?).ok();
        Ok(Self { key, created_at: time(lists.created), updated_at: time(lists.updated), summary })
    }
}

#[derive(Debug)]
pub(super) enum FetchedRow {
    Whole(StoredTask),
    /// Its contents are not as written (F56).
    Damaged(DamagedRow),
}

#[derive(Debug)]
pub(super) struct DamagedRow {
    pub(super) key: TaskKey,
    pub(super) revision: Revision,
    pub(super) is_settled: bool,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) error: RecordError,
}

impl FetchedRow {
    /// Reads a row with its id, owner, revision, holder, settled flag, times, and record.
    pub(super) fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let key = key(row, 0)?;
        let revision = revision(row.try_get(2)?);
        let holder = row.try_get::<_, Option<i64>>(3)?.map(holder);
        let is_settled = row.try_get(4)?;
        let (created_at, expires_at) = (time(row.try_get(5)?), time(row.try_get(6)?));
        let bytes = Bytes::copy_from_slice(row.try_get(7)?);
        let fits = |task: &Task| {
            let times = (time(at(task.created_at)), time(at(task.expires_at())));
            task.key == key && task.is_settled() == is_settled && times == (created_at, expires_at)
        };
        let error = match record::decode(&bytes) {
            Ok(task) if fits(&task) => return Ok(Self::Whole(StoredTask { task: task.into(), revision, holder })),
            Ok(_) => RecordError::Damaged,
            Err(error) => error,
        };
        Ok(Self::Damaged(DamagedRow { key, revision, is_settled, created_at, expires_at, error }))
    }

    pub(super) fn key(&self) -> &TaskKey {
        match self {
            Self::Whole(row) => &row.task.key,
            Self::Damaged(row) => &row.key,
        }
    }
}

/// Reads a key from the columns `from` and `from + 1`. Invalid bytes become a key that no task has.
pub(super) fn key(row: &Row, from: usize) -> Result<TaskKey, tokio_postgres::Error> {
    let (id, owner): (&[u8], &[u8]) = (row.try_get(from)?, row.try_get(from + 1)?);
    Ok(TaskKey { owner: Principal::new(&String::from_utf8_lossy(owner)), id: id_of(id) })
}

pub(super) fn id_of(column: &[u8]) -> TaskId {
    TaskId::from_bits(column.try_into().map_or(0, u128::from_be_bytes))
}

pub(super) fn key_arrays<'a>(keys: impl IntoIterator<Item = &'a TaskKey>) -> (Vec<Vec<u8>>, Vec<&'a [u8]>) {
    keys.into_iter().map(|key| (id(key).to_vec(), key.owner.as_str().as_bytes())).unzip()
}

pub(super) fn holder(column: i64) -> Incarnation {
    Incarnation(u64::try_from(column).unwrap_or(0))
}

pub(super) fn holder_column(holder: Incarnation) -> i64 {
    i64::try_from(holder.0).unwrap_or(i64::MAX)
}
