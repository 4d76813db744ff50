//! How tasks are offered, asked for, granted and refused.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::client::{TestGateway, initialize};
use super::talk::{ManualSetup, SessionUser};
use super::upstream::ScriptedServer;

/// L25-01, L25-02, L25-54, T-22, T-43: lists are for clients that are not anonymous.
#[tokio::test]
async fn l25_01_02_54_tasks_are_offered_to_clients_of_their_version_and_lists_to_named_principals() {
    let server = ScriptedServer::polite().await;
    let whole = json!({"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}});
    let nameless = json!({"requests": {"tools": {"call": {}}}, "cancel": {}});
    let anonymous = "[auth]\nanonymous = true";
    for (version, keys, offered) in [
        ("2025-11-25", "", whole.clone()),
        ("2026-07-28", "", whole),
        ("2025-11-25", anonymous, nameless),
        ("2025-06-18", "", Value::Null),
        ("2024-11-05", "", Value::Null),
    ] {
        let gate = TestGateway::with(server.address, keys).await;
        let answer = gate.client_without_session().post(initialize(version, &json!({}))).await.json().await;
        assert_eq!(answer["result"]["capabilities"]["tasks"], offered, "{version} {keys}");
    }
    let gate = TestGateway::with(server.address, anonymous).await;
    let nobody = SessionUser::meet(&gate, "2025-11-25", &json!({})).await;
    assert_eq!(nobody.answered("tasks/list", &json!({})).await["error"]["code"], -32601);
    assert_eq!(server.world.count("tasks/list"), 0);
}

/// L25-65, GW-13.
#[tokio::test]
async fn l25_65_tool_lists_show_the_gateways_rules() {
    let list = r#"{"jsonrpc":"2.0","id":77,"result":{"tools":[{"name":"work","execution":{"taskSupport":"forbidden"},"x":1.10},{"name":"quick"},{"name":"must"}]}}"#;
    let server =
        ScriptedServer::start(move |seen| (seen.rpc() == "tools/list").then(|| super::upstream::json_text(list))).await;
    let keys = "[[upstreams.up.tools]]\nmatch = \"quick\"\nmode = \"never\"\n\
                [[upstreams.up.tools]]\nmatch = \"must\"\nmode = \"required\"";
    let gate = TestGateway::with(server.address, keys).await;
    for (version, shown) in [
        ("2025-11-25", json!([{"taskSupport": "optional"}, {"taskSupport": "forbidden"}, {"taskSupport": "required"}])),
        ("2025-06-18", json!([null, null, null])),
    ] {
        let person = SessionUser::meet(&gate, version, &json!({})).await;
        let tools = person.answered("tools/list", &json!({})).await["result"]["tools"].clone();
        let executions: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["execution"].clone()).collect();
        assert_eq!(Value::Array(executions), shown, "{version}");
    }
}

/// L25-03 to L25-05, T-09.
#[tokio::test]
async fn l25_04_05_a_tool_is_called_as_its_mode_says() {
    let server = ScriptedServer::polite().await;
    let keys = "[[upstreams.up.tools]]\nmatch = \"quick\"\nmode = \"never\"\n\
                [[upstreams.up.tools]]\nmatch = \"must\"\nmode = \"required\"";
    let gate = TestGateway::with(server.address, keys).await;
    let (new, old) = (
        SessionUser::meet(&gate, "2025-11-25", &json!({})).await,
        SessionUser::meet(&gate, "2025-06-18", &json!({})).await,
    );
    let call = |name: &str, task: Option<Value>| {
        let mut params = json!({"name": name, "arguments": {"n": 1}});
        if let Some(task) = task {
            params["task"] = task;
        }
        params
    };
    for (person, params, code) in [
        (&new, call("quick", Some(json!({}))), Some(-32601)),
        (&new, call("must", None), Some(-32601)),
        (&new, call("quick", None), None),
        (&new, call("work", Some(json!({"ttl": -1}))), Some(-32602)),
        (&new, call("work", Some(json!({"ttl": "60"}))), Some(-32602)),
        (&old, call("must", None), None),
        (&old, call("quick", Some(json!({}))), None),
    ] {
        let answer = person.answered("tools/call", &params).await;
        assert_eq!(answer["error"]["code"].as_i64(), code, "{params}: {answer}");
        if code.is_none() {
            assert_eq!(answer["result"], json!({"n": 1}), "{params}");
        }
    }
}

/// L25-07 to L25-10, L25-16 to L25-18, L25-20, L25-21, T-79.
#[tokio::test]
async fn l25_20_21_a_handle_comes_at_once_with_every_required_member() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let answer = person.answered("tools/call", &json!({"name": "work", "arguments": {"n": 1.5}, "task": {}})).await;
    let task = &answer["result"]["task"];
    assert_eq!(answer["result"].as_object().unwrap().len(), 1, "nested, and nothing beside it: {answer}");
    assert_eq!(task["status"], "working");
    assert_eq!((task["ttl"].as_u64(), task["pollInterval"].as_u64()), (Some(86_400_000), Some(1_000)));
    assert!(task["taskId"].as_str().unwrap().len() == 32 && task["createdAt"].as_str().unwrap().ends_with('Z'));
    assert_eq!(task["createdAt"], task["lastUpdatedAt"]);
    let arrived = stage.call().await;
    assert_eq!(arrived.seen.body["params"]["arguments"], json!({"n": 1.5}));
    assert_eq!(arrived.seen.body["params"].get("task"), None, "this server knows no tasks");
    assert_eq!(arrived.seen.header("mcp-session-id"), Some("s-1"), "in the client's own session");
    assert_eq!(stage.server.world.count("initialize"), 1);
    assert!(arrived.seen.body["id"].as_str().unwrap().starts_with("tg:"));
    let seen = person.task(&task["taskId"]).await;
    assert_eq!((&seen["status"], &seen["ttl"]), (&json!("working"), &task["ttl"]));
    let mut ids = HashSet::from([task["taskId"].to_string()]);
    for _ in 0..20 {
        assert!(ids.insert(person.start().await["taskId"].to_string()), "L25-09");
    }
}

