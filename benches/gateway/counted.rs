//! Instructions in user space for one request, counted by valgrind: `cargo bench --bench gateway -- --instructions`.
//!
//! A count does not depend on what else the machine does, so that counts of two programs can be compared: with
//! `TASKGATE_BENCH_PROGRAM` another gateway is counted, such as the one before a change.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
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

use crate::line::{Line, Protocol};
use crate::load::{Crowd, Question};
use crate::messages;
use crate::parts::{self, Part};
use crate::plan::{self, LOOK_EVERY, PATIENCE, TASKS};
use crate::upstream::{LARGE, SMALL};
use crate::{bare, report, rows, upstream};

const CLIENTS: usize = 4;
/// Requests before the count begins: connections, pools, the list of tools.
const WARMING: usize = 200;
/// Requests of one count.
const REQUESTS: usize = 1_000;
const LARGE_REQUESTS: usize = 100;

/// Counts everything whose name contains `wanted`, and leaves the table in the folder of reports.
///
/// # Errors
/// If a part does not start, an answer is wrong, or valgrind is missing.
pub(crate) async fn run(wanted: &str) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let at = folder.path().to_str().context("the folder for temporary files has a strange name")?;
    let upstream = Part::own(&[upstream::NAME, at]).await?;
    let mut table = String::from("| what | bare | gateway | ratio |\n|---|---:|---:|---:|\n");
    for config in [store_in_memory(upstream.address, folder.path()), store_on_disk(upstream.address, folder.path())] {
        let (name, text) = config?;
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        let mut gateway = Counted::gateway(&file).await?;
        if name == "memory" {
            calls(&mut gateway, upstream.address, wanted, &mut table).await?;
            polls(&mut gateway, wanted, &mut table).await?;
        }
        creates(&mut gateway, &format!("create and settle, {name}"), wanted, &mut table).await?;
    }
    through_wrap(upstream.address, wanted, &mut table).await?;
    std::io::stdout().write_all(table.as_bytes())?;
    Ok(std::fs::write(report::folder()?.join("instructions").with_extension("md"), table)?)
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
    table: &mut String,
) -> anyhow::Result<()> {
    let upstream = upstream.to_string();
    let mut proxy = Counted::own(&[bare::PROXY, &upstream]).await?;
    for row in plan::counted_rows().filter(|row| row.what.contains(wanted)) {
        let (at_gateway, at_proxy) = row.requests(&gateway.server).await?;
        let at_gateway = plan::call_of(row, &at_gateway, &gateway.server).await?;
        let at_proxy = plan::call_of(row, &at_proxy, &proxy.server).await?;
        let requests = requests_of(row.tool);
        let bare = proxy.of(at_proxy, requests).await?;
        add(table, row.what, Some(bare), gateway.of(at_gateway, requests).await?)?;
    }
    Ok(())
}

async fn polls(gateway: &mut Counted<Part>, wanted: &str, table: &mut String) -> anyhow::Result<()> {
    let mut tasks = Counted::own(&[bare::TASKS]).await?;
    for (what, tool) in [("tasks/get, small result", SMALL), ("tasks/get, 100 kB result", LARGE)] {
        if what.contains(wanted) {
            let (at_bare, at_gateway) = plan::polls_of(tool, &tasks.server, &gateway.server).await?;
            let bare = tasks.of(at_bare, requests_of(tool)).await?;
            add(table, what, Some(bare), gateway.of(at_gateway, requests_of(tool)).await?)?;
        }
    }
    Ok(())
}

/// Calls that are tasks at once, up to their stored outcome.
async fn creates(gateway: &mut Counted<Part>, what: &str, wanted: &str, table: &mut String) -> anyhow::Result<()> {
    if !what.contains(wanted) {
        return Ok(());
    }
    let mut lines = Vec::new();
    for _ in 0..CLIENTS {
        lines.push(Line::connect(gateway.server.address).await?);
    }
    create_and_settle(&mut lines, WARMING).await?;
    gateway.counts.taken().await?;
    create_and_settle(&mut lines, REQUESTS).await?;
    add(table, what, None, gateway.counts.taken().await? / REQUESTS as u64)
}

async fn create_and_settle(lines: &mut [Line], count: usize) -> anyhow::Result<()> {
    let mut last = None;
    for number in 0..count {
        let line = &mut lines[number % CLIENTS];
        last = Some(plan::create(line, SMALL).await?);
    }
    let poll = messages::poll(TASKS, &last.context("a task was made")?);
    let settled = async {
        while serde_json::from_slice::<Value>(lines[0].ask(&poll).await?)?["result"]["status"] != "completed" {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, settled).await.context("never settled")?
}

/// Calls of `taskgate wrap --url`, one after the other. Programs cannot be counted behind the gateway: what starts them is
/// the gateway's own program once more, and `/proc/self/exe` is valgrind's here.
async fn through_wrap(upstream: SocketAddr, wanted: &str, table: &mut String) -> anyhow::Result<()> {
    let what = "call through wrap, small answer";
    if !what.contains(wanted) {
        return Ok(());
    }
    let mut host = Counted::host(upstream)?;
    host.server.greet().await?;
    host.server.call(WARMING).await?;
    host.counts.taken().await?;
    host.server.call(REQUESTS).await?;
    add(table, what, None, host.counts.taken().await? / REQUESTS as u64)
}

fn requests_of(tool: &str) -> usize {
    if tool == LARGE { LARGE_REQUESTS } else { REQUESTS }
}

fn add(table: &mut String, what: &str, bare: Option<u64>, gateway: u64) -> anyhow::Result<()> {
    let thousands = |count: u64| format!("{:.1} k", count as f64 / 1e3);
    let (bare, ratio) =
        bare.map_or_else(Default::default, |bare| (thousands(bare), format!("{:.2}", gateway as f64 / bare as f64)));
    Ok(writeln!(table, "| {what} | {bare} | {} | {ratio} |", thousands(gateway))?)
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

    /// Instructions of one request, over `requests` of them.
    async fn of(&mut self, question: Question, requests: usize) -> anyhow::Result<u64> {
        let mut crowd = Crowd::connect(self.server.address, (CLIENTS, Protocol::Http1), question).await?;
        crowd.round(&self.server, requests.min(WARMING)).await?;
        self.counts.taken().await?;
        crowd.round(&self.server, requests).await?;
        Ok(self.counts.taken().await? / requests as u64)
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
    /// Instructions since this was asked for before.
    async fn taken(&mut self) -> anyhow::Result<u64> {
        let asked = Command::new("callgrind_control").arg("--dump").arg(self.pid.to_string()).output();
        let asked = timeout(PATIENCE, asked).await.context("callgrind_control does not end")??;
        ensure!(asked.status.success(), "callgrind_control: {}", String::from_utf8_lossy(&asked.stderr));
        self.dumps += 1;
        let dump = counts_in(&self.folder).with_extension(self.dumps.to_string());
        let total = async {
            loop {
                let text = std::fs::read_to_string(&dump).unwrap_or_default();
                if let Some(total) = text.lines().rev().find_map(|line| line.strip_prefix("totals: ")) {
                    return Ok(total.trim().parse()?);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        timeout(PATIENCE, total).await.context("no counts were written")?
    }
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
