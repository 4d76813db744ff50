//! Reads and writes JSON-RPC request ids.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::{Payload, scan};

/// Longest id, in bytes of JSON text (B93).
pub const ID_BYTES_MAX: usize = 256;
/// An id of so many bytes, such as a number, needs no memory on the heap. More would make the futures of a request larger.
const INLINE_BYTES: usize = 16;

/// A request id, a string or a whole number: echoed byte for byte, equal in all spellings (`1` is not `"1"`, T-62).
#[derive(Clone)]
pub struct RequestId(SmallVec<[u8; INLINE_BYTES]>);

impl RequestId {
    /// Accepts a string without null characters or lone surrogates (B81), or an `i64` written as an integer.
    pub fn from_payload(text: &Payload) -> Option<Self> {
        Self::from_scanned(text.bytes())
    }

    /// As [`Self::from_payload`], for a value in a text that a scan has accepted.
    pub(in crate::wire) fn from_scanned(raw: &[u8]) -> Option<Self> {
        if raw.len() > ID_BYTES_MAX {
            return None;
        }
        let is_whole = || {
            let is_integer = raw.iter().all(|b| b.is_ascii_digit() || *b == b'-');
            is_integer && std::str::from_utf8(raw).is_ok_and(|digits| digits.parse::<i64>().is_ok())
        };
        let is_name = |name: Cow<'_, str>| !name.contains('\0');
        let is_id = if raw.starts_with(b"\"") { scan::decode_string(raw).is_some_and(is_name) } else { is_whole() };
        is_id.then(|| Self(SmallVec::from_slice(raw)))
    }

    pub fn text(text: &str) -> Self {
        Self::text_of([text])
    }

    pub fn text_of<const N: usize>(parts: [&str; N]) -> Self {
        if !parts.iter().all(|part| scan::needs_no_escape(part.as_bytes())) {
            return Self(SmallVec::from_slice(Payload::text(&parts.concat()).bytes()));
        }
        let mut json = SmallVec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 2);
        json.push(b'"');
        parts.iter().for_each(|part| json.extend_from_slice(part.as_bytes()));
        json.push(b'"');
        Self(json)
    }

    pub fn number(number: i64) -> Self {
        Self(SmallVec::from_slice(number.to_string().as_bytes()))
    }

    /// One text for all spellings of an id: unescaped, but strings keep their first quote, so that none equals a number.
    fn canonical(&self) -> Cow<'_, [u8]> {
        match memchr::memchr(b'\\', &self.0).and_then(|_| self.as_text()) {
            Some(text) => Cow::Owned([b"\"", text.as_bytes(), b"\""].concat()),
            None if *self.0 == *b"-0" => Cow::Borrowed(b"0"),
            None => Cow::Borrowed(&self.0),
        }
    }

    pub fn as_json(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an id is UTF-8, as its payload was")
    }

    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        scan::decode_string(&self.0)
    }

    pub fn payload(&self) -> Payload {
        Payload::copied(&self.0)
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.canonical() == other.canonical()
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_json())
    }
}

impl serde::Serialize for RequestId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.payload().serialize(serializer)
    }
}
