//! The lists of an endpoint, and the server of each item.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::{combined, names, request, server, servers, text_of};
use crate::combined_wire::client::TestGateway;
use crate::combined_wire::upstream::{SeenRequest, answer, status};

#[tokio::test]
async fn every_list_has_the_items_of_all_upstreams_under_names_that_route_back() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for (method, items, key, expected) in [
        ("tools/list", "tools", "name", ["one__shared", "one__one_only", "two__shared", "two__two_only"].as_slice()),
        ("prompts/list", "prompts", "name", &["one__shared", "one__one_only", "two__shared", "two__two_only"]),
        ("resources/list", "resources", "uri", &["test://shared", "test://one_only", "test://two_only"]),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", &["one://{id}", "two://{id}"]),
    ] {
        let list = client.post(request(1, method, &json!({}))).await.json().await;
        assert_eq!(names(&list["result"][items], key), expected, "{method}");
        assert_eq!(list["result"]["nextCursor"], json!(null), "{method}");
    }
    let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(list["result"]["tools"][1]["n"], 1, "the rest of a tool stays as it came");
    let prompt = client.post(request(2, "prompts/get", &json!({"name": "two__shared"}))).await.json().await;
    assert_eq!(prompt["result"]["description"], "two has shared");
    let completion =
        json!({"ref": {"type": "ref/prompt", "name": "two__two_only"}, "argument": {"name": "a", "value": ""}});
    let completed = client.post(request(3, "completion/complete", &completion)).await.json().await;
    assert_eq!(completed["result"]["completion"]["values"], json!(["two", "two_only"]));
    // The type decides, not a member of the other type beside it.
    let odd = json!({"type": "ref/prompt", "name": "two__two_only", "uri": "test://one_only"});
    let completion = json!({"ref": odd, "argument": {"name": "a", "value": ""}});
    let completed = client.post(request(3, "completion/complete", &completion)).await.json().await;
    assert_eq!(completed["result"]["completion"]["values"], json!(["two", "two_only"]));
}

#[tokio::test]
async fn names_that_one_upstream_alone_has_stay_as_they_are_where_that_is_wanted() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "prefix = \"auto\"").await;
    let client = gate.client().await;
    let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(names(&list["result"]["tools"], "name"), ["one__shared", "one_only", "two__shared", "two_only"]);
    for (tool, at, own) in
        [("one_only", &one, "one_only"), ("two__two_only", &two, "two_only"), ("two__shared", &two, "shared")]
    {
        let call = json!({"name": tool, "arguments": {"tool": tool}});
        assert_eq!(client.post(request(2, "tools/call", &call)).await.json().await["result"]["tool"], tool);
        at.world.first(|seen| seen.is_call() && seen.body["params"]["name"] == own).await;
    }
    let unknown = client.post(request(3, "tools/call", &json!({"name": "shared", "arguments": {}}))).await;
    assert_eq!(unknown.verdict().await, "200 -32602 id 3");
}

/// A client that has not listed anything calls by a name of another day.
#[tokio::test]
async fn whose_a_name_is_is_found_out_where_nothing_was_listed() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "prefix = \"auto\"").await;
    let client = gate.client().await;
    let called = client.post(request(1, "tools/call", &json!({"name": "two_only", "arguments": {"n": 1}}))).await;
    assert_eq!(called.json().await["result"]["n"], 1);
    assert_eq!((one.world.count("tools/call"), two.world.count("tools/call")), (0, 1));
}

#[tokio::test]
async fn a_resource_is_the_first_upstreams_that_lists_it_or_whose_it_may_be() {
    let (one, two) = servers().await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for (uri, expected) in
        [("test://shared", "one"), ("test://two_only", "two"), ("two://by-template", "two"), ("hidden://two", "two")]
    {
        let read = client.post(request(1, "resources/read", &json!({"uri": uri}))).await.json().await;
        assert_eq!(read["result"]["contents"][0]["text"], expected, "{uri}: {read}");
    }
    let unknown = client.post(request(2, "resources/read", &json!({"uri": "hidden://nobody"}))).await;
    assert_eq!(unknown.verdict().await, "200 -32002 id 2");
    assert_eq!(client.post(request(3, "resources/read", &json!({}))).await.verdict().await, "200 -32602 id 3");
}

#[tokio::test]
async fn pages_of_servers_are_put_together_and_a_foreign_cursor_is_refused() {
    let one = server("one", |seen| {
        let page = |tools, next: Option<&str>| json!({"tools": tools, "nextCursor": next});
        (seen.rpc() == "tools/list").then(|| match seen.body["params"]["cursor"].as_str() {
            None => answer(seen, &page(json!([{"name": "a"}]), Some("p2"))),
            Some("p2") => answer(seen, &page(json!([{"name": "b"}]), None)),
            Some(_) => status(500),
        })
    });
    let (one, two) = (one.await, server("two", |_| None).await);
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(names(&list["result"]["tools"], "name"), ["one__a", "one__b", "two__shared", "two__two_only"]);
    for cursor in [json!("p2"), json!("one:x"), json!("three:0"), json!(7)] {
        let refused = client.post(request(2, "tools/list", &json!({ "cursor": cursor }))).await;
        assert_eq!(refused.verdict().await, "200 -32602 id 2", "{cursor}");
    }
    let rest = client.post(request(3, "tools/list", &json!({"cursor": "two:1"}))).await.json().await;
    assert_eq!(names(&rest["result"]["tools"], "name"), ["two__two_only"]);
}

