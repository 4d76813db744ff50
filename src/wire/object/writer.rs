//! Writes small objects of our own, member by member.

use bytes::Bytes;

use super::Payload;
use crate::wire::JsonPieces;
use crate::wire::payload::write_string;
use crate::wire::scan::needs_no_escape;

const ROOM: usize = 512;

/// Spare capacity after a large member, so that a few bytes do not reallocate it.
const SLACK: usize = 64;

/// Writes an object's members in order, each key once. Own keys need no escapes; [`Self::any_member`] takes any key.
#[derive(Clone, Debug)]
#[must_use]
pub struct ObjectWriter {
    /// Pieces before `text`, where a large value is shared.
    pieces: Vec<Bytes>,
    text: Vec<u8>,
    is_empty: bool,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectWriter {
    pub fn new() -> Self {
        Self::with_room(0)
    }

    pub fn with_room(bytes: usize) -> Self {
        let mut text = Vec::with_capacity(ROOM + bytes);
        text.push(b'{');
        Self { pieces: Vec::new(), text, is_empty: true }
    }

    /// An object with this member alone, in a buffer of its size.
    pub fn single(key: &'static str, value: &Payload) -> Payload {
        debug_assert!(needs_no_escape(key.as_bytes()), "a key of the gateway's own needs escapes");
        let parts = [&b"{\""[..], key.as_bytes(), b"\":", value.bytes(), b"}"];
        Payload::from_scanned(parts.concat().into())
    }

    pub fn member(mut self, key: &'static str, value: &Payload) -> Self {
        self.key(key);
        self.value(value)
    }

    /// Appends a member with any key, such as a server's.
    pub fn any_member(mut self, key: &str, value: &Payload) -> Self {
        self.separate();
        write_string(&mut self.text, key);
        self.text.push(b':');
        self.value(value)
    }

    fn value(mut self, value: &Payload) -> Self {
        self.text.reserve(value.len() + SLACK);
        self.text.extend_from_slice(value.bytes());
        self
    }

    /// Begins an array whose elements come one by one, until [`Self::end_array`].
    pub fn begin_array(&mut self, key: &'static str) {
        self.key(key);
        self.text.push(b'[');
        self.is_empty = true;
    }

    /// Appends an element, verbatim, to the array that was begun.
    pub fn element(&mut self, value: &Payload) {
        if !std::mem::take(&mut self.is_empty) {
            self.text.push(b',');
        }
        self.text.extend_from_slice(value.bytes());
    }

    pub fn end_array(&mut self) {
        self.text.push(b']');
        self.is_empty = false;
    }

    pub fn reserve(&mut self, bytes: usize) {
        self.text.reserve(bytes);
    }

    /// The bytes written so far, without shared ones.
    pub const fn written_bytes(&self) -> usize {
        self.text.len()
    }

    pub fn text(mut self, key: &'static str, value: &str) -> Self {
        self.key(key);
        write_string(&mut self.text, value);
        self
    }

    pub fn optional(self, key: &'static str, value: Option<&Payload>) -> Self {
        if let Some(value) = value { self.member(key, value) } else { self }
    }

    pub fn optional_text(self, key: &'static str, value: Option<&str>) -> Self {
        if let Some(value) = value { self.text(key, value) } else { self }
    }

    /// Appends a text that needs no escapes, such as an id or a time.
    pub fn plain_text(mut self, key: &'static str, value: &[u8]) -> Self {
        debug_assert!(value.is_ascii() && needs_no_escape(value), "a plain text needs escapes");
        self.key(key);
        self.text.push(b'"');
        self.text.extend_from_slice(value);
        self.text.push(b'"');
        self
    }

    pub fn number(mut self, key: &'static str, value: u64) -> Self {
        self.key(key);
        serde_json::to_writer(&mut self.text, &value).expect("writing to memory does not fail");
        self
    }

    /// Appends `object` with a new member at its front, copied once or shared. The caller knows that the key is new.
    pub fn member_led_by(mut self, key: &'static str, lead: &'static str, value: &str, object: &Payload) -> Self {
        let rest = object.bytes().strip_prefix(b"{").unwrap_or(b"}").trim_ascii_start();
        self.key(key);
        let is_shared = rest.len() >= JsonPieces::SHARED_MIN;
        self.text.reserve(if is_shared { 0 } else { rest.len() } + lead.len() + value.len() + SLACK);
        self.text.extend_from_slice(b"{\"");
        self.text.extend_from_slice(lead.as_bytes());
        self.text.extend_from_slice(b"\":");
        write_string(&mut self.text, value);
        if !rest.starts_with(b"}") {
            self.text.push(b',');
        }
        if is_shared {
            self.pieces.push(std::mem::take(&mut self.text).into());
            self.pieces.push(object.bytes().slice_ref(rest));
        } else {
            self.text.extend_from_slice(rest);
        }
        self
    }

    pub fn finish(self) -> Payload {
        self.finish_pieces().whole()
    }

    /// The object, in pieces if a large member is shared.
    pub fn finish_pieces(mut self) -> JsonPieces {
        self.text.push(b'}');
        if self.pieces.is_empty() {
            return JsonPieces::of_text(self.text);
        }
        self.pieces.push(self.text.into());
        JsonPieces::Pieces(self.pieces)
    }

    fn key(&mut self, key: &'static str) {
        debug_assert!(needs_no_escape(key.as_bytes()), "a key of the gateway's own needs escapes");
        self.separate();
        self.text.push(b'"');
        self.text.extend_from_slice(key.as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.text.push(b',');
        }
    }
}
