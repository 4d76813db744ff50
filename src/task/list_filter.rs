//! Filters and orders lists of an owner's tasks (SEP-1904).
//!
//! Every criterion narrows the set of visible tasks, and none widens it (FIL-10). Equal selections are equal values, however they
//! were written.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use super::digest::digest;
use super::{Digest, PhaseKind, SessionScope, Summary, TaskId, TaskVisibility, Timestamp};

/// A position in a sorted list: behind the task with this time and id.
pub type ListPlace = (Timestamp, TaskId);

/// A half-open range of times; empty unless `until` is later than `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl TimeRange {
    pub const ALL: Self = Self { from: Timestamp::from_millis(0), until: Timestamp::from_millis(u64::MAX) };

    #[must_use]
    pub fn contains(&self, time: Timestamp) -> bool {
        self.from <= time && time < self.until
    }

    #[must_use]
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

/// Which end of a list comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListDirection {
    OldestFirst,
    NewestFirst,
}

/// The time from a task's creation to its last update, by powers of 32. Stores group tasks by class: within a class, each of the
/// two times limits the other on both sides, so a search by one time examines few tasks that the other time excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LagClass(u8);

impl LagClass {
    /// The start of each class but the first, in milliseconds.
    pub const STARTS: [u64; 4] = [2_000, 64_000, 2_048_000, 65_536_000];

    /// The class of a task with these times.
    #[must_use]
    pub fn of(created_at: Timestamp, updated_at: Timestamp) -> Self {
        let lag = updated_at.as_millis().saturating_sub(created_at.as_millis());
        Self::all().filter(|class| *class.lags().start() <= lag).last().unwrap_or(Self(0))
    }

    /// All classes, shortest lags first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(Self::STARTS.len() + 1).map(Self)
    }

    /// The number that stores keep.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    fn lags(self) -> RangeInclusive<u64> {
        let number = usize::from(self.0);
        let start = number.checked_sub(1).and_then(|before| Self::STARTS.get(before)).copied();
        let end = Self::STARTS.get(number).copied();
        start.unwrap_or(0)..=end.map_or(u64::MAX, |end| end - 1)
    }
}

/// A list's criteria and order. Listed tasks match every criterion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFilter {
    /// The accepted phases; an empty set accepts none.
    pub phases: BTreeSet<PhaseKind>,
    /// The session with the client-chosen ids; `None` for tasks with ids by the gateway. The two kinds of lists are disjoint
    /// (T-66).
    pub scope: Option<SessionScope>,
    /// The only accepted ids, if given.
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
    #[must_use]
    pub fn of_scope(scope: Option<SessionScope>) -> Self {
        Self { scope, by: OrderedBy::Creation, direction: ListDirection::OldestFirst, ..Self::default() }
    }

    /// Whether the list shows the task.
    #[must_use]
    pub fn fits(&self, task: &Summary) -> bool {
        task.shown.is_listed()
            && task.chosen.as_ref().map(|chosen| chosen.session) == self.scope
            && self.phases.contains(&task.phase.kind())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&task.key.id))
            && self.created.contains(task.created_at)
            && self.updated.contains(task.updated_at)
    }

    /// Whether no task can match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let no_ids = self.ids.as_ref().is_some_and(BTreeSet::is_empty);
        self.phases.is_empty() || no_ids || self.span(0..=u64::MAX).is_empty()
    }

    /// The positions after `after` that matching tasks of one class can have. Its end precedes its start if there are none.
    #[must_use]
    pub fn places(&self, class: LagClass, after: Option<ListPlace>) -> Range<ListPlace> {
        let span = self.span(class.lags());
        let first = |time| (time, TaskId::from_bits(0));
        let (from, until) = (first(span.from), first(span.until));
        match (after, self.direction) {
            (None, _) => from..until,
            (Some(after), ListDirection::OldestFirst) => from.max(right_behind(after))..until,
            (Some(after), ListDirection::NewestFirst) => from..until.min(after),
        }
    }

    /// The positions that matching tasks with these lags can have.
    fn span(&self, lags: RangeInclusive<u64>) -> TimeRange {
        let (shortest, longest) = lags.into_inner();
        let earlier = |time: Timestamp, lag| Timestamp::from_millis(time.as_millis().saturating_sub(lag));
        let later = |time: Timestamp, lag| Timestamp::from_millis(time.as_millis().saturating_add(lag));
        let (created, updated) = (self.created, self.updated);
        match self.by {
            OrderedBy::Creation => TimeRange {
                from: created.from.max(earlier(updated.from, longest)),
                until: created.until.min(earlier(updated.until, shortest)),
            },
            OrderedBy::LastUpdate => TimeRange {
                from: updated.from.max(later(created.from, shortest)),
                until: updated.until.min(later(created.until, longest)),
            },
        }
    }

    /// The range for the time that is not the sort key.
    #[must_use]
    pub const fn other(&self) -> TimeRange {
        match self.by {
            OrderedBy::Creation => self.updated,
            OrderedBy::LastUpdate => self.created,
        }
    }

    /// The same filter, sorted by the other time.
    #[must_use]
    pub fn by_other_time(&self) -> Self {
        let by = match self.by {
            OrderedBy::Creation => OrderedBy::LastUpdate,
            OrderedBy::LastUpdate => OrderedBy::Creation,
        };
        Self { by, ..self.clone() }
    }

    /// A task's position in the order.
    #[must_use]
    pub const fn place(&self, task: &Summary) -> ListPlace {
        match self.by {
            OrderedBy::Creation => (task.created_at, task.key.id),
            OrderedBy::LastUpdate => (task.updated_at, task.key.id),
        }
    }

    /// Compares two positions in the list's order.
    #[must_use]
    pub fn compare(&self, one: &ListPlace, other: &ListPlace) -> Ordering {
        match self.direction {
            ListDirection::OldestFirst => one.cmp(other),
            ListDirection::NewestFirst => other.cmp(one),
        }
    }

    /// Identifies this filter and order in cursors (FIL-11).
    #[must_use]
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
    /// Whether lists show such tasks.
    #[must_use]
    pub const fn is_listed(self) -> bool {
        matches!(self, Self::Handle)
    }
}

