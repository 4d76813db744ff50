//! Reads files with secrets that a configuration names in a list.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::MistakeCollector;
use super::section::LocatedValue;
use super::{FILE_BYTES_MAX, line_of_byte};
use crate::secret_file;

const FILES_MAX: usize = 1_000;

pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    /// The path in messages.
    pub(super) name: Arc<str>,
    /// `None` if it cannot be read, which is noted.
    pub(super) text: Option<String>,
}

/// Reads each file once; relative paths start at `folder`. `what` names the content of the files.
pub(super) fn read(
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
