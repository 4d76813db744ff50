//! Opens the audit file: one writer, whole lines, the end of its chain.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::record::{ChainEnd, LINE_BYTES_MAX};
use crate::system::{self, OwnersAlone as _};

/// How far back the last whole line is looked for. A torn write leaves less than a batch behind it.
const TAIL_BYTES: u64 = 1 << 20;

/// How every chain begins.
const FIRST_BYTES: &[u8] = b"{\"seq\":1,";

/// Why the audit file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditOpenError {
    #[error("{}: another process writes this audit file; end it, or name another file as `audit.path`", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: is no audit file, or is damaged at its end; move it away, or name another file as `audit.path`", .path.display())]
    Foreign { path: PathBuf },
    #[error("{}: {source}; `audit.path` names a file that the gateway may write to", .path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The place of the lines.
#[derive(Debug)]
pub(super) struct AuditSink {
    path: PathBuf,
    kind: SinkKind,
    /// The chain that the lines continue.
    pub(super) end: ChainEnd,
    /// The bytes of an incomplete last line, which was cut off.
    pub(super) torn_bytes: u64,
}

#[derive(Debug)]
enum SinkKind {
    /// Locked by this process. The number is the length of the whole lines, if a write has failed since.
    Regular(File, Option<u64>),
    /// A pipe or a device. Opened by the first write, which may wait for a reader; each process begins a chain.
    Stream(Option<File>),
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
        let (end, torn_bytes) =
            whole_lines(&file).map_err(failed)?.ok_or_else(|| AuditOpenError::Foreign { path: path.clone() })?;
        Ok(Self { path, kind: SinkKind::Regular(file, None), end, torn_bytes })
    }

    /// Appends whole lines. After a failure the file ends with the lines before, now or at the next attempt.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.kind {
            SinkKind::Regular(file, broken_at) => {
                if let Some(whole) = *broken_at {
                    file.set_len(whole)?;
                    *broken_at = None;
                }
                let whole = file.metadata()?.len();
                file.write_all(lines).inspect_err(|_| {
                    *broken_at = Some(whole).filter(|whole| file.set_len(*whole).is_err());
                })
            }
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

    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.kind {
            SinkKind::Regular(file, _) => file.sync_data(),
            SinkKind::Stream(_) => Ok(()),
        }
    }

    /// Opens the path again; returns whether it names another file now. Fails if that file has lines, or another writer.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        let SinkKind::Regular(file, _) = &self.kind else { return Ok(false) };
        let identity = |file: &File| file.metadata().map(|found| system::identity(&found));
        // An unchanged file is not opened a second time, and a missing one not created by the comparison.
        if fs::metadata(&self.path).is_ok_and(|found| identity(file).is_ok_and(|own| own == system::identity(&found))) {
            return Ok(false);
        }
        let next = locked(&self.path)?.ok_or_else(|| io::Error::other("another process writes this file"))?;
        if next.metadata()?.len() > 0 {
            return Err(io::Error::other("the file that took its place is not empty"));
        }
        file.sync_data()?;
        self.kind = SinkKind::Regular(next, None);
        Ok(true)
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

/// The end of a file's chain, and how many bytes behind it were cut off; `None` if its last whole line is no record.
fn whole_lines(mut file: &File) -> io::Result<Option<(ChainEnd, u64)>> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    let Some(line_end) = memchr::memrchr(b'\n', &tail) else {
        // Not a single whole line: only the beginning of a record is cut off.
        let known = tail.len().min(FIRST_BYTES.len());
        let is_torn = length < LINE_BYTES_MAX as u64 && tail[..known] == FIRST_BYTES[..known];
        if is_torn {
            file.set_len(0)?;
        }
        return Ok(is_torn.then_some((ChainEnd::default(), length)));
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
            let sink = AuditSink::open(&path).unwrap();
            let (whole, end) = *ends.iter().rev().find(|(whole, _)| *whole <= length).unwrap();
            assert_eq!((sink.end, sink.torn_bytes), (end, (length - whole) as u64), "{length}");
            assert_eq!(fs::read(&path).unwrap(), text[..whole], "{length}");
            assert!(matches!(AuditSink::open(&path), Err(AuditOpenError::Locked { .. })), "two writers");
        }
    }

    #[test]
    fn another_text_is_no_audit_file_and_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        let long = "{\"seq\":1,".repeat(LINE_BYTES_MAX);
        for text in ["x", "hello\n", "{}\n", "{\"seq\":1}\n{", "\n", long.as_str()] {
            fs::write(&path, text).unwrap();
            assert!(matches!(AuditSink::open(&path), Err(AuditOpenError::Foreign { .. })), "{text:.20}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
