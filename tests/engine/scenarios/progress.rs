//! Progress and log messages of tasks: stored now and then, never sent (U25, U26, EXT-52).

use std::collections::BTreeSet;
use std::time::Duration;

use taskgate::engine::CallEvent;

use super::script::{Happens, Script, result};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

/// U25: at most two stored updates a second, and the last words are kept.
#[tokio::test(start_paused = true)]
async fn a_flood_of_progress_is_stored_twice_a_second_and_its_last_words_are_kept() {
    let flood = Duration::from_micros(100);
    let mut events: Vec<_> =
        (0..50_000_u32).map(|n| (GRACE + flood * n, Happens::Progress(f64::from(n), ""))).collect();
    events.push((GRACE + seconds(5), Happens::Progress(99_999.0, "the last words")));
    events.push((GRACE + seconds(5), Happens::Returns(result("done"))));
    let world = World::with(Rules::default(), Script::of(events));
    let id = world.handle(&Ask::call()).await;
    let mut updates = BTreeSet::new();
    while world.age() < GRACE + millis(4_900) {
        updates.insert(world.get(&id).await["lastUpdatedAt"].as_str().unwrap().to_owned());
        tokio::time::sleep(millis(50)).await;
    }
    assert!((9..=11).contains(&updates.len()), "{} updates in 5 s", updates.len());
    let task = world.settled(&id).await;
    assert_eq!(task["statusMessage"], "the last words");
    let writes = world.store.replaced();
    assert!(writes <= 13, "{writes} writes in 5 s");
    world.is_idle().await;
}

/// Progress that comes once is there at once.
#[tokio::test(start_paused = true)]
async fn a_single_progress_is_stored_without_delay() {
    let chatty = [(seconds(3), Happens::Progress(3.0, "third")), (seconds(60), Happens::Progress(4.0, ""))];
    let world = World::with(Rules::default(), Script::of(chatty));
    let id = world.handle(&Ask::call()).await;
    assert!(world.get(&id).await.get("statusMessage").is_none());
    tokio::time::sleep_until(world.started + seconds(3) + millis(1)).await;
    assert_eq!(world.get(&id).await["statusMessage"], "third");
    tokio::time::sleep_until(world.started + seconds(60) + millis(1)).await;
    assert_eq!(world.get(&id).await["statusMessage"], "4.0/10", "without words, how far of how much");
}

/// U26.
#[tokio::test(start_paused = true)]
async fn a_status_message_loses_control_characters_and_is_cut_at_one_kibibyte() {
    let long: &'static str = Box::leak("ß".repeat(1 << 20).into_boxed_str());
    for (said, kept) in [("\u{1b}[31mred\u{202e}\r\n", "[31mred".to_owned()), (long, "ß".repeat(512))] {
        for after in [millis(1), seconds(3)] {
            let world = World::with(Rules::default(), Script::of([(after, Happens::Progress(1.0, said))]));
            let id = world.handle(&Ask::call()).await;
            tokio::time::sleep(seconds(2)).await;
            assert_eq!(world.get(&id).await["statusMessage"].as_str(), Some(&*kept));
        }
    }
}

/// EXT-52, MOD-22: nothing follows the handle, and nothing of either shows in the task.
#[tokio::test(start_paused = true)]
async fn neither_log_messages_nor_progress_are_sent_for_tasks() {
    let chatty = [
        (millis(1), Happens::Log("emergency")),
        (seconds(3), Happens::Log("emergency")),
        (seconds(4), Happens::Progress(1.0, "one")),
        (seconds(9), Happens::Returns(result("done"))),
    ];
    let world = World::with(Rules::default(), Script::of(chatty));
    let mut stream = world.start();
    assert!(matches!(stream.next().await, Some(CallEvent::Notification(_))), "that of the grace period");
    let Some(CallEvent::Created(task)) = stream.next().await else { panic!("no handle") };
    assert!(task.status_message.is_none());
    assert!(stream.next().await.is_none(), "something followed the handle");
    let text = world.settled(&task.key.id.to_string()).await.to_string();
    assert!(!text.contains("said"), "{text}");
}

/// A flood must not keep the grace from ending. In real time, as a paused clock stands still under a flood.
#[tokio::test]
async fn a_flood_without_a_pause_does_not_hold_back_the_handle() {
    let world = World::with(Rules::default(), Script::of([(Duration::ZERO, Happens::Floods)]));
    let arrived = Ask::call().arrived_before(GRACE - millis(50));
    let answer = tokio::time::timeout(seconds(60), world.send(&arrived)).await.expect("the handle comes");
    assert_eq!(answer.json().await["result"]["resultType"], "task");
}
