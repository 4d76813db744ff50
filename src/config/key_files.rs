//! Reads the further files of API keys that a configuration names.
//!
//! Only its owner may access such a file, as every file with secrets. It has `[[auth.api_keys]]` blocks only. Mistakes in it have
//! its name and lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::error::MistakeCollector;
use super::raw::{self, RawApiKey, RawAuth};
use super::section::{ConfigSource, UnknownKey};
use super::value::Environment;
use super::{FILE_BYTES_MAX, advice, broken_message, known_keys, line_of_byte};
use crate::secret_file;
use crate::server::api_keys::KeyPlace;

const FILES_MAX: usize = 1_000;

/// The findings so far, in the configuration and in the files that were read.
pub(super) struct KeyFileReader<'a> {
    pub(super) env: Environment<'a>,
    pub(super) report: MistakeCollector,
    /// The line of every written key.
    pub(super) lines: BTreeMap<KeyPlace, usize>,
}

impl KeyFileReader<'_> {
    /// Appends the keys of all files to those of the configuration, which is in `folder`. Returns every existing file, faulty or
    /// not.
    pub(super) fn read(&mut self, auth: &mut RawAuth, folder: &Path) -> Vec<PathBuf> {
        if let Some(beyond) = auth.api_key_files.get(FILES_MAX) {
            self.report.mistake(&beyond.place, format!("is one file too many; there may be {FILES_MAX}"));
            return Vec::new();
        }
        let mut files = BTreeSet::new();
        for named in &auth.api_key_files {
            let path = folder.join(&named.value);
            if !files.insert(path.clone()) {
                self.report.mistake(&named.place, "is named above already; leave one of them out");
                continue;
            }
            match secret_file::read(&path, "keys", FILE_BYTES_MAX) {
                Ok(bytes) => auth.api_keys.extend(self.keys_in(&path, &bytes)),
                Err(error) => self.report.mistake(&named.place, format!("{}: {error}", path.display())),
            }
        }
        files.into_iter().collect()
    }

    fn keys_in(&mut self, path: &Path, bytes: &[u8]) -> Vec<RawApiKey> {
        let file: Arc<str> = Arc::from(path.display().to_string());
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let line = line_of_byte(bytes, error.valid_up_to());
                self.report.unreadable(Some(&file), Some(line), "is not UTF-8 text");
                return Vec::new();
            }
        };
        let (tree, broken) = DeTable::parse_recoverable(text);
        for error in &broken {
            let line = error.span().map(|span| line_of_byte(bytes, span.start));
            self.report.unreadable(Some(&file), line, broken_message(error, text));
        }
        if !broken.is_empty() {
            return Vec::new();
        }
        let report = std::mem::replace(&mut self.report, MistakeCollector::new(""));
        let mut source = ConfigSource::new(text, self.env, report).of_file(file);
        let keys = raw::read_keys(source.root(tree.get_ref()));
        let ConfigSource { report, unknown, lines, .. } = source;
        self.report = report;
        self.lines.extend(lines);
        for key in &unknown {
            self.report.mistake(&key.place, meant(key));
        }
        keys
    }
}

/// The advice for an unknown key: other keys of the configuration do not belong in a file of keys.
fn meant(key: &UnknownKey) -> String {
    if key.place.key.starts_with("auth.api_keys[") {
        let known: Vec<String> = known_keys().into_keys().filter(|known| known.starts_with("auth.api_keys")).collect();
        return advice(key, &known);
    }
    "unknown key here; a file of keys has [[auth.api_keys]] blocks and nothing else".to_owned()
}
