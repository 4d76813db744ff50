//! Filtered lists of tasks (SEP-1904).

use serde_json::{Value, json};

use super::client::initialize;
use super::talk::{ManualSetup, SessionUser};

const DRAFT: &str = "[upstreams.up.tasks]\ndrafts = [\"sep-1904\"]";

async fn tasks_offered(stage: &ManualSetup, version: &str) -> Value {
    let opened = stage.gate.client_without_session().post(initialize(version, &json!({}))).await.json().await;
    opened["result"]["capabilities"]["tasks"].clone()
}

/// FIL-01.
#[tokio::test]
async fn fil_01_filters_are_offered_where_they_are_honoured_alone() {
    let filter = json!({
        "methods": ["tools/call"],
        "taskIds": true,
        "status": true,
        "createdAt": {"before": true, "after": true},
        "lastUpdatedAt": {"before": true, "after": true},
        "order": {"by": ["createdAt", "lastUpdatedAt"], "direction": ["asc", "desc"]},
    });
    let with = ManualSetup::with(DRAFT).await;
    assert_eq!(tasks_offered(&with, "2025-11-25").await["list"], json!({"filter": filter}));
    assert_eq!(tasks_offered(&with, "2025-06-18").await, Value::Null);
    let without = ManualSetup::new().await;
    assert_eq!(tasks_offered(&without, "2025-11-25").await["list"], json!({}));
}

async fn listed(person: &SessionUser, params: &Value) -> Value {
    person.answered("tasks/list", params).await["result"].clone()
}

fn ids(page: &Value) -> Vec<Value> {
    page["tasks"].as_array().unwrap_or_else(|| panic!("{page}")).iter().map(|task| task["taskId"].clone()).collect()
}

/// Three tasks in order of creation, which end in the reverse order: done, failed, cancelled. A settled task changes no more.
async fn three(stage: &ManualSetup, person: &SessionUser) -> [Value; 3] {
    let mut made = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..3 {
        made.push(person.start().await["taskId"].clone());
        calls.push(stage.call().await);
        next_millisecond().await;
    }
    person.answered("tasks/cancel", &json!({"taskId": made[2]})).await;
    next_millisecond().await;
    calls.remove(1).answer(&json!({"content": [], "isError": true}));
    person.until(&made[1], "failed").await;
    next_millisecond().await;
    calls.remove(0).answer(&json!({"content": []}));
    person.until(&made[0], "completed").await;
    made.try_into().unwrap()
}

/// Times that are compared differ.
async fn next_millisecond() {
    tokio::time::sleep(std::time::Duration::from_millis(3)).await;
}

/// FIL-04, FIL-06.
#[tokio::test]
async fn fil_04_06_a_list_has_the_tasks_and_the_order_that_the_client_asked_for() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = stage.person().await;
    let [done, failed, cancelled] = three(&stage, &person).await;
    let created = person.task(&failed).await["createdAt"].clone();
    let all = [&done, &failed, &cancelled];
    let reversed = [&cancelled, &failed, &done];
    let rows: [(Value, Vec<&Value>); 16] = [
        (json!({}), all.to_vec()),
        (json!({"order": "desc"}), all.to_vec()),
        (json!({"order": "asc"}), reversed.to_vec()),
        (json!({"orderBy": "createdAt"}), reversed.to_vec()),
        (json!({"orderBy": "createdAt", "order": "asc"}), all.to_vec()),
        (json!({"filter": {"orderBy": "createdAt", "order": "desc"}, "order": "asc"}), all.to_vec()),
        (json!({"status": ["failed"]}), vec![&failed]),
        (json!({"status": ["completed", "cancelled"]}), vec![&done, &cancelled]),
        (json!({"status": ["working", "input_required"]}), vec![]),
        (json!({"methods": ["tools/call"], "status": ["failed"]}), vec![&failed]),
        (json!({"methods": ["sampling/createMessage"]}), vec![]),
        (json!({"taskIds": [failed, done, "no id"]}), vec![&done, &failed]),
        (json!({"taskIds": [failed, done], "status": ["completed"]}), vec![&done]),
        (json!({"createdAfter": created}), vec![&cancelled]),
        (json!({"createdBefore": created}), vec![&done]),
        (json!({"filter": {"lastUpdatedAfter": created}, "orderBy": "createdAt"}), reversed.to_vec()),
    ];
    for (params, expected) in rows {
        let page = listed(&person, &params).await;
        assert_eq!(ids(&page).iter().collect::<Vec<_>>(), expected, "{params}");
        assert_eq!(page.get("nextCursor"), None);
    }
    assert_eq!(stage.server.world.count("tasks/list"), 0, "FIL-08, FIL-09: no server is asked");
}

