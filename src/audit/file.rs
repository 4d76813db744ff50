//! Opens the audit file: one writer, whole lines, the end of its chain.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::record::{ChainEnd, LINE_BYTES_MAX};
use crate::system::{self, OwnersAlone as _};

/// How far back the last whole line is looked for. A torn write leaves less than a batch behind it.
const TAIL_BYTES: u64 = 1 << 20;

/// How a record begins: with these bytes, its number, and [`AFTER_NUMBER`].
const FIRST_BYTES: &[u8] = b"{\"seq\":";
const AFTER_NUMBER: &[u8] = b",\"time\":\"";
/// The lines that are kept until a sync. Further lines wait for one.
const UNSYNCED_BYTES_MAX: usize = 4 << 20;
/// The name of a new file until its first line is on the disk, after the name of the audit file.
const DRAFT_SUFFIX: &str = ".next";

#[derive(Debug, thiserror::Error)]
pub enum AuditOpenError {
    #[error("{}: another process writes this audit file; end it, or name another file as `audit.path`", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: is not an audit file, or is damaged at its end; move it away, or name another file as `audit.path`", .path.display())]
    Foreign { path: PathBuf },
    #[error("{}: {source}; `audit.path` names a file that the gateway may write to", .path.display())]
    File { path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub(super) struct AuditSink {
    path: PathBuf,
    kind: SinkKind,
    pub(super) end: ChainEnd,
    /// The bytes of an incomplete last line, which was cut off.
    pub(super) torn_bytes: u64,
}

#[derive(Debug)]
enum SinkKind {
    Regular(LockedFile),
    /// A pipe or a device. Opened by the first write, which may wait for a reader; each process begins a chain.
    Stream(Option<File>),
}

/// A regular file that this process has locked.
#[derive(Debug)]
struct LockedFile {
    file: File,
    /// The lines since the last successful sync.
    unsynced: Vec<u8>,
    /// Where they begin, if they are to be written again: a write left an incomplete line behind them, or a sync failed, and the
    /// kernel may have dropped them.
    lost_from: Option<u64>,
}

impl AuditSink {
    /// Opens a file and cuts an incomplete last line off. Creates a missing file, its owner's alone. Never waits.
    pub(super) fn open(path: &Path) -> Result<Self, AuditOpenError> {
        let path = path.to_owned();
        let failed = |source| AuditOpenError::File { path: path.clone(), source };
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() && !found.is_dir() => {
                let kind = SinkKind::Stream(None);
                return Ok(Self { path, kind, end: ChainEnd::default(), torn_bytes: 0 });
            }
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(failed(error)),
        }
        let file = locked(&path).map_err(failed)?.ok_or_else(|| AuditOpenError::Locked { path: path.clone() })?;
        sync_folder(&path);
        let (end, torn_bytes) =
            cut_to_whole_lines(&file).map_err(failed)?.ok_or_else(|| AuditOpenError::Foreign { path: path.clone() })?;
        Ok(Self { path, kind: SinkKind::Regular(LockedFile::of(file)), end, torn_bytes })
    }

    /// Appends whole lines. The incomplete line of a failed write is cut off at once, or before the next write.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.kind {
            SinkKind::Regular(file) => file.append(lines),
            SinkKind::Stream(opened) => {
                let stream = match opened {
                    Some(stream) => stream,
                    None => opened.insert(OpenOptions::new().write(true).open(&self.path)?),
                };
                let written = stream.write_all(lines);
                if written.is_err() {
                    *opened = None;
                }
                written
            }
        }
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let SinkKind::Regular(file) = &mut self.kind { file.sync_by(File::sync_data) } else { Ok(()) }
    }

    /// Continues in a new file, which begins with `first_lines`, if the path no longer names the present one; returns whether it
    /// does. After a crash at any moment there is no new file, or one with these lines (SEC-55). Fails if the path names a file with lines
    /// or with another writer.
    pub(super) fn reopen(&mut self, first_lines: &[u8]) -> io::Result<bool> {
        let SinkKind::Regular(old) = &mut self.kind else { return Ok(false) };
        let identity = |file: &File| file.metadata().map(|found| system::identity(&found));
        // Compared by metadata: opening the path could create the file.
        let found = fs::metadata(&self.path);
        if found.as_ref().is_ok_and(|found| identity(&old.file).is_ok_and(|own| own == system::identity(found))) {
            return Ok(false);
        }
        // A disk that fails must not keep the audit from continuing on another one.
        if let Err(error) = old.sync_by(File::sync_data) {
            tracing::error!(%error, "the renamed audit file cannot be completed; it may end with an incomplete line");
        }
        let open_next = || match &found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => created_with(&self.path, first_lines),
            Ok(_) | Err(_) => begun_with(&self.path, first_lines),
        };
        let mut next = open_next();
        if next.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) && system::is_removed(&old.file)
        {
            // A removed file keeps its disk space until it is closed; no other program can open it.
            old.file.set_len(0)?;
            next = open_next();
        }
        self.kind = SinkKind::Regular(LockedFile::of(next?));
        Ok(true)
    }
}

