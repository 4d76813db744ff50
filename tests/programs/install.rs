//! `taskgate install` and `uninstall`: the files of ten hosts are changed in place, and get their first bytes back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::check_golden;
use tempfile::TempDir;

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
/// Each host, its recorded file, and the place of it below the home folder or the project's.
const HOSTS: [(&str, &str, &str); 10] = [
    ("claude-desktop", "claude_desktop.json", "home/.config/Claude/claude_desktop_config.json"),
    ("claude-code", "claude_code.json", "home/.claude.json"),
    ("vscode", "vscode.json", "home/.config/Code/User/mcp.json"),
    ("cursor", "cursor.json", "home/.cursor/mcp.json"),
    ("windsurf", "windsurf.json", "home/.codeium/windsurf/mcp_config.json"),
    ("gemini", "gemini.json", "home/.gemini/settings.json"),
    ("zed", "zed.json", "home/.config/zed/settings.json"),
    ("goose", "goose.yaml", "home/.config/goose/config.yaml"),
    ("codex", "codex.toml", "home/.codex/config.toml"),
    ("librechat", "librechat.yaml", "project/librechat.yaml"),
];

/// A home folder and a project, both empty.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::create_dir_all(folder.path().join("home")).unwrap();
        fs::create_dir_all(folder.path().join("project")).unwrap();
        Self(folder)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(path)
    }

    /// Writes a file with mode 0640.
    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        path
    }

    /// Puts a host's recorded file at its place.
    fn put_recorded(&self, (_, recorded, place): (&str, &str, &str)) -> PathBuf {
        let text = fs::read_to_string(recorded_folder().join(recorded)).unwrap();
        self.put(place, text.replace("PROJECT", self.path("project").to_str().unwrap()))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_in("project", Path::new(TASKGATE), arguments)
    }

    fn run_in(&self, folder: &str, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        for variable in ["XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "TASKGATE_LOG"] {
            command.env_remove(variable);
        }
        command.current_dir(self.path(folder)).env("HOME", self.path("home")).args(arguments);
        // A link to the program, if a test makes one.
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.path("bin")).chain(std::env::split_paths(&folders));
        command.env("PATH", std::env::join_paths(folders).unwrap());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Both outputs, without the parts that differ between machines.
    fn shown(&self, output: &Output) -> String {
        let text = [text(&output.stdout), text(&output.stderr)].concat();
        let home = self.path("home").display().to_string();
        text.replace(&home, "~")
            .replace(self.path("project").to_str().unwrap(), "PROJECT")
            .replace(TASKGATE, "TASKGATE")
    }

    /// Runs `install cursor` on a terminal, calls `meanwhile` at the question, and returns all that was shown.
    fn answered(&self, answer: &str, meanwhile: impl FnOnce()) -> String {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{TASKGATE} install cursor"), "/dev/null"]);
        command.current_dir(self.path("project")).env("HOME", self.path("home")).env_remove("NO_COLOR");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = Vec::new();
        while !shown.ends_with(b"[no]: ") {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap_or_else(|_| panic!("no question: {}", text(&shown)));
            shown.push(byte[0]);
        }
        meanwhile();
        writeln!(input, "{answer}").unwrap();
        output.read_to_end(&mut shown).unwrap();
        child.wait().unwrap();
        text(&shown).to_owned()
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        self.shown(&output)
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], expected: &str) {
        let output = self.run(arguments);
        let shown = self.shown(&output);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {shown}");
        assert!(shown.contains(expected), "{arguments:?}: {shown}");
    }
}

fn recorded_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/install")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o7777
}

fn copy_of(file: &Path) -> PathBuf {
    PathBuf::from(format!("{}.taskgate-backup", file.display()))
}

