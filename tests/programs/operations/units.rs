//! The units in `deploy/` name commands and options that the program has.

use std::path::Path;
use std::process::Command;

use super::program::Folder;

fn unit(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)).unwrap()
}

/// The words behind `key=`, once for each line that has it.
fn values<'a>(unit: &'a str, key: &str) -> Vec<Vec<&'a str>> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.map(|value| value.split(' ').collect()).collect()
}

#[test]
fn the_service_unit_starts_a_command_that_exists() {
    let service = unit("taskgate.service");
    let commands = values(&service, "ExecStart");
    assert_eq!(commands.len(), 1);
    let folder = Folder::new();
    folder.write("[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n");
    for words in commands {
        assert!(words[0].ends_with("/taskgate"), "{words:?}");
        let help = Command::new(env!("CARGO_BIN_EXE_taskgate")).args([words[1], "--help"]).output().unwrap();
        assert!(help.status.success(), "{words:?}");
        let help = String::from_utf8(help.stdout).unwrap();
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(option), "{option} is no option of {}", words[1]);
        }
    }
    let file = folder.path().join("taskgate.toml");
    let checked = Command::new(env!("CARGO_BIN_EXE_taskgate")).arg("check").arg(file).status().unwrap();
    assert!(checked.success());
}

/// Looked at by systemd's own judge, where there is one: 0 is a service that can do nothing, 10 one that can do all.
#[test]
fn the_service_has_little_that_it_could_do_to_the_machine() {
    let judge =
        Command::new("systemd-analyze").args(["security", "--offline=true", "deploy/taskgate.service"]).output();
    let Ok(judge) = judge.map_err(|error| assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}")) else {
        return;
    };
    let judged = String::from_utf8(judge.stdout).unwrap();
    let exposure = judged.split("Overall exposure level for taskgate.service: ").nth(1);
    let exposure = exposure.and_then(|rest| rest.split(' ').next()?.parse::<f32>().ok());
    // A systemd before 250 judges no files.
    assert!(exposure.is_none_or(|exposure| exposure < 1.6), "{judged}");
}

/// Managers that the gateway cannot ask for more time have it from the start.
#[test]
fn the_service_has_the_time_for_a_drain_as_it_is_by_default() {
    let service = unit("taskgate.service");
    let seconds = values(&service, "TimeoutStopSec")[0][0].strip_suffix('s').and_then(|text| text.parse::<u64>().ok());
    let example = std::fs::read_to_string("config/taskgate.example.toml").unwrap();
    assert!(example.contains("\ndrain_max = \"5m\"\n"), "the unit must follow a change of the default");
    assert!(seconds.is_some_and(|seconds| seconds >= 5 * 60 + 5 + 10), "{seconds:?}");
    assert_eq!(values(&service, "KillMode"), [["mixed"]], "programs end with their calls");
}

#[test]
fn the_units_belong_together() {
    let (service, socket) = (unit("taskgate.service"), unit("taskgate.socket"));
    assert_eq!(values(&service, "Requires"), [["taskgate.socket"]]);
    assert_eq!(values(&socket, "FileDescriptorName"), [["clients"]]);
    assert_eq!(values(&service, "Type"), [["notify"]]);
    assert_eq!(values(&service, "RestartPreventExitStatus"), [["64"]]);
    assert_eq!(values(&service, "ExecStartPre").len(), 0, "its exit status would not prevent a restart");
    let address = values(&socket, "ListenStream")[0][0];
    assert!(address.parse::<std::net::SocketAddr>().unwrap().ip().is_loopback(), "open to all without being asked");
}
