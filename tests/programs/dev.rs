//! `taskgate dev` before a program of its own, and `stderr = "on-death"`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;
use support::scripted::WAIT_MAX;
use tempfile::TempDir;

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
const SERVER: &str = include_str!("dev/server.py");

/// A gateway in a folder of its own, with the server's file.
struct Started {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    folder: TempDir,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    fn with(arguments: &[&str], files: &[(&str, &str)]) -> Self {
        Self::start(taskgate(arguments), files)
    }

    fn start(mut command: Command, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("server.py"), SERVER).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let command = command.current_dir(folder.path()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // Bytes that are no text would be a fault of the output.
            BufReader::new(out).lines().map(Result::unwrap).try_for_each(|line| sender.send(line))
        });
        Self { child, lines, seen: Vec::new(), folder }
    }

    /// A program under development that is ready.
    fn developed(files: &[(&str, &str)]) -> Self {
        let mut started = Self::with(&["dev", "--port", "0", "--", "python3", "server.py"], files);
        started.wait("ready: developed 1.2");
        started
    }

    /// The first process of the program.
    fn process(&self) -> String {
        self.seen.iter().find_map(|line| line.split_once("stderr  process ")).unwrap().1.to_owned()
    }

    /// Waits for a line that no wait has found, and returns it.
    #[track_caller]
    fn wait(&mut self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("no {part} in {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }

    fn has(&self, part: &str) -> bool {
        self.seen.iter().any(|line| line.contains(part))
    }

    fn url(&self) -> &str {
        self.seen.iter().find_map(|line| line.strip_prefix("serving ")).unwrap()
    }

    fn calling(&self, tool: &str, options: &[&str]) -> Command {
        let mut command = taskgate(&["call", self.url(), tool]);
        command.args(options).stdin(Stdio::null());
        command
    }

    fn call(&self, tool: &str, options: &[&str]) -> String {
        text(&self.calling(tool, options).output().unwrap())
    }

    /// As editors do: no program starts with an empty or half-written file.
    fn write(&self, text: &str) {
        let draft = tempfile::NamedTempFile::new().unwrap();
        fs::write(draft.path(), text).unwrap();
        draft.persist(self.folder.path().join("server.py")).unwrap();
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Ends it by a signal, and returns its standard error once it has ended well.
    fn end(mut self, signal: &str) -> String {
        self.signal(signal);
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        log
    }
}

fn taskgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(TASKGATE);
    command.env_remove("TASKGATE_CONFIG").env_remove("TASKGATE_LOG").args(arguments);
    command
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn the_end_says_that_it_waits_for_a_call_and_does_so_for_seconds() {
    let mut dev = Started::developed(&[]);
    let mut waiting = dev.calling("waits", &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    dev.wait("stderr  it waits");
    dev.signal("-INT");
    dev.wait("gateway waits 3s for calls (server-py: 1 held");
    assert!(dev.child.wait().unwrap().success());
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert_eq!(fs::read_to_string(dev.folder.path().join("taskgate-data/.gitignore")).unwrap(), "*\n");
}

#[test]
fn a_changed_file_starts_the_program_anew_and_the_next_call_reaches_it() {
    let mut dev = Started::developed(&[]);
    assert!(dev.call("quick", &[]).contains("first quick"));
    let waiting = dev.calling("waits", &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    dev.wait("stderr  it waits");
    dev.write(&SERVER.replace("\"first\"", "\"second\""));
    dev.wait("changed: server.py");
    let ended = text(&waiting.wait_with_output().unwrap());
    assert!(ended.contains("\"reason\":\"upstream_closed\",\"executed\":\"unknown\""), "{ended}");
    dev.wait("ready: developed 1.2");
    assert!(dev.call("quick", &[]).contains("second quick"));
    // A folder that is new, and files in it: with the folder, and later.
    let module = dev.folder.path().join("module");
    fs::create_dir(&module).unwrap();
    for part in ["part.py", "more.py"] {
        fs::write(module.join(part), "").unwrap();
        dev.wait(&format!("changed: {part}"));
        dev.wait("ready: developed 1.2");
    }
}

/// A handshake that waits for the program does not outlive it.
#[test]
fn a_change_while_the_program_is_starting_starts_it_anew() {
    let silent = "import sys, time\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(600)\n";
    let mut started = Started::with(&["dev", "--port", "0", "--", "python3", "server.py"], &[("server.py", silent)]);
    started.wait("stderr  begun");
    started.write(SERVER);
    started.wait("ready: developed 1.2");
    assert!(!started.has("not ready"), "{:#?}", started.seen);
}

#[test]
fn a_folder_that_the_program_makes_at_each_start_restarts_nothing() {
    let server = format!("import os\nos.mkdir('cache-%d' % os.getpid())\n{SERVER}");
    let mut dev = Started::developed(&[("server.py", &server)]);
    dev.write(SERVER);
    assert!(dev.wait("changed: ").ends_with("changed: server.py"), "{:#?}", dev.seen);
    dev.wait("ready: developed 1.2");
}

#[test]
fn a_program_that_writes_a_source_at_each_start_is_not_started_for_ever() {
    let server = format!("open('state.yaml', 'a').write('a: 1')\n{SERVER}");
    let mut dev = Started::with(&["dev", "--port", "0", "--", "python3", "server.py"], &[("server.py", &server)]);
    let line = dev.wait("not started again: at each of its last 5 starts files changed before it was ready for 2 s");
    assert!(line.contains("it may write state.yaml itself; name the files to watch by --watch"), "{line}");
    assert!(dev.call("quick", &[]).contains("first quick"));
}

/// A closed terminal sends it.
#[test]
fn a_hang_up_ends_it_with_its_program_unless_it_was_ignored_at_the_start() {
    let developed = |how: &str| {
        let mut command = Command::new("env");
        command.env_remove("TASKGATE_CONFIG").env_remove("TASKGATE_LOG");
        command.args([how, TASKGATE, "dev", "--port", "0", "--", "python3", "server.py"]);
        let mut dev = Started::start(command, &[]);
        dev.wait("ready: developed 1.2");
        dev
    };
    let dev = developed("--default-signal=HUP");
    let process = dev.process();
    let log = dev.end("-HUP");
    assert!(!Path::new("/proc").join(&process).exists(), "{log}");
    let dev = developed("--ignore-signal=HUP");
    dev.signal("-HUP");
    assert!(dev.call("quick", &[]).contains("first quick"));
    dev.end("-INT");
}

#[test]
fn a_session_goes_on_with_the_program_that_was_started_anew() {
    let mut dev = Started::developed(&[]);
    let flavour = ["--flavour", "core"];
    let waiting = dev.calling("waits", &flavour).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    dev.wait("got a task");
    dev.write(&SERVER.replace("\"first\"", "\"second\""));
    let ended = text(&waiting.wait_with_output().unwrap());
    assert!(ended.contains("upstream_closed"), "the session outlives its process: {ended}");
    dev.wait("ready: developed 1.2");
    assert!(dev.call("quick", &flavour).contains("second quick"));
}

#[test]
fn a_program_that_cannot_start_is_shown_with_its_traceback_and_started_at_the_next_change() {
    let broken = "import sys\nraise RuntimeError('it cannot start')\n";
    let mut dev = Started::with(&["dev", "--port", "0", "--", "python3", "server.py"], &[("server.py", broken)]);
    dev.wait("not ready: ");
    for shown in [
        "stderr  Traceback (most recent call last):",
        "stderr  RuntimeError: it cannot start",
        "ended with exit status 1",
    ] {
        assert!(dev.has(shown), "{shown}: {:#?}", dev.seen);
    }
    let before = dev.seen.len();
    dev.write(SERVER);
    dev.wait("changed: server.py");
    assert_eq!(dev.seen.len(), before + 1, "it was not started without a change: {:#?}", dev.seen);
    dev.wait("ready: developed 1.2, 2025-11-25, 6 tools: quick, tells, waits, refuses, floods, crashes");
}

#[test]
fn calls_of_each_kind_of_client_are_printed_with_their_outcomes() {
    let mut dev = Started::developed(&[]);
    for (flavour, kind, got) in [
        ("extension", "2026-07-28, with tasks", "a task of the extension"),
        ("core", "2025-11-25, with tasks", "a task of 2025-11-25"),
    ] {
        let options = ["{\"a\": 1}", "--flavour", flavour];
        let waiting = dev.calling("waits", &options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut waiting = waiting.unwrap();
        let called = dev.wait("calls waits {\"a\": 1}");
        assert!(called.ends_with(&format!("({kind})")), "{called}");
        let handle = dev.wait("#");
        assert!(handle.contains(&format!(" got {got} (after ")) && handle.ends_with(&format!("; {kind})")), "{handle}");
        waiting.kill().unwrap();
        waiting.wait().unwrap();
    }
    assert!(dev.call("tells", &["--flavour", "none"]).contains("first tells"));
    let lines = ["calls tells {}", "tells progress 1/3 a part", "log warning: a note", "tells returned after", " got "];
    let lines = lines.map(|part| dev.wait(part));
    assert!(lines[0].ends_with("without tasks)"), "{}", lines[0]);
    assert!(lines[4].contains("its result: \"first tells\" (after "), "{}", lines[4]);
    dev.call("refuses", &["--flavour", "none"]);
    dev.wait("server  refuses returned error -32001 after ");
    assert!(dev.wait(" got ").contains("got error -32001: not today (after "));
}

/// B192.
#[test]
fn hostile_arguments_and_lines_reach_the_terminal_without_control_characters() {
    let mut dev = Started::developed(&[]);
    dev.call("crashes", &["{\"a\": \"\\u001b[2J\u{202e}\u{9b}x\"}", "--flavour", "none"]);
    assert!(dev.wait("calls crashes").contains("x"));
    assert!(dev.wait("RuntimeError: deliberate").ends_with("[31mfault "));
    dev.wait("ended with exit status 3");
    let is_obeyed = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!dev.seen.iter().any(|line| line.contains(is_obeyed)), "{:#?}", dev.seen);
}

#[test]
fn a_flood_of_standard_error_is_shown_in_part_and_with_its_end() {
    let mut dev = Started::developed(&[]);
    dev.call("floods", &["--flavour", "none"]);
    dev.wait("stderr  flood 0");
    dev.wait("lines left out) ");
    dev.wait("RuntimeError: deliberate");
    dev.wait("ended with exit status 3");
    assert!(dev.seen.len() < 1_000, "{}", dev.seen.len());
}

#[test]
fn a_signal_ends_it_with_its_program() {
    for signal in ["-INT", "-TERM"] {
        let dev = Started::developed(&[]);
        let process = dev.process();
        assert!(Path::new("/proc").join(&process).exists());
        let log = dev.end(signal);
        assert!(!Path::new("/proc").join(&process).exists(), "{signal}: {log}");
    }
}

#[test]
fn a_path_that_is_not_there_and_a_command_without_its_mark_are_refused() {
    let refused = taskgate(&["dev", "--watch", "nowhere.py", "--", "python3", "server.py"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert_eq!(text(&refused), "taskgate: --watch: nowhere.py: there is no such file or folder\n");
    let refused = taskgate(&["dev", "python3", "server.py"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused).contains("stands after `--`: taskgate dev -- COMMAND"), "{}", text(&refused));
}

/// Runs a task at a program that crashes; returns the output of `tasks show`, and the log's lines with the program's last output.
fn crashed(key: &str) -> (String, Vec<String>) {
    let config = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[store]\nephemeral = true\n[upstreams.one]\n\
         command = [\"python3\", \"server.py\"]\npath = \"/mcp\"\n{key}\n[upstreams.one.tasks]\nmode = \"always\"\n"
    );
    let mut gateway = Started::with(&["serve", "taskgate.toml"], &[("taskgate.toml", &config)]);
    let admin = gateway.wait("admin   ").split_whitespace().last().unwrap().to_owned();
    let failed = gateway.call("crashes", &["--flavour", "extension"]);
    assert!(failed.contains("\"exitStatus\":3"), "{failed}");
    let listed = taskgate(&["tasks", "--admin", &admin, "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let reference = listed[0]["ref"].as_str().unwrap();
    let shown = text(&taskgate(&["tasks", "--admin", &admin, "show", reference]).output().unwrap());
    let log = gateway.end("-INT");
    (shown, log.lines().filter(|line| line.contains("deliberate")).map(str::to_owned).collect())
}

/// B191.
#[test]
fn last_words_are_shown_and_logged_once_where_the_configuration_says_so() {
    let (shown, logged) = crashed("stderr = \"on-death\"");
    let (_, lines) = shown.split_once("\nstderr\n").unwrap_or_else(|| panic!("{shown}"));
    assert!(lines.contains("  Traceback (most recent call last):\n"), "{lines}");
    assert!(lines.contains("  RuntimeError: deliberate  [31mfault"), "{lines}");
    let [line] = logged.as_slice() else { panic!("{logged:?}") };
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["level"], &line["fields"]["upstream"]), (&Value::from("WARN"), &Value::from("one")));

    let (shown, logged) = crashed("");
    assert!(
        shown.contains("exit status 3") && !shown.contains("deliberate") && logged.is_empty(),
        "{shown} {logged:?}"
    );
}
