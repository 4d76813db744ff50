//! Filters and orders lists of tasks (SEP-1904). Criteria only narrow (FIL-10). Equal selections are equal values.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use super::digest::digest;
use super::{Digest, PhaseKind, SessionScope, Summary, TaskId, TaskVisibility, Timestamp};

/// A position in a sorted list: behind the task with this time and id.
pub type ListPosition = (Timestamp, TaskId);

/// A half-open range of times; empty unless `until` is later than `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl TimeRange {
    pub const ALL: Self = Self { from: Timestamp::from_millis(0), until: Timestamp::from_millis(u64::MAX) };

    pub fn contains(&self, time: Timestamp) -> bool {
        self.from <= time && time < self.until
    }

    pub fn is_empty(&self) -> bool {
        self.until <= self.from
    }
}

/// The time that a list is sorted by; ids break ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderedBy {
    Creation,
    LastUpdate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListDirection {
    OldestFirst,
    NewestFirst,
}

/// A list's criteria and order. Listed tasks match every criterion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFilter {
    /// The accepted phases; an empty set accepts none.
    pub phases: BTreeSet<PhaseKind>,
    /// The session with the client-chosen ids; `None` for ids by the gateway. The two lists are disjoint (T-66).
    pub scope: Option<SessionScope>,
    pub ids: Option<BTreeSet<TaskId>>,
    pub created: TimeRange,
    pub updated: TimeRange,
    pub by: OrderedBy,
    pub direction: ListDirection,
}

impl Default for ListFilter {
    /// All tasks, last update first (FIL-06).
    fn default() -> Self {
        Self {
            phases: PhaseKind::ALL.into(),
            scope: None,
            ids: None,
            created: TimeRange::ALL,
            updated: TimeRange::ALL,
            by: OrderedBy::LastUpdate,
            direction: ListDirection::NewestFirst,
        }
    }
}

impl ListFilter {
    /// All tasks of a scope in order of creation, as in unfiltered lists.
    pub fn of_scope(scope: Option<SessionScope>) -> Self {
        Self { scope, by: OrderedBy::Creation, direction: ListDirection::OldestFirst, ..Self::default() }
    }

    pub fn fits(&self, task: &Summary) -> bool {
        task.visibility.is_listed()
            && task.chosen.as_ref().map(|chosen| chosen.session) == self.scope
            && self.phases.contains(&task.phase.kind())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&task.key.id))
            && self.created.contains(task.created_at)
            && self.updated.contains(task.updated_at)
    }

    /// Whether no task can match.
    pub fn is_empty(&self) -> bool {
        let no_ids = self.ids.as_ref().is_some_and(BTreeSet::is_empty);
        let no_times = [self.created, self.updated, self.sorted_times()].iter().any(TimeRange::is_empty);
        self.phases.is_empty() || no_ids || no_times
    }

    /// The positions after `after` that matching tasks can have. The end precedes the start if there are none.
    pub fn positions(&self, after: Option<ListPosition>) -> Range<ListPosition> {
        let times = self.sorted_times();
        let first = |time| (time, TaskId::from_bits(0));
        let (from, until) = (first(times.from), first(times.until));
        match (after, self.direction) {
            (None, _) => from..until,
            (Some(after), ListDirection::OldestFirst) => from.max(right_behind(after))..until,
            (Some(after), ListDirection::NewestFirst) => from..until.min(after),
        }
    }

    /// The sort keys that matching tasks can have. No task was updated before it was created.
    fn sorted_times(&self) -> TimeRange {
        let (created, updated) = (self.created, self.updated);
        match self.by {
            OrderedBy::Creation => TimeRange { from: created.from, until: created.until.min(updated.until) },
            OrderedBy::LastUpdate => TimeRange { from: updated.from.max(created.from), until: updated.until },
        }
    }

    pub const fn position(&self, task: &Summary) -> ListPosition {
        match self.by {
            OrderedBy::Creation => (task.created_at, task.key.id),
            OrderedBy::LastUpdate => (task.updated_at, task.key.id),
        }
    }

    pub fn compare(&self, one: &ListPosition, other: &ListPosition) -> Ordering {
        match self.direction {
            ListDirection::OldestFirst => one.cmp(other),
            ListDirection::NewestFirst => other.cmp(one),
        }
    }

    /// Identifies this filter and order in cursors (FIL-11).
    pub fn digest(&self) -> Digest {
        let phases: Vec<u8> = self.phases.iter().map(|phase| phase.number()).collect();
        let ids: Option<Vec<u8>> =
            self.ids.as_ref().map(|ids| ids.iter().flat_map(|id| id.bits().to_be_bytes()).collect());
        let times = [self.created.from, self.created.until, self.updated.from, self.updated.until];
        let times: Vec<u8> = times.iter().flat_map(|time| time.as_millis().to_be_bytes()).collect();
        let scope = self.scope.map(|scope| scope.0.to_be_bytes());
        let kinds = [u8::from(ids.is_some()), u8::from(scope.is_some()), self.by as u8, self.direction as u8];
        digest([&phases[..], &ids.unwrap_or_default(), &scope.unwrap_or_default(), &times, &kinds])
    }
}

