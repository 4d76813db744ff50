//! Questions of a server for which they are answers, put to clients for which they are requests.

use serde_json::{Value, json};

use super::client::{Client, TestGateway};
use super::server::{Stream, ask, open, refused, request, stateless};
use super::upstream::{ScriptedServer, answer};

const ASKED: &str = "elicitation/create";

/// A server that asks `questions` first, and shows the answers in its result.
async fn asking(questions: Value) -> ScriptedServer {
    stateless(move |seen| {
        let params = &seen.body["params"];
        match (seen.rpc(), params["requestState"].as_str()) {
            ("tools/call", None) => {
                let result =
                    json!({"resultType": "input_required", "inputRequests": questions, "requestState": "s\u{e9}"});
                Some(answer(seen, &result))
            }
            ("tools/call", Some("s\u{e9}")) => {
                Some(answer(seen, &json!({"content": [], "structuredContent": params["inputResponses"]})))
            }
            _ => None,
        }
    })
    .await
}

fn form(message: &str) -> Value {
    json!({"method": ASKED, "params": {"mode": "form", "message": message, "requestedSchema": {"type": "object"}}})
}

async fn begin(client: &Client) -> Stream {
    Stream::of(client.post(request(1, "tools/call", &json!({"name": "t", "arguments": {}}))).await)
}

async fn respond(client: &Client, question: &Value, said: &Value) {
    let mut response = said.clone();
    response["jsonrpc"] = json!("2.0");
    response["id"] = question["id"].clone();
    assert_eq!(client.post(response.to_string()).await.status, 202, "an answer is accepted");
}

fn told(message: Option<Value>) -> Value {
    message.unwrap()["result"]["structuredContent"].clone()
}

/// UPC-14, GW-22.
#[tokio::test]
async fn upc_14_questions_go_out_on_the_calls_stream_and_all_answers_go_back_together() {
    let server = asking(json!({"a": form("first"), "b": form("second")})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {"form": {}}})).await;
    let stranger = open(&gate, "2025-11-25", &json!({"elicitation": {"form": {}}})).await;
    let mut stream = begin(&client).await;
    let questions = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    for question in &questions {
        assert_eq!(question["method"], ASKED);
        assert!(question["id"].as_str().unwrap().starts_with("tg:"), "{question}");
        assert!(question["params"].get("elicitationId").is_none());
        respond(&stranger, question, &json!({"result": {"action": "decline"}})).await;
    }
    for question in &questions {
        let name = &question["params"]["message"];
        let said = json!({"result": {"action": "accept", "content": {"name": name}}});
        respond(&client, question, &said).await;
        respond(&client, question, &json!({"result": {"action": "decline"}})).await;
    }
    let said = |name: &str| json!({"action": "accept", "content": {"name": name}});
    assert_eq!(told(stream.next().await), json!({"a": said("first"), "b": said("second")}));
    assert_eq!(stream.next().await, None);
    assert_eq!(server.world.count("tools/call"), 2);
}

/// T-48.
#[tokio::test]
async fn t_48_an_error_and_an_invalid_answer_count_as_a_refusal() {
    let server = asking(json!({"k": form("?")})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({"elicitation": {}})).await;
    for (said, heard) in [
        (json!({"result": {"action": "decline"}}), "decline"),
        (json!({"error": {"code": -1, "message": "no"}}), "cancel"),
        (json!({"result": {"action": "maybe"}}), "cancel"),
        (json!({"result": {}}), "cancel"),
    ] {
        let mut stream = begin(&client).await;
        let question = stream.next().await.unwrap();
        assert!(question["params"].get("mode").is_none(), "2025-06-18 knows forms alone");
        respond(&client, &question, &said).await;
        assert_eq!(told(stream.next().await), json!({"k": {"action": heard}}), "{said}");
    }
}

