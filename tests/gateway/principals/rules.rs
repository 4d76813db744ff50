//! Access rules: lists, calls, arguments, prompts, resources, completion, subscriptions and tasks.

use serde_json::{Value, json};
use support::hostile_twin;
use taskgate::config;
use tokio::io::AsyncReadExt as _;

use super::gate::{ADA, ADA_TOO, Ask, BOB, EVE, Gate, server};
use super::upstream::in_time;

const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// Ada's first key is in the group of analysts and her second key in none; bob may use everything.
const RULES: &str = r#"
[[auth.rules]]
who = { groups = ["team"] }
upstreams = ["up"]
tools = ["quick"]
arguments = { env = ["staging*", "dev"] }
allow = true
[[auth.rules]]
who = { groups = ["analysts"] }
tools = ["held", "task"]
prompts = ["read_*"]
resources = ["file:///public/*"]
allow = true
[[auth.rules]]
who = { ids = ["key:bob"] }
allow = true
"#;
/// The rules without the tools of ada's tasks.
const FEWER: &str = r#"
[[auth.rules]]
who = { groups = ["analysts"] }
tools = ["quick"]
allow = true
[[auth.rules]]
who = { ids = ["key:bob"] }
allow = true
"#;

fn text(rules: &str) -> String {
    let mut text = "mode = \"api_keys\"\ngroups = { team = [\"group:analysts\"] }\n".to_owned();
    let expired = "expires = 2001-01-01";
    for (id, key, more) in
        [("ada", ADA, "groups = [\"analysts\"]"), ("ada", ADA_TOO, ""), ("bob", BOB, ""), ("eve", EVE, expired)]
    {
        text += &format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n{more}\n");
    }
    text + rules
}

const ENDPOINT: &str = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\"]\n";

async fn gate() -> Gate {
    Gate::with_initialize_result(&(text(RULES) + ENDPOINT), json!({ "capabilities": capabilities() })).await
}

fn capabilities() -> Value {
    json!({ "tools": {}, "prompts": {}, "resources": { "subscribe": true }, "completions": {} })
}

impl Gate {
    /// Reloads with other rules.
    fn rule(&mut self, rules: &str) {
        let text = format!("[auth]\n{}[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n", text(rules));
        let access = config::parse("test.toml", &text, &|_| None).unwrap().config.access;
        self.reload_with(|config| config.access = access).unwrap();
    }
}

fn names(answer: &Value, list: &str, key: &str) -> Vec<String> {
    let items = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
    let items = hostile_twin::own_items(items.clone());
    let names = items.iter().map(|item| item[key].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned());
    names.filter(|name| !name.starts_with("of-") && !name.starts_with("up__of-")).collect()
}

#[tokio::test]
async fn lists_have_the_items_that_some_rule_allows_and_no_others() {
    check_lists(&gate().await, &[("/mcp", ""), ("/all/mcp", "up__")]).await;
}

/// Checks the lists at each path, with the prefix of its names.
async fn check_lists(gate: &Gate, paths: &[(&str, &str)]) {
    for &(path, prefix) in paths {
        let initialize = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        for (key, wide) in [(ADA, false), (BOB, true)] {
            let opened = gate.send(&Ask::session(key, None, "initialize", &initialize).at(path)).await;
            let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
            for (method, list, member, some, all) in [
                ("tools/list", "tools", "name", &["quick", "held", "task"][..], &["quick", "held", "ask", "task"][..]),
                ("prompts/list", "prompts", "name", &["read_a"], &["read_a", "write_b"]),
                (
                    "resources/list",
                    "resources",
                    "uri",
                    &["file:///public/a"],
                    &["file:///public/a", "file:///secret/b"],
                ),
                (
                    "resources/templates/list",
                    "resourceTemplates",
                    "uriTemplate",
                    &["file:///public/{x}"],
                    &["file:///public/{x}", "file:///secret/{x}"],
                ),
            ] {
                let prefix = if member == "name" { prefix } else { "" };
                let mut expected: Vec<String> =
                    if wide { all } else { some }.iter().map(|name| format!("{prefix}{name}")).collect();
                expected.sort();
                let asks = [
                    Ask::new(key, method, json!({})).at(path),
                    Ask::session(key, Some(&session), method, &json!({})).at(path),
                ];
                for ask in asks {
                    let mut listed = names(&gate.send(&ask).await.json(), list, member);
                    listed.sort();
                    assert_eq!(listed, expected, "{path} {method} {wide}");
                }
            }
        }
    }
}

