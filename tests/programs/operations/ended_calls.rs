//! Calls that end with the gateway: the errors of their clients, and the log's lines.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::program::{Answer, Call, Folder, Program, Worker, block, send};
use super::upstream::in_time;

/// The upstreams, and the tool of each that takes long.
const UPSTREAMS: [(&str, &str); 4] =
    [("program", "slow_report"), ("http", "work"), ("sse", "slow_report"), ("stateless", "slow_report")];

/// A gateway in front of a program, of a server over HTTP, of one over HTTP+SSE and of one without sessions; the latter two
/// are another gateway's faces.
async fn gateway(other: &Program, worker: &Worker, drain_max: &str) -> (Folder, Program) {
    let folder = Folder::with(&format!("[limits]\ndrain_max = \"{drain_max}\""));
    folder.write(&format!(
        "[upstreams.program]\ncommand = [{:?}, \"demo-server\"]\n{}\
         [upstreams.sse]\nurl = \"http://{}/up/sse\"\ntransport = \"sse\"\n\
         [upstreams.stateless]\nurl = \"http://{}/up/mcp\"\nprotocol = \"2026-07-28\"\n\
         [upstreams.stateless.tasks]\nmode = \"never\"\n",
        env!("CARGO_BIN_EXE_taskgate"),
        block("http", &worker.server),
        other.clients,
        other.clients,
    ));
    let program = Program::serve(&folder).await;
    (folder, program)
}

/// A gateway whose faces serve as servers.
async fn other_gateway() -> (Folder, Program) {
    let folder = Folder::new();
    folder.write(&format!("[upstreams.up]\ncommand = [{:?}, \"demo-server\"]\n", env!("CARGO_BIN_EXE_taskgate")));
    let program = Program::serve(&folder).await;
    (folder, program)
}

const SESSION: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

/// Calls a tool in a session of its own.
async fn call_in_session(address: SocketAddr, path: String, tool: &str) -> Answer {
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let opened = send(address, "POST", &path, &SESSION, &initialize.to_string()).await;
    let id = opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).map(str::to_owned);
    let id = id.unwrap_or_else(|| panic!("no session: {opened:?}"));
    let headers = [SESSION[0], SESSION[1], ("mcp-session-id", &id), ("mcp-protocol-version", "2025-06-18")];
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    send(address, "POST", &path, &headers, &ready.to_string()).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow(tool)});
    send(address, "POST", &path, &headers, &call.to_string()).await
}

fn slow(tool: &str) -> Value {
    json!({"name": tool, "arguments": {"seconds": 60, "steps": 60}})
}

/// The last message of an answer.
fn last(answer: &Answer) -> Value {
    let event = answer.body.lines().rev().find_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty());
    serde_json::from_str(event.unwrap_or(&answer.body)).unwrap_or_else(|_| panic!("no message: {answer:?}"))
}

/// One held call of each kind of client at each upstream, all of them under way.
async fn hold_calls(program: &Program) -> Vec<(String, JoinHandle<Answer>)> {
    let (clients, tracker, mut held) = (program.clients, TaskTracker::new(), Vec::new());
    for (name, tool) in UPSTREAMS {
        let path = format!("/{name}/mcp");
        let stateless = Call::declaring("tools/call", &slow(tool), &json!({}));
        let at = path.clone();
        held.push((format!("stateless at {name}"), tracker.spawn(async move { stateless.send(clients, &at).await })));
        held.push((format!("session at {name}"), tracker.spawn(call_in_session(clients, path, tool))));
    }
    in_time(async {
        for (name, _) in UPSTREAMS {
            while program.counted(&format!("taskgate_upstream_in_flight{{upstream=\"{name}\"}}")).await < 2 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    })
    .await;
    held
}

/// For every kind of server, and for calls that the gateway drives or forwards.
#[tokio::test]
async fn a_held_call_that_ends_with_the_gateway_is_told_of_the_restart() {
    let (worker, (_kept, other)) = (Worker::start().await, other_gateway().await);
    for (drain_max, signals, said) in [
        ("3s", &["INT"][..], "drained; calls that ran longer"),
        ("10m", &["INT", "TERM"], "ended before the drain was done"),
    ] {
        let (_folder, mut program) = gateway(&other, &worker, drain_max).await;
        let held = hold_calls(&program).await;
        for signal in signals {
            program.signal(signal);
            program.says("draining; a second signal ends at once; held calls", 1).await;
        }
        for (whose, answer) in held {
            let answer = last(&in_time(answer).await.unwrap());
            let data = &answer["error"]["data"];
            let told = (&data["reason"], &data["executed"], &data["source"]);
            assert_eq!(told, (&json!("gateway_restart"), &json!("unknown"), &json!("gateway")), "{whose}: {answer}");
        }
        assert_eq!(program.ended().await, Some(0));
        program.says(said, 1).await;
        let log = program.log();
        let line = |text: &str| {
            let found = log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text:?} in {log}"));
            serde_json::from_str::<Value>(found).unwrap()
        };
        let all = "http: 2 held; program: 2 held; sse: 2 held; stateless: 2 held";
        let began = line("draining; a second signal ends at once; held calls");
        let fields = &began["fields"];
        assert_eq!((&fields["calls"], &fields["calls_held"], &fields["tasks"]), (&json!(all), &json!(8), &json!(0)));
        let ended = line(said);
        assert_eq!(ended["level"], "WARN");
        assert_eq!((&ended["fields"]["calls"], &ended["fields"]["calls_lost"]), (&json!(all), &json!(8)), "{ended}");
    }
}

