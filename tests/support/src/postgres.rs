//! Starts PostgreSQL servers: in a folder of their own, reached by a socket in it, and ended with their owner.

use std::ffi::OsStr;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fmt, fs};

use tokio::time::Instant;

use crate::clock_shift::ClockShift;
use crate::ports::reserved_address;
use crate::unprivileged::{ProgramKeeper, command, folder, run};

/// Names a folder of programs to use instead of those of the system.
const PROGRAMS_VARIABLE: &str = "TASKGATE_POSTGRES";
/// Once it is set a server that is missing fails the test.
pub(crate) const PEERS_VARIABLE: &str = "TASKGATE_PEERS";
/// Those that a distribution may have.
const VERSIONS: std::ops::RangeInclusive<u8> = 14..=19;
/// How long a server may take to start, to stop, or for one of its programs.
const READY_MAX: Duration = Duration::from_secs(60);
/// A PostgreSQL server with a database of the name `postgres`.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    keeper: ProgramKeeper,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStop {
    /// Connections are ended, and everything is written.
    Fast,
    /// As by a crash; the next start recovers.
    Immediate,
}

/// The folder of the server's programs; `None` where there are none, of which the output tells.
///
/// # Panics
/// If there are none and `TASKGATE_PEERS` is set.
pub fn programs() -> Option<PathBuf> {
    let named = std::env::var_os(PROGRAMS_VARIABLE).map(|named| reachable(&fs::canonicalize(named).expect("a folder")));
    let found = named.or_else(|| of_the_system("initdb"));
    if found.is_none() {
        assert!(std::env::var_os(PEERS_VARIABLE).is_none(), "PostgreSQL is missing: install the package `postgresql`");
        // Written past the test harness, which prints a test's output only if it fails.
        let _ = std::io::stderr().write_all(b"SKIPPED: PostgreSQL is missing\n");
    }
    found
}

/// The newest folder of the system's that has this program.
fn of_the_system(program: &str) -> Option<PathBuf> {
    let newest_first = VERSIONS.rev().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    newest_first.into_iter().find(|bin| bin.join(program).exists())
}

/// A folder of programs that the server's user may run: the repository may be built in a folder that no other user may
/// enter, as root's home is. Then it is a copy, which is removed with this process.
fn reachable(programs: &Path) -> PathBuf {
    static COPY: OnceLock<(PathBuf, ProgramKeeper)> = OnceLock::new();
    let mut version = command(&programs.join("postgres"));
    if version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return programs.to_owned();
    }
    let (copy, _) = COPY.get_or_init(|| {
        let (copy, whole) = (folder("pg-programs"), programs.parent().expect("a folder of programs"));
        run(Command::new("cp").args(["-a", "--"]).args([&whole.join("."), &copy]));
        // It is never started: its folder is removed with this process.
        let remover = ProgramKeeper::new(&copy, Path::new("true"), [""; 0]);
        (copy, remover)
    });
    copy.join(programs.file_name().expect("a folder of programs"))
}

/// One server that all tests of a program share; `None` where PostgreSQL is missing.
pub fn shared() -> Option<&'static PostgresServer> {
    static SHARED: OnceLock<Option<PostgresServer>> = OnceLock::new();
    SHARED.get_or_init(|| PostgresServer::start(&[])).as_ref()
}

/// A database that gateways can use.
pub trait Database: fmt::Debug + Sync {
    /// The addresses of its servers; one of them accepts writes.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Runs statements on a server that accepts writes, and returns their output.
    ///
    /// # Panics
    /// If one fails.
    fn psql(&self, statements: &str) -> String;
}

