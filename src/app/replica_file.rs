//! Stores the replica's last incarnation in its folder, and locks out a second process. The lock proves that the
//! earlier process ended: its tasks are taken over. The file reveals another database.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::cause::CauseChain;
use crate::replica::{Incarnation, StoreGeneration};
use crate::store::postgres::PriorIncarnation;
use crate::system::OwnersAlone as _;

/// An incarnation that no store has.
const UNKNOWN: Incarnation = Incarnation(i64::MAX.unsigned_abs());
/// More than is ever written.
const BYTES_MAX: u64 = 256;

#[derive(Debug, thiserror::Error)]
pub enum ReplicaFileError {
    #[error("another process runs as this replica: it holds {}", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: was not written by a gateway; remove it once no gateway of this name runs", .path.display())]
    Content { path: PathBuf },
}

impl ReplicaFileError {
    /// Whether the folder is not writable, and no file in it is at fault.
    pub(super) fn is_lack_of_a_place(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, Self::File { source, .. } if [PermissionDenied, ReadOnlyFilesystem].contains(&source.kind()))
    }
}

#[derive(Debug)]
pub(super) struct ReplicaFile {
    path: PathBuf,
    file: File,
    /// Whether the file records a loss of acknowledged writes. Such a file is kept.
    is_loss: bool,
    /// Whether the last write failed.
    is_behind: bool,
}

impl ReplicaFile {
    /// Locks replica `name`'s file, made if missing, and reads its earlier incarnation. Fails if locked or foreign.
    pub(super) fn lock(folder: &Path, name: &str) -> Result<(Self, Option<PriorIncarnation>), ReplicaFileError> {
        let path = folder.join(format!("{name}.replica"));
        let failed = |source| ReplicaFileError::File { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).owners_alone();
        let file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(ReplicaFileError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut text = String::new();
        (&file).take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let prior = match text.trim() {
            "" => None,
            // A process killed during a write may have left the end of a longer text after the first line.
            text => {
                let prior = text.lines().next().and_then(read);
                Some(prior.ok_or_else(|| ReplicaFileError::Content { path: path.clone() })?)
            }
        };
        Ok((Self { path, file, is_loss: false, is_behind: false }, prior))
    }

    /// Writes the incarnation and its last heartbeat. If the write is lost, the lease decides, or an earlier heartbeat.
    pub(super) fn remember(&mut self, prior: PriorIncarnation) -> Result<(), ReplicaFileError> {
        if self.is_loss {
            return Ok(());
        }
        let text = format!("{} {} {}\n", Uuid::from_u128(prior.generation.0), prior.holder, prior.heartbeat);
        let written = self.file.rewind().and_then(|()| self.file.write_all(text.as_bytes()));
        let written = written.and_then(|()| self.file.set_len(text.len() as u64));
        written.map_err(|source| ReplicaFileError::File { path: self.path.clone(), source })
    }

    /// As [`Self::remember`]; logs the first of consecutive failures.
    pub(super) fn remember_or_warn(&mut self, prior: PriorIncarnation) {
        let written = self.remember(prior);
        if let (Err(error), false) = (&written, self.is_behind) {
            tracing::warn!(error = %CauseChain(error), "the next start may not notice that its database is older");
        }
        self.is_behind = written.is_err();
    }

    /// Records that the store lost acknowledged writes: the next start treats it as another store or an older one.
    pub(super) fn remember_loss(&mut self, prior: PriorIncarnation) {
        if let Err(error) = self.remember(PriorIncarnation { holder: UNKNOWN, ..prior }) {
            tracing::warn!(error = %CauseChain(&error), "the next start may use a store that lost acknowledged writes");
        }
        self.is_loss = true;
    }
}

#[cfg(test)]
impl ReplicaFile {
    /// Waits for the lock: a program that another test starts has all open files between fork and exec.
    pub(super) fn unlocked(folder: &Path, name: &str) -> (Self, Option<PriorIncarnation>) {
        for _ in 0..1_000 {
            match Self::lock(folder, name) {
                Err(ReplicaFileError::Locked { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
                locked => return locked.unwrap(),
            }
        }
        panic!("the file stays locked");
    }
}

fn read(text: &str) -> Option<PriorIncarnation> {
    let (generation, prior) = text.split_once(' ')?;
    let generation = StoreGeneration(Uuid::parse_str(generation).ok()?.as_u128());
    // Earlier versions wrote no heartbeat.
    let (holder, heartbeat) = prior.split_once(' ').unwrap_or((prior, "0"));
    Some(PriorIncarnation { generation, holder: Incarnation(holder.parse().ok()?), heartbeat: heartbeat.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: PriorIncarnation =
        PriorIncarnation { generation: StoreGeneration(7), holder: Incarnation(41), heartbeat: 17 };

    #[test]
    fn the_next_process_finds_the_life_that_was_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, prior) = ReplicaFile::lock(folder.path(), "a").unwrap();
        assert_eq!(prior, None);
        file.remember(PriorIncarnation { holder: Incarnation(123_456), ..PRIOR }).unwrap();
        file.remember(PRIOR).unwrap();
        assert!(matches!(ReplicaFile::lock(folder.path(), "a"), Err(ReplicaFileError::Locked { .. })));
        assert!(ReplicaFile::lock(folder.path(), "b").is_ok(), "another replica has another file");
        drop(file);
        let (mut file, prior) = ReplicaFile::unlocked(folder.path(), "a");
        assert_eq!(prior, Some(PRIOR));
        file.remember_loss(PRIOR);
        drop(file);
        let prior = ReplicaFile::unlocked(folder.path(), "a").1.unwrap();
        assert!(prior.holder > PRIOR.holder && prior.generation == PRIOR.generation, "{prior:?}");
    }

    #[test]
    fn a_loss_that_was_written_down_is_not_written_over_by_the_same_process() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = ReplicaFile::lock(folder.path(), "a").unwrap();
        file.remember_loss(PRIOR);
        file.remember(PRIOR).unwrap();
        drop(file);
        let prior = ReplicaFile::unlocked(folder.path(), "a").1.unwrap();
        assert!(prior.holder > PRIOR.holder, "{prior:?}");
    }

    #[test]
    fn a_file_of_an_earlier_version_says_no_beat() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.replica"), "00000000-0000-0000-0000-000000000007 41\n").unwrap();
        let prior = ReplicaFile::lock(folder.path(), "a").unwrap().1;
        assert_eq!(prior, Some(PriorIncarnation { heartbeat: 0, ..PRIOR }));
    }

