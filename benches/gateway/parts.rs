//! The processes of a run: started, watched through `/proc`, and ended with their owner.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// First argument of this program where it is to be one of its own parts.
pub(crate) const PART: &str = "part";

/// Where the parts write their logs.
const LOG: &str = "bench.log";

const START_MAX: Duration = Duration::from_secs(20);

/// Every held call is a socket or two: a process may have as many as the system admits at all.
const WITH_MANY_FILES: &str = r#"ulimit -n "$(ulimit -H -n)" && exec "$0" "$@""#;

/// A process that serves HTTP. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) address: SocketAddr,
    process: PathBuf,
    _child: Child,
    /// Kept open, as the part may go on writing.
    _output: Lines<BufReader<ChildStdout>>,
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
        let program = Path::new(env!("CARGO_BIN_EXE_taskgate"));
        Self::start(program, &[OsStr::new("serve"), OsStr::new("--config"), config.as_os_str()]).await
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
                if let Some(url) = line.strip_prefix("serving http://") {
                    let authority = url.split('/').next().unwrap_or(url);
                    return authority.parse().with_context(|| format!("{authority} is no address"));
                }
            }
            bail!("{} {arguments:?} ended before it served, see {LOG} beside the report", program.display())
        };
        let address = tokio::time::timeout(START_MAX, serving).await.context("it does not get to serve")??;
        Ok(Self { address, process: PathBuf::from(format!("/proc/{pid}")), _child: child, _output: output })
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
        let status = std::fs::read_to_string(self.process.join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim_end().parse()?;
        Ok(kilobytes << 10)
    }
}

/// All parts of a run append to one file.
fn log() -> anyhow::Result<File> {
    let path = crate::report::folder()?.join(LOG);
    File::options().create(true).append(true).open(&path).with_context(|| format!("cannot write {}", path.display()))
}
