//! Reads and writes JSON-RPC request ids.

use std::borrow::Cow;
use std::fmt;

use super::{Payload, scan};

/// Longest id, in bytes of JSON text (B93).
pub const ID_BYTES_MAX: usize = 256;

/// A request id: a string without null characters, or a whole number. Echoed byte for byte (`1` is not `"1"`, T-62);
/// compared as text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Payload);

impl RequestId {
    /// Accepts a string without null characters or lone surrogates (B81), or an `i64` integer written as one (not
    /// `1.0`).
    pub fn from_payload(text: &Payload) -> Option<Self> {
        let raw = text.as_str();
        if raw.len() > ID_BYTES_MAX {
            return None;
        }
        let is_whole = || raw.bytes().all(|b| b.is_ascii_digit() || b == b'-') && raw.parse::<i64>().is_ok();
        let is_name = |name: Cow<'_, str>| !name.contains('\0');
        let is_id =
            if raw.starts_with('"') { scan::decode_string(text.bytes()).is_some_and(is_name) } else { is_whole() };
        is_id.then(|| Self(text.detached()))
    }

    pub fn text(text: &str) -> Self {
        Self(Payload::text(text))
    }

    pub fn number(number: i64) -> Self {
        Self(Payload::of(&number))
    }

    /// Whether two ids are equal once unescaped: servers write back the decoded id.
    pub fn says(&self, other: &Self) -> bool {
        // Different texts without escapes are different ids.
        let is_escaped = |id: &Self| memchr::memchr(b'\\', id.0.bytes()).is_some();
        let text = |id: &Self| id.0.read::<String>().ok();
        self == other
            || ((is_escaped(self) || is_escaped(other))
                && text(self).is_some_and(|own| text(other).as_ref() == Some(&own)))
    }

    pub fn as_json(&self) -> &str {
        self.0.as_str()
    }

    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        scan::decode_string(self.0.bytes())
    }

    pub const fn payload(&self) -> &Payload {
        &self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_json())
    }
}

impl serde::Serialize for RequestId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
