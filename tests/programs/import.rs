//! `taskgate import`: the JSON of hosts becomes a configuration that `check` takes, without their secrets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
const HOSTS: usize = 6;
/// What each secret in the hosts' files holds.
const SECRET: &str = "s3cret";

fn import(folder: &Path, file: &str, input: &str) -> Output {
    let mut command = Command::new(TASKGATE);
    command.current_dir(folder).args(["import", file]).env_remove("TASKGATE_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has seen enough does not read the rest.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn hosts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/import")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn check_golden(golden: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, found).unwrap();
    }
    assert_eq!(found, fs::read_to_string(golden).unwrap_or_default(), "{}", golden.display());
}

/// The variables that a file says it needs, each with a value that fits everywhere but in the place of a folder.
fn needed(toml: &str) -> Vec<(String, String)> {
    let first = toml.lines().next().unwrap();
    let names = first.strip_prefix("# The environment of the gateway must hold ").unwrap_or_default();
    let names = names.trim_end_matches('.').split(", ").filter(|name| !name.is_empty());
    names.map(|name| (name.to_owned(), "http://value.example".to_owned())).collect()
}

/// Each of the six hosts: what comes out, what is said of the rest, and that `check` takes it.
#[test]
fn the_json_of_each_host_becomes_a_configuration_that_check_takes_without_its_secrets() {
    let mut files: Vec<PathBuf> = fs::read_dir(hosts()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    assert_eq!(files.len(), HOSTS);
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("mcp_tools/python")).unwrap();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        fs::copy(&file, folder.path().join(name)).unwrap();
        let imported = import(folder.path(), name, "");
        let (toml, said) = (text(&imported.stdout), text(&imported.stderr));
        assert_eq!(imported.status.code(), Some(0), "{name}: {said}");
        assert!(!toml.contains(SECRET) && !said.contains(SECRET), "{name}");
        check_golden(&file.with_extension("toml"), toml);
        check_golden(&file.with_extension("said"), said);
        let toml_file = folder.path().join("imported.toml");
        fs::write(&toml_file, toml).unwrap();
        let mut check = Command::new(TASKGATE);
        check.current_dir(folder.path()).args(["check", "imported.toml"]).envs(needed(toml));
        check.env("WORKSPACE_FOLDER", folder.path());
        let checked = check.output().unwrap();
        assert_eq!(checked.status.code(), Some(0), "{name}: {}", text(&checked.stderr));
        let piped = import(folder.path(), "-", &fs::read_to_string(&file).unwrap());
        assert_eq!(text(&piped.stdout), toml);
        assert!(text(&piped.stderr).lines().all(|line| line.starts_with("standard input: ")), "{name}");
    }
}

