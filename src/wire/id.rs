//! Reads and writes JSON-RPC request ids.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;

use super::{Payload, scan};

/// Longest id, in bytes of JSON text (B93).
pub const ID_BYTES_MAX: usize = 256;
/// An id of so many bytes, such as a number, needs no memory on the heap. More would make the futures of a request larger.
const INLINE_BYTES: usize = 16;

/// A request id, a string or a whole number: echoed byte for byte, compared as text (`1` is not `"1"`, T-62).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(SmallVec<[u8; INLINE_BYTES]>);

impl RequestId {
    /// Accepts a string without null characters or lone surrogates (B81), or an `i64` written as an integer.
    pub fn from_payload(text: &Payload) -> Option<Self> {
        let raw = text.as_str();
        if raw.len() > ID_BYTES_MAX {
            return None;
        }
        let is_whole = || raw.bytes().all(|b| b.is_ascii_digit() || b == b'-') && raw.parse::<i64>().is_ok();
        let is_name = |name: Cow<'_, str>| !name.contains('\0');
        let is_id =
            if raw.starts_with('"') { scan::decode_string(text.bytes()).is_some_and(is_name) } else { is_whole() };
        is_id.then(|| Self(SmallVec::from_slice(text.bytes())))
    }

    pub fn text(text: &str) -> Self {
        if !scan::needs_no_escape(text.as_bytes()) {
            return Self(SmallVec::from_slice(Payload::text(text).bytes()));
        }
        let mut json = SmallVec::with_capacity(text.len() + 2);
        json.push(b'"');
        json.extend_from_slice(text.as_bytes());
        json.push(b'"');
        Self(json)
    }

    pub fn number(number: i64) -> Self {
        Self(SmallVec::from_slice(number.to_string().as_bytes()))
    }

    /// Whether two ids are equal once unescaped: servers write back the decoded id.
    pub fn says(&self, other: &Self) -> bool {
        // Different texts without escapes are different ids.
        let is_escaped = |id: &Self| memchr::memchr(b'\\', &id.0).is_some();
        let text = |id: &Self| serde_json::from_slice::<String>(&id.0).ok();
        self == other
            || ((is_escaped(self) || is_escaped(other))
                && text(self).is_some_and(|own| text(other).as_ref() == Some(&own)))
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

    pub fn is_payload(&self, other: &Payload) -> bool {
        *self.0 == **other.bytes()
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
