//! Files that hold secrets: read if they are their owner's alone and small enough (B168).

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// What nobody but the owner may have.
const OTHERS: u32 = 0o077;
/// The bits of a mode that are about who may do what.
const MODE_BITS: u32 = 0o7777;

/// Why a file is of no use. Never shows what it holds; who reads it knows its name.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is no file")]
    NoFile,
    /// `what` is what the file holds.
    #[error(
        "others than its owner may use it (mode {mode:04o}); change that to 0600, and the {what} if they may have read it"
    )]
    Exposed { mode: u32, what: &'static str },
    #[error("is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
}

/// What a file holds, which is a `what`.
///
/// # Errors
/// If it cannot be read, is no file, can be used by others than its owner, or is larger than `bytes_max`.
pub fn read(path: &Path, what: &'static str, bytes_max: usize) -> Result<Vec<u8>, SecretFileError> {
    // Opening a pipe would wait for whoever writes to it.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    // Of the open file: the name may mean another one by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(SecretFileError::NoFile);
    }
    let mode = metadata.mode() & MODE_BITS;
    if mode & OTHERS != 0 {
        return Err(SecretFileError::Exposed { mode, what });
    }
    let mut held = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut held)?;
    if held.len() > bytes_max {
        return Err(SecretFileError::TooLarge { bytes_max });
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn b168_a_secret_is_its_owners_alone_and_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let advice = "change that to 0600, and the key if they may have read it";
        for (content, mode, expected) in [
            ("12345678", 0o600, "12345678".to_owned()),
            ("", 0o400, String::new()),
            ("1", 0o640, format!("others than its owner may use it (mode 0640); {advice}")),
            ("1", 0o604, format!("others than its owner may use it (mode 0604); {advice}")),
            ("1", 0o610, format!("others than its owner may use it (mode 0610); {advice}")),
            ("123456789", 0o600, "is larger than 8 bytes".to_owned()),
        ] {
            let path = folder.path().join("secret");
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = read(&path, "key", 8);
            let found =
                found.map_or_else(|error| error.to_string(), |held| String::from_utf8_lossy(&held).into_owned());
            assert_eq!(found, expected, "{content:?} {mode:o}");
        }
        assert_eq!(read(folder.path(), "key", 8).unwrap_err().to_string(), "is no file");
        assert!(read(Path::new("/nowhere"), "key", 8).unwrap_err().to_string().starts_with("cannot be read: "));
    }
}
