//! Reads the files with secrets that a configuration names: variables, and API keys. Only the owner may access them. A
//! file's variable precedes the inherited environment, which may hold another token.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::error::MistakeCollector;
use super::keys::{KeyTable as _, keys};
use super::raw::{self, RawApiKey, RawConfig};
use super::section::{ConfigSource, LocatedValue, Section, UnknownKey};
use super::value::{StringFormat, path};
use super::variables::{Environment, is_variable_name};
use super::{FILE_BYTES_MAX, advice, broken_message, known_keys, line_of_byte};
use crate::secret_file;
use crate::server::api_keys::KeyPlace;

const FILES_MAX: usize = 1_000;
const ENV_FILES: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"taskgate.env\"", read: path };

keys! {
    /// The keys outside of tables.
    struct RawVariables {
        /// Files of variables for `${VAR}`, relative to the folder of this file, read again when they change. A line is
        /// `NAME=VALUE` up to its end, without a shell's expansion; a value in double quotes is a JSON string (`"\n"`
        /// is a line break). Blank lines and lines that begin with `#` are left out. A variable of a file comes before
        /// one of the gateway's environment, which may hold another token under the same name; two lines with one name
        /// are a mistake.
        reload env_files: Vec<LocatedValue<PathBuf>> = read_each(&ENV_FILES), default [], bounds "owner alone";
    }
}

#[derive(Default)]
pub(super) struct FileVariables {
    pub(super) files: Vec<PathBuf>,
    pub(super) values: BTreeMap<String, String>,
}

/// Reads `env_files` and the files in it, relative to `folder`. With a faulty file, unset variables are no mistakes.
pub(super) fn read_variables(root: &mut Section<'_, '_>, folder: &Path) -> FileVariables {
    let named = RawVariables::read(root).env_files.value;
    let report = root.report();
    let mut is_faulty = report.has_mistake_in("env_files");
    let mut variables = FileVariables::default();
    for file in read_files(&named, folder, "values", report) {
        is_faulty |= file.text.is_none();
        // Editors may write a byte order mark.
        let text = file.text.as_deref().unwrap_or_default();
        for (line, text) in (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines()) {
            let read = variable(text).and_then(|variable| match variable {
                Some((name, _)) if variables.values.contains_key(name) => {
                    Err("sets a variable that an earlier line or file sets; leave one of them out")
                }
                other => Ok(other),
            });
            match read {
                Ok(Some((name, value))) => drop(variables.values.insert(name.to_owned(), value)),
                Ok(None) => (),
                Err(why) => {
                    report.unreadable(Some(&file.name), Some(line), why);
                    is_faulty = true;
                }
            }
        }
        variables.files.push(file.path);
    }
    if is_faulty || variables.files.len() < named.len() {
        report.expects_unset = true;
    }
    variables
}

/// The name and the value in a line; `None` for a blank line or a comment. Errors omit the text of the line.
fn variable(line: &str) -> Result<Option<(&str, String)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (name, value) = line.split_once('=').ok_or("is not NAME=VALUE; write that, or a comment that begins with #")?;
    if !is_variable_name(name) {
        return Err("has no name of a variable before the =; write letters, digits and _, and no digit first");
    }
    if value.starts_with(char::is_whitespace) {
        return Err("has a blank after the =; remove it, or write a JSON string");
    }
    let value = match value.chars().next() {
        Some('"') => serde_json::from_str(value)
            .map_err(|_| "has a value that begins with \" and is not a JSON string; write one, or omit the quotes")?,
        Some('\'') => return Err("has a value that begins with '; leave out the quotes, or write a JSON string"),
        Some(_) | None => value.to_owned(),
    };
    if value.contains('\0') { Err("has a NUL character in its value") } else { Ok(Some((name, value))) }
}

pub fn env_line(name: &str, value: &str) -> String {
    let is_plain = value.trim() == value && !value.starts_with(['"', '\'']) && !value.contains(char::is_control);
    if is_plain { format!("{name}={value}\n") } else { format!("{name}={}\n", serde_json::Value::from(value)) }
}

