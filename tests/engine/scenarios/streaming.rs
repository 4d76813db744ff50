//! Plain calls with a stream: comments, progress and log messages.

use serde_json::{Value, json};
use taskgate::face::http::AcceptedTypes;
use taskgate::task::TaskMode;

use super::script::{Happens, Script, result};
use super::world::{Ask, Rules, World, millis, seconds};

#[tokio::test(start_paused = true)]
async fn a_silent_call_that_cannot_be_promoted_shows_that_it_lives() {
    let no_place = Rules { tasks_max: 0, ..Rules::default() };
    let full_store = Rules { stored_bytes_max: 0, ..Rules::default() };
    for (rules, first_sign) in [(Rules::mode(TaskMode::Never), 15), (no_place, 15), (full_store, 17)] {
        let world = World::with(rules, Script::returns(seconds(50), "done"));
        let answer = world.send(&Ask::call()).await;
        assert_eq!((answer.at, answer.is_stream()), (seconds(first_sign), true), "{rules:?}");
        assert_eq!(answer.headers["x-accel-buffering"], "no");
        assert!(!answer.headers.contains_key("mcp-session-id"));
        let events = answer.events().await;
        let (last, signs) = events.split_last().unwrap();
        let at: Vec<_> = signs.iter().map(|(at, event)| (at.as_secs(), event.is_null())).collect();
        assert_eq!(at, [(first_sign, true), (first_sign + 15, true), (first_sign + 30, true)]);
        assert_eq!((last.0, &last.1["result"]["content"][0]["text"]), (seconds(50), &json!("done")));
    }
}

/// A client that takes no stream waits in silence, and gets its answer as one body.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_stream_gets_its_answer_alone() {
    let chatty = [(seconds(20), Happens::Progress(1.0, "one")), (seconds(50), Happens::Returns(result("done")))];
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(chatty));
    let answer = world.send(&Ask::call().token(1).accepting(AcceptedTypes::Json)).await;
    assert_eq!((answer.at, answer.is_stream()), (seconds(50), false));
    assert_eq!(answer.json().await["result"]["resultType"], "complete");
}

/// MOD-22, T-73: strictly rising, under the client's token exactly as it is spelt, and none without one.
#[tokio::test(start_paused = true)]
async fn progress_rises_strictly_and_bears_the_clients_token() {
    let chatty = [1.0, 2.5, 2.5, 2.0, 3.0]
        .into_iter()
        .enumerate()
        .map(|(n, progress)| (millis(u64::try_from(n).unwrap()), Happens::Progress(progress, "step")));
    let events: Vec<_> = chatty.chain([(seconds(1), Happens::Returns(result("done")))]).collect();
    for token in [json!("1"), json!(1), json!(0), json!("")] {
        let world = World::with(Rules::mode(TaskMode::Never), Script::of(events.clone()));
        let shown = world.send(&Ask::call().token(token.clone())).await.events().await;
        let (last, progress) = shown.split_last().unwrap();
        let values: Vec<_> = progress.iter().map(|(_, event)| event["params"]["progress"].as_f64().unwrap()).collect();
        assert_eq!(values, [1.0, 2.5, 3.0]);
        assert!(progress.iter().all(|(_, event)| event["params"]["progressToken"] == token));
        assert!(progress.iter().all(|(_, event)| event["params"]["message"] == "step" && event.get("id").is_none()));
        assert!(last.1.get("result").is_some(), "nothing follows the response");
    }
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(events));
    assert!(!world.send(&Ask::call()).await.is_stream(), "no token, no progress");
    assert!(!world.upstream.calls()[0].context.progress, "and none is asked for");
}

fn level(event: &Value) -> Option<&str> {
    event["params"]["level"].as_str()
}

