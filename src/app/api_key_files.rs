//! Reads API keys from their files.

use std::path::{Path, PathBuf};

use crate::secret_file::{self, SecretFileError};
use crate::server::api_keys::{ApiKey, ApiKeyError, ApiKeySettings, ApiKeys, KEY_LEN_MAX, KeyPlace, KeySource};

/// Room for a line end or two after the key.
const FILE_BYTES_MAX: usize = KEY_LEN_MAX + 16;

/// Why a key cannot be used. Never contains the key.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyFileError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: SecretFileError },
    #[error("{}: {source}", .path.display())]
    Content { path: PathBuf, source: ApiKeyError },
    #[error("another key has the ID {id}; give each key a different one")]
    Twice { id: String },
}

/// Reads all keys of the settings. Unusable keys are returned under their configuration key.
pub(super) fn read(settings: &[ApiKeySettings]) -> (ApiKeys, Vec<(KeyPlace, ApiKeyFileError)>) {
    let (mut keys, mut wrong) = (ApiKeys::default(), Vec::new());
    for one in settings {
        let read = match &one.source {
            KeySource::Known(key) => Ok(key.clone()),
            KeySource::File(path) => read_file(path),
        };
        let added = read.and_then(|key| {
            keys.add(key, &one.caller).map_err(|twice| ApiKeyFileError::Twice { id: twice.id().to_owned() })
        });
        wrong.extend(added.err().map(|error| (one.place.clone(), error)));
    }
    (keys, wrong)
}

/// B168, B169.
fn read_file(path: &Path) -> Result<ApiKey, ApiKeyFileError> {
    let held = secret_file::read(path, "key", FILE_BYTES_MAX);
    let held = held.map_err(|source| ApiKeyFileError::File { path: path.to_owned(), source })?;
    // Bytes that are no text cannot be a key.
    let text = String::from_utf8_lossy(&held);
    ApiKey::read(text.trim_end()).map_err(|source| ApiKeyFileError::Content { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::task::{Caller, Principal};

    #[test]
    fn b168_b169_a_key_file_is_its_owners_alone_and_holds_one_strong_key() {
        let folder = tempfile::tempdir().unwrap();
        let strong = "tg_a1_0123456789abcdef0123456789abcdef";
        for (content, mode, expected) in [
            (format!("{strong}\n"), 0o600, "fine"),
            (strong.to_owned(), 0o400, "fine"),
            (strong.to_owned(), 0o640, "others than its owner may use it (mode 0640)"),
            (strong.to_owned(), 0o604, "others than its owner may use it (mode 0604)"),
            ("tg_a1_short\n".to_owned(), 0o600, "is a key with a secret of less than 128 bits"),
            (format!("{strong}\n{strong}\n"), 0o600, "is no key"),
            (String::new(), 0o600, "is no key"),
        ] {
            let path = folder.path().join("key");
            let _ = fs::remove_file(&path);
            fs::write(&path, &content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = read_file(&path).map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(found.contains(expected), "{content:?}: {found}");
            assert!(!found.contains("0123456789abcdef"), "{found}");
        }
    }

    #[test]
    fn b168_all_unusable_keys_are_named_at_once() {
        let key = ApiKey::read("tg_a1_0123456789abcdef0123456789abcdef").unwrap();
        let of = |source, place: &str| ApiKeySettings {
            caller: Caller::of(Principal::new("key:ada")),
            source,
            place: place.to_owned().into(),
        };
        let missing = KeySource::File(PathBuf::from("/nowhere/key"));
        let (keys, wrong) =
            read(&[of(KeySource::Known(key.clone()), "a"), of(missing, "b"), of(KeySource::Known(key), "c")]);
        let places: Vec<_> = wrong.iter().map(|(place, _)| place.key.as_str()).collect();
        assert_eq!((keys.len(), places), (1, vec!["b", "c"]));
    }
}