/// FIL-11, T-42: pages in order of the last change, each task once, and their cursors for no other list.
#[tokio::test]
async fn fil_11_a_cursor_of_another_filter_or_order_is_refused() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = stage.person().await;
    for _ in 0..60 {
        person.start().await;
    }
    let wanted = json!({"status": ["working"]});
    let page = listed(&person, &wanted).await;
    let cursor = page["nextCursor"].clone();
    let mut all = ids(&page);
    assert_eq!(all.len(), 50);
    let rest = listed(&person, &json!({"filter": wanted, "cursor": cursor})).await;
    all.extend(ids(&rest));
    all.sort_by_key(Value::to_string);
    all.dedup();
    assert_eq!((all.len(), rest.get("nextCursor")), (60, None));
    let plain = listed(&person, &json!({})).await["nextCursor"].clone();
    let rows = [
        json!({"cursor": cursor}),
        json!({"cursor": cursor, "status": ["working"], "order": "asc"}),
        json!({"cursor": cursor, "status": ["working"], "orderBy": "createdAt"}),
        json!({"cursor": cursor, "status": ["working", "failed"]}),
        json!({"cursor": plain, "status": ["working"]}),
        json!({"cursor": "", "status": ["working"]}),
    ];
    for params in rows {
        let error = person.answered("tasks/list", &params).await["error"].clone();
        let message = "Invalid params: cursor is not one that was given for this list";
        assert_eq!(error, json!({"code": -32602, "message": message}), "{params}");
    }
}

/// T-41: an invalid value of a criterion is refused by its name, in either place, and nothing changes.
#[tokio::test]
async fn t_41_criteria_that_cannot_be_meant_are_refused_by_name() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = stage.person().await;
    let task = person.start().await["taskId"].clone();
    let before = listed(&person, &json!({})).await;
    let many = vec!["x"; 101];
    let status = "status must be an array of at most 100 of \"working\", \"input_required\", \"completed\", \
                  \"failed\" and \"cancelled\"";
    let methods = "methods must be an array of at most 100 strings";
    let ids_ = "taskIds must be an array of at most 100 strings";
    let time = |name: &str| format!("{name} must be an ISO 8601 date, time and zone");
    let rows: Vec<(&str, Value, String)> = vec![
        ("status", json!("working"), status.to_owned()),
        ("status", json!(["done"]), status.to_owned()),
        ("status", json!(["working", 7]), status.to_owned()),
        ("status", json!(["Working"]), status.to_owned()),
        ("status", json!(null), status.to_owned()),
        ("status", json!({}), status.to_owned()),
        ("status", json!(vec!["working"; 101]), status.to_owned()),
        ("methods", json!("tools/call"), methods.to_owned()),
        ("methods", json!([null]), methods.to_owned()),
        ("methods", json!([["tools/call"]]), methods.to_owned()),
        ("methods", json!(many), methods.to_owned()),
        ("taskIds", json!(task), ids_.to_owned()),
        ("taskIds", json!([1]), ids_.to_owned()),
        ("taskIds", json!(many), ids_.to_owned()),
        ("createdAfter", json!("2026-07-28T00:00:00"), time("createdAfter")),
        ("createdAfter", json!("2026-07-28"), time("createdAfter")),
        ("createdAfter", json!(1_785_196_800), time("createdAfter")),
        ("createdBefore", json!("2026-02-30T00:00:00Z"), time("createdBefore")),
        ("createdBefore", json!(null), time("createdBefore")),
        ("lastUpdatedAfter", json!(""), time("lastUpdatedAfter")),
        ("lastUpdatedAfter", json!(["2026-07-28T00:00:00Z"]), time("lastUpdatedAfter")),
        ("lastUpdatedBefore", json!("2026-07-28T25:00:00Z"), time("lastUpdatedBefore")),
        ("orderBy", json!("ttl"), "orderBy must be \"createdAt\" or \"lastUpdatedAt\"".to_owned()),
        ("orderBy", json!(["createdAt"]), "orderBy must be \"createdAt\" or \"lastUpdatedAt\"".to_owned()),
        ("order", json!("ASC"), "order must be \"asc\" or \"desc\"".to_owned()),
        ("order", json!(true), "order must be \"asc\" or \"desc\"".to_owned()),
        ("filter", json!([]), "filter must be an object".to_owned()),
        ("filter", json!(null), "filter must be an object".to_owned()),
    ];
    for (name, value, complaint) in rows {
        let mut params = vec![json!({ name: value })];
        if name != "filter" {
            params.push(json!({"filter": { name: value }}));
        }
        for params in params {
            let error = person.answered("tasks/list", &params).await["error"].clone();
            let message = format!("Invalid params: {complaint}");
            assert_eq!(error, json!({"code": -32602, "message": message}), "{params}");
        }
    }
    assert_eq!(listed(&person, &json!({})).await, before);
}

/// FIL-07: off means off.
#[tokio::test]
async fn fil_07_without_the_draft_criteria_change_nothing() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let made = [person.start().await["taskId"].clone(), person.start().await["taskId"].clone()];
    let plain = listed(&person, &json!({})).await;
    let rows = [
        json!({"status": ["failed"], "orderBy": "lastUpdatedAt", "order": "desc"}),
        json!({"filter": {"taskIds": []}}),
        json!({"filter": 7, "createdAfter": "never", "status": "none"}),
    ];
    for params in rows {
        assert_eq!(listed(&person, &params).await, plain, "{params}");
    }
    let mut listed = ids(&plain);
    listed.sort_by_key(Value::to_string);
    let mut made = made.to_vec();
    made.sort_by_key(Value::to_string);
    assert_eq!(listed, made);
}
