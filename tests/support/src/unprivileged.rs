//! Runs programs that refuse to run as root, each in a folder of its own, and ended with their owner.
//!
//! Under root they run as another user. A shell of that user is in between: it starts and ends the program by its
//! process id on orders, and ends it and removes the folder when its input closes, in any way that this process ends.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use parking_lot::Mutex;

/// The user that programs run as, if this process is root's.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The script of the shell. The first argument is the folder, the rest is the program with its own. At the end, a
/// database server in the folder is killed, be it the program or one that the program started.
const KEEPER: &str = r#"
trap '' INT TERM HUP
ulimit -c 0
folder=$1
shift
pid=
while read -r word; do
  case "$word" in
    start) "$@" >> "$folder/log" 2>&1 < /dev/null & pid=$! ;;
    HUP) kill -s HUP "$pid" ;;
    *) kill -s "$word" "$pid"; wait "$pid" 2> /dev/null; pid= ;;
  esac
  echo "$word"
done
read -r server 2> /dev/null < "$folder/data/postmaster.pid"
serves() { [ "$(readlink "/proc/$server/cwd")" = "$folder/data" ]; }
serves || server=
[ -z "$pid" ] || [ "$pid" = "$server" ] || kill -s KILL "$pid"
[ -z "$server" ] || kill -s QUIT "$server"
[ -z "$pid" ] || wait "$pid" 2> /dev/null
tries=100
while [ -n "$server" ] && serves && [ "$tries" -gt 0 ]; do tries=$((tries - 1)); sleep 0.1; done
rm -rf "$folder"
"#;

/// A program that is started and ended on orders.
#[derive(Debug)]
pub(crate) struct ProgramKeeper {
    shell: Mutex<KeeperShell>,
}

#[derive(Debug)]
struct KeeperShell {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A command that runs as a user who is not root.
pub(crate) fn command(program: &Path) -> Command {
    command_with(&[], program)
}

fn command_with(options: &[&str], program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = USERS.iter().find_map(|user| {
        let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    });
    let (user, group) = ids.expect("a user that is not root");
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups"]);
    command.args(options).arg("--").arg(program);
    command
}

pub(crate) fn run(command: &mut Command) {
    let done = command.current_dir("/").stdin(Stdio::null()).output().expect("the program starts");
    let told = [String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)].concat();
    assert!(done.status.success(), "{command:?}: {told}");
}

/// A folder that the program's user owns.
pub(crate) fn folder(name: &str) -> PathBuf {
    let template = format!("/tmp/taskgate-{name}-XXXXXX");
    let made = command(Path::new("mktemp")).args(["-d", &template]).output().expect("mktemp runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    PathBuf::from(String::from_utf8(made.stdout).expect("a path").trim())
}

impl ProgramKeeper {
    /// Does not start the program yet, which writes to `log` in the folder.
    pub(crate) fn new<S: AsRef<OsStr>>(folder: &Path, program: &Path, arguments: impl IntoIterator<Item = S>) -> Self {
        Self::of(command(Path::new("/bin/sh")), folder, program, arguments)
    }

    /// The same for a program that this process may read, and the other user perhaps not, as it is below root's own folder.
    pub(crate) fn anywhere<S: AsRef<OsStr>>(
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let shell = command_with(&["--inh-caps=+dac_override", "--ambient-caps=+dac_override"], Path::new("/bin/sh"));
        Self::of(shell, folder, program, arguments)
    }

    fn of<S: AsRef<OsStr>>(
        mut shell: Command,
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        shell.args(["-c", KEEPER, "keeper"]).arg(folder).arg(program).args(arguments);
        shell.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("a shell");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { shell: Mutex::new(KeeperShell { child, orders, answers }) }
    }

    pub(crate) fn start(&self) {
        self.order("start");
    }

    /// Has the program reload its configuration.
    pub(crate) fn reload(&self) {
        self.order("HUP");
    }

    /// Sends a signal, named without `SIG`, and waits until the program has ended.
    pub(crate) fn end(&self, signal: &str) {
        self.order(signal);
    }

    fn order(&self, word: &str) {
        let mut shell = self.shell.lock();
        let orders = shell.orders.as_mut().expect("a shell");
        writeln!(orders, "{word}").and_then(|()| orders.flush()).expect("the shell listens");
        let mut answer = String::new();
        shell.answers.read_line(&mut answer).expect("the shell answers");
        assert_eq!(answer.trim(), word, "the keeper of the program");
    }
}

impl Drop for ProgramKeeper {
    fn drop(&mut self) {
        let shell = self.shell.get_mut();
        drop(shell.orders.take());
        let _ = shell.child.wait();
    }
}
