//! `auto`: the form of a call when its grace period ends (GW-32, GW-34).

use serde_json::{Value, json};
use taskgate::face::http::AcceptedTypes;
use taskgate::store::TaskStore;

use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

/// The texts of a `CallToolResult`.
fn said(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

#[tokio::test(start_paused = true)]
async fn a_result_within_the_grace_stays_plain_and_no_row_ever_existed() {
    for after in [millis(0), millis(1), GRACE - millis(1), GRACE] {
        let world = World::with(Rules::default(), Script::returns(after, "done"));
        let answer = world.send(&Ask::call()).await;
        assert_eq!((answer.at, answer.status), (after, 200));
        let result = answer.json().await["result"].take();
        assert_eq!((said(&result), &result["resultType"]), ("done", &json!("complete")), "after {after:?}");
        assert_eq!(world.upstream.saw(), [Saw::Begin { call: 0, rows: 0 }, Saw::Drop(0)]);
        assert_eq!(world.store.inserted(), 0);
        world.is_idle().await;
    }
}

/// EXT-07, EXT-12, EXT-15, EXT-18, EXT-21, EXT-24, EXT-31.
#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_grace_the_client_gets_a_handle_that_can_be_read_at_once() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let answer = world.send(&Ask::call()).await;
    assert_eq!((answer.at, answer.status, answer.is_stream()), (GRACE, 200, false));
    let handle = answer.json().await["result"].take();
    assert_eq!(handle["resultType"], "task");
    let members: Vec<_> = handle.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["_meta", "createdAt", "lastUpdatedAt", "pollIntervalMs", "resultType", "status", "taskId", "ttlMs"];
    let mut sorted = members.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    let id = handle["taskId"].as_str().unwrap();
    assert_eq!(world.get(id).await["status"], "working");
    let task = world.settled(id).await;
    assert_eq!((task["status"].as_str(), said(&task["result"])), (Some("completed"), "done"));
    assert_eq!(task["resultType"], "complete");
    assert_eq!(world.upstream.saw(), [Saw::Begin { call: 0, rows: 0 }, Saw::Drop(0)]);
    world.is_idle().await;
}

