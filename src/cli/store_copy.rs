//! Copies the tasks of a stopped gateway into a database (`taskgate store copy`), and says what came of it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{refuse_file, say, write_line};
use crate::app;
use crate::app::store_copy::{CopyEnd, KeyAdvice, StoreCopyError, StoreCopyReport};
use crate::cause::CauseChain;
use crate::console;
use crate::store::Usage;
use crate::store::copy::LeftRow;

/// What is done with the stores of gateways.
#[derive(Debug, clap::Subcommand)]
pub(super) enum StoreCommand {
    /// Copies the tasks of a stopped gateway on disk into the PostgreSQL database of a configuration.
    ///
    /// Gateways on the database may run; they take unsettled tasks over once the copy is done. Nothing in DIR is changed. What is
    /// in the database already is left as it is there, so a copy that was stopped is run again and goes on. Do not start a
    /// gateway on DIR afterwards: it would go on with the same calls.
    ///
    /// Exit codes: 0 if all tasks that can be asked for are there; 64 for a mistake in the command line, the configuration or a file
    /// that it names; 69 if the database cannot be reached; 74 if tasks cannot be read, or the database has no room for them;
    /// 75 if a gateway has the store open, or the copy was stopped: run it again.
    Copy {
        /// The folder of the store on disk, as `store.path` names it.
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// The configuration of a gateway on the database.
        #[arg(long, value_name = "CONFIG")]
        to: PathBuf,
    },
}

/// # Errors
/// If nothing can be printed.
pub(super) async fn run(order: &StoreCommand) -> anyhow::Result<ExitCode> {
    let StoreCommand::Copy { from, to } = order;
    let config = match app::files::load(to) {
        Ok(loaded) => loaded.config,
        Err(mistakes) => return Ok(refuse_file(&mistakes)),
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let stop = CancellationToken::new();
    let mut tell = |LeftRow { task, why }: LeftRow| say(format_args!("task {task} is not copied: {why}"));
    let mut copying = Box::pin(app::store_copy::copy((from, &config), &stop, &mut tell));
    let copied = loop {
        tokio::select! {
            copied = &mut copying => break copied,
            _ = interrupt.recv() => (),
            _ = terminate.recv() => (),
        }
        if stop.is_cancelled() {
            return Ok(ExitCode::from(app::store_copy::EXIT_STOPPED));
        }
        stop.cancel();
    };
    drop(copying);
    match copied {
        Ok(report) => {
            console::stdout().write_all(text_of(&report, from).as_bytes()).context("cannot print what was done")?;
            complain(&report);
            Ok(ExitCode::from(report.exit_code()))
        }
        Err(error) => {
            match &error {
                StoreCopyError::Source(_) => say(&error),
                StoreCopyError::Kind | StoreCopyError::Key(_) | StoreCopyError::Target(_) => {
                    write_line(format_args!("{}: {error}", to.display()));
                }
            }
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

/// What was done, for whoever runs it.
fn text_of(report: &StoreCopyReport, from: &Path) -> String {
    let StoreCopyReport { source, before, after, counts, ended, key } = report;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}: {}", from.display(), usage(source));
    let _ = writeln!(
        text,
        "copied: {}; there already: {}; past their ttl: {}; not copied: {}",
        usage(&counts.copied),
        counts.present,
        counts.gone,
        report.left(),
    );
    let _ = writeln!(text, "the database: {} before, now {}", before.tasks, usage(after));
    if ended.is_some() {
        return text;
    }
    let unless = "else clients' sessions and open questions end";
    let _ = match key {
        KeyAdvice::Nothing => Ok(()),
        KeyAdvice::Same { there } => writeln!(text, "{}: opens clients' sessions and open questions", there.display()),
        KeyAdvice::Copy { here, there } => {
            writeln!(text, "copy {} to {}, for each gateway, {unless}", here.display(), there.display())
        }
        KeyAdvice::Add { here, there } => {
            writeln!(text, "add the lines of {} to {}, for each gateway, {unless}", here.display(), there.display())
        }
        KeyAdvice::Unfit(error) => writeln!(text, "{error}"),
    };
    let _ = writeln!(text, "start no gateway on {} any more: it would go on with the same calls", from.display());
    text
}

fn usage(Usage { tasks, unsettled, bytes }: &Usage) -> String {
    let size =
        if *bytes < 1 << 20 { format!("{} KiB", bytes.div_ceil(1 << 10)) } else { format!("{} MiB", bytes >> 20) };
    format!("{tasks} task{} ({unsettled} unsettled, {size})", if *tasks == 1 { "" } else { "s" })
}

/// Says why not all is there.
fn complain(report: &StoreCopyReport) {
    match &report.ended {
        Some(end @ CopyEnd::Stopped) => say(format_args!("{end}; run it again, and it goes on")),
        Some(CopyEnd::Failed(error)) => say(format_args!("{}; run it again, and it goes on", CauseChain(error))),
        None if report.left() > 0 => say(format_args!("{} of the tasks are not in the database", report.left())),
        None => (),
    }
}
