//! The ways in which `wrap` ends, and the processes and tasks that it leaves.

use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;
use tokio::time::timeout;

use super::host::{Host, alone, faulty_demo, greet, in_time, slow, text};

const GRACE: &[&str] = &["--grace", "200ms"];
/// The seconds of a call: far more than the end of a program or a test waits.
const CALL: f64 = 600.0;

/// A host in the midst of three calls, one of which became a task. The server has the other two: it reports their progress.
async fn busy(options: &[&str], faults: &str) -> Host {
    let mut host = Host::with(options, &faulty_demo(faults), &[]);
    host.initialize().await;
    host.result(1, "tools/call", alone(slow(CALL), true)).await;
    let reported = |token: &str| {
        let mut call = slow(CALL);
        call["arguments"]["steps"] = json!(1_000);
        call["_meta"] = json!({ "progressToken": token });
        call
    };
    host.ask(2, "tools/call", reported("second")).await;
    host.ask(3, "tools/call", alone(reported("third"), false)).await;
    for token in ["second", "third"] {
        host.find(|message| message["params"]["progressToken"] == token).await;
    }
    assert!(host.has_a_server());
    host
}

#[tokio::test]
async fn it_ends_with_its_host_in_the_midst_of_calls_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("tasks").display().to_string();
    for options in [vec!["--grace", "200ms"], vec!["--grace", "200ms", "--store", &store]] {
        for how in ["stdio closed", "stdin closed, TERM", "TERM", "INT", "deaf"] {
            let mut host = busy(&options, "").await;
            match how {
                "stdio closed" => {
                    host.leave();
                    host.deafen();
                }
                "stdin closed, TERM" => {
                    host.leave();
                    host.signal("TERM");
                }
                "deaf" => {
                    host.deafen();
                    // No host reads the answer. The program may have noticed already that its output is closed.
                    host.try_write("{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\n").await;
                }
                signal => host.signal(signal),
            }
            let (status, _) = host.ended().await;
            assert_eq!(status.code(), Some(0), "{how} {options:?}: {}", host.log());
            host.until_nothing_is_left().await;
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_want_to_end_is_gone_soon_too_and_so_is_that_of_a_killed_wrap() {
    let mut host = busy(GRACE, "stubborn").await;
    host.leave();
    host.deafen();
    assert_eq!(host.ended().await.0.code(), Some(0));
    host.until_nothing_is_left().await;
    let mut host = busy(GRACE, "").await;
    host.signal("KILL");
    host.ended().await;
    host.until_nothing_is_left().await;
}

/// A signal ends it while its host is there: waiting calls are answered, and the log names the signal.
#[tokio::test]
async fn a_host_gets_the_outcome_of_each_call_that_it_waits_for() {
    for signal in ["TERM", "INT"] {
        let mut host = busy(GRACE, "").await;
        host.signal(signal);
        for id in [2, 3] {
            let answer = host.answer(id).await;
            let data = &answer["error"]["data"];
            assert_eq!(
                (&data["reason"], &data["executed"]),
                (&json!("gateway_restart"), &json!("unknown")),
                "{answer}"
            );
        }
        assert_eq!(host.ended().await.0.code(), Some(0));
        assert!(host.log().contains("calls that were in progress end with the gateway"), "{}", host.log());
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut host = busy(GRACE, "stubborn").await;
    host.signal("TERM");
    // Two that come before one is taken are one.
    host.until_it_says("calls that were in progress end with the gateway").await;
    host.signal("TERM");
    assert_eq!(host.ended().await.0.code(), Some(0));
    assert!(
        host.log().contains("ended at once: a signal came while calls, tasks or servers were still ending"),
        "{}",
        host.log()
    );
}

#[tokio::test]
async fn a_task_is_found_again_by_the_next_life_with_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("tasks").display().to_string();
    let options = ["--grace", "200ms", "--store", &store];
    let mut host = Host::new(&options);
    // Far longer than the grace period: it becomes a task, on a busy machine too.
    let done = host.result(1, "tools/call", alone(slow(2.0), true)).await;
    let id = |handle: &serde_json::Value| alone(json!({ "taskId": handle["taskId"] }), true);
    while host.result(2, "tasks/get", id(&done)).await["status"] == "working" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lost = host.result(3, "tools/call", alone(slow(60.0), true)).await;
    host.leave();
    assert!(host.ended().await.0.success());
    let mut host = Host::new(&options);
    let found = host.result(1, "tasks/get", id(&done)).await;
    assert!(text(&found["result"]).contains("2 sections"), "{found}");
    let found = in_time(async {
        loop {
            let found = host.result(2, "tasks/get", id(&lost)).await;
            if found["status"] != "working" {
                return found;
            }
        }
    })
    .await;
    assert_eq!(found["status"], "failed", "its call went with its server: {found}");
    // Another program has to wait for its turn, and says so.
    let mut other = Host::new(&options);
    let (status, said) = other.ended().await;
    assert_eq!((status.code(), said.as_str()), (Some(75), ""));
    assert!(other.log().contains(&store), "{}", other.log());
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named_and_ends_it() {
    for (program, words) in [
        ("/nowhere/to-be-found", "/nowhere/to-be-found: does not exist; correct the path\n"),
        (
            "taskgate-no-such-program",
            "taskgate-no-such-program: is not found in PATH; install it, or write the path of its file\n",
        ),
    ] {
        let mut host = Host::with(GRACE, &["--", program].map(str::to_owned), &[]);
        let (status, said) = host.ended().await;
        assert_eq!((status.code(), said.as_str()), (Some(69), ""));
        assert_eq!(host.log(), format!("taskgate: {words}"));
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_named_and_its_exit_status_told() {
    // The script exists and is executable, but its interpreter does not exist.
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/nowhere/to-be-found\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let script = script.display().to_string();
    let wrapped = ["--".to_owned(), script.clone()];
    let mut host = Host::with(GRACE, &wrapped, &[("TASKGATE_LOG", "taskgate=debug")]);
    host.ask(1, "tools/call", alone(greet(), false)).await;
    let error = host.answer(1).await["error"].take();
    assert_eq!((&error["data"]["exitStatus"], &error["data"]["executed"]), (&json!(127), &json!("no")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("127"), "{error}");
    host.until_it_says(&format!("{script} cannot be started")).await;
    host.leave();
    assert!(host.ended().await.0.success(), "the host hears of it from its calls");
    // One that ends by itself before it has said anything.
    let mut host = Host::with(GRACE, &faulty_demo("start"), &[]);
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "h", "version": "1" } });
    host.ask(1, "initialize", params).await;
    assert_eq!(host.answer(1).await["error"]["data"]["exitStatus"], 3);
}

/// The ends of tasks are logged, more than a pipe holds, and the log is not read, as by a host that shows none.
#[tokio::test]
async fn f96_a_host_that_does_not_read_the_log_gets_its_answers_and_its_end() {
    let (_unread, log) = io::pipe().unwrap();
    let mut host = Host::tracing_to(&["--mode", "always"], log.try_clone().unwrap().into());
    let mut after_it_is_full = 0;
    for id in 1.. {
        let result = host.result(id, "tools/call", alone(greet(), true)).await;
        assert!(result["taskId"].is_string(), "{result}");
        after_it_is_full += usize::from(is_full(&log));
        if after_it_is_full == 100 {
            break;
        }
    }
    host.leave();
    assert_eq!(host.ended().await.0.code(), Some(0));
    host.until_nothing_is_left().await;
}

fn is_full(pipe: &PipeWriter) -> bool {
    let mut ends = [PollFd::new(pipe, PollFlags::OUT)];
    rustix::event::poll(&mut ends, Some(&Timespec::default())).unwrap() == 0
}

#[tokio::test]
async fn a_host_that_floods_and_does_not_read_meets_a_bound() {
    let mut host = Host::new(GRACE);
    host.initialize().await;
    let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}\n", "x".repeat(20_000));
    let mut taken = 0;
    // Until the pipe takes no more.
    while timeout(Duration::from_secs(2), host.write(&line)).await.is_ok() {
        taken += line.len();
        assert!(taken < 64 << 20, "all of a flood is taken");
    }
    assert!(host.memory() < 128 << 20, "{} bytes", host.memory());
    host.deafen();
    assert_eq!(host.ended().await.0.code(), Some(0));
    host.until_nothing_is_left().await;
}

/// A line may be as long as a result: a tool may take another tool's result. A longer one costs its own call alone.
#[tokio::test]
async fn a_line_that_is_too_long_is_refused_with_its_id_and_the_next_is_heard() {
    let mut host = Host::new(GRACE);
    let piece = "x".repeat(1 << 20);
    host.try_write("{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"").await;
    for _ in 0..40 {
        host.try_write(&piece).await;
    }
    host.try_write("\"},\"id\":9}\n").await;
    let refused = host.answer(9).await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    // The gateway's own to answer: the demo server has a bound of its own.
    assert_eq!(host.result(2, "ping", json!({ "x": piece.repeat(5) })).await, json!({}));
    host.leave();
    assert_eq!(host.ended().await.0.code(), Some(0));
}

/// The host's log has the cause, as without taskgate. A program that `wrap` ends has none.
#[tokio::test]
async fn a_program_that_dies_leaves_its_last_lines_in_the_log_of_the_host() {
    let script = "echo starting >&2; echo \"ModuleNotFoundError: No module named 'foo'\" >&2; exit 3";
    let mut host = Host::with(GRACE, &["--", "sh", "-c", script].map(str::to_owned), &[]);
    let initialize =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", initialize).await;
    // Another thread of the program writes the log.
    in_time(async {
        while !host.log().contains("ModuleNotFoundError") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let log = host.log();
    let line = log.lines().find(|line| line.contains("ModuleNotFoundError")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("starting") && line.contains("a program ended with exit status 3"), "{line}");
}
