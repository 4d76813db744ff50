//! Reads the further files of API keys that a configuration names.
//!
//! Only its owner may access such a file, which has `[[auth.api_keys]]` blocks only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::error::MistakeCollector;
use super::named_files::{self, NamedFile};
use super::raw::{self, RawApiKey, RawConfig};
use super::section::{ConfigSource, UnknownKey};
use super::value::Environment;
use super::{advice, broken_message, known_keys, line_of_byte};
use crate::server::api_keys::KeyPlace;

/// The findings so far, in the configuration and in the files that were read.
pub(super) struct KeyFileReader<'a> {
    pub(super) env: Environment<'a>,
    pub(super) report: MistakeCollector,
    /// The line of every written key.
    pub(super) lines: BTreeMap<KeyPlace, usize>,
}

impl KeyFileReader<'_> {
    /// Appends the keys of all files to the keys of the configuration, which is in `folder`. Returns every file, faulty or not.
    pub(super) fn read(&mut self, raw: &mut RawConfig, folder: &Path) -> Vec<PathBuf> {
        let files = named_files::read(&raw.auth.api_key_files.value, folder, "keys", &mut self.report);
        for file in &files {
            raw.api_keys.extend(self.keys_in(file));
        }
        files.into_iter().map(|file| file.path).collect()
    }

    fn keys_in(&mut self, file: &NamedFile) -> Vec<RawApiKey> {
        let Some(text) = file.text.as_deref() else { return Vec::new() };
        let (tree, broken) = DeTable::parse_recoverable(text);
        for error in &broken {
            let line = error.span().map(|span| line_of_byte(text.as_bytes(), span.start));
            self.report.unreadable(Some(&file.name), line, broken_message(error, text));
        }
        if !broken.is_empty() {
            return Vec::new();
        }
        let report = std::mem::replace(&mut self.report, MistakeCollector::new(""));
        let mut source = ConfigSource::new(text, self.env, report).of_file(Arc::clone(&file.name));
        let keys = raw::read_keys(source.root(tree.get_ref()));
        let ConfigSource { report, unknown, lines, .. } = source;
        self.report = report;
        self.lines.extend(lines);
        for key in &unknown {
            self.report.mistake(&key.location, meant(key));
        }
        keys
    }
}

/// The advice for an unknown key: other keys of the configuration do not belong in a file of keys.
fn meant(key: &UnknownKey) -> String {
    if key.location.key.starts_with("auth.api_keys[") {
        let known: Vec<String> = known_keys().into_keys().filter(|known| known.starts_with("auth.api_keys")).collect();
        return advice(key, &known);
    }
    "unknown key here; a file of keys has [[auth.api_keys]] blocks and nothing else".to_owned()
}
