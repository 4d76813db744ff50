//! Finds the command that starts this program again.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Whether registries hold this program under its name. Else a launcher could fetch a stranger's: `install` uses none.
pub const IS_RELEASED: bool = false;

const PROGRAM: &str = if cfg!(windows) { "taskgate.exe" } else { "taskgate" };
/// The file that marks a folder as a cache.
const CACHE_TAG: &str = "CACHEDIR.TAG";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnCommand {
    /// `npx -y taskgate`: the program is in npm's cache, which may be emptied.
    Npx,
    /// `uvx taskgate`: the program is in uv's cache.
    Uvx,
    Path(PathBuf),
}

/// The command for the program at `exe`: its launcher if the path is in a launcher's cache, else the path.
pub fn own_command(exe: &Path) -> OwnCommand {
    let folders: Vec<_> = exe.parent().into_iter().flat_map(Path::iter).filter_map(|name| name.to_str()).collect();
    if folders.contains(&"_npx") {
        OwnCommand::Npx
    } else if exe.ancestors().skip(1).any(is_of_uvs_cache) {
        OwnCommand::Uvx
    } else {
        OwnCommand::Path(exe.to_owned())
    }
}

/// Whether this folder is in uv's cache, which may be anywhere (`UV_CACHE_DIR`), but has a tag.
fn is_of_uvs_cache(folder: &Path) -> bool {
    let is_named = folder.file_name().is_some_and(|name| name == "archive-v0" || name == "environments-v2");
    is_named
        && folder.parent().is_some_and(|cache| cache.iter().any(|name| name == "uv") || cache.join(CACHE_TAG).exists())
}

/// A link to the program in a folder of `PATH` (`path`): an upgrade may remove the link's target, but keeps the link.
fn named_in_path(exe: &Path, path: &OsStr) -> Option<PathBuf> {
    let mut names =
        std::env::split_paths(path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(PROGRAM));
    names.find(|name| name.canonicalize().is_ok_and(|target| target == exe))
}

impl OwnCommand {
    pub fn of_this_process() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        match std::env::current_exe().map(|exe| own_command(&exe)) {
            Ok(Self::Path(exe)) => Self::Path(named_in_path(&exe, &path).unwrap_or(exe)),
            Ok(launcher @ (Self::Npx | Self::Uvx)) => launcher,
            Err(_) => Self::Path(PathBuf::from("taskgate")),
        }
    }

    /// The program and its first arguments.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Npx => ["npx", "-y", "taskgate"].map(str::to_owned).to_vec(),
            Self::Uvx => ["uvx", "taskgate"].map(str::to_owned).to_vec(),
            Self::Path(path) => vec![path.display().to_string()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_launchers_cache_becomes_the_launcher() {
        for (exe, expected) in [
            ("/h/ada/.npm/_npx/0a1b/node_modules/@taskgate/linux-x64/bin/taskgate", "npx -y taskgate"),
            ("/h/ada/.cache/uv/archive-v0/Zk3/bin/taskgate", "uvx taskgate"),
            ("/h/ada/Library/Caches/uv/environments-v2/taskgate-1/bin/taskgate", "uvx taskgate"),
            (
                "/h/ada/.local/share/uv/tools/taskgate/bin/taskgate",
                "/h/ada/.local/share/uv/tools/taskgate/bin/taskgate",
            ),
            ("/h/archive-v0/uv/bin/taskgate", "/h/archive-v0/uv/bin/taskgate"),
            ("/h/archive-v0/bin/taskgate", "/h/archive-v0/bin/taskgate"),
            ("/usr/lib/node_modules/taskgate/bin/taskgate", "/usr/lib/node_modules/taskgate/bin/taskgate"),
            ("/opt/_npx", "/opt/_npx"),
            ("taskgate", "taskgate"),
        ] {
            assert_eq!(own_command(Path::new(exe)).words().join(" "), expected, "{exe}");
        }
        let cache = tempfile::tempdir().unwrap();
        let exe = cache.path().join("archive-v0/Zk3/bin/taskgate");
        assert_eq!(own_command(&exe), OwnCommand::Path(exe.clone()));
        std::fs::write(cache.path().join(CACHE_TAG), "").unwrap();
        assert_eq!(own_command(&exe), OwnCommand::Uvx);
    }
}