impl TaskVisibility {
    pub const fn is_listed(self) -> bool {
        matches!(self, Self::Handle)
    }
}

fn right_behind((time, id): ListPosition) -> ListPosition {
    match id.bits().checked_add(1) {
        Some(next) => (time, TaskId::from_bits(next)),
        None => (Timestamp::from_millis(time.as_millis().saturating_add(1)), TaskId::from_bits(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(from: u64, until: u64) -> TimeRange {
        TimeRange { from: Timestamp::from_millis(from), until: Timestamp::from_millis(until) }
    }

    #[test]
    fn each_time_narrows_the_sort_keys_as_far_as_it_can() {
        let filter = |by| ListFilter {
            created: range(5_000, 50_000),
            updated: range(2_000, 20_000),
            by,
            ..ListFilter::default()
        };
        assert_eq!(filter(OrderedBy::Creation).sorted_times(), range(5_000, 20_000));
        assert_eq!(filter(OrderedBy::LastUpdate).sorted_times(), range(5_000, 20_000));
        for (created, updated) in
            [(range(5, 9), range(0, 5)), (range(9, 2), TimeRange::ALL), (TimeRange::ALL, range(9, 2))]
        {
            for by in [OrderedBy::Creation, OrderedBy::LastUpdate] {
                assert!(ListFilter { created, updated, by, ..ListFilter::default() }.is_empty());
            }
        }
    }

    /// No matching task lies outside the positions, and none comes twice.
    #[test]
    fn positions_hold_every_task_that_fits_and_begin_behind_the_last() {
        let id = TaskId::from_bits(u128::MAX);
        let at = Timestamp::from_millis;
        let edges = [0, 1, 2_000, 1 << 40];
        for (created_at, lag) in edges.iter().flat_map(|created| edges.iter().map(move |lag| (*created, *lag))) {
            let updated_at = created_at + lag;
            for (before, after) in edges.iter().flat_map(|before| edges.iter().map(move |after| (*before, *after))) {
                let around = |time: u64| range(time.saturating_sub(before), time + 1 + after);
                for by in [OrderedBy::Creation, OrderedBy::LastUpdate] {
                    let (created, updated) = (around(created_at), around(updated_at));
                    let newest = ListFilter { created, updated, by, ..ListFilter::default() };
                    let oldest = ListFilter { direction: ListDirection::OldestFirst, ..newest.clone() };
                    let position = if by == OrderedBy::Creation { (at(created_at), id) } else { (at(updated_at), id) };
                    for filter in [newest, oldest] {
                        assert!(filter.positions(None).contains(&position), "{created_at} + {lag}: {filter:?}");
                        assert!(!filter.positions(Some(position)).contains(&position), "{filter:?}");
                    }
                }
            }
        }
    }

    /// FIL-11.
    #[test]
    fn filters_that_differ_have_different_digests() {
        let all = ListFilter::default();
        let others = [
            ListFilter { phases: BTreeSet::new(), ..all.clone() },
            ListFilter { scope: Some(SessionScope(0)), ..all.clone() },
            ListFilter { ids: Some(BTreeSet::new()), ..all.clone() },
            ListFilter { ids: Some([TaskId::from_bits(1)].into()), ..all.clone() },
            ListFilter { created: range(0, 7), ..all.clone() },
            ListFilter { updated: range(0, 7), ..all.clone() },
            ListFilter { by: OrderedBy::Creation, ..all.clone() },
            ListFilter { direction: ListDirection::OldestFirst, ..all.clone() },
            all,
        ];
        let digests: BTreeSet<_> = others.iter().map(ListFilter::digest).collect();
        assert_eq!(digests.len(), others.len());
    }
}
