//! Compares instruction counts with those that are kept beside it, and says which path got dearer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// How much more a path may take than was kept, in percent. Counts of two runs of one program differ by up to 2.
const TOLERANCE: f64 = 3.0;

const FILE: &str = "benches/gateway/instructions.tsv";

/// What is counted: instructions of one request.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) what: String,
    /// The bare server's, where there is one for the same answer.
    pub(crate) bare: Option<u64>,
    pub(crate) gateway: u64,
}

/// The table of a run next to what was kept. With `UPDATE_BASELINE=1` the counts of a run are kept from now on.
///
/// # Errors
/// If what was kept cannot be read or written.
pub(crate) fn table(counts: &[Count]) -> anyhow::Result<String> {
    let mut kept = kept()?;
    if std::env::var_os("UPDATE_BASELINE").is_some_and(|value| value == "1") {
        kept.extend(counts.iter().map(|count| (count.what.clone(), count.gateway)));
        let lines: String = kept.iter().map(|(what, count)| format!("{what}\t{count}\n")).collect();
        std::fs::write(path(), lines)?;
    }
    let mut table = String::from("| what | bare | gateway | ratio | kept | change |\n|---|---:|---:|---:|---:|---:|\n");
    for Count { what, bare, gateway } in counts {
        let (shown, ratio) = bare.map_or_else(Default::default, |bare| {
            (thousands(bare), format!("{:.2}", as_float(*gateway) / as_float(bare)))
        });
        let (before, change) = kept.get(what).map_or_else(Default::default, |before| {
            (thousands(*before), format!("{:+.1} %", change(*before, *gateway)))
        });
        writeln!(table, "| {what} | {shown} | {} | {ratio} | {before} | {change} |", thousands(*gateway))?;
    }
    Ok(table)
}

/// # Errors
/// Names the paths that take more than was kept, or for which nothing is kept.
pub(crate) fn check(counts: &[Count]) -> anyhow::Result<()> {
    let kept = kept()?;
    let is_dearer =
        |count: &&Count| kept.get(&count.what).is_none_or(|before| change(*before, count.gateway) > TOLERANCE);
    let dearer: Vec<&str> = counts.iter().filter(is_dearer).map(|count| count.what.as_str()).collect();
    ensure!(dearer.is_empty(), "more instructions than {FILE} has, by over {TOLERANCE} %: {}", dearer.join("; "));
    Ok(())
}

fn kept() -> anyhow::Result<BTreeMap<String, u64>> {
    let text = match std::fs::read_to_string(path()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {FILE}"))?,
    };
    let line = |line: &str| -> anyhow::Result<(String, u64)> {
        let (what, count) = line.split_once('\t').with_context(|| format!("no tab in {line:?} of {FILE}"))?;
        Ok((what.to_owned(), count.parse().with_context(|| format!("no count in {line:?} of {FILE}"))?))
    };
    text.lines().map(line).collect()
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)
}

/// In percent of what was.
fn change(before: u64, after: u64) -> f64 {
    (as_float(after) / as_float(before) - 1.0) * 100.0
}

fn thousands(count: u64) -> String {
    format!("{:.1} k", as_float(count) / 1e3)
}

/// Exact for every count that a run can reach.
fn as_float(count: u64) -> f64 {
    count as f64
}
