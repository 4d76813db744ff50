//! Splits event streams (SSE) and lines, sans-IO: bytes in, events out, nothing without a bound.

mod gate;
mod line;
mod message_classifier;
mod sse;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use gate::{EventGate, GateOutput, HoldPolicy, PrimerPolicy, read_event, with_data};
pub use line::LineDecoder;
pub use message_classifier::{MessageClass, MessageClassifier};
pub use sse::{SseDecoder, SseEvent};

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

/// Writes one `message` event with one JSON text. No id: streams that the gateway makes for
/// stateless clients cannot be resumed (MOD-21).
///
/// A text that stands on several lines becomes several `data` lines, which read back as the same JSON.
#[must_use]
pub fn sse_message(json: &Bytes) -> Bytes {
    const HEAD: &[u8] = b"event: message\ndata: ";
    let mut out = Vec::with_capacity(HEAD.len() + json.len() + 2);
    out.extend_from_slice(HEAD);
    let mut rest = json.as_ref();
    while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"\ndata: ");
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// Writes the first event of an HTTP+SSE stream: where messages for it are sent (LEG-15). `address` has no line ends.
#[must_use]
pub fn sse_endpoint(address: &str) -> Bytes {
    format!("event: endpoint\ndata: {address}\n\n").into()
}

/// A comment line that keeps a stream alive.
#[must_use]
pub const fn sse_comment() -> Bytes {
    Bytes::from_static(b":\n\n")
}
