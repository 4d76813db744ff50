//! npm's launcher before a shell script: exit codes, signals, the end of standard input, and a missing package.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use super::{folder, output_of, repository, write_program};
use support::peers::install::Peers;
use support::processes::signal;
use tempfile::TempDir;

const LAUNCHER: &str = "packaging/npm/taskgate/bin/taskgate.mjs";
const LINES_MAX: usize = 40;

/// An installation of the npm package, as `npm install` lays it out.
struct Installation {
    folder: TempDir,
    peers: Peers,
}

impl Installation {
    /// `None` without peers, which Node comes from.
    fn new(script: Option<&str>) -> Option<Self> {
        let peers = Peers::find("npm's launcher")?;
        let folder = folder();
        let modules = folder.path().join("node_modules");
        let launcher = fs::read_to_string(repository(LAUNCHER)).expect("the launcher");
        write_program(&modules.join("taskgate/bin/taskgate.mjs"), &launcher);
        if let Some(script) = script {
            let print = "console.log(`${process.platform}-${process.arch}`)";
            let platform = output_of(Command::new(peers.join("node")).args(["-e", print]));
            write_program(&modules.join("@taskgate").join(platform.trim()).join("bin/taskgate"), script);
        }
        Some(Self { folder, peers })
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = Command::new(self.peers.join("node"));
        command.arg(self.folder.path().join("node_modules/taskgate/bin/taskgate.mjs")).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("node runs")
    }
}

/// The exit code and both outputs of a launcher that ends, after its standard input ends.
fn end(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_launcher_is_short() {
    let lines = fs::read_to_string(repository(LAUNCHER)).expect("the launcher").lines().count();
    assert!(lines <= LINES_MAX, "{lines} lines");
}

#[test]
fn arguments_streams_and_the_exit_code_pass() {
    let script = "#!/bin/sh\nprintf '%s|' \"$@\"\ncat\necho log >&2\nexit 7\n";
    let Some(installation) = Installation::new(Some(script)) else { return };
    let mut child = installation.start(&["wrap", "--", "a b", ""]);
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"line\n").expect("the launcher reads");
    drop(stdin);
    assert_eq!(end(child), (Some(7), "wrap|--|a b||line\n".to_owned(), "log\n".to_owned()));
}

#[test]
fn signals_reach_the_program_and_its_end_is_the_launchers() {
    let script = "#!/bin/sh\n\
        for name in TERM INT HUP; do trap \"echo $name; kill \\$sleeper; exit 3\" $name; done\n\
        sleep 60 > /dev/null 2>&1 < /dev/null & sleeper=$!\n\
        echo ready\nwait\n";
    let Some(installation) = Installation::new(Some(script)) else { return };
    for name in ["TERM", "INT", "HUP"] {
        let mut child = installation.start(&[]);
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        assert!(signal(child.id(), name));
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("text");
        assert_eq!((rest.as_str(), child.wait().expect("it ends").code()), (format!("{name}\n").as_str(), Some(3)));
    }
}

#[test]
fn a_program_that_a_signal_ended_gives_the_code_of_a_shell() {
    let Some(installation) = Installation::new(Some("#!/bin/sh\nkill -s KILL $$\n")) else { return };
    assert_eq!(end(installation.start(&[])).0, Some(128 + 9));
}

#[test]
fn a_missing_package_is_named_in_a_sentence() {
    let Some(installation) = Installation::new(None) else { return };
    let (code, stdout, stderr) = end(installation.start(&[]));
    assert_eq!((code, stdout.as_str()), (Some(69), ""));
    assert!(
        stderr.starts_with("taskgate: no program for linux on ") && stderr.contains("@taskgate/linux-"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
