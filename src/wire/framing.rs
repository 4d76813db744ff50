//! Splits event streams (SSE) and lines, sans-IO: bytes in, events out, all buffers bounded.

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("one event is larger than {max} bytes")]
    EventTooLarge { max: usize },
    #[error("one line is longer than {max} bytes")]
    LineTooLong { max: usize },
    /// Its beginning passed as one message, and then readers may take it for another.
    #[error("one message can be read as two")]
    TwoMessagesInOne,
    /// Most of it passed as a response, and then it turned out to ask something.
    #[error("a response held a question after most of it was forwarded")]
    AsksTooLate,
}

/// Writes the first event of an HTTP+SSE stream: the address for its messages (LEG-15). `address` has no line ends.
#[must_use]
pub fn sse_endpoint(address: &str) -> Bytes {
    format!("event: endpoint\ndata: {address}\n\n").into()
}
