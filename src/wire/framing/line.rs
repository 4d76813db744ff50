//! Splits lines that end in LF or CRLF, as stdio transports write them. Skips a byte order mark before a line (RFC
//! 8259, 8.1).

use bytes::Bytes;

use super::FramingError;
use super::sse::BYTE_ORDER_MARK;

/// Splits a byte stream into lines, without empty ones. Holds at most one line of `line_bytes_max` bytes.
#[derive(Debug)]
pub struct LineDecoder {
    line_bytes_max: usize,
    partial: Vec<u8>,
    failed: bool,
}

impl LineDecoder {
    #[must_use]
    pub const fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, partial: Vec::new(), failed: false }
    }

    /// Takes bytes; returns complete lines in order, without their ends. Fails for good if one line outgrows the bound;
    /// complete lines before it are returned first, the error with the next call.
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

    #[must_use]
    pub const fn held(&self) -> usize {
        self.partial.len()
    }
}
