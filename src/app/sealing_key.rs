//! Creates the sealing key's file once, and reads it later: concurrent gateways get the same key. See [`SealingKeys`].

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::face::sealed::{KeyError, SealingKeys};
use crate::random;
use crate::secret_file::{self, SecretFileError};
use crate::system::OwnersAlone as _;

pub const FILE_NAME: &str = "seal.key";
/// More than a full key ring needs.
const FILE_BYTES_MAX: usize = 64 << 10;

/// Why the folder yields no key. Names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: SecretFileError },
    #[error("{}: {source}", .path.display())]
    Content { path: PathBuf, source: KeyError },
    #[error("{}: is not a file; remove it, and a key file is created in its place", .path.display())]
    NoFile { path: PathBuf },
    #[error("{}: is larger than 64KiB; a key is a line of 64 hex digits", .path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: cannot be created: {source}; name another folder as `store.path`", .path.display())]
    NotMade { path: PathBuf, source: io::Error },
}

impl KeyFileError {
    /// Whether the folder is not writable, and no file in it is at fault: a process that keeps nothing needs no file.
    pub fn is_folder_unwritable(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};

        let Self::NotMade { source, .. } = self else { return false };
        [PermissionDenied, ReadOnlyFilesystem, StorageFull, QuotaExceeded].contains(&source.kind())
    }
}

pub(super) fn file_in(folder: &Path) -> PathBuf {
    folder.join(FILE_NAME)
}

