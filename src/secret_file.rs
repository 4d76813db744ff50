//! Reads files with secrets, if only their owner may access them (B168).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::system;

/// Permissions that only the owner may have.
const OTHERS: u32 = 0o077;
/// The same for files of a service manager or of root, which their group may read.
const OTHERS_OF_GIVEN: u32 = 0o037;
const ROOT: u32 = 0;
/// The folder of credentials from a service manager (systemd's `LoadCredential=`).
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a file cannot be used. Never shows its content; the caller knows its name.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error("cannot be read: {}{}", .0, remedy(.0))]
    Unreadable(#[from] io::Error),
    #[error("is not a file")]
    NoFile,
    /// `what` names the content of the file.
    #[error(
        "others than its owner may use it (mode {mode:04o}); change that to 0600, and the {what} if they may have read it"
    )]
    Exposed { mode: u32, what: &'static str },
    #[error("is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
}

fn remedy(error: &io::Error) -> &'static str {
    let advice = "; the user that runs taskgate must own it (chown), and needs the right to enter each folder above it";
    if error.kind() == io::ErrorKind::PermissionDenied { advice } else { "" }
}

/// Reads a file that only its owner may access; errors name its content as `what`. The group may also read a service
/// manager's credential, and root's file if this process is not root's: orchestrators write such files.
pub fn read(path: &Path, what: &'static str, bytes_max: usize) -> Result<Vec<u8>, SecretFileError> {
    read_beside(path, std::env::var_os(CREDENTIALS).map(PathBuf::from).as_deref(), what, bytes_max)
}

fn read_beside(
    path: &Path,
    credentials: Option<&Path>,
    what: &'static str,
    bytes_max: usize,
) -> Result<Vec<u8>, SecretFileError> {
    let file = system::open_without_waiting(path)?;
    // The metadata of the open file: its path may lead to another one by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(SecretFileError::NoFile);
    }
    let mode = system::mode(&metadata);
    let is_given = credentials.is_some_and(|folder| lies_in(path, folder))
        || is_let_in_by_root(system::owner(&metadata), system::user());
    if is_exposed(mode, is_given) {
        return Err(SecretFileError::Exposed { mode, what });
    }
    let mut held = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut held)?;
    if held.len() > bytes_max {
        return Err(SecretFileError::TooLarge { bytes_max });
    }
    Ok(held)
}

const fn is_exposed(mode: u32, is_given: bool) -> bool {
    mode & if is_given { OTHERS_OF_GIVEN } else { OTHERS } != 0
}

/// Whether a process that could read a root file did so by its group.
const fn is_let_in_by_root(owner: u32, user: u32) -> bool {
    owner == ROOT && user != ROOT
}

/// Whether a file is directly in a folder, after resolving links of both.
fn lies_in(path: &Path, folder: &Path) -> bool {
    let holder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    folder.is_absolute() && holder.is_some() && holder == folder.canonicalize().ok()
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
        assert_eq!(read(folder.path(), "key", 8).unwrap_err().to_string(), "is not a file");
        assert!(read(Path::new("/nowhere"), "key", 8).unwrap_err().to_string().ends_with("(os error 2)"));
        let refused = SecretFileError::Unreadable(io::ErrorKind::PermissionDenied.into()).to_string();
        let advice = "runs taskgate must own it (chown), and needs the right to enter each folder above it";
        assert!(refused.starts_with("cannot be read: ") && refused.ends_with(advice), "{refused}");
    }

    /// A Kubernetes volume of secrets: root's, and with `fsGroup` of mode 0440.
    #[test]
    fn a_group_readable_file_of_root_is_accepted_by_another_users_process() {
        for (owner, user, mode, is_fine) in [
            (0, 1000, 0o440, true),
            (0, 1000, 0o640, true),
            (0, 1000, 0o660, false),
            (0, 1000, 0o444, false),
            (0, 0, 0o440, false),
            (1000, 1000, 0o440, false),
            (1001, 1000, 0o440, false),
            (1000, 1000, 0o400, true),
        ] {
            assert_eq!(!is_exposed(mode, is_let_in_by_root(owner, user)), is_fine, "{owner} {user} {mode:o}");
        }
    }

    /// A file of systemd's `LoadCredential=` has mode 0440.
    #[test]
    fn a_service_managers_credential_may_be_readable_by_its_group() {
        let (given, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (folder, mode, is_fine) in [
            (&given, 0o440, true),
            (&given, 0o400, true),
            (&given, 0o460, false),
            (&given, 0o444, false),
            (&other, 0o440, false),
        ] {
            let path = folder.path().join("secret");
            let _ = fs::remove_file(&path);
            fs::write(&path, "s").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = |credentials| read_beside(&path, credentials, "key", 8).is_ok();
            assert_eq!(read(Some(given.path())), is_fine, "{mode:o}");
            assert_eq!(read(None), mode == 0o400, "{mode:o}");
            assert_eq!(read(Some(Path::new("."))), mode == 0o400, "{mode:o}");
        }
        let below = given.path().join("below");
        fs::create_dir(&below).unwrap();
        assert!(!lies_in(&below.join("secret"), given.path()));
    }
}
