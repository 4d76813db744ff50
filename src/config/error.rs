//! Defines mistakes of a configuration, with their place.
//!
//! Knows nothing of keys or values; [`super::section`] and [`super::resolve`] find the mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// One mistake; in a list of warnings, something that is likely to be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file as the operator named it.
    pub file: Arc<str>,
    /// Counted from 1. `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// The full path of the key; `None` where the text is not TOML.
    pub key: Option<String>,
    /// What is wrong and what would be right. Never shows what a variable of the environment holds.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": key `{key}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// All mistakes of one configuration, in the order of their lines; never empty. Printed one on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// What a look at what a configuration names found: files, folders and programs. Each with the full path of the key that
/// names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What is of no use.
    pub mistakes: Vec<(String, String)>,
    /// What is likely to be of none.
    pub warnings: Vec<(String, String)>,
}

/// Where a value stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigLocation {
    pub(super) line: usize,
    /// The full path of the key, as in `upstreams.reports.tasks.grace`.
    pub(super) key: String,
}

/// Collects what is found while a file is read and resolved.
#[derive(Debug)]
pub(super) struct MistakeCollector {
    file: Arc<str>,
    has_lines: bool,
    mistakes: Vec<Mistake>,
    /// The keys of the mistakes.
    blamed: BTreeSet<String>,
    warnings: Vec<Mistake>,
}

impl MistakeCollector {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            has_lines: true,
            mistakes: Vec::new(),
            blamed: BTreeSet::new(),
            warnings: Vec::new(),
        }
    }

    /// For what is written on one line.
    pub(super) fn without_lines(name: &str) -> Self {
        Self { has_lines: false, ..Self::new(name) }
    }

    pub(super) fn mistake(&mut self, place: &ConfigLocation, message: impl Into<String>) {
        let found = self.found(Some(place.line), Some(place.key.clone()), message.into());
        self.mistakes.push(found);
        self.blamed.insert(place.key.clone());
    }

    /// Notes that nothing follows from the absence of a key.
    pub(super) fn blame(&mut self, key: String) {
        self.blamed.insert(key);
    }

    /// A mistake that has no key: the text is not TOML, or cannot be read at all.
    pub(super) fn unreadable(&mut self, line: Option<usize>, message: impl Into<String>) {
        let found = self.found(line, None, message.into());
        self.mistakes.push(found);
    }

    pub(super) fn warning(&mut self, place: &ConfigLocation, message: impl Into<String>) {
        let found = self.found(Some(place.line), Some(place.key.clone()), message.into());
        self.warnings.push(found);
    }

    /// Notes what was found outside the file at what its keys name. Beside mistakes in the file itself only what the file
    /// says counts: a default may be none once they are mended.
    pub(super) fn seen(&mut self, seen: Findings, lines: &BTreeMap<String, usize>) {
        let is_clean = self.mistakes.is_empty();
        let is_store_blamed = self.blamed.iter().any(|key| key.starts_with("store"));
        for (key, message) in seen.mistakes {
            let follows = !lines.contains_key(&key) || (key.starts_with("store") && is_store_blamed);
            if is_clean || !follows {
                let found = self.found(line_of(&key, lines), Some(key), message);
                self.mistakes.push(found);
            }
        }
        for (key, message) in seen.warnings {
            let found = self.found(line_of(&key, lines), Some(key), message);
            self.warnings.push(found);
        }
    }

    /// Whether a mistake was found at this very key: then nothing follows from its value or its absence.
    pub(super) fn blames(&self, key: &str) -> bool {
        self.blamed.contains(key)
    }

    fn found(&self, line: Option<usize>, key: Option<String>, message: String) -> Mistake {
        Mistake { file: Arc::clone(&self.file), line: line.filter(|_| self.has_lines), key, message }
    }

    /// The warnings, if nothing is wrong.
    ///
    /// # Errors
    /// The mistakes, if there is one.
    pub(super) fn into_result(self) -> Result<Vec<Mistake>, ConfigError> {
        if self.mistakes.is_empty() { Ok(in_order(self.warnings)) } else { Err(self.into_error()) }
    }

    pub(super) fn into_error(self) -> ConfigError {
        ConfigError { mistakes: in_order(self.mistakes) }
    }
}

/// The line of a key, or where it is not written that of the nearest table around it that is.
fn line_of(key: &str, lines: &BTreeMap<String, usize>) -> Option<usize> {
    let around = std::iter::successors(Some(key), |inner| inner.rsplit_once('.').map(|(outer, _)| outer));
    around.filter_map(|key| lines.get(key)).copied().next()
}

/// Sorts by line and drops repetitions: a value that several `[[tools]]` blocks inherit is checked with each of them.
fn in_order(mut found: Vec<Mistake>) -> Vec<Mistake> {
    found.sort_by(|a, b| (a.line, &a.key, &a.message).cmp(&(b.line, &b.key, &b.message)));
    found.dedup();
    found
}
