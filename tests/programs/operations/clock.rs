//! F58: the machine's clock is set while the program runs.

use serde_json::{Value, json};
use support::clock_shift::ClockShift;

use super::program::{Call, Folder, Program, Worker, block};
use super::upstream::in_time;

async fn task(program: &Program, path: &str, id: &Value) -> Value {
    let call = Call::new("tasks/get", &json!({"taskId": id}));
    call.send(program.clients, path).await.json()["result"].take()
}

/// The reason for which a task fails in the end.
async fn failure(program: &Program, path: &str, id: &Value) -> Value {
    in_time(async {
        loop {
            let mut task = task(program, path, id).await;
            if task["status"] != "working" {
                return task["error"]["data"]["reason"].take();
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
}

fn updated(task: &Value) -> String {
    task["lastUpdatedAt"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned()
}

#[tokio::test]
async fn f58_a_change_of_the_clock_ends_no_task_early_and_extends_none() {
    let worker = Worker::start().await;
    let folder = Folder::new();
    let clock = ClockShift::build(folder.path());
    let upstream = |name: &str, deadline: &str, ttl: &str| {
        let tasks = format!("[upstreams.{name}.tasks]\nttl = \"{ttl}\"\n");
        format!("{}deadline = \"{deadline}\"\n{tasks}", block(name, &worker.server))
    };
    let blocks = [upstream("long", "20m", "20m"), upstream("brief", "20m", "1s"), upstream("late", "1s", "20m")];
    let head = format!(
        "[store]\nkind = \"disk\"\npath = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n",
        folder.path().join("data").display()
    );
    folder.write_whole(&(head + &blocks.concat()));
    let mut command = folder.command();
    command.envs(clock.environment());
    let program = Program::launch(command).await;
    let long = program.task("/long/mcp", "first").await;
    let mut last = updated(&task(&program, "/long/mcp", &long).await);
    // An hour ahead, an hour back, in 1970, and off by a little more each time.
    let to_1970 = -1_700_000_000_i64;
    for (step, seconds) in [3_600, -3_600, to_1970, 7, 14, 21].into_iter().enumerate() {
        clock.set(seconds);
        let brief = program.task("/brief/mcp", &format!("brief-{step}")).await;
        let late = program.task("/late/mcp", &format!("late-{step}")).await;
        let begun = updated(&task(&program, "/late/mcp", &late).await);
        assert!(begun >= last, "{seconds} s: {begun} after {last}");
        assert_eq!(failure(&program, "/brief/mcp", &brief).await, "ttl_expired", "{seconds} s");
        assert_eq!(failure(&program, "/late/mcp", &late).await, "deadline_exceeded", "{seconds} s");
        last = updated(&task(&program, "/late/mcp", &late).await);
        assert!(last >= begun, "{seconds} s: {last} after {begun}");
        assert_eq!(program.status("/long/mcp", &long).await, "working", "{seconds} s");
    }
    worker.answer_all();
    program.until("/long/mcp", &long, "completed").await;
    let end = updated(&task(&program, "/long/mcp", &long).await);
    assert!(end >= last, "{end} after {last}");
}
