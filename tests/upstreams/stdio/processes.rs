//! Processes come when they are needed, and none stays.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, WAIT_MAX, command_line, in_time};

#[tokio::test]
async fn a_program_is_started_by_the_first_session_and_ends_with_it() {
    let gate = GatewayProcess::new().await;
    assert_eq!(gate.processes().len(), 0, "no request needed it yet");
    let client = StandaloneClient::session(&gate).await;
    assert_eq!(gate.processes().len(), 2, "it and its supervisor");
    client.leave().await;
    gate.until_processes(0).await;
}

/// F45.
#[tokio::test]
async fn f45_a_program_that_heeds_neither_the_end_of_its_input_nor_sigterm_is_killed() {
    let gate = GatewayProcess::with("stubborn", "").await;
    let client = StandaloneClient::session(&gate).await;
    let began = tokio::time::Instant::now();
    client.leave().await;
    gate.until_processes(0).await;
    // The program ignores both: without its time to end it would end sooner, and without SIGKILL it would stay.
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test]
async fn two_hundred_programs_started_and_stopped_leave_no_process_and_no_descriptor() {
    let gate = GatewayProcess::new().await;
    // The first session opens descriptors for good, which are no leak.
    StandaloneClient::session(&gate).await.leave().await;
    gate.until_processes(0).await;
    let before = gate.descriptors();
    for _ in 0..10 {
        let clients = join_all((0..20).map(|_| StandaloneClient::session(&gate))).await;
        assert_eq!(gate.programs().len(), 20);
        join_all(clients.iter().map(StandaloneClient::leave)).await;
        gate.until_processes(0).await;
    }
    let settled = async {
        while gate.descriptors() > before + 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(WAIT_MAX, settled).await.is_ok(), "{before} were {}", gate.descriptors());
}

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_none_of_twenty_programs() {
    for faults in ["", "stubborn"] {
        let mut gate = GatewayProcess::with(faults, "").await;
        let _clients = join_all((0..20).map(|_| StandaloneClient::session(&gate))).await;
        assert_eq!(gate.programs().len(), 20);
        gate.kill().await;
        gate.until_processes(0).await;
    }
}

#[tokio::test]
async fn a_gateway_that_is_drained_leaves_no_program() {
    let mut gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    let stateless = StandaloneClient::stateless(&gate);
    assert_eq!(text(&stateless.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    assert_eq!(gate.terminate().await, Some(0));
    gate.until_processes(0).await;
}

/// Where the gateway is the first process, no other would reap them.
#[tokio::test]
async fn orphans_of_a_program_are_reaped_and_end_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (program, mark) = (env!("CARGO_BIN_EXE_taskgate"), dir.path().display().to_string());
    // Some end at once, one would stay, in a session of its own.
    let script = format!("for n in 1 2 3; do (sleep 0.01 &); done; (setsid sleep 300 &); exec {program} demo-server");
    let upstream = format!("command = \"sh\"\nargs = [\"-c\", {script:?}]\nenv = {{ MARK = {mark:?} }}\n");
    let gate = GatewayProcess::start(dir, &upstream).await;
    let client = StandaloneClient::session(&gate).await;
    assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    let program = gate.programs().into_iter().find(|id| command_line(*id).iter().any(|word| word == "demo-server"));
    let supervisor = parent_of(program.unwrap());
    // The program and the one that stays; nothing waits to be reaped.
    in_time(async {
        while children_of(supervisor).len() != 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    client.leave().await;
    gate.until_processes(0).await;
}

/// The fields of a process's `stat` behind its name: its state, then its parent.
fn stat(id: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn parent_of(id: u32) -> u32 {
    stat(id).unwrap()[1].parse().unwrap()
}

/// All children of a process, those that are not reaped included.
fn children_of(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| stat(*id).is_some_and(|stat| stat[1] == parent.to_string())).collect()
}

#[tokio::test]
async fn no_more_processes_than_allowed_run_and_the_next_one_is_refused() {
    let gate = GatewayProcess::with("", "processes_max = 2\n").await;
    let first = StandaloneClient::session(&gate).await;
    let _second = StandaloneClient::session(&gate).await;
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!((&fault(&refused)["reason"], &fault(&refused)["executed"]), (&json!("queue_full"), &json!("no")));
    assert_eq!(gate.programs().len(), 2);
    first.leave().await;
    // The place is free once the gateway knows that the process has ended.
    let freed = async {
        while StandaloneClient::try_session(&gate).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, freed).await.unwrap();
    assert_eq!(gate.programs().len(), 2);
}

#[tokio::test]
async fn a_process_that_only_the_gateway_listens_to_gives_way_after_ten_seconds() {
    let gate = GatewayProcess::with("", "processes_max = 1\n").await;
    let stateless = StandaloneClient::stateless(&gate);
    let began = tokio::time::Instant::now();
    assert_eq!(text(&stateless.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    let client = in_time(async {
        loop {
            match StandaloneClient::try_session(&gate).await {
                Ok(client) => return client,
                Err(error) => assert_eq!(fault(&error)["reason"], "queue_full", "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let client = client.await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(10), "{took:?}");
    gate.until_processes(2).await;
    // The session in use stays, and the other is opened again as soon as there is a place.
    let full = stateless.call(2, "greet", json!({ "name": "Ada" })).await;
    assert_eq!(fault(&full)["reason"], "queue_full", "{full}");
    client.leave().await;
    gate.until_processes(0).await;
    assert_eq!(text(&stateless.call(3, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
}