#[test]
fn each_hosts_file_is_shown_changed_and_given_back_byte_for_byte() {
    for host in HOSTS {
        let machine = Machine::new();
        let file = machine.put_recorded(host);
        let first = fs::read(&file).unwrap();
        let (name, recorded, _) = host;
        let asked = machine.run(&["install", name]);
        assert_eq!(asked.status.code(), Some(64), "{name}: {}", machine.shown(&asked));
        check_golden(&recorded_folder().join(recorded).with_extension("said"), &machine.shown(&asked));
        assert!(fs::read(&file).unwrap() == first && !copy_of(&file).exists(), "{name}");

        machine.done(&["install", name, "--yes"]);
        let wrapped = fs::read(&file).unwrap();
        assert!(wrapped != first && fs::read(copy_of(&file)).unwrap() == first, "{name}");
        assert_eq!((mode(&file), mode(&copy_of(&file))), (0o640, 0o640));
        let again = machine.done(&["install", name, "--yes"]);
        assert!(again.contains("already wrapped: ") && again.contains("no change is needed"), "{again}");
        assert!(fs::read(&file).unwrap() == wrapped, "{name}");
        assert!(machine.done(&["install"]).contains("  wrapped "), "{name}");

        let said = machine.done(&["uninstall", name, "--yes"]);
        assert!(said.contains("as it was before `taskgate install`"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), first, "{name}");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), siblings(&machine, &file), "{name}");

        // The user changes the file meanwhile.
        machine.done(&["install", name, "--yes"]);
        let comment: &[u8] = if recorded.ends_with("json") { b"// mine\n" } else { b"# mine\n" };
        fs::write(&file, [&fs::read(&file).unwrap(), comment].concat()).unwrap();
        machine.done(&["uninstall", "--yes"]);
        assert_eq!(fs::read(&file).unwrap(), [&first, comment].concat(), "{name}");
    }
}

/// The entries of the file's folder that were there before.
fn siblings(machine: &Machine, file: &Path) -> usize {
    // The home folder of Claude Code has nothing else.
    usize::from(file.exists())
        + usize::from(file.parent() == Some(&machine.path("home")) && machine.path("home/.config").exists())
}