/// A call that waits for its turn was never sent, and its client may know.
#[tokio::test]
async fn a_call_that_ends_with_the_gateway_before_it_was_sent_says_so() {
    let worker = Worker::start().await;
    let folder = Folder::with("[limits]\ndrain_max = \"3s\"");
    folder
        .write(&format!("{}in_flight_max = 1\n[upstreams.up.tasks]\nmode = \"never\"\n", block("up", &worker.server)));
    let mut program = Program::serve(&folder).await;
    let (clients, tracker) = (program.clients, TaskTracker::new());
    let first = tracker.spawn(async move { Call::plain(&json!({})).send(clients, "/up/mcp").await });
    worker.calls(1).await;
    let second = tracker.spawn(async move { Call::plain(&json!({})).send(clients, "/up/mcp").await });
    let third = tracker.spawn(call_in_session(clients, "/up/mcp".to_owned(), "work"));
    in_time(async {
        while program.counted("taskgate_upstream_queued{upstream=\"up\"}").await < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    program.signal("INT");
    for (whose, call, executed) in
        [("sent", first, "unknown"), ("queued", second, "no"), ("queued in a session", third, "no")]
    {
        let answer = last(&in_time(call).await.unwrap());
        let data = &answer["error"]["data"];
        let told = (&data["reason"], &data["executed"]);
        assert_eq!(told, (&json!("gateway_restart"), &json!(executed)), "{whose}: {answer}; {}", program.log());
    }
    assert_eq!(program.ended().await, Some(0));
    assert_eq!(worker.server.world.count("tools/call"), 1);
}

/// Tasks at a program cannot be resumed: after any end of the gateway they are not failures of their program, and the next
/// process sends the repeatable ones again.
#[tokio::test]
async fn tasks_at_a_program_are_left_as_they_are_to_the_next_process() {
    for (signals, drain_max) in [(&["INT"][..], "1s"), (&["INT", "TERM"], "10m")] {
        let folder = Folder::new();
        let configured = |again: &str| {
            folder.write_whole(&format!(
                "[store]\npath = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n\
                 [limits]\ndrain_max = \"{drain_max}\"\n[upstreams.up]\ncommand = [{:?}, \"demo-server\"]\n\
                 [upstreams.up.tasks]\nmode = \"always\"\n[upstreams.again]\ncommand = [{:?}, \"demo-server\"]\n\
                 [upstreams.again.tasks]\nmode = \"always\"\nafter_crash = \"{again}\"\n",
                folder.path().join("data").display(),
                env!("CARGO_BIN_EXE_taskgate"),
                env!("CARGO_BIN_EXE_taskgate"),
            ));
        };
        configured("rerun");
        let mut program = Program::serve(&folder).await;
        let mut tasks = Vec::new();
        for (path, outcome) in [("/up/mcp", "failed"), ("/again/mcp", "working")] {
            for _ in 0..10 {
                let made = Call::new("tools/call", &slow("slow_report")).send(program.clients, path).await;
                let id = made.json()["result"]["taskId"].clone();
                assert!(id.is_string(), "{made:?}");
                tasks.push((path, id, outcome));
            }
        }
        for signal in signals {
            program.signal(signal);
            program.says("\"calls\":\"again: 10 to be sent again; up: 10 in tasks\"", 1).await;
        }
        assert_eq!(program.ended().await, Some(0));
        program.says("\"calls_lost\":10", 1).await;
        let log = program.log();
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains("\"calls_lost\":10")), "{log}");
        let program = Program::serve(&folder).await;
        program.says("all tasks of earlier processes were handled", 1).await;
        for (path, id, outcome) in tasks {
            let found = Call::new("tasks/get", &json!({"taskId": id})).send(program.clients, path).await.json();
            let result = &found["result"];
            assert_eq!(result["status"], outcome, "{signals:?}, {found}, {log}{}", program.log());
            if outcome == "failed" {
                assert_eq!(result["error"]["data"]["reason"], "gateway_restart", "{found}");
            }
        }
    }
}
