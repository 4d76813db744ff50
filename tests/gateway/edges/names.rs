//! Tools that clients know by other names than the upstream, or not at all.

use serde_json::json;
use support::hostile_twin;

use super::client::TestGateway;
use super::peers::{PAIRS, Person, SESSION, STATELESS, said, server, server_with};
use super::upstream::{SeenRequest, in_time, status};

const RULES: &str = "[[upstreams.up.tools]]\nmatch = \"generate_*\"\nrename = \"make_*\"\n\
    [[upstreams.up.tools]]\nmatch = \"admin_*\"\nhide = true\n\
    [[upstreams.up.tools]]\nmatch = \"region\"\nrename = \"größe\"\n";

#[tokio::test]
async fn every_kind_of_client_lists_and_calls_tools_by_the_operators_names() {
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, RULES).await;
        let person = Person::meet(&gate, client).await;
        // The upstream's own `make_map` gives way to the one that has its name by a rule.
        assert_eq!(person.tools().await, ["make_report", "make_map", "plain", "größe"], "{client} {kind}");
        for (tool, expected) in [
            ("make_report", "generate_report"),
            ("make_map", "generate_map"),
            ("plain", "plain"),
            ("generate_report", "-32602 Unknown tool: generate_report"),
            ("admin_drop", "-32602 Unknown tool: admin_drop"),
            ("region", "-32602 Unknown tool: region"),
        ] {
            assert_eq!(person.call(tool).await, expected, "{client} {kind} {tool}");
        }
        let sent = server.world.all(SeenRequest::is_call);
        let names: Vec<_> = sent.iter().map(|seen| seen.body["params"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["generate_report", "generate_map", "plain"], "{client} {kind}: nothing else was sent");
        if kind == STATELESS {
            let headers: Vec<_> = sent.iter().map(|seen| seen.header("mcp-name").unwrap()).collect();
            assert_eq!(headers, names, "{client} {kind}: the header names the tool that runs");
        }
    }
}

/// The annotations of a tool are found by either of its names (T-72).
#[tokio::test]
async fn headers_that_repeat_arguments_are_checked_and_sent_under_the_new_name() {
    for kind in [SESSION, STATELESS] {
        let server = server(kind).await;
        let rules = "[[upstreams.up.tools]]\nmatch = \"region\"\nrename = \"area\"\n";
        let gate = TestGateway::with(server.address, rules).await;
        let person = Person::meet(&gate, STATELESS).await;
        let params = || json!({"name": "area", "arguments": {"r": "north"}});
        let unnamed = person.ask_with("tools/call", params(), &[]).await;
        assert_eq!(unnamed["error"]["code"], -32020, "{kind} {unnamed}");
        let named = person.ask_with("tools/call", params(), &[("mcp-param-region", "north")]).await;
        assert_eq!(said(&named), "region", "{kind} {named}");
        let sent = server.world.first(SeenRequest::is_call).await;
        let expected = (kind == STATELESS).then_some("north");
        assert_eq!(sent.header("mcp-param-region"), expected, "{kind}");
    }
}

/// A task keeps the client's name, by which its policy is found; the upstream is called by its own.
#[tokio::test]
async fn a_renamed_tool_runs_as_a_task_by_the_rules_of_its_block() {
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let rules = "[[upstreams.up.tools]]\nmatch = \"generate_*\"\nrename = \"make_*\"\nmode = \"required\"\n\
            [upstreams.up.tasks]\nmode = \"never\"\n";
        let gate = TestGateway::with(server.address, rules).await;
        let person = Person::meet(&gate, client).await;
        if client == STATELESS {
            // Without the extension a tool that runs only as a task is refused.
            assert!(person.call("make_report").await.starts_with("-3202"), "{client} {kind}");
            continue;
        }
        let listed = person.ask("tools/list", json!({})).await;
        let tools = hostile_twin::own_items(listed["result"]["tools"].as_array().unwrap().clone());
        let execution = &tools[0]["execution"];
        assert_eq!(execution["taskSupport"], "required", "{client} {kind} {listed}");
        let params = json!({"name": "make_report", "arguments": {}, "task": {}});
        let made = person.ask("tools/call", params).await;
        let id = made["result"]["task"]["taskId"].clone();
        let done = in_time(person.ask("tasks/result", json!({"taskId": id}))).await;
        assert_eq!(said(&done), "generate_report", "{client} {kind} {made} {done}");
    }
}

