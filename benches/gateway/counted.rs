//! Instructions in user space and allocations for one request, counted by valgrind:
//! `cargo bench --bench gateway -- --instructions`.
//!
//! A count does not depend on what else the machine does, so that counts of two programs can be compared: with
//! `TASKGATE_BENCH_PROGRAM` another gateway is counted, such as the one before a change.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::baseline::{Cost, Count};
use crate::credentials::{self, Kind, Login, Row, Way};
use crate::line::{Line, Protocol};
use crate::load::{Crowd, Question};
use crate::messages;
use crate::parts::{self, Part};
use crate::plan::{self, LOOK_EVERY, PATIENCE, TASKS};
use crate::upstream::{LARGE, SMALL};
use crate::{bare, bare_tasks, baseline, report, rows, upstream};

const CLIENTS: usize = 4;
/// Requests before the count begins: connections, pools, the list of tools.
const WARMING: usize = 200;
/// Requests of one count.
const REQUESTS: usize = 1_000;
const LARGE_REQUESTS: usize = 100;

/// Counts everything whose name contains `wanted`, and leaves the table in the folder of reports.
///
/// # Errors
/// If a part does not start, an answer is wrong, or valgrind is missing; if a path takes more than was kept, where the gateway
/// is that of this build.
pub(crate) async fn run(wanted: &str) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let at = folder.path().to_str().context("the folder for temporary files has a strange name")?;
    let upstream = Part::own(&[upstream::NAME, at]).await?;
    let mut counts = Vec::new();
    for config in [store_in_memory(upstream.address, folder.path()), store_on_disk(upstream.address, folder.path())] {
        let (name, text) = config?;
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        let mut gateway = Counted::gateway(&file).await?;
        if name == "memory" {
            calls(&mut gateway, upstream.address, wanted, &mut counts).await?;
            polls(&mut gateway, upstream.address, wanted, &mut counts).await?;
        }
        let log = folder.path().join("log");
        let log = (name == "disk").then(|| log.to_string_lossy());
        lives(&mut gateway, (upstream.address, log.as_deref()), (name, wanted), &mut counts).await?;
    }
    with_credentials(upstream.address, wanted, &mut counts).await?;
    through_wrap(upstream.address, wanted, &mut counts).await?;
    let table = baseline::table(&counts)?;
    std::io::stdout().write_all(table.as_bytes())?;
    std::fs::write(report::folder()?.join("instructions").with_extension("md"), table)?;
    if parts::is_of_this_build() { baseline::check(&counts) } else { Ok(()) }
}

fn store_in_memory(upstream: SocketAddr, _: &Path) -> anyhow::Result<(&'static str, String)> {
    Ok(("memory", plan::config_text(upstream, "store.kind = \"memory\"")))
}

fn store_on_disk(upstream: SocketAddr, folder: &Path) -> anyhow::Result<(&'static str, String)> {
    Ok(("disk", plan::config_text(upstream, &rows::store_in(&folder.join("store")))))
}

/// Calls through the gateway, next to the bare proxy.
async fn calls(
    gateway: &mut Counted<Part>,
    upstream: SocketAddr,
    wanted: &str,
    counts: &mut Vec<Count>,
) -> anyhow::Result<()> {
    let upstream = upstream.to_string();
    let mut proxy = Counted::own(&[bare::PROXY, &upstream]).await?;
    for row in plan::counted_rows().filter(|row| row.what.contains(wanted)) {
        let (at_gateway, at_proxy) = row.requests(&gateway.server).await?;
        let at_gateway = plan::call_of(row, &at_gateway, &gateway.server).await?;
        let at_proxy = plan::call_of(row, &at_proxy, &proxy.server).await?;
        let requests = requests_of(row.tool);
        let bare = Some(proxy.of(at_proxy, requests).await?);
        counts.push(Count { what: row.what.to_owned(), bare, gateway: gateway.of(at_gateway, requests).await? });
    }
    Ok(())
}

async fn polls(
    gateway: &mut Counted<Part>,
    upstream: SocketAddr,
    wanted: &str,
    counts: &mut Vec<Count>,
) -> anyhow::Result<()> {
    let mut tasks = Counted::own(&[bare_tasks::TASKS, &upstream.to_string()]).await?;
    for (what, tool) in [("tasks/get, small result", SMALL), ("tasks/get, 100 kB result", LARGE)] {
        if what.contains(wanted) {
            let (at_bare, at_gateway) = plan::polls_of(tool, &tasks.server, &gateway.server).await?;
            let bare = Some(tasks.of(at_bare, requests_of(tool)).await?);
            let gateway = gateway.of(at_gateway, requests_of(tool)).await?;
            counts.push(Count { what: what.to_owned(), bare, gateway });
        }
    }
    Ok(())
}