/// Of two requests the second names an item that does not exist. The answers are equal but for the name, and neither request
/// reaches the server.
#[tokio::test]
async fn sec_27_a_withheld_item_is_answered_like_one_that_does_not_exist() {
    let gate = gate().await;
    let session = gate.session(ADA).await;
    let prod = json!({ "env": "prod" });
    for (method, withheld, unknown) in [
        ("tools/call", json!({ "name": "ask", "arguments": {} }), json!({ "name": "xyz", "arguments": {} })),
        ("tools/call", json!({ "name": "quick", "arguments": prod }), json!({ "name": "other", "arguments": prod })),
        ("tools/call", json!({ "name": "quick", "arguments": {} }), json!({ "name": "other", "arguments": {} })),
        ("prompts/get", json!({ "name": "write_b" }), json!({ "name": "nowhere" })),
        ("resources/read", json!({ "uri": "file:///secret/b" }), json!({ "uri": "file:///nowhere/" })),
        ("resources/read", json!({ "uri": "file:///public/../secret/b" }), json!({ "uri": "file:///nowhere/" })),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/prompt", "name": "write_b" }, "argument": { "name": "x", "value": "" } }),
            json!({ "ref": { "type": "ref/prompt", "name": "nowhere" }, "argument": { "name": "x", "value": "" } }),
        ),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/resource", "uri": "file:///secret/{x}" }, "argument": { "name": "x", "value": "" } }),
            json!({ "ref": { "type": "ref/resource", "uri": "file:///nowhere" }, "argument": { "name": "x", "value": "" } }),
        ),
        // A server might read a text as the name of an item.
        (
            "completion/complete",
            json!({ "ref": "file:///secret/b", "argument": { "name": "x", "value": "" } }),
            json!({ "ref": "file:///nowhere", "argument": { "name": "x", "value": "" } }),
        ),
    ] {
        let name = |params: &Value| params["name"].as_str().unwrap_or_default().to_owned();
        let (one, other) = (name(&withheld), name(&unknown));
        for prefix in ["", "up__"] {
            let ask = |params: &Value| {
                let mut params = params.clone();
                for at in ["/name", "/ref/name"] {
                    if let Some(name) = params.pointer_mut(at).filter(|name| name.is_string()) {
                        *name = json!(format!("{prefix}{}", name.as_str().unwrap_or_default()));
                    }
                }
                let asks = [Ask::new(ADA, method, params.clone()), Ask::session(ADA, Some(&session), method, &params)];
                let [stateless, session] = asks;
                if prefix.is_empty() { vec![stateless, session] } else { vec![stateless.at("/all/mcp")] }
            };
            for (withheld, unknown) in ask(&withheld).iter().zip(ask(&unknown)) {
                let (refused, unknown) = (gate.send(withheld).await, gate.send(&unknown).await);
                assert_eq!(refused.summary(), "200 -32602", "{withheld:?}");
                assert_eq!(refused.text().replace(&one, &other), unknown.text(), "{withheld:?}");
            }
        }
    }
    for method in ["tools/call", "prompts/get", "resources/read", "completion/complete"] {
        assert_eq!(gate.server.world.count(method), 0, "{method}");
    }
}

