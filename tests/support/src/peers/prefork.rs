//! Python programs of the peers run in forks of a process that has imported their packages: `tests/peers/prefork.py`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;

use super::process::log_file;

const SCRIPT: &str = "prefork.py";

/// The servers of this process, by interpreter and kind of programs.
static SERVERS: Mutex<BTreeMap<(PathBuf, Kind), Server>> = Mutex::new(BTreeMap::new());

/// The packages that programs import: FastMCP is not imported for programs that do not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    FastMcp,
    Others,
}

impl Kind {
    /// The kind of a script, by its path and its text. `-m` is no script.
    fn of(script: &Path) -> Self {
        let text = fs::read_to_string(script).unwrap_or_default();
        let names_it = script.to_string_lossy().contains("fastmcp") || text.contains("fastmcp");
        if names_it { Self::FastMcp } else { Self::Others }
    }
}

/// Forks for each run. It ends with this process, which holds the reading end of its output.
#[derive(Debug)]
struct Server {
    socket: PathBuf,
    _process: Child,
}

/// The first words of a command that runs a script, or a module behind `-m`, in a fork; `program` and its own words follow.
///
/// # Panics
/// If the interpreter cannot be started.
pub fn words(peers: &Path, python: &Path, program: &str) -> Vec<String> {
    let kind = Kind::of(&peers.join(program));
    let mut servers = SERVERS.lock();
    let server = servers
        .entry((python.to_owned(), kind))
        .or_insert_with(|| start(peers, python, kind).unwrap_or_else(|error| panic!("{}: {error}", python.display())));
    let script = peers.join(SCRIPT);
    // The process that asks for a fork needs nothing of site-packages.
    let words = [python, Path::new("-IS"), script.as_path(), Path::new("run"), server.socket.as_path()];
    words.map(|word| word.display().to_string()).into()
}

fn start(peers: &Path, python: &Path, kind: Kind) -> io::Result<Server> {
    let socket = tempfile::tempdir()?.keep().join("socket");
    let listener = UnixListener::bind(&socket)?;
    let venv = python.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default().display();
    let log = log_file(&format!("prefork-{venv}-{kind:?}").to_lowercase()).map_err(io::Error::other)?;
    let mut command = Command::new(python);
    command.args([SCRIPT, "serve"]).current_dir(peers).env("PYTHONUNBUFFERED", "1");
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped()).stderr(File::create(log)?);
    Ok(Server { socket, _process: command.spawn()? })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};

    use super::super::install::Peers;
    use super::*;
    use crate::ports::reserved_address;

    const PROGRAM: &str = r#"
import os, signal, socket, sys, time

what = sys.argv[1]
if what == "listen":
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    print("listening", flush=True)
    listener.accept()
if what == "end":
    os.kill(os.getpid(), signal.SIGTERM)
if what == "alone":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(20)
print(os.getppid(), os.getcwd(), os.environ["MARK"], sys.stdin.read(), what)
sys.exit(7)
"#;

    fn program(peers: &Peers, folder: &Path) -> Command {
        let script = folder.join("program.py");
        fs::write(&script, PROGRAM).unwrap();
        let words = peers.words("py-legacy/bin/python", [script.to_str().unwrap()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(folder).env("MARK", "marked");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_run_has_its_own_words_folder_variables_pipes_and_status() {
        let Some(peers) = Peers::find("a Python program in a fork") else { return };
        let folder = tempfile::tempdir().unwrap();
        let mut servers = Vec::new();
        for what in ["first", "second"] {
            let mut run = program(&peers, folder.path()).arg(what).spawn().unwrap();
            run.stdin.take().unwrap().write_all(b"input").unwrap();
            let mut said = String::new();
            run.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            let (server, rest) = said.trim().split_once(' ').unwrap();
            assert_eq!(rest, format!("{} marked input {what}", folder.path().canonicalize().unwrap().display()));
            assert_eq!(run.wait().unwrap().code(), Some(7));
            servers.push(server.to_owned());
        }
        assert_eq!(servers[0], servers[1], "one process forks for both");
        let ended = program(&peers, folder.path()).arg("end").output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + 15));
    }

    #[test]
    fn a_run_ends_with_its_server_before_it_says_anything() {
        let Some(peers) = Peers::find("a Python program whose server is killed") else { return };
        let folder = tempfile::tempdir().unwrap();
        let command = program(&peers, folder.path());
        let python = peers.join("py-legacy/bin/python");
        let own = start(&peers, &python, Kind::Others).unwrap();
        let others = words(&peers, &python, "").pop().unwrap();
        let arguments = command.get_args().map(|word| if *word == *others { own.socket.as_os_str() } else { word });
        let mut alone = Command::new(&python);
        let ended = alone.args(arguments).arg("alone").env("MARK", "marked").output().unwrap();
        assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(1), &b""[..]), "{ended:?}");
    }

    #[test]
    fn a_killed_run_has_left_its_port_when_the_next_one_begins() {
        let Some(peers) = Peers::find("a Python program that is killed") else { return };
        let folder = tempfile::tempdir().unwrap();
        let port = reserved_address().port().to_string();
        for _ in 0..10 {
            let mut run = program(&peers, folder.path()).args(["listen", &port]).spawn().unwrap();
            let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "listening");
            run.kill().unwrap();
            run.wait().unwrap();
        }
    }
}
