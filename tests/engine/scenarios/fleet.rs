//! A team with one key: its fleet of honest agents meets no bound, and a dishonest poller is refused alone.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use taskgate::task::TaskMode;
use taskgate::upstream::limits::CallPermitSettings;

use super::script::Script;
use super::world::{Ask, Rules, World, millis, seconds};

const AGENTS: u32 = 50;
const TASKS_OF_EACH: u32 = 20;
/// How many tasks all agents together make in a second.
const MADE_PER_SECOND: u32 = 40;
const TEAM: &str = "key:team";

/// All bounds at their defaults.
fn rules(mode: TaskMode) -> Rules {
    let CallPermitSettings { in_flight_max, queue_max } = CallPermitSettings::default();
    let (in_flight_max, tasks_max) = (in_flight_max.get(), 100_000);
    Rules { in_flight_max, queue_max, tasks_max, queue_deadline: seconds(30), ..Rules::mode(mode) }
}

/// A request's answer, and the reason of its refusal, if any.
async fn refusal(world: &World, ask: &Ask) -> (Value, Option<String>) {
    let answer = world.send(ask).await.json().await;
    let error = answer["error"].is_object().then(|| answer["error"].to_string());
    (answer, error)
}

/// Makes a task and polls it once a second until `until`; every refusal on the way.
async fn agent(world: &World, begins: Duration, until: Duration) -> Vec<String> {
    tokio::time::sleep(begins).await;
    let (made, mut refused) = refusal(world, &Ask::call().principal(TEAM)).await;
    let mut refusals: Vec<_> = refused.take().into_iter().collect();
    let Some(id) = made["result"]["taskId"].as_str().map(str::to_owned) else { return refusals };
    while world.age() < until {
        tokio::time::sleep(seconds(1)).await;
        refusals.extend(refusal(world, &Ask::task("tasks/get", &id).principal(TEAM)).await.1);
    }
    refusals
}

/// As many tasks at a time as one principal may have, at a server that runs none of them to its end meanwhile: a quarter of
/// them wait for their turn at most, and all are polled.
#[tokio::test(start_paused = true)]
async fn fifty_agents_with_one_key_and_twenty_tasks_each_are_never_refused() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let world = World::with(rules(mode), Script::returns(seconds(600), "done"));
        let number = AGENTS * TASKS_OF_EACH;
        let made_in = seconds((number / MADE_PER_SECOND).into());
        let tasks = (0..number).map(|n| agent(&world, made_in * n / number, made_in + seconds(2)));
        let refusals: Vec<String> = join_all(tasks).await.into_iter().flatten().collect();
        assert!(refusals.is_empty(), "{mode:?}: {} refused, as {:?}", refusals.len(), refusals.first());
        assert_eq!(world.engine.permits_taken(), number as usize, "{mode:?}: all of them are there at once");
        if mode == TaskMode::Always {
            let (_, refused) = refusal(&world, &Ask::call().principal(TEAM)).await;
            assert!(
                refused.is_some_and(|refused| refused.contains("too_many_tasks")),
                "one more is what the bound is for"
            );
        }
    }
}

/// Beside it another team polls its one task twice a second, and is answered each time, at once.
#[tokio::test(start_paused = true)]
async fn a_principal_that_polls_two_hundred_times_a_second_is_refused_and_no_other() {
    let world = World::with(rules(TaskMode::Always), Script::returns(seconds(600), "done"));
    let own = async |who: &'static str| world.handle(&Ask::call().principal(who)).await;
    let (greedy, honest) = (own("key:greedy").await, own(TEAM).await);
    let poll = |who, id: &str| Ask::task("tasks/get", id).principal(who);
    let greedy = async {
        let (ask, mut refused) = (poll("key:greedy", &greedy), Vec::new());
        for _ in 0..200 * 10 {
            refused.extend(refusal(&world, &ask).await.1);
            tokio::time::sleep(millis(5)).await;
        }
        refused
    };
    let honest = async {
        let ask = poll(TEAM, &honest);
        for n in 0..20 {
            let (asked_at, (answer, refused)) = (world.age(), refusal(&world, &ask).await);
            assert!(refused.is_none() && world.age() == asked_at, "{n}: {answer}");
            tokio::time::sleep(millis(500)).await;
        }
    };
    let (refused, ()) = tokio::join!(greedy, honest);
    // 52 a second are served, and a second's worth at first.
    assert!((1_400..1_500).contains(&refused.len()), "{}", refused.len());
    let bound = "52 polls a second for the present number of unfinished tasks (`polls_per_task`), for the key `greedy`";
    assert!(refused.iter().all(|refused| refused.contains(bound)), "{:?}", refused.first());
    let (answer, refused) = refusal(&world, &Ask::call().principal("key:greedy").arguments(json!({ "n": 1 }))).await;
    assert!(refused.is_none(), "polls use up no other rate: {answer}");
}
