//! Generates shell completions and manual pages from the definition of the command line.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::CommandLine;
use crate::console;

/// Prints the completions for `shell`.
pub(super) fn print(shell: Shell) -> anyhow::Result<ExitCode> {
    match console::stdout().write_all(&script(shell)) {
        // A reader such as `head` leaves once it has enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print the completions"),
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "taskgate", &mut script);
    script
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_manual_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        write_manual(&folder.path().join("man1")).unwrap();
        let bash = String::from_utf8(script(Shell::Bash)).unwrap();
        for command in CommandLine::command().get_subcommands() {
            let name = command.get_name();
            let page = fs::read_to_string(folder.path().join(format!("man1/taskgate-{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
            assert!(bash.contains(name), "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let error = write_manual(Path::new("/proc/nowhere")).unwrap_err();
        assert!(format!("{error:#}").starts_with("/proc/nowhere: cannot write the manual pages: "), "{error:#}");
    }
}
