//! Writes digests of audit lines to the anchor, in a separate thread: a share or a pipe that blocks delays no record.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::record::ChainEnd;
use crate::system;
use crate::task::digest::hex;

/// Digests that wait while they cannot be written. Further ones are dropped.
const WAITING_MAX: usize = 1_000;
const RETRY: Duration = Duration::from_secs(1);
/// How long the end of the gateway waits for the last digests.
const CLOSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct AnchorWriter {
    digests: SyncSender<ChainEnd>,
    /// Disconnected once the thread has ended.
    thread: Receiver<()>,
}

impl AnchorWriter {
    pub(super) fn start(anchor: AuditAnchor, audit_file: PathBuf) -> io::Result<Self> {
        let ((digests, waiting), (running, thread)) = (sync_channel(WAITING_MAX), sync_channel(0));
        std::thread::Builder::new().name("anchor".to_owned()).spawn(move || {
            write_all(&anchor, &audit_file, &waiting);
            drop::<SyncSender<()>>(running);
        })?;
        Ok(Self { digests, thread })
    }

    pub(super) fn add(&self, end: ChainEnd) {
        let _ = self.digests.try_send(end);
    }

    /// Tries once more to write the digests that wait.
    pub(super) fn close(self) {
        drop(self.digests);
        if self.thread.recv_timeout(CLOSE_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("`audit.anchor` blocks: the last digests of audit lines were not written");
        }
    }
}

/// Writes digests until no more can come. Failed writes are repeated each second, and logged once.
fn write_all(anchor: &AuditAnchor, audit_file: &Path, waiting: &Receiver<ChainEnd>) {
    let (mut ends, mut is_failing) = (Vec::new(), false);
    loop {
        let next =
            if ends.is_empty() { waiting.recv().map_err(RecvTimeoutError::from) } else { waiting.recv_timeout(RETRY) };
        let is_over = matches!(next, Err(RecvTimeoutError::Disconnected));
        ends.extend(next.into_iter().chain(waiting.try_iter()));
        ends.truncate(WAITING_MAX);
        let written = if ends.is_empty() { Ok(()) } else { anchor.write(&mut ends, audit_file) };
        match written {
            Ok(()) if std::mem::take(&mut is_failing) => {
                tracing::info!("digests of audit lines are written to `audit.anchor` again");
            }
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                let file = anchor.path().display();
                tracing::error!(%error, %file, "digests of audit lines cannot be written to `audit.anchor`; they are tried again each second");
            }
            Ok(()) | Err(_) => (),
        }
        if is_over {
            return;
        }
    }
}

/// Facility "log audit", severity "informational" (RFC 5424, §6.2.1).
const SYSLOG_PRIORITY: u8 = 13 * 8 + 6;

/// The place of the digests that `audit verify --anchor` compares with the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnchor {
    File(PathBuf),
    Syslog(PathBuf),
}

impl AuditAnchor {
    pub fn path(&self) -> &Path {
        let (Self::File(path) | Self::Syslog(path)) = self;
        path
    }

    /// Writes the digests, and removes the written ones from the list. Never waits for a daemon (SEC-80) or the reader of a pipe.
    fn write(&self, ends: &mut Vec<ChainEnd>, audit_file: &Path) -> io::Result<()> {
        match self {
            Self::File(path) => {
                let text: String = ends.iter().map(|end| format!("{} {}\n", end.seq, hex(&end.digest))).collect();
                append_lines(path, text)?;
                ends.clear();
            }
            Self::Syslog(socket) => {
                while let Some(ChainEnd { seq, digest }) = ends.first() {
                    // As syslog(3) writes it, but without the time, which the daemon adds: journald does not read the form of RFC 5424 here.
                    let (process, digest) = (std::process::id(), hex(digest));
                    let line = format!(
                        "<{SYSLOG_PRIORITY}>taskgate[{process}]: audit anchor {seq} {digest} of {audit_file:?}"
                    );
                    system::send_datagram(socket, line.as_bytes())?;
                    ends.remove(0);
                }
            }
        }
        Ok(())
    }
}

/// Appends lines behind an incomplete one of a failed write or a killed process. Nothing is cut off: the file may be append-only.
fn append_lines(path: &Path, mut lines: String) -> io::Result<()> {
    let mut file = system::append_without_waiting(path)?;
    // A pipe can be neither read nor synced.
    let is_regular = file.metadata()?.is_file();
    if is_regular && last_byte(path).is_ok_and(|last| last != b'\n') {
        lines.insert(0, '\n');
    }
    file.write_all(lines.as_bytes())?;
    if is_regular { file.sync_data() } else { Ok(()) }
}

/// Fails if the file is empty or may only be written, as on some shares: its last line then counts as complete.
fn last_byte(path: &Path) -> io::Result<u8> {
    let (mut file, mut last) = (File::open(path)?, [0]);
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that failed, or a process that was killed, left a part of a line.
    #[test]
    fn anchors_are_appended_behind_an_incomplete_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.anchor");
        for line in ["1 aa\n", "1000 bb\n"] {
            append_lines(&path, line.to_owned()).unwrap();
        }
        let whole = std::fs::read_to_string(&path).unwrap();
        assert_eq!(whole, "1 aa\n1000 bb\n");
        std::fs::write(&path, &whole[..whole.len() - 2]).unwrap();
        append_lines(&path, "1000 bb\n".to_owned()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1 aa\n1000 b\n1000 bb\n");
    }
}
