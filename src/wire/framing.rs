//! Splits event streams (SSE) and lines, sans-IO: bytes in, events out, all buffers bounded.

mod gate;
mod message_classifier;
mod part;
mod sse;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use gate::{EventGate, EventVerdict, GateOutput, HoldPolicy, PrimerPolicy};
pub use message_classifier::{MessageClass, MessageClassifier};
pub use part::{BodyPart, INCOMPLETE_EVENT_END, SseEvent, StreamEvent};
use sse::BYTE_ORDER_MARK;
pub use sse::SseDecoder;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("one event is larger than {max} bytes")]
    EventTooLarge { max: usize },
    #[error("one line is longer than {max} bytes")]
    LineTooLong { max: usize },
    /// Its beginning was forwarded as one message, and with the rest readers may take it for another.
    #[error("one message can be read as two")]
    TwoMessagesInOne,
    /// Most of it was forwarded as a response before a question in it was found.
    #[error("a response held a question after most of it was forwarded")]
    AsksTooLate,
}

/// Writes the first event of an HTTP+SSE stream: the address for its messages (LEG-15). `address` has no line ends.
pub fn sse_endpoint(address: &str) -> Bytes {
    format!("event: endpoint\ndata: {address}\n\n").into()
}

/// Splits bytes at LF or CRLF into non-empty lines up to `line_bytes_max`, without byte order marks (RFC 8259, 8.1).
#[derive(Debug)]
pub struct LineDecoder {
    line_bytes_max: usize,
    partial: Vec<u8>,
    failed: bool,
}

impl LineDecoder {
    pub const fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, partial: Vec::new(), failed: false }
    }

    /// Returns complete lines. Fails for good after an oversized line: with the next call, if lines precede it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Bytes>, FramingError> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        while !self.failed && !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let piece = &rest[..end.unwrap_or(rest.len())];
            if self.partial.len() + piece.len() > self.line_bytes_max {
                self.failed = true;
                self.partial = Vec::new();
                break;
            }
            self.partial.extend_from_slice(piece);
            let Some(end) = end else { break };
            rest = &rest[end + 1..];
            let mut line = std::mem::take(&mut self.partial);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            let mut line = Bytes::from(line);
            if line.starts_with(BYTE_ORDER_MARK) {
                line = line.slice(BYTE_ORDER_MARK.len()..);
            }
            if !line.is_empty() {
                lines.push(line);
            }
        }
        if self.failed && lines.is_empty() {
            return Err(FramingError::LineTooLong { max: self.line_bytes_max });
        }
        Ok(lines)
    }

    pub const fn held(&self) -> usize {
        self.partial.len()
    }
}
