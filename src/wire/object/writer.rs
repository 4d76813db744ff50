//! Writes small objects of our own, member by member.

use super::Payload;
use crate::wire::payload::write_string;

/// Room for an object without large members.
const ROOM: usize = 512;

/// Room for what may follow a large member, so that a few bytes do not make it move.
const SLACK: usize = 64;

/// An object under way. Members stand in the order in which they are given; the caller names each
/// key once.
#[derive(Clone, Debug)]
#[must_use]
pub struct ObjectWriter {
    text: Vec<u8>,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectWriter {
    pub fn new() -> Self {
        let mut text = Vec::with_capacity(ROOM);
        text.push(b'{');
        Self { text }
    }

    /// A member with a value as it stands.
    pub fn member(mut self, key: &str, value: &Payload) -> Self {
        self.key(key);
        self.text.reserve(value.len() + SLACK);
        self.text.extend_from_slice(value.bytes());
        self
    }

    /// A member that is a string.
    pub fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        write_string(&mut self.text, value);
        self
    }

    /// A member that is a number.
    pub fn number(mut self, key: &str, value: u64) -> Self {
        self.key(key);
        self.text.extend_from_slice(value.to_string().as_bytes());
        self
    }

    /// A member that is `object` with one more member in front, in a single copy. The caller knows that
    /// `object` has no such member: the text is not searched for it.
    pub fn member_led_by(mut self, key: &str, (lead, value): (&str, &str), object: &Payload) -> Self {
        let rest = object.bytes().strip_prefix(b"{").unwrap_or(b"}").trim_ascii_start();
        self.key(key);
        self.text.reserve(rest.len() + lead.len() + value.len() + SLACK);
        self.text.push(b'{');
        write_string(&mut self.text, lead);
        self.text.push(b':');
        write_string(&mut self.text, value);
        if !rest.starts_with(b"}") {
            self.text.push(b',');
        }
        self.text.extend_from_slice(rest);
        self
    }

    #[must_use]
    pub fn finish(mut self) -> Payload {
        self.text.push(b'}');
        Payload::from_scanned(self.text.into())
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(b',');
        }
        write_string(&mut self.text, key);
        self.text.push(b':');
    }
}
