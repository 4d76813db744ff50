//! Generates shell completions and manual pages from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::CommandLine;
use crate::console;

/// The version, the commit if the build was given one (`TASKGATE_COMMIT`), and the system that the program was built for.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("TASKGATE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(|| "from source".to_owned(), |commit| format!("commit {commit}"));
    format!("{} ({commit}, {})", env!("CARGO_PKG_VERSION"), target())
});

/// The target triple, without its vendor.
fn target() -> String {
    use std::env::consts::{ARCH, OS};
    let environment = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    format!("{ARCH}-{OS}{environment}")
}

/// Prints the completions for `shell`.
pub(super) fn print_completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "taskgate", &mut script);
    // A closed stdout cannot be reported.
    let _ = io::Write::write_all(&mut console::stdout(), &script);
    ExitCode::SUCCESS
}

/// Writes a manual page for each command into `folder`, which is created if it is missing.
///
/// # Errors
/// If the folder or a page cannot be written.
pub(super) fn write_manual(folder: &Path) -> anyhow::Result<ExitCode> {
    let cannot = || format!("{}: cannot write the manual pages", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(CommandLine::command().disable_help_subcommand(true), folder).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}
