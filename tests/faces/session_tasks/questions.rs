//! Questions of a task: on which stream they come, and how their answers go back.

use http::StatusCode;
use serde_json::{Value, json};

use super::talk::{ManualSetup, RELATED, SessionMessages, SessionUser};
use super::upstream::SeenRequest;

const ASK: &str = "elicitation/create";

fn form() -> Value {
    json!({"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}})
}

async fn answer_at(stage: &ManualSetup, id: Value) -> Value {
    let is_answer = move |seen: &SeenRequest| seen.body.get("method").is_none() && seen.body["id"] == id;
    stage.server.world.first(is_answer).await.body
}

/// A stream of `tasks/result` on which the question has come.
async fn asked(person: &SessionUser, id: u32, task: &Value) -> (SessionMessages, Value) {
    let mut stream = SessionMessages::of(person.result(id, task).await);
    let question = stream.next_of(ASK).await;
    (stream, question)
}

/// L25-13 to L25-15, L25-27.
#[tokio::test]
async fn l25_13_14_15_a_question_comes_on_the_stream_of_the_waiting_request() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    call.ask(&json!(0), ASK, &form());
    person.until(&task, "input_required").await;
    let (stream, question) = asked(&person, 4, &task).await;
    assert_eq!(question["params"]["_meta"][RELATED], json!({"taskId": task}));
    assert_eq!(question["params"]["message"], "Who?");
    assert!(question["id"].as_str().unwrap().starts_with("tg:"));
    let said = json!({"action": "accept", "content": {"n": 1}, "_meta": {RELATED: {"taskId": task}}});
    person.respond(&question["id"], &said).await;
    let answer = answer_at(&stage, json!(0)).await;
    assert_eq!(answer["result"], json!({"action": "accept", "content": {"n": 1}}), "less what belongs to this hop");
    person.until(&task, "working").await;
    person.respond(&question["id"], &json!({"action": "decline"})).await;
    call.answer(&json!({"content": [], "n": 9}));
    let rest = stream.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"], &rest[0]["result"]["n"]), (1, &json!(4), &json!(9)), "{rest:?}");
    let answers = stage.server.world.all(|seen| seen.body.get("method").is_none() && seen.body["id"] == 0);
    assert_eq!(answers.len(), 1, "the first answer counts");
}

/// T-32: without a waiting request the session's own stream gets it, and no other stream.
#[tokio::test]
async fn t_32_without_a_waiter_a_question_comes_on_the_sessions_own_stream() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut own = person.listen().await;
    let upstream = stage.get().await;
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    // In the middle of an event of the upstream's nothing is put in.
    upstream.events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\",");
    own.begun("changed\",").await;
    call.ask(&json!("q"), "sampling/createMessage", &json!({"messages": [], "maxTokens": 1}));
    person.until(&task, "input_required").await;
    upstream.events.raw("\"params\":{}}\n\n");
    assert_eq!(own.next().await.unwrap()["method"], "notifications/tools/list_changed");
    let question = own.next_of("sampling/createMessage").await;
    assert_eq!(question["params"]["_meta"][RELATED], json!({"taskId": task}));
    let waiting = person.client.connections.spawn(person.result(4, &task));
    person.respond(&question["id"], &json!({"role": "assistant", "content": [], "model": "m"})).await;
    assert_eq!(answer_at(&stage, json!("q")).await["result"]["model"], "m");
    call.answer(&json!({"content": []}));
    let text = super::in_time(waiting).await.unwrap().text().await;
    assert!(!text.contains("sampling") && text.contains("\"id\":4"), "never on two streams: {text}");
}

