//! Bad input, with its exact answers; nothing comes of it.

use serde_json::{Value, json};

use super::talk::{ManualSetup, SessionUser};
use super::{TASK, called, person, setup};

const BAD_ID: &str = "Invalid params: taskId must be a string of 1 to 256 characters without control characters";
const BAD_SPAN: &str = "Invalid params: keepAlive must be a number of milliseconds, 0 or more, or null";
const BAD_CURSOR: &str = "Invalid params: cursor is not one that was given for this list";

async fn check(person: &SessionUser, method: &str, params: &Value, code: i32, message: &str) {
    let answer = person.answered(method, params).await;
    assert_eq!(answer["error"], json!({"code": code, "message": message}), "{method} {params}");
}

async fn nothing_was_made(stage: &ManualSetup, person: &SessionUser) {
    assert_eq!(person.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
    assert_eq!(stage.server.world.count("tools/call"), 0);
}

/// D86-04, D86-13, D86-23, D86-31.
#[tokio::test]
async fn d86_04_23_31_an_unreadable_member_is_refused_by_its_name() {
    let long = "x".repeat(257);
    let ids = [
        json!(""),
        json!(long),
        json!("ö".repeat(257)),
        json!("a\u{0}b"),
        json!("a\nb"),
        json!("\u{7f}"),
        json!("\u{85}"),
        json!(7),
        json!(null),
        json!(true),
        json!(["a"]),
        json!({"id": "a"}),
    ];
    let spans = [json!(-1), json!(-0.5), json!("5"), json!(""), json!(true), json!({}), json!([5]), json!("1e18")];
    for version in ["2025-03-26", "2025-11-25"] {
        let stage = setup().await;
        let person = person(&stage, version).await;
        for id in &ids {
            check(&person, "tools/call", &called(&json!({"taskId": id})), -32602, BAD_ID).await;
            for method in ["tasks/get", "tasks/result", "tasks/delete", "tasks/cancel"] {
                check(&person, method, &json!({"taskId": id}), -32602, BAD_ID).await;
            }
        }
        for span in &spans {
            let wish = json!({"taskId": "mine", "keepAlive": span});
            check(&person, "tools/call", &called(&wish), -32602, BAD_SPAN).await;
        }
        for method in ["tasks/get", "tasks/result", "tasks/delete", "tasks/cancel"] {
            check(&person, method, &json!({}), -32602, BAD_ID).await;
            check(&person, method, &json!({"taskId": "unknown"}), -32602, "Task not found").await;
        }
        for cursor in [json!(""), json!("next"), json!("chosen."), json!("chosen.next"), json!(7)] {
            check(&person, "tasks/list", &json!({"cursor": cursor}), -32602, BAD_CURSOR).await;
        }
        let mut named = called(&json!({"taskId": "mine"}));
        named["_meta"]["io.taskgate/idempotency-key"] = json!("key");
        let twice = "Invalid params: a call with a taskId takes no idempotency key: the taskId serves as one";
        check(&person, "tools/call", &named, -32602, twice).await;
        let cased = json!({"name": "work", "Task": {}, "_meta": {TASK: {"taskId": "mine"}}});
        check(&person, "tools/call", &cased, -32602, "Invalid params: task is spelt in another case").await;
        let nameless = json!({"_meta": {TASK: {"taskId": "mine"}}});
        let unnamed = "Invalid params: name must be a string without null characters";
        let answer = person.answered("tools/call", &nameless).await;
        assert_eq!(answer["error"], json!({"code": -32602, "message": unnamed}), "{version}");
        nothing_was_made(&stage, &person).await;
    }
}

/// T-37, D86-01: a call that asks for no task is answered plainly.
#[tokio::test]
async fn t_37_a_wish_without_an_id_is_none() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    for wish in [json!({}), json!({"keepAlive": -1}), json!(null), json!("mine"), json!([]), json!({"taskid": "mine"})]
    {
        let reply = person.client.connections.spawn({
            let (person, wish) = (person.clone(), wish.clone());
            async move { person.request(4, "tools/call", &called(&wish)).await.text().await }
        });
        stage.call().await.answer(&json!({"content": [], "n": 1}));
        let text = super::upstream::in_time(reply).await.unwrap();
        assert!(text.contains("\"n\":1") && !text.contains("modelcontextprotocol.io"), "{wish}: {text}");
    }
    assert_eq!(person.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
}

/// D86-13, D86-29: the granted span is shown, and is capped; D86-04: any other text is an id.
#[tokio::test]
async fn d86_13_29_a_span_is_capped_and_the_granted_one_is_shown() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\nttl_max = \"48h\"\n").await;
    let person = person(&stage, "2025-06-18").await;
    let day = 86_400_000_u64;
    for (id, span, holds) in [
        ("none", None, 900_000),
        ("0", Some("0"), 0),
        ("half", Some("1.5"), 1),
        ("a b", Some("60000"), 60_000),
        ("null", Some("null"), 2 * day),
        ("ö/../\"{}", Some("1000000000000000000"), 2 * day),
        ("1e300", Some("1e300"), 2 * day),
    ] {
        let wish = match span {
            Some(span) => format!("{{\"taskId\":{},\"keepAlive\":{span}}}", json!(id)),
            None => json!({"taskId": id}).to_string(),
        };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{{"name":"work","_meta":{{"{TASK}":{wish}}}}}}}"#
        );
        let reply = person.client.post(body).await;
        assert_eq!(reply.header("content-type"), Some("text/event-stream"), "{id}: it is a task");
        let _call = stage.call().await;
        assert_eq!(person.task(&json!(id)).await["keepAlive"], holds, "{id}");
        drop(reply);
    }
    for id in ["x".repeat(256), "ö".repeat(256)] {
        drop(super::begun(&person, 4, &id).await);
        assert_eq!(person.task(&json!(id)).await["taskId"], json!(id));
    }
}
