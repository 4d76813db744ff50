//! What the program logs of a task, and which metrics a scrape finds before anything happened.

use serde_json::Value;

use super::program::{Folder, Program, Worker, block};

/// An alert on a family that is not there yet says nothing.
#[tokio::test]
async fn each_family_of_metrics_is_there_before_its_first_event() {
    let worker = Worker::start().await;
    let folder = Folder::on_disk();
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let page = program.get("/metrics").await.body;
    let names = include_str!("../../../src/metric.rs").lines().filter(|line| line.starts_with("pub const "));
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
    folder.write(&format!("{}tasks.poll_interval = \"50ms\"\n", block("reports", &worker.server)));
    let program = Program::serve(&folder).await;
    let id = program.task("/reports/mcp", "k").await;
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
    assert!(fields["seconds"].is_f64() && fields["bytes"].as_u64() > Some(0), "{line}");
}