#[tokio::test]
async fn the_first_block_that_matches_decides_a_tools_name() {
    let server = server(SESSION).await;
    let rules = "[[upstreams.up.tools]]\nmatch = \"make_map\"\nmode = \"never\"\n\
        [[upstreams.up.tools]]\nmatch = \"generate_*\"\nrename = \"make_*\"\n";
    let gate = TestGateway::with(server.address, rules).await;
    for version in [SESSION, STATELESS] {
        let person = Person::meet(&gate, version).await;
        assert_eq!(person.tools().await, ["make_report", "admin_drop", "make_map", "plain", "region"], "{version}");
        assert_eq!(person.call("make_map").await, "make_map", "{version}");
    }
}

/// A lenient server may accept other spellings of a hidden name, so only names of its list are forwarded.
#[tokio::test]
async fn no_other_spelling_of_a_hidden_name_reaches_the_server() {
    let spellings =
        [" admin_drop", "admin_drop ", "Admin_drop", "ADMIN_DROP", "\u{ff41}dmin_drop", "admin_drop\u{200b}"];
    for (client, kind) in PAIRS.into_iter().filter(|(client, _)| *client == SESSION) {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, RULES).await;
        let person = Person::meet(&gate, client).await;
        for tool in spellings {
            let expected = format!("-32602 Unknown tool: {}", tool);
            assert_eq!(person.call(tool).await, expected, "{client} {kind} {tool:?}");
            let task = json!({"name": tool, "arguments": {}, "task": {}});
            assert_eq!(said(&person.ask("tools/call", task).await), expected, "{client} {kind} {tool:?}");
        }
        let older = gate.client_of("2025-03-26").await;
        let params = json!({"name": spellings[0], "arguments": {}});
        let call = json!([{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}]);
        let text = older.post(call.to_string()).await.text().await;
        assert!(text.contains("-32602"), "{kind}: {text}");
        assert_eq!(server.world.count("tools/call"), 0, "{client} {kind}");
        assert_eq!(person.call("plain").await, "plain", "{client} {kind}");
    }
}

/// For any number of calls in an array, the gateway lists the server's tools once; and if the list fails, no call gets
/// the error for an unknown tool.
#[tokio::test]
async fn a_server_is_asked_once_for_all_calls_of_an_array() {
    const CALLS: usize = 40;
    let call = |id: usize| {
        let params = json!({"name": format!("nobody_{id}"), "arguments": {}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    let array = json!((0..CALLS).map(call).collect::<Vec<_>>()).to_string();
    // The list has two pages.
    for (kind, lists, pages, expected) in
        [(SESSION, true, 2, "-32602"), (STATELESS, true, 2, "-32602"), (SESSION, false, 1, "upstream_timeout")]
    {
        let script = move |seen: &SeenRequest| (!lists && seen.rpc() == "tools/list").then(|| status(500));
        let server = server_with(kind, script).await;
        let gate = TestGateway::with(server.address, RULES).await;
        let older = gate.client_of("2025-03-26").await;
        let before = server.world.count("tools/list");
        let text = in_time(older.post(array.clone())).await.text().await;
        assert_eq!(text.matches(expected).count(), CALLS, "{kind} {lists}: {text}");
        assert_eq!(server.world.count("tools/list"), before + pages, "{kind} {lists}");
        assert_eq!(server.world.count("tools/call"), 0, "{kind} {lists}");
    }
}

/// T-72.
#[tokio::test]
async fn a_call_of_no_tool_gets_no_handle_though_it_asks_for_a_task() {
    for (kind, rules) in [(SESSION, ""), (STATELESS, ""), (SESSION, RULES)] {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, rules).await;
        let person = Person::meet(&gate, SESSION).await;
        for tool in ["nobody", if rules.is_empty() { "nothing" } else { "admin_drop" }] {
            let answer = person.ask("tools/call", json!({"name": tool, "arguments": {}, "task": {}})).await;
            assert_eq!(said(&answer), format!("-32602 Unknown tool: {tool}"), "{kind} {tool}");
        }
        assert_eq!(server.world.count("tools/call"), 0, "{kind}");
        let answer = person.ask("tools/call", json!({"name": "plain", "arguments": {}, "task": {}})).await;
        assert!(answer["result"]["task"]["taskId"].is_string(), "{kind} {answer}");
        server.world.first(SeenRequest::is_call).await;
    }
}
