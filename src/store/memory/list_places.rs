//! Keeps where one owner's tasks stand in filtered lists.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::STEP;
use crate::task::{
    ListDirection, ListFilter, ListPlace, OrderedBy, PhaseKind, SummaryPhase, Task, TaskId, TaskVisibility, Timestamp,
};

/// The tasks that lists may show, by phase.
#[derive(Debug, Default)]
pub(super) struct ListPlaces {
    phases: BTreeMap<PhaseKind, PhasePlaces>,
}

/// The tasks of one phase, in either order, each with what decides whether it fits: its other time, and when it is gone.
#[derive(Debug, Default)]
struct PhasePlaces {
    by_creation: BTreeMap<ListPlace, PlaceFacts>,
    by_last_update: BTreeMap<ListPlace, PlaceFacts>,
}

#[derive(Clone, Copy, Debug)]
struct PlaceFacts {
    other: Timestamp,
    expires_at: Timestamp,
}

impl ListPlaces {
    /// Notes where a task stands in filtered lists.
    pub(super) fn enter(&mut self, task: &Task) {
        if !is_listed(task) {
            return;
        }
        let places = self.phases.entry(SummaryPhase::of(&task.phase).kind()).or_default();
        let (created, updated, id, expires_at) = (task.created_at, task.updated_at, task.key.id, task.expires_at());
        places.by_creation.insert((created, id), PlaceFacts { other: updated, expires_at });
        places.by_last_update.insert((updated, id), PlaceFacts { other: created, expires_at });
    }

    pub(super) fn leave(&mut self, task: &Task) {
        if let Some(places) = self.phases.get_mut(&SummaryPhase::of(&task.phase).kind()) {
            places.by_creation.remove(&(task.created_at, task.key.id));
            places.by_last_update.remove(&(task.updated_at, task.key.id));
        }
    }

    /// The next places of a filtered list behind `after`, in its order, at most [`STEP`]; each with whether it may fit.
    pub(super) fn next(&self, filter: &ListFilter, after: Option<ListPlace>, now: Timestamp) -> Vec<(ListPlace, bool)> {
        let span = filter.span();
        let first = |time| Bound::Included((time, TaskId::from_bits(0)));
        let (mut from, mut until) = (first(span.from), Bound::Excluded((span.until, TaskId::from_bits(0))));
        match (after, filter.direction) {
            (Some(after), ListDirection::OldestFirst) => from = Bound::Excluded(after),
            (Some(after), ListDirection::NewestFirst) => until = Bound::Excluded(after),
            (None, _) => (),
        }
        let mut found = Vec::new();
        for (phase, places) in filter.phases.iter().filter_map(|phase| Some((phase, self.phases.get(phase)?))) {
            let places = match filter.by {
                OrderedBy::Creation => &places.by_creation,
                OrderedBy::LastUpdate => &places.by_last_update,
            };
            let fits = |(place, facts): (&ListPlace, &PlaceFacts)| {
                let is_there = !phase.is_settled() || facts.expires_at > now;
                (*place, is_there && filter.other().contains(facts.other))
            };
            let places = places.range((from, until));
            match filter.direction {
                ListDirection::OldestFirst => found.extend(places.map(fits).take(STEP)),
                ListDirection::NewestFirst => found.extend(places.rev().map(fits).take(STEP)),
            }
        }
        found.sort_unstable_by(|(one, _), (other, _)| filter.compare(one, other));
        found.truncate(STEP);
        found
    }
}

/// As [`crate::task::Summary::is_listed`].
const fn is_listed(task: &Task) -> bool {
    matches!(task.shown, TaskVisibility::Handle) && task.chosen.is_none()
}
