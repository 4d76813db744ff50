//! The end of the program, by signals (F67).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::program::{Call, Folder, Program, Worker, block};
use super::upstream::in_time;

/// F67: it is not ready at once, yet serves every request until balancers have noticed; then held calls end, then the process.
#[tokio::test]
async fn f67_sigterm_refuses_no_client_before_balancers_have_noticed_and_waits_for_calls() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let mut program = Program::serve(&folder).await;
    assert_eq!(program.get("/readyz").await.status, 200);
    let (clients, tracker) = (program.clients, TaskTracker::new());
    let held = tracker.spawn(async move { Call::plain(&json!({})).send(clients, "/up/mcp").await });
    worker.calls(1).await;
    program.signal("TERM");
    program.says("draining", 1).await;
    let ready = program.get("/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (503, "draining\n"));
    assert!(program.get("/").await.body.contains("not ready: draining"));
    let task = program.task("/up/mcp", "k").await;
    worker.calls(2).await;
    assert_eq!(program.status("/up/mcp", &task).await, "working");
    worker.answer_all();
    assert_eq!(in_time(held).await.unwrap().json()["result"]["content"][0]["text"], "done");
    assert_eq!(program.ended().await, Some(0));
    // A second signal ends calls before this line, so it has no number of them.
    program.says("{\"message\":\"drained\",\"connections_cut\":0}", 1).await;
}

/// F67: while the drain waits for calls, each poll is answered, and no call begins.
#[tokio::test]
async fn f67_tasks_can_be_polled_and_cancelled_until_the_last_call_has_ended() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let mut program = Program::serve(&folder).await;
    let (kept, cancelled) = (program.task("/up/mcp", "k").await, program.task("/up/mcp", "c").await);
    worker.calls(2).await;
    // Without a notice.
    program.signal("INT");
    program.says("draining", 1).await;
    let began = Instant::now();
    let another = Call::new("tools/call", &json!({"name": "work", "arguments": {}}));
    let refused = loop {
        let answer = another.send(program.clients, "/up/mcp").await;
        if answer.status != 200 {
            break answer;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "calls go on beginning: {answer:?}");
    };
    assert!(refused.status == 503 && refused.head.contains("retry-after: 1"), "{refused:?}");
    assert_eq!(refused.json()["error"]["data"]["reason"], "draining");
    let plain = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
    assert_eq!((plain.status, &plain.json()["error"]["data"]["reason"]), (503, &json!("draining")));
    for _ in 0..20 {
        assert_eq!(program.status("/up/mcp", &kept).await, "working");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cancel = Call::new("tasks/cancel", &json!({"taskId": cancelled}));
    assert!(cancel.send(program.clients, "/up/mcp").await.json()["result"].is_object());
    assert_eq!(program.status("/up/mcp", &cancelled).await, "cancelled");
    worker.answer_all();
    assert_eq!(program.ended().await, Some(0));
    program.says("\"message\":\"drained\"", 1).await;
}

/// F25.
#[tokio::test]
async fn f25_a_second_signal_ends_at_once_with_0() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM"), ("TERM", "INT")] {
        let mut program = Program::serve(&folder).await;
        let before = worker.server.world.count("tools/call");
        program.task("/up/mcp", "k").await;
        worker.calls(before + 1).await;
        program.signal(first);
        program.says("draining", 1).await;
        let asked = Instant::now();
        program.signal(second);
        assert_eq!(program.ended().await, Some(0), "{first} {second}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{first} {second}: neither notice nor drain is waited for");
        program.says("ended before the drain was done", 1).await;
    }
}

/// F67: the process ends in time, with any call open.
#[tokio::test]
async fn f67_a_drain_ends_in_time_with_calls_that_never_end() {
    let (worker, folder) = (Worker::start().await, Folder::with("[limits]\ndrain_max = \"2s\""));
    folder.write(&block("up", &worker.server));
    let mut program = Program::serve(&folder).await;
    let (clients, tracker) = (program.clients, TaskTracker::new());
    for n in 0..60 {
        program.task("/up/mcp", &format!("k{n}")).await;
    }
    for _ in 0..60 {
        // How a call ends that was cut off says nothing.
        tracker.spawn(async move { Call::plain(&json!({})).send(clients, "/up/mcp").await });
    }
    worker.calls(120).await;
    let asked = Instant::now();
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    let took = asked.elapsed();
    // Two seconds beyond the deadline are allowed; the rest is for a busy machine. The calls never end.
    assert!((Duration::from_secs(1)..Duration::from_secs(2 + 2 + 26)).contains(&took), "{took:?}");
    program.says("\"calls_lost\":120", 1).await;
}

/// The gateway ends its programs: their calls get the same error as those at other servers.
#[tokio::test]
async fn a_call_at_a_program_that_outlasts_the_drain_is_lost_by_a_restart() {
    let folder = Folder::new();
    folder.write_whole(&format!(
        "[store]\npath = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n\
         [limits]\ndrain_max = \"1s\"\n[upstreams.up]\ncommand = [{:?}, \"demo-server\"]\n\
         [upstreams.up.tasks]\nmode = \"always\"\n",
        folder.path().join("data").display(),
        env!("CARGO_BIN_EXE_taskgate"),
    ));
    let mut program = Program::serve(&folder).await;
    let slow = json!({"name": "slow_report", "arguments": {"seconds": 60, "steps": 60}});
    let made = Call::new("tools/call", &slow).send(program.clients, "/up/mcp").await;
    let task = made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {made:?}")).to_owned();
    let look = async |program: &Program| {
        let call = Call::new("tasks/get", &json!({"taskId": task}));
        let mut answer = call.send(program.clients, "/up/mcp").await.json();
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].take()
    };
    let until = async |program: &Program, is_so: fn(&Value) -> bool| {
        in_time(async {
            loop {
                let seen = look(program).await;
                if is_so(&seen) {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    };
    // Its program runs: it has reported a step.
    until(&program, |seen| seen["statusMessage"].is_string()).await;
    program.signal("INT");
    program.says("\"calls_lost\":1", 1).await;
    assert_eq!(program.ended().await, Some(0));
    let is_warning = |line: &str| line.contains("\"calls_lost\":1") && line.contains("WARN");
    assert!(program.log().lines().any(is_warning), "{}", program.log());
    let program = Program::serve(&folder).await;
    // Until recovery has looked at it, it is as it was stored.
    let lost = until(&program, |seen| seen["status"] != "working").await;
    let data = &lost["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("gateway_restart"), &json!("unknown")), "{lost}");
}

/// The result of a backup without its key.
#[tokio::test]
async fn a_start_without_the_sealing_key_warns_if_the_store_keeps_tasks() {
    const SAID: &str = "seal.key was missing and is created again";
    let (worker, folder) = (Worker::start().await, Folder::on_disk());
    folder.write(&block("up", &worker.server));
    for (kept, is_told) in [(true, false), (true, false), (false, true), (true, false)] {
        if !kept {
            std::fs::remove_file(folder.path().join("data/seal.key")).unwrap();
        }
        let mut program = Program::serve(&folder).await;
        program.task("/up/mcp", "k").await;
        worker.calls(1).await;
        program.signal("TERM");
        // Two that come before one is taken are one.
        program.says("draining", 1).await;
        // By now the log has all that was said at the start.
        assert_eq!(program.log().contains(SAID), is_told, "{}", program.log());
        program.signal("TERM");
        program.ended().await;
    }
}
