//! How fast the gateway is, next to bare servers in the same run: `cargo bench --bench gateway`.
//!
//! Each measured part is a process of its own, so that its CPU time is its own; this program starts the
//! gateway, and itself again for the others (see [`bare`] and [`upstream`]). All of them end with it.
//! Speed is measured and never asserted: numbers of two runs cannot be compared, their ratios can. A
//! wrong answer fails the run. Read [`plan`] for what is measured.

#[path = "gateway/bare.rs"]
mod bare;
#[path = "gateway/bare_tasks.rs"]
mod bare_tasks;
#[path = "gateway/baseline.rs"]
mod baseline;
#[path = "gateway/counted.rs"]
mod counted;
#[path = "gateway/creates.rs"]
mod creates;
#[path = "gateway/credentials.rs"]
mod credentials;
#[path = "gateway/database.rs"]
mod database;
#[path = "gateway/endpoints.rs"]
mod endpoints;
#[path = "gateway/fairness.rs"]
mod fairness;
#[path = "gateway/held.rs"]
mod held;
#[path = "gateway/kept.rs"]
mod kept;
#[path = "gateway/line.rs"]
mod line;
#[path = "gateway/lists.rs"]
mod lists;
#[path = "gateway/lives.rs"]
mod lives;
#[path = "gateway/load.rs"]
mod load;
#[path = "gateway/memory.rs"]
mod memory;
#[path = "gateway/messages.rs"]
mod messages;
#[path = "gateway/parts.rs"]
mod parts;
#[path = "gateway/plan.rs"]
mod plan;
#[path = "gateway/report.rs"]
mod report;
#[path = "gateway/row_lives.rs"]
mod row_lives;
#[path = "gateway/rows.rs"]
mod rows;
#[path = "gateway/secure.rs"]
mod secure;
#[path = "gateway/shared.rs"]
mod shared;
#[path = "gateway/splits.rs"]
mod splits;
#[path = "gateway/starts.rs"]
mod starts;
#[path = "gateway/upstream.rs"]
mod upstream;

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The gateway's allocator, so that the bare servers are no slower than they need to be.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The longest that a whole run may take.
const RUN_MAX: Duration = Duration::from_secs(1_800);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(parts::PART) => serve(&arguments[1..]),
        _ if arguments.iter().any(|argument| argument == "--instructions") => count(wanted(&arguments)),
        // Without the flag that `cargo bench` adds it is a trial: does everything start and answer?
        _ if arguments.iter().any(|argument| argument == "--train") => train(),
        _ if arguments.iter().any(|argument| argument == "--bench") => measure(plan::Size::FULL, wanted(&arguments)),
        _ => measure(plan::Size::TRIAL, wanted(&arguments)),
    }
}

/// Part of the names of what is measured: the first argument that is no flag, as in
/// `cargo bench --bench gateway -- plain`.
fn wanted(arguments: &[String]) -> &str {
    arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str)
}

fn measure(size: plan::Size, wanted: &str) -> anyhow::Result<()> {
    let is_whole = size == plan::Size::FULL && wanted.is_empty();
    until_ended(async { report::publish(&plan::run(size, wanted).await?, is_whole) })
}

/// Some of each load, for a gateway that records a profile: it ends by a signal, since a killed program writes none.
fn train() -> anyhow::Result<()> {
    parts::end_by_signal();
    until_ended(async { plan::run(plan::Size::TRAINING, "").await.map(drop) })
}

fn count(wanted: &str) -> anyhow::Result<()> {
    until_ended(counted::run(wanted))
}

/// The load comes from one thread, so that the measured process has a core of its own on a machine of two.
fn until_ended(run: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut end = signal(SignalKind::terminate())?;
        tokio::select! {
            done = tokio::time::timeout(RUN_MAX, run) => done.context("the run takes too long")?,
            // The parts are killed when the plan is dropped, so that none stays behind.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = end.recv() => bail!("ended"),
        }
    })
}

/// Runs one of the bare servers, with as many threads as the gateway has.
fn serve(arguments: &[String]) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    runtime.block_on(async {
        match arguments[..] {
            [bare_tasks::TASKS, upstream] => bare_tasks::serve_tasks(upstream, None).await,
            [bare_tasks::TASKS, upstream, log] => bare_tasks::serve_tasks(upstream, Some(log)).await,
            [bare::PROXY, upstream] => bare::serve_proxy(line::Protocol::Http1, upstream).await,
            [bare::PROXY_HTTP2, upstream] => bare::serve_proxy(line::Protocol::Http2, upstream).await,
            [upstream::NAME, folder] => upstream::serve(folder.as_ref()).await,
            _ => bail!("no such part: {arguments:?}"),
        }
    })
}