impl LockedFile {
    const fn of(file: File) -> Self {
        Self { file, unsynced: Vec::new(), lost_from: None }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.lost_from.is_some() || self.unsynced.len() > UNSYNCED_BYTES_MAX {
            self.sync_by(File::sync_data)?;
        }
        let len = self.file.metadata()?.len();
        let written = self.file.write_all(lines);
        if written.is_ok() {
            self.unsynced.extend_from_slice(lines);
        } else if self.file.set_len(len).is_err() {
            self.lost_from = Some(len.saturating_sub(self.unsynced.len() as u64));
        }
        written
    }

    /// The kernel reports a failed sync once, and the next one proves nothing: the lines are written again first (SEC-34).
    fn sync_by(&mut self, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        if let Some(begin) = self.lost_from {
            self.file.set_len(begin.min(self.file.metadata()?.len()))?;
            self.file.write_all(&self.unsynced)?;
        }
        let begin = self.file.metadata()?.len().saturating_sub(self.unsynced.len() as u64);
        self.lost_from = Some(begin);
        sync(&self.file)?;
        self.lost_from = None;
        self.unsynced.clear();
        Ok(())
    }
}

/// Creates a file with this line, or none. Never replaces a file: a hard link fails if the name exists.
fn created_with(path: &Path, line: &[u8]) -> io::Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(DRAFT_SUFFIX);
    let draft = path.with_file_name(name);
    // A killed process left this draft. It may be a link to a file with records, so nothing is written to it.
    if let Err(error) = fs::remove_file(&draft)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().read(true).append(true).create_new(true).owners_alone().open(&draft)?;
    file.lock()?;
    file.write_all(line)?;
    file.sync_all()?;
    match fs::hard_link(&draft, path) {
        Ok(()) => drop(fs::remove_file(&draft)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        // The file system has no hard links.
        Err(_) => fs::rename(&draft, path)?,
    }
    sync_folder(path);
    Ok(file)
}

/// Writes the first line to a file that another program created.
fn begun_with(path: &Path, line: &[u8]) -> io::Result<File> {
    let mut file = locked(path)?.ok_or_else(|| io::Error::other("another process writes this file"))?;
    if file.metadata()?.len() > 0 {
        return Err(io::Error::other("the file that took its place is not empty"));
    }
    let written = file.write_all(line).and_then(|()| file.sync_data());
    written.inspect_err(|_| drop(file.set_len(0)))?;
    Ok(file)
}

/// Makes a new file's name survive a power cut. Some file systems cannot do that.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!(%error, "the folder of the audit file was not synced");
    }
}