/// The findings so far, in the configuration and in the files that were read.
pub(super) struct KeyFileReader<'a> {
    pub(super) env: Environment<'a>,
    pub(super) report: MistakeCollector,
    pub(super) lines: BTreeMap<KeyPlace, usize>,
}

impl KeyFileReader<'_> {
    /// Appends the keys of all files to the keys of the configuration, which is in `folder`. Returns every file, faulty or not.
    pub(super) fn read(&mut self, raw: &mut RawConfig, folder: &Path) -> Vec<PathBuf> {
        let files = read_files(&raw.auth.api_key_files.value, folder, "keys", &mut self.report);
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

struct NamedFile {
    path: PathBuf,
    /// The path in messages.
    name: Arc<str>,
    /// `None` if it cannot be read, which is noted.
    text: Option<String>,
}

/// Reads each file once; relative paths start at `folder`. `what` names the content of the files.
fn read_files(
    named: &[LocatedValue<PathBuf>],
    folder: &Path,
    what: &'static str,
    report: &mut MistakeCollector,
) -> Vec<NamedFile> {
    if let Some(beyond) = named.get(FILES_MAX) {
        report.mistake(&beyond.location, format!("is one file too many; there may be {FILES_MAX}"));
        return Vec::new();
    }
    let mut files: Vec<NamedFile> = Vec::with_capacity(named.len());
    for LocatedValue { value, location } in named {
        let path = folder.join(value);
        if files.iter().any(|file| file.path == path) {
            report.mistake(location, "is named above already; leave one of them out");
            continue;
        }
        let name: Arc<str> = Arc::from(path.display().to_string());
        let text = match secret_file::read(&path, what, FILE_BYTES_MAX).map(String::from_utf8) {
            Ok(Ok(text)) => Some(text),
            Ok(Err(error)) => {
                let line = line_of_byte(error.as_bytes(), error.utf8_error().valid_up_to());
                report.unreadable(Some(&name), Some(line), "is not UTF-8 text");
                None
            }
            Err(error) => {
                report.mistake(location, format!("{name}: {error}"));
                None
            }
        };
        files.push(NamedFile { path, name, text });
    }
    files
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_written_line_is_read_as_its_variable(value in "[^\0]{0,20}|[\"' \n#=$a]{0,8}") {
            let line = env_line("NAME", &value);
            let lines: Vec<_> = line.lines().collect();
            prop_assert_eq!(lines.len(), 1);
            prop_assert_eq!(variable(lines[0]), Ok(Some(("NAME", value))));
        }
    }

    #[test]
    fn a_line_is_a_variable_a_comment_or_a_mistake_that_shows_no_value() {
        for (line, expected) in [
            ("", Ok(None)),
            ("  # TOKEN=1", Ok(None)),
            ("TOKEN=a=b # c ${X} $Y\r", Ok(Some("a=b # c ${X} $Y"))),
            (" TOKEN=", Ok(Some(""))),
            (r#"TOKEN="a\n\"b\" ""#, Ok(Some("a\n\"b\" "))),
            ("TOKEN", Err("is not NAME=VALUE")),
            ("export TOKEN=1", Err("has no name of a variable")),
            ("1TOKEN=1", Err("has no name of a variable")),
            ("=1", Err("has no name of a variable")),
            ("TOKEN='1'", Err("begins with '")),
            ("TOKEN= 1", Err("has a blank after the =")),
            (r#"TOKEN= "1""#, Err("has a blank after the =")),
            (r#"TOKEN="1"#, Err("is not a JSON string")),
            (r#"TOKEN="1" # one"#, Err("is not a JSON string")),
            (r#"TOKEN="\u0000""#, Err("has a NUL character")),
        ] {
            let read = variable(line).map(|read| read.map(|(_, value)| value));
            match expected {
                Ok(value) => assert_eq!(read, Ok(value.map(str::to_owned)), "{line}"),
                Err(why) => assert!(read.unwrap_err().contains(why), "{line}"),
            }
        }
    }
}
