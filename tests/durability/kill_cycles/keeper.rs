//! Starts the program, sees it die, and starts it again on the same folder.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::scripted::WAIT_MAX;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::history::{Fact, History};

/// The longest that the program may take to serve, also if it rewrites all rows of a database; and to die at a
/// failpoint.
const START_MAX: Duration = Duration::from_secs(120);
const DEATH_MAX: Duration = WAIT_MAX;
/// A free port of this machine.
const ANYWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

/// One folder, and the processes that run in it.
#[derive(Debug)]
pub(crate) struct Keeper {
    folder: TempDir,
    log: PathBuf,
    /// The sections of the configuration in front of the upstreams.
    head: String,
    /// Further keys of the section of the clients' listener.
    listen: String,
    history: Arc<History>,
    /// Where this and other programs serve.
    addresses: watch::Sender<Vec<SocketAddr>>,
    /// The network namespace that the program runs in, if that is not this one.
    namespace: Option<String>,
    /// The program to run: this build's, unless another is named.
    program: PathBuf,
    child: Option<Child>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
    address: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

impl Keeper {
    /// `upstreams` is the part of the configuration that names them.
    pub(crate) fn new(name: &str, upstreams: &str, history: Arc<History>) -> Self {
        let kind = std::env::var("KILL_STORE").unwrap_or_else(|_| "disk".to_owned());
        let store =
            |folder: &Path| format!("[store]\nkind = \"{kind}\"\npath = \"{}\"\n", folder.join("data").display());
        Self::beside((name, &store), upstreams, history, watch::Sender::default())
    }

    /// One of several, with further sections of the configuration, which are made for its folder.
    pub(crate) fn beside(
        (name, sections): (&str, &dyn Fn(&Path) -> String),
        upstreams: &str,
        history: Arc<History>,
        addresses: watch::Sender<Vec<SocketAddr>>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kill-cycles");
        fs::create_dir_all(&logs).unwrap();
        let log = logs.join(format!("{name}.log"));
        let _ = fs::remove_file(&log);
        let head = sections(folder.path());
        let (child, lines, address, admin) = (None, None, None, None);
        let program = PathBuf::from(support::taskgate());
        let keeper = Self {
            folder,
            log,
            head,
            listen: String::new(),
            history,
            addresses,
            namespace: None,
            program,
            child,
            lines,
            address,
            admin,
        };
        keeper.configure(upstreams);
        keeper
    }

    /// Replaces the configuration in one step, as an operator does.
    pub(crate) fn configure(&self, upstreams: &str) {
        self.configure_at([ANYWHERE; 2], upstreams);
    }

    /// The same with addresses for clients and for operators.
    pub(crate) fn configure_at(&self, [clients, admin]: [SocketAddr; 2], upstreams: &str) {
        let folder = self.folder.path();
        let text = format!(
            "[listen]\naddress = \"{clients}\"\n{}[admin]\naddress = \"{admin}\"\n[limits]\ndrain_max = \"2s\"\ntasks_per_principal_max = 2_000\n{}{upstreams}",
            self.listen, self.head
        );
        let draft = folder.join("draft.toml");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, folder.join("taskgate.toml")).unwrap();
    }

    /// Has the program run in a network namespace, which root alone may.
    pub(crate) fn run_in(&mut self, namespace: &str) {
        self.namespace = Some(namespace.to_owned());
    }

    /// Has another build of the program run from the next start on.
    pub(crate) fn run_program(&mut self, program: &str) {
        self.program = PathBuf::from(program);
    }

    /// Adds keys to the last of the sections in front of the upstreams; [`Keeper::configure`] writes them.
    pub(crate) fn add_keys(&mut self, keys: &str) {
        self.head.push_str(keys);
    }

    /// Puts keys in the section of the clients' listener; [`Keeper::configure`] writes them.
    pub(crate) fn listen_with(&mut self, keys: &str) {
        keys.clone_into(&mut self.listen);
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn addresses(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.addresses.subscribe()
    }

    /// Where it serves clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("it serves")
    }