fn right_behind((time, id): ListPlace) -> ListPlace {
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

    /// The other time narrows the searched range on both sides, as far as the class of lags allows.
    #[test]
    fn each_time_bounds_the_other_where_it_can() {
        let filter = |by| ListFilter {
            created: range(5_000, 50_000),
            updated: range(2_000, 20_000),
            by,
            ..ListFilter::default()
        };
        assert_eq!(filter(OrderedBy::Creation).span(0..=u64::MAX), range(5_000, 20_000));
        assert_eq!(filter(OrderedBy::LastUpdate).span(0..=u64::MAX), range(5_000, 20_000));
        assert_eq!(filter(OrderedBy::Creation).span(8_000..=63_999), range(5_000, 12_000));
        assert_eq!(filter(OrderedBy::LastUpdate).span(8_000..=63_999), range(13_000, 20_000));
        let early = ListFilter { created: range(0, 5_000), by: OrderedBy::LastUpdate, ..ListFilter::default() };
        assert_eq!(early.span(0..=999), range(0, 5_999));
        assert!(ListFilter { created: range(5, 9), updated: range(0, 5), ..ListFilter::default() }.is_empty());
    }

    /// No matching task lies outside the searched ranges.
    #[test]
    fn every_task_that_fits_stands_in_the_places_of_its_class() {
        let edges = [0, 1, 1_999, 2_000, 63_999, 64_000, 65_535_999, 65_536_000, 1 << 40];
        let mut found = 0;
        for (created_at, lag) in edges.iter().flat_map(|created| edges.iter().map(move |lag| (*created, *lag))) {
            let updated_at = created_at + lag;
            let class = LagClass::of(Timestamp::from_millis(created_at), Timestamp::from_millis(updated_at));
            assert!(class.lags().contains(&lag), "{lag}");
            for (created, updated) in
                edges.iter().flat_map(|created| edges.iter().map(move |updated| (*created, *updated)))
            {
                for by in [OrderedBy::Creation, OrderedBy::LastUpdate] {
                    let fitting = [
                        (range(created, created_at + 1), range(updated, updated_at + 1)),
                        (range(created_at, created_at + 1 + created), range(updated_at, updated_at + 1 + updated)),
                    ];
                    for (created, updated) in fitting {
                        let (at, id) = (Timestamp::from_millis, TaskId::from_bits(u128::MAX));
                        if !created.contains(at(created_at)) || !updated.contains(at(updated_at)) {
                            continue;
                        }
                        let filter = ListFilter { created, updated, by, ..ListFilter::default() };
                        let place = if by == OrderedBy::Creation { (at(created_at), id) } else { (at(updated_at), id) };
                        let places = filter.places(class, None);
                        assert!(places.contains(&place), "{created_at} + {lag}: {filter:?}");
                        let oldest = ListFilter { direction: ListDirection::OldestFirst, ..filter.clone() };
                        assert!(!oldest.places(class, Some(place)).contains(&place));
                        assert!(!filter.places(class, Some(place)).contains(&place));
                        found += 1;
                    }
                }
            }
        }
        assert!(found > 1_000, "{found}");
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
