//! Opens and locks the store's folder: private, on a durable medium, used by one process.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::OpenError;
use crate::system::{self, OwnersAlone as _};
pub(super) use crate::system::{DiskSpace, space};

const LOCK: &str = "tasks.lock";
const BALLAST: &str = "tasks.ballast";

const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Size of the file that is removed when the disk is full, so that running tasks can finish (F53).
pub(super) const BALLAST_BYTES: u64 = 32 << 20;

/// New tasks are refused below this, on disks of any size (F53).
const FREE_BYTES_MIN: u64 = 64 << 20;
/// New tasks are refused below one part in this many.
const FREE_SHARE_MIN: u64 = 20;
/// New tasks are accepted above this, on disks of any size.
const FREE_BYTES_ENOUGH: u64 = 1 << 30;

impl DiskSpace {
    pub(super) fn is_low(self) -> bool {
        self.free < self.wanted()
    }

    pub(super) fn wanted(self) -> u64 {
        (self.all / FREE_SHARE_MIN).clamp(FREE_BYTES_MIN, FREE_BYTES_ENOUGH)
    }

    pub(super) fn has_room_for_ballast(self) -> bool {
        let left = self.free.saturating_sub(2 * BALLAST_BYTES);
        !Self { free: left, all: self.all }.is_low()
    }
}

pub(super) fn prepare(folder: &Path) -> Result<(), OpenError> {
    let wrong = |source| OpenError::Folder { path: folder.to_owned(), source };
    if !folder.exists() {
        let made: Vec<&Path> = folder.ancestors().take_while(|at| !at.as_os_str().is_empty() && !at.exists()).collect();
        DirBuilder::new().owners_alone().recursive(true).create(folder).map_err(wrong)?;
        for parent in made.into_iter().filter_map(Path::parent) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            match File::open(parent).and_then(|parent| parent.sync_all()) {
                // The parent may be writable but not readable.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(folder = %parent.display(), %error, "a new folder in it may not be on the disk yet");
                }
                // A folder that is not synced in its parent is lost in a power cut, with its contents.
                synced => synced.map_err(wrong)?,
            }
        }
    }
    examine(folder)
}

/// Adds a `.gitignore`, so that no repository takes up the key and the results. Nothing depends on that file.
pub(super) fn prepare_for_gateway(folder: &Path, database: &Path) -> Result<(), OpenError> {
    prepare(folder)?;
    if !database.exists() {
        let file = OpenOptions::new().write(true).create_new(true).owners_alone().open(folder.join(".gitignore"));
        let _ = file.and_then(|mut file| file.write_all(b"*\n"));
    }
    Ok(())
}

/// Checks that an existing folder is usable; a missing one is no error.
pub(super) fn examine(folder: &Path) -> Result<(), OpenError> {
    examine_for(folder, system::check_access)
}

/// Checks that an existing folder can be read, also on a read-only disk; a missing one is no error.
pub(super) fn examine_for_reading(folder: &Path) -> Result<(), OpenError> {
    examine_for(folder, system::check_reading)
}

fn examine_for(folder: &Path, check: fn(&Path) -> io::Result<()>) -> Result<(), OpenError> {
    let wrong = |source| OpenError::Folder { path: folder.to_owned(), source };
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => check(folder).map_err(wrong),
        Ok(_) => Err(wrong(io::ErrorKind::NotADirectory.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(wrong(error)),
    }
}

/// Whether any user of the machine can replace files in a folder.
pub(super) fn is_open_to_all(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|found| system::mode(&found) & 0o1002 == 0o002)
}

/// Memory or a network (B171), which does not keep files or lock them reliably. `None` for a disk.
#[cfg(target_os = "linux")]
pub(super) fn unfit_medium(folder: &Path) -> Option<&'static str> {
    // The nearest existing folder decides, since the rest would be created in it.
    let found = folder.ancestors().map(|at| if at.as_os_str().is_empty() { Path::new(".") } else { at });
    let found = found.into_iter().find_map(|at| rustix::fs::statfs(at).ok())?;
    // The numbers are the kernel's, and 32 bits wide; the field's width differs between platforms.
    match u32::try_from(found.f_type & 0xffff_ffff).unwrap_or(0) {
        0x0102_1994 | 0x8584_58f6 => Some("in memory (tmpfs)"),
        0x6969 => Some("on a network (NFS)"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some("on a network (SMB)"),
        0x0102_1997 => Some("on a network (9p)"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn unfit_medium(_folder: &Path) -> Option<&'static str> {
    None
}

/// Locks the folder itself, as a lock file can be removed, and the lock file of old versions, until the process ends.
#[derive(Debug)]
pub(super) struct FolderLock(#[expect(dead_code, reason = "held, not read: closing it unlocks the folder")] Vec<File>);

/// Waits for at most `patience`, as an earlier process may be about to end (B171).
pub(super) async fn lock(folder: &Path, patience: Duration) -> Result<FolderLock, OpenError> {
    let path = folder.join(LOCK);
    let wrong = |source| OpenError::Folder { path: path.clone(), source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).owners_alone().open(&path);
    let files = [file.map_err(wrong)?, File::open(folder).map_err(wrong)?];
    let mut is_logged = false;
    let taken = async {
        for file in &files {
            while !try_lock(file).map_err(wrong)? {
                if !std::mem::replace(&mut is_logged, true) {
                    let (folder, seconds) = (folder.display(), patience.as_secs());
                    tracing::info!(%folder, seconds, "another gateway has the store; waiting for it to end");
                }
                tokio::time::sleep(LOCK_PAUSE).await;
            }
        }
        Ok(())
    };
    match tokio::time::timeout(patience, taken).await {
        Ok(outcome) => outcome.map(|()| FolderLock(files.into())),
        Err(_) => Err(OpenError::Locked { path: folder.to_owned() }),
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        // Network file systems may support locks on files only.
        Err(TryLockError::Error(error)) if system::is_no_lock(&error) && file.metadata()?.is_dir() => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a process has the store open. Creates nothing.
pub(super) fn is_locked(folder: &Path) -> bool {
    [folder.join(LOCK), folder.to_owned()]
        .iter()
        .any(|path| File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))))
}

#[derive(Clone, Debug)]
pub(super) struct Ballast {
    path: PathBuf,
}

impl Ballast {
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.join(BALLAST) }
    }

    pub(super) fn is_there(&self) -> bool {
        // Does not follow a link to another file.
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file() && found.len() == BALLAST_BYTES)
    }

    /// Reserves the space. Removes a partly allocated file.
    pub(super) fn lay_down(&self) -> io::Result<()> {
        self.drop_it()?;
        let file = OpenOptions::new().write(true).create_new(true).owners_alone().open(&self.path)?;
        let taken = system::reserve(&file, BALLAST_BYTES);
        if taken.is_err() {
            self.drop_it()?;
        }
        taken
    }

    /// Frees the space; returns whether there was any.
    pub(super) fn drop_it(&self) -> io::Result<bool> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