#[test]
fn a_file_that_is_none_of_a_host_is_refused_with_its_place_and_nothing_is_printed() {
    let folder = TempDir::new().unwrap();
    let server = |server: &str| format!("{{\"mcpServers\": {{\"a/b\": {server}}}}}");
    let rows = [
        (String::new(), "in.json:1: not valid JSON"),
        ("{\n  \"mcpServers\": {\n    \"a\" {}\n".to_owned(), "in.json:3: not valid JSON"),
        ("{\n/* open".to_owned(), "in.json:2: a comment begins with /* and does not end"),
        ("{\"servers\": {},\n\"servers\": {}}".to_owned(), "in.json:2: an object names a member twice"),
        (
            "[upstreams.a]\nurl = 1".to_owned(),
            "in.json:1: not valid JSON (at byte 1); a host's file is JSON, and no TOML",
        ),
        ("[]".to_owned(), "in.json: /: is no object; write {\"mcpServers\""),
        ("{\"theme\": 1}".to_owned(), "in.json: /: names no servers: there is neither `mcpServers` nor `servers`"),
        ("{\"mcpServers\": {}}".to_owned(), "in.json: /: names no server"),
        ("{\"servers\": []}".to_owned(), "in.json: /servers: is no object"),
        (server("1"), "in.json: /mcpServers/a~1b: is no object; write {\"command\": ...} or {\"url\": ...}"),
        (server("{}"), "in.json: /mcpServers/a~1b: names no server; write a `command` or `url`"),
        (server("{\"type\": \"http\"}"), "in.json: /mcpServers/a~1b: names no server; write a `url`"),
        (server("{\"command\": 1}"), "in.json: /mcpServers/a~1b/command: is no string"),
        (server("{\"command\": \"\"}"), "in.json: /mcpServers/a~1b/command: names no program"),
        (server("{\"command\": \"a\", \"args\": \"b\"}"), "/mcpServers/a~1b/args: is no list of strings"),
        (server("{\"command\": \"a\", \"args\": [[]]}"), "/mcpServers/a~1b/args/0: is no string"),
        (server("{\"command\": \"a\", \"args\": [\"\\u0000\"]}"), "/mcpServers/a~1b/args/0: has a NUL character"),
        (server("{\"command\": \"a\", \"args\": [\"\\ud800\"]}"), "/mcpServers/a~1b/args/0: is no string"),
        (server("{\"command\": \"a\", \"env\": [\"A=1\"]}"), "/mcpServers/a~1b/env: is no object of strings"),
        (server("{\"command\": \"a\", \"env\": {\"A\": {}}}"), "/mcpServers/a~1b/env/A: is no string"),
        (
            server("{\"command\": \"a\", \"env\": {\"A\\nB\": \"c\"}}"),
            "has a control character, such as a line break, in its name",
        ),
        (server("{\"url\": \"mcp.example\"}"), "/mcpServers/a~1b/url: write a URL such as"),
        (server("{\"url\": \"file:///etc/passwd\"}"), "/mcpServers/a~1b/url: has another scheme than http and https"),
        (server("{\"command\": \"a\", \"disabled\": true}"), "in.json: /: no server is left"),
        (server("{\"type\": \"ws\", \"url\": \"wss://h/\"}"), "in.json: /: no server is left"),
        (format!("{{\"mcpServers\": {}", "[".repeat(100_000)), "in.json:1: nested too deeply"),
        (" ".repeat(10 << 20), "in.json: this is more than 4 MiB"),
    ];
    for (input, expected) in rows {
        fs::write(folder.path().join("in.json"), &input).unwrap();
        let refused = import(folder.path(), "in.json", "");
        let shown: String = input.chars().take(80).collect();
        assert_eq!(refused.status.code(), Some(64), "{shown}");
        assert_eq!(text(&refused.stdout), "", "{shown}");
        assert!(text(&refused.stderr).contains(expected), "{shown}\n{}", text(&refused.stderr));
    }
    fs::write(folder.path().join("in.json"), b"{\"a\": \"\xff\"}").unwrap();
    for (file, expected) in [
        ("in.json", "in.json: this is no UTF-8 text"),
        ("nowhere.json", "nowhere.json: No such file or directory"),
        (".", ".: Is a directory"),
    ] {
        let refused = import(folder.path(), file, "");
        assert_eq!(refused.status.code(), Some(64));
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
    }
}

/// `check` and `serve` of a host's file say what to do with it.
#[test]
fn a_hosts_file_in_place_of_a_configuration_is_answered_with_the_command_that_turns_it_into_one() {
    let folder = TempDir::new().unwrap();
    for file in ["vscode.json", "cursor.json"] {
        fs::copy(hosts().join(file), folder.path().join(file)).unwrap();
        for command in ["check", "serve"] {
            let output = Command::new(TASKGATE).current_dir(folder.path()).args([command, file]).output().unwrap();
            assert_eq!(output.status.code(), Some(64), "{command} {file}");
            let expected = format!(
                "{file}:1: this is JSON, and a configuration is TOML: `taskgate import {file}` turns a host's into it"
            );
            assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
        }
    }
}
