//! Writes and reads a record's primitive parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;

use crate::task::time::millis;
use crate::task::{Attempt, Digest, InputKey, PendingEffects, Principal, Reason, SessionScope, TaskId, Timestamp};
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

    pub(super) fn fixed(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// Writes a length. One beyond the maximum, which no task reaches, would make the record unreadable.
    pub(super) fn count(&mut self, value: usize) {
        self.fixed(&u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes());
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

    /// Reads the length of a list with elements of at least one byte, so a wrong length causes no large allocation.
    pub(super) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(u32::from_be_bytes(self.fixed()?)).ok()?;
        (count <= self.0.len()).then_some(count)
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
}

/// A value that a record has: the bytes that one function writes, the other reads.
pub(super) trait RecordValue: Sized {
    fn put(&self, out: &mut RecordWriter);
    fn take(body: &mut RecordReader) -> Option<Self>;
}

macro_rules! stored_as {
    ($($type:ty: |$value:ident, $out:ident| $put:expr, |$body:ident| $take:expr;)*) => {
        $(impl RecordValue for $type {
            fn put(&self, $out: &mut RecordWriter) {
                let $value = self;
                $put;
            }

            fn take($body: &mut RecordReader) -> Option<Self> {
                $take
            }
        })*
    };
}

stored_as! {
    u8: |value, out| out.byte(*value), |body| body.byte();
    bool: |value, out| out.byte(u8::from(*value)), |body| [false, true].get(usize::from(body.byte()?)).copied();
    u16: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    u32: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    u64: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    u128: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    i32: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    i64: |value, out| out.fixed(&value.to_be_bytes()), |body| body.fixed().map(Self::from_be_bytes);
    Arc<str>: |value, out| out.text(value), |body| body.text();
    String: |value, out| out.text(value), |body| body.text().map(|text| (*text).to_owned());
    Payload: |value, out| out.payload(value), |body| body.payload();
    Timestamp: |value, out| value.as_millis().put(out), |body| u64::take(body).map(Self::from_millis);
    Duration: |value, out| millis(*value).put(out), |body| u64::take(body).map(Self::from_millis);
    Principal: |value, out| out.text(value.as_str()), |body| body.text().map(|name| Self::new(&name));
    TaskId: |value, out| value.bits().put(out), |body| u128::take(body).map(Self::from_bits);
    SessionScope: |value, out| value.0.put(out), |body| u128::take(body).map(Self);
    Attempt: |value, out| value.0.put(out), |body| u32::take(body).map(Self);
    InputKey: |value, out| value.0.put(out), |body| u32::take(body).map(Self);
    Digest: |value, out| out.fixed(&value.0), |body| body.fixed().map(Self);
    PendingEffects: |value, out| out.byte(value.bits()), |body| Self::from_bits(body.byte()?);
    Reason: |value, out| out.byte(*value as u8), |body| {
        let code = body.byte()?;
        Self::ALL.iter().copied().find(|reason| *reason as u8 == code)
    };
}

impl<T: RecordValue> RecordValue for Option<T> {
    fn put(&self, out: &mut RecordWriter) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        Some(if bool::take(body)? { Some(T::take(body)?) } else { None })
    }
}

impl<A: RecordValue, B: RecordValue> RecordValue for (A, B) {
    fn put(&self, out: &mut RecordWriter) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        Some((A::take(body)?, B::take(body)?))
    }
}

impl<T: RecordValue> RecordValue for Vec<T> {
    fn put(&self, out: &mut RecordWriter) {
        out.count(self.len());
        self.iter().for_each(|value| value.put(out));
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        (0..body.count()?).map(|_| T::take(body)).collect()
    }
}

impl<T: RecordValue> RecordValue for Arc<[T]> {
    fn put(&self, out: &mut RecordWriter) {
        out.count(self.len());
        self.iter().for_each(|value| value.put(out));
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        Vec::<T>::take(body).map(Self::from)
    }
}

impl<K: RecordValue + Ord, V: RecordValue> RecordValue for BTreeMap<K, V> {
    fn put(&self, out: &mut RecordWriter) {
        out.count(self.len());
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        Vec::<(K, V)>::take(body).map(Self::from_iter)
    }
}