/// MOD-23, MOD-36.
#[tokio::test(start_paused = true)]
async fn log_messages_come_from_the_wanted_level_on_and_only_where_one_is_named() {
    let said = ["debug", "warning", "error", "loud", "info"];
    let chatty = said.into_iter().map(|level| (millis(1), Happens::Log(level)));
    let events: Vec<_> = chatty.chain([(seconds(1), Happens::Returns(result("done")))]).collect();
    for (wanted, shown) in [
        ("debug", &["debug", "warning", "error", "info"][..]),
        ("warning", &["warning", "error"]),
        ("error", &["error"]),
    ] {
        for mode in [TaskMode::Never, TaskMode::Auto] {
            let world = World::with(Rules::mode(mode), Script::of(events.clone()));
            let answer = world.send(&Ask::call().log_level(wanted)).await;
            let all = answer.events().await;
            let levels: Vec<_> = all.iter().filter_map(|(_, event)| level(event)).collect();
            assert_eq!(levels, shown, "{wanted} {mode:?}");
            assert_eq!(all.len(), shown.len() + 1);
            assert_eq!(world.upstream.calls()[0].context.log_level.as_deref(), Some(wanted));
        }
    }
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(events));
    assert!(!world.send(&Ask::call()).await.is_stream());
    assert_eq!(world.send(&Ask::call().log_level("loud")).await.json().await["error"]["code"], -32602);
}

/// MOD-20: once the status is out, an error is an event of the stream.
#[tokio::test(start_paused = true)]
async fn a_question_after_the_first_event_is_refused_in_the_stream() {
    let chatty = [(seconds(1), Happens::Progress(1.0, "one")), (seconds(2), Happens::Asks("sampling/createMessage"))];
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(chatty));
    let answer = world.send(&Ask::call().token(1).id("x")).await;
    assert_eq!(answer.status, 200);
    let events = answer.events().await;
    let last = &events.last().unwrap().1;
    assert_eq!((&last["id"], &last["error"]["code"]), (&json!("x"), &json!(-32021)));
    world.is_idle().await;
}

/// The progress events of a call: their moments and values.
async fn progress_of(rules: Rules, events: impl IntoIterator<Item = (u64, Happens)>) -> Vec<(u64, Option<f64>)> {
    let events = events.into_iter().map(|(at, happens)| (seconds(at), happens));
    let world = World::with(rules, Script::of(events.collect::<Vec<_>>()));
    let shown = world.send(&Ask::call().token("p")).await.events().await;
    let (last, signs) = shown.split_last().unwrap();
    assert!(last.1.get("result").is_some(), "MOD-22: nothing follows the response");
    let value = |event: &Value| {
        assert!(event.is_null() || event["params"]["progressToken"] == "p", "{event}");
        event["params"]["progress"].as_f64()
    };
    signs.iter().map(|(at, event)| (at.as_secs(), value(event))).collect()
}

/// MOD-22, T-54: it resets the timers of clients that let progress do so, and real progress rises above it.
#[tokio::test(start_paused = true)]
async fn mod_22_a_silent_call_shows_progress_that_hardly_rises() {
    let never = Rules::mode(TaskMode::Never);
    let chatty = || {
        [
            (40, Happens::Progress(0.0, "begun")),
            (50, Happens::Log("error")),
            (64, Happens::Progress(1.0, "")),
            (65, Happens::Progress(1.0, "again")),
            (100, Happens::Returns(result("done"))),
        ]
    };
    let shown = progress_of(never, chatty()).await;
    let at: Vec<_> = shown.iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [15, 30, 40, 55, 64, 79, 94], "messages for other clients do not break the silence");
    let values: Vec<_> = shown.iter().map(|(_, value)| value.unwrap()).collect();
    assert!(values.is_sorted_by(|one, next| one < next), "{values:?}");
    assert!(values[3] < 1e-6 && values[6] - 1.0 < 1e-6, "next to nothing: {values:?}");
    assert_eq!(values[4], 1.0, "the upstream's own value");
    let off = progress_of(Rules { life_signs: false, ..never }, chatty()).await;
    let expected = [(15, None), (30, None), (40, Some(0.0)), (55, None), (64, Some(1.0)), (79, None), (94, None)];
    assert_eq!(off, expected, "switched off, comments do");
    // Within a grace period nothing is written; a call that outlives it without a task goes on like any other.
    let held = Rules { stored_bytes_max: 0, ..Rules::default() };
    let shown = progress_of(held, [(20, Happens::Returns(result("done")))]).await;
    assert_eq!(shown.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [17]);
}
