//! Splits event streams (SSE) and lines, sans-IO: bytes in, events out, nothing without a bound.

mod gate;
mod line;
mod message_classifier;
mod part;
mod sse;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use gate::{EventGate, EventVerdict, GateOutput, HoldPolicy, PrimerPolicy};
pub use line::LineDecoder;
pub use message_classifier::{MessageClass, MessageClassifier};
pub use part::{BodyPart, SseEvent, StreamEvent};
pub use sse::SseDecoder;

/// What a decoder refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("one event is larger than {max} bytes")]
    EventTooLarge { max: usize },
    #[error("one line is longer than {max} bytes")]
    LineTooLong { max: usize },
    /// Its beginning passed as one thing, and then it turned out that readers may take it for another.
    #[error("one message reads as two")]
    TwoMessagesInOne,
    /// Most of it passed as an answer, and then it turned out that it asks something.
    #[error("an answer asks something after it went into length")]
    AsksTooLate,
}

/// Writes the first event of an HTTP+SSE stream: where messages for it are sent (LEG-15). `address` has no line ends.
#[must_use]
pub fn sse_endpoint(address: &str) -> Bytes {
    format!("event: endpoint\ndata: {address}\n\n").into()
}
