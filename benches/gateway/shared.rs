//! Gateways that share a database, next to one whose tasks are on disk or in memory, all in turn: tasks that many make at once
//! and one alone, polls, and calls that one passes on to another.
//!
//! The database shares the machine with all else, so that rates say little of what it does on one of its own.

use std::net::SocketAddr;

use tempfile::{NamedTempFile, TempDir};

use crate::creates;
use crate::database::Database;
use crate::line::{Line, Protocol};
use crate::load::{Crowd, Question, Round, as_float};
use crate::messages;
use crate::parts::Part;
use crate::plan::{
    Comparison, PLAIN, Size, TASKS, answer_of, compare, config_with, create, median, open_session, settled, typical,
};
use crate::report::{Figure, Must};
use crate::rows;
use crate::upstream::{HOLD, SMALL};

const CLIENTS: usize = 64;
const REPLICAS_MAX: usize = 3;

const CREATES: &str = "create a task on a database, 64 clients";
const LONE: &str = "create a task on a database, one client";
const POLLS: [&str; 2] = ["tasks/get on a database, settled", "tasks/get on a database, in progress"];
const FORWARDED: &str = "session call that another gateway passes on, small answer";

/// The least rate of creates next to that of the store in memory, of one gateway on one server.
const OF_MEMORY_MIN: f64 = 0.3;
/// The most CPU of both gateways, next to that of one that has the session.
const FORWARDED_BUDGET: f64 = 2.0;

/// All that `wanted` asks for; nothing where PostgreSQL is missing.
pub(crate) async fn all(
    upstream: SocketAddr,
    (size, wanted): (Size, &str),
) -> anyhow::Result<(Vec<Comparison>, Vec<Figure>)> {
    let is_wanted = |what: &str| what.contains(wanted);
    let (mut comparisons, mut figures) = (Vec::new(), Vec::new());
    if ![CREATES, LONE, FORWARDED].into_iter().chain(POLLS).any(is_wanted) {
        return Ok((comparisons, figures));
    }
    for has_standby in [false, true] {
        let Some(database) = Database::start(has_standby).await? else { break };
        if is_wanted(CREATES) || is_wanted(LONE) {
            figures.extend(makes(upstream, &database, size).await?);
        }
        if !has_standby {
            let shared = Shared::start(upstream, &database, "calls", 2).await?;
            if POLLS.into_iter().any(is_wanted) {
                comparisons.extend(polls(upstream, shared.parts(1)[0], size).await?);
            }
            if is_wanted(FORWARDED) {
                comparisons.push(forwarded(&shared, size).await?);
            }
        }
    }
    Ok((comparisons, figures))
}

/// A gateway, and what it was started with.
type Started = (Part, NamedTempFile, TempDir);

/// Several gateways on one schema.
struct Shared(Vec<Started>);

impl Shared {
    async fn start(upstream: SocketAddr, database: &Database, schema: &str, count: usize) -> anyhow::Result<Self> {
        let mut started = Vec::with_capacity(count);
        for number in 0..count {
            let (lines, folder) = database.gateway(schema, &format!("r{number}"))?;
            let config = config_with(upstream, &lines)?;
            started.push((Part::gateway(config.path()).await?, config, folder));
        }
        Ok(Self(started))
    }

    fn parts(&self, count: usize) -> Vec<&Part> {
        self.0.iter().take(count).map(|(part, ..)| part).collect()
    }
}

/// A gateway whose tasks are on disk.
async fn on_disk(upstream: SocketAddr) -> anyhow::Result<Started> {
    let folder = TempDir::new()?;
    let config = config_with(upstream, &rows::store_in(&folder.path().join("data")))?;
    Ok((Part::gateway(config.path()).await?, config, folder))
}

/// Rounds of creates, in turn.
#[derive(Default)]
struct Makes {
    of_memory: Vec<Round>,
    of_disk: Vec<Round>,
    of_replicas: [Vec<Round>; REPLICAS_MAX],
    alone_on_disk: Vec<Round>,
    alone: Vec<Round>,
    database_cpu: Vec<f64>,
}

async fn makes(upstream: SocketAddr, database: &Database, size: Size) -> anyhow::Result<Vec<Figure>> {
    let in_memory = config_with(upstream, "store.kind = \"memory\"")?;
    let memory = Part::gateway(in_memory.path()).await?;
    let (disk, _config, _folder) = on_disk(upstream).await?;
    let shared = Shared::start(upstream, database, "makes", REPLICAS_MAX).await?;
    let warming = size.creates.div_ceil(4).max(CLIENTS);
    for parts in [vec![&memory], vec![&disk], shared.parts(REPLICAS_MAX)] {
        creates::round(&parts, CLIENTS, warming).await?;
    }
    let mut makes = Makes::default();
    for _ in 0..size.rounds {
        makes.of_memory.push(creates::round(&[&memory], CLIENTS, size.creates).await?);
        makes.of_disk.push(creates::round(&[&disk], CLIENTS, size.creates).await?);
        for (number, rounds) in makes.of_replicas.iter_mut().enumerate() {
            let before = database.cpu()?;
            rounds.push(creates::round(&shared.parts(number + 1), CLIENTS, size.creates).await?);
            if number == 0 {
                makes.database_cpu.push((database.cpu()? - before).as_secs_f64() * 1e6 / as_float(size.creates));
            }
        }
        makes.alone_on_disk.push(creates::round(&[&disk], 1, size.commits).await?);
        makes.alone.push(creates::round(&shared.parts(1), 1, size.commits).await?);
    }
    Ok(makes.figures(database.name()))
}

