//! Where the three tools are listed, and how they are called where the upstream has tools of their names.

use serde_json::{Value, json};

use super::people::{Gate, PAIRS, Person, SESSION, STATELESS, Setup, TOOLS, said, tools_with};

const OWN: [&str; 3] = ["task_status", "task_result", "task_cancel"];

#[tokio::test]
async fn the_tools_stand_once_in_a_list_however_many_pages_it_has() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, client).await;
        let pages = person.pages().await;
        let names: Vec<_> = pages.concat().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, [&["slow", "quick", "last"], OWN.as_slice()].concat(), "{what}");
        assert_eq!(pages.len(), if (client, server) == (STATELESS, SESSION) { 1 } else { 2 }, "{what}");
        for tool in &pages.concat()[3..] {
            let name = tool["name"].as_str().unwrap();
            assert_eq!(tool["inputSchema"]["required"], json!(["id"]), "{what} {name}");
            assert_eq!(tool["annotations"]["readOnlyHint"], json!(name != "task_cancel"), "{what} {name}");
            assert_eq!(tool.get("outputSchema").is_some(), name != "task_result", "{what} {name}");
            assert_eq!(tool.get("execution"), None, "{what} {name}");
        }
        assert!(
            pages.concat()[..3].iter().all(|tool| tool.get("outputSchema").is_none()),
            "{what}: no schema fits both"
        );
    }
}

#[tokio::test]
async fn a_name_that_the_upstream_has_stays_its_own_and_all_three_are_prefixed() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &["task_status", "taskgate_task_cancel"]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        // No client has listed the tools yet.
        let person = Person::meet(&gate, client).await;
        assert_eq!(said(&person.call("task_status", json!({ "id": "x" })).await), "task_status", "{what}");
        let own = OWN.map(|name| format!("taskgate_taskgate_{name}"));
        assert_eq!(person.tools().await[5..], own, "{what}");
        let notice = person.call("slow", json!({})).await;
        assert!(own.iter().all(|name| said(&notice).contains(name)), "{what}: {notice}");
        let id = &notice["structuredContent"]["taskId"];
        let status = person.call(&own[0], json!({ "id": id })).await;
        assert_eq!(status["structuredContent"]["status"], "working", "{what}: {status}");
        let upstreams = person.call("taskgate_task_cancel", json!({ "id": id })).await;
        assert_eq!(said(&upstreams), "taskgate_task_cancel", "{what}");
        let cancelled = person.call(&own[2], json!({ "id": id })).await;
        assert_eq!(cancelled["structuredContent"]["status"], "cancelled", "{what}: {cancelled}");
    }
}

#[tokio::test]
async fn names_are_those_that_clients_see() {
    let keys = format!(
        "{}[[upstreams.up.tools]]\nmatch = \"quick\"\nrename = \"task_status\"\n\
         [[upstreams.up.tools]]\nmatch = \"last\"\nhide = true\n",
        tools_with("rename = \"report\"")
    );
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", &keys).await;
        let person = Person::meet(&gate, client).await;
        let own = OWN.map(|name| format!("taskgate_{name}"));
        assert_eq!(
            person.tools().await,
            [&["report".to_owned(), "task_status".to_owned()], own.as_slice()].concat(),
            "{what}"
        );
        assert_eq!(said(&person.call("task_status", json!({})).await), "quick", "{what}: the renamed one");
        let notice = person.call("report", json!({})).await;
        assert!(said(&notice).starts_with("report takes longer"), "{what}: {notice}");
    }
}

/// GW-10: the extension, a handshake that declares tasks, or a call that was made as one.
#[tokio::test]
async fn clients_with_tasks_never_see_the_tools() {
    for server in [SESSION, STATELESS] {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let extension = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
        let declares = json!({ "tasks": { "requests": { "elicitation": { "create": {} } } } });
        for (client, capabilities) in [(STATELESS, extension), (SESSION, declares)] {
            let person = Person::with(&gate, client, capabilities, None).await;
            let tools = person.pages().await.concat();
            let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
            assert_eq!(names, ["slow", "quick", "last"], "{client} before {server}");
            assert!(tools.iter().all(|tool| tool.get("outputSchema").is_some()), "{client} before {server}");
        }
        let person = Person::meet(&gate, SESSION).await;
        assert_eq!(person.tools().await.len(), 6, "before {server}: nothing speaks of tasks yet");
        let call = json!({ "name": "slow", "arguments": {}, "task": {} });
        let handle: Value = person.ask("tools/call", call).await["result"]["task"].take();
        assert_eq!(handle["status"], "working", "before {server}: {handle}");
        assert_eq!(person.tools().await, ["slow", "quick", "last"], "before {server}");
    }
}

/// UPC-04, where the client reads the pages: cursors that take turns over the same names end like one that stays.
#[tokio::test]
async fn a_list_whose_cursors_take_turns_ends_where_no_new_name_comes() {
    for (client, server) in [(SESSION, SESSION), (SESSION, STATELESS), (STATELESS, STATELESS)] {
        let what = format!("{client} before {server}");
        let server = super::upstream::ScriptedServer::start(move |seen| {
            let answer = |result: &Value| Some(super::upstream::answer(seen, result));
            match (server, seen.rpc()) {
                (_, "tools/list") => {
                    let next = if seen.body["params"]["cursor"] == "x" { "y" } else { "x" };
                    let tools = ["a", "b"].map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }));
                    answer(&json!({ "resultType": "complete", "tools": tools, "nextCursor": next }))
                }
                (STATELESS, "initialize") => Some(super::upstream::status(404)),
                (STATELESS, "server/discover") => answer(&json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": { "tools": {} },
                    "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "turns", "version": "7" } },
                })),
                _ => None,
            }
        })
        .await;
        let gate = Gate::open(&server, "", TOOLS).await;
        let pages = Person::meet(&gate, client).await.pages().await;
        let names = |page: &[Value]| -> Vec<String> {
            page.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(pages.last().unwrap()), [&["a", "b"], OWN.as_slice()].concat(), "{what}");
        assert!(pages.len() <= 2, "{what}: {} pages", pages.len());
    }
}

/// UPC-04: they are on the last page, and on one that many a client takes for the last; and each of them once.
#[tokio::test]
async fn the_three_tools_are_on_a_page_of_a_list_whose_cursors_lead_nowhere() {
    for cursor in ["", "1"] {
        let server = super::upstream::ScriptedServer::start(move |seen| {
            let tool = json!({ "name": "a", "inputSchema": { "type": "object" } });
            let result = json!({ "tools": [tool], "nextCursor": cursor });
            (seen.rpc() == "tools/list").then(|| super::upstream::answer(seen, &result))
        })
        .await;
        let gate = super::client::TestGateway::with(server.address, TOOLS).await;
        let client = gate.client().await;
        let page = async |params: Value| {
            let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params });
            client.post(request.to_string()).await.json().await["result"].take()
        };
        let (first, second) = (page(json!({})).await, page(json!({ "cursor": cursor })).await);
        let count = |page: &Value| page["tools"].as_array().unwrap().len();
        let expected = if cursor.is_empty() { (4, 1) } else { (1, 4) };
        assert_eq!((count(&first), count(&second)), expected, "{cursor:?}");
        assert_eq!((&first["nextCursor"], second.get("nextCursor")), (&json!(cursor), None), "{cursor:?}");
    }
}
