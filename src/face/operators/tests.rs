//! The lists that operators see, and the bound of one request's work.

use std::time::Duration;

use super::*;
use crate::engine::SURVEY_MAX;
use crate::shared_limits::SharedLimits;
use crate::store::{MemoryStore, TaskStore as _, contract};
use crate::task::{ManualClock, Outcome, Phase, TaskVisibility, TreeLinks};

/// An endpoint with this many tasks, the first of which is the oldest.
async fn operators(tasks: usize) -> Operators {
    let store = Arc::new(MemoryStore::new(1 << 30));
    for number in 0..tasks {
        let task = contract::task("key:ada", number as u128);
        let created_at = task.created_at.after(Duration::from_millis(number as u64));
        store.insert(&Task { created_at, ..task }).await.unwrap();
    }
    over(store)
}

fn over(store: Arc<MemoryStore>) -> Operators {
    let clock = Arc::new(ManualClock::at(contract::task("key:ada", 0).created_at));
    let engine = Engine::new(store, clock, Box::new(|| 7), 1, SharedLimits::default());
    Operators::new(engine, Box::new(|| unreachable!("no operator asks for the process state")))
}

/// The second line of the page, and of `taskgate status`: a full disk leaves the gateway ready.
#[test]
fn the_status_page_shows_the_lines_of_readyz() {
    let line = |reasons: &[&'static str], limits: &[&'static str]| {
        let (ready, tasks) =
            (reasons.is_empty(), TaskTotals { kept: 0, bytes: 0, bytes_max: 1, unsettled: 0, permits_taken: 0 });
        let (reasons, limits, held_calls) = (reasons.to_vec(), limits.to_vec(), HeldCalls { count: 0, calls: vec![] });
        let (version, replicas, upstreams) = ("1", vec![], vec![]);
        let page = ProcessStatus { version, ready, reasons, limits, tasks, held_calls, replicas, upstreams };
        page.to_string().lines().nth(1).unwrap().to_owned()
    };
    assert_eq!(line(&[], &[]), "ready");
    assert_eq!(line(&[], &["store full"]), "ready: store full");
    assert_eq!(line(&["draining", "store slow"], &["store full"]), "not ready: draining, store slow, store full");
}

/// Neither a filter with hardly any match nor an id makes a request examine the whole store.
#[tokio::test]
async fn one_request_looks_at_a_bounded_number_of_tasks_and_says_where_to_go_on() {
    let operators = operators(SURVEY_MAX + 1).await;
    let Ok(page) = operators.list(Some("state=failed")).await else { panic!("a page") };
    assert!(page.tasks.is_empty());
    let Ok(page) = operators.list(Some(&format!("after={}", page.next.unwrap()))).await else { panic!("a page") };
    assert_eq!((page.tasks.len(), page.next), (1, None), "the oldest is left");
    let id = contract::task("key:ada", 0).key.id.to_string();
    let found = async |after: serde_json::Value| {
        let body = serde_json::json!({ "id": id, "after": after });
        serde_json::to_value(operators.find_by_id(body.to_string().as_bytes()).await.ok()).unwrap()
    };
    let first = found(serde_json::Value::Null).await;
    assert!(first["next"].is_string() && first["ref"].is_null(), "{first}");
    let second = found(first["next"].clone()).await;
    assert!(second["ref"].is_string() && second["next"].is_null(), "{second}");
}

/// Four tasks of one owner: 1 is the parent of 2 and 3, and 3 of 4.
async fn with_a_tree() -> Operators {
    let store = Arc::new(MemoryStore::new(1 << 30));
    let rows: [(u128, Option<u128>, &[u128]); 4] =
        [(1, None, &[2, 3]), (2, Some(1), &[]), (3, Some(1), &[4]), (4, Some(3), &[])];
    for (number, parent, children) in rows {
        let id = TaskId::from_bits;
        let tree = TreeLinks { parent: parent.map(id), children: children.iter().map(|child| id(*child)).collect() };
        let phase = if number == 2 { Phase::Settled(Outcome::Cancelled) } else { Phase::Working };
        store.insert(&Task { tree, phase, ..contract::task("key:ada", number) }).await.unwrap();
    }
    over(store)
}