/// T-79: a call that is answered at once is a task all the same.
#[tokio::test]
async fn t_79_a_fast_call_is_a_task_too() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let person = SessionUser::meet(&gate, "2025-11-25", &json!({})).await;
    let task = person.start_with(&json!({"name": "work", "arguments": {"n": 1}, "task": {"ttl": 60_000}})).await;
    assert_eq!(task["ttl"], 60_000);
    let settled = person.until(&task["taskId"], "completed").await;
    assert!(settled["ttl"].as_u64().unwrap() >= 15 * 60_000, "an outcome stays readable: {settled}");
}

/// L25-57, T-69.
#[tokio::test]
async fn l25_57_a_requested_ttl_is_capped() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nttl = \"2h\"\nttl_max = \"3h\"").await;
    let person = stage.person().await;
    for (asked, granted) in [
        (json!({}), 7_200_000),
        (json!({"ttl": 9_000_000}), 9_000_000),
        (json!({"ttl": 99_000_000}), 10_800_000),
        (json!({"ttl": null}), 10_800_000),
    ] {
        let task = person.start_with(&json!({"name": "work", "task": asked})).await;
        assert_eq!(task["ttl"], granted, "{asked}");
    }
}

/// GW-09.
#[tokio::test]
async fn words_for_the_model_come_with_the_handle_alone() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nimmediate_response = \"It takes a while.\"").await;
    let person = stage.person().await;
    let result = person.answered("tools/call", &json!({"name": "work", "task": {}})).await["result"].clone();
    assert_eq!(result["_meta"], json!({"io.modelcontextprotocol/model-immediate-response": "It takes a while."}));
    assert_eq!(person.task(&result["task"]["taskId"]).await.get("_meta"), None);
}

/// T-58: refused for load is HTTP 200 towards sessions, and nothing was sent.
#[tokio::test]
async fn t_58_a_call_for_which_there_is_no_place_is_refused() {
    let stage = ManualSetup::with("[limits]\ntasks_max = 1\ntasks_per_principal_max = 1").await;
    let person = stage.person().await;
    person.start().await;
    let _held = stage.call().await;
    let refused = person.answered("tools/call", &json!({"name": "work", "task": {}})).await["error"].clone();
    assert_eq!(refused["code"], -32603);
    assert_eq!((&refused["data"]["reason"], &refused["data"]["executed"]), (&json!("too_many_tasks"), &json!("no")));
    assert_eq!(stage.server.world.count("tools/call"), 1);
}

/// GW-15: no task methods where no tasks were offered, in a batch neither.
#[tokio::test]
async fn older_sessions_have_no_task_methods() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let person = SessionUser::meet(&gate, "2025-03-26", &json!({})).await;
    for name in ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"] {
        assert_eq!(person.answered(name, &json!({"taskId": "x"})).await["error"]["code"], -32601, "{name}");
    }
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tasks/list"}]"#;
    let answer = person.client.post(batch).await.text().await;
    assert!(answer.contains("-32601"), "{answer}");
    assert_eq!(server.world.all(|seen| seen.rpc().starts_with("tasks/")).len(), 0);
}
