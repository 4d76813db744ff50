//! Collects what is to be said of a host's file, with its place.

use std::fmt::Display;

/// What is to be said; a place is a JSON pointer.
#[derive(Debug, Default)]
pub(super) struct ImportNotes {
    /// What is carried over in another way, or not at all.
    notes: Vec<String>,
    /// What is no such file.
    mistakes: Vec<String>,
}

impl ImportNotes {
    pub(super) fn note(&mut self, pointer: &str, text: impl Display) {
        self.notes.push(format!("{pointer}: {text}"));
    }

    pub(super) fn mistake(&mut self, pointer: &str, text: impl Display) {
        self.mistakes.push(format!("{pointer}: {text}"));
    }

    /// What is to be said of a file that can be carried over.
    ///
    /// # Errors
    /// The mistakes, if there is one.
    pub(super) fn into_result(self) -> Result<Vec<String>, Vec<String>> {
        if self.mistakes.is_empty() { Ok(self.notes) } else { Err(self.mistakes) }
    }
}

/// The pointer to a member.
pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}