#[tokio::test]
async fn a_task_is_shown_with_its_tree_and_a_list_has_subtasks_once() {
    let operators = with_a_tree().await;
    let json = |answer: Result<_, OperatorError>| match answer {
        Ok(answer) => serde_json::to_value(answer).unwrap(),
        Err(_) => panic!("an answer"),
    };
    let [top, second, third, fourth] =
        [1, 2, 3, 4].map(|id| ShortReference::of(&contract::task("key:ada", id).key).to_string());
    let shown = json(operators.show(&top).await);
    assert_eq!(
        (&shown["ref"], &shown["children"], &shown["client"]),
        (&top.as_str().into(), &2.into(), &"stateless".into())
    );
    let below: Vec<_> = shown["subtasks"].as_array().unwrap().iter().map(|row| (&row["ref"], &row["state"])).collect();
    assert_eq!(below, [(&second.into(), &"cancelled".into()), (&third.as_str().into(), &"working".into())]);
    assert_eq!(shown["subtasks"][1]["subtasks"][0]["ref"], fourth);
    assert_eq!(shown["subtasks"][1]["subtasks"][0]["parent"], third);
    let listed = async |query| {
        let page = match operators.list(query).await {
            Ok(page) => serde_json::to_value(page).unwrap(),
            Err(_) => panic!("a page"),
        };
        page["tasks"].as_array().unwrap().iter().map(|row| row["children"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(None).await, [2]);
    assert_eq!(listed(Some("upstream=demo")).await.len(), 1);
    assert_eq!(listed(Some("principal=ada")).await.len(), 1, "by the id of its key");
    assert_eq!(listed(Some("principal=bob")).await.len(), 0);
    assert_eq!(listed(Some("state=working")).await.len(), 3, "by how they stand each is found");
}

#[tokio::test]
async fn a_part_of_a_task_is_shown_by_the_reference_that_it_has_in_the_tree() {
    let store = Arc::new(MemoryStore::new(1 << 30));
    let (top, part) = (contract::task("key:ada", 1), contract::task("key:ada", 2));
    let below = TreeLinks { parent: Some(top.key.id), ..TreeLinks::default() };
    let above = TreeLinks { children: [part.key.id].into(), ..TreeLinks::default() };
    store.insert(&Task { tree: below, visibility: TaskVisibility::Part, ..part.clone() }).await.unwrap();
    store.insert(&Task { tree: above, ..top.clone() }).await.unwrap();
    let operators = over(store);
    let shown = operators.show(&ShortReference::of(&part.key).to_string()).await;
    let Ok(shown) = shown else { panic!("a task") };
    let parent = ShortReference::of(&top.key).to_string();
    assert_eq!(serde_json::to_value(shown).unwrap()["parent"], parent);
}

#[tokio::test]
async fn a_tree_is_shown_as_far_as_there_is_room_the_nearest_first() {
    let operators = with_a_tree().await;
    let task = operators.engine.load_visible(&contract::task("key:ada", 1).key).await.unwrap();
    let refs = async |limit| {
        let below = operators.engine.subtasks_of(&task.key.owner, &task.tree, limit).await.unwrap();
        below.iter().map(|node| (node.task.key.id.bits(), node.below.len())).collect::<Vec<_>>()
    };
    assert_eq!(refs(1).await, [(2, 0)]);
    assert_eq!(refs(2).await, [(2, 0), (3, 0)]);
    assert_eq!(refs(9).await, [(2, 0), (3, 1)]);
}

#[tokio::test]
async fn settled_subtasks_keep_their_places_and_those_that_do_not_fit_are_left_out() {
    let operators = with_a_tree().await;
    let task = operators.engine.load_visible(&contract::task("key:ada", 1).key).await.unwrap();
    let [found, none] =
        [usize::MAX, 0].map(|bytes_max| operators.engine.settled_subtasks(&task.key.owner, &task.tree, bytes_max));
    let found: Vec<_> = found.await.unwrap().iter().map(|(index, task)| (*index, task.key.id.bits())).collect();
    assert_eq!(found, [(0, 2)]);
    assert!(none.await.unwrap().is_empty());
}

#[test]
fn a_query_is_read_whole_or_refused() {
    let after = Some((Timestamp::from_millis(5), ShortReference([0, 0, 0, 0, 0, 10])));
    let limit = Some(1000);
    let wanted = OperatorTaskQuery::read(Some(
        "upstream=a%20b&principal=ada&state=failed&reason=poison&limit=1000&after=18446744073709551610-00000000000a",
    ));
    let upstream = Some("a b".to_owned());
    assert_eq!(
        wanted,
        Ok(OperatorTaskQuery {
            upstream,
            principal: Some("ada".to_owned()),
            state: Some("failed".to_owned()),
            reason: Some("poison".to_owned()),
            after,
            limit
        })
    );
    assert_eq!(after.map(position_text).as_deref(), Some("18446744073709551610-00000000000a"));
    assert_eq!(OperatorTaskQuery::read(None), Ok(OperatorTaskQuery::default()));
    for wrong in
        ["state=done", "limit=0", "limit=1001", "limit=x", "after=5", "after=5-x", "id=1", "after=x-00000000000a"]
    {
        assert!(OperatorTaskQuery::read(Some(wrong)).is_err(), "{wrong}");
    }
}