    /// As a process leaves it that is killed between its write and the cut behind it.
    #[test]
    fn the_rest_of_a_longer_text_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = "00000000-0000-0000-0000-000000000007 41 17\n6 99\n";
        std::fs::write(folder.path().join("a.replica"), text).unwrap();
        assert_eq!(ReplicaFile::lock(folder.path(), "a").unwrap().1, Some(PRIOR));
    }

    #[test]
    fn a_folder_without_room_for_it_is_told_from_a_file_that_is_wrong() {
        let of = |kind: io::ErrorKind| ReplicaFileError::File { path: PathBuf::from("a.replica"), source: kind.into() };
        assert!(of(io::ErrorKind::ReadOnlyFilesystem).is_lack_of_a_place());
        assert!(of(io::ErrorKind::PermissionDenied).is_lack_of_a_place());
        assert!(!of(io::ErrorKind::InvalidData).is_lack_of_a_place());
        assert!(!ReplicaFileError::Content { path: PathBuf::from("a.replica") }.is_lack_of_a_place());
    }

    #[test]
    fn what_no_gateway_wrote_is_refused_and_left() {
        for text in [
            "x",
            "00000000-0000-0000-0000-000000000007",
            "00000000-0000-0000-0000-000000000007 -1",
            "00000000-0000-0000-0000-000000000007 1 x",
            "7 7 7",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.replica");
            std::fs::write(&path, text).unwrap();
            let refused = ReplicaFile::lock(folder.path(), "a");
            assert!(matches!(refused, Err(ReplicaFileError::Content { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
