//! The program in one folder, process after process.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};
use support::peers::WAIT_MAX;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// How long a gateway may take to end, with any calls in progress.
const END_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    /// Asked to, and waited for: less long than the drain would wait for calls.
    InOrder,
}

/// A gateway, its folder, and its current address.
pub(crate) struct Gateway {
    folder: TempDir,
    log: PathBuf,
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    /// Starts it in front of the server at `url`; `keys` stand in the upstream's section. `name` is the one of its log.
    pub(crate) async fn start(name: &str, url: &str, keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[limits]\ndrain_max = \"10m\"\n\
             [store]\nkind = \"disk\"\npath = \"data\"\nephemeral = true\n\
             [upstreams.up]\nurl = \"{url}\"\npath = \"/mcp\"\n\
             [upstreams.up.tasks]\nmode = \"always\"\npoll_interval = \"100ms\"\n{keys}\n"
        );
        std::fs::write(folder.path().join("taskgate.toml"), text).unwrap();
        let log = super::process::log_file(&format!("{name}-gateway")).unwrap();
        let _ = std::fs::remove_file(&log);
        let (child, address) = live(&folder, &log).await;
        Self { folder, log, child, address }
    }

    /// Ends this process and waits for its end.
    pub(crate) async fn end(&mut self, how: End) {
        let signal = match how {
            End::Killed => Signal::KILL,
            End::InOrder => Signal::TERM,
        };
        let id = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("it runs");
        kill_process(id, signal).unwrap();
        let status = timeout(END_MAX, self.child.wait()).await.expect("it waits for no call").unwrap();
        match how {
            End::Killed => assert_eq!(status.signal(), Some(9), "{status}"),
            End::InOrder => assert!(status.success(), "{status}"),
        }
    }

    /// Starts the next process.
    pub(crate) async fn start_again(&mut self) {
        (self.child, self.address) = live(&self.folder, &self.log).await;
    }

    /// Waits until the rows of so many calls have their resume tokens: from then on a crash loses none.
    pub(crate) async fn keeps(&self, calls: usize) {
        let file = self.folder.path().join("data/tasks.db");
        let kept = async {
            let mut seen = usize::MAX;
            while seen != calls {
                sleep(POLL).await;
                seen = resumable(&file).unwrap_or(seen);
            }
        };
        timeout(WAIT_MAX, kept).await.expect("where calls can be taken up is kept in time");
    }
}

/// How many rows bear a token of the HTTP transport's. The program is the file's only writer.
fn resumable(file: &std::path::Path) -> rusqlite::Result<usize> {
    let reader = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.busy_timeout(Duration::from_secs(5))?;
    let count = "SELECT count(*) FROM tasks JOIN records ON records.row = tasks.record
                 WHERE settled = 0 AND instr(records.record, CAST('retry_ms' AS BLOB)) > 0";
    let rows: u32 = reader.query_row(count, [], |row| row.get(0))?;
    Ok(usize::try_from(rows).unwrap())
}

async fn live(folder: &TempDir, log: &PathBuf) -> (Child, SocketAddr) {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(support::taskgate());
    command.args(["serve", "--config", "taskgate.toml"]).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let served = async {
        let mut address = None;
        loop {
            let line = lines.next_line().await.unwrap().expect("it serves");
            if let Some(url) = line.strip_prefix("serving http://") {
                address = url.split('/').next().and_then(|address| address.parse().ok());
            }
            // The last line: nothing is printed to a pipe that is closed.
            if line.starts_with("admin") {
                return address.expect("it says where");
            }
        }
    };
    let address = timeout(WAIT_MAX, served).await.expect("it serves in time");
    (child, address)
}
