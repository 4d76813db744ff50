//! Tracks the positions at which a call's stream can be resumed. This process resumes after all read events, a later
//! one after the events that the call's owner has received.

use std::collections::VecDeque;

use crate::upstream::reply::SseResumePoint;
use crate::wire::framing::SseEvent;

/// The stream is read ahead of the owner, by at most the queue's length.
#[derive(Debug, Default)]
pub(super) struct StreamPlaces {
    /// After all read events.
    pub(super) read: SseResumePoint,
    /// Positions ahead of the owner, oldest first, each with the number of events queued by then.
    ahead: VecDeque<(u64, SseResumePoint)>,
    /// After the owner's last event.
    at: SseResumePoint,
}

impl StreamPlaces {
    pub(super) fn resumed(place: SseResumePoint) -> Self {
        Self { read: place.clone(), ahead: VecDeque::new(), at: place }
    }

    /// Records a read event, the messages of which are among the first `told` of the queue.
    pub(super) fn note(&mut self, event: &SseEvent, told: u64) {
        self.read.note(event);
        match self.ahead.back_mut() {
            // An event that found no room was counted for a moment.
            Some((behind, place)) if *behind >= told => place.clone_from(&self.read),
            Some(_) | None => self.ahead.push_back((told, self.read.clone())),
        }
    }

    /// Call it for each event that the owner receives. A later process that resumes at the returned position gets all
    /// others.
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
        // The first event only primes the stream; the next yields two events, and the one after it none.
        for (id, told) in [("e-0", 0), ("e-1", 2), ("e-2", 2), ("e-3", 3)] {
            places.note(&event(id), told);
        }
        assert_eq!(places.read.last_event.as_ref().unwrap(), "e-3");
        for (heard, place) in [(0, "e-0"), (1, "e-0"), (2, "e-2"), (3, "e-3"), (3, "e-3")] {
            assert_eq!(at(&mut places, heard).as_deref(), Some(place), "{heard} heard");
        }
        places.note(&event("e-4"), 5);
        // One of the counted events found no room.
        places.note(&event("e-5"), 4);
        assert_eq!([4, 5].map(|heard| at(&mut places, heard)), ["e-3", "e-5"].map(|id| Some(id.to_owned())));
        assert_eq!(StreamPlaces::resumed(places.read.clone()).heard(0).last_event, places.read.last_event);
    }
}
