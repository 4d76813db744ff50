//! Subtasks of a server's own (SEP-2268) over real sockets: a client of 2025-11-25 that knows them, the whole gateway, and a
//! server whose trees the test grows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use serde_json::{Value, json};
use support::scripted::in_time;
use support::session_client::TestGateway;
use support::subtask_server::{SubtaskServer, TOP};
use support::talk::{RELATED, SessionMessages, SessionUser};

struct Stage {
    gate: TestGateway,
    tree: SubtaskServer,
}

impl Stage {
    /// A gateway with these keys for the tasks of such a server.
    async fn with(keys: &str) -> Self {
        let tree = SubtaskServer::start().await;
        let gate = TestGateway::with(tree.server.address, &format!("[upstreams.up.tasks]\n{keys}\n")).await;
        Self { gate, tree }
    }

    async fn new() -> Self {
        Self::with("drafts = [\"sep-2268\"]").await
    }

    async fn person(&self) -> SessionUser {
        SessionUser::meet(&self.gate, "2025-11-25", &json!({"elicitation": {}})).await
    }
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// SUB-03, SUB-05 to SUB-08, SUB-11, SUB-13, SUB-18: a tree of three levels is there by ids of the gateway's own, grows as the
/// server's does, and ends from below.
#[tokio::test]
async fn sub_05_06_a_servers_tree_is_mirrored_and_every_id_in_it_can_be_read() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    assert!(person.task(&top).await.get("childTaskIds").is_none(), "there is none yet");
    stage.tree.add(TOP, "b");
    stage.tree.add(TOP, "a");
    let first = person.children(&top, 2).await;
    stage.tree.add("a", "leaf");
    stage.tree.add(TOP, "c");
    let all = person.children(&top, 3).await;
    assert_eq!(all[..2], first[..], "in the order of the server, and none goes");
    let below = person.children(&all[1], 1).await;
    for (id, parent) in all.iter().map(|id| (id, &top)).chain([(&below[0], &all[1])]) {
        let task = person.task(id).await;
        assert_eq!((&task["taskId"], &task["parentTaskId"], &task["status"]), (id, parent, &json!("working")));
        assert!(!["a", "b", "c", "leaf", TOP].contains(&id.as_str().unwrap()), "T-67");
    }
    stage.tree.end(TOP, "completed", &text("all"));
    for (ours, server) in [(&all[0], "b"), (&all[2], "c"), (&all[1], "a")] {
        assert_eq!(person.task(&top).await["status"], "working", "SUB-13: {server} has not ended");
        if server == "a" {
            stage.tree.end("leaf", "completed", &text("leaf"));
        }
        stage.tree.end(server, "completed", &text(server));
        person.until(ours, "completed").await;
    }
    person.until(&top, "completed").await;
    let related = |id: &Value, parent: Option<&Value>| match parent {
        Some(parent) => json!({"taskId": id, "parentTaskId": parent}),
        None => json!({"taskId": id}),
    };
    for (id, parent, said) in [(&all[0], Some(&top), "b"), (&below[0], Some(&all[1]), "leaf"), (&top, None, "all")] {
        let result = person.answered("tasks/result", &json!({"taskId": id})).await["result"].clone();
        assert_eq!(result["content"], text(said)["content"]);
        assert_eq!(result["_meta"][RELATED], related(id, parent), "SUB-09");
    }
}

/// SUB-09, SUB-14: it is put where the subtask's result is waited for.
#[tokio::test]
async fn sub_14_a_question_of_a_subtask_is_put_under_the_subtask_alone() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    let child = person.children(&top, 1).await.remove(0);
    stage.tree.ask("a", 7);
    person.until(&child, "input_required").await;
    let mut waiting = SessionMessages::of(person.result(5, &child).await);
    let question = waiting.next_of("elicitation/create").await;
    assert_eq!(question["params"]["_meta"][RELATED], json!({"taskId": child, "parentTaskId": top}));
    assert_eq!(person.task(&top).await["status"], "working", "SUB-14");
    person.respond(&question["id"], &json!({"action": "accept", "content": {}})).await;
    let answered =
        stage.tree.server.world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == 7).await;
    assert_eq!(answered.body["result"]["_meta"][RELATED], json!({"taskId": "a"}), "UPC-08");
    stage.tree.goes_on("a");
    person.until(&child, "working").await;
    stage.tree.end("a", "completed", &text("a"));
    assert_eq!(waiting.rest().await.pop().unwrap()["result"]["content"], text("a")["content"]);
}

