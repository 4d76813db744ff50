//! Converts the writes of a batch into the arrays of its statement.

use super::columns::{self, EncodedRow, count, revision_column};
use super::task_write::{ROW_BYTES_MAX, TaskWrite};
use super::transaction::Parameters;
use crate::store::tasks::WriteRole;
use crate::task::TaskKey;

/// Whether a new row fits as the first of a batch. [`super::batch::BatchPlan`] checks the others.
pub(super) fn fits(row: &EncodedRow, room: usize) -> bool {
    count(row.size) <= room.min(ROW_BYTES_MAX)
}

#[derive(Debug, Default)]
pub(super) struct ReleasedNames<'a> {
    pub(super) owners: Vec<&'a [u8]>,
    pub(super) names: Vec<&'a [u8]>,
    pub(super) times: Vec<i64>,
}

impl<'a> ReleasedNames<'a> {
    pub(super) fn of(writes: &'a [TaskWrite]) -> Self {
        let mut all = Self::default();
        for write in writes {
            if let TaskWrite::Insert(row) = write
                && let Some(name) = row.name.as_ref().filter(|name| !name.is_empty())
            {
                all.owners.push(row.owner());
                all.names.push(name);
                all.times.push(row.created);
            }
        }
        all
    }
}

/// The writes of a batch as arrays, in every replica's order of row locks.
#[derive(Debug, Default)]
pub(super) struct RowArrays<'a> {
    ids: Vec<&'a [u8]>,
    owners: Vec<&'a [u8]>,
    expected: Vec<Option<i64>>,
    by_holder: Vec<bool>,
    needs_holder: Vec<bool>,
    settled: Vec<bool>,
    updated: Vec<i64>,
    expires: Vec<i64>,
    size: Vec<i64>,
    summary: Vec<&'a [u8]>,
    record: Vec<&'a [u8]>,
    names: Vec<Option<&'a [u8]>>,
    parent: Vec<Option<&'a [u8]>>,
    created: Vec<i64>,
    references: Vec<&'a [u8]>,
    upstreams: Vec<&'a [u8]>,
    removed_ids: Vec<Vec<u8>>,
    removed_owners: Vec<&'a [u8]>,
    withdrawn: Vec<bool>,
    gone_at: Vec<Option<i64>>,
}

impl<'a> RowArrays<'a> {
    pub(super) fn of(writes: &'a [TaskWrite], room: usize) -> Self {
        let mut arrays = Self::default();
        let mut rows: Vec<(Option<i64>, bool, &EncodedRow)> = Vec::with_capacity(writes.len());
        let mut removed: Vec<(&TaskKey, bool, Option<i64>)> = Vec::new();
        for write in writes {
            match write {
                TaskWrite::Insert(row) if fits(row, room) => rows.push((None, false, row)),
                TaskWrite::Replace { expected, role, row } if count(row.size) <= ROW_BYTES_MAX => {
                    rows.push((Some(revision_column(*expected)), *role == WriteRole::Holder, row));
                }
                TaskWrite::Remove(key) => removed.push((key, false, None)),
                TaskWrite::Withdraw(key) => removed.push((key, true, None)),
                TaskWrite::SweepOne { key, now } => removed.push((key, false, Some(columns::at(*now)))),
                // Too large rows are not sent.
                TaskWrite::Insert(_)
                | TaskWrite::Replace { .. }
                | TaskWrite::Sweep { .. }
                | TaskWrite::Claim { .. }
                | TaskWrite::Retire { .. }
                | TaskWrite::Merge { .. }
                | TaskWrite::Barrier => (),
            }
        }
        rows.sort_unstable_by_key(|(_, _, row)| (row.id, row.owner()));
        removed.sort_unstable_by_key(|(key, ..)| (columns::id(key), key.owner.as_str()));
        for (expected, by_holder, row) in rows {
            arrays.add(row, expected, by_holder);
        }
        for (key, is_withdrawn, gone_at) in removed {
            arrays.removed_ids.push(columns::id(key).to_vec());
            arrays.removed_owners.push(key.owner.as_str().as_bytes());
            arrays.withdrawn.push(is_withdrawn);
            arrays.gone_at.push(gone_at);
        }
        arrays
    }

    fn add(&mut self, row: &'a EncodedRow, expected: Option<i64>, by_holder: bool) {
        self.ids.push(&row.id);
        self.owners.push(row.owner());
        self.expected.push(expected);
        self.by_holder.push(by_holder);
        self.needs_holder.push(row.needs_holder);
        self.settled.push(row.is_settled);
        self.updated.push(row.updated);
        self.expires.push(row.expires);
        self.size.push(row.size);
        self.summary.push(&row.summary);
        self.record.push(&row.record);
        self.names.push(row.name.as_deref());
        self.parent.push(row.parent.as_deref());
        self.created.push(row.created);
        self.references.push(&row.reference);
        self.upstreams.push(&row.upstream);
    }

    /// The parameters of [`super::statements::batch`], in order.
    pub(super) fn parameters<'b>(&'b self, me: &'b (i64, i64)) -> Parameters<'b> {
        vec![
            &me.0,
            &me.1,
            &self.ids,
            &self.owners,
            &self.expected,
            &self.by_holder,
            &self.needs_holder,
            &self.settled,
            &self.updated,
            &self.expires,
            &self.size,
            &self.summary,
            &self.record,
            &self.names,
            &self.parent,
            &self.created,
            &self.references,
            &self.upstreams,
            &self.removed_ids,
            &self.removed_owners,
            &self.withdrawn,
            &self.gone_at,
        ]
    }
}
