//! Finds the command that starts this program again.

use std::path::{Path, PathBuf};

/// Whether package registries hold this program under its name. While they do not, a launcher may fetch a stranger's package,
/// so that `taskgate install` writes no launcher into a host's file.
pub const IS_RELEASED: bool = false;

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
    let is_of_uv = |folder: &&str| matches!(*folder, "archive-v0" | "environments-v2");
    if folders.contains(&"_npx") {
        OwnCommand::Npx
    } else if folders.iter().skip_while(|folder| **folder != "uv").any(is_of_uv) {
        OwnCommand::Uvx
    } else {
        OwnCommand::Path(exe.to_owned())
    }
}

impl OwnCommand {
    /// The command of the running program.
    pub fn of_this_process() -> Self {
        std::env::current_exe().map_or_else(|_| Self::Path(PathBuf::from("taskgate")), |exe| own_command(&exe))
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
    }
}