/// T-55, GW-34: the client gets each event of the grace period as it comes, and its answer or its handle last.
#[tokio::test(start_paused = true)]
async fn progress_and_logs_of_the_grace_go_out_at_once_and_the_answer_or_the_handle_comes_last() {
    for (returns, is_task) in [(millis(1_500), false), (seconds(9), true)] {
        let progress = (1_u32..=20).map(|n| (millis(10 * u64::from(n)), Happens::Progress(f64::from(n), "")));
        let mut chatty: Vec<_> = progress.collect();
        chatty.extend([
            (millis(300), Happens::Log("info")),
            (GRACE + millis(100), Happens::Log("info")),
            (returns, Happens::Returns(result("done"))),
        ]);
        let chatty = chatty.into_iter().filter(|(at, _)| *at <= returns);
        let world = World::with(Rules::default(), Script::of(chatty));
        let answer = world.send(&Ask::call().token(7).log_level("debug")).await;
        assert_eq!((answer.at, answer.is_stream()), (millis(10), true), "the first progress");
        let events = answer.events().await;
        let (last, before) = events.split_last().unwrap();
        let (log, progress) = before.split_last().unwrap();
        let values: Vec<_> = progress.iter().map(|(_, event)| event["params"]["progress"].as_f64().unwrap()).collect();
        assert_eq!(values, (1..=20).map(f64::from).collect::<Vec<_>>());
        assert!(progress.iter().all(|(_, event)| event["params"]["progressToken"] == 7));
        assert_eq!((&log.1["method"], log.0), (&json!("notifications/message"), millis(300)));
        let result = &last.1["result"];
        assert_eq!(result["resultType"], if is_task { "task" } else { "complete" });
        assert_eq!(last.0, if is_task { GRACE } else { returns });
        if is_task {
            assert_eq!(result["statusMessage"], "20.0/10");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fast_call_without_progress_is_answered_with_json() {
    let world = World::with(Rules::default(), Script::returns(millis(5), "done"));
    for (accepted, is_stream) in
        [(AcceptedTypes::Both, false), (AcceptedTypes::Json, false), (AcceptedTypes::EventStream, true)]
    {
        let answer = world.send(&Ask::call().accepting(accepted)).await;
        assert_eq!(answer.is_stream(), is_stream, "{accepted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_progress_becomes_the_message_of_the_handle() {
    let chatty = [
        (millis(10), Happens::Progress(1.0, "one")),
        (millis(20), Happens::Progress(2.0, "two")),
        (millis(30), Happens::Log("error")),
    ];
    let world = World::with(Rules::default(), Script::of(chatty));
    let answer = world.send(&Ask::call()).await;
    let handle = answer.json().await["result"].take();
    assert_eq!(handle["statusMessage"], "two");
    assert_eq!(world.get(handle["taskId"].as_str().unwrap()).await["statusMessage"], "two");
}

#[tokio::test(start_paused = true)]
async fn the_grace_counts_from_the_arrival_of_the_request() {
    let world = World::with(Rules::default(), Script::silent());
    let answer = world.send(&Ask::call().arrived_before(millis(1_400))).await;
    assert_eq!(answer.at, millis(600));
    let world = World::with(Rules::default(), Script { begins_after: seconds(5), ..Script::silent() });
    let answer = world.send(&Ask::call()).await;
    assert_eq!(answer.at, GRACE, "a slow handshake counts too");
}

#[tokio::test(start_paused = true)]
async fn the_grace_runs_while_the_call_waits_for_a_slot_and_its_task_is_shown_working() {
    let rules = Rules { in_flight_max: 1, ..Rules::default() };
    let world = World::with(rules, Script::returns(seconds(6), "done"));
    let first = world.handle(&Ask::call()).await;
    let waiting = world.send(&Ask::call()).await;
    assert_eq!(waiting.at, GRACE * 2);
    let handle = waiting.json().await["result"].take();
    assert_eq!(handle["status"], "working");
    let second = handle["taskId"].as_str().unwrap();
    assert_eq!(world.upstream.calls().len(), 1, "certainly not sent");
    assert_eq!(world.get(second).await["status"], "working");
    assert_eq!(world.settled(&first).await["status"], "completed");
    assert_eq!(said(&world.settled(second).await["result"]), "done");
    world.is_idle().await;
}

/// GW-33: if the insert fails, the call stays plain and is held.
#[tokio::test(start_paused = true)]
async fn with_a_full_store_the_call_stays_plain_and_is_held() {
    let rules = Rules { stored_bytes_max: 0, ..Rules::default() };
    let chatty = [(millis(10), Happens::Progress(1.0, "one")), (seconds(30), Happens::Returns(result("done")))];
    let world = World::with(rules, Script::of(chatty));
    let answer = world.send(&Ask::call().token(1)).await;
    assert_eq!(answer.at, millis(10), "as it comes");
    let events: Vec<_> = answer.events().await.into_iter().filter(|(_, event)| !event.is_null()).collect();
    assert_eq!(events[0].1["params"]["message"], "one");
    let (at, last) = events.last().unwrap();
    assert_eq!((*at, said(&last["result"])), (seconds(30), "done"));
    assert_eq!(world.store.usage().tasks, 0);
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// A plain call waits at most `queue_deadline` for its slot (GW-35), also one that was to be a task.
#[tokio::test(start_paused = true)]
async fn a_call_that_could_not_become_a_task_does_not_wait_for_ever_for_its_slot() {
    let rules = Rules { in_flight_max: 1, stored_bytes_max: 0, ..Rules::default() };
    let world = World::with(rules, Script::silent());
    let _held = world.client(&Ask::call());
    tokio::time::sleep(millis(1)).await;
    let answer = world.send(&Ask::call()).await;
    assert_eq!(answer.status, 503);
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "queue_deadline", "{error}");
    assert_eq!(error["data"]["executed"], "no");
    assert_eq!(world.upstream.calls().len(), 1);
}
