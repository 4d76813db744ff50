//! The environment and rights of a program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, command_line, demo, environ, in_time};

/// A gateway whose program has the variable `TOKEN` from this file.
async fn gate_with_token_file() -> (GatewayProcess, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "from a file\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let upstream = demo(dir.path().to_str().unwrap());
    let gate = GatewayProcess::start(dir, &format!("{upstream}env_files = {{ TOKEN = {file:?} }}\n")).await;
    (gate, file)
}

/// SEC-10: no variable of the gateway's own but three reaches a program.
#[tokio::test]
async fn sec_10_a_program_has_the_variables_that_are_written_and_three_more() {
    let (gate, _) = gate_with_token_file().await;
    let _client = StandaloneClient::session(&gate).await;
    let programs = gate.programs();
    let variables = environ(programs[0]);
    assert!(variables.contains(&"TOKEN=from a file".to_owned()), "{variables:?}");
    let allowed = ["PATH", "HOME", "LANG", "MARK", "TOKEN"];
    for variable in &variables {
        assert!(allowed.contains(&variable.split('=').next().unwrap()), "{variable}");
    }
}

/// A program may have several such files, and the error of a read names none.
#[tokio::test]
async fn a_file_of_a_variable_that_cannot_be_read_is_named_in_the_log() {
    let (gate, file) = gate_with_token_file().await;
    fs::remove_file(&file).unwrap();
    let error = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!(fault(&error)["executed"], "no", "{error}");
    gate.until_logged(&format!("it cannot be started: {}: cannot be read", file.display())).await;
}

/// SEC-10: a limit that is written is the program's.
#[tokio::test]
async fn sec_10_a_program_has_the_limits_that_are_written_and_gains_no_privileges() {
    let gate = GatewayProcess::with("", "descriptors_max = 128\nmemory_max = \"4GiB\"\n").await;
    let client = StandaloneClient::session(&gate).await;
    assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    let id = gate.programs()[0];
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max open files"), "128");
    assert_eq!(limit("Max data size"), (4_u64 << 30).to_string());
    assert_eq!(limit("Max core file size"), "0");
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"), "{status}");
}

/// SEC-10: there is no shell between.
#[tokio::test]
async fn sec_10_arguments_reach_a_program_as_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let touched = dir.path().join("touched");
    let word = format!("$(touch {0}); `touch {0}` && touch {0} | cat", touched.display());
    let upstream =
        demo(dir.path().to_str().unwrap()).replace("[\"demo-server\"]", &format!("[\"demo-server\", {word:?}]"));
    let gate = GatewayProcess::start(dir, &upstream).await;
    let error = StandaloneClient::try_session(&gate).await.unwrap_err();
    // The demo server takes no such argument, and shows that it was one.
    assert_eq!(fault(&error)["exitStatus"], 64, "{error}");
    gate.until_logged("unexpected argument '$(touch").await;
    assert!(!touched.exists());
}

/// SEC-10: a program is in a group of its own, so that stopping it reaches all that it has started.
#[tokio::test]
async fn sec_10_the_children_of_a_program_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let upstream = demo(dir.path().to_str().unwrap());
    let program = env!("CARGO_BIN_EXE_taskgate");
    let upstream = upstream.replace(
        &format!("command = {program:?}\nargs = [\"demo-server\"]"),
        &format!("command = [\"sh\", \"-c\", \"sleep 600 & sleep 601 & exec {program} demo-server\"]"),
    );
    let gate = GatewayProcess::start(dir, &upstream).await;
    let client = StandaloneClient::session(&gate).await;
    let is_sleep = |id: &u32| command_line(*id).first().is_some_and(|word| word == "sleep");
    // The program may answer before the background processes of the shell run `sleep`.
    in_time(async {
        while gate.processes().iter().filter(|id| is_sleep(id)).count() != 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    client.leave().await;
    gate.until_processes(0).await;
}