/// The keys in `folder`; `None` without a key file. Writes nothing.
pub fn read(folder: &Path) -> Result<Option<SealingKeys>, KeyFileError> {
    let path = file_in(folder);
    let text = match secret_file::read(&path, "key", FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(SecretFileError::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(SecretFileError::NoFile) => return Err(KeyFileError::NoFile { path }),
        Err(SecretFileError::TooLarge { .. }) => return Err(KeyFileError::TooLarge { path }),
        Err(source @ (SecretFileError::Unreadable(_) | SecretFileError::Exposed { .. })) => {
            return Err(KeyFileError::File { path, source });
        }
    };
    // Bytes that are no text are no hex digits.
    SealingKeys::parse(&String::from_utf8_lossy(&text))
        .map(Some)
        .map_err(|source| KeyFileError::Content { path, source })
}

/// The keys in `folder`, which are generated if there are none.
pub fn read_or_make(folder: &Path) -> Result<SealingKeys, KeyFileError> {
    if let Some(ring) = read(folder)? {
        return Ok(ring);
    }
    let path = file_in(folder);
    let made = make(folder, &path);
    made.map_err(|source| KeyFileError::NotMade { path: path.clone(), source })?;
    // Another gateway that starts now may have been first; the file decides.
    let source = SecretFileError::Unreadable(io::ErrorKind::NotFound.into());
    let gone = || KeyFileError::File { path, source };
    read(folder)?.ok_or_else(gone)
}

/// A key for this process only.
pub fn ephemeral() -> SealingKeys {
    SealingKeys::ephemeral(random::key())
}

/// Creates the key file complete or not at all, and never replaces one: a hard link fails if the name exists.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    DirBuilder::new().owners_alone().recursive(true).create(folder)?;
    let mut tag = [0; 8];
    getrandom::fill(&mut tag)?;
    let draft = folder.join(format!("{FILE_NAME}.{:016x}", u64::from_be_bytes(tag)));
    let linked = write(&draft, &ephemeral().to_text()).and_then(|()| fs::hard_link(&draft, path));
    // Until here a created key has a second name. A leftover draft is harmless.
    let _ = fs::remove_file(&draft);
    match linked {
        // The name must survive a crash as the content does.
        Ok(()) => File::open(folder)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).owners_alone().open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn put(folder: &Path, content: &[u8], mode: u32) {
        let path = folder.join(FILE_NAME);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// SEC-13.
    #[test]
    fn the_first_start_makes_a_key_for_the_owner_alone_and_the_next_one_reads_it() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("a/b");
        assert_eq!(read(&folder).unwrap(), None, "looking makes nothing");
        assert!(!folder.exists());
        let made = read_or_make(&folder).unwrap();
        assert_eq!((mode_of(&folder), mode_of(&folder.join(FILE_NAME))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no draft is left");
        assert_eq!(read_or_make(&folder).unwrap(), made);
        assert_eq!(read(&folder).unwrap().as_ref(), Some(&made));
        assert_ne!(read_or_make(&outer.path().join("c")).unwrap(), made);
        assert_ne!(ephemeral(), ephemeral());
    }

    #[test]
    fn gateways_that_start_at_once_agree_on_one_key() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("shared");
        let barrier = Barrier::new(8);
        let start = || {
            barrier.wait();
            read_or_make(&folder).unwrap()
        };
        let rings: Vec<SealingKeys> = thread::scope(|scope| {
            let starting: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(rings.iter().all(|ring| *ring == rings[0]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[track_caller]
    fn check(content: &[u8], mode: u32, refusal: &str) {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), content, mode);
        let refused = read_or_make(folder.path()).unwrap_err();
        assert_eq!(refused.to_string(), format!("{}/{refusal}", folder.path().display()));
        assert!(!refused.is_folder_unwritable());
        assert_eq!(fs::read(folder.path().join(FILE_NAME)).unwrap(), content, "it is left as it is");
    }

    #[test]
    fn an_invalid_key_file_is_refused_with_the_remedy() {
        let key = "5a".repeat(32);
        let key = key.as_bytes();
        let wanted = "a key is a line of 64 hex digits";
        let exposed = "others than its owner may use it";
        let advice = "change that to 0600, and the key if they may have read it";
        check(key, 0o640, &format!("seal.key: {exposed} (mode 0640); {advice}"));
        check(key, 0o604, &format!("seal.key: {exposed} (mode 0604); {advice}"));
        check(b"", 0o600, &format!("seal.key: has no key; {wanted}"));
        check(&key[1..], 0o600, &format!("seal.key: line 1 has 63 characters; {wanted}"));
        check(&[key, b"\n", &key[1..], b"x"].concat(), 0o600, {
            "seal.key: line 2 has characters that are not hex digits; a key is a line of 64 of 0 to 9 and a to f"
        });
        check(&[0xff; 64], 0o600, {
            "seal.key: line 1 has characters that are not hex digits; a key is a line of 64 of 0 to 9 and a to f"
        });
        check(&vec![b'\n'; 70_000], 0o600, &format!("seal.key: is larger than 64KiB; {wanted}"));
    }

    #[test]
    fn another_kind_of_file_at_the_place_of_the_file_or_folder_is_a_mistake() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("folder");
        fs::create_dir_all(folder.join(FILE_NAME)).unwrap();
        assert!(matches!(read_or_make(&folder), Err(KeyFileError::NoFile { .. })));
        let file = outer.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = read_or_make(&file).unwrap_err();
        assert!(!refused.is_folder_unwritable(), "{refused}");
    }

    #[test]
    fn only_a_folder_that_cannot_be_written_is_done_without() {
        for (kind, lacks_a_place) in [
            (io::ErrorKind::PermissionDenied, true),
            (io::ErrorKind::ReadOnlyFilesystem, true),
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::QuotaExceeded, true),
            (io::ErrorKind::NotADirectory, false),
            (io::ErrorKind::InvalidInput, false),
        ] {
            let not_made = KeyFileError::NotMade { path: PathBuf::from(FILE_NAME), source: kind.into() };
            assert_eq!(not_made.is_folder_unwritable(), lacks_a_place, "{kind}");
            let source = SecretFileError::Unreadable(kind.into());
            let unreadable = KeyFileError::File { path: PathBuf::from(FILE_NAME), source };
            assert!(!unreadable.is_folder_unwritable(), "a key that is there is not ignored");
        }
    }
}
