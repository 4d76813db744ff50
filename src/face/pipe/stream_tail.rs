//! Watches how far the event stream of an answer has come, and where it can be taken up.

use std::time::Duration;

use crate::face::call_stream::request_answer::brings_answer;
use crate::wire::framing::SseEvent;
use crate::wire::{MessageText, RequestId};

/// Largest event that is looked into. A larger one is taken for the answer.
pub(super) const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Where a stream stands that can be taken up.
#[derive(Debug)]
pub(in crate::face) struct StreamPause {
    pub(in crate::face) event: String,
    /// How long the client was asked to wait.
    pub(in crate::face) retry: Duration,
}

/// Watches the events of a call's stream go by, and holds the last one.
#[derive(Debug)]
pub(super) struct StreamTail {
    id: RequestId,
    /// Whether an event was too large to be looked into.
    is_lost: bool,
    event: Option<String>,
    retry: Duration,
    /// Of the last event that says something, until it is looked into.
    data: Option<MessageText>,
    /// Whether one that was looked into is the answer.
    was_answered: bool,
}

impl StreamTail {
    /// For the stream of the request `id`.
    pub(super) fn new(id: &RequestId) -> Self {
        Self { id: id.clone(), is_lost: false, event: None, retry: Duration::ZERO, data: None, was_answered: false }
    }

    /// Takes note of the next events; `None` once one is too large.
    pub(super) fn pass(&mut self, events: Option<Vec<SseEvent>>) {
        self.is_lost |= events.is_none();
        for event in events.into_iter().flatten() {
            self.event = event.id.or_else(|| self.event.take());
            self.retry = event.retry_ms.map_or(self.retry, Duration::from_millis);
            if !event.data.is_empty() {
                // Most streams have one event, which is looked into at the end.
                self.is_answered();
                self.data = Some(event.data);
            }
        }
    }

    /// Whether the answer has come. An event that is too large is taken for it.
    pub(super) fn is_answered(&mut self) -> bool {
        if let Some(data) = self.data.take().filter(|_| !self.was_answered && !self.is_lost) {
            self.was_answered = brings_answer(&data, &self.id);
        }
        self.was_answered || self.is_lost
    }

    /// Whether the answer has come for certain.
    pub(super) fn brought_answer(&mut self) -> bool {
        self.is_answered() && self.was_answered
    }

    /// Whether an event had an id that a client can name; `None` once nobody can tell. What is no id to a decoder of
    /// event streams is none (U21).
    pub(super) fn gave_id(&self) -> Option<bool> {
        (!self.is_lost).then(|| self.event.as_ref().is_some_and(|event| !event.is_empty()))
    }

    /// Where the stream stands if it ends here: `None` if it was over, with the answer among its events, or cannot be
    /// taken up.
    pub(super) fn pause(mut self) -> Option<StreamPause> {
        let event = self.event.take().filter(|event| !event.is_empty())?;
        (!self.is_answered()).then_some(StreamPause { event, retry: self.retry })
    }
}
