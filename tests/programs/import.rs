//! `taskgate import`: the JSON of hosts becomes a configuration that `check` takes, and a file of variables with their values.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;
use support::check_golden;
use tempfile::TempDir;

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
const HOSTS: usize = 6;
/// A part of each secret in the hosts' files.
const SECRET: &str = "s3cret";

fn import(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(TASKGATE);
    command.current_dir(folder).arg("import").args(arguments).env_remove("TASKGATE_LOG");
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

/// The variables that a file says are to be set, each with a value that fits every key but a folder.
fn unset(toml: &str) -> Vec<(String, String)> {
    let first = toml.lines().next().unwrap();
    let names = first.split_once("the environment of the gateway: ").map_or("", |(_, names)| names);
    let names = names.trim_end_matches('.').split(", ").filter(|name| !name.is_empty());
    names.map(|name| (name.to_owned(), "http://value.example".to_owned())).collect()
}

/// Each of the six hosts: the configuration, the file of variables, the notes, and that `check` takes the result.
#[test]
fn the_json_of_each_host_becomes_a_configuration_that_check_takes_with_its_values_in_a_file_beside_it() {
    let mut files: Vec<PathBuf> = fs::read_dir(hosts()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    assert_eq!(files.len(), HOSTS);
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("mcp_tools/python")).unwrap();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        fs::copy(&file, folder.path().join(name)).unwrap();
        let target = file.with_extension("toml").file_name().unwrap().to_str().unwrap().to_owned();
        let imported = import(folder.path(), &[name, "--out", &target], "");
        let said = text(&imported.stderr);
        assert_eq!(imported.status.code(), Some(0), "{name}: {said}");
        let read = |extension: &str| fs::read_to_string(folder.path().join(name).with_extension(extension));
        let (toml, env) = (read("toml").unwrap(), read("env").unwrap_or_default());
        let is_shown = |line: &str| toml.contains(line.split_once('=').unwrap().1);
        assert!(!env.lines().filter(|line| line.contains(SECRET)).any(is_shown) && !said.contains(SECRET), "{name}");
        check_golden(&file.with_extension("toml"), &toml);
        check_golden(&file.with_extension("said"), said);
        if !env.is_empty() {
            check_golden(&file.with_extension("env"), &env);
            assert_eq!(mode(&folder.path().join(name).with_extension("env")), 0o600);
        }
        assert_eq!(mode(&folder.path().join(&target)), 0o600);
        let mut check = Command::new(TASKGATE);
        check.current_dir(folder.path()).args(["check", &target]).envs(unset(&toml));
        check.env("WORKSPACE_FOLDER", folder.path());
        let checked = check.output().unwrap();
        assert_eq!(checked.status.code(), Some(0), "{name}: {}", text(&checked.stderr));
        let piped = import(folder.path(), &["-", "--out", "piped.toml"], &fs::read_to_string(&file).unwrap());
        let piped_toml = fs::read_to_string(folder.path().join("piped.toml")).unwrap();
        assert_eq!(piped_toml.replace("piped.env", &target.replace(".toml", ".env")), toml);
        let is_named = |line: &str| line.starts_with("standard input: ") || line.starts_with("wrote piped.toml");
        assert!(text(&piped.stderr).lines().all(is_named), "{name}");
        let _ = (fs::remove_file(folder.path().join("piped.toml")), fs::remove_file(folder.path().join("piped.env")));
    }
}

/// Claude Code's servers of one project, as `install` finds them.
#[test]
fn the_servers_of_the_current_folders_project_are_imported_too() {
    let folder = TempDir::new().unwrap();
    let here = folder.path().canonicalize().unwrap();
    let server = |name: &str| json!({ "mcpServers": { name: { "command": name } } });
    let own = here.to_str().unwrap();
    let mut file = json!({ "projects": { own: server("own"), "/elsewhere": server("other") } });
    file["mcpServers"] = json!({ "users": { "command": "users" } });
    for (named, is_alone) in [(file.clone(), false), (json!({ "projects": file["projects"] }), true)] {
        let imported = import(&here, &["-"], &named.to_string());
        let said = text(&imported.stderr);
        assert_eq!(imported.status.code(), Some(0), "{said}");
        assert!(said.contains("/projects: servers of other projects are not carried over"), "{said}");
        let toml = fs::read_to_string(here.join("taskgate.toml")).unwrap();
        let has = ["own", "other", "users"].map(|name| toml.contains(&format!("[upstreams.{name}]")));
        assert_eq!(has, [true, false, !is_alone], "{toml}");
        fs::remove_file(here.join("taskgate.toml")).unwrap();
    }
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o7777
}

