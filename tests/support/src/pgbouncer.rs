//! Starts pgbouncer in front of a PostgreSQL server: on a free port, with a folder of its own, and ended with its owner.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::ports::reserved_address;
use crate::postgres::{PEERS_VARIABLE, PostgresServer};
use crate::unprivileged::{ProgramKeeper, folder};

const PROGRAM: &str = "/usr/sbin/pgbouncer";
const READY_MAX: Duration = Duration::from_secs(60);

/// A pooler in front of a server.
#[derive(Debug)]
pub struct Pooler {
    folder: PathBuf,
    port: u16,
    lines: Vec<String>,
    keeper: ProgramKeeper,
}

impl Pooler {
    /// Starts it with these lines in its configuration; `None` where it is missing.
    ///
    /// # Panics
    /// If it does not start, or is missing and `TASKGATE_PEERS` is set.
    pub fn start(server: &PostgresServer, lines: &[&str]) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            assert!(
                std::env::var_os(PEERS_VARIABLE).is_none(),
                "pgbouncer is missing: install the package `pgbouncer`"
            );
            let _ = std::io::stderr().write_all(b"SKIPPED: pgbouncer is missing\n");
            return None;
        }
        let folder = folder("pooler");
        let port = reserved_address().port();
        let database =
            format!("postgres = host={} port={} user=postgres dbname=postgres", server.host(), server.port());
        let first =
            ["[databases]", &database, "[pgbouncer]", "listen_addr = 127.0.0.1", &format!("listen_port = {port}")];
        let first = first.iter().chain(&["unix_socket_dir =", "auth_type = any", "default_pool_size = 60"]);
        let first: Vec<String> = first.map(|line| (*line).to_owned()).collect();
        write(&folder, &first, lines);
        let arguments = [OsString::from("-q"), folder.join("pgbouncer.ini").into_os_string()];
        let keeper = ProgramKeeper::new(&folder, Path::new(PROGRAM), arguments);
        keeper.start();
        let pooler = Self { folder, port, lines: first, keeper };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < READY_MAX, "pgbouncer does not start: {}", pooler.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(pooler)
    }

    /// Has it read other lines.
    pub fn configure(&self, lines: &[&str]) {
        write(&self.folder, &self.lines, lines);
        self.keeper.reload();
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The database behind it, as a URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

fn write(folder: &Path, first: &[String], lines: &[&str]) {
    let all: Vec<&str> = first.iter().map(String::as_str).chain(lines.iter().copied()).collect();
    fs::write(folder.join("pgbouncer.ini"), all.join("\n") + "\n").expect("written");
}
