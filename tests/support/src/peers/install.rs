//! Where the real peers are installed, and which versions they have.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, io};

use tokio::process::Command;

/// Names the folder that `tests/peers/setup.sh` filled. Without it there are no real peers.
const VARIABLE: &str = "TASKGATE_PEERS";
const NPM: &str = include_str!("../../../peers/package.json");
const PY_MODERN: &str = include_str!("../../../peers/requirements-modern.txt");
const PY_LEGACY: &str = include_str!("../../../peers/requirements-legacy.txt");

/// The installed peers.
#[derive(Clone, Debug)]
pub struct Peers {
    dir: PathBuf,
}

impl Peers {
    /// `None` if no peers are asked for: then `what` is left out, and the run says so.
    ///
    /// # Panics
    /// If the folder is named but is not there.
    pub fn find(what: &str) -> Option<Self> {
        let Some(dir) = env::var_os(VARIABLE) else {
            // Written past the test harness, which shows what a test prints only if it fails.
            let _ = io::Write::write_fmt(
                &mut io::stderr(),
                format_args!("SKIPPED: {what}; {VARIABLE} does not say where the real peers are\n"),
            );
            return None;
        };
        let dir = Path::new(&dir).canonicalize();
        let dir = dir.unwrap_or_else(|error| panic!("{VARIABLE}: {error}; run tests/peers/setup.sh first"));
        Some(Self { dir })
    }

    /// Runs `program`, a path inside the folder, in that folder.
    pub fn command<S: AsRef<OsStr>>(&self, program: &str, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.dir.join(program));
        command.current_dir(&self.dir).args(arguments).env("PYTHONUNBUFFERED", "1");
        command
    }
}

/// A list of pinned packages.
#[derive(Clone, Copy, Debug)]
pub enum Pins {
    Npm,
    /// Python packages that know 2026-07-28.
    PyModern,
    PyLegacy,
}

impl Pins {
    /// The version that `package` is pinned to.
    ///
    /// # Panics
    /// If the list does not name it.
    pub fn version(self, package: &str) -> &'static str {
        let found = match self {
            Self::Npm => found(NPM, &format!("    \"{package}\": \""), '"'),
            Self::PyModern => found(PY_MODERN, &format!("{package}=="), '\n'),
            Self::PyLegacy => found(PY_LEGACY, &format!("{package}=="), '\n'),
        };
        found.unwrap_or_else(|| panic!("{package} is not pinned in {self:?}"))
    }
}

/// What stands behind `start` at the beginning of a line, up to `end`.
fn found(list: &'static str, start: &str, end: char) -> Option<&'static str> {
    list.lines().find_map(|line| line.strip_prefix(start)?.split(end).next())
}
