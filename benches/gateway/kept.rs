//! What a poll costs with many tasks kept on disk, asked for evenly, so that most rows are read from the file.

use std::net::SocketAddr;

use anyhow::ensure;
use tempfile::TempDir;

use crate::line::Line;
use crate::load::{as_float, microseconds};
use crate::messages;
use crate::parts::Part;
use crate::plan::{Size, TASKS, config_with, median};
use crate::report::{Figure, Must};
use crate::rows;

const POLLS: &str = "tasks/get of settled tasks on disk";

/// The most CPU of a poll among the most tasks, next to one among the fewest.
const GROWTH_MAX: f64 = 1.5;
/// No divisor of any count of rows: each is asked for in turn, far from the one before.
const STRIDE: usize = 7_919;

/// All that `wanted` asks for.
pub(crate) async fn all(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    if !POLLS.contains(wanted) {
        return Ok(Vec::new());
    }
    let (mut figures, mut fewest) = (Vec::new(), None);
    for count in size.kept {
        let cost = cost(upstream, size, count).await?;
        let base = *fewest.get_or_insert(cost);
        let growth = cost / base;
        figures.push(Figure {
            what: format!("{POLLS}: CPU among {count}"),
            found: format!("{cost:.1} us, {growth:.2} of that among the fewest"),
            must: Must::of(format!("<= {GROWTH_MAX}"), growth <= GROWTH_MAX),
        });
    }
    Ok(figures)
}

/// Microseconds of the gateway's CPU for one poll: the median of the rounds.
async fn cost(upstream: SocketAddr, size: Size, count: usize) -> anyhow::Result<f64> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    rows::fill(&data, count, rows::settled).await?;
    let config = config_with(upstream, &rows::store_in(&data))?;
    let gateway = Part::gateway(config.path()).await?;
    let mut line = Line::connect(gateway.address).await?;
    let (mut number, mut costs) = (0, Vec::with_capacity(size.rounds));
    for round in 0..=size.rounds {
        let before = gateway.cpu()?;
        for _ in 0..size.small {
            number = (number + STRIDE) % count;
            let id = rows::id(number).to_string();
            let answer = line.ask(&messages::poll(TASKS, &id)).await?;
            let is_right = answer.windows(11).any(|window| window == b"\"completed\"");
            ensure!(is_right, "a task is not kept: {}", String::from_utf8_lossy(answer));
        }
        // The first one warms up.
        if round > 0 {
            costs.push(microseconds(gateway.cpu()? - before) / as_float(size.small));
        }
    }
    Ok(median(costs.into_iter()))
}