/// LEG-16, T-51, GW-23: a question that cannot be put ends the call, and says so in the tool's own words.
#[tokio::test]
async fn leg_16_a_call_with_a_question_that_its_client_cannot_get_fails_with_a_reason() {
    let url = json!({"method": ASKED, "params": {"mode": "url", "message": "?", "url": "https://a.example/"}});
    let stream = "event stream";
    let (form_needed, url_needed) = ("{\"elicitation\":{}}", "{\"elicitation\":{\"url\":{}}}");
    for (version, capabilities, accept, question, why) in [
        ("2025-11-25", json!({}), super::client::BOTH, form("?"), form_needed),
        ("2025-11-25", json!({"elicitation": {}}), super::client::BOTH, url.clone(), url_needed),
        ("2025-06-18", json!({"elicitation": {"url": {}}}), super::client::BOTH, url, url_needed),
        ("2025-11-25", json!({"elicitation": {}}), "application/json", form("?"), stream),
        ("2025-11-25", json!({}), super::client::BOTH, json!({"method": "roots/list"}), "{\"roots\":{}}"),
    ] {
        let server = asking(json!({"k": question})).await;
        let gate = TestGateway::before(&server).await;
        let mut client = open(&gate, version, &capabilities).await;
        client.accept = accept;
        let reply = client.post(request(1, "tools/call", &json!({"name": "t"}))).await;
        let answer = reply.json().await;
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.contains(why), "{version} {capabilities} {accept}: {answer}");
        assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(1), &json!(true)), "{answer}");
        assert!(answer["result"].get("structuredContent").is_none(), "T-51: {answer}");
        assert_eq!(server.world.count("tools/call"), 1, "nothing is answered in the client's name");
    }
}

/// GW-05, GW-23: 2025-06-18 names the titles of choices in another member, and has no lists.
#[tokio::test]
async fn a_form_is_put_as_2025_06_18_has_it_or_ends_its_call() {
    let choices = json!([{"const": "r", "title": "Red"}, {"const": "g"}, {"const": "b", "title": "Blue"}]);
    let choice = json!({"type": "string", "oneOf": choices});
    let list = json!({"type": "array", "items": {"type": "string", "enum": ["a"]}});
    let older = json!({"type": "string", "enum": ["r", "g", "b"], "enumNames": ["Red", "g", "Blue"]});
    for (field, shown) in
        [(choice.clone(), Some(older)), (json!({"type": "boolean"}), Some(json!({"type": "boolean"}))), (list, None)]
    {
        let mut question = form("?");
        question["params"]["requestedSchema"]["properties"] = json!({"n": field});
        let server = asking(json!({"k": question})).await;
        let gate = TestGateway::before(&server).await;
        let client = open(&gate, "2025-06-18", &json!({"elicitation": {}})).await;
        let Some(shown) = shown else {
            let failed = client.post(request(1, "tools/call", &json!({"name": "t"}))).await.text().await;
            assert!(failed.contains("isError") && failed.contains("does not know this kind of question"), "{failed}");
            continue;
        };
        let mut stream = begin(&client).await;
        let asked = stream.next().await.unwrap();
        assert_eq!(asked["params"]["requestedSchema"]["properties"]["n"], shown);
        respond(&client, &asked, &json!({"result": {"action": "accept", "content": {"n": "r"}}})).await;
        assert_eq!(told(stream.next().await)["k"]["content"]["n"], "r");
    }
    let newest =
        asking(json!({"k": {"method": ASKED, "params": {"requestedSchema": {"properties": {"n": choice}}}}})).await;
    let gate = TestGateway::before(&newest).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let asked = begin(&client).await.next().await.unwrap();
    assert_eq!(asked["params"]["requestedSchema"]["properties"]["n"], choice);
}