#[test]
fn a_named_server_alone_is_wrapped_and_unwrapped() {
    let machine = Machine::new();
    let file = machine.put_recorded(HOSTS[0]);
    let first = fs::read_to_string(&file).unwrap();
    machine.done(&["install", "claude-desktop", "time", "--yes"]);
    machine.done(&["install", "claude-desktop", "filesystem", "GitHub (work)", "--yes"]);
    assert_eq!(fs::read_to_string(copy_of(&file)).unwrap(), first);
    let said = machine.done(&["uninstall", "claude-desktop", "time", "--yes"]);
    assert!(said.contains("unwrapped time in ") && !said.contains("as it was before"), "{said}");
    let listed = machine.done(&["install"]);
    assert!(listed.contains("  wrapped filesystem\n  wrapped GitHub (work)\n  direct  time\n"), "{listed}");
    machine.done(&["uninstall", "--yes"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    let said = machine.done(&["uninstall", "--yes"]);
    assert!(said.contains("no server is wrapped in a host's file"), "{said}");
}

/// Claude Code keeps the servers of all projects in one file, with one copy.
#[test]
fn servers_of_two_projects_go_back_to_the_first_bytes_from_any_folder() {
    for (order, folder) in [(["a", "b"], "home"), (["b", "a"], "a"), (["a", "b"], "a")] {
        let machine = Machine::new();
        let projects = ["a", "b"].map(|name| machine.path(name));
        projects.iter().for_each(|project| fs::create_dir(project).unwrap());
        let projects = projects.map(|project| {
            let name = project.file_name().unwrap().to_str().unwrap();
            format!("\"{}\": {{\"mcpServers\": {{\"of-{name}\": {{\"command\": \"{name}\"}}}}}}", project.display())
        });
        let first = format!("{{\"projects\": {{{}}}}}", projects.join(", "));
        let file = machine.put("home/.claude.json", &first);
        let run = |folder, arguments: &[&str]| {
            let output = machine.run_in(folder, Path::new(TASKGATE), arguments);
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
            machine.shown(&output)
        };
        for project in order {
            let said = run(project, &["install", "claude-code", "--yes"]);
            assert!(said.contains(&format!("wrapped of-{project} in ~")), "{said}");
            assert_eq!(fs::read_to_string(copy_of(&file)).unwrap(), first, "{order:?}");
        }
        let said = run(folder, &["uninstall", "--yes"]);
        assert!(said.contains("unwrapped of-a, of-b in ") && said.contains("as it was before"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), first, "{order:?}");
        assert!(!copy_of(&file).exists());
        let said = run(folder, &["uninstall", "--yes"]);
        assert!(said.contains("no server is wrapped in a host's file"), "{said}");
    }
}

#[test]
fn b216_a_hosts_servers_are_unwrapped_where_install_wrapped_them_and_other_projects_are_named() {
    let machine = Machine::new();
    let projects = ["a", "b"].map(|name| machine.path(name));
    projects.iter().for_each(|project| fs::create_dir(project).unwrap());
    let projects = projects
        .map(|project| format!("\"{}\": {{\"mcpServers\": {{\"db\": {{\"command\": \"d\"}}}}}}", project.display()));
    let first = format!("{{\"projects\": {{{}}}}}", projects.join(", "));
    let file = machine.put("home/.claude.json", &first);
    let run = |folder, arguments: &[&str]| {
        let output = machine.run_in(folder, Path::new(TASKGATE), arguments);
        assert_eq!(output.status.code(), Some(0), "{folder} {arguments:?}: {}", text(&output.stderr));
        machine.shown(&output)
    };
    run("a", &["install", "claude-code", "db", "--yes"]);
    run("b", &["install", "claude-code", "db", "--yes"]);
    let others = |name: &str| format!("servers of other projects stay wrapped: {}", machine.path(name).display());
    for arguments in [&["uninstall", "claude-code", "db", "--yes"][..], &["uninstall", "claude-code", "--yes"]] {
        let said = run("a", arguments);
        assert!(said.contains("unwrapped db in ") && said.contains(&others("b")), "{said}");
        assert!(run("b", &["install"]).contains("  wrapped db\n"));
        let said = run("home", arguments);
        assert!(!said.contains("unwrapped") && said.contains(&others("b")), "{said}");
        run("a", &["install", "claude-code", "--yes"]);
    }
    run("a", &["uninstall", "claude-code", "--yes"]);
    let said = run("b", &["uninstall", "claude-code", "--yes"]);
    assert!(said.contains("as it was before") && !said.contains("other projects"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
}

/// The path that the link leads to is of one version.
#[test]
fn the_name_of_the_program_in_path_is_written_and_replaces_an_earlier_path() {
    let machine = Machine::new();
    let first = "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}";
    let file = machine.put("home/.cursor/mcp.json", first);
    machine.done(&["install", "cursor", "--yes"]);
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains(&format!("\"command\": \"{TASKGATE}\"")), "{written}");
    fs::create_dir(machine.path("bin")).unwrap();
    let link = machine.path("bin/taskgate");
    symlink(TASKGATE, &link).unwrap();
    let said = machine.done(&["install", "cursor", "--yes"]);
    assert!(said.contains("wrapped a in "), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), written.replace(TASKGATE, link.to_str().unwrap()));
    assert!(machine.done(&["install", "cursor", "--yes"]).contains("already wrapped: a"));
    machine.done(&["uninstall", "cursor", "--yes"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
}

#[test]
fn the_hosts_on_a_machine_are_listed_with_their_servers() {
    let machine = Machine::new();
    assert!(
        machine.done(&["install"]).contains("no host's file is found; name one: taskgate install HOST --file FILE")
    );
    for host in HOSTS {
        machine.put_recorded(host);
    }
    machine.put("project/.vscode/mcp.json", "{\"servers\": {\"of-project\": {\"command\": \"a\"}}}");
    machine.put("project/.mcp.json", "{\n  oops");
    machine.put("project/.cursor/mcp.json", "{}");
    check_golden(&recorded_folder().join("list.said"), &machine.done(&["install"]));
}

/// Cursor reads both files.
#[test]
fn a_command_that_changes_the_users_file_names_the_projects() {
    let machine = Machine::new();
    let of = |name: &str| format!("{{\"mcpServers\": {{\"{name}\": {{\"command\": \"b\"}}}}}}");
    machine.put("home/.cursor/mcp.json", of("mine"));
    let project = machine.put("project/.cursor/mcp.json", of("ours"));
    let other = |said: &str| said.contains("cursor has direct servers in") && said.contains("install cursor --file");
    machine.refused(&["install", "cursor", "theirs", "--yes"], "there is no server `theirs`");
    machine.refused(&["install", "cursor", "theirs", "--yes"], "cursor has direct servers in ");
    let said = machine.done(&["install", "cursor", "--yes"]);
    assert!(said.contains("wrapped mine in") && other(&said), "{said}");
    machine.done(&["install", "cursor", "--file", project.to_str().unwrap(), "--yes"]);
    assert!(!other(&machine.done(&["install", "cursor", "--yes"])), "both are wrapped");
}

/// Afterwards both files have their first bytes again.
#[test]
fn a_named_server_is_wrapped_and_unwrapped_in_the_file_that_has_it() {
    let machine = Machine::new();
    for (host, user, project) in [
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json"),
        ("claude-code", ".claude.json", ".mcp.json"),
        ("gemini", ".gemini/settings.json", ".gemini/settings.json"),
        ("codex", ".codex/config.toml", ".codex/config.toml"),
    ] {
        let of = |name: &str| match host {
            "codex" => format!("[mcp_servers.{name}]\ncommand = \"b\"\n"),
            _ => format!("{{\"mcpServers\": {{\"{name}\": {{\"command\": \"b\"}}}}}}"),
        };
        let mine = machine.put(&format!("home/{user}"), of("mine"));
        let ours = machine.put(&format!("project/{project}"), of("ours"));
        let said = machine.done(&["install", host, "ours", "--yes"]);
        assert!(said.contains(&format!("wrapped ours in PROJECT/{project}; ")), "{said}");
        assert_eq!(fs::read_to_string(&mine).unwrap(), of("mine"));
        machine.done(&["install", host, "mine", "--yes"]);
        machine.done(&["uninstall", host, "ours", "--yes"]);
        assert_eq!(fs::read_to_string(&ours).unwrap(), of("ours"));
        assert!(fs::read_to_string(&mine).unwrap().contains("\"wrap\""));
        machine.done(&["uninstall", host, "--yes"]);
        assert_eq!(fs::read_to_string(&mine).unwrap(), of("mine"));
        assert!(!copy_of(&mine).exists() && !copy_of(&ours).exists());
    }
}

#[test]
fn a_file_by_its_path_and_the_target_of_a_link_are_changed() {
    let machine = Machine::new();
    let target = machine.put("home/dotfiles/mcp.json", "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}");
    fs::create_dir_all(machine.path("home/.cursor")).unwrap();
    let link = machine.path("home/.cursor/mcp.json");
    symlink("../dotfiles/mcp.json", &link).unwrap();
    machine.done(&["install", "cursor", "--yes"]);
    assert!(link.is_symlink() && copy_of(&target).exists() && !copy_of(&link).exists());
    assert!(fs::read_to_string(&target).unwrap().contains("\"wrap\""));
    machine.done(&["uninstall", "cursor", "--file", target.to_str().unwrap(), "--yes"]);
    assert_eq!(fs::read_to_string(&target).unwrap(), "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}");
}

#[test]
fn a_file_that_cannot_be_changed_is_refused_and_stays() {
    let valid = "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}";
    let large = format!("{valid}{}", " ".repeat(4 << 20));
    let rows: [(&[u8], &[&str], &str); 12] = [
        (b"", &[], ": the file is empty; add a server in the host first"),
        (b" \n", &[], ": the file is empty; add a server in the host first"),
        (b"{\"a\": \"\xff\"}", &[], ": this is not UTF-8 text"),
        (large.as_bytes(), &[], ": this is more than 4 MiB"),
        (b"{\n  \"mcpServers\" {}}", &[], ": line 2, column 16: Expected colon"),
        (b"{\"mcpServers\": {}} x", &[], ": line 1, column 20: Text cannot contain more than one JSON value"),
        (b"{}", &[], ": `mcpServers` is missing: the file names no servers; add one in the host first"),
        (b"[]", &[], ": `mcpServers` is missing"),
        (b"{\"mcpServers\": 1}", &[], ": `mcpServers` holds no servers: each needs a name and settings"),
        (valid.as_bytes(), &["c"], ": there is no server `c`; there is `a`"),
        (b"{\"mcpServers\": {\"a\": {}}}", &["a"], ": a: has neither a command nor an address"),
        (valid.as_bytes(), &[], "standard input is not a terminal, so nothing can be confirmed; add --yes"),
    ];
    for (content, servers, expected) in rows {
        let machine = Machine::new();
        let file = machine.put("home/.cursor/mcp.json", content);
        for command in ["install", "uninstall"] {
            let is_of_install = expected.contains("--yes") || expected.contains("neither");
            if command == "install" || !is_of_install {
                let confirmed: &[&str] = if expected.contains("--yes") { &[] } else { &["--yes"] };
                let file = file.to_str().unwrap();
                machine.refused(&[&[command, "cursor"], servers, &["--file", file], confirmed].concat(), expected);
            }
        }
        assert_eq!(fs::read(&file).unwrap(), content);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "{expected}");
    }
    for (host, file, content, expected) in [
        ("goose", "config.yaml", "extensions: {a: [}", ": line 1, column "),
        ("codex", "config.toml", "[mcp_servers.a]\ncommand = \n", ": line 2, column 11: "),
    ] {
        let machine = Machine::new();
        machine.put(&format!("project/{file}"), content);
        machine.refused(&["install", host, "--file", file, "--yes"], expected);
    }
}

#[test]
fn a_missing_file_a_read_only_one_and_one_that_another_run_changes_are_refused() {
    let machine = Machine::new();
    machine
        .refused(&["install", "word"], "there is no host `word`; write one of claude-desktop, claude-code, vscode, ");
    for command in ["install", "uninstall"] {
        machine
            .refused(&[command, "zed"], "zed: there is no ~/.config/zed/settings.json; add a server in the host first");
        machine.refused(&[command, "librechat"], "librechat: there is no librechat.yaml; ");
        machine.refused(&[command, "zed", "--file", "a.json"], "a.json: there is no such file; ");
        machine.refused(&[command, "zed", "--file", "."], ".: this is not a file; name the host's file by --file");
    }
    let file = machine.put("home/.cursor/mcp.json", "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}");
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, mode, usual) in [(file.as_path(), 0o440, 0o640), (file.parent().unwrap(), 0o555, 0o755)] {
        set(path, mode);
        machine.refused(&["install", "cursor", "--yes"], ": this is read-only; make it writable first");
        set(path, usual);
    }
    let lock = machine.put("home/.cursor/mcp.json.taskgate-new", "");
    let expected = "mcp.json.taskgate-new: another run changes the file now; if none does, remove this one";
    machine.refused(&["install", "cursor", "--yes"], expected);
    fs::remove_file(lock).unwrap();
    assert!(!copy_of(&file).exists());
    machine.done(&["install", "cursor", "--yes"]);
}

#[test]
fn a_person_is_asked_and_a_file_that_changes_before_the_answer_stays() {
    let machine = Machine::new();
    let first = "{\"mcpServers\": {\"a\": {\"command\": \"b\"}}}\n";
    let file = machine.put("home/.cursor/mcp.json", first);
    let shown = machine.answered("", || ());
    assert!(shown.contains("\u{1b}[31m-{") && shown.contains("nothing was changed"), "{shown}");
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    let shown = machine.answered("y", || fs::write(&file, "{}").unwrap());
    assert!(shown.contains("mcp.json: the file was changed meanwhile; run the command again"), "{shown}");
    assert!(fs::read_to_string(&file).unwrap() == "{}" && fs::read_dir(file.parent().unwrap()).unwrap().count() == 1);
    fs::write(&file, first).unwrap();
    let shown = machine.answered("yes", || ());
    assert!(shown.contains("wrapped a in ") && shown.contains("; the copy is "), "{shown}");
    assert_eq!(fs::read_to_string(copy_of(&file)).unwrap(), first);
}

/// The host's part: it starts the words of its file.
#[test]
fn a_wrapped_entry_starts_its_server() {
    let machine = Machine::new();
    let server = serde_json::json!({ "command": TASKGATE, "args": ["demo-server"] });
    let file = machine.put("project/.mcp.json", serde_json::json!({ "mcpServers": { "demo": server } }).to_string());
    machine.done(&["install", "claude-code", "--yes"]);
    let written: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let entry = &written["mcpServers"]["demo"];
    let arguments: Vec<&str> = entry["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(arguments, ["wrap", "--", TASKGATE, "demo-server"]);
    let mut child = Command::new(entry["command"].as_str().unwrap())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "host", "version": "1" } } });
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{request}").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"serverInfo\""), "{answer}");
    drop(input);
    assert!(child.wait().unwrap().success());
}
