//! Says what a run found out: a table for people, and the same numbers for programs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::load::Round;
use crate::plan::Measured;

/// One number, and what it must be.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) found: String,
    pub(crate) must: Must,
}

/// A bound that was promised. A run tells whether it holds, and does not fail if it does not.
#[derive(Clone, Debug)]
pub(crate) enum Must {
    None,
    Met(String),
    Missed(String),
}

impl Must {
    pub(crate) const fn of(bound: String, is_met: bool) -> Self {
        if is_met { Self::Met(bound) } else { Self::Missed(bound) }
    }
}

/// The page that shows the report of a whole run.
const PAGE: &str = "docs/benchmarks.md";

/// Prints the report, and keeps it as `reports/bench.md` and `.json` in the folder of build results. A whole run with
/// `UPDATE_BENCHMARKS=1` writes it to [`PAGE`], too.
pub(crate) fn publish(measured: &Measured, is_whole: bool) -> anyhow::Result<()> {
    let text = table(measured)?;
    std::io::stdout().write_all(text.as_bytes())?;
    if is_whole && std::env::var_os("UPDATE_BENCHMARKS").is_some_and(|value| value == "1") {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        std::fs::write(&page, shown(&std::fs::read_to_string(&page)?, &text)?)?;
    }
    let folder = folder()?;
    std::fs::write(folder.join("bench.md"), text)?;
    std::fs::write(folder.join("bench.json"), format!("{:#}\n", numbers(measured)))?;
    Ok(())
}

/// The page with this report between its marks.
fn shown(page: &str, report: &str) -> anyhow::Result<String> {
    let marked = page.split_once("<!-- bench -->\n").zip(page.split_once("<!-- /bench -->"));
    let ((before, _), (_, after)) = marked.with_context(|| format!("{PAGE} has no marks for the report"))?;
    Ok(format!("{before}<!-- bench -->\n{report}<!-- /bench -->{after}"))
}

/// The folder of reports, made where it is missing.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    // Cargo gives benchmarks a folder for their scratch files right below its own.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("reports");
    std::fs::create_dir_all(&folder).with_context(|| format!("no folder {}", folder.display()))?;
    Ok(folder)
}

fn table(measured: &Measured) -> anyhow::Result<String> {
    let cores = std::thread::available_parallelism()?;
    let mut out = format!(
        "## CPU and latency\n\nMedians over the rounds of one run on {cores} cores, load and all servers included. CPU is \
         that of the server's process alone.\n\n\
         | what | server | CPU/request | ratio | spread | budget | met | p50 | p99 | answers/s |\n\
         |---|---|---:|---:|---|---:|---|---:|---:|---:|\n"
    );
    let mut last = None;
    for one in &measured.comparisons {
        let [least, greatest] = one.spread;
        let (bound, met) = one.budget.map_or_else(Default::default, |budget| {
            (format!("{budget:.2}"), if one.ratio <= budget { "yes" } else { "NO" })
        });
        let compared = format!("{:.2} | {least:.2} to {greatest:.2} | {bound} | {met}", one.ratio);
        // Two builds are compared with the same rounds of one peer.
        let is_repeated = last.replace((one.what, one.peer)) == Some((one.what, one.peer));
        let peer = (one.peer, one.bare, "1.00 | | |");
        for (server, round, compared) in
            std::iter::once(peer).skip(usize::from(is_repeated)).chain([(one.server, one.measured, compared.as_str())])
        {
            let (what, Round { cpu, p50, p99, rate }) = (one.what, round);
            writeln!(out, "| {what} | {server} | {cpu:.1} us | {compared} | {p50:.0} us | {p99:.0} us | {rate:.0} |")?;
        }
    }
    out.push_str("\n## Memory\n\n| what | count | resident before | after | each | budget | met |\n|---|---:|---:|---:|---:|---:|---|\n");
    for one in &measured.memory {
        let (before, after) = (one.before >> 10, one.after >> 10);
        let (bound, met) = one.budget.map_or_else(Default::default, |budget| {
            (format!("{:.0} kB", budget / 1e3), if one.each() <= budget { "yes" } else { "NO" })
        });
        let each = one.each() / 1e3;
        writeln!(
            out,
            "| {} | {} | {before} KiB | {after} KiB | {each:.1} kB | {bound} | {met} |",
            one.what, one.count
        )?;
    }
    out.push_str("\n## Single figures\n\n| what | found | must | met |\n|---|---:|---:|---|\n");
    for Figure { what, found, must } in &measured.figures {
        let (bound, verdict) = match must {
            Must::None => ("", ""),
            Must::Met(bound) => (bound.as_str(), "yes"),
            Must::Missed(bound) => (bound.as_str(), "NO"),
        };
        writeln!(out, "| {what} | {found} | {bound} | {verdict} |")?;
    }
    Ok(out)
}

fn numbers(measured: &Measured) -> Value {
    let round = |round: &Round| {
        json!({
            "cpu_us_per_request": round.cpu,
            "p50_us": round.p50,
            "p99_us": round.p99,
            "answers_per_second": round.rate,
        })
    };
    let comparisons = measured.comparisons.iter().map(|one| {
        json!({
            "what": one.what,
            "peer": one.peer,
            "cpu_ratio": one.ratio,
            "cpu_ratio_spread": one.spread,
            "budget": one.budget,
            "bare": round(&one.bare),
            (one.server): round(&one.measured),
        })
    });
    let memory = measured.memory.iter().map(|one| {
        json!({
            "what": one.what,
            "count": one.count,
            "resident_before_bytes": one.before,
            "resident_after_bytes": one.after,
            "bytes_each": one.each(),
            "budget": one.budget,
        })
    });
    let figures = measured.figures.iter().map(|one| {
        let (must, met) = match &one.must {
            Must::None => (None, None),
            Must::Met(bound) => (Some(bound), Some(true)),
            Must::Missed(bound) => (Some(bound), Some(false)),
        };
        json!({"what": one.what, "found": one.found, "must": must, "met": met})
    });
    json!({
        "comparisons": comparisons.collect::<Vec<_>>(),
        "memory": memory.collect::<Vec<_>>(),
        "figures": figures.collect::<Vec<_>>(),
    })
}