/// B85: some servers fold case, or take another value for a name.
#[tokio::test]
async fn sec_27_a_completion_that_names_its_item_in_another_way_is_refused() {
    let gate = gate().await;
    let session = gate.session(ADA).await;
    let allowed = json!({ "type": "ref/prompt", "name": "read_a" });
    for params in [
        json!({ "ref": { "type": "ref/prompt", "Name": "write_b" } }),
        json!({ "ref": { "type": "ref/prompt", "name": "read_a", "Name": "write_b" } }),
        json!({ "ref": { "type": "ref/resource", "uri": "file:///public/a", "URI": "file:///secret/b" } }),
        json!({ "ref": { "type": "ref/prompt", "name": ["write_b"] } }),
        json!({ "ref": { "type": "ref/prompt" } }),
        json!({ "ref": allowed, "Ref": { "type": "ref/prompt", "name": "write_b" } }),
        json!({ "Ref": { "type": "ref/prompt", "name": "write_b" } }),
        json!({ "uri": ["file:///secret/b"] }),
    ] {
        let mut params = params;
        params["argument"] = json!({ "name": "x", "value": "" });
        let method = "completion/complete";
        let asks = [Ask::new(ADA, method, params.clone()), Ask::session(ADA, Some(&session), method, &params)];
        let [stateless, session] = asks;
        for ask in [stateless.clone().at("/all/mcp"), stateless, session] {
            let refused = gate.send(&ask).await.summary();
            assert!(refused.ends_with(" -32602"), "{refused} {ask:?}");
        }
    }
    assert_eq!(gate.server.world.count("completion/complete"), 0);
}

/// SEC-27: a `mode` or a bound of a withheld tool's block would refuse the call in other words than those for an unknown tool.
#[tokio::test]
async fn sec_27_the_rules_of_a_withheld_tool_refuse_no_call() {
    for own in ["mode = \"required\"", "mode = \"never\"", "arguments_bytes_max = \"10B\""] {
        let own = format!("[[upstreams.up.tools]]\nmatch = \"ask\"\n{own}\n");
        let gate = Gate::behind(server().await, "", &text(RULES), &own).await;
        let session = gate.session(ADA).await;
        let long = "x".repeat(100);
        for (arguments, task) in [
            (json!({}), false),
            (json!({ "env": long }), false),
            (json!([1]), false),
            (json!(long), false),
            (json!({}), true),
            (json!([1]), true),
        ] {
            let answers = ["ask", "xyz"].map(|name| {
                let mut params = json!({ "name": name, "arguments": arguments });
                if task {
                    params["task"] = json!({});
                }
                Ask::session(ADA, Some(&session), "tools/call", &params)
            });
            let [withheld, unknown] = [gate.send(&answers[0]).await, gate.send(&answers[1]).await];
            assert_eq!(withheld.summary(), "200 -32602", "{own} {arguments} {task}: {withheld:?}");
            assert_eq!(withheld.text().replace("ask", "xyz"), unknown.text(), "{own} {arguments} {task}");
        }
        assert_eq!(gate.server.world.count("tools/call"), 0, "{own}");
    }
}

#[tokio::test]
async fn an_item_that_a_rule_allows_is_served() {
    let gate = gate().await;
    let session = gate.session(ADA).await;
    let completed = json!({ "name": "x", "value": "" });
    for (method, params) in [
        ("tools/call", json!({ "name": "quick", "arguments": { "env": "staging-1" } })),
        ("tools/call", json!({ "name": "quick", "arguments": { "env": "dev", "x": ["prod"] } })),
        ("prompts/get", json!({ "name": "read_a" })),
        ("resources/read", json!({ "uri": "file:///public/a" })),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "read_a" }, "argument": completed })),
    ] {
        let asks = [Ask::new(ADA, method, params.clone()), Ask::session(ADA, Some(&session), method, &params)];
        for ask in asks {
            assert_eq!(gate.send(&ask).await.summary(), "200 ok", "{method} {params}");
        }
    }
    for (uri, expected) in [("file:///public/a", "200 ok"), ("file:///secret/b", "200 -32602")] {
        let ask = Ask::session(ADA, Some(&session), "resources/subscribe", &json!({ "uri": uri }));
        assert_eq!(gate.send(&ask).await.summary(), expected, "{uri}");
    }
}

