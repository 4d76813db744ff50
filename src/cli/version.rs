//! The text of `taskgate --version`.

use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

/// The version, the commit if the build was given one (`TASKGATE_COMMIT`), and the system that the program was built for.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("TASKGATE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(|| "from source".to_owned(), |commit| format!("commit {commit}"));
    let environment = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    format!("{} ({commit}, {ARCH}-{OS}{environment})", env!("CARGO_PKG_VERSION"))
});
