//! Calls with a list of 100 elements that are made as one call for each, next to as many calls without a list.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::line::Line;
use crate::load::{Round, as_float};
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{Comparison, LOOK_EVERY, PATIENCE, PLAIN, Size, config_of, config_text};
use crate::rows;
use crate::upstream::SMALL;

const SPLIT: &str = "/split/mcp";
const SPLIT_TASKS: &str = "/split-tasks/mcp";
const ELEMENTS: usize = 100;
const PARALLEL: usize = 8;

/// All that `wanted` asks for. Each measured request is one element.
pub(crate) async fn compare(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    let folder = TempDir::new()?;
    let ways = [
        ("element of a call that is split, plain", "memory"),
        ("element of a call that is split, as a task in memory", "memory"),
        ("element of a call that is split, as a task on disk", "disk"),
    ];
    let mut comparisons = Vec::new();
    for (what, store) in ways.into_iter().filter(|(what, _)| what.contains(wanted)) {
        let store = match store {
            "memory" => "store.kind = \"memory\"".to_owned(),
            _ => rows::store_in(&folder.path().join("data")),
        };
        let config = config_of(&format!("{}{}", config_text(upstream, &store), split_paths(upstream)))?;
        let gateway = Part::gateway(config.path()).await?;
        let mut client = SplitClient { line: Line::connect(gateway.address).await?, gateway: &gateway };
        let is_task = what.contains("task");
        let (mut of_calls, mut of_elements) = (Vec::new(), Vec::new());
        for round in 0..=size.rounds {
            let calls = client.calls(size.splits * ELEMENTS).await?;
            let elements = client.elements(size.splits, is_task).await?;
            // The first one warms both up.
            if round > 0 {
                of_calls.push(calls);
                of_elements.push(elements);
            }
        }
        let sides = [("taskgate, a plain call without a list", of_calls.as_slice()), ("taskgate", &of_elements)];
        comparisons.push(Comparison::of(what, sides));
    }
    Ok(comparisons)
}

fn split_paths(upstream: SocketAddr) -> String {
    let path = |name: &str, mode: &str| {
        format!(
            "\n[upstreams.{name}]\nurl = \"http://{upstream}/mcp\"\nin_flight_max = 10_000\ntasks.mode = \"{mode}\"\n\
             [[upstreams.{name}.tools]]\nmatch = \"{SMALL}\"\nsplit = {{ argument = \"items\", parallel = {PARALLEL} }}\n"
        )
    };
    format!("{}{}", path("split", "never"), path("split-tasks", "always"))
}

/// One client that makes calls one after the other.
struct SplitClient<'a> {
    line: Line,
    gateway: &'a Part,
}

impl SplitClient<'_> {
    async fn calls(&mut self, number: usize) -> anyhow::Result<Round> {
        let request = messages::call(PLAIN, Client::Plain, SMALL);
        let mut latencies = Vec::with_capacity(number);
        let (before, began) = (self.gateway.cpu()?, Instant::now());
        for _ in 0..number {
            let asked = Instant::now();
            let answer = self.line.ask(&request).await?;
            latencies.push(asked.elapsed());
            ensure!(has(answer, "\"content\""), "no result: {}", String::from_utf8_lossy(answer));
        }
        Ok(Round::of(latencies, self.gateway.cpu()? - before, began.elapsed()))
    }

    /// Latencies are those of the whole call.
    async fn elements(&mut self, calls: usize, is_task: bool) -> anyhow::Result<Round> {
        let arguments = json!({ "items": (0..ELEMENTS).collect::<Vec<_>>() });
        let mut latencies = Vec::with_capacity(calls);
        let (before, began) = (self.gateway.cpu()?, Instant::now());
        for _ in 0..calls {
            let asked = Instant::now();
            let whole = match is_task {
                true => self.task(&arguments).await?,
                false => {
                    let request = messages::call_with(SPLIT, Client::Plain, SMALL, &arguments);
                    serde_json::from_slice::<Value>(self.line.ask(&request).await?)?["result"].take()
                }
            };
            latencies.push(asked.elapsed());
            let content = whole["content"].as_array().map_or(0, Vec::len);
            ensure!(content == ELEMENTS && whole.get("isError").is_none(), "a wrong result: {whole}");
        }
        let elements = as_float(calls * ELEMENTS);
        let took = began.elapsed();
        let round = Round::of(latencies, self.gateway.cpu()? - before, took);
        Ok(Round { cpu: round.cpu / as_float(ELEMENTS), rate: elements / took.as_secs_f64(), ..round })
    }

    /// Makes a task and polls it to its end.
    async fn task(&mut self, arguments: &Value) -> anyhow::Result<Value> {
        let request = messages::call_with(SPLIT_TASKS, Client::OfTasks, SMALL, arguments);
        let handle: Value = serde_json::from_slice(self.line.ask(&request).await?)?;
        let Some(task) = handle["result"]["taskId"].as_str() else { anyhow::bail!("no handle: {handle}") };
        let poll = messages::poll(SPLIT_TASKS, task);
        let ends_at = Instant::now() + PATIENCE;
        loop {
            let mut seen: Value = serde_json::from_slice(self.line.ask(&poll).await?)?;
            if seen["result"]["status"] == "completed" {
                return Ok(seen["result"]["result"].take());
            }
            ensure!(Instant::now() < ends_at, "never settled: {seen}");
            tokio::time::sleep(Duration::min(LOOK_EVERY, Duration::from_millis(5))).await;
        }
    }
}

fn has(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|window| window == text.as_bytes())
}
