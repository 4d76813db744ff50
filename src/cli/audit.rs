//! Verifies audit files (`taskgate audit`).

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::failed;
use crate::audit::verify::{Anchors, AuditFault, ChainVerifier, UnseenChains};
use crate::console;

#[derive(Debug, clap::Subcommand)]
pub(super) enum AuditCommand {
    /// Checks that each line follows the one before, and names the first that does not. Changes nothing.
    ///
    /// A chain reveals changed, removed and moved lines, unless all later digests were recomputed. To detect that too,
    /// compare the files with an anchor file, or with the digest that an earlier run printed.
    Verify {
        /// The file of `audit.anchor`, with digests of the same chains.
        #[arg(long, value_name = "FILE")]
        anchor: Option<PathBuf>,
        /// Accept files that do not begin with the first line of their chain, because earlier files are elsewhere.
        #[arg(long)]
        partial: bool,
        /// The audit files, in the order in which they were written.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

pub(super) fn run(order: &AuditCommand) -> ExitCode {
    let AuditCommand::Verify { anchor, partial, files } = order;
    match verified(anchor.as_deref(), *partial, files) {
        Ok(text) => {
            // A closed stdout cannot be reported.
            let _ = writeln!(console::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err((file, fault)) => failed(format_args!("{}: {fault}", file.display()), ExitCode::FAILURE),
    }
}

fn verified<'a>(
    anchor: Option<&'a Path>,
    is_partial: bool,
    files: &'a [PathBuf],
) -> Result<String, (&'a Path, AuditFault)> {
    let open = |path: &Path| Ok(BufReader::new(File::open(path)?));
    let anchors = match anchor {
        Some(path) => open(path).and_then(Anchors::read).map_err(|fault| (path, fault))?,
        None => Anchors::default(),
    };
    let verifier = ChainVerifier::with(anchors);
    let mut verifier = if is_partial { verifier.partial() } else { verifier };
    for path in files {
        open(path).and_then(|text| verifier.file(text)).map_err(|fault| (path.as_path(), fault))?;
    }
    if let (Some(path), Err(fault)) = (anchor, verifier.finish()) {
        return Err((path, fault));
    }
    let mut text = verdict(&verifier);
    if anchor.is_some() {
        let _ = write!(text, "; {} lines agree with an anchor", verifier.agreed());
    }
    if let Some(UnseenChains { count, longest }) = verifier.unseen() {
        let _ = write!(
            text,
            "; not seen: {count} other chains of the anchors, of which the longest goes on to seq {longest}"
        );
    }
    Ok(text)
}

fn verdict(verifier: &ChainVerifier) -> String {
    let (last, digest) = verifier.last().unwrap_or_default();
    let ChainVerifier { lines, first, lost, .. } = verifier;
    let lost = if *lost > 0 { format!("; {lost} records were lost, as `audit.lost` lines say") } else { String::new() };
    let unseen = if *first > 1 { format!("; not seen: the lines before seq {first}") } else { String::new() };
    format!("{lines} lines, seq {first} to {last}, are one chain{lost}{unseen}; the last digest is {digest}")
}