/// Opens and locks a file; `None` if another process has the lock.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).append(true).create(true).owners_alone().open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Cuts an incomplete last line off. Returns the chain's end and the bytes cut; `None` if the last whole line is no record.
fn cut_to_whole_lines(mut file: &File) -> io::Result<Option<(ChainEnd, u64)>> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    let Some(line_end) = memchr::memrchr(b'\n', &tail) else {
        // The file has no whole line. Only the beginning of a record is cut off; it may have the digest of the line before.
        let is_torn = length < LINE_BYTES_MAX as u64 && begins_record(&tail);
        if is_torn {
            file.set_len(0)?;
        }
        return Ok(is_torn.then(|| (ChainEnd::before(&tail).unwrap_or_default(), length)));
    };
    let lines = &tail[..line_end];
    let line = memchr::memrchr(b'\n', lines).map_or(lines, |before| &lines[before + 1..]);
    let Some(end) = ChainEnd::at(line) else { return Ok(None) };
    let torn = (tail.len() - line_end - 1) as u64;
    if torn > 0 {
        file.set_len(length - torn)?;
    }
    Ok(Some((end, torn)))
}

/// Whether a text can be the first bytes of a record.
fn begins_record(text: &[u8]) -> bool {
    let starts = |text: &[u8], with: &[u8]| {
        let known = text.len().min(with.len());
        text[..known] == with[..known]
    };
    let rest = text.get(FIRST_BYTES.len()..).unwrap_or_default();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_numbered = rest.is_empty() || digits > 0;
    starts(text, FIRST_BYTES) && is_numbered && starts(&rest[digits..], AFTER_NUMBER)
}

#[cfg(test)]
impl AuditSink {
    /// Waits for the lock: a program that another test starts has all open files between fork and exec.
    pub(super) fn unlocked(path: &Path) -> Self {
        for _ in 0..1_000 {
            match Self::open(path) {
                Err(AuditOpenError::Locked { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
                opened => return opened.unwrap(),
            }
        }
        panic!("the file stays locked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::record::{AuditAct, AuditEvent};
    use crate::task::Timestamp;

    #[test]
    fn a_file_that_ends_at_any_byte_is_continued_after_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (mut chain, mut text, mut ends) = (ChainEnd::default(), Vec::new(), vec![(0, ChainEnd::default())]);
        for _ in 0..3 {
            chain.add(Timestamp::from_millis(7), None, &AuditEvent::new(AuditAct::Reload).members(|_| None), &mut text);
            ends.push((text.len(), chain));
        }
        for length in 0..=text.len() {
            fs::write(&path, &text[..length]).unwrap();
            let sink = AuditSink::unlocked(&path);
            let (whole, end) = *ends.iter().rev().find(|(whole, _)| *whole <= length).unwrap();
            assert_eq!((sink.end, sink.torn_bytes), (end, (length - whole) as u64), "{length}");
            assert_eq!(fs::read(&path).unwrap(), text[..whole], "{length}");
            assert!(matches!(AuditSink::open(&path), Err(AuditOpenError::Locked { .. })), "two writers");
        }
    }

    /// The kernel reports pages that it could not write, and drops them: a further sync succeeds without them.
    #[test]
    fn sec_34_the_lines_of_a_failed_sync_are_written_again_before_they_count_as_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut sink = AuditSink::unlocked(&path);
        let mut expected = Vec::new();
        for (failures, goes_on) in [(1, false), (2, false), (1, true), (2, true)] {
            sink.append(b"kept\n").unwrap();
            sink.sync().unwrap();
            sink.append(b"lost\n").unwrap();
            expected.extend_from_slice(b"kept\n");
            for _ in 0..failures {
                let SinkKind::Regular(open) = &mut sink.kind else { panic!("a regular file") };
                assert!(open.sync_by(|_| Err(io::Error::other("lost"))).is_err());
                fs::write(&path, [&expected[..], b"\0\0\0"].concat()).unwrap();
            }
            expected.extend_from_slice(b"lost\n");
            if goes_on {
                sink.append(b"later\n").unwrap();
                expected.extend_from_slice(b"later\n");
            } else {
                sink.sync().unwrap();
            }
            assert_eq!(fs::read(&path).unwrap(), expected, "{failures} {goes_on}");
        }
    }

    #[test]
    fn the_lines_that_are_kept_for_a_failed_sync_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = AuditSink::unlocked(&folder.path().join("audit.jsonl"));
        let kept = |sink: &AuditSink| if let SinkKind::Regular(open) = &sink.kind { open.unsynced.len() } else { 0 };
        sink.append("x".repeat(UNSYNCED_BYTES_MAX).as_bytes()).unwrap();
        sink.append(b"\n").unwrap();
        assert_eq!(kept(&sink), UNSYNCED_BYTES_MAX + 1);
        sink.append(b"next\n").unwrap();
        assert_eq!(kept(&sink), 5);
    }

    /// The line of a rotation, with the chain before it.
    fn rotated() -> (ChainEnd, Vec<u8>) {
        let (mut chain, mut line) = (ChainEnd { seq: 1_041, digest: [7; 32] }, Vec::new());
        let before = chain;
        let event = AuditEvent { outcome: Some("rotated"), ..AuditEvent::new(AuditAct::Opened) };
        chain.add(Timestamp::from_millis(7), Some("\"prev\":\""), &event.members(|_| None), &mut line);
        (before, line)
    }

    #[test]
    fn sec_55_a_new_file_that_ends_in_its_first_line_is_opened_and_continues_the_chain_if_it_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (before, line) = rotated();
        let digest = line.windows(64).position(|part| part == "07".repeat(32).as_bytes()).unwrap();
        for length in 0..line.len() {
            fs::write(&path, &line[..length]).unwrap();
            let sink = AuditSink::unlocked(&path);
            let expected = if length > digest + 64 { before } else { ChainEnd::default() };
            assert_eq!((sink.end, sink.torn_bytes), (expected, length as u64), "{length}");
            assert_eq!(fs::read(&path).unwrap(), b"", "{length}");
        }
    }

