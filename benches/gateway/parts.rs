//! The processes of a run: started, watched through `/proc`, and ended with their owner.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal};
use support::ports::reserved_address;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

use crate::counted;

/// First argument of this program where it is to be one of its own parts.
pub(crate) const PART: &str = "part";

/// Where the parts write their logs.
const LOG: &str = "bench.log";

/// Under valgrind a start takes long.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Every held call is a socket or two: a process may have as many as the system admits at all.
const WITH_MANY_FILES: &str = r#"ulimit -n "$(ulimit -H -n)" && exec "$0" "$@""#;

/// How long a process may take to end by a signal.
const END_MAX: Duration = Duration::from_secs(30);

static IS_ENDED_BY_SIGNAL: AtomicBool = AtomicBool::new(false);

/// From now on a process is not killed before it had time to end by SIGTERM.
pub(crate) fn end_by_signal() {
    IS_ENDED_BY_SIGNAL.store(true, Ordering::Relaxed);
}

/// A process that serves HTTP. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) address: SocketAddr,
    /// `None` where it had ended before it could be asked.
    pub(crate) pid: Option<u32>,
    process: PathBuf,
    _child: Child,
    /// Kept open, as the part may go on writing.
    output: Option<Lines<BufReader<ChildStdout>>>,
    /// Where it keeps its files.
    _folder: Option<TempDir>,
}

impl Part {
    /// One of this program's own parts.
    pub(crate) async fn own(arguments: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program has no path")?;
        let arguments: Vec<&OsStr> = std::iter::once(PART).chain(arguments.iter().copied()).map(OsStr::new).collect();
        Self::start(&program, &arguments).await
    }

    /// The gateway with a configuration file.
    pub(crate) async fn gateway(config: &Path) -> anyhow::Result<Self> {
        Self::start(&gateway_program(), &[OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()]).await
    }

    /// The gateway, and beside it the other build that `TASKGATE_BENCH_BESIDE` names, each with its configuration and its
    /// name in the report.
    pub(crate) async fn gateways([config, beside]: [&Path; 2]) -> anyhow::Result<Vec<(&'static str, Self)>> {
        let mut gateways = vec![("taskgate", Self::gateway(config).await?)];
        if let Some(program) = std::env::var_os("TASKGATE_BENCH_BESIDE") {
            let arguments = [OsStr::new("serve"), OsStr::new("--config"), beside.as_os_str()];
            gateways.push((BESIDE, Self::start(Path::new(&program), &arguments).await?));
        }
        Ok(gateways)
    }

    /// The same under valgrind, which writes its counts to files that begin with `to`.
    pub(crate) async fn counted_gateway(config: &Path, to: &Path) -> anyhow::Result<Self> {
        Self::counted(&gateway_program(), &[OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()], to).await
    }

    /// One of this program's own parts under valgrind.
    pub(crate) async fn counted_own(arguments: &[&str], to: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program has no path")?;
        let arguments: Vec<&OsStr> = std::iter::once(PART).chain(arguments.iter().copied()).map(OsStr::new).collect();
        Self::counted(&program, &arguments, to).await
    }

    async fn counted(program: &Path, arguments: &[&OsStr], to: &Path) -> anyhow::Result<Self> {
        let words = counted::command(program, to);
        let words: Vec<&OsStr> = words[1..].iter().map(OsStr::new).chain(arguments.iter().copied()).collect();
        Self::start(Path::new("valgrind"), &words).await
    }

