//! `taskgate keys new`: a key that the configuration knows by its digest alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

fn taskgate(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.current_dir(folder.path()).args(arguments).env_remove("TASKGATE_LOG").output().unwrap()
}

#[test]
fn new_keys_of_one_principal_go_into_a_configuration_that_does_not_show_them() {
    let folder = TempDir::new().unwrap();
    let mut toml = "[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n[auth]\nmode = \"api_keys\"".to_owned();
    let mut secrets = Vec::new();
    for _ in 0..2 {
        let made = taskgate(&folder, &["keys", "new", "team-a"]);
        assert!(made.status.success());
        toml += std::str::from_utf8(&made.stdout).unwrap();
        let said = String::from_utf8(made.stderr).unwrap();
        secrets.extend(said.lines().filter(|line| line.starts_with("tg_teama")).map(str::to_owned));
    }
    assert_eq!((secrets.len(), toml.matches("id = \"team-a\"").count()), (2, 2), "{toml}");
    let hidden = secrets.iter().all(|key| !toml.contains(key.rsplit('_').next().unwrap()));
    assert!(hidden, "{toml}");
    fs::write(folder.path().join("taskgate.toml"), &toml).unwrap();
    let checked = taskgate(&folder, &["check", "taskgate.toml"]);
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

/// On a full disk.
#[test]
fn a_command_that_cannot_print_its_output_fails() {
    for (arguments, output, why) in [
        (["keys", "new", "ada"].as_slice(), "2", ""),
        (&["keys", "new", "ada"], "1", "cannot print the block"),
        (&["completions", "bash"], "1", "cannot print the completions"),
    ] {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {output}>/dev/full"));
        let ended = shell.arg(env!("CARGO_BIN_EXE_taskgate")).args(arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(70), "{arguments:?}: {ended:?}");
        assert!(ended.stdout.is_empty() && String::from_utf8(ended.stderr).unwrap().contains(why), "{arguments:?}");
    }
}

/// As with `head`.
#[test]
fn completions_for_a_reader_that_leaves_are_a_success() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    let ended = command.args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn a_check_prints_the_paths_of_upstreams_and_of_endpoints() {
    let folder = TempDir::new().unwrap();
    let toml = "[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n\
                [[endpoints]]\npath = \"/all\"\nupstreams = [\"up\"]\n";
    fs::write(folder.path().join("taskgate.toml"), toml).unwrap();
    let checked = taskgate(&folder, &["check", "taskgate.toml"]);
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(
        said.starts_with("1 upstream at /up/mcp, 1 endpoint at /all, 0 rules for tools; would listen on "),
        "{said}"
    );
}

#[test]
fn a_name_that_cannot_be_a_principal_gets_no_key() {
    let folder = TempDir::new().unwrap();
    let long = "x".repeat(65);
    for (arguments, why) in [
        (vec!["new", ""], "ID has 1 to 64 characters"),
        (vec!["new", "team a"], "ID has 1 to 64 characters"),
        (vec!["new", "ädä"], "ID has 1 to 64 characters"),
        (vec!["new", &long], "ID has 1 to 64 characters"),
        (vec!["new"], "required"),
        (vec!["new", "a", "b"], "unexpected argument"),
        (vec!["old", "a"], "unrecognized subcommand"),
        (vec![], "Usage"),
    ] {
        let refused = taskgate(&folder, &[&["keys"], arguments.as_slice()].concat());
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(64), "{arguments:?}: {said}");
        assert!(said.contains(why) && refused.stdout.is_empty(), "{arguments:?}: {said}");
    }
}
