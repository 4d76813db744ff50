//! Combines writes into one transaction: selects compatible writes, and determines each one's outcome.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::{Row, Statement};

use super::columns::{self, EncodedRow, count, holder, holder_column, number, revision, revision_column};
use super::session::Session;
use super::statements::WriterStatements;
use super::sums::SumChange;
use super::task_write::{ClaimableRows, ROW_BYTES_MAX, TaskWrite};
use super::transaction::{CommitFailure, MadeTransaction, Parameters, transact};
use crate::replica::membership::DEAD_ROWS_KEPT;
use crate::replica::{BootTime, GuardedRow, GuardedWrite, Incarnation, UnknownCommitCause, WriteVerdict};
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::{Revision, StoreError, WriteOutcome, WriteRole};
use crate::task::{Principal, TaskKey};

const BATCH_WRITES_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Limits of one transaction that removes remains of dead incarnations.
const RETIRED_INCARNATIONS_MAX: i64 = 64;
pub(super) const RETIRED_SUMS_MAX: i64 = 1_000;

/// Selects the writes of a batch: distinct rows and names, and enough room for all.
#[derive(Debug, Default)]
pub(super) struct BatchPlan {
    /// The rows of all writes so far, also of those that are for the next batch: writes of one row keep their order.
    keys: BTreeSet<TaskKey>,
    names: BTreeSet<(Principal, Vec<u8>)>,
    writes: usize,
    bytes: usize,
    size: usize,
    is_closed: bool,
}

impl BatchPlan {
    /// Adds a write if it fits; else it is for the next batch, as are later ones of its row. `room`: free bytes.
    pub(super) fn takes(&mut self, write: &TaskWrite, room: usize) -> bool {
        let is_taken = self.adds(write, room);
        self.keys.extend(write.key().cloned());
        is_taken
    }

    fn adds(&mut self, write: &TaskWrite, room: usize) -> bool {
        if self.is_closed || self.writes >= BATCH_WRITES_MAX || (write.is_alone() && self.writes > 0) {
            return false;
        }
        let bytes = write.row().map_or(0, EncodedRow::bytes);
        let size = write.new_row().map_or(0, |row| count(row.size));
        let is_first = self.writes == 0;
        if !is_first && (self.bytes + bytes > BATCH_BYTES_MAX || (size > 0 && self.size.saturating_add(size) > room)) {
            return false;
        }
        let name = |row: &EncodedRow| Some((row.key.owner.clone(), row.name.clone().filter(|name| !name.is_empty())?));
        let name = write.new_row().and_then(name);
        let is_beside = write.key().is_none_or(|key| !self.keys.contains(key))
            && name.as_ref().is_none_or(|name| !self.names.contains(name));
        if !is_beside {
            return false;
        }
        self.names.extend(name);
        self.writes += 1;
        self.bytes += bytes;
        self.size = self.size.saturating_add(size);
        self.is_closed = write.is_alone();
        true
    }

    pub(super) const fn is_full(&self) -> bool {
        self.is_closed || self.writes >= BATCH_WRITES_MAX || self.bytes >= BATCH_BYTES_MAX
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WriterIdentity {
    pub(super) holder: Incarnation,
    pub(super) epoch: i64,
}

#[derive(Debug)]
pub(super) struct BatchOutcome {
    /// One result for each write, in order.
    pub(super) results: Vec<Result<WriteOutcome, StoreError>>,
    pub(super) sums: Vec<SumChange>,
    /// Sums that became this replica's from others; negated for the other direction.
    pub(super) folded: Vec<SumChange>,
    pub(super) changed: Vec<TaskKey>,
    /// When the batch was sent: it is a barrier too.
    pub(super) sent: BootTime,
}

impl BatchOutcome {
    fn of_one(outcome: WriteOutcome, sent: BootTime) -> Self {
        Self { results: vec![Ok(outcome)], sums: vec![], folded: vec![], changed: vec![], sent }
    }
}

struct TouchedRow {
    key: TaskKey,
    revision: Revision,
    holder: Option<Incarnation>,
}

impl TouchedRow {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (revision, holder) = (revision(row.try_get(3)?), row.try_get::<_, Option<i64>>(4)?.map(holder));
        Ok(Self { key: columns::key(row, 1)?, revision, holder })
    }
}

#[derive(Debug)]
pub(super) struct GroupedWrites<'a> {
    pub(super) session: &'a Session,
    pub(super) statements: &'a WriterStatements,
    pub(super) identity: WriterIdentity,
    /// Free bytes in the store.
    pub(super) room: usize,
    pub(super) clock_trust: ClockTrust,
}