    #[test]
    fn sec_55_a_rotated_file_appears_with_its_first_line_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [path, old, draft] =
            ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.next"].map(|name| folder.path().join(name));
        let mut sink = AuditSink::unlocked(&path);
        sink.append(b"old\n").unwrap();
        let (_, line) = rotated();
        assert!(!sink.reopen(&line).unwrap(), "it is where it was");
        fs::rename(&path, &old).unwrap();
        // As a process leaves it that is killed between link and removal.
        fs::hard_link(&old, &draft).unwrap();
        assert!(sink.reopen(&line).unwrap());
        assert!(matches!(AuditSink::open(&path), Err(AuditOpenError::Locked { .. })), "two writers");
        sink.append(b"new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), [&line[..], b"new\n"].concat());
        assert_eq!((fs::read(&old).unwrap(), draft.exists()), (b"old\n".to_vec(), false));
        // Of other programs' files an empty one is used, any other is left alone, and the present file continues.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        assert!(sink.reopen(&line).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"another");
        fs::write(&path, "").unwrap();
        assert!(sink.reopen(&line).unwrap());
        assert_eq!(fs::read(&path).unwrap(), line);
    }

    #[test]
    fn another_text_is_no_audit_file_and_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        let long = "{\"seq\":1,".repeat(LINE_BYTES_MAX);
        let numbered = ["{\"seq\":x", "{\"seq\":,", "{\"seq\":1}", "{\"seq\":1,\"t\"", "{\"seq\":1,\"time\":7"];
        let others = ["x", "hello\n", "{}\n", "{\"seq\":1}\n{", "\n", long.as_str()];
        for text in others.into_iter().chain(numbered) {
            fs::write(&path, text).unwrap();
            assert!(matches!(AuditSink::open(&path), Err(AuditOpenError::Foreign { .. })), "{text:.20}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