/// SUB-15, SUB-16: from below, at the server too.
#[tokio::test]
async fn sub_15_16_a_cancel_reaches_the_subtasks_first() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "done");
    stage.tree.add(TOP, "a");
    stage.tree.add("a", "leaf");
    let all = person.children(&top, 2).await;
    let leaf = person.children(&all[1], 1).await.remove(0);
    stage.tree.end("done", "completed", &text("done"));
    person.until(&all[0], "completed").await;
    let answer = person.answered("tasks/cancel", &json!({"taskId": top})).await;
    assert_eq!(answer["result"]["status"], "cancelled");
    for (id, status) in [(&all[0], "completed"), (&all[1], "cancelled"), (&leaf, "cancelled")] {
        assert_eq!(person.task(id).await["status"], status, "SUB-16, T-39");
    }
    stage.tree.server.world.nth(2, |seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(stage.tree.named_by("tasks/cancel"), ["leaf", "a", TOP]);
}

#[tokio::test]
async fn a_subtask_is_cancelled_by_itself() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    let child = person.children(&top, 1).await.remove(0);
    let answer = person.answered("tasks/cancel", &json!({"taskId": child})).await;
    assert_eq!((&answer["result"]["status"], &answer["result"]["parentTaskId"]), (&json!("cancelled"), &top));
    stage.tree.server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(stage.tree.named_by("tasks/cancel"), ["a"]);
    assert_eq!(person.task(&top).await["status"], "working");
}

/// SUB-02, SUB-04, SUB-19: a task that a server names as its own ancestor's child, or twice, is followed once.
#[tokio::test]
async fn sub_19_cycles_are_cut() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    stage.tree.add(TOP, "b");
    for (at, named) in [(TOP, json!(TOP)), (TOP, json!(7)), ("a", json!("a")), ("a", json!(TOP)), ("a", json!("b"))] {
        stage.tree.names(at, &named);
    }
    stage.tree.add("b", "leaf");
    stage.tree.names("leaf", &json!("b"));
    stage.tree.names("leaf", &json!(TOP));
    let all = person.children(&top, 2).await;
    let leaf = person.children(&all[1], 1).await.remove(0);
    // By then the children of each were read.
    for _ in 0..3 {
        let polls = stage.tree.named_by("tasks/get").len();
        person.until_so(&leaf, |_| stage.tree.named_by("tasks/get").len() > polls + 3).await;
    }
    assert_eq!(person.children(&top, 2).await, all);
    for (id, count) in [(&all[0], 0), (&all[1], 1), (&leaf, 0)] {
        let named = person.task(id).await["childTaskIds"].as_array().map_or(0, Vec::len);
        assert_eq!(named, count);
    }
}

/// SUB-19.
#[tokio::test]
async fn sub_19_a_tree_is_followed_within_its_bounds() {
    let stage = Stage::with("drafts = [\"sep-2268\"]\nsubtasks_depth_max = 2\nsubtasks_max = 4").await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    stage.tree.add("a", "leaf");
    stage.tree.add("leaf", "too deep");
    let first = person.children(&top, 1).await.remove(0);
    let leaf = person.children(&first, 1).await.remove(0);
    for id in ["b", "c", "d", "e"] {
        stage.tree.add(TOP, id);
    }
    person.children(&top, 3).await;
    let polls = stage.tree.named_by("tasks/get").len();
    person.until_so(&top, |_| stage.tree.named_by("tasks/get").len() > polls + 20).await;
    assert_eq!(person.children(&top, 3).await.len(), 3, "with the leaf they are four");
    assert!(person.task(&leaf).await.get("childTaskIds").is_none());
    assert!(!stage.tree.named_by("tasks/get").contains(&"too deep".to_owned()));
}

#[tokio::test]
async fn a_subtask_that_its_server_forgets_fails_and_its_parent_goes_on() {
    let stage = Stage::new().await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    let child = person.children(&top, 1).await.remove(0);
    stage.tree.forget("a");
    person.until(&child, "failed").await;
    assert_eq!(person.task(&top).await["status"], "working");
    stage.tree.end(TOP, "completed", &text("all"));
    person.until(&top, "completed").await;
}