#[tokio::test]
async fn a_subscription_to_a_resource_that_a_rule_withholds_is_refused() {
    let gate = gate().await;
    let listen = json!({ "notifications": { "resourceSubscriptions": ["file:///public/a", "file:///secret/b"] } });
    assert_eq!(gate.send(&Ask::new(ADA, "subscriptions/listen", listen)).await.summary(), "200 -32602");
}

/// A request has the rights of its key, not of its principal.
#[tokio::test]
async fn sec_29_a_narrow_key_of_a_principal_has_not_the_rights_of_a_wide_one() {
    let gate = gate().await;
    let list = |key| Ask::new(key, "tools/list", json!({}));
    assert_eq!(gate.send(&list(ADA)).await.summary(), "200 ok");
    let nowhere = gate.send(&list(ADA_TOO).at("/nowhere")).await;
    assert_eq!(gate.send(&list(ADA_TOO)).await, nowhere);
    let task = gate.task(ADA, "task").await;
    let get = |key| Ask::new(key, "tasks/get", json!({ "taskId": task }));
    assert_eq!(gate.send(&get(ADA)).await.summary(), "200 ok");
    assert_eq!(gate.send(&get(ADA_TOO)).await, nowhere);
}

#[tokio::test]
async fn sec_31_an_expired_key_is_answered_like_an_unknown_one() {
    let gate = gate().await;
    let expired = gate.send(&Ask::new(EVE, "tools/list", json!({}))).await;
    let unknown = gate.send(&Ask::new("tg_zoe1_a1b2c3d4e5f60718293a4b5c6d7e8f90", "tools/list", json!({}))).await;
    assert_eq!(expired, unknown);
    assert_eq!(expired.status(), "401");
}

/// The row's tool decides, in each flavour. Streams of notifications are opened again under the new rules.
#[tokio::test]
async fn sec_30_a_reload_that_withdraws_a_tool_hides_its_tasks_and_leaves_their_cancel() {
    let mut gate = gate().await;
    let (settled, held) = (gate.task(ADA, "task").await, gate.task(ADA, "held").await);
    let bobs = gate.task(BOB, "task").await;
    let session = gate.session(ADA).await;
    let listen = Ask::new(ADA, "subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let (_, mut stream) = gate.open(&listen).await;
    gate.rule(FEWER);
    in_time(stream.read_to_end(&mut Vec::new())).await.unwrap();
    for id in [&settled, &held] {
        for method in ["tasks/get", "tasks/result"] {
            let in_session = |id: &str| Ask::session(ADA, Some(&session), method, &json!({ "taskId": id }));
            assert_eq!(gate.send(&in_session(id)).await, gate.send(&in_session(UNKNOWN)).await, "{method}");
        }
        let get = |id: &str| Ask::new(ADA, "tasks/get", json!({ "taskId": id }));
        let lost = gate.send(&get(id)).await;
        assert_eq!(lost, gate.send(&get(UNKNOWN)).await);
        assert_eq!(lost.summary(), "200 -32602");
    }
    let listed = gate.send(&Ask::session(ADA, Some(&session), "tasks/list", &json!({}))).await.json();
    assert_eq!(listed["result"]["tasks"], json!([]), "{listed}");
    let cancels = |id: &str| {
        let params = json!({ "taskId": id });
        [Ask::new(ADA, "tasks/cancel", params.clone()), Ask::session(ADA, Some(&session), "tasks/cancel", &params)]
    };
    assert_eq!(gate.send(&cancels(&held)[0]).await.summary(), "200 ok");
    for (ended, unknown) in cancels(&settled).iter().zip(&cancels(UNKNOWN)) {
        let told = gate.send(ended).await;
        assert_eq!(told, gate.send(unknown).await, "the answer does not tell that the task has ended");
    }
    assert_eq!(gate.send(&Ask::new(BOB, "tasks/get", json!({ "taskId": bobs }))).await.summary(), "200 ok");
    gate.rule(RULES);
    for (id, expected) in [(&settled, "completed"), (&held, "cancelled")] {
        let read = gate.send(&Ask::new(ADA, "tasks/get", json!({ "taskId": id }))).await.json();
        assert_eq!(read["result"]["status"], expected, "{read}");
    }
}
