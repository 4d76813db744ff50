//! Defines mistakes of a configuration and their locations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::server::api_keys::KeyPlace;

/// A mistake, or in a list of warnings a likely one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file as the operator named it.
    pub file: Arc<str>,
    /// The line, from 1. `None` for the file as a whole.
    pub line: Option<usize>,
    /// The full path of the key; `None` if the text is not TOML.
    pub key: Option<String>,
    /// The fault and the remedy. Never shows the value of an environment variable.
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

/// All mistakes of one configuration, in the order of their lines; never empty. Printed one per line.
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

/// The findings in the files and programs that a configuration names, each with its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub mistakes: Vec<(KeyPlace, String)>,
    pub warnings: Vec<(KeyPlace, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigLocation {
    pub(super) line: usize,
    /// The full path of the key, as in `upstreams.reports.tasks.grace`.
    pub(super) key: String,
    /// The file, if it is not the main configuration file.
    pub(super) file: Option<Arc<str>>,
}

impl ConfigLocation {
    /// A location in the main configuration file.
    pub(super) const fn own(line: usize, key: String) -> Self {
        Self { line, key, file: None }
    }

    pub(super) fn key_place(&self) -> KeyPlace {
        KeyPlace { file: self.file.clone(), key: self.key.clone() }
    }

    pub(super) fn below(&self, key: &str) -> KeyPlace {
        KeyPlace { file: self.file.clone(), key: format!("{}.{key}", self.key) }
    }

    /// `line 7`, with the file's name if `other` is in another file.
    pub(super) fn line_seen_from(&self, other: &Self, own: &str) -> String {
        match self.file == other.file {
            true => format!("line {}", self.line),
            false => format!("line {} of {}", self.line, self.file.as_deref().unwrap_or(own)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct MistakeCollector {
    file: Arc<str>,
    has_lines: bool,
    mistakes: Vec<Mistake>,
    blamed: BTreeSet<KeyPlace>,
    warnings: Vec<Mistake>,
    unset: Vec<Mistake>,
    /// Whether a file of variables has a mistake, so that a variable that is not set is no second one.
    pub(super) expects_unset: bool,
}

impl MistakeCollector {
    pub(super) fn new(file: &str) -> Self {
        Self { file: Arc::from(file), has_lines: true, ..Self::default() }
    }

    pub(super) fn without_lines(name: &str) -> Self {
        Self { has_lines: false, ..Self::new(name) }
    }

    pub(super) fn mistake(&mut self, location: &ConfigLocation, message: impl Into<String>) {
        let found = self.found(Some(location.line), location.key_place(), message.into());
        self.mistakes.push(found);
        self.blamed.insert(location.key_place());
    }

    /// A mistake, unless its table is [set aside](Self::set_aside).
    pub(super) fn unset_variable(&mut self, location: &ConfigLocation, message: impl Into<String>) {
        let found = self.found(Some(location.line), location.key_place(), message.into());
        if !self.expects_unset {
            self.unset.push(found);
        }
        self.blamed.insert(location.key_place());
    }

    /// Turns mistakes about unset variables below a table into warnings, and returns their text; `None` if all variables are set.
    pub(super) fn set_aside(&mut self, table: &str) -> Option<String> {
        let is_below = |key: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
        let below = self.unset.extract_if(.., |one| one.key.as_deref().is_some_and(is_below));
        let below: Vec<Mistake> = in_order(&self.file, below.collect());
        let mut messages: Vec<&str> = below.iter().map(|one| one.message.as_str()).collect();
        messages.dedup();
        let why = (!messages.is_empty()).then(|| messages.join("; "));
        self.warnings.extend(below);
        why
    }

    pub(super) fn has_unset(&self, table: &str) -> bool {
        let is_below = |key: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
        self.unset.iter().any(|one| one.key.as_deref().is_some_and(is_below))
    }

    /// Suppresses mistakes about the absence of a key.
    pub(super) fn blame(&mut self, key: KeyPlace) {
        self.blamed.insert(key);
    }

    /// A mistake without a key: the text is not TOML, or cannot be read. `file` is set if it is not the main configuration file.
    pub(super) fn unreadable(&mut self, file: Option<&Arc<str>>, line: Option<usize>, message: impl Into<String>) {
        let file = file.unwrap_or(&self.file);
        let line = line.filter(|_| self.has_lines);
        self.mistakes.push(Mistake { file: Arc::clone(file), line, key: None, message: shortened(message.into()) });
    }

    pub(super) fn warning(&mut self, location: &ConfigLocation, message: impl Into<String>) {
        let found = self.found(Some(location.line), location.key_place(), message.into());
        self.warnings.push(found);
    }

    pub(super) fn file(&self) -> Arc<str> {
        Arc::clone(&self.file)
    }

    /// Adds the findings outside the file; if the file has mistakes, only for written keys: a default may still change.
    pub(super) fn seen(&mut self, seen: Findings, lines: &BTreeMap<KeyPlace, usize>) {
        let is_clean = self.mistakes.is_empty() && self.unset.is_empty();
        let is_of_store = |location: &KeyPlace| location.key.starts_with("store");
        let is_store_blamed = self.blamed.iter().any(is_of_store);
        for (location, message) in seen.mistakes {
            let follows = !lines.contains_key(&location) || (is_of_store(&location) && is_store_blamed);
            if is_clean || !follows {
                let found = self.found(line_of(&location, lines), location, message);
                self.mistakes.push(found);
            }
        }
        for (location, message) in seen.warnings {
            let found = self.found(line_of(&location, lines), location, message);
            self.warnings.push(found);
        }
    }

    /// Whether this key of the main configuration file has a mistake, so that neither its value nor its absence counts.
    pub(super) fn has_mistake(&self, key: &str) -> bool {
        self.has_mistake_at(&KeyPlace::from(key.to_owned()))
    }

    /// As [`Self::has_mistake`], for a list or one of its elements.
    pub(super) fn has_mistake_in(&self, list: &str) -> bool {
        let is_in = |key: &str| key.strip_prefix(list).is_some_and(|rest| rest.is_empty() || rest.starts_with('['));
        self.blamed.iter().any(|blamed| blamed.file.is_none() && is_in(&blamed.key))
    }

    /// As [`Self::has_mistake`], for any key of a table.
    pub(super) fn has_mistake_below(&self, table: &str) -> bool {
        let is_below = |key: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
        self.blamed.iter().any(|blamed| blamed.file.is_none() && is_below(&blamed.key))
    }

    /// As [`Self::has_mistake`], for a key of any file.
    pub(super) fn has_mistake_at(&self, location: &KeyPlace) -> bool {
        self.blamed.contains(location)
    }

    fn found(&self, line: Option<usize>, location: KeyPlace, message: String) -> Mistake {
        let file = location.file.unwrap_or_else(|| Arc::clone(&self.file));
        let (key, message) = (Some(shortened(location.key)), shortened(message));
        Mistake { file, line: line.filter(|_| self.has_lines), key, message }
    }

    /// The warnings, unless there are mistakes.
    pub(super) fn into_result(self) -> Result<Vec<Mistake>, ConfigError> {
        match self.mistakes.is_empty() && self.unset.is_empty() {
            true => Ok(in_order(&self.file, self.warnings)),
            false => Err(self.into_error()),
        }
    }

    pub(super) fn into_error(self) -> ConfigError {
        ConfigError { mistakes: in_order(&self.file, [self.mistakes, self.unset].concat()) }
    }
}

/// The longest message and key, in characters; the values, names and paths in them may have any length.
const SHOWN_LEN_MAX: usize = 1024;

/// Cuts the middle, so that the fault and the remedy stay.
fn shortened(text: String) -> String {
    let len = text.chars().count();
    if len <= SHOWN_LEN_MAX {
        return text;
    }
    let tail = text.chars().skip(len - SHOWN_LEN_MAX / 2);
    text.chars().take(SHOWN_LEN_MAX / 2).chain(['…']).chain(tail).collect()
}

/// The line of a key, or of the nearest written table around it.
fn line_of(location: &KeyPlace, lines: &BTreeMap<KeyPlace, usize>) -> Option<usize> {
    let outer = |inner: &KeyPlace| Some(KeyPlace { key: inner.key.rsplit_once('.')?.0.to_owned(), ..inner.clone() });
    std::iter::successors(Some(location.clone()), outer).find_map(|location| lines.get(&location).copied())
}

/// Sorts by file and line, the main file first, and drops repetitions, such as of a value that `[[tools]]` blocks inherit.
fn in_order(own: &Arc<str>, mut found: Vec<Mistake>) -> Vec<Mistake> {
    let location = |one: &Mistake| (one.file != *own, Arc::clone(&one.file), one.line, one.key.clone());
    found.sort_by(|a, b| location(a).cmp(&location(b)).then_with(|| a.message.cmp(&b.message)));
    found.dedup();
    found
}
