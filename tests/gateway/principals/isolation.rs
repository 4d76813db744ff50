//! One principal asks for another's tasks, sessions, questions and lists: every answer is that for unknown ones.

use serde_json::{Value, json};

use super::gate::{ADA, Answer, Ask, BOB, Gate};
use super::upstream::{ScriptedServer, status};

/// As long as a real id, but no task's.
const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// Checks that the answers for a foreign and for an unknown id are equal byte for byte.
#[track_caller]
fn check_alike(what: &str, foreign: &Answer, unknown: &Answer, expected: &str) {
    assert_eq!(foreign, unknown, "{what}");
    assert_eq!(foreign.summary(), expected, "{what}");
}

/// B121, SEC-01, L25-49, L25-50: each method in each era.
#[tokio::test]
async fn b121_a_foreign_task_is_answered_like_an_unknown_one() {
    let gate = Gate::start().await;
    let (settled, running) = (gate.task(ADA, "task").await, gate.task(ADA, "held").await);
    let session = gate.session(BOB).await;
    for id in [&settled, &running] {
        let modern = async |method: &str| {
            let ask = |id: &str| {
                let mut params = json!({ "taskId": id });
                if method == "tasks/update" {
                    params["inputResponses"] = json!({ "1": { "action": "accept" } });
                }
                Ask::new(BOB, method, params)
            };
            (gate.send(&ask(id)).await, gate.send(&ask(UNKNOWN)).await)
        };
        for (method, expected) in [
            ("tasks/get", "200 -32602"),
            ("tasks/update", "200 -32602"),
            ("tasks/cancel", "200 -32602"),
            ("tasks/result", "404 -32601"),
            ("tasks/list", "404 -32601"),
        ] {
            let (foreign, unknown) = modern(method).await;
            check_alike(method, &foreign, &unknown, expected);
        }
    }
    // Three methods only: after twenty unknown tasks in a minute the refusal is another one.
    for method in ["tasks/get", "tasks/cancel", "tasks/result"] {
        let ask = |id: &str| Ask::session(BOB, Some(&session), method, &json!({ "taskId": id }));
        let (foreign, unknown) = (gate.send(&ask(&running)).await, gate.send(&ask(UNKNOWN)).await);
        check_alike(method, &foreign, &unknown, "200 -32602");
    }
    let status = async |id: &str| {
        let seen = gate.send(&Ask::new(ADA, "tasks/get", json!({ "taskId": id }))).await.json();
        seen["result"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (status(&settled).await.as_str(), status(&running).await.as_str()),
        ("completed", "working"),
        "untouched"
    );
}

/// L25-51: a client lists its own tasks alone.
#[tokio::test]
async fn l25_51_nobody_lists_the_tasks_of_another() {
    let gate = Gate::start().await;
    for _ in 0..51 {
        gate.task(ADA, "task").await;
    }
    let (ada, bob) = (gate.session(ADA).await, gate.session(BOB).await);
    let list = async |key, session: &str, params: Value| {
        gate.send(&Ask::session(key, Some(session), "tasks/list", &params)).await
    };
    let own = list(ADA, &ada, json!({})).await.json();
    assert_eq!(own["result"]["tasks"].as_array().unwrap().len(), 50);
    assert_eq!(list(BOB, &bob, json!({})).await.json()["result"], json!({ "tasks": [] }));
    let cursor = own["result"]["nextCursor"].as_str().unwrap();
    let mut garbled = cursor.to_owned();
    garbled.replace_range(..1, if cursor.starts_with('A') { "B" } else { "A" });
    let foreign = list(BOB, &bob, json!({ "cursor": cursor })).await;
    let unknown = list(BOB, &bob, json!({ "cursor": garbled })).await;
    check_alike("cursor", &foreign, &unknown, "200 -32602");
    assert_eq!(
        list(ADA, &ada, json!({ "cursor": cursor })).await.json()["result"]["tasks"].as_array().unwrap().len(),
        1
    );
}

/// B132: a stream has no event of a foreign task, and does not show that there is one.
#[tokio::test]
async fn b132_foreign_tasks_are_left_out_of_a_subscription() {
    let gate = Gate::start().await;
    let (own, foreign) = (gate.task(BOB, "held").await, gate.task(ADA, "held").await);
    let open = async |ids: &[&str]| {
        let ask = Ask::new(BOB, "subscriptions/listen", json!({ "notifications": { "taskIds": ids } }));
        let (first, stream) = gate.open(&ask).await;
        drop(stream);
        let event = first.split("data: ").nth(1).unwrap_or_else(|| panic!("{first}")).to_owned();
        event.split("\n\n").next().unwrap().to_owned()
    };
    let alone = open(&[&own]).await;
    assert_eq!(open(&[&own, &foreign]).await, alone);
    assert_eq!(open(&[&own, UNKNOWN]).await, alone);
    assert!(alone.contains(&own) && !alone.contains(&foreign), "{alone}");
    assert_eq!(open(&[&foreign]).await, open(&[UNKNOWN]).await);
}

/// SEC-02: a session's id is useless to another principal.
#[tokio::test]
async fn sec_02_a_foreign_session_is_answered_like_an_unknown_one() {
    let gate = Gate::start().await;
    let ada = gate.session(ADA).await;
    let mut garbled = ada.clone();
    garbled.replace_range(..1, if ada.starts_with('A') { "B" } else { "A" });
    for (verb, method) in
        [("POST", "ping"), ("POST", "tools/call"), ("POST", "tasks/list"), ("GET", ""), ("DELETE", "")]
    {
        let ask = |session: &str| {
            let ask = Ask::session(BOB, Some(session), method, &json!({ "name": "quick" }));
            Ask { verb, body: if verb == "POST" { ask.body.clone() } else { String::new() }, ..ask }
        };
        let (foreign, unknown) = (gate.send(&ask(&ada)).await, gate.send(&ask(&garbled)).await);
        check_alike(&format!("{verb} {method}"), &foreign, &unknown, "404 -32001");
    }
    assert_eq!(gate.send(&Ask::session(ADA, Some(&ada), "ping", &json!({}))).await.summary(), "200 ok", "it lives");
    assert_eq!(gate.server.world.all(|seen| seen.method == "DELETE").len(), 0);
}

/// SEC-17, T-24, B135: another principal's `requestState` is useless.
#[tokio::test]
async fn sec_17_a_foreign_request_state_answers_no_question() {
    let gate = Gate::start().await;
    let capabilities = json!({ "elicitation": {} });
    let call = |key, more: Value| {
        let mut params = json!({ "name": "ask", "arguments": {} });
        for (name, value) in more.as_object().unwrap() {
            params[name] = value.clone();
        }
        Ask::declaring(key, "tools/call", params, &capabilities)
    };
    let asked = gate.send(&call(ADA, json!({}))).await.json();
    let state = asked["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{asked}")).to_owned();
    let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let retry = |who, state: &str, action: &str| {
        call(
            who,
            json!({ "requestState": state, "inputResponses": { key.as_str(): { "action": action, "content": {} } } }),
        )
    };
    let mut garbled = state.clone();
    garbled.replace_range(..1, if state.starts_with('A') { "B" } else { "A" });
    let (foreign, unknown) =
        (gate.send(&retry(BOB, &state, "decline")).await, gate.send(&retry(BOB, &garbled, "decline")).await);
    check_alike("requestState", &foreign, &unknown, "200 -32602 invalid_request_state");
    let ended = gate.send(&retry(ADA, &state, "accept")).await.json();
    assert_eq!(ended["result"]["structuredContent"]["said"], "accept", "hers alone counts: {ended}");
}

