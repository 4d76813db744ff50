//! Carries JSON text verbatim.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::scan::{self, LocatedMembers, ScanError, ScanLimits};

/// One complete JSON value, kept as the bytes it arrived in. Clones share them.
///
/// Invariant: UTF-8, one JSON value without surrounding whitespace. Only [`crate::wire::scan`], our serialisation and
/// the stores make one: none is validated again. Key order, number spelling and unknown members survive (T-14).
#[derive(Clone)]
pub struct Payload {
    text: Bytes,
    is_exact: bool,
    /// The positions of an object's members, if the message's scan has noted them.
    members: Option<Arc<LocatedMembers>>,
}

compared_by!(Payload, |payload| payload.text);

impl Payload {
    /// Scans a text that is one JSON value; surrounding whitespace is dropped.
    pub fn parse(text: &Bytes, limits: ScanLimits) -> Result<Self, ScanError> {
        let outline = scan::scan(text, limits)?.flawless()?;
        Ok(Self::from_scanned(text.slice(outline.root)))
    }

    /// Takes text that a scan has just accepted, or that was composed of such texts.
    pub(in crate::wire) const fn from_scanned(text: Bytes) -> Self {
        Self { text, is_exact: false, members: None }
    }

    pub(in crate::wire) fn with_members(text: Bytes, members: LocatedMembers) -> Self {
        Self { text, is_exact: false, members: Some(Arc::new(members)) }
    }

    pub(in crate::wire) fn members(&self) -> Option<&LocatedMembers> {
        self.members.as_deref()
    }

    /// Restores a stored payload: checks UTF-8 alone, as stores have a checksum. Its buffer holds only its task.
    pub fn restored(text: Bytes) -> Option<Self> {
        std::str::from_utf8(&text).is_ok().then_some(Self { text, is_exact: true, members: None })
    }

    pub const fn empty_object() -> Self {
        Self::constant("{}")
    }

    /// A constant of the gateway's own, which is one JSON value.
    pub(crate) const fn constant(text: &'static str) -> Self {
        Self { text: Bytes::from_static(text.as_bytes()), is_exact: true, members: None }
    }

    /// Serialises one of our own values. Panics if it is no JSON (a map's keys must be strings): a bug of the caller.
    pub fn of<T: serde::Serialize + ?Sized>(value: &T) -> Self {
        let text = serde_json::to_vec(value).expect("our own values serialise");
        Self { text: Bytes::from(text.into_boxed_slice()), is_exact: true, members: None }
    }

    pub fn text(text: &str) -> Self {
        let mut out = Vec::with_capacity(text.len() + 2);
        write_string(&mut out, text);
        Self { text: Bytes::from(out.into_boxed_slice()), is_exact: true, members: None }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).expect("a payload is UTF-8 by its invariant")
    }

    pub const fn bytes(&self) -> &Bytes {
        &self.text
    }

    pub fn into_bytes(self) -> Bytes {
        self.text
    }

    pub const fn len(&self) -> usize {
        self.text.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The items of an array, verbatim; none if the text is no array.
    pub fn items(&self) -> impl Iterator<Item = Self> {
        scan::items(&self.text).map(|span| Self::from_scanned(self.text.slice(span)))
    }

    #[must_use]
    pub(crate) fn held_by(self, attach: impl FnOnce(Bytes) -> Bytes) -> Self {
        Self { text: attach(self.text), ..self }
    }

    /// Copies the text out of a larger buffer, so that keeping a small payload does not keep a large body alive.
    pub fn detached(&self) -> Self {
        Self::copied(&self.text)
    }

    /// A copy of a text that a scan has accepted.
    pub(in crate::wire) fn copied(text: &[u8]) -> Self {
        Self { text: Bytes::copy_from_slice(text), is_exact: true, members: None }
    }

    /// Whether keeping the text surely keeps nothing else in memory.
    pub const fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Deserialises the text into one of our own types (small values only: ids, capabilities).
    pub fn read<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.text)
    }
}

pub(in crate::wire) fn write_string(out: &mut Vec<u8>, text: &str) {
    if scan::needs_no_escape(text.as_bytes()) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, text).expect("writing to memory does not fail");
    }
}

impl fmt::Debug for Payload {
    /// Prints the size alone: payloads are other people's data and do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.text.len())
    }
}

impl serde::Serialize for Payload {
    /// Writes the text verbatim into a surrounding `serde_json` document.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &serde_json::value::RawValue =
            serde_json::from_slice(&self.text).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// One JSON value: whole, or in consecutive pieces.
#[derive(Clone, Debug)]
pub enum JsonPieces {
    Whole(Payload),
    /// A small value in a buffer of its own, which nothing shares yet.
    Text(Vec<u8>),
    Pieces(Vec<Bytes>),
}

impl JsonPieces {
    pub const SHARED_MIN: usize = 64 << 10;

    pub(in crate::wire) fn of_text(text: Vec<u8>) -> Self {
        if text.len() < Self::SHARED_MIN { Self::Text(text) } else { Self::Whole(Payload::from_scanned(text.into())) }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Whole(payload) => payload.len(),
            Self::Text(text) => text.len(),
            Self::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn is_large(&self) -> bool {
        self.len() >= Self::SHARED_MIN
    }

    /// The same value in other buffers; a small one stays in its own.
    #[must_use]
    pub(crate) fn held_by(self, attach: impl Fn(Bytes) -> Bytes) -> Self {
        if self.is_large() { Self::Pieces(self.into_pieces().into_iter().map(attach).collect()) } else { self }
    }

    /// The value in one piece. Copies pieces.
    pub fn whole(self) -> Payload {
        match self {
            Self::Whole(payload) => payload,
            Self::Text(text) => Payload::from_scanned(text.into()),
            Self::Pieces(pieces) => Payload::from_scanned(pieces.concat().into()),
        }
    }

    /// A copy that keeps no other buffer alive; a small value is shared.
    pub fn detached(&self) -> Self {
        if self.is_large() { Self::Whole(self.clone().whole().detached()) } else { self.clone() }
    }

    pub fn into_pieces(self) -> Vec<Bytes> {
        match self {
            Self::Whole(payload) => vec![payload.into_bytes()],
            Self::Text(text) => vec![text.into()],
            Self::Pieces(pieces) => pieces,
        }
    }
}

from_variant!(JsonPieces::Whole(Payload));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_escaped_where_it_must_be_wherever_it_stands() {
        for code in (0..=0x100).chain([0x2028, 0xfffd, 0x1_f600]) {
            let Some(character) = char::from_u32(code) else { continue };
            for before in 0..10 {
                let text = format!("{}{character}é\u{7f}tail", "x".repeat(before));
                let mut written = Vec::new();
                write_string(&mut written, &text);
                assert_eq!(String::from_utf8(written).unwrap(), serde_json::to_string(&text).unwrap());
            }
        }
    }
}