#[test]
fn two_servers_with_one_variable_of_two_values_get_two_variables() {
    let folder = TempDir::new().unwrap();
    let server = |env: &str| format!("{{\"command\": \"s\", \"env\": {{{env}}}}}");
    let (one, two) = (server("\"TOKEN\": \"1\", \"SAME\": \"s\""), server("\"TOKEN\": \"a\\nb\", \"SAME\": \"s\""));
    let input = format!("{{\"mcpServers\": {{\"a\": {one}, \"b\": {two}}}}}");
    assert_eq!(import(folder.path(), &["-"], &input).status.code(), Some(0));
    let env = fs::read_to_string(folder.path().join("taskgate.env")).unwrap();
    assert_eq!(env, "B_TOKEN=\"a\\nb\"\nSAME=s\nTOKEN=1\n");
    let toml = fs::read_to_string(folder.path().join("taskgate.toml")).unwrap();
    assert!(toml.contains("TOKEN = \"${TOKEN}\"") && toml.contains("TOKEN = \"${B_TOKEN}\""), "{toml}");
}

#[test]
fn no_file_is_overwritten_and_none_is_left_without_the_other() {
    let input = "{\"mcpServers\": {\"a\": {\"command\": \"s\", \"env\": {\"TOKEN\": \"1\"}}}}";
    for existing in ["taskgate.toml", "taskgate.env"] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(existing), "mine").unwrap();
        let refused = import(folder.path(), &["-"], input);
        assert_eq!(refused.status.code(), Some(64));
        let expected = format!("{existing}: File exists (os error 17); name another by --out, or remove it");
        assert!(text(&refused.stderr).contains(&expected), "{}", text(&refused.stderr));
        assert_eq!(fs::read_to_string(folder.path().join(existing)).unwrap(), "mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{existing}");
    }
    let folder = TempDir::new().unwrap();
    for (target, expected) in [("a.env", "--out names the configuration"), ("no/a.toml", "no/a.env: No such file")] {
        let refused = import(folder.path(), &["-", "--out", target], input);
        assert_eq!(refused.status.code(), Some(64));
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_file_that_is_none_of_a_host_is_refused_with_its_place_and_nothing_is_written() {
    let folder = TempDir::new().unwrap();
    let server = |server: &str| format!("{{\"mcpServers\": {{\"a/b\": {server}}}}}");
    let rows = [
        (String::new(), "in.json:1: not valid JSON"),
        ("{\n  \"mcpServers\": {\n    \"a\" {}\n".to_owned(), "in.json:3: not valid JSON"),
        ("{\n/* open".to_owned(), "in.json:2: a comment begins with /* and does not end"),
        ("{\"servers\": {},\n\"servers\": {}}".to_owned(), "in.json:2: an object names a member twice"),
        (
            "[upstreams.a]\nurl = 1".to_owned(),
            "in.json:1: not valid JSON (at byte 1); a host's file is JSON, and no TOML or YAML",
        ),
        ("[]".to_owned(), "in.json: /: is not an object; write {\"mcpServers\""),
        ("{\"theme\": 1}".to_owned(), "in.json: /: names no servers: there is neither `mcpServers` nor `servers`"),
        ("{\"mcpServers\": {}}".to_owned(), "in.json: /: names no server"),
        (
            "{\"projects\": {\"/p\": {\"mcpServers\": {\"a\": {\"command\": \"s\"}}}}}".to_owned(),
            "in.json: /projects: servers of other projects are not carried over; import the file in their folders, too",
        ),
        ("{\"servers\": []}".to_owned(), "in.json: /servers: is not an object"),
        (server("1"), "in.json: /mcpServers/a~1b: is not an object; write {\"command\": ...} or {\"url\": ...}"),
        (
            "# Goose\nextensions:\n  a:\n    cmd: b\n".to_owned(),
            "in.json:1: not valid JSON (at byte 0); a host's file is",
        ),
        (server("{}"), "in.json: /mcpServers/a~1b: has neither a `command` nor a `url`, and is left out"),
        (server("{\"type\": \"http\"}"), "in.json: /mcpServers/a~1b: names no server; write a `url`"),
        (server("{\"command\": 1}"), "in.json: /mcpServers/a~1b/command: is not a string"),
        (server("{\"command\": \"\"}"), "in.json: /mcpServers/a~1b/command: names no program"),
        (server("{\"command\": \"a\", \"args\": \"b\"}"), "/mcpServers/a~1b/args: is not a list of strings"),
        (server("{\"command\": \"a\", \"args\": [[]]}"), "/mcpServers/a~1b/args/0: is not a string"),
        (server("{\"command\": \"a\", \"args\": [\"\\u0000\"]}"), "/mcpServers/a~1b/args/0: has a NUL character"),
        (server("{\"command\": \"a\", \"args\": [\"\\ud800\"]}"), "/mcpServers/a~1b/args/0: is not a string"),
        (server("{\"command\": \"a\", \"env\": [\"A=1\"]}"), "/mcpServers/a~1b/env: is not an object of strings"),
        (server("{\"command\": \"a\", \"env\": {\"A\": {}}}"), "/mcpServers/a~1b/env/A: is not a string"),
        (
            server("{\"command\": \"a\", \"env\": {\"A\\nB\": \"c\"}}"),
            "has a control character, such as a line break, in its name",
        ),
        (server("{\"url\": \"mcp.example\"}"), "/mcpServers/a~1b/url: write a URL such as"),
        (server("{\"url\": \"file:///etc/passwd\"}"), "/mcpServers/a~1b/url: has another scheme than http and https"),
        (server("{\"command\": \"a\", \"disabled\": true}"), "in.json: /: no server is left"),
        (server("{\"type\": \"ws\", \"url\": \"wss://h/\"}"), "in.json: /: no server is left"),
        (server("{\"url\": \"wss://h/\"}"), "in.json: /: no server is left"),
        (
            server("{\"command\": \"npx -y thing --opt 'a b'\"}"),
            "/mcpServers/a~1b/command: is a shell's line with quotes; write the program alone, and its words as `args`",
        ),
        (format!("{{\"mcpServers\": {}", "[".repeat(100_000)), "in.json:1: nested too deeply"),
        (" ".repeat(10 << 20), "in.json: this is more than 4 MiB"),
    ];
    for (input, expected) in rows {
        fs::write(folder.path().join("in.json"), &input).unwrap();
        let refused = import(folder.path(), &["in.json"], "");
        let shown: String = input.chars().take(80).collect();
        assert_eq!(refused.status.code(), Some(64), "{shown}");
        assert!(!folder.path().join("taskgate.toml").exists(), "{shown}");
        assert!(text(&refused.stderr).contains(expected), "{shown}\n{}", text(&refused.stderr));
    }
    fs::write(folder.path().join("in.json"), b"{\"a\": \"\xff\"}").unwrap();
    for (file, expected) in [
        ("in.json", "in.json: this is not UTF-8 text"),
        ("nowhere.json", "nowhere.json: No such file or directory"),
        (".", ".: Is a directory"),
    ] {
        let refused = import(folder.path(), &[file], "");
        assert_eq!(refused.status.code(), Some(64));
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_server_that_the_gateway_cannot_have_is_left_out_and_the_others_are_imported() {
    for (server, expected) in [
        (
            "{\"url\": \"wss://x.example/\"}",
            "/mcpServers/odd/url: there is no transport `ws` here; the server is left out",
        ),
        (
            "{\"source\": \"extension\", \"settings\": {}}",
            "/mcpServers/odd: has neither a `command` nor a `url`, and is left out",
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let input = format!("{{\"mcpServers\": {{\"a\": {{\"command\": \"s\"}}, \"odd\": {server}}}}}");
        let imported = import(folder.path(), &["-"], &input);
        let said = text(&imported.stderr);
        assert_eq!(imported.status.code(), Some(0), "{said}");
        assert!(said.contains(expected), "{said}");
        let toml = fs::read_to_string(folder.path().join("taskgate.toml")).unwrap();
        assert!(toml.contains("[upstreams.a]") && !toml.contains("odd"), "{toml}");
    }
}

/// `check` and `serve` of a host's file name the command for it.
#[test]
fn a_hosts_file_in_place_of_a_configuration_is_answered_with_the_command_that_turns_it_into_one() {
    let folder = TempDir::new().unwrap();
    for file in ["vscode.json", "cursor.json"] {
        fs::copy(hosts().join(file), folder.path().join(file)).unwrap();
        for command in ["check", "serve"] {
            let output = Command::new(TASKGATE).current_dir(folder.path()).args([command, file]).output().unwrap();
            assert_eq!(output.status.code(), Some(64), "{command} {file}");
            let expected = format!(
                "{file}:1: this is JSON, and a configuration is TOML; `taskgate import {file}` converts a host's JSON"
            );
            assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
        }
    }
}
