//! Reads and writes files of variables (`env_files`): lines of `NAME=VALUE`.
//!
//! Only its owner may access such a file, as every file with secrets. A variable of a file comes before one of the gateway's own
//! environment, which is inherited, and may hold another token under the same name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::keys::{KeyTable as _, keys};
use super::named_files;
use super::section::{LocatedValue, Section};
use super::value::{StringFormat, is_variable_name, path};

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

/// Reads `env_files` and the files that it names; relative paths start at `folder`. If a file has a mistake, unset
/// variables are no further mistakes.
pub(super) fn read(root: &mut Section<'_, '_>, folder: &Path) -> FileVariables {
    let named = RawVariables::read(root).env_files.value;
    let report = root.report();
    let mut is_faulty = report.blames_in("env_files");
    let mut variables = FileVariables::default();
    for file in named_files::read(&named, folder, "values", report) {
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
        report.expect_unset_variables();
    }
    variables
}

/// The name and the value in a line; `None` for a blank line or a comment. Errors omit the text of the line.
fn variable(line: &str) -> Result<Option<(&str, String)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (name, value) = line.split_once('=').ok_or("is no NAME=VALUE; write one, or a comment that begins with #")?;
    if !is_variable_name(name) {
        return Err("has no name of a variable before the =; write letters, digits and _, and no digit first");
    }
    if value.starts_with(char::is_whitespace) {
        return Err("has a blank after the =; remove it, or write a JSON string");
    }
    let value = match value.chars().next() {
        Some('"') => serde_json::from_str(value)
            .map_err(|_| "has a value that begins with \" and is no JSON string; write one, or leave out the quotes")?,
        Some('\'') => return Err("has a value that begins with '; leave out the quotes, or write a JSON string"),
        Some(_) | None => value.to_owned(),
    };
    if value.contains('\0') { Err("has a NUL character in its value") } else { Ok(Some((name, value))) }
}

#[must_use]
pub fn env_line(name: &str, value: &str) -> String {
    let is_plain = value.trim() == value && !value.starts_with(['"', '\'']) && !value.contains(char::is_control);
    if is_plain { format!("{name}={value}\n") } else { format!("{name}={}\n", serde_json::Value::from(value)) }
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
            ("TOKEN", Err("is no NAME=VALUE")),
            ("export TOKEN=1", Err("has no name of a variable")),
            ("1TOKEN=1", Err("has no name of a variable")),
            ("=1", Err("has no name of a variable")),
            ("TOKEN='1'", Err("begins with '")),
            ("TOKEN= 1", Err("has a blank after the =")),
            (r#"TOKEN= "1""#, Err("has a blank after the =")),
            (r#"TOKEN="1"#, Err("is no JSON string")),
            (r#"TOKEN="1" # one"#, Err("is no JSON string")),
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