impl GroupedWrites<'_> {
    /// The transaction's failure holds for all its writes. Dropping the future leaves the outcome unknown.
    pub(super) async fn run(&self, writes: &[TaskWrite]) -> Result<BatchOutcome, CommitFailure> {
        let me = (holder_column(self.identity.holder), self.identity.epoch);
        match writes {
            [TaskWrite::Sweep { now, limit }] => {
                let (now, limit) = (columns::at(*now), number(*limit));
                let values: Parameters<'_> = vec![&me.0, &me.1, &now, &limit];
                self.take((&self.statements.sweep, values), true, |freed| WriteOutcome::Count(freed.len())).await
            }
            [TaskWrite::Claim { limit, rows: ClaimableRows { upstreams, abandoned } }] => {
                let limit = number(*limit);
                let values: Parameters<'_> = vec![&me.0, &me.1, upstreams, abandoned, &limit];
                let claimed = |keys: &[TaskKey]| WriteOutcome::Claimed(keys.to_vec());
                self.take((&self.statements.claim, values), false, claimed).await
            }
            [TaskWrite::Retire { incarnation }] => self.retire(me, *incarnation).await,
            [TaskWrite::Merge { owners }] => self.merge(me, owners).await,
            _ => self.write(writes, me).await,
        }
    }

    /// Runs a write that selects its rows itself; the changed rows give its outcome.
    async fn take(
        &self,
        statement: (&Statement, Parameters<'_>),
        has_sums: bool,
        outcome: impl FnOnce(&[TaskKey]) -> WriteOutcome,
    ) -> Result<BatchOutcome, CommitFailure> {
        let made = self.commit(&[statement]).await?;
        let (touched, sums) = read(&made, has_sums)?;
        let changed: Vec<_> = touched.into_iter().map(|row| row.key).collect();
        let one = BatchOutcome::of_one(outcome(&changed), made.sent);
        Ok(BatchOutcome { sums, changed, ..one })
    }

    async fn retire(&self, me: (i64, i64), incarnation: Option<Incarnation>) -> Result<BatchOutcome, CommitFailure> {
        let kept = if incarnation.is_some() { 0.0 } else { DEAD_ROWS_KEPT.as_secs_f64() };
        let one = incarnation.map(holder_column);
        let close: Parameters<'_> = vec![&kept, &RETIRED_INCARNATIONS_MAX, &one];
        let retire: Parameters<'_> = vec![&me.0, &me.1, &RETIRED_INCARNATIONS_MAX, &RETIRED_SUMS_MAX, &kept, &one];
        let mut statements = vec![(&self.statements.close_lanes, close), (&self.statements.retire, retire.clone())];
        if incarnation.is_some() {
            // A dead incarnation's row is deleted once it has no sums.
            statements.push((&self.statements.retire, retire));
        }
        let made = self.commit(&statements).await?;
        let sums = made.rows.iter().skip(1).flatten().filter(|row| matches!(row.try_get(0), Ok(false)));
        let folded = sums.map(|row| SumChange::of(row, 2, 5)).collect::<Result<Vec<_>, _>>().map_err(unread)?;
        let one = BatchOutcome::of_one(WriteOutcome::Count(folded.len()), made.sent);
        Ok(BatchOutcome { folded, ..one })
    }

    async fn merge(&self, me: (i64, i64), owners: &Vec<Vec<u8>>) -> Result<BatchOutcome, CommitFailure> {
        let merge: Parameters<'_> = vec![&me.0, &me.1, owners];
        let statements = [(&self.statements.merge, merge), (&self.statements.drop_merged, vec![owners])];
        let made = self.commit(&statements).await?;
        let sums = made.rows.iter().flatten().filter(|row| matches!(row.try_get(0), Ok(false)));
        let merged = sums.map(|row| SumChange::of(row, 1, 2)).collect::<Result<Vec<_>, _>>().map_err(unread)?;
        let folded = merged.iter().map(SumChange::negated).collect();
        Ok(BatchOutcome { folded, ..BatchOutcome::of_one(WriteOutcome::Count(merged.len()), made.sent) })
    }

    async fn commit(&self, statements: &[(&Statement, Parameters<'_>)]) -> Result<MadeTransaction, CommitFailure> {
        transact(self.session, statements).await
    }

    async fn write(&self, writes: &[TaskWrite], me: (i64, i64)) -> Result<BatchOutcome, CommitFailure> {
        let arrays = RowArrays::of(writes, self.room);
        let mut statements = vec![(&self.statements.batch, arrays.parameters(&me))];
        let names = ReleasedNames::of(writes, self.clock_trust);
        if !names.names.is_empty() {
            let values: Parameters<'_> = vec![&names.owners, &names.names, &names.times, &me.0, &me.1];
            statements.insert(0, (&self.statements.release, values));
        }
        let made = self.commit(&statements).await?;
        let (touched, sums) = read(&made, true)?;
        let touched: BTreeMap<TaskKey, TouchedRow> = touched.into_iter().map(|row| (row.key.clone(), row)).collect();
        let is_left = |write: &&TaskWrite| matches!(write, TaskWrite::Replace { row, .. } if !touched.contains_key(&row.key) && count(row.size) <= ROW_BYTES_MAX);
        let left: Vec<&TaskWrite> = writes.iter().filter(is_left).collect();
        let found = if left.is_empty() { BTreeMap::new() } else { self.look(&left, me).await? };
        let results = writes.iter().map(|write| self.result(write, &touched, &found)).collect();
        let changed = touched.into_keys().collect();
        Ok(BatchOutcome { results, sums, folded: vec![], changed, sent: made.sent })
    }

    /// Reads rows that could not be replaced. The batch is committed: if this read fails, its outcome is unknown.
    async fn look(&self, left: &[&TaskWrite], me: (i64, i64)) -> Result<BTreeMap<TaskKey, TouchedRow>, CommitFailure> {
        let rows = left.iter().filter_map(|write| write.row());
        let (ids, owners): (Vec<&[u8]>, Vec<&[u8]>) = rows.map(|row| (&row.id[..], row.owner())).unzip();
        let made = self.commit(&[(&self.statements.look, vec![&me.0, &me.1, &ids, &owners])]).await;
        let made = made.map_err(|failure| lost(failure.to_string()))?;
        let (found, _) = read(&made, false)?;
        Ok(found.into_iter().map(|row| (row.key.clone(), row)).collect())
    }

    fn result(
        &self,
        write: &TaskWrite,
        touched: &BTreeMap<TaskKey, TouchedRow>,
        found: &BTreeMap<TaskKey, TouchedRow>,
    ) -> Result<WriteOutcome, StoreError> {
        let full = Err(StoreError::Full);
        match write {
            TaskWrite::Insert(row) => match touched.get(&row.key) {
                Some(made) => Ok(WriteOutcome::At(made.revision)),
                None if !fits(row, self.room) => full,
                None => Err(StoreError::Exists),
            },
            TaskWrite::Replace { expected, role, row } => match (touched.get(&row.key), found.get(&row.key)) {
                (Some(put), _) => Ok(WriteOutcome::At(put.revision)),
                (None, Some(there)) => {
                    let write = match role {
                        WriteRole::Holder => GuardedWrite::by_holder(self.identity.holder, expected.0),
                        WriteRole::Command => GuardedWrite::by_command(expected.0),
                    };
                    match write.judge(Some(GuardedRow { revision: there.revision.0, holder: there.holder })) {
                        WriteVerdict::Fenced => Err(StoreError::Fenced),
                        WriteVerdict::Conflict => Err(StoreError::Conflict),
                        // It became so since the batch looked at it.
                        WriteVerdict::Made => Err(StoreError::Conflict),
                    }
                }
                (None, None) if count(row.size) > ROW_BYTES_MAX => full,
                (None, None) => Err(StoreError::Conflict),
            },
            TaskWrite::Remove(_)
            | TaskWrite::Withdraw(_)
            | TaskWrite::SweepOne { .. }
            | TaskWrite::Sweep { .. }
            | TaskWrite::Claim { .. }
            | TaskWrite::Retire { .. }
            | TaskWrite::Merge { .. }
            | TaskWrite::Barrier => Ok(WriteOutcome::Done),
        }
    }
}

fn unread(error: tokio_postgres::Error) -> CommitFailure {
    lost(error.to_string())
}

const fn lost(why: String) -> CommitFailure {
    CommitFailure::Unknown { cause: UnknownCommitCause::Lost, why, is_answered: false }
}

fn read(made: &MadeTransaction, has_sums: bool) -> Result<(Vec<TouchedRow>, Vec<SumChange>), CommitFailure> {
    let rows = made.rows.last().map_or(&[][..], Vec::as_slice);
    let (mut touched, mut sums) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        let is_own_line: bool = row.try_get(0).map_err(unread)?;
        if is_own_line {
            continue;
        }
        touched.push(TouchedRow::of(row).map_err(unread)?);
        if has_sums {
            sums.push(SumChange::of(row, 2, 5).map_err(unread)?);
        }
    }
    Ok((touched, sums))
}

/// Whether a new row fits as the first of a batch. [`BatchPlan`] checks the others.
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
    pub(super) fn of(writes: &'a [TaskWrite], clock_trust: ClockTrust) -> Self {
        let mut all = Self::default();
        for write in writes {
            if let TaskWrite::Insert(row) = write
                && let Some(name) = row.name.as_ref().filter(|name| !name.is_empty())
            {
                all.owners.push(row.owner());
                all.names.push(name);
                all.times.push(columns::at(clock_trust.expiry_time(columns::time(row.created))));
            }
        }
        all
    }
}