/// Runs statements by `psql`, and returns their output.
pub(crate) fn psql(program: &Path, conninfo: &str, statements: &str) -> String {
    let mut psql = command(program);
    psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-c", statements]);
    let done = psql.current_dir("/").stdin(Stdio::null()).output().expect("psql runs");
    assert!(done.status.success(), "{statements}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

impl PostgresServer {
    /// Starts a server with these lines added to its configuration; `None` where PostgreSQL is missing.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(lines: &[&str]) -> Option<Self> {
        let programs = programs()?;
        let server = Self::begin(programs, None, |programs, data| {
            let mut initdb = command(&programs.join("initdb"));
            // A power cut may lose the files of `initdb`, but no later write.
            initdb.args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-D"]).arg(data);
            run(&mut initdb);
        });
        server.configure(lines);
        server.restart();
        Some(server)
    }

    /// Starts a standby of another server, which follows it under this name (`application_name`). The other one is stopped
    /// meanwhile: `pg_basebackup` is not among the programs of every package.
    ///
    /// # Panics
    /// If it does not start.
    pub fn standby_of(primary: &Self, name: &str) -> Self {
        Self::following(primary, name, None)
    }

    /// The same, with a clock that is ahead by so many seconds.
    ///
    /// # Panics
    /// If it does not start.
    pub fn standby_with_clock(primary: &Self, name: &str, seconds: i64) -> Self {
        Self::following(primary, name, Some(seconds))
    }

    fn following(primary: &Self, name: &str, clock: Option<i64>) -> Self {
        primary.stop(ServerStop::Fast);
        let server = Self::begin(primary.programs.clone(), clock, |_, data| {
            run(command(Path::new("cp")).arg("-a").arg(primary.folder.join("data")).arg(data));
            run(command(Path::new("touch")).arg(data.join("standby.signal")));
        });
        primary.restart();
        server.configure(&[&format!("primary_conninfo = '{} application_name={name}'", primary.conninfo())]);
        server.restart();
        server
    }

    fn begin(programs: PathBuf, clock: Option<i64>, fill: impl FnOnce(&Path, &Path)) -> Self {
        let folder = folder("pg");
        fill(&programs, &folder.join("data"));
        let port = reserved_address().port();
        let environment: Vec<String> = clock.map_or_else(Vec::new, |seconds| {
            let clock = ClockShift::build(&folder);
            clock.set(seconds);
            clock.environment().map(|(name, value)| format!("{name}={value}")).into()
        });
        let (program, data) = (programs.join("postgres"), folder.join("data"));
        let program = [program.as_os_str(), OsStr::new("-D"), data.as_os_str()];
        let arguments = environment.iter().map(OsStr::new).chain(program);
        let keeper = ProgramKeeper::new(&folder, Path::new("env"), arguments);
        let server = Self { programs, folder, port, keeper };
        server.configure(&[
            "listen_addresses = '127.0.0.1'",
            &format!("port = {port}"),
            &format!("unix_socket_directories = '{}'", server.folder.display()),
            // For all tests that a machine with many cores runs side by side.
            "max_connections = 500",
            "shared_buffers = 32MB",
            "max_wal_size = 256MB",
        ]);
        server
    }

    /// Adds lines to the configuration. A later line counts more than an earlier one.
    pub fn configure(&self, lines: &[&str]) {
        let path = self.folder.join("data/postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(path).expect("the configuration");
        for line in lines {
            writeln!(file, "{line}").expect("written");
        }
    }

    /// Puts lines before the others in pg_hba.conf, and waits until they are in force.
    pub fn add_hba_lines(&self, lines: &[&str]) {
        let loaded = || self.psql("SELECT pg_conf_load_time()");
        let (before, begin) = (loaded(), Instant::now());
        let path = self.folder.join("data/pg_hba.conf");
        let rest = fs::read_to_string(&path).expect("pg_hba.conf");
        fs::write(&path, format!("{}\n{rest}", lines.join("\n"))).expect("written");
        self.reload();
        while loaded() == before {
            assert!(begin.elapsed() < READY_MAX, "the server does not read pg_hba.conf");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A file in the server's own folder, which only the server may read.
    pub fn write_file(&self, name: &str, text: &str) {
        let path = self.folder.join("data").join(name);
        run(command(Path::new("install")).args(["-m", "600", "/dev/null"]).arg(&path));
        fs::write(path, text).expect("written");
    }

    pub fn remove_file(&self, name: &str) {
        fs::remove_file(self.folder.join("data").join(name)).expect("removed");
    }

    /// Has the server read its configuration again.
    pub fn reload(&self) {
        let pid = self.pid();
        assert!(crate::processes::signal(pid, "HUP"));
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        let lines = fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("the server runs");
        lines.lines().next().and_then(|line| line.trim().parse().ok()).expect("a process id")
    }

    /// Starts the server, and does not wait until it accepts connections.
    pub fn launch(&self) {
        self.keeper.start();
    }

    /// Starts the server, after it was stopped or at first.
    pub fn restart(&self) {
        self.launch();
        let socket = self.folder.join(format!(".s.PGSQL.{}", self.port));
        let begin = Instant::now();
        let is_ready = || {
            let mut ready = command(&self.client("pg_isready"));
            ready.args(["-q", "-h"]).arg(&self.folder).args(["-p", &self.port.to_string()]);
            UnixStream::connect(&socket).is_ok() && ready.current_dir("/").status().is_ok_and(|status| status.success())
        };
        while !is_ready() {
            let log = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(begin.elapsed() < READY_MAX, "the server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops the server, and waits until it is gone.
    pub fn stop(&self, how: ServerStop) {
        self.keeper.end(match how {
            ServerStop::Fast => "INT",
            ServerStop::Immediate => "QUIT",
        });
    }

    /// Makes a standby the primary of its own.
    pub fn promote(&self) {
        let mut promote = command(&self.programs.join("pg_ctl"));
        run(promote.args(["promote", "-w", "-s", "-D"]).arg(self.folder.join("data")));
    }

    /// A client program of PostgreSQL. The system's serves a server of another version whose package has none.
    fn client(&self, program: &str) -> PathBuf {
        let own = self.programs.join(program);
        if own.exists() { own } else { of_the_system(program).expect("the package `postgresql`").join(program) }
    }

    /// The folder of its socket.
    pub fn host(&self) -> &str {
        self.folder.to_str().expect("a path as text")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How its own programs name it.
    pub fn conninfo(&self) -> String {
        format!("host={} port={} user=postgres dbname=postgres", self.host(), self.port)
    }

    /// As a URL.
    pub fn url(&self) -> String {
        let host = self.host().replace('/', "%2F");
        format!("postgres://postgres@{host}:{}/postgres?sslmode=disable", self.port)
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Runs statements by `psql`, and returns their output.
    ///
    /// # Panics
    /// If one fails.
    pub fn psql(&self, statements: &str) -> String {
        psql(&self.client("psql"), &self.conninfo(), statements)
    }
}

impl Database for PostgresServer {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))]
    }

    fn psql(&self, statements: &str) -> String {
        Self::psql(self, statements)
    }
}
