//! Two gateways on one database, each with a separate audit file: both files together have every record of a task.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use support::postgres;

use super::harness::{PLAIN, Settings, Site, until};

fn lines(path: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// SEC-33: each file is one chain, also after its gateway was killed. The gateway of an event records it, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sec_33_two_gateways_record_in_a_file_of_their_own_and_each_event_once() {
    let Some(database) = postgres::shared() else { return };
    let mut site = Site::open("audited", database, Settings::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(format!("{name}.jsonl")));
    for (name, file) in ["a", "b"].into_iter().zip(&files) {
        let mut replica = site.replica(name).await;
        replica.keeper.add_keys(&format!("[audit]\npath = \"{}\"\n", file.display()));
        replica.keeper.configure(site.upstreams());
        replica.start().await;
        site.replicas.push(replica);
    }
    // A further process cannot write either file.
    let mut third = site.replica("c").await;
    third.keeper.add_keys(&format!("[audit]\npath = \"{}\"\n", files[0].display()));
    third.keeper.configure(site.upstreams());
    third.keeper.launch(&[]);
    assert_eq!(third.keeper.ends().await, Some(75), "{}", third.keeper.log_text());
    assert_eq!(site.tables.count("tg_replica WHERE name = 'c' AND NOT dead"), 0, "the others do not wait for it");

    let [a, b] = [&site.replicas[0], &site.replicas[1]];
    let mut tasks = Vec::new();
    for nth in 0..2 {
        let arguments = json!({"ms": 20, "held": true, "nonce": format!("audited-{nth}-x")});
        let made = a.ask(PLAIN, "tools/call", json!({"name": "work", "arguments": arguments})).await.json();
        tasks.push(made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned());
    }
    let cancelled = b.ask(PLAIN, "tasks/cancel", json!({"taskId": tasks[0]})).await;
    assert_eq!(cancelled.status, Some(200), "{}", cancelled.text);
    until("the outcome is read at b", async || {
        b.poll(PLAIN, &tasks[0]).await.json()["result"]["status"] == "cancelled"
    })
    .await;
    site.replicas[0].kill().await;
    let b = &site.replicas[1];
    until("b settles what a ran", async || {
        let status = b.poll(PLAIN, &tasks[1]).await.json()["result"]["status"].clone();
        status == "failed"
    })
    .await;
    let all = || files.each_ref().map(lines);
    let count = |lines: &[Value], what: &str| lines.iter().filter(|line| line["what"] == what).count();
    until("both tasks are settled in the files", async || {
        all().iter().map(|lines| count(lines, "task.settled")).sum::<usize>() == 2
    })
    .await;
    let [of_a, of_b] = all();
    for (lines, name) in [(&of_a, "a"), (&of_b, "b")] {
        assert!(!lines.is_empty() && lines.iter().all(|line| line["replica"] == name), "{lines:?}");
    }
    let counts = |what: &str| (count(&of_a, what), count(&of_b, what));
    assert_eq!((counts("task.created"), counts("task.cancelled")), ((2, 0), (0, 1)));
    let settled: Vec<_> = of_a.iter().chain(&of_b).filter(|line| line["what"] == "task.settled").collect();
    let mut outcomes: Vec<_> = settled.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["cancelled", "replica_lost"], "{settled:?}");
    for file in &files {
        let verified =
            std::process::Command::new(support::taskgate()).args(["audit", "verify"]).arg(file).output().unwrap();
        assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    }
    site.replicas[1].kill().await;
    site.replicas.iter().for_each(|replica| replica.keeper.forget_log());
    third.keeper.forget_log();
}
