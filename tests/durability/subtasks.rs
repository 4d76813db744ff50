//! The program is killed while a server's subtasks run: its client finds the tree by the same ids, it goes on and it grows
//! (SEP-2268).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use support::history::History;
use support::scripted::in_time;
use support::subtask_server::{SubtaskServer, TOP};
use support::talk::{RELATED, SessionMessages, SessionUser};

use super::kill_cycles::keeper::Keeper;

async fn keeper(name: &str, tree: &SubtaskServer, environment: &[(&str, &str)]) -> Keeper {
    let upstream = format!(
        "[upstreams.up]\nurl = \"http://{}/mcp\"\npath = \"/mcp\"\n[upstreams.up.tasks]\ndrafts = [\"sep-2268\"]\n",
        tree.server.address
    );
    let mut keeper = Keeper::new(name, &upstream, Arc::new(History::begin(Duration::ZERO)));
    keeper.start(environment).await.unwrap();
    keeper
}

/// A client of 2025-11-25, in a session if it had one before.
async fn user(keeper: &Keeper, before: Option<&SessionUser>) -> SessionUser {
    SessionUser::at(keeper.address(), ("2025-11-25", &json!({"elicitation": {}})), before).await
}

/// SUB-01, SUB-03, L1, L4, UPC-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_03_a_killed_gateway_finds_a_servers_tree_and_goes_on_with_it() {
    let tree = SubtaskServer::start().await;
    let mut keeper = keeper("subtasks", &tree, &[]).await;
    let person = user(&keeper, None).await;
    let top = person.start().await["taskId"].clone();
    tree.add(TOP, "done");
    tree.add(TOP, "a");
    tree.add("a", "leaf");
    let all = in_time(person.children(&top, 2)).await;
    let leaf = in_time(person.children(&all[1], 1)).await.remove(0);
    tree.end("done", "completed", &json!({"content": [], "n": 1}));
    person.until(&all[0], "completed").await;
    tree.ask("leaf", 7);
    person.until(&leaf, "input_required").await;
    keeper.kill().await;
    tree.add(TOP, "new");
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, Some(&person)).await;
    let again = in_time(person.children(&top, 3)).await;
    assert_eq!(again[..2], all[..], "the same ids, and what came meanwhile behind them");
    assert_eq!(in_time(person.children(&all[1], 1)).await, std::slice::from_ref(&leaf));
    assert_eq!(person.task(&all[0]).await["status"], "completed");
    assert_eq!(person.task(&again[2]).await["parentTaskId"], top);
    let mut waiting = SessionMessages::of(person.result(5, &leaf).await);
    let question = waiting.next_of("elicitation/create").await;
    assert_eq!(question["params"]["_meta"][RELATED], json!({"taskId": leaf, "parentTaskId": all[1]}));
    person.respond(&question["id"], &json!({"action": "accept", "content": {}})).await;
    tree.server.world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == 7).await;
    for id in ["leaf", "a", "new", TOP] {
        tree.end(id, "completed", &json!({"content": []}));
    }
    person.until(&top, "completed").await;
    for id in [&leaf, &all[1], &again[2]] {
        assert_eq!(person.task(id).await["status"], "completed");
    }
    assert_eq!(tree.server.world.count("tools/call"), 1);
    assert_eq!(tree.named_by("tasks/cancel"), Vec::<String>::new());
    keeper.forget_log();
}

/// SUB-05, F69.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f69_a_parent_resumes_subtasks_that_its_row_does_not_name_yet() {
    let tree = SubtaskServer::start().await;
    let mut keeper = keeper("subtasks-early", &tree, &[("TASKGATE_FAILPOINT", "subtasks-stored:2")]).await;
    let person = user(&keeper, None).await;
    let top = person.start().await["taskId"].clone();
    tree.add(TOP, "a");
    let first = in_time(person.children(&top, 1)).await;
    tree.add(TOP, "b");
    keeper.dies().await.unwrap();
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, Some(&person)).await;
    let all = in_time(person.children(&top, 2)).await;
    assert_eq!(all[0], first[0]);
    for (id, server) in [(&all[0], "a"), (&all[1], "b")] {
        assert_eq!(person.task(id).await["status"], "working");
        tree.end(server, "completed", &json!({"content": []}));
        person.until(id, "completed").await;
    }
    assert_eq!(tree.named_by("tasks/cancel"), Vec::<String>::new(), "the server is at it for the parent");
    keeper.forget_log();
}