/// GW-29: the client learns which capability the tool needs, plainly and from its task.
#[tokio::test]
async fn gw_29_a_session_client_learns_the_missing_capability_without_a_code_of_2026_07_28() {
    let server = stateless(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => {
            let needs = json!({"requiredCapabilities": {"sampling": {}, "elicitation": {}}});
            Some(refused(seen, 400, &json!({"code": -32021, "message": "m", "data": needs})))
        }
        _ => None,
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let plain = ask(&client, "tools/call", &json!({"name": "t", "arguments": {}})).await;
    let handle = ask(&client, "tools/call", &json!({"name": "t", "arguments": {}, "task": {}})).await;
    let id = &handle["result"]["task"]["taskId"];
    for failed in [plain, ask(&client, "tasks/result", &json!({"taskId": id})).await] {
        let error = &failed["error"];
        assert_eq!((&error["code"], &error["data"]["executed"]), (&json!(-32603), &json!("unknown")), "{failed}");
        assert!(error["message"].as_str().unwrap().ends_with("did not declare: elicitation, sampling"), "{failed}");
    }
}

/// GW-23: one question that can be asked does not help another that cannot; a request that is no call gets an error.
#[tokio::test]
async fn a_question_that_cannot_be_asked_ends_its_call_also_beside_another_one() {
    let server = asking(json!({"a": form("?"), "b": {"method": "roots/list"}})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let failed = client.post(request(1, "tools/call", &json!({"name": "t"}))).await.text().await;
    assert!(failed.contains("isError") && failed.contains("roots"), "{failed}");
    assert_eq!(server.world.count("tools/call"), 1);
    let server = stateless(|seen| {
        let asks = json!({"resultType": "input_required", "inputRequests": {"k": form("?")}, "requestState": "s"});
        (seen.rpc() == "prompts/get").then(|| answer(seen, &asks))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let answer = client.post(request(1, "prompts/get", &json!({"name": "p"}))).await.json().await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("elicitation"), "{answer}");
}

/// T-49.
#[tokio::test]
async fn t_49_an_elicitation_by_url_has_the_id_that_2025_11_25_wants() {
    let url = json!({"method": ASKED, "params": {"mode": "url", "message": "?", "url": "https://a.example/"}});
    let server = asking(json!({"k": url})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {"url": {}}})).await;
    let mut stream = begin(&client).await;
    let question = stream.next().await.unwrap();
    assert_eq!(question["params"]["elicitationId"].as_str().map(str::len), Some(32));
    respond(&client, &question, &json!({"result": {"action": "accept"}})).await;
    assert_eq!(told(stream.next().await), json!({"k": {"action": "accept"}}));
}

/// A question that is not answered in time is cancelled, and refused.
#[tokio::test]
async fn an_unanswered_question_is_cancelled_at_the_client() {
    let server = asking(json!({"k": form("?")})).await;
    let gate = TestGateway::with(server.address, "[upstreams.up.tasks]\ninput_deadline = \"1s\"\n").await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let mut stream = begin(&client).await;
    let question = stream.next().await.unwrap();
    let back = stream.next().await.unwrap();
    assert_eq!((&back["method"], &back["params"]["requestId"]), (&json!("notifications/cancelled"), &question["id"]));
    assert_eq!(told(stream.next().await), json!({"k": {"action": "cancel"}}));
    respond(&client, &question, &json!({"result": {"action": "accept"}})).await;
}

/// LEG-14.
#[tokio::test]
async fn leg_14_a_call_that_is_cancelled_while_it_asks_is_never_made_again() {
    let server = asking(json!({"k": form("?")})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let mut stream = begin(&client).await;
    let question = stream.next().await.unwrap();
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(client.post(cancel.to_string()).await.status, 202);
    assert_eq!(stream.next().await, None);
    respond(&client, &question, &json!({"result": {"action": "accept"}})).await;
    assert_eq!(server.world.count("tools/call"), 1);
}

/// T-81: a session that ends takes its calls along.
#[tokio::test]
async fn t_81_a_session_that_ends_takes_its_calls_along() {
    let server = asking(json!({"k": form("?")})).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let mut stream = begin(&client).await;
    stream.next().await.unwrap();
    assert_eq!(client.delete().await.status, 200);
    assert_eq!(stream.next().await, None);
}
