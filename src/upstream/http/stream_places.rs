//! Remembers where a call's stream can be taken up: in this life behind all that was read, in a later one behind what its owner heard.

use std::collections::VecDeque;

use crate::upstream::reply::SseResumePoint;
use crate::wire::framing::SseEvent;

/// The places of one stream. It is read ahead of the call's owner, by no more events than the call's queue holds.
#[derive(Debug, Default)]
pub(super) struct StreamPlaces {
    /// Behind all that was read.
    pub(super) read: SseResumePoint,
    /// The places behind what the owner has yet to hear, each with how many events had been put into its queue by then. The oldest
    /// first; the number rises.
    ahead: VecDeque<(u64, SseResumePoint)>,
    /// Behind all that the owner has heard.
    at: SseResumePoint,
}

impl StreamPlaces {
    /// Those of a stream that another life left here.
    pub(super) fn resumed(place: SseResumePoint) -> Self {
        Self { read: place.clone(), ahead: VecDeque::new(), at: place }
    }

    /// Takes note of an event that was read. All that it says is among the `told` events that were put into the queue so far.
    pub(super) fn note(&mut self, event: &SseEvent, told: u64) {
        self.read.note(event);
        match self.ahead.back_mut() {
            // One that found no room was counted for a moment.
            Some((behind, place)) if *behind >= told => place.clone_from(&self.read),
            Some(_) | None => self.ahead.push_back((told, self.read.clone())),
        }
    }

    /// The owner has heard the first `heard` events of the queue; to be called with each. The place behind them: a later life that
    /// begins there hears all the others.
    pub(super) fn heard(&mut self, heard: u64) -> &SseResumePoint {
        let count = self.ahead.iter().take_while(|(told, _)| *told <= heard).count();
        if let Some((_, place)) = self.ahead.drain(..count).next_back() {
            self.at = place;
        }
        &self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str) -> SseEvent {
        SseEvent { id: Some(id.into()), ..SseEvent::default() }
    }

    #[test]
    fn a_place_is_reached_once_all_before_it_was_heard() {
        let at = |places: &mut StreamPlaces, heard| {
            places.heard(heard).last_event.clone().map(|id| id.to_str().unwrap().to_owned())
        };
        let mut places = StreamPlaces::default();
        assert_eq!(at(&mut places, 0), None);
        // It only primes the stream, and says nothing; the next says two things, and the one behind it nothing.
        for (id, told) in [("e-0", 0), ("e-1", 2), ("e-2", 2), ("e-3", 3)] {
            places.note(&event(id), told);
        }
        assert_eq!(places.read.last_event.as_ref().unwrap(), "e-3");
        for (heard, place) in [(0, "e-0"), (1, "e-0"), (2, "e-2"), (3, "e-3"), (3, "e-3")] {
            assert_eq!(at(&mut places, heard).as_deref(), Some(place), "{heard} heard");
        }
        places.note(&event("e-4"), 5);
        // Of what was counted one found no room.
        places.note(&event("e-5"), 4);
        assert_eq!([4, 5].map(|heard| at(&mut places, heard)), ["e-3", "e-5"].map(|id| Some(id.to_owned())));
        assert_eq!(StreamPlaces::resumed(places.read.clone()).heard(0).last_event, places.read.last_event);
    }
}
