//! Calls with a list that are made as one call for each element, over real sockets, for clients and servers of both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Value, json};

use crate::fallback::people::{Gate, PAIRS, Person, SESSION, STATELESS, Setup, last, tools_with};

const SPLIT: &str = "[[upstreams.up.tools]]\nmatch = \"slow\"\nsplit = { argument = \"items\", parallel = 4 }\n";

fn slow(items: usize) -> Value {
    json!({ "name": "slow", "arguments": { "items": (0..items).collect::<Vec<_>>() } })
}

/// Waits until the server has been called for so many elements, each by itself, and lets all of them end.
async fn end_all(setup: &Setup, count: usize) {
    let is_element =
        |name: &str, items: &Value| name == "slow" && items.as_array().is_some_and(|items| items.len() == 1);
    for element in 0..count {
        let called = setup.server.world.first(move |seen| {
            let params = &seen.body["params"];
            let items = &params["arguments"]["items"];
            seen.is_call() && is_element(params["name"].as_str().unwrap_or_default(), items) && items[0] == element
        });
        called.await;
    }
    for _ in 0..count {
        setup.end_one();
    }
}

fn is_whole(result: &Value, count: usize) -> bool {
    let done = vec![json!({ "type": "text", "text": "done" }); count];
    let structured = json!({ "results": vec![json!({ "n": 1 }); count] });
    result["content"] == Value::Array(done) && result["structuredContent"] == structured
}

#[tokio::test]
async fn clients_without_tasks_get_one_result_of_all_elements() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", SPLIT).await;
        let person = Person::meet(&gate, client).await;
        let calling = async { person.begin(9, "tools/call", slow(4)).await.text().await };
        let (said, ()) = tokio::join!(calling, end_all(&setup, 4));
        let result = last(&said)["result"].take();
        assert!(is_whole(&result, 4), "{what}: {result}");
        let sent = setup.server.world.all(|seen| seen.is_call() && seen.body["params"]["name"] == "slow");
        assert_eq!(sent.len(), 4, "{what}");
        let refused = last(&person.text("tools/call", slow(101)).await)["error"].take();
        assert_eq!(refused["code"], -32602, "{what}: {refused}");
        let sent = setup.server.world.all(|seen| seen.is_call() && seen.body["params"]["name"] == "slow");
        assert_eq!(sent.len(), 4, "{what}: nothing is sent of a list that is too long");
    }
}

#[tokio::test]
async fn a_client_that_has_the_three_tools_gets_the_whole_by_them() {
    for (client, server) in PAIRS {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", &tools_with("split = { argument = \"items\", parallel = 4 }")).await;
        let person = Person::meet(&gate, client).await;
        let notice = last(&person.begin(9, "tools/call", slow(3)).await.text().await)["result"].take();
        let id = notice["structuredContent"]["taskId"]
            .as_str()
            .unwrap_or_else(|| panic!("{client} before {server}: {notice}"));
        let (result, ()) = tokio::join!(person.call("task_result", json!({ "id": id })), end_all(&setup, 3));
        assert!(is_whole(&result, 3), "{client} before {server}: {result}");
    }
}

#[tokio::test]
async fn a_task_of_a_session_runs_its_elements_and_has_their_results() {
    for server in [SESSION, STATELESS] {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", SPLIT).await;
        let person = Person::meet(&gate, SESSION).await;
        let mut params = slow(4);
        params["task"] = json!({});
        let created = last(&person.text("tools/call", params).await)["result"].take();
        let id = created["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{server}: {created}"));
        let waiting = person.text("tasks/result", json!({ "taskId": id }));
        let (said, ()) = tokio::join!(waiting, end_all(&setup, 4));
        let result = last(&said)["result"].take();
        assert!(is_whole(&result, 4), "{server}: {result}");
    }
}

#[tokio::test]
async fn a_tool_that_is_split_is_listed_without_its_output_schema_and_no_other_is() {
    for (client, server) in PAIRS {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", SPLIT).await;
        let person = Person::meet(&gate, client).await;
        for tool in person.pages().await.concat() {
            assert_eq!(tool.get("outputSchema").is_none(), tool["name"] == "slow", "{client} before {server}: {tool}");
        }
    }
}
