//! Collects notes and mistakes of a host's file, each with its JSON pointer.

use std::fmt::Display;

#[derive(Debug, Default)]
pub(super) struct ImportNotes {
    notes: Vec<String>,
    mistakes: Vec<String>,
}

impl ImportNotes {
    pub(super) fn note(&mut self, pointer: &str, text: impl Display) {
        self.notes.push(format!("{pointer}: {text}"));
    }

    pub(super) fn mistake(&mut self, pointer: &str, text: impl Display) {
        self.mistakes.push(format!("{pointer}: {text}"));
    }

    pub(super) fn into_result(self) -> Result<Vec<String>, Vec<String>> {
        if self.mistakes.is_empty() { Ok(self.notes) } else { Err(self.mistakes) }
    }
}

pub(super) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}
