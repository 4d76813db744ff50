//! Writes digests of audit lines elsewhere: to a file, or to the system's log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::record::ChainEnd;
use crate::system::{self, OwnersAlone as _};
use crate::task::digest::hex;

/// Facility "log audit", severity "informational" (RFC 5424, §6.2.1).
const SYSLOG_PRIORITY: u8 = 13 * 8 + 6;

/// The place of the digests that `audit verify --anchor` compares with the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditAnchor {
    File(PathBuf),
    /// The socket of a syslog daemon.
    Syslog(PathBuf),
}

impl AuditAnchor {
    pub fn path(&self) -> &Path {
        let (Self::File(path) | Self::Syslog(path)) = self;
        path
    }

    /// Writes the digests, and removes the written ones from the list. Never waits for the daemon (SEC-80).
    pub(super) fn write(&self, ends: &mut Vec<ChainEnd>, audit_file: &Path) -> io::Result<()> {
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

/// Appends lines, behind an incomplete one of a write that failed or of a process that was killed. Nothing is cut off: the file may
/// be append-only, or another gateway's, too.
fn append_lines(path: &Path, mut lines: String) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).owners_alone().open(path)?;
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
