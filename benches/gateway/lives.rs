//! Tasks next to those of the bare task server: made and settled, and with the polls that a client makes of each.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::Line;
use crate::load::{Round, as_float, microseconds};
use crate::parts::Part;
use crate::plan::{Comparison, LOOK_EVERY, PATIENCE, Size, TASKS, config_with, create};
use crate::upstream::SMALL;
use crate::{bare_tasks, messages, rows};

const CLIENTS: usize = 64;

/// A store, and the most CPU of a create and of a whole life next to the bare task server's.
const STORES: [(&str, [&str; 2], [f64; 2]); 2] = [
    ("memory", ["create a task, store in memory", "whole life of a task, store in memory"], [1.5, 1.5]),
    ("disk", ["create a task, store on disk", "whole life of a task, store on disk"], [2.0, 2.1]),
];

/// All that `wanted` asks for.
pub(crate) async fn compare(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for (store, names, budgets) in STORES {
        if !names.iter().any(|what| what.contains(wanted)) {
            continue;
        }
        let folder = TempDir::new()?;
        let (is_durable, path_of) = (store == "disk", |name: &str| folder.path().join(name));
        let config = |name| {
            let durable = is_durable.then(|| rows::store_in(&path_of(name)));
            config_with(upstream, durable.as_deref().unwrap_or("store.kind = \"memory\""))
        };
        let (config, beside, log) = (config("store")?, config("beside")?, is_durable.then(|| path_of("log")));
        let (address, log) = (upstream.to_string(), log.as_ref().map(|log| log.to_string_lossy()));
        let arguments: Vec<&str> = [bare_tasks::TASKS, &address].into_iter().chain(log.as_deref()).collect();
        let peer = if is_durable { "bare task server with a log" } else { "bare task server" };
        let mut parts = vec![(peer, Part::own(&arguments).await?)];
        parts.extend(Part::gateways([config.path(), beside.path()]).await?);
        let warming = size.creates.div_ceil(4).max(CLIENTS);
        for (_, part) in &parts {
            round(part, warming).await?;
        }
        let mut rounds: Vec<[Vec<Round>; 2]> = parts.iter().map(|_| [Vec::new(), Vec::new()]).collect();
        for _ in 0..size.rounds {
            for ((_, part), found) in parts.iter().zip(&mut rounds) {
                let [create, life] = round(part, size.creates).await?;
                found[0].push(create);
                found[1].push(life);
            }
        }
        for (at, (what, budget)) in names.into_iter().zip(budgets).enumerate() {
            for ((server, _), found) in parts.iter().zip(&rounds).skip(1) {
                let sides = [(peer, rounds[0][at].as_slice()), (*server, &found[at])];
                comparisons.push(Comparison::of(what, sides).within(Some(budget)));
            }
        }
    }
    Ok(comparisons)
}

/// What it takes to make `count` tasks and to settle them; and with two polls of each that show its result.
async fn round(part: &Part, count: usize) -> anyhow::Result<[Round; 2]> {
    let tracker = TaskTracker::new();
    let (before, began) = (part.cpu()?, Instant::now());
    let mut making = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        let line = Line::connect(part.address).await?;
        making.push(tracker.spawn(make(line, count / CLIENTS)));
    }
    let (mut clients, mut latencies) = (Vec::with_capacity(CLIENTS), Vec::with_capacity(count));
    for client in making {
        let (line, tasks, seen) = client.await??;
        latencies.extend(seen);
        clients.push((line, tasks));
    }
    for (line, tasks) in &mut clients {
        // Of what is made at the same time the last ones settle last.
        poll(line, tasks.last().context("each client makes a task")?).await?;
    }
    let made = part.cpu()? - before;
    let creates = Round::of(latencies.clone(), made, began.elapsed());
    let began = Instant::now();
    let polling = clients.into_iter().map(|(mut line, tasks)| {
        tracker.spawn(async move {
            for task in tasks.iter().chain(&tasks) {
                poll(&mut line, task).await?;
            }
            anyhow::Ok(())
        })
    });
    for client in polling.collect::<Vec<_>>() {
        client.await??;
    }
    let polled = part.cpu()? - before - made;
    let life = microseconds(polled) / as_float(latencies.len());
    let took = as_float(latencies.len()) / creates.rate + began.elapsed().as_secs_f64();
    Ok([creates, Round { cpu: creates.cpu + life, rate: as_float(latencies.len()) / took, ..creates }])
}

type Made = (Line, Vec<String>, Vec<Duration>);

async fn make(mut line: Line, count: usize) -> anyhow::Result<Made> {
    let (mut tasks, mut latencies) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let began = Instant::now();
        tasks.push(create(&mut line, SMALL).await?);
        latencies.push(began.elapsed());
    }
    Ok((line, tasks, latencies))
}

/// Polls until the task shows its result.
async fn poll(line: &mut Line, task: &str) -> anyhow::Result<()> {
    let (poll, ends_at) = (messages::poll(TASKS, task), Instant::now() + PATIENCE);
    loop {
        let answer = String::from_utf8_lossy(line.ask(&poll).await?);
        if answer.contains("\"completed\"") {
            return Ok(());
        }
        ensure!(answer.contains("\"working\"") && Instant::now() < ends_at, "never settled: {answer}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