/// Calls that are tasks at once: up to their stored outcome, and with two polls of it.
async fn lives(
    gateway: &mut Counted<Part>,
    (upstream, log): (SocketAddr, Option<&str>),
    (name, wanted): (&str, &str),
    counts: &mut Vec<Count>,
) -> anyhow::Result<()> {
    let names = ["create and settle", "whole life with two polls"].map(|what| format!("{what}, {name}"));
    if !names.iter().any(|what| what.contains(wanted)) {
        return Ok(());
    }
    let upstream = upstream.to_string();
    let arguments: Vec<&str> = [bare_tasks::TASKS, &upstream].into_iter().chain(log).collect();
    let bare = Counted::own(&arguments).await?.life().await?;
    let gateway = gateway.life().await?;
    for (what, (bare, gateway)) in names.into_iter().zip(bare.into_iter().zip(gateway)) {
        counts.push(Count { what, bare: Some(bare), gateway });
    }
    Ok(())
}

async fn create_and_settle(lines: &mut [Line], count: usize) -> anyhow::Result<Vec<String>> {
    let mut made = Vec::with_capacity(count);
    for number in 0..count {
        made.push(plan::create(&mut lines[number % CLIENTS], SMALL).await?);
    }
    let last = made.last().context("a task was made")?;
    let settled = async {
        while status(&mut lines[0], last).await? != "completed" {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, settled).await.context("never settled")??;
    Ok(made)
}

async fn status(line: &mut Line, task: &str) -> anyhow::Result<Value> {
    let mut answer: Value = serde_json::from_slice(line.ask(&messages::poll(TASKS, task)).await?)?;
    Ok(answer["result"]["status"].take())
}

/// Calls of `taskgate wrap --url`, one after the other. Programs cannot be counted behind the gateway: what starts them is
/// the gateway's own program once more, and `/proc/self/exe` is valgrind's here.
async fn through_wrap(upstream: SocketAddr, wanted: &str, counts: &mut Vec<Count>) -> anyhow::Result<()> {
    let what = "call through wrap, small answer";
    if !what.contains(wanted) {
        return Ok(());
    }
    let mut host = Counted::host(upstream)?;
    host.server.greet().await?;
    host.server.call(WARMING).await?;
    host.counts.taken().await?;
    host.server.call(REQUESTS).await?;
    let gateway = host.counts.taken().await? / REQUESTS;
    counts.push(Count { what: what.to_owned(), bare: None, gateway });
    Ok(())
}

/// Requests with each kind of credential, next to the same with an API key.
async fn with_credentials(upstream: SocketAddr, wanted: &str, counts: &mut Vec<Count>) -> anyhow::Result<()> {
    let rows: Vec<Row> = credentials::ROWS.into_iter().filter(|row| row.what.contains(wanted)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let login = Login::new()?;
    let start = async |kind| Counted::gateway(plan::config_of(&login.config(upstream, kind))?.path()).await;
    let mut with_key = start(Kind::ApiKey).await?;
    let mut bare = Vec::new();
    for way in [Way::Call, Way::Poll] {
        let question = login.question(&with_key.server, (way, Kind::ApiKey), 1).await?;
        bare.push((way, with_key.of(question, REQUESTS).await?));
    }
    for row in rows {
        let mut other = if row.kind.is_served_with_keys() { None } else { Some(start(row.kind).await?) };
        let gateway = other.as_mut().unwrap_or(&mut with_key);
        let question = login.question(&gateway.server, (row.way, row.kind), WARMING + REQUESTS).await?;
        let cost = gateway.of(question, REQUESTS).await?;
        let bare = bare.iter().find(|(way, _)| *way == row.way).map(|(_, cost)| *cost);
        counts.push(Count { what: row.what.to_owned(), bare, gateway: cost });
    }
    Ok(())
}

fn requests_of(tool: &str) -> usize {
    if tool == LARGE { LARGE_REQUESTS } else { REQUESTS }
}

/// A server whose instructions are counted.
struct Counted<S> {
    server: S,
    counts: Counts,
}

impl<S> Counted<S> {
    fn new(server: S, pid: Option<u32>, folder: TempDir) -> anyhow::Result<Self> {
        Ok(Self { server, counts: Counts { pid: pid.context("it ended")?, folder, dumps: 0 } })
    }
}

impl Counted<Host> {
    fn host(upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let host = Host::start(upstream, &counts_in(&folder))?;
        let pid = host.child.id();
        Self::new(host, pid, folder)
    }
}

impl Counted<Part> {
    async fn gateway(config: &Path) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let part = Part::counted_gateway(config, &counts_in(&folder)).await?;
        let pid = part.pid;
        Self::new(part, pid, folder)
    }

    async fn own(arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let part = Part::counted_own(arguments, &counts_in(&folder)).await?;
        let pid = part.pid;
        Self::new(part, pid, folder)
    }

    /// The cost of a task: up to its stored outcome; and with two polls of it.
    async fn life(&mut self) -> anyhow::Result<[Cost; 2]> {
        let mut lines = Vec::new();
        for _ in 0..CLIENTS {
            lines.push(Line::connect(self.server.address).await?);
        }
        create_and_settle(&mut lines, WARMING).await?;
        self.counts.taken().await?;
        let made = create_and_settle(&mut lines, REQUESTS).await?;
        let settled = self.counts.taken().await?;
        for (number, task) in made.iter().cycle().take(2 * REQUESTS).enumerate() {
            status(&mut lines[number % CLIENTS], task).await?;
        }
        let polled = self.counts.taken().await?;
        Ok([settled, settled + polled].map(|all| all / REQUESTS))
    }

    /// The cost of one request, over `requests` of them.
    async fn of(&mut self, question: Question, requests: usize) -> anyhow::Result<Cost> {
        let mut crowd = Crowd::connect(self.server.address, (CLIENTS, Protocol::Http1), question).await?;
        crowd.round(&[&self.server], requests.min(WARMING)).await?;
        self.counts.taken().await?;
        crowd.round(&[&self.server], requests).await?;
        Ok(self.counts.taken().await? / requests)
    }
}

/// What the names of the files with counts begin with.
fn counts_in(folder: &TempDir) -> PathBuf {
    folder.path().join("counts")
}

/// What valgrind counts of one process.
struct Counts {
    pid: u32,
    folder: TempDir,
    dumps: u32,
}

impl Counts {
    /// The cost of all requests since this was called before.
    async fn taken(&mut self) -> anyhow::Result<Cost> {
        let asked = Command::new("callgrind_control").arg("--dump").arg(self.pid.to_string()).output();
        let asked = timeout(PATIENCE, asked).await.context("callgrind_control does not end")??;
        ensure!(asked.status.success(), "callgrind_control: {}", String::from_utf8_lossy(&asked.stderr));
        self.dumps += 1;
        let dump = counts_in(&self.folder).with_extension(self.dumps.to_string());
        let total = async {
            loop {
                let text = std::fs::read_to_string(&dump).unwrap_or_default();
                if let Some(total) = text.lines().rev().find_map(|line| line.strip_prefix("totals: ")) {
                    return Ok(Cost { instructions: total.trim().parse()?, allocations: allocations_in(&text) });
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        timeout(PATIENCE, total).await.context("no counts were written")?
    }
}

/// What the program's own code calls for memory; libraries in C have another allocator.
const ALLOCATORS: [&str; 3] = ["mi_malloc_aligned", "mi_zalloc_aligned", "mi_realloc_aligned"];

/// The calls of the allocator in callgrind's file, which names a function once and then by its number. `None` if the program has
/// no names.
fn allocations_in(dump: &str) -> Option<f64> {
    let (mut allocators, mut calls, mut is_called) = (Vec::new(), 0_u64, false);
    for line in dump.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if ALLOCATORS.contains(&name) {
                allocators.push(number);
            }
            is_called = line.starts_with('c') && allocators.contains(&number);
        } else if let Some(count) = line.strip_prefix("calls=").filter(|_| is_called) {
            calls += count.split(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
        }
    }
    (!allocators.is_empty()).then_some(calls as f64)
}

/// The command that counts the instructions of a program, but not of those that it starts.
pub(crate) fn command(program: &Path, to: &Path) -> [OsString; 6] {
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(to);
    let words = ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=no"].map(OsString::from);
    let [valgrind, quiet, tool, children] = words;
    [valgrind, quiet, tool, children, file, program.as_os_str().to_owned()]
}

/// A host with `taskgate wrap` as its server. Killed when dropped.
struct Host {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Host {
    fn start(upstream: SocketAddr, to: &Path) -> anyhow::Result<Self> {
        let mut words = command(&parts::gateway_program(), to).to_vec();
        words.extend(["wrap".into(), "--url".into(), format!("http://{upstream}/mcp").into()]);
        let mut child = Command::new(&words[0])
            .args(words[1..].iter().map(OsStr::new))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(parts::log()?)
            .kill_on_drop(true)
            .spawn()
            .context("valgrind does not start")?;
        let stdin = child.stdin.take().context("its input is piped")?;
        let stdout = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        Ok(Self { child, stdin, stdout })
    }

    async fn greet(&mut self) -> anyhow::Result<()> {
        let client = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        self.ask(0, "initialize", &params).await?;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        Ok(self.stdin.write_all(format!("{initialized}\n").as_bytes()).await?)
    }

    async fn call(&mut self, times: usize) -> anyhow::Result<()> {
        for id in 1..=times {
            let answer = self.ask(id, "tools/call", &json!({"name": SMALL, "arguments": {}})).await?;
            ensure!(answer["result"]["content"][0]["text"] == upstream::text_of(SMALL), "a wrong answer: {answer}");
        }
        Ok(())
    }

    async fn ask(&mut self, id: usize, method: &str, params: &Value) -> anyhow::Result<Value> {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.stdin.write_all(format!("{request}\n").as_bytes()).await?;
        let line = timeout(PATIENCE, self.stdout.next_line()).await.context("no answer")??;
        let answer: Value = serde_json::from_str(&line.context("wrap ended")?)?;
        ensure!(answer["id"] == id, "an answer to another: {answer}");
        Ok(answer)
    }
}
