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
    /// Of the last event that says something.
    data: MessageText,
    /// Whether one before it was the answer.
    was_answered: bool,
}

impl StreamTail {
    /// For the stream of the request `id`.
    pub(super) fn new(id: &RequestId) -> Self {
        let (id, data) = (id.clone(), MessageText::default());
        Self { id, is_lost: false, event: None, retry: Duration::ZERO, data, was_answered: false }
    }

    /// Takes note of the next events; `None` once one is too large.
    pub(super) fn pass(&mut self, events: Option<Vec<SseEvent>>) {
        self.is_lost |= events.is_none();
        for event in events.into_iter().flatten() {
            self.event = event.id.or_else(|| self.event.take());
            self.retry = event.retry_ms.map_or(self.retry, Duration::from_millis);
            if !event.data.is_empty() {
                // Most streams have one event, which is looked into once, at the end.
                self.was_answered |= brings_answer(&self.data, &self.id);
                self.data = event.data;
            }
        }
    }

    /// Whether the answer has come. An event that is too large is taken for it.
    pub(super) fn is_answered(&self) -> bool {
        self.was_answered || self.is_lost || brings_answer(&self.data, &self.id)
    }

    /// Whether an event had an id that a client can name; `None` once nobody can tell. What is no id to a decoder of
    /// event streams is none (U21).
    pub(super) fn gave_id(&self) -> Option<bool> {
        (!self.is_lost).then(|| self.event.as_ref().is_some_and(|event| !event.is_empty()))
    }

    /// Where the stream stands if it ends here: `None` if it was over, with the answer among its events, or cannot be
    /// taken up.
    pub(super) fn pause(self) -> Option<StreamPause> {
        let is_answered = self.is_answered();
        let event = self.event.filter(|event| !event.is_empty())?;
        (!is_answered).then_some(StreamPause { event, retry: self.retry })
    }
}