/// A client of 2026-07-28: the answer to a request.
async fn stateless(gate: &TestGateway, method: &str, params: &Value) -> Value {
    const VERSION: &str = "2026-07-28";
    let mut params = params.clone();
    let name = ["name", "taskId"].iter().find_map(|key| params[*key].as_str()).unwrap().to_owned();
    let capabilities = json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": capabilities,
    });
    let mut client = gate.client_without_session();
    client.version = Some(VERSION.to_owned());
    let request = client.request("POST").header("content-type", "application/json");
    let request = request.header("mcp-method", method).header("mcp-name", name);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    client.send(request.body(body.into()).unwrap()).await.json().await["result"].take()
}

/// Polls until a task is so.
async fn stateless_until(gate: &TestGateway, id: &Value, is_so: impl Fn(&Value) -> bool) -> Value {
    let polled = async {
        loop {
            let task = stateless(gate, "tasks/get", &json!({"taskId": id})).await;
            if is_so(&task) {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(polled).await
}

/// T-40: its parent asks, and early finds subtasks that have ended.
#[tokio::test]
async fn t_40_a_client_that_knows_no_subtasks_is_asked_by_the_parent() {
    // Subtasks that are named before there is a task wait for it.
    for mode in ["mode = \"always\"", "mode = \"auto\"\ngrace = \"500ms\""] {
        asked_by_the_parent(&Stage::with(&format!("{mode}\ndrafts = [\"sep-2268\"]")).await).await;
    }
}

async fn asked_by_the_parent(stage: &Stage) {
    let call = json!({"name": "work", "arguments": {}});
    let calling = stateless(&stage.gate, "tools/call", &call);
    let growing = async {
        stage.tree.server.world.first(|seen| seen.rpc() == "tasks/get").await;
        stage.tree.add(TOP, "a");
        stage.tree.add("a", "leaf");
        stage.tree.ask("leaf", 7);
    };
    let (made, ()) = tokio::join!(calling, growing);
    let top = made["taskId"].clone();
    let asking = stateless_until(&stage.gate, &top, |task| task["status"] == "input_required").await;
    let (key, question) = asking["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["params"]["message"], "Which?");
    let answers = json!({key: {"action": "accept", "content": {}}});
    stateless(&stage.gate, "tasks/update", &json!({"taskId": top, "inputResponses": answers})).await;
    let answered =
        stage.tree.server.world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == 7).await;
    assert_eq!(answered.body["result"]["_meta"][RELATED], json!({"taskId": "leaf"}), "UPC-08");
    stateless_until(&stage.gate, &top, |task| task["status"] == "working").await;
    stage.tree.end("leaf", "completed", &text("leaf"));
    stage.tree.end("a", "completed", &text("a"));
    let early = |task: &Value| task["_meta"]["io.taskgate/subtasks"].clone();
    let task = stateless_until(&stage.gate, &top, |task| !early(task).is_null()).await;
    assert_eq!((&task["status"], &early(&task)[0]["index"]), (&json!("working"), &json!(0)));
    assert_eq!(early(&task)[0]["result"]["content"], text("a")["content"]);
    let seen = stage.person().await.task(&top).await;
    assert_eq!((&seen["status"], seen.get("childTaskIds")), (&json!("working"), None), "SUB-06: they are not shown");
    stage.tree.end(TOP, "completed", &text("all"));
    stateless_until(&stage.gate, &top, |task| task["status"] == "completed").await;
}

/// Off means off.
#[tokio::test]
async fn without_the_draft_no_request_asks_for_subtasks() {
    let stage = Stage::with("drafts = [\"sep-1904\"]").await;
    let person = stage.person().await;
    let top = person.start().await["taskId"].clone();
    stage.tree.add(TOP, "a");
    person.until_so(&top, |_| stage.tree.named_by("tasks/get").len() > 3).await;
    stage.tree.end(TOP, "completed", &text("all"));
    let task = person.until(&top, "completed").await;
    assert!(task.get("childTaskIds").is_none());
    assert!(!stage.tree.named_by("tasks/get").contains(&"a".to_owned()));
}
