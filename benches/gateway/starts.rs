//! How long a gateway takes to be ready with a store that is full of calls of an earlier life.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::line::Line;
use crate::messages;
use crate::parts::Part;
use crate::plan::{LOOK_EVERY, PATIENCE, Size, TASKS, config_with};
use crate::report::{Figure, Must};
use crate::rows;

const LIVE: &str = "start with live tasks on disk";

/// The longest until it is ready.
const READY_MAX: Duration = Duration::from_secs(2);

/// All that `wanted` asks for.
pub(crate) async fn all(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    if LIVE.contains(wanted) { start(upstream, size.rows).await } else { Ok(Vec::new()) }
}

/// From the start of the process to the first good answer of `/readyz`; then until no call of an earlier life is left
/// to be looked at.
async fn start(upstream: SocketAddr, count: usize) -> anyhow::Result<Vec<Figure>> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    rows::fill(&data, count, rows::live).await?;
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
    let ends_at = began + PATIENCE;
    while !String::from_utf8_lossy(operator.ask(&messages::get("/")).await?).contains(" 0 unsettled") {
        ensure!(Instant::now() < ends_at, "not all calls of an earlier life were looked at");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let looked_at = began.elapsed();
    let figure = |what, found, must| Figure { what: format!("{LIVE}: {count} rows, {what}"), found, must };
    let seconds = |span: Duration| format!("{:.2} s", span.as_secs_f64());
    Ok(vec![
        figure("until ready", seconds(ready), Must::of(format!("< {} s", READY_MAX.as_secs()), ready < READY_MAX)),
        figure("until each of their calls was looked at", seconds(looked_at), Must::None),
        figure("memory meanwhile, at most", format!("{} MiB", gateway.resident_peak()? >> 20), Must::None),
    ])
}
