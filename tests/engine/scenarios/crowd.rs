//! Many tasks at once: each client reads its own, and all others are absent (SEC-01, SEC-03, B121).

use futures_util::future::join_all;
use serde_json::json;
use taskgate::store::TaskStore;
use taskgate::task::Principal;

use super::script::{Call, Script};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

const CROWD: u64 = 1_000;

/// Returns the nonce that the call came with, the later the smaller it is, so that calls end against their order.
fn echo(call: &Call) -> Script {
    let params: serde_json::Value = serde_json::from_str(&call.params).unwrap();
    let nonce = params["arguments"]["nonce"].as_u64().unwrap();
    Script::returns(GRACE + millis(1 + (CROWD - nonce) * 7 % 5_000), &format!("nonce-{nonce}"))
}

fn owner(n: u64) -> String {
    format!("key:{}", n % 20)
}

/// All use the same two request ids.
fn ask(n: u64) -> Ask {
    Ask::call().arguments(json!({ "nonce": n })).principal(&owner(n)).id(n % 2)
}

#[tokio::test(start_paused = true)]
async fn a_thousand_tasks_at_once_each_reach_their_owner_alone() {
    let world = World::choosing(Rules::default(), echo);
    let handles = join_all((0..CROWD).map(|n| world.client(&ask(n)))).await;
    let mut ids = Vec::new();
    for (n, handle) in (0..CROWD).zip(handles) {
        let answer = handle.unwrap().json().await;
        assert_eq!(answer["id"], n % 2);
        ids.push(answer["result"]["taskId"].as_str().unwrap().to_owned());
    }
    assert_eq!(world.engine.permits_taken(), ids.len());
    tokio::time::sleep(seconds(10)).await;
    for (n, id) in (0..CROWD).zip(&ids) {
        let own = world.send(&Ask::task("tasks/get", id).principal(&owner(n))).await.json().await;
        assert_eq!(own["result"]["result"]["content"][0]["text"], format!("nonce-{n}"));
    }
    assert_eq!(world.engine.permits_taken(), 0);
    assert_eq!(world.store.usage_of(&Principal::new("key:0")).tasks, 50);
    world.is_idle().await;
}

/// SEC-01, B121, EXT-33, EXT-38, EXT-45, EXT-65, EXT-66, MOD-35: the owner is part of the key.
/// MOD-34.
/// L25-49, L25-50: all flavours share the key.
#[tokio::test(start_paused = true)]
async fn another_principals_task_is_answered_byte_for_byte_like_an_unknown_one() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let theirs = world.handle(&Ask::call().principal("key:theirs")).await;
    let unknown = "0123456789abcdef0123456789abcdef";
    for wait in [seconds(0), seconds(10)] {
        tokio::time::sleep(wait).await;
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let ask = |id| Ask::task(method, id).principal("key:mine").member("inputResponses", json!({}));
            let (foreign, never) = (world.send(&ask(&theirs)).await, world.send(&ask(unknown)).await);
            assert_eq!((foreign.status, &foreign.headers), (never.status, &never.headers));
            let (foreign, never) = (foreign.text().await, never.text().await);
            assert_eq!(foreign, never);
            assert_eq!(foreign, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Task not found"}}"#);
        }
    }
    let own = world.send(&Ask::task("tasks/get", &theirs).principal("key:theirs")).await.json().await;
    assert_eq!(own["result"]["status"], "completed", "nothing that others did touched it");
    world.is_idle().await;
}

/// B105, SEC-03: plain calls, equal ids, answers in the opposite order.
#[tokio::test(start_paused = true)]
async fn equal_request_ids_are_answered_each_on_its_own_response() {
    let world = World::choosing(Rules::default(), |call: &Call| {
        let params: serde_json::Value = serde_json::from_str(&call.params).unwrap();
        let nonce = params["arguments"]["nonce"].as_u64().unwrap();
        Script::returns(millis(1_000 - nonce), &format!("nonce-{nonce}"))
    });
    let answers = join_all((0..200).map(|n| world.client(&ask(n)))).await;
    for (n, answer) in (0..200_u64).zip(answers) {
        let answer = answer.unwrap();
        assert_eq!(answer.at, millis(1_000 - n));
        let answer = answer.json().await;
        assert_eq!(
            (&answer["id"], &answer["result"]["content"][0]["text"]),
            (&json!(n % 2), &json!(format!("nonce-{n}")))
        );
    }
    world.is_idle().await;
}
