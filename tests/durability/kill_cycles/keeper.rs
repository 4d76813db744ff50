//! Starts the program, sees it die, and starts it again on the same folder.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::history::{Fact, History};

/// The longest that the program may take to serve, or to die where it is meant to.
const START_MAX: Duration = Duration::from_secs(20);
const DEATH_MAX: Duration = Duration::from_secs(20);

/// One folder, and the lives of the program on it.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: TempDir,
    log: PathBuf,
    history: Arc<History>,
    place: watch::Sender<Option<SocketAddr>>,
    child: Option<Child>,
}

impl Keeper {
    /// `upstreams` is the part of the configuration that names them.
    pub(crate) fn new(name: &str, upstreams: &str, history: Arc<History>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kill-cycles");
        std::fs::create_dir_all(&logs).unwrap();
        let log = logs.join(format!("{name}.log"));
        let _ = std::fs::remove_file(&log);
        let keeper = Self { folder, log, history, place: watch::Sender::default(), child: None };
        keeper.configure(upstreams);
        keeper
    }

    /// Writes the configuration anew, as an operator does: whole, and then in its place.
    pub(crate) fn configure(&self, upstreams: &str) {
        let folder = self.folder.path();
        let kind = std::env::var("KILL_STORE").unwrap_or_else(|_| "disk".to_owned());
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[limits]\ndrain_max = \"2s\"\n\
             [store]\nkind = \"{kind}\"\npath = \"{}\"\n{upstreams}",
            folder.join("data").display(),
        );
        let draft = folder.join("draft.toml");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, folder.join("taskgate.toml")).unwrap();
    }

    pub(crate) fn place(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.place.subscribe()
    }

    /// Where the program says what it does.
    pub(crate) const fn log(&self) -> &PathBuf {
        &self.log
    }

    /// Nobody needs it where all went well.
    pub(crate) fn forget_log(&self) {
        let _ = std::fs::remove_file(&self.log);
    }

    /// Starts the program and tells the clients where it serves. `None` if it died first.
    pub(crate) async fn start(&mut self, environment: &[(&str, &str)]) -> Option<()> {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.arg("serve").arg("--config").arg(self.folder.path().join("taskgate.toml"));
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        for variable in ["TASKGATE_FAILPOINT", "TASKGATE_SABOTAGE", "TASKGATE_STRIKE"] {
            command.env_remove(variable);
        }
        command.kill_on_drop(true);
        command.envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let served = async {
            let mut address = None;
            loop {
                let line = lines.next_line().await.ok().flatten()?;
                if let Some(url) = line.strip_prefix("serving http://") {
                    address = url.split('/').next()?.parse().ok();
                }
                // The last line: nothing is printed to a pipe that is closed.
                if line.starts_with("admin") {
                    return address;
                }
            }
        };
        let address = timeout(START_MAX, served).await.expect("the program starts or ends in time");
        self.child = Some(child);
        if address.is_none() {
            self.wait().await;
            return None;
        }
        self.history.record(Fact::Starts);
        self.place.send_replace(address);
        Some(())
    }

    /// Waits for the program's end.
    async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was started");
        let status = timeout(DEATH_MAX, child.wait()).await.expect("the program ends in time").unwrap();
        if self.place.send_replace(None).is_some() {
            self.history.record(Fact::Ends);
        }
        status
    }

    /// Waits until the program kills itself.
    ///
    /// # Errors
    /// If it lives on, or ends in another way.
    pub(crate) async fn dies(&mut self) -> Result<(), String> {
        let mut child = self.child.take().expect("it was started");
        let died = timeout(DEATH_MAX, child.wait()).await;
        self.child = Some(child);
        if died.is_err() {
            return Err("the point was never reached".to_owned());
        }
        let status = self.wait().await;
        if status.signal() == Some(9) { Ok(()) } else { Err(format!("the program ended with {status}")) }
    }

    /// `kill -9`.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait().await;
    }

    /// Waits for an end in order.
    ///
    /// # Errors
    /// If it ends otherwise.
    pub(crate) async fn leaves(&mut self) -> Result<(), String> {
        let status = self.wait().await;
        if status.success() { Ok(()) } else { Err(format!("the program ended with {status}")) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // An id belongs to the child as long as it was not reaped.
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let _ = kill_process(id.expect("it runs"), signal);
    }
}
