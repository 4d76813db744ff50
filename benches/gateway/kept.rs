//! What many tasks kept on disk cost: the start with them, a poll that asks for them evenly, so that most rows are read
//! from the file, and one more task.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::creates;
use crate::line::Line;
use crate::load::{as_float, microseconds};
use crate::messages;
use crate::parts::Part;
use crate::plan::{Size, TASKS, config_of, config_text, median};
use crate::report::{Figure, Must};
use crate::rows;

const KEPT: &str = "settled tasks kept on disk";

/// The longest until a gateway with the most of them is ready.
const READY_MAX: Duration = Duration::from_secs(1);
/// The most of a figure among the most tasks, next to that among the fewest.
const GROWTH_MAX: f64 = 1.5;
/// No divisor of any count of rows: each is asked for in turn, far from the one before.
const STRIDE: usize = 7_919;
/// Who makes tasks at the same time.
const MAKERS: usize = 4;

/// What was found with so many tasks.
#[derive(Clone, Copy, Debug)]
struct Kept {
    count: usize,
    ready: Duration,
    /// Microseconds of the gateway's CPU for one poll.
    poll: f64,
    /// Microseconds that all but one of a hundred handles took at most.
    create: f64,
}

/// All that `wanted` asks for.
pub(crate) async fn all(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    if !KEPT.contains(wanted) {
        return Ok(Vec::new());
    }
    let (mut figures, mut fewest) = (Vec::new(), None);
    for count in size.kept {
        let found = with(upstream, size, count).await?;
        figures.extend(found.figures(*fewest.get_or_insert(found)));
    }
    Ok(figures)
}

impl Kept {
    fn figures(self, fewest: Self) -> [Figure; 3] {
        let named = |what| format!("{} {KEPT}: {what}", self.count);
        let grown = |what, (found, first): (f64, f64)| Figure {
            what: named(what),
            found: format!("{found:.1} us, {:.2} of that among the fewest", found / first),
            must: Must::of(format!("<= {GROWTH_MAX}"), found <= GROWTH_MAX * first),
        };
        let ready = Figure {
            what: named("from the start until ready"),
            found: format!("{:.2} s", self.ready.as_secs_f64()),
            must: Must::of(format!("< {} s", READY_MAX.as_secs()), self.ready < READY_MAX),
        };
        let poll = grown("CPU of a poll, evenly asked for", (self.poll, fewest.poll));
        [ready, poll, grown("p99 of a create beside three others", (self.create, fewest.create))]
    }
}

async fn with(upstream: SocketAddr, size: Size, count: usize) -> anyhow::Result<Kept> {
    let folder = TempDir::new()?;
    let data = folder.path().join("data");
    rows::fill(&data, count, rows::settled).await?;
    let bytes = "limits.stored_bytes_per_principal_max = \"8GiB\"";
    let most = count + size.commits * (size.rounds + 1);
    let limits = format!("{}\n{bytes}\nlimits.tasks_max = {most}", rows::store_in(&data));
    let text = config_text(upstream, &limits).replace("principal_max = 10_000", &format!("principal_max = {most}"));
    let config = config_of(&text)?;
    let began = Instant::now();
    let mut gateway = Part::gateway(config.path()).await?;
    let admin = gateway.printed("admin   http://").await?;
    // Any other status than 200 is a failure: what is announced is ready.
    Line::connect(admin).await?.ask(&messages::get("/readyz")).await?;
    let ready = began.elapsed();
    let poll = poll(&gateway, size, count).await?;
    let mut creates = Vec::with_capacity(size.rounds);
    for round in 0..=size.rounds {
        let made = creates::round(&[&gateway], MAKERS, size.commits).await?;
        // The first one warms up.
        if round > 0 {
            creates.push(made.p99);
        }
    }
    Ok(Kept { count, ready, poll, create: median(creates.into_iter()) })
}

/// The median of the rounds.
async fn poll(gateway: &Part, size: Size, count: usize) -> anyhow::Result<f64> {
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