    /// Where it serves operators.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin.expect("it serves")
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The file with the program's log.
    pub(crate) const fn log(&self) -> &PathBuf {
        &self.log
    }

    /// The log so far.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Removes the log of a test that passed. L9: no task of it was without a runner.
    pub(crate) fn forget_log(&self) {
        assert!(!self.log_text().contains("without a runner"), "see {}", self.log.display());
        let _ = fs::remove_file(&self.log);
    }

    /// Starts the program and tells the clients where it serves. `None` if it died first.
    pub(crate) async fn start(&mut self, environment: &[(&str, &str)]) -> Option<()> {
        self.launch(environment);
        self.serves().await
    }

    /// Starts the program, whether it will serve or not.
    pub(crate) fn launch(&mut self, environment: &[(&str, &str)]) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let program = &self.program;
        let mut command = match &self.namespace {
            // It becomes the program: the process is the same.
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg("serve").arg("--config").arg(self.folder.path().join("taskgate.toml"));
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        for variable in ["TASKGATE_FAILPOINT", "TASKGATE_SABOTAGE", "TASKGATE_STRIKE"] {
            command.env_remove(variable);
        }
        command.kill_on_drop(true);
        command.envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        self.lines = Some(BufReader::new(child.stdout.take().unwrap()).lines());
        self.child = Some(child);
    }

    /// Waits until the program serves, and tells the clients. `None` if it died first.
    pub(crate) async fn serves(&mut self) -> Option<()> {
        let mut lines = self.lines.take().expect("it was launched");
        let served = async {
            let mut address = None;
            loop {
                let line = lines.next_line().await.ok().flatten()?;
                // Behind a public address, the second one says where it listens.
                let url = ["serving ", "listen "].into_iter().find_map(|word| line.strip_prefix(word));
                if let Some((_, url)) = url.and_then(|url| url.split_once("://")) {
                    address = url.split('/').next()?.trim().parse().ok().or(address);
                }
                // The last line: nothing is printed to a pipe that is closed.
                if let Some(admin) = line.strip_prefix("admin   http://") {
                    return address.zip(admin.trim().parse().ok());
                }
            }
        };
        let served = timeout(START_MAX, served).await.expect("the program starts or ends in time");
        let Some((address, admin)) = served else {
            self.wait().await;
            return None;
        };
        (self.address, self.admin) = (Some(address), Some(admin));
        self.history.record(Fact::Starts);
        self.show(true);
        Some(())
    }

    /// Tells the clients whether to ask it, as a balancer does.
    pub(crate) fn show(&self, is_shown: bool) {
        let Some(own) = self.address else { return };
        self.addresses.send_modify(|addresses| {
            addresses.retain(|address| *address != own);
            addresses.extend(is_shown.then_some(own));
        });
    }

    /// Waits for the program's end.
    async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was started");
        let status = timeout(DEATH_MAX, child.wait()).await.expect("the program ends in time").unwrap();
        self.show(false);
        if self.address.take().is_some() {
            self.history.record(Fact::Ends);
        }
        status
    }

    /// Whether the program that was started last has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().expect("it was started").try_wait().unwrap().is_some()
    }

    /// Waits for the program's end, and with which code it ends by itself.
    pub(crate) async fn ends(&mut self) -> Option<i32> {
        self.wait().await.code()
    }

    /// Waits until the program kills itself.
    ///
    /// # Errors
    /// If it goes on, or ends in another way.
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
        let id = i32::try_from(self.process_id()).ok().and_then(Pid::from_raw).unwrap();
        if signal == Signal::TERM {
            self.history.record(Fact::Leaves);
        }
        let _ = kill_process(id, signal);
    }

    /// The kernel function in which each thread of the program waits, a line each.
    pub(crate) fn threads(&self) -> String {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process_id())).unwrap().flatten();
        let read = |thread: &Path, file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
        let lines = threads.map(|thread| {
            let thread = thread.path();
            format!("{}: {}", read(&thread, "comm").trim_end(), read(&thread, "wchan"))
        });
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() > 1, "its runtime has some of its own");
        lines.join("\n")
    }

    /// It belongs to the child as long as it was not reaped.
    fn process_id(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("it runs")
    }
}
