//! Valgrind's counts: the instructions of each call of one function, on its thread.

use std::path::Path;
use std::process::{Command, Stdio};

/// The function whose calls are counted, see `bench`. Its whole name: dumps are not made for a pattern.
const REGION: &str = "complexity::bench::counted_region";

pub(crate) fn is_there() -> bool {
    let asked = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Runs this program under valgrind, as `order` says; the instructions of each call of the region, in order.
pub(crate) fn counted(order: impl FnOnce(&mut Command)) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--dump-line=no"]);
    command.arg(format!("--toggle-collect={REGION}")).arg(format!("--dump-after={REGION}"));
    command.arg(format!("--callgrind-out-file={}", folder.path().join("counts").display()));
    command.arg(std::env::current_exe().unwrap());
    order(&mut command);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let said = || format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the measured program failed:\n{}", said());
    let counts: Vec<u64> = (1..).map_while(|number| total(&folder.path().join(format!("counts.{number}")))).collect();
    assert!(counts.iter().all(|count| *count > 0), "valgrind did not see the region: {counts:?}\n{}", said());
    counts
}

/// The sum of one dump, at the end of millions of bytes; `None` if there is none of this number.
fn total(dump: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(dump).ok()?;
    let totals = text.lines().rev().find_map(|line| line.strip_prefix("totals: ")).unwrap();
    Some(totals.trim().parse().unwrap())
}