/// T-32, T-33: a stream that dies unanswered gives its question to the next, under a new id.
#[tokio::test]
async fn t_32_a_question_whose_stream_died_is_put_again_under_a_new_id() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    call.ask(&json!(7), ASK, &form());
    person.until(&task, "input_required").await;
    let (first, question) = asked(&person, 4, &task).await;
    drop(first);
    let mut second = SessionMessages::of(person.result(5, &task).await);
    let taken_back = second.next().await.unwrap();
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    assert_eq!(taken_back["params"]["_meta"][RELATED], json!({"taskId": task}));
    let again = second.next().await.unwrap();
    assert_eq!(again["params"], question["params"]);
    assert_ne!(again["id"], question["id"]);
    person.respond(&question["id"], &json!({"action": "accept"})).await;
    assert_eq!(answer_at(&stage, json!(7)).await["result"]["action"], "accept", "either id will do");
    call.answer(&json!({"content": []}));
    assert_eq!(second.rest().await.len(), 1, "an answered question is not taken back");
}

/// LEG-14, T-32: its question goes to the next request, and the task continues.
#[tokio::test]
async fn leg_14_a_cancelled_request_for_an_outcome_has_no_response() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    call.ask(&json!(7), ASK, &form());
    let (stream, question) = asked(&person, 4, &task).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}});
    assert_eq!(person.client.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
    let rest = stream.rest().await;
    assert!(rest.iter().all(|message| message["id"] != 4), "{rest:?}");
    let (next, again) = asked(&person, 5, &task).await;
    assert_ne!(again["id"], question["id"]);
    person.respond(&again["id"], &json!({"action": "accept"})).await;
    assert_eq!(answer_at(&stage, json!(7)).await["result"]["action"], "accept");
    call.answer(&json!({"content": []}));
    assert_eq!(next.rest().await.last().unwrap()["id"], 5);
    assert_eq!(stage.server.world.count("notifications/cancelled"), 0, "the server does not know the request");
}

/// T-32: the same for the session's own stream.
#[tokio::test]
async fn t_32_a_question_follows_the_session_to_its_next_stream() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut own = person.listen().await;
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    call.ask(&json!(7), "roots/list", &json!({}));
    let question = own.next_of("roots/list").await;
    drop(own);
    let mut own = person.listen().await;
    let again = own.next_of("roots/list").await;
    assert_ne!(again["id"], question["id"]);
    let refusal = json!({"jsonrpc": "2.0", "id": again["id"], "error": {"code": -1, "message": "not me", "data": [1]}});
    assert_eq!(person.client.post(refusal.to_string()).await.status, StatusCode::ACCEPTED);
    let answer = answer_at(&stage, json!(7)).await;
    assert_eq!(answer["error"], json!({"code": -1, "message": "not me", "data": [1]}), "a refusal is the client's own");
    person.until(&task, "working").await;
}

/// T-33: the newest waiter is asked.
#[tokio::test]
async fn t_33_the_newest_waiter_is_asked_and_all_get_the_outcome() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let log =
        |n: u32| json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}});
    let mut streams = Vec::new();
    for id in [4, 5] {
        let waiting = person.client.connections.spawn(person.result(id, &task));
        // A message that arrives shows that this one is the newest.
        let said = loop {
            call.send(&log(id));
            tokio::task::yield_now().await;
            if waiting.is_finished() {
                break waiting;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        streams.push(SessionMessages::of(super::in_time(said).await.unwrap()));
    }
    call.ask(&json!(0), ASK, &form());
    let mut newest = streams.pop().unwrap();
    let question = newest.next_of(ASK).await;
    person.respond(&question["id"], &json!({"action": "accept"})).await;
    answer_at(&stage, json!(0)).await;
    call.answer(&json!({"content": []}));
    let older = streams.pop().unwrap().rest().await;
    assert!(older.iter().all(|message| message["method"] != ASK), "{older:?}");
    assert_eq!(older.last().unwrap()["id"], 4);
    assert_eq!(newest.rest().await.last().unwrap()["id"], 5);
}

/// GW-17: a question that the upstream cancels, or that a cancel ends, is cancelled at the client.
#[tokio::test]
async fn a_question_without_a_waiting_server_is_cancelled() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    call.ask(&json!(0), ASK, &form());
    person.until(&task, "input_required").await;
    let (mut stream, question) = asked(&person, 4, &task).await;
    call.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}));
    let taken_back = stream.next_of("notifications/cancelled").await;
    assert_eq!(taken_back["params"]["requestId"], question["id"]);
    person.until(&task, "working").await;
    call.ask(&json!(1), ASK, &form());
    let question = stream.next_of(ASK).await;
    person.answered("tasks/cancel", &json!({"taskId": task})).await;
    let rest = stream.rest().await;
    assert_eq!(rest[0]["params"]["requestId"], question["id"], "{rest:?}");
    assert_eq!((rest.len(), &rest[1]["id"]), (2, &json!(4)));
}

