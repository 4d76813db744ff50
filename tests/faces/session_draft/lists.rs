//! Lists of a session's tasks, beside those of 2025-11-25.

use serde_json::{Value, json};

use super::talk::ManualSetup;
use super::{RELATED, TASK, begun, person, setup};

fn ids(page: &Value) -> Vec<&str> {
    page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap()).collect()
}

/// D86-20 to D86-22, D86-27: all tasks of the session, and no others.
#[tokio::test]
async fn d86_20_21_22_a_list_has_each_task_of_its_session_once_over_its_pages() {
    let stage = setup().await;
    let (one, other) = (person(&stage, "2025-06-18").await, person(&stage, "2025-06-18").await);
    let mut streams = Vec::new();
    for number in 0..120 {
        streams.push(begun(&one, 4 + number, &format!("mine-{number}")).await);
        if number % 10 == 0 {
            streams.push(begun(&other, 4 + number, &format!("theirs-{number}")).await);
        }
    }
    let (mut listed, mut cursor, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let page = one.answered("tasks/list", &cursor).await["result"].clone();
        listed.extend(ids(&page).into_iter().map(str::to_owned));
        pages += 1;
        match page.get("nextCursor") {
            Some(next) => cursor = json!({"cursor": next}),
            None => break,
        }
    }
    assert!(pages > 1, "{pages}");
    let foreign = other.answered("tasks/list", &cursor).await;
    assert_eq!(foreign["error"]["code"], -32602, "D86-23: a cursor of another session's list");
    assert_eq!(listed, (0..120).map(|number| format!("mine-{number}")).collect::<Vec<_>>());
    let foreign = other.answered("tasks/get", &json!({"taskId": "mine-0"})).await;
    assert_eq!(foreign["error"], json!({"code": -32602, "message": "Task not found"}), "D86-27");
}

/// T-37, T-66, T-35: a session of 2025-11-25 may use both flavours; no task is seen in the other's words. L25-35: its list has
/// both, page by page.
#[tokio::test]
async fn t_37_t_66_both_flavours_can_be_used_in_one_session() {
    let stage = setup().await;
    let person = person(&stage, "2025-11-25").await;
    let core = person.start().await["taskId"].clone();
    let _call = stage.call().await;
    let listed = person.answered("tasks/list", &json!({})).await["result"].clone();
    assert_eq!(ids(&listed), [core.as_str().unwrap()], "no task under a chosen id is there");
    assert!(listed["tasks"][0].get("createdAt").is_some());
    let _stream = begun(&person, 4, "mine").await;
    let _call = stage.call().await;
    let listed = person.answered("tasks/list", &json!({})).await["result"].clone();
    assert_eq!((ids(&listed), listed["tasks"][0].get("createdAt")), (vec!["mine"], None));
    let rest = person.answered("tasks/list", &json!({"cursor": listed["nextCursor"]})).await["result"].clone();
    assert_eq!((ids(&rest), rest.get("nextCursor")), (vec![core.as_str().unwrap()], None));
    assert!(rest["tasks"][0].get("createdAt").is_some());
    assert!(person.task(&core).await.get("createdAt").is_some());
    assert_eq!(person.task(&json!("mine")).await["_meta"], json!({RELATED: {"taskId": "mine"}}));
    let both = json!({"name": "work", "task": {}, "_meta": {TASK: {"taskId": "other"}}});
    let handle = person.start_with(&both).await;
    assert_eq!(handle["taskId"].as_str().unwrap().len(), 32, "T-37: that of 2025-11-25 counts");
    assert_eq!(person.answered("tasks/get", &json!({"taskId": "other"})).await["error"]["code"], -32602);
    let other = super::person(&stage, "2025-11-25").await;
    let listed = other.answered("tasks/list", &json!({})).await["result"].clone();
    assert_eq!(ids(&listed), [core.as_str().unwrap(), handle["taskId"].as_str().unwrap()], "T-66");
    assert_eq!(listed.get("nextCursor"), None);
}

/// SEP-1904 is about the list of 2025-11-25 alone, and so is a filter in a session that uses both flavours.
#[tokio::test]
async fn a_filter_is_for_tasks_of_2025_11_25_where_a_session_has_both() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\ndrafts = [\"sep-1686\", \"sep-1904\"]\n").await;
    let person = person(&stage, "2025-11-25").await;
    let core = person.start().await["taskId"].clone();
    let _call = stage.call().await;
    let _stream = begun(&person, 4, "mine").await;
    for (wanted, found) in [
        (json!({"status": ["working"]}), vec![core.as_str().unwrap()]),
        (json!({"status": ["completed"]}), Vec::new()),
        (json!({"filter": {"taskIds": ["mine"]}}), Vec::new()),
        (json!({}), vec!["mine"]),
    ] {
        let page = person.answered("tasks/list", &wanted).await["result"].clone();
        assert_eq!(ids(&page), found, "{wanted}");
    }
}
