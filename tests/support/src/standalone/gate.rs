//! The gateway in a process of its own, and a look at all processes that came from it.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::scripted::ScriptedServer;
use crate::{hostile_twin, processes};

/// The longest that anything may take.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("it takes too long")
}

/// A gateway in front of the demo server as `up`. Killed when dropped.
pub struct GatewayProcess {
    child: Child,
    pub address: SocketAddr,
    admin: SocketAddr,
    log: watch::Receiver<String>,
    dir: TempDir,
    _hostile: Option<ScriptedServer>,
}

/// The program, once it serves. Killed when dropped.
pub struct StartedProgram {
    pub child: Child,
    pub clients: SocketAddr,
    pub admin: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub log: watch::Receiver<String>,
}

impl StartedProgram {
    /// Starts `taskgate serve`, and reads the addresses that it prints.
    pub async fn launch(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (sender, log) = watch::channel(String::new());
        TaskTracker::new().spawn(gather(child.stderr.take().unwrap(), sender));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addresses = in_time(async {
            let (mut clients, mut metrics) = (None, None);
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(url) = line.strip_prefix("serving ") {
                    clients = url.split('/').nth(2).and_then(|authority| authority.parse().ok());
                } else if let Some(address) = line.strip_prefix("listen  http") {
                    let url = address.trim_start_matches(['s', ':', '/']);
                    clients = Some(url.trim().parse().unwrap());
                } else if let Some(url) = line.strip_prefix("metrics http://") {
                    metrics = Some(url.trim().parse().unwrap());
                } else if let Some(url) = line.strip_prefix("admin   http://") {
                    return Some((clients?, url.trim().parse().unwrap(), metrics));
                }
            }
            None
        });
        let Some((clients, admin, metrics)) = addresses.await else { panic!("not started: {}", *log.borrow()) };
        Self { child, clients, admin, metrics, log }
    }
}

/// The upstream's section, less its header: the demo server.
pub fn demo(mark: &str) -> String {
    section(crate::taskgate(), "demo-server", mark)
}

/// The same as a bad server, with the faults named.
pub fn faulty_demo(faults: &str, mark: &str) -> String {
    section(crate::faulty_demo(), &format!("--faults={faults}"), mark)
}

fn section(program: &str, word: &str, mark: &str) -> String {
    format!("command = {program:?}\nargs = [{word:?}]\nenv = {{ MARK = {mark:?} }}\n")
}

impl GatewayProcess {
    /// In front of a demo server with these faults; `keys` stand in the upstream's section.
    pub async fn with(faults: &str, keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let upstream = faulty_demo(faults, dir.path().to_str().unwrap());
        Self::start(dir, &format!("{upstream}{keys}")).await
    }

    pub async fn new() -> Self {
        Self::with("", "").await
    }

    /// In front of the upstream whose section `upstream` is. The standard error of programs is in the log.
    pub async fn start(dir: TempDir, upstream: &str) -> Self {
        Self::logging(dir, upstream, "info,taskgate::upstream::transport::stdio::program_output=debug").await
    }

    /// The same with this in the log.
    pub async fn logging(dir: TempDir, upstream: &str, filter: &str) -> Self {
        let file = dir.path().join("taskgate.toml");
        let data = dir.path().join("data");
        let (section, hostile) = hostile_twin::section_of("up", "/up/mcp", upstream).await;
        let text = format!(
            "[store]\nkind = \"memory\"\npath = {data:?}\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [listen]\naddress = \"127.0.0.1:0\"\n[limits]\nresult_bytes_max = \"1MiB\"\n{section}\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(crate::taskgate());
        command.env("TASKGATE_LOG", filter).env("GATEWAYS_OWN", "secret").args(["serve", "--config"]).arg(file);
        let StartedProgram { child, clients, admin, log, .. } = StartedProgram::launch(command).await;
        Self { child, address: clients, admin, log, dir, _hostile: hostile }
    }

    /// The part of the log that has arrived so far.
    pub fn log(&self) -> String {
        self.log.borrow().clone()
    }

    /// Waits until the log has this text. A line comes here whenever its writer, the gateway and this process had their
    /// turns, so an answer may come before it.
    pub async fn until_logged(&self, text: &str) {
        let mut log = self.log.clone();
        let logged = tokio::time::timeout(WAIT_MAX, log.wait_for(|log| log.contains(text))).await;
        let is_logged = matches!(logged, Ok(Ok(_)));
        assert!(is_logged, "not in the log: {text}\n{}", self.log());
    }

    /// How many things of the upstream's were dropped for this reason.
    pub async fn dropped(&self, reason: &str) -> u64 {
        self.counted("taskgate_upstream_dropped_total", reason).await
    }

    /// How often the upstream failed for this reason.
    pub async fn failures(&self, reason: &str) -> u64 {
        self.counted("taskgate_upstream_failures_total", reason).await
    }

    /// The operators' view of the upstream: its state, and its last failure.
    pub async fn health(&self) -> Value {
        let page = super::client::get(self.admin, "/readyz?verbose").await;
        let all = serde_json::from_str::<Value>(&page).unwrap()["upstreams"].take();
        all.as_array().unwrap().iter().find(|one| one["name"] == "up").unwrap().clone()
    }

    async fn counted(&self, counter: &str, reason: &str) -> u64 {
        let page = super::client::get(self.admin, "/metrics").await;
        let is_meant = |line: &&str| line.starts_with(counter) && line.contains("\"up\"") && line.contains(reason);
        page.lines().filter(is_meant).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// The processes of the gateway that run: supervisors and their programs, by process id.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("MARK={}", self.dir.path().display());
        let all = fs::read_dir("/proc").unwrap().flatten();
        let ids: Vec<u32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        assert!(ids.len() >= 2, "at least this test and the first process are there");
        ids.into_iter().filter(|id| environ(*id).contains(&mark)).collect()
    }

    /// The programs among them.
    pub fn programs(&self) -> Vec<u32> {
        let is_program = |id: &u32| command_line(*id).get(1).is_some_and(|word| word != "supervise");
        self.processes().into_iter().filter(is_program).collect()
    }

    /// Waits until so many of them live.
    pub async fn until_processes(&self, count: usize) {
        let waiting = async {
            while self.processes().len() != count {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, waiting).await.is_err() {
            let left: Vec<_> = self.processes().into_iter().map(command_line).collect();
            panic!("{} instead of {count} are left: {left:?}\n{}", left.len(), self.log());
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Open descriptors of the gateway.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Ends the gateway without a word.
    pub async fn kill(&mut self) {
        in_time(self.child.kill()).await.unwrap();
    }

    /// Ends the gateway as a service manager does; the exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        assert!(processes::signal(self.id(), "TERM"));
        in_time(self.child.wait()).await.unwrap().code()
    }
}

fn texts(file: String) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into())
        .collect()
}

pub fn environ(id: u32) -> Vec<String> {
    texts(format!("/proc/{id}/environ"))
}

pub fn command_line(id: u32) -> Vec<String> {
    texts(format!("/proc/{id}/cmdline"))
}

async fn gather(output: ChildStderr, sender: watch::Sender<String>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        sender.send_modify(|log| {
            log.push_str(&line);
            log.push('\n');
        });
    }
}
