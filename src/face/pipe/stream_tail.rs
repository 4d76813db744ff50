//! Tracks the progress of a response's event stream, and the position to resume it.

use std::time::Duration;

use crate::face::call_stream::request_answer::brings_answer;
use crate::wire::framing::SseEvent;
use crate::wire::{MessageText, RequestId};

/// A larger event counts as the response, unparsed.
pub(super) const EVENT_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(in crate::face) struct StreamPause {
    pub(in crate::face) event: String,
    pub(in crate::face) retry: Duration,
}

/// Holds the last event of a call's stream.
#[derive(Debug)]
pub(super) struct StreamTail {
    id: RequestId,
    /// Whether an event was too large to parse.
    is_lost: bool,
    event: Option<String>,
    retry: Duration,
    /// The data of the last event with any, until it is parsed.
    data: Option<MessageText>,
    was_answered: bool,
}

impl StreamTail {
    pub(super) fn new(id: &RequestId) -> Self {
        Self { id: id.clone(), is_lost: false, event: None, retry: Duration::ZERO, data: None, was_answered: false }
    }

    /// Records the next events; `None` once one is too large.
    pub(super) fn pass(&mut self, events: Option<Vec<SseEvent>>) {
        self.is_lost |= events.is_none();
        for event in events.into_iter().flatten() {
            self.event = event.id.or_else(|| self.event.take());
            self.retry = event.retry_ms.map_or(self.retry, Duration::from_millis);
            if !event.data.is_empty() {
                // Most streams have one event, which is parsed at the end.
                self.is_answered();
                self.data = Some(event.data);
            }
        }
    }

    /// Whether the response has arrived; an event that is too large counts as the response.
    pub(super) fn is_answered(&mut self) -> bool {
        if let Some(data) = self.data.take().filter(|_| !self.was_answered && !self.is_lost) {
            self.was_answered = brings_answer(&data, &self.id);
        }
        self.was_answered || self.is_lost
    }

    /// Whether the response has certainly arrived.
    pub(super) fn brought_answer(&mut self) -> bool {
        self.is_answered() && self.was_answered
    }

    /// Whether an event had a usable id; `None` once that is unknown. An id that SSE decoders ignore does not count
    /// (U21).
    pub(super) fn gave_id(&self) -> Option<bool> {
        (!self.is_lost).then(|| self.event.as_ref().is_some_and(|event| !event.is_empty()))
    }

    /// `None` if the response has arrived, or the stream cannot be resumed.
    pub(super) fn pause(mut self) -> Option<StreamPause> {
        let event = self.event.take().filter(|event| !event.is_empty())?;
        (!self.is_answered()).then_some(StreamPause { event, retry: self.retry })
    }
}
