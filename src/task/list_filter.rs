//! Defines which of an owner's tasks a list holds, and in which order (SEP-1904).
//!
//! Every criterion narrows what its owner may see, and none widens it (FIL-10). Equal selections are equal values,
//! whatever they were written as.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::digest::digest;
use super::{Digest, PhaseKind, Summary, TaskId, TaskVisibility, Timestamp};

/// A place in a list that is in order: right behind the task that was ordered by this time and has this id.
pub type ListPlace = (Timestamp, TaskId);

/// From a moment on, and before another; empty if that is not later.
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

/// The time that a list is ordered by; ids decide between tasks of one time.
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

/// What a list is to hold: tasks that fit every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFilter {
    /// Phases of which each is wanted; none at all if this is empty.
    pub phases: BTreeSet<PhaseKind>,
    /// These alone, if there are any wanted in particular.
    pub ids: Option<BTreeSet<TaskId>>,
    pub created: TimeRange,
    pub updated: TimeRange,
    pub by: OrderedBy,
    pub direction: ListDirection,
}

impl Default for ListFilter {
    /// All tasks, the one that changed last first (FIL-06).
    fn default() -> Self {
        Self {
            phases: PhaseKind::ALL.into(),
            ids: None,
            created: TimeRange::ALL,
            updated: TimeRange::ALL,
            by: OrderedBy::LastUpdate,
            direction: ListDirection::NewestFirst,
        }
    }
}

impl ListFilter {
    /// Whether a list of this kind shows the task.
    #[must_use]
    pub fn fits(&self, task: &Summary) -> bool {
        task.is_listed()
            && self.phases.contains(&task.phase.kind())
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&task.key.id))
            && self.created.contains(task.created_at)
            && self.updated.contains(task.updated_at)
    }

    /// Whether no task can fit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let no_ids = self.ids.as_ref().is_some_and(BTreeSet::is_empty);
        self.phases.is_empty() || no_ids || self.span().is_empty()
    }

    /// Where all tasks that fit stand in the order. No task was changed before it was created, so each of the two times
    /// bounds the other.
    #[must_use]
    pub fn span(&self) -> TimeRange {
        match self.by {
            OrderedBy::Creation => TimeRange { until: self.created.until.min(self.updated.until), ..self.created },
            OrderedBy::LastUpdate => TimeRange { from: self.updated.from.max(self.created.from), ..self.updated },
        }
    }

    /// What the time that is not ordered by must be in.
    #[must_use]
    pub const fn other(&self) -> TimeRange {
        match self.by {
            OrderedBy::Creation => self.updated,
            OrderedBy::LastUpdate => self.created,
        }
    }

    /// Where a task stands in the order.
    #[must_use]
    pub const fn place(&self, task: &Summary) -> ListPlace {
        match self.by {
            OrderedBy::Creation => (task.created_at, task.key.id),
            OrderedBy::LastUpdate => (task.updated_at, task.key.id),
        }
    }

    /// Which of two places comes first.
    #[must_use]
    pub fn compare(&self, one: &ListPlace, other: &ListPlace) -> Ordering {
        match self.direction {
            ListDirection::OldestFirst => one.cmp(other),
            ListDirection::NewestFirst => other.cmp(one),
        }
    }

    /// What tells this filter and this order from all others, for cursors (FIL-11).
    #[must_use]
    pub fn digest(&self) -> Digest {
        let phases: Vec<u8> = self.phases.iter().map(|phase| phase.number()).collect();
        let ids: Option<Vec<u8>> =
            self.ids.as_ref().map(|ids| ids.iter().flat_map(|id| id.bits().to_be_bytes()).collect());
        let times = [self.created.from, self.created.until, self.updated.from, self.updated.until];
        let times: Vec<u8> = times.iter().flat_map(|time| time.as_millis().to_be_bytes()).collect();
        let kinds = [u8::from(ids.is_some()), self.by as u8, self.direction as u8];
        digest([&phases[..], &ids.unwrap_or_default(), &times, &kinds])
    }
}

impl Summary {
    /// Whether lists of their owner's tasks show it at all: not without a handle, and not under an id that a client chose,
    /// which is known in its session alone (T-66).
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        matches!(self.shown, TaskVisibility::Handle) && self.chosen.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(from: u64, until: u64) -> TimeRange {
        TimeRange { from: Timestamp::from_millis(from), until: Timestamp::from_millis(until) }
    }

    /// The other time narrows where is looked, since no task changed before it was made.
    #[test]
    fn each_time_bounds_the_other_where_it_can() {
        let filter = |by| ListFilter { created: range(5, 50), updated: range(2, 20), by, ..ListFilter::default() };
        assert_eq!(filter(OrderedBy::Creation).span(), range(5, 20));
        assert_eq!(filter(OrderedBy::LastUpdate).span(), range(5, 20));
        assert!(ListFilter { created: range(5, 9), updated: range(0, 5), ..ListFilter::default() }.is_empty());
    }

    /// FIL-11.
    #[test]
    fn filters_that_differ_have_different_digests() {
        let all = ListFilter::default();
        let others = [
            ListFilter { phases: BTreeSet::new(), ..all.clone() },
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