/// UPC-23: a server may show each client other tools, so a cached tool list serves one principal.
#[tokio::test]
async fn upc_23_a_tool_list_is_kept_for_its_principal_alone() {
    let gate = Gate::start().await;
    let own = async |key| {
        let list = gate.send(&Ask::new(key, "tools/list", json!({}))).await.json();
        let tools = list["result"]["tools"].as_array().unwrap().clone();
        tools.last().unwrap()["name"].as_str().unwrap().to_owned()
    };
    let (ada, bob) = (own(ADA).await, own(BOB).await);
    assert!(ada.starts_with("of-s-") && bob.starts_with("of-s-") && ada != bob, "{ada} {bob}");
    assert_eq!((own(ADA).await, own(BOB).await), (ada.clone(), bob), "each its own");
    assert_eq!(gate.server.world.count("tools/list"), 2, "and from memory");
    // A tool that no list names is requested from the server with the caller's own credential (T-72).
    let (foreign, nowhere) =
        (gate.send(&Ask::call(BOB, &ada, &json!({}))).await, gate.send(&Ask::call(BOB, "nowhere", &json!({}))).await);
    assert_eq!((foreign.summary(), nowhere.summary()), ("200 ok".to_owned(), "200 ok".to_owned()));
    let asked = gate.server.world.all(|seen| seen.rpc() == "tools/call");
    let names: Vec<_> = asked.iter().map(|seen| seen.body["params"]["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, [ada.as_str(), "nowhere"], "each was the server's to answer");
}

/// A 429 with its `Retry-After`, repeated often enough to pause a server that is failing.
#[tokio::test]
async fn sec_90_a_limit_on_one_clients_own_credential_does_not_stop_the_others() {
    let server = ScriptedServer::start(|seen| {
        let mut refused = status(429);
        refused.headers_mut().insert("retry-after", "60".parse().unwrap());
        (seen.is_call() && seen.header("authorization") == Some("Bearer greedy")).then_some(refused)
    });
    let gate = Gate::behind(server.await, "", "", "forward_authorization = true\n").await;
    let (greedy, modest) = (gate.session_of("greedy").await, gate.session_of("modest").await);
    let call = json!({ "name": "quick", "arguments": { "content": [] } });
    let call = |key, session| Ask::session(key, Some(session), "tools/call", &call);
    for _ in 0..6 {
        let refused = gate.send(&call("greedy", &greedy)).await.summary();
        assert!(refused.ends_with("upstream_http_status"), "each time the server's own refusal: {refused}");
    }
    assert_eq!(gate.send(&call("modest", &modest)).await.summary(), "200 ok");
}
