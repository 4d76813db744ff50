//! Compares counts with those that are kept beside it, and says which path got dearer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::{Add, Div};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// How many more instructions a path may take than were kept, in percent. Counts of two runs of one program differ by up to 2.
const TOLERANCE: f64 = 3.0;
/// How many more allocations: a count varies by a fraction of one, as some buffers serve several requests.
const ALLOCATIONS_MORE: f64 = 1.0;

const FILE: &str = "benches/gateway/instructions.tsv";

/// What requests cost, or one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) instructions: u64,
    /// Absent for a program without the names of its functions.
    pub(crate) allocations: Option<f64>,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let allocations = self.allocations.zip(other.allocations).map(|(one, two)| one + two);
        Self { instructions: self.instructions + other.instructions, allocations }
    }
}

impl Div<usize> for Cost {
    type Output = Self;

    fn div(self, requests: usize) -> Self {
        let allocations = self.allocations.map(|all| all / requests as f64);
        Self { instructions: self.instructions / requests as u64, allocations }
    }
}

/// What is counted of one path: the cost of one request.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) what: String,
    /// The bare server's, where there is one for the same answer.
    pub(crate) bare: Option<Cost>,
    pub(crate) gateway: Cost,
}

/// The table of a run next to what was kept. With `UPDATE_BASELINE=1` the counts of a run are kept from now on.
///
/// # Errors
/// If what was kept cannot be read or written.
pub(crate) fn table(counts: &[Count]) -> anyhow::Result<String> {
    let mut kept = kept()?;
    if std::env::var_os("UPDATE_BASELINE").is_some_and(|value| value == "1") {
        kept.extend(counts.iter().map(|count| (count.what.clone(), count.gateway)));
        let allocations = |cost: &Cost| cost.allocations.map(|all| format!("\t{all:.1}")).unwrap_or_default();
        let line = |(what, cost): (&String, &Cost)| format!("{what}\t{}{}\n", cost.instructions, allocations(cost));
        std::fs::write(path(), kept.iter().map(line).collect::<String>())?;
    }
    let mut table = String::from(
        "| what | bare | gateway | ratio | kept | change | allocations | kept |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let number = |cost: &Cost| cost.allocations.map(|all| format!("{all:.1}")).unwrap_or_default();
    for Count { what, bare, gateway } in counts {
        let (shown, ratio) = bare.map_or_else(Default::default, |bare| {
            let ratio = as_float(gateway.instructions) / as_float(bare.instructions);
            (thousands(bare.instructions), format!("{ratio:.2}"))
        });
        let (before, change, fewer) = kept.get(what).map_or_else(Default::default, |before| {
            let change = change(before.instructions, gateway.instructions);
            (thousands(before.instructions), format!("{change:+.1} %"), number(before))
        });
        let (instructions, allocations) = (thousands(gateway.instructions), number(gateway));
        writeln!(
            table,
            "| {what} | {shown} | {instructions} | {ratio} | {before} | {change} | {allocations} | {fewer} |"
        )?;
    }
    Ok(table)
}

/// # Errors
/// Names the paths that take more than was kept, or for which nothing is kept.
pub(crate) fn check(counts: &[Count]) -> anyhow::Result<()> {
    let kept = kept()?;
    let is_dearer = |count: &&Count| {
        kept.get(&count.what).is_none_or(|before| {
            change(before.instructions, count.gateway.instructions) > TOLERANCE
                || before
                    .allocations
                    .is_some_and(|before| count.gateway.allocations.is_none_or(|all| all > before + ALLOCATIONS_MORE))
        })
    };
    let dearer: Vec<&str> = counts.iter().filter(is_dearer).map(|count| count.what.as_str()).collect();
    let dearer = dearer.join("; ");
    ensure!(
        dearer.is_empty(),
        "more than {FILE} has, by over {TOLERANCE} % of instructions or an allocation, or nothing counted: {dearer}"
    );
    Ok(())
}

fn kept() -> anyhow::Result<BTreeMap<String, Cost>> {
    let text = match std::fs::read_to_string(path()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read {FILE}"))?,
    };
    let line = |line: &str| -> anyhow::Result<(String, Cost)> {
        let broken = || format!("not a path, its instructions and its allocations: {line:?} of {FILE}");
        let mut columns = line.split('\t');
        let what = columns.next().with_context(broken)?.to_owned();
        let instructions = columns.next().with_context(broken)?.parse().with_context(broken)?;
        let allocations = columns.next().map(str::parse).transpose().with_context(broken)?;
        Ok((what, Cost { instructions, allocations }))
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