#[tokio::test]
async fn one_server_that_is_away_is_missing_and_no_error_and_all_that_are_away_are_one() {
    let (one, two) = (server("one", |_| Some(status(503))).await, server("two", |_| None).await);
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
    assert_eq!(names(&list["result"]["tools"], "name"), ["two__shared", "two__two_only"]);
    let call = request(2, "tools/call", &json!({"name": "one__shared", "arguments": {}}));
    let refused = client.post(call).await.json().await;
    assert_eq!(refused["error"]["data"]["executed"], "no", "{refused}");

    let gone = server("three", |_| Some(status(503))).await;
    let gate = combined(&one, &gone, "").await;
    let initialized =
        gate.client_without_session().post(crate::combined_wire::client::initialize("2025-11-25", &json!({}))).await;
    assert_eq!(initialized.verdict().await, "200 -32603 id 0");
}

/// However many upstreams are asked for it.
#[tokio::test]
async fn a_list_of_many_upstreams_is_one_request_of_its_principal() {
    let (one, two) = servers().await;
    let limits = "allowed_hosts = [\"mcp.example\"]\n[auth]\nanonymous = true\n\
                  [limits]\nrequests_per_second = 1\nrequests_burst = 6\n";
    let gate = TestGateway::serving(&format!("{limits}{}", text_of(&one, &two, ""))).await;
    let client = gate.client().await;
    // Four lists of two upstreams each, beside the handshake.
    for _ in 0..4 {
        let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 4, "{list}");
    }
}

/// UPC-04.
#[tokio::test]
async fn a_list_whose_cursors_lead_back_is_read_once_around_at_an_endpoint() {
    let circular = |seen: &SeenRequest| {
        let items = match seen.rpc() {
            "tools/list" => ("tools", json!([{"name": "a", "inputSchema": {"type": "object"}}, {"name": "b"}])),
            "prompts/list" => ("prompts", json!([{"name": "a"}])),
            "resources/list" => ("resources", json!([{"uri": "test://a", "name": "a"}])),
            "resources/templates/list" => ("resourceTemplates", json!([{"uriTemplate": "a://{id}", "name": "a"}])),
            _ => return None,
        };
        // Another one each time.
        let cursor = match seen.body["params"]["cursor"].as_str() {
            Some(cursor) => format!("{cursor}x"),
            None => String::new(),
        };
        Some(answer(seen, &json!({items.0: items.1, "nextCursor": cursor})))
    };
    let (one, two) = (server("one", circular).await, server("two", |_| None).await);
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for (method, items, expected) in
        [("tools/list", "tools", 4), ("prompts/list", "prompts", 3), ("resources/list", "resources", 3)]
    {
        let list = client.post(request(1, method, &json!({}))).await.json().await;
        assert_eq!(list["result"][items].as_array().unwrap().len(), expected, "{method}: {list}");
        assert_eq!(one.world.count(method), 2, "{method}");
    }
    let templates = client.post(request(1, "resources/templates/list", &json!({}))).await.json().await;
    assert_eq!(templates["result"]["resourceTemplates"].as_array().unwrap().len(), 2, "{templates}");
    assert_eq!(one.world.count("resources/templates/list"), 2);
}

/// However many calls an array has, each server is asked once which tools it has, as at its own path.
#[tokio::test]
async fn each_server_of_an_endpoint_is_asked_once_for_all_calls_of_an_array() {
    const CALLS: usize = 40;
    for (keys, prefixes) in
        [("", ["one__", "two__"]), ("prefix = \"auto\"", ["one__", "two__"]), ("prefix = \"auto\"", [""; 2])]
    {
        let (one, two) = servers().await;
        let hidden = ["one", "two"].map(|name| format!("[[upstreams.{name}.tools]]\nmatch = \"x\"\nhide = true\n"));
        let gate = TestGateway::serving(&format!("{}{}", text_of(&one, &two, keys), hidden.concat())).await;
        let client = gate.client_of("2025-03-26").await;
        let call = |id: usize| {
            let params = json!({"name": format!("{}nobody_{id}", prefixes[id % 2]), "arguments": {}});
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
        };
        let array = json!((0..CALLS).map(call).collect::<Vec<_>>()).to_string();
        let text = client.post(array).await.text().await;
        assert_eq!(text.matches("-32602").count(), CALLS, "{keys} {prefixes:?}: {text}");
        // An endpoint looks for names without prefix itself, and again after a second.
        let lists_max = if prefixes[0].is_empty() { CALLS / 8 } else { 1 };
        for server in [&one, &two] {
            assert!((1..=lists_max).contains(&server.world.count("tools/list")), "{keys} {prefixes:?}");
            assert_eq!(server.world.count("tools/call"), 0, "{keys} {prefixes:?}");
        }
    }
}

/// Its name is in no list now, and yet it is no unknown tool: its server is unavailable.
#[tokio::test]
async fn a_tool_of_an_upstream_that_went_away_is_still_known_by_its_own_name() {
    let is_unavailable = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_unavailable);
    let one = server("one", move |_| asked.load(Ordering::SeqCst).then(|| status(503))).await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "prefix = \"auto\"").await;
    let client = gate.client().await;
    let list = async || {
        let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
        names(&list["result"]["tools"], "name")
    };
    let call = async |tool: &str| {
        client.post(request(2, "tools/call", &json!({"name": tool, "arguments": {}}))).await.json().await
    };
    assert_eq!(list().await, ["one__shared", "one_only", "two__shared", "two_only"]);
    is_unavailable.store(true, Ordering::SeqCst);
    assert_eq!(list().await, ["shared", "two_only"]);
    for name in ["one_only", "one__one_only"] {
        let error = call(name).await["error"].take();
        assert_eq!((&error["code"], &error["data"]["source"]), (&json!(-32603), &json!("gateway")), "{name} {error}");
    }
    assert_eq!(call("nothing").await["error"]["code"], -32602);
}