    /// Another reverse proxy, with one process; `None` where there is none on `PATH`, or it does not start.
    pub(crate) async fn proxy(proxy: Proxy, upstream: SocketAddr) -> anyhow::Result<Option<Self>> {
        let folder = TempDir::new()?;
        // It knows no port 0.
        let address = reserved_address();
        let file = folder.path().join("proxy.conf");
        std::fs::write(&file, proxy.config(address, upstream))?;
        let spawned = Command::new(proxy.program())
            .args(proxy.arguments(folder.path(), &file))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log()?)
            .kill_on_drop(true)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{} does not start", proxy.program())),
        };
        let pid = child.id().with_context(|| format!("{} ended at once", proxy.program()))?;
        let process = PathBuf::from(format!("/proc/{pid}"));
        let ends_at = Instant::now() + START_MAX;
        while child.try_wait()?.is_none() && Instant::now() < ends_at {
            if TcpStream::connect(address).await.is_ok() {
                let (pid, folder) = (Some(pid), Some(folder));
                return Ok(Some(Self { address, pid, process, _child: child, output: None, _folder: folder }));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }

    async fn start(program: &Path, arguments: &[&OsStr]) -> anyhow::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", WITH_MANY_FILES])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log()?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} does not start", program.display()))?;
        let pid = child.id().context("the process ended at once")?;
        let mut output = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let serving = async {
            while let Some(line) = output.next_line().await? {
                // A gateway with a public URL prints the listener's address separately.
                let url = line.strip_prefix("serving http://").or_else(|| line.strip_prefix("listen  http://"));
                if let Some(url) = url {
                    let authority = url.split('/').next().unwrap_or(url);
                    return authority.parse().with_context(|| format!("{authority} is no address"));
                }
            }
            bail!("{} {arguments:?} ended before it served, see {LOG} beside the report", program.display())
        };
        let address = tokio::time::timeout(START_MAX, serving).await.context("it does not get to serve")??;
        Ok(Self {
            address,
            pid: Some(pid),
            process: PathBuf::from(format!("/proc/{pid}")),
            _child: child,
            output: Some(output),
            _folder: None,
        })
    }

    /// The address that it prints behind `prefix`, after the one that it serves at.
    pub(crate) async fn printed(&mut self, prefix: &str) -> anyhow::Result<SocketAddr> {
        let output = self.output.as_mut().context("it prints nothing")?;
        let said = async {
            while let Some(line) = output.next_line().await? {
                if let Some(authority) = line.strip_prefix(prefix) {
                    return authority.parse().with_context(|| format!("{authority} is no address"));
                }
            }
            bail!("it ended before it printed {prefix:?}")
        };
        tokio::time::timeout(START_MAX, said).await.context("it does not print all its addresses")?
    }

    /// CPU time of all its threads so far, in the kernel and outside.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(self.process.join("task"))? {
            let path = thread?.path().join("schedstat");
            let text = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
            nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// The most that it ever was.
    pub(crate) fn resident_peak(&self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(self.process.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim_end().parse()?;
        Ok(kilobytes << 10)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let Some(pid) = self.pid.filter(|_| IS_ENDED_BY_SIGNAL.load(Ordering::Relaxed)) else { return };
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        // The second signal ends a drain that waits for held calls.
        for _ in 0..2 {
            if rustix::process::kill_process(pid, Signal::TERM).is_err() {
                return;
            }
            std::thread::sleep(10 * LOOK_EVERY);
        }
        let ends_at = Instant::now() + END_MAX;
        let has_ended =
            || std::fs::read_to_string(self.process.join("status")).is_ok_and(|status| status.contains("State:\tZ"));
        while self.process.exists() && !has_ended() && Instant::now() < ends_at {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A reverse proxy that others wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    Nginx,
    Haproxy,
}

impl Proxy {
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    fn arguments(self, folder: &Path, file: &Path) -> Vec<OsString> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        match self {
            Self::Nginx => [words(&["-e", "error.log", "-p"]), vec![folder.into()], words(&["-c"]), vec![file.into()]],
            Self::Haproxy => [words(&["-db", "-f"]), vec![file.into()], Vec::new(), Vec::new()],
        }
        .concat()
    }

    fn config(self, address: SocketAddr, upstream: SocketAddr) -> String {
        match self {
            Self::Nginx => nginx_config(address, upstream),
            Self::Haproxy => haproxy_config(address, upstream),
        }
    }
}

fn haproxy_config(address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend bench
    bind {address}
    default_backend upstream
backend upstream
    server upstream {upstream}
"#
    )
}

fn nginx_config(address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r#"daemon off;
master_process off;
pid nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream bench {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://bench;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"#
    )
}

/// Whether the gateway that is measured is that of this build.
pub(crate) fn is_of_this_build() -> bool {
    gateway_program() == Path::new(env!("CARGO_BIN_EXE_taskgate"))
}

/// The gateway that is measured: another one than that of this build where `TASKGATE_BENCH_PROGRAM` names it.
pub(crate) fn gateway_program() -> PathBuf {
    std::env::var_os("TASKGATE_BENCH_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_taskgate").into(), PathBuf::from)
}

/// The report's name for the other build.
const BESIDE: &str = "taskgate, the build beside";

/// All parts of a run append to one file.
pub(crate) fn log() -> anyhow::Result<File> {
    let path = crate::report::folder()?.join(LOG);
    File::options().create(true).append(true).open(&path).with_context(|| format!("cannot write {}", path.display()))
}
