//! How long a gateway takes to be ready with a store that is full.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use taskgate::task::Task;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::line::Line;
use crate::messages;
use crate::parts::Part;
use crate::plan::{LOOK_EVERY, PATIENCE, Size, TASKS, config_with};
use crate::report::{Figure, Must};
use crate::rows;

const LIVE: &str = "start with live tasks on disk";
const SETTLED: &str = "start with settled tasks on disk";

/// The longest until it is ready.
const READY_MAX: Duration = Duration::from_secs(2);

/// Makes the row of this number.
type Make = fn(usize) -> Task;

/// All that `wanted` asks for.
pub(crate) async fn all(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    let kinds: [(_, Make); 2] = [(LIVE, rows::live), (SETTLED, rows::settled)];
    let mut figures = Vec::new();
    for (what, row) in kinds {
        if what.contains(wanted) {
            figures.extend(start(upstream, (what, row), size.rows).await?);
        }
    }
    Ok(figures)
}

/// From the start of the process to the first good answer of `/readyz`; then until no call of an earlier life is left
/// to be looked at.
async fn start(
    upstream: SocketAddr,
    (what, row): (&'static str, fn(usize) -> Task),
    count: usize,
) -> anyhow::Result<Vec<Figure>> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    rows::fill(&data, count, row).await?;
    let limits = format!("{}\nlimits.tasks_max = {}", rows::store_in(&data), count + 1);
    let config = config_with(upstream, &limits)?;
    let began = Instant::now();
    let mut gateway = Part::gateway(config.path()).await?;
    let admin = gateway.printed("admin   http://").await?;
    let mut operator = Line::connect(admin).await?;
    // Any other status than 200 is a failure: what is announced is ready.
    operator.ask(&messages::get("/readyz")).await?;
    let ready = began.elapsed();
    let mut line = Line::connect(gateway.address).await?;
    let id = rows::id(count / 2).to_string();
    let answer = String::from_utf8_lossy(line.ask(&messages::poll(TASKS, &id)).await?).into_owned();
    ensure!(answer.contains(&id) && answer.contains("\"status\""), "a row is missing: {answer}");
    let mut figures = vec![Figure {
        what: format!("{what}: {count} rows, until ready"),
        found: format!("{:.2} s", ready.as_secs_f64()),
        must: Must::of(format!("< {} s", READY_MAX.as_secs()), ready < READY_MAX),
    }];
    if what == LIVE {
        let ends_at = began + PATIENCE;
        while !String::from_utf8_lossy(operator.ask(&messages::get("/")).await?).contains(" 0 unsettled") {
            ensure!(Instant::now() < ends_at, "not all calls of an earlier life were looked at");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        figures.push(Figure {
            what: format!("{what}: {count} rows, until each of their calls was looked at"),
            found: format!("{:.1} s", began.elapsed().as_secs_f64()),
            must: Must::None,
        });
        let memory = gateway.resident_peak()? >> 20;
        figures.push(Figure {
            what: format!("{what}: {count} rows, memory meanwhile, at most"),
            found: format!("{memory} MiB"),
            must: Must::None,
        });
    }
    Ok(figures)
}