/// T-49, T-59: an address has an id; clients are not asked for tasks.
#[tokio::test]
async fn a_question_by_address_gets_an_id_and_no_question_asks_for_a_task() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let params = json!({"mode": "url", "message": "m", "url": "https://a.example/", "task": {"ttl": 1}});
    call.ask(&json!(0), ASK, &params);
    person.until(&task, "input_required").await;
    let (_stream, question) = asked(&person, 4, &task).await;
    assert!(question["params"]["elicitationId"].is_string());
    assert_eq!(question["params"].get("task"), None);
}

/// UPC-21: the gateway refuses a question of an undeclared capability. One that names no mode of elicitation means forms.
#[tokio::test]
async fn a_client_gets_no_question_of_an_undeclared_capability() {
    let stage = ManualSetup::new().await;
    let page = json!({"mode": "url", "message": "m", "url": "https://a.example/"});
    for (declared, method, params, code) in
        [(json!({}), "sampling/createMessage", json!({}), -32601), (json!({"elicitation": {}}), ASK, page, -32602)]
    {
        let person = SessionUser::meet(&stage.gate, "2025-11-25", &declared).await;
        let task = person.start().await["taskId"].clone();
        let call = stage.call().await;
        call.ask(&json!(method), method, &params);
        assert_eq!(answer_at(&stage, json!(method)).await["error"]["code"], code, "{method}");
        assert_eq!(person.task(&task).await["status"], "working");
    }
}

/// B129: a response that is no answer to its question is taken, and is a refusal.
#[tokio::test]
async fn b129_a_response_that_is_no_answer_to_its_question_is_a_refusal() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let sampled = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "t"}});
    let elicited = json!({"action": "accept", "content": {"n": 1}});
    for (n, (method, said, fits)) in [
        (ASK, json!({"action": "maybe"}), false),
        (ASK, json!({"action": "accept", "content": [1]}), false),
        (ASK, json!({}), false),
        (ASK, sampled.clone(), false),
        (ASK, elicited.clone(), true),
        ("sampling/createMessage", elicited, false),
        ("sampling/createMessage", sampled, true),
        ("roots/list", json!({"roots": {}}), false),
        ("roots/list", json!({"roots": []}), true),
    ]
    .into_iter()
    .enumerate()
    {
        let params = if method == ASK { form() } else { json!({}) };
        call.ask(&json!(n), method, &params);
        person.until(&task, "input_required").await;
        let (_stream, question) = {
            let mut stream = SessionMessages::of(person.result(4, &task).await);
            let question = stream.next_of(method).await;
            (stream, question)
        };
        person.respond(&question["id"], &said).await;
        let heard = answer_at(&stage, json!(n)).await;
        let expected = if fits { (&said, &Value::Null) } else { (&Value::Null, &json!(-32602)) };
        assert_eq!((&heard["result"], &heard["error"]["code"]), expected, "{method} {said}");
        person.until(&task, "working").await;
    }
}

/// An id of the gateway's own that stands for no question is taken, and goes nowhere.
#[tokio::test]
async fn an_answer_to_no_question_goes_nowhere() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    person.start().await;
    let made = stage.call().await.seen;
    let own = format!("{}:0123", made.id().rsplit_once(':').unwrap().0);
    person.respond(&json!(own), &json!({})).await;
    assert_eq!(stage.server.world.all(|seen| seen.body["id"] == own.as_str()).len(), 0);
}