/// Declares the arrays of a batch's rows: each column with its type, and its value of a row.
macro_rules! row_arrays {
    (|$row:ident, $expected:ident, $by_holder:ident| $($column:ident: $type:ty = $value:expr;)*) => {
        /// The writes of a batch as arrays, in every replica's order of row locks.
        #[derive(Debug, Default)]
        pub(super) struct RowArrays<'a> {
            $($column: Vec<$type>,)*
            removed_ids: Vec<Vec<u8>>,
            removed_owners: Vec<&'a [u8]>,
            withdrawn: Vec<bool>,
            gone_at: Vec<Option<i64>>,
        }

        impl<'a> RowArrays<'a> {
            fn add(&mut self, $row: &'a EncodedRow, $expected: Option<i64>, $by_holder: bool) {
                $(self.$column.push($value);)*
            }

            /// The parameters of [`super::statements::batch`], in order.
            pub(super) fn parameters<'b>(&'b self, me: &'b (i64, i64)) -> Parameters<'b> {
                vec![
                    &me.0, &me.1, $(&self.$column,)*
                    &self.removed_ids, &self.removed_owners, &self.withdrawn, &self.gone_at,
                ]
            }
        }
    };
}

row_arrays! {
    |row, expected, by_holder|
    ids: &'a [u8] = &row.id;
    owners: &'a [u8] = row.owner();
    expected: Option<i64> = expected;
    by_holder: bool = by_holder;
    needs_holder: bool = row.needs_holder;
    settled: bool = row.is_settled;
    updated: i64 = row.updated;
    expires: i64 = row.expires;
    size: i64 = row.size;
    summary: &'a [u8] = &row.summary;
    record: &'a [u8] = &row.record;
    names: Option<&'a [u8]> = row.name.as_deref();
    parent: Option<&'a [u8]> = row.parent.as_deref();
    created: i64 = row.created;
    references: &'a [u8] = &row.reference;
    upstreams: &'a [u8] = &row.upstream;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract::task;

    /// Else the removed row would come back.
    #[test]
    fn a_write_does_not_overtake_an_earlier_one_of_its_row_that_waits_for_the_next_batch() {
        let [first, second] = [task("a", 1), task("a", 2)];
        let insert = |task| TaskWrite::Insert(Box::new(EncodedRow::of(task)));
        let mut plan = BatchPlan::default();
        let room = first.stored_bytes() + second.stored_bytes() - 1;
        assert!(plan.takes(&insert(&first), room));
        assert!(!plan.takes(&insert(&second), room), "there is no room for both");
        assert!(!plan.takes(&TaskWrite::Remove(second.key.clone()), room), "the insert comes first");
        assert!(plan.takes(&TaskWrite::Remove(task("a", 3).key), room));
    }
}
