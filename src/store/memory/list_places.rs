//! Indexes one owner's tasks for filtered lists.

use std::collections::{BTreeMap, btree_map};

use super::STEP;
use crate::task::{
    LagClass, ListDirection, ListFilter, ListPlace, OrderedBy, PhaseKind, SessionScope, SummaryPhase, Task, Timestamp,
};

/// The owner's listed tasks, by the keys that lists are read by.
#[derive(Debug, Default)]
pub(super) struct ListPlaces {
    kinds: BTreeMap<PlacesKind, KindPlaces>,
}

/// The session of client-chosen ids, the phase, and the class of lags.
type PlacesKind = (Option<SessionScope>, PhaseKind, LagClass);

/// The tasks of one kind in both orders, with other time and expiry.
#[derive(Debug, Default)]
struct KindPlaces {
    by_creation: BTreeMap<ListPlace, PlaceFacts>,
    by_last_update: BTreeMap<ListPlace, PlaceFacts>,
}

#[derive(Clone, Copy, Debug)]
struct PlaceFacts {
    other: Timestamp,
    expires_at: Timestamp,
}

impl ListPlaces {
    pub(super) fn enter(&mut self, task: &Task) {
        if !task.shown.is_listed() {
            return;
        }
        let places = self.kinds.entry(kind(task)).or_default();
        let (created, updated, id, expires_at) = (task.created_at, task.updated_at, task.key.id, task.expires_at());
        places.by_creation.insert((created, id), PlaceFacts { other: updated, expires_at });
        places.by_last_update.insert((updated, id), PlaceFacts { other: created, expires_at });
    }

    pub(super) fn leave(&mut self, task: &Task) {
        let kind = kind(task);
        if let Some(places) = self.kinds.get_mut(&kind) {
            places.by_creation.remove(&(task.created_at, task.key.id));
            places.by_last_update.remove(&(task.updated_at, task.key.id));
            if places.by_creation.is_empty() {
                self.kinds.remove(&kind);
            }
        }
    }

    /// The next positions of a filtered list after `after`, at most [`STEP`], each with whether it may match.
    pub(super) fn next(&self, filter: &ListFilter, after: Option<ListPlace>, now: Timestamp) -> Vec<(ListPlace, bool)> {
        let mut ranges = self.ranges(filter, after);
        let mut heads: Vec<_> = ranges.iter_mut().map(|(_, range)| head(range, filter.direction)).collect();
        let mut found = Vec::new();
        while found.len() < STEP {
            let first = heads.iter().enumerate().filter_map(|(number, head)| Some((number, (*head)?)));
            let first = first.min_by(|(_, (one, _)), (_, (other, _))| filter.compare(one, other));
            let Some((number, (place, facts))) = first else { break };
            let (phase, range) = &mut ranges[number];
            found.push((*place, facts.are_there(*phase, now) && filter.other().contains(facts.other)));
            heads[number] = head(range, filter.direction);
        }
        found
    }

    /// All positions of a filtered list in order, if the time that is not the sort key leaves at most `limit` of them.
    pub(super) fn few(&self, filter: &ListFilter, limit: usize, now: Timestamp) -> Option<Vec<(ListPlace, bool)>> {
        let other = filter.by_other_time();
        let ranges = self.ranges(&other, None);
        let places =
            ranges.into_iter().flat_map(|(phase, range)| range.map(move |(place, facts)| (phase, place, facts)));
        let found: Vec<_> = places.take(limit + 1).collect();
        if found.len() > limit {
            return None;
        }
        let found = found.into_iter().filter(|(_, _, facts)| other.other().contains(facts.other));
        let turned = found.map(|(phase, place, facts)| ((facts.other, place.1), facts.are_there(phase, now)));
        let mut places: Vec<_> = turned.collect();
        places.sort_unstable_by(|(one, _), (other, _)| filter.compare(one, other));
        Some(places)
    }

    /// The positions after `after`, by phase and class.
    fn ranges(
        &self,
        filter: &ListFilter,
        after: Option<ListPlace>,
    ) -> Vec<(PhaseKind, btree_map::Range<'_, ListPlace, PlaceFacts>)> {
        let kinds = filter.phases.iter().flat_map(|phase| LagClass::all().map(|class| (filter.scope, *phase, class)));
        let ranges = kinds.filter_map(|kind| {
            let places = self.kinds.get(&kind)?;
            let places = match filter.by {
                OrderedBy::Creation => &places.by_creation,
                OrderedBy::LastUpdate => &places.by_last_update,
            };
            let (_, phase, class) = kind;
            let range = filter.places(class, after);
            (!range.is_empty()).then(|| (phase, places.range(range)))
        });
        ranges.collect()
    }
}

impl PlaceFacts {
    fn are_there(&self, phase: PhaseKind, now: Timestamp) -> bool {
        !phase.is_settled() || self.expires_at > now
    }
}

fn head<T>(range: &mut impl DoubleEndedIterator<Item = T>, direction: ListDirection) -> Option<T> {
    match direction {
        ListDirection::OldestFirst => range.next(),
        ListDirection::NewestFirst => range.next_back(),
    }
}

fn kind(task: &Task) -> PlacesKind {
    let scope = task.chosen.as_ref().map(|chosen| chosen.session);
    (scope, SummaryPhase::of(&task.phase).kind(), LagClass::of(task.created_at, task.updated_at))
}
