//! Checks the folder of a disk store, and copies it while a gateway runs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{failed, say};
use crate::app::sealing_key;
use crate::app::task_store::EXIT_IO;
use crate::cause::CauseChain;
use crate::console;
use crate::store::disk::copies::{self, CheckedStore};

#[derive(Debug, clap::Subcommand)]
pub(super) enum StoreCommand {
    /// Reads every task of a store, and reports damage. Changes nothing; a gateway may have the store open.
    Check {
        /// The store's folder, `store.path` of the configuration.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Copies a store with its sealing key into another folder, in a consistent state; a gateway may have it open.
    ///
    /// A gateway that starts on the copy lacks later tasks. It treats calls that were in progress at the time of the copy as
    /// after a crash. The copy holds arguments, results and a key: treat it as a secret.
    Backup {
        /// The store's folder, `store.path` of the configuration.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The folder of the copy: a new one, or one without files of a store.
        #[arg(value_name = "TO")]
        to: PathBuf,
    },
}

pub(super) fn run(order: &StoreCommand) -> ExitCode {
    let (shown, found) = match order {
        StoreCommand::Check { folder } => (folder, copies::check(folder)),
        StoreCommand::Backup { folder, to } => (to, copies::backup(folder, to, &[sealing_key::FILE_NAME])),
    };
    match found {
        Ok(found) => {
            // A closed stdout cannot be reported.
            let _ = writeln!(console::stdout(), "{}", report(shown, &found));
            let is_key_whole = check_key(shown);
            if found.is_whole() && is_key_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => failed(CauseChain(&error), ExitCode::from(EXIT_IO)),
    }
}

/// Says if the sealing key is missing, and if it is damaged; returns `false` for the latter.
fn check_key(folder: &Path) -> bool {
    let read = sealing_key::read(folder);
    match &read {
        Ok(Some(_)) => (),
        Ok(None) => say(format_args!(
            "warning: {}: there is no {}: a gateway that starts here ends all client sessions and open questions",
            folder.display(),
            sealing_key::FILE_NAME
        )),
        Err(error) => say(CauseChain(error)),
    }
    read.is_ok()
}

fn report(folder: &Path, found: &CheckedStore) -> String {
    let mut text = format!("{}: tasks: {}, unfinished: {}", folder.display(), found.tasks, found.unfinished);
    if let Some(fault) = &found.fault {
        let _ = write!(text, "\nthe file is damaged: {fault}");
    }
    if found.damaged > 0 {
        let named: Vec<_> = found.named.iter().map(ToString::to_string).collect();
        let _ = write!(text, "\nunreadable tasks, served as failed: {}: {}", found.damaged, named.join(" "));
        if found.damaged > named.len() as u64 {
            text.push_str(" ...");
        }
    }
    if found.is_whole() {
        text.push_str("; all can be read");
    }
    text
}
