//! The program's log lines about a task and its store, and the metrics of a scrape before any event.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::program::{Call, Folder, Program, Worker, block};
use super::upstream::{ScriptedServer, answer};

const SETTLED_SECONDS: &str = "taskgate_task_age_seconds_sum{upstream=\"reports\"}";

/// An alert on a family that is not there yet says nothing.
#[tokio::test]
async fn each_family_of_metrics_is_there_before_its_first_event() {
    let worker = Worker::start().await;
    let folder = Folder::on_disk();
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let page = program.get("/metrics").await.body;
    let names = include_str!("../../../src/metric.rs").lines().filter(|line| line.contains(" = \"taskgate_"));
    let own: Vec<&str> = names.map(|line| line.split('"').nth(1).unwrap()).collect();
    assert!(own.len() > 40, "{own:?}");
    let of_process = ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"];
    let of_a_database = ["taskgate_database_", "taskgate_replica_", "taskgate_replicas_"];
    for name in own.into_iter().chain(of_process) {
        let is_series = |line: &str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
        let of_histogram = format!("{name}_count");
        let is_there = page.lines().any(|line| is_series(line) || line.starts_with(&of_histogram));
        let is_expected = !of_a_database.iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(is_there, is_expected, "{name} in {page}");
    }
    assert!(page.contains(&format!("taskgate_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"))), "{page}");
    assert!(page.contains("taskgate_tasks_settled_total{upstream=\"up\",outcome=\"returned\"} 0\n"), "{page}");
}

#[tokio::test]
async fn requests_are_counted_by_upstream_and_outcome() {
    let worker = Worker::start().await;
    let folder = Folder::new();
    folder.write(&format!("{}{}", block("up", &worker.server), block("other", &worker.server)));
    let program = Program::serve(&folder).await;
    let id = program.task("/up/mcp", "k").await;
    assert_eq!(program.status("/up/mcp", &id).await, "working");
    // A task that there is not.
    assert_eq!(program.status("/up/mcp", &"0".repeat(32).into()).await, Value::Null);
    for (upstream, outcome, count) in
        [("up", "answered", 2), ("up", "error", 1), ("up", "refused", 0), ("other", "answered", 0)]
    {
        let series = format!("taskgate_requests_total{{upstream=\"{upstream}\",outcome=\"{outcome}\"}}");
        assert_eq!(program.counted(&series).await, count, "{series}");
    }
}

/// A hundred tasks a second fill no disk: 180 lines are under 60 kB.
#[tokio::test]
async fn a_task_leaves_one_short_line_that_says_how_it_went() {
    let worker = Worker::start().await;
    let folder = Folder::new();
    let keys = "tasks.poll_interval = \"50ms\"\ntasks.grace = \"1s\"\n";
    folder.write(&format!("{}{keys}", block("reports", &worker.server)));
    let program = Program::serve(&folder).await;
    // Without a key, which would make the handle at once.
    let call = Call::new("tools/call", &json!({"name": "work", "arguments": {"secret": "k"}}));
    let id = call.send(program.clients, "/reports/mcp").await.json()["result"]["taskId"].take();
    worker.calls(1).await;
    for _ in 0..3 {
        assert_eq!(program.status("/reports/mcp", &id).await, "working");
    }
    let list = program.get("/tasks").await.json();
    worker.answer_all();
    program.says("task settled", 1).await;
    let log = program.log();
    let of_task: Vec<&str> = log.lines().filter(|line| line.contains("\"reports\"") && line.contains("work")).collect();
    let [line] = of_task.as_slice() else { panic!("{log}") };
    assert!(line.len() < 330, "{} bytes: {line}", line.len());
    let said: Value = serde_json::from_str(line).unwrap();
    let fields = &said["fields"];
    assert_eq!(fields["task"], list["tasks"][0]["ref"]);
    assert_eq!(fields["id"].as_str().unwrap(), format!("{}…", &id.as_str().unwrap()[..8]));
    assert_eq!((&fields["upstream"], &fields["tool"]), (&"reports".into(), &"work".into()));
    assert_eq!((&fields["outcome"], &fields["polls"]), (&"returned".into(), &3.into()));
    assert!(fields["bytes"].as_u64() > Some(0), "{line}");
    assert!(fields["seconds"].as_f64() >= Some(0.5), "counted from the call, not from its handle: {line}");
    let page = program.get("/metrics").await.body;
    let sum = page.lines().find_map(|line| line.strip_prefix(SETTLED_SECONDS)?.trim().parse::<f64>().ok());
    assert!(sum >= Some(0.5), "{page}");
}

/// A terminal obeys such characters; a tool's name has them in the log as escapes.
#[tokio::test]
async fn a_control_character_in_a_tools_name_reaches_the_log_as_an_escape() {
    let tools = json!({"tools": [{"name": "w\u{9b}31m", "inputSchema": {"type": "object"}}]});
    let server = ScriptedServer::start(move |seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &tools)),
        "tools/call" => Some(answer(seen, &json!({"content": []}))),
        _ => None,
    })
    .await;
    let folder = Folder::new();
    folder.write(&format!("{}tasks.mode = \"always\"\n", block("reports", &server)));
    let program = Program::serve(&folder).await;
    let mut call = Call::new("tools/call", &json!({"name": "w\u{9b}31m", "arguments": {}}));
    for (name, value) in &mut call.headers {
        if *name == "mcp-name" {
            "=?base64?d8KbMzFt?=".clone_into(value);
        }
    }
    let handle = call.send(program.clients, "/reports/mcp").await;
    assert!(handle.body.contains("taskId"), "{handle:?}");
    program.says("task settled", 1).await;
    let log = program.log();
    assert!(log.contains("w\\u009b31m") && !log.contains('\u{9b}'), "{log}");
}

/// In a folder that every user may write, every user may replace the store.
#[tokio::test]
async fn a_store_that_every_user_may_replace_is_warned_of() {
    let worker = Worker::start().await;
    let folder = Folder::on_disk();
    folder.write(&block("up", &worker.server));
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    let program = Program::serve(&folder).await;
    program.says("every user of this machine can replace the store's files", 1).await;
}
