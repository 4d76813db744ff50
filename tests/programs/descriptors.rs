//! The program under a low limit of open files and sockets (B174, F60). It runs here, under limits of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::scripted::WAIT_MAX;
use tempfile::TempDir;
use tokio::time::Instant;

/// The kernel's unit of time in `/proc`.
const TICK: Duration = Duration::from_millis(10);

/// The program at work. Ends with this.
struct Program {
    child: Child,
    log: PathBuf,
    clients: SocketAddr,
    admin: SocketAddr,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats `look` until it sees something.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_MAX;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Program {
    /// `limit` goes before the program in a shell.
    fn start(limit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // No server listens there: these requests need no upstream.
        let config = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[store]\nkind = \"memory\"\n\
                      [upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n";
        fs::write(at("config.toml"), config).unwrap();
        let (log, out) = (at("log"), at("out"));
        let child = Command::new("sh")
            .args(["-c", &format!("{limit} exec \"$0\" serve --config config.toml"), env!("CARGO_BIN_EXE_taskgate")])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let said = eventually("the program starts", || {
            fs::read_to_string(&out).ok().filter(|text| text.contains("admin   http://") && text.ends_with('\n'))
        });
        let address = |after: &str| {
            let rest = said.split(after).nth(1).unwrap().trim_start_matches("http://");
            rest.split(['/', '\n']).next().unwrap().parse().unwrap()
        };
        let (clients, admin) = (address("serving "), address("admin   "));
        Self { child, log, clients, admin, _folder: folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Time on a processor so far.
    fn busy(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let rest = stat.rsplit(')').next().unwrap();
        let ticks = rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap());
        TICK * ticks.sum::<u32>()
    }

    fn open_files(&self) -> u64 {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count() as u64
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, WAIT_MAX).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// Asks for something that needs no upstream and is no offence; whether it was answered.
fn is_served(stream: &mut TcpStream) -> bool {
    let asked = stream.write_all(b"GET /up/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = [0; 12];
    asked.is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"HTTP/1.1 405" && drained(stream)
}

/// Reads the rest of a head, and the body that it tells of.
fn drained(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return false;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or("0", str::trim);
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).is_ok()
}

#[test]
fn b174_a_low_limit_is_raised_and_where_it_cannot_be_less_is_served() {
    let raised = Program::start("ulimit -S -n 64;");
    let limit = prlimit(Some(raised.pid()), Resource::Nofile, current(&raised)).unwrap();
    assert!(limit.current.is_none_or(|now| now > 64), "{limit:?}");
    let low = Program::start("ulimit -n 64;");
    // Another thread of the program writes the log.
    let line = eventually("the low limit is in the log", || {
        let log = low.log();
        let (whole, _) = log.rsplit_once('\n')?;
        whole.lines().find(|line| line.contains("the limit on open files is low")).map(str::to_owned)
    });
    assert!(line.contains("64") && line.contains("20768") && line.contains("\"connections_max\":6"), "{line}");
    let mut streams: Vec<_> = (0..6).map(|_| connect(low.clients)).collect();
    assert!(streams.iter_mut().all(is_served), "as many as there is room for");
    assert!(!is_served(&mut connect(low.clients)), "and no more");
    assert!(is_served(&mut streams[0]), "other streams are served");
    drop(streams);
    eventually("places come back", || is_served(&mut connect(low.clients)).then_some(()));
}

/// The limit that a process has, to ask for it by setting it.
fn current(program: &Program) -> Rlimit {
    let limits = fs::read_to_string(format!("/proc/{}/limits", program.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().ok());
    Rlimit { current: numbers.next().unwrap(), maximum: numbers.next().unwrap() }
}

#[test]
fn f60_a_shortage_of_descriptors_harms_no_connection_and_passes() {
    let program = Program::start("");
    let mut held = connect(program.clients);
    assert!(is_served(&mut held));
    // From now on there is room for four more, the spare one included.
    let limit = Rlimit { current: Some(program.open_files() + 4), maximum: current(&program).maximum };
    prlimit(Some(program.pid()), Resource::Nofile, limit).unwrap();
    let mut streams: Vec<_> = (0..40).map(|_| connect(program.clients)).collect();
    eventually("it is told", || program.log().contains("accepting pauses").then_some(()));
    let (began, before) = (Instant::now(), program.busy());
    while began.elapsed() < Duration::from_secs(2) {
        assert!(is_served(&mut held), "open connections are served");
        // Few requests: their own processor time must not count.
        std::thread::sleep(Duration::from_millis(250));
    }
    let share = (program.busy() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    assert!(share < 0.1, "it waits and does not spin: {share}");
    let told = program.log().matches("accepting pauses").count();
    assert!(told <= 2, "once for each shortage, not for each attempt: {told}");
    // Connections without a descriptor are closed at once.
    let ended = streams.iter_mut().filter_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        stream.read(&mut [0; 1]).ok()
    });
    assert!(ended.count() > 0, "no stream ended");
    drop(streams);
    eventually("it passes", || is_served(&mut connect(program.clients)).then_some(()));
    assert!(is_served(&mut held));
    let mut admin = connect(program.admin);
    admin.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    admin.read_to_string(&mut text).unwrap();
    assert!(text.contains("taskgate_accept_pauses_total{listener=\"clients\"}"), "{text}");
}
