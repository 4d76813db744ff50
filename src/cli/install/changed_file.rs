//! Reads a host's file, and replaces it by a changed one.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::super::tool_arguments::text_of;
use crate::system::{self, OwnersAlone as _};

const BYTES_MAX: u64 = 4 << 20;
/// The ending of the copy beside the file.
const COPY: &str = ".taskgate-backup";
/// The ending of the new file, which is also the lock between two runs.
const NEW: &str = ".taskgate-new";

#[derive(Debug)]
pub(super) struct ReadFile {
    /// The file itself, and not a link to it.
    path: PathBuf,
    pub(super) text: String,
    metadata: Metadata,
}

/// The copy beside the file, after a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyChange {
    Write(String),
    Keep,
    Remove,
}

impl ReadFile {
    /// Fails if the file is missing, empty, too large or not UTF-8.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let refused = |error: io::Error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let what = if is_missing {
                "there is no such file; add a server in the host first".into()
            } else {
                error.to_string()
            };
            format!("{name}: {what}")
        };
        let path = path.canonicalize().map_err(refused)?;
        let metadata = fs::metadata(&path).map_err(refused)?;
        if !metadata.is_file() {
            return Err(format!("{name}: this is not a file; name the host's file by --file"));
        }
        let text = text_of(File::open(&path).map_err(refused)?, &name, BYTES_MAX)?;
        if text.trim().is_empty() {
            return Err(format!("{name}: the file is empty; add a server in the host first"));
        }
        Ok(Self { path, text, metadata })
    }

    /// Fails if the file or its folder is read-only. Checked by mode, which a rename and root would ignore.
    pub(super) fn check_writable(&self) -> Result<(), String> {
        let folder = self.folder();
        let folder_metadata = fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (path, metadata) in [(self.path.as_path(), &self.metadata), (folder, &folder_metadata)] {
            if metadata.permissions().readonly() {
                return Err(format!("{}: this is read-only; make it writable first", path.display()));
            }
        }
        Ok(())
    }

    pub(super) fn copy_path(&self) -> PathBuf {
        self.beside(COPY)
    }

    pub(super) fn copy(&self) -> Option<String> {
        Self::read(&self.copy_path()).ok().map(|copy| copy.text)
    }

    /// Replaces the file at once, with mode and owner. Fails if it was changed meanwhile, is locked or not writable.
    pub(super) fn replace(&self, text: &str, copy: CopyChange) -> Result<(), String> {
        let new = NewFile::create(&self.beside(NEW))?;
        let at = |error: io::Error| format!("{}: {error}; nothing was changed", self.path.display());
        if fs::read(&self.path).map_err(at)? != self.text.as_bytes() {
            return Err(format!("{}: the file was changed meanwhile; run the command again", self.path.display()));
        }
        if let CopyChange::Write(first) = &copy {
            let copy = self.copy_path();
            let mut name = copy.clone().into_os_string();
            name.push(NEW);
            NewFile::create(Path::new(&name))?.become_file(&copy, first, &self.metadata)?;
        }
        new.become_file(&self.path, text, &self.metadata)?;
        if copy == CopyChange::Remove {
            // A copy that remains equals the file.
            let _ = fs::remove_file(self.copy_path());
        }
        File::open(self.folder()).and_then(|folder| folder.sync_all()).map_err(|error| {
            format!("{}: {error}; the file was changed, and may be lost in a power cut", self.folder().display())
        })
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| Path::new("/"))
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.file_name().map(OsString::from).unwrap_or_default();
        name.push(ending);
        self.path.with_file_name(name)
    }
}

/// A file that is removed unless it took its place.
struct NewFile {
    path: PathBuf,
    file: File,
    /// Its name may be another run's by then.
    is_in_place: bool,
}

impl NewFile {
    fn create(path: &Path) -> Result<Self, String> {
        let opened = OpenOptions::new().write(true).create_new(true).owners_alone().open(path);
        let file = opened.map_err(|error| {
            let is_locked = error.kind() == io::ErrorKind::AlreadyExists;
            let locked = "another run changes the file now; if none does, remove this one";
            let what = if is_locked { locked.into() } else { format!("{error}; make the folder writable first") };
            format!("{}: {what}", path.display())
        })?;
        Ok(Self { path: path.to_owned(), file, is_in_place: false })
    }

    /// Writes the text with mode and owner of `like`, and takes the place of `target`.
    fn become_file(mut self, target: &Path, text: &str, like: &Metadata) -> Result<(), String> {
        self.write(text, like)
            .and_then(|()| fs::rename(&self.path, target))
            .map_err(|error| format!("{}: {error}; nothing was changed", target.display()))?;
        self.is_in_place = true;
        Ok(())
    }

    fn write(&mut self, text: &str, like: &Metadata) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        system::take_owner(&self.file, like)?;
        self.file.set_permissions(like.permissions())?;
        self.file.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_in_place {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert!(names.len() < 5);
        names.sort();
        names
    }

    #[test]
    fn a_file_that_changed_after_it_was_read_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        fs::write(&path, "first").unwrap();
        let file = ReadFile::read(&path).unwrap();
        fs::write(&path, "other").unwrap();
        let why = file.replace("new", CopyChange::Write("first".to_owned())).unwrap_err();
        assert!(why.ends_with("mcp.json: the file was changed meanwhile; run the command again"), "{why}");
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
            ("other", vec!["mcp.json".into()])
        );
        fs::remove_file(&path).unwrap();
        let why = file.replace("new", CopyChange::Keep).unwrap_err();
        assert!(why.ends_with("; nothing was changed"), "{why}");
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn one_of_two_runs_at_once_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        fs::write(&path, "first").unwrap();
        let (one, other) = (ReadFile::read(&path).unwrap(), ReadFile::read(&path).unwrap());
        let lock = NewFile::create(&one.beside(NEW)).unwrap();
        let why = other.replace("new", CopyChange::Keep).unwrap_err();
        assert!(why.contains("another run changes the file now"), "{why}");
        drop(lock);
        one.replace("new", CopyChange::Write("first".to_owned())).unwrap();
        // The second run had read the text before.
        assert!(other.replace("newer", CopyChange::Keep).unwrap_err().contains("was changed meanwhile"));
        assert_eq!(names(folder.path()), ["mcp.json", "mcp.json.taskgate-backup"]);
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), one.copy().as_deref()), ("new", Some("first")));
    }
}