impl Makes {
    fn figures(&self, standby: &str) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (number, rounds) in self.of_replicas.iter().enumerate() {
            let count = number + 1;
            let of = format!("{CREATES}, {count} gateway{}{standby}", if count == 1 { "" } else { "s" });
            let next_to = |others: &[Round]| {
                let ratio = median(rounds.iter().zip(others).map(|(round, other)| round.rate / other.rate));
                (ratio, format!("{ratio:.2} ({:.0}/s next to {:.0}/s)", typical(rounds).rate, typical(others).rate))
            };
            let (ratio, found) = next_to(&self.of_memory);
            let is_bound = count == 1 && standby.is_empty();
            let must =
                if is_bound { Must::of(format!(">= {OF_MEMORY_MIN}"), ratio >= OF_MEMORY_MIN) } else { Must::None };
            figures.push(Figure { what: format!("{of}: rate next to the store in memory"), found, must });
            let (_, found) = next_to(&self.of_disk);
            figures.push(Figure { what: format!("{of}: rate next to the store on disk"), found, must: Must::None });
            let cpu = |rounds: &[Round]| typical(rounds).cpu;
            let found = format!(
                "{:.0} us, on disk {:.0} us, in memory {:.0} us",
                cpu(rounds),
                cpu(&self.of_disk),
                cpu(&self.of_memory)
            );
            figures.push(Figure { what: format!("{of}: CPU of the gateways"), found, must: Must::None });
        }
        let found = format!("{:.0} us", median(self.database_cpu.iter().copied()));
        let what = format!("{CREATES}, 1 gateway{standby}: CPU of the database, with the outcome");
        figures.push(Figure { what, found, must: Must::None });
        let wait =
            |rounds: &[Round]| format!("{:.2} and {:.2} ms", typical(rounds).p50 / 1e3, typical(rounds).p99 / 1e3);
        let found = format!("{}, on disk {}", wait(&self.alone), wait(&self.alone_on_disk));
        figures.push(Figure { what: format!("{LONE}{standby}: p50 and p99"), found, must: Must::None });
        figures
    }
}

/// A poll of a task at each, which stays as it is.
async fn polls(upstream: SocketAddr, shared: &Part, size: Size) -> anyhow::Result<Vec<Comparison>> {
    let (disk, _config, _folder) = on_disk(upstream).await?;
    let mut comparisons = Vec::new();
    for (what, tool) in POLLS.into_iter().zip([SMALL, HOLD]) {
        let (at_disk, at_shared) = (poll_of(&disk, tool).await?, poll_of(shared, tool).await?);
        let sides = [("taskgate, store on disk", &disk, at_disk), ("taskgate", shared, at_shared)];
        comparisons.push(compare(what, sides, size, (size.small, Protocol::Http1)).await?);
    }
    Ok(comparisons)
}

async fn poll_of(part: &Part, tool: &str) -> anyhow::Result<Question> {
    let mut line = Line::connect(part.address).await?;
    let request = messages::poll(TASKS, &create(&mut line, tool).await?);
    let answer =
        if tool == HOLD { line.ask(&request).await?.to_vec() } else { settled(&mut line, &request, tool).await? };
    Ok(Question::of(request, answer))
}

/// A call in a session, at the gateway that has it and at the other one.
async fn forwarded(shared: &Shared, size: Size) -> anyhow::Result<Comparison> {
    let parts = shared.parts(2);
    let session = open_session(parts[0], PLAIN).await?;
    let request = messages::session_call(PLAIN, &session, SMALL);
    let question = answer_of(parts[0], Protocol::Http1, &request, SMALL).await?;
    let mut crowds = Vec::new();
    for part in &parts {
        crowds.push(Crowd::connect(part.address, (size.clients, Protocol::Http1), question.clone()).await?);
    }
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 0..=size.rounds {
        for (crowd, rounds) in crowds.iter_mut().zip(&mut rounds) {
            let round = crowd.round(&parts, size.small).await?;
            // The first warms up.
            if number > 0 {
                rounds.push(round);
            }
        }
    }
    let [here, there] = &rounds;
    let sides = [("taskgate, at home", here.as_slice()), ("both gateways", there)];
    Ok(Comparison::of(FORWARDED, sides).within(Some(FORWARDED_BUDGET)))
}
