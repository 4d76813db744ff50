//! Writes and reads a record's primitive parts.

use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;

use crate::task::Timestamp;
use crate::task::time::millis;
use crate::wire::Payload;

pub(super) struct RecordWriter {
    /// The pieces before `text`.
    pieces: Vec<Bytes>,
    text: Vec<u8>,
    /// The size from which a payload is a separate piece, which is not copied.
    piece_min: usize,
}

impl RecordWriter {
    /// Starts after `head` bytes that are filled in later.
    pub(super) fn with_capacity(head: usize, body: usize) -> Self {
        let mut out = Vec::with_capacity(head + body);
        out.resize(head, 0);
        Self { pieces: Vec::new(), text: out, piece_min: usize::MAX }
    }

    pub(super) const fn in_pieces(piece_min: usize) -> Self {
        Self { pieces: Vec::new(), text: Vec::new(), piece_min }
    }

    /// All of it, from a writer that makes no pieces.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.text
    }

    pub(super) fn into_pieces(mut self) -> Vec<Bytes> {
        self.pieces.push(self.text.into());
        self.pieces
    }

    pub(super) fn byte(&mut self, value: u8) {
        self.text.push(value);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.byte(u8::from(value));
    }

    pub(super) fn fixed(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    pub(super) fn number(&mut self, value: u32) {
        self.fixed(&value.to_be_bytes());
    }

    /// Writes a length. A length beyond the maximum, which no task reaches, would make the record unreadable.
    pub(super) fn count(&mut self, value: usize) {
        self.number(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(super) fn time(&mut self, value: Timestamp) {
        self.fixed(&value.as_millis().to_be_bytes());
    }

    pub(super) fn span(&mut self, value: Duration) {
        self.fixed(&millis(value).to_be_bytes());
    }

    pub(super) fn text(&mut self, value: &str) {
        self.count(value.len());
        self.fixed(value.as_bytes());
    }

    pub(super) fn payload(&mut self, value: &Payload) {
        if value.len() < self.piece_min {
            return self.text(value.as_str());
        }
        self.count(value.len());
        self.pieces.push(std::mem::take(&mut self.text).into());
        self.pieces.push(value.bytes().clone());
    }

    pub(super) fn maybe<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }
}

/// Reads values from the front; `None` for invalid bytes.
pub(super) struct RecordReader(Bytes);

impl RecordReader {
    pub(super) const fn new(body: Bytes) -> Self {
        Self(body)
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.0.get(..N)?.try_into().ok()?;
        drop(self.0.split_to(N));
        Some(bytes)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.fixed().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// Reads the length of a list with elements of at least one byte, so a wrong length causes no large allocation.
    pub(super) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    pub(super) fn time(&mut self) -> Option<Timestamp> {
        self.fixed().map(u64::from_be_bytes).map(Timestamp::from_millis)
    }

    pub(super) fn span(&mut self) -> Option<Duration> {
        self.fixed().map(u64::from_be_bytes).map(Duration::from_millis)
    }

    fn slice(&mut self) -> Option<Bytes> {
        let len = self.count()?;
        Some(self.0.split_to(len))
    }

    pub(super) fn text(&mut self) -> Option<Arc<str>> {
        let slice = self.slice()?;
        std::str::from_utf8(&slice).ok().map(Arc::from)
    }

    pub(super) fn payload(&mut self) -> Option<Payload> {
        Payload::restored(self.slice()?)
    }

    pub(super) fn maybe<T>(&mut self, take: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        Some(if self.flag()? { Some(take(self)?) } else { None })
    }
}
