//! Defines task ids and keys.

use std::fmt;

use uuid::Uuid;

use super::Principal;
use super::digest::{Digest, digest};

/// A task's id: 128 random bits, written as 32 lower-case hex digits. No bit is fixed or has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

impl TaskId {
    pub const fn from_bits(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }

    /// The id of a server's subtask. Deterministic, and unpredictable without the id of the tree's top task.
    pub fn of_subtask(top: Self, name: &str) -> Self {
        let Digest(bytes) = digest([b"subtask id", &top.bits().to_be_bytes(), name.as_bytes()]);
        let (bits, _) = bytes.split_first_chunk().expect("a digest is longer than an id");
        Self::from_bits(u128::from_be_bytes(*bits))
    }

    /// Parses the spelling that [`fmt::Display`] writes; any other text names no task (B119, B123).
    pub fn parse(text: &str) -> Option<Self> {
        let canonical = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        canonical.then(|| Uuid::try_parse(text).ok().map(Self)).flatten()
    }

    pub const fn bits(self) -> u128 {
        self.0.as_u128()
    }

    pub fn text(self) -> [u8; 32] {
        let mut text = [0; 32];
        self.0.simple().encode_lower(&mut text);
        text
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.simple().encode_lower(&mut [0; 32]))
    }
}

impl fmt::Debug for TaskId {
    /// Shows the first digits only: an id may be a bearer secret (T-22), and debug output ends in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0.as_u128() >> 96)
    }
}

/// A task's key: its owner and its id. A task of another owner is therefore absent, not forbidden.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey {
    pub owner: Principal,
    pub id: TaskId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_names_a_task() {
        let id = TaskId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let text = id.to_string();
        assert_eq!(text, "0123456789abcdef0123456789abcdef");
        assert_eq!(TaskId::parse(&text), Some(id));
        let dashed = "01234567-89ab-cdef-0123-456789abcdef";
        for wrong in [
            "",
            "0123",
            dashed,
            &text.to_uppercase(),
            &format!("{text}0"),
            "../../x",
            "%30123456789abcdef0123456789abcde",
        ] {
            assert_eq!(TaskId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn debug_output_keeps_most_of_the_id_to_itself() {
        let id = TaskId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(format!("{id:?}"), "01234567…");
    }
}
