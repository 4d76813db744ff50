//! Several gateways at one store: each carries out commands that another one received, and one alone runs a call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{AfterCrash, Principal, TaskMode};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::doubts::asking;
use super::named::named;
use super::rounds::{accept, answers, returns};
use super::script::{Call, Happens, Resumes, Saw, Script, result};
use super::store_faults::{Method, StoreFault};
use super::unmarked::key;
use super::world::{Ask, Rules, World, millis, seconds};
use crate::random::Choices;

fn rules() -> Rules {
    Rules { durable: true, ..Rules::mode(TaskMode::Always) }
}

/// Two gateways, of which one makes the call, and the task that it becomes. Where hints are lost, the second looks.
async fn pair(script: Script, is_deaf: bool) -> (World, World, String) {
    let one = World::with(rules(), script);
    one.store.is_deaf.store(is_deaf, Ordering::Relaxed);
    let other = one.beside();
    other.store.is_deaf.store(is_deaf, Ordering::Relaxed);
    let id = one.handle(&asking(Ask::call())).await;
    tokio::time::sleep(millis(10)).await;
    (one, other, id)
}

/// F52: a change that one acknowledged is known to the other at once.
#[tokio::test(start_paused = true)]
async fn f52_a_task_is_the_same_at_each_gateway() {
    let (one, other, id) = pair(Script::returns(seconds(5), "done"), false).await;
    for world in [&other, &one, &other] {
        assert_eq!(world.get(&id).await["status"], "working");
    }
    assert_eq!(other.settled(&id).await["result"]["content"][0]["text"], "done");
    let listed = other.engine.list(&taskgate::task::Caller::of(Principal::local().clone()), None, 9).await.unwrap();
    assert_eq!(listed.tasks.len(), 1);
    assert_eq!(one.upstream.calls().len(), 1);
    one.is_idle().await;
}

/// They decide which tasks it may poll.
#[tokio::test(start_paused = true)]
async fn the_unfinished_tasks_of_a_principal_are_those_of_all_gateways() {
    let (one, other, _) = pair(Script::silent(), false).await;
    let unfinished = |world: &World| world.engine.unfinished_of(&Principal::local());
    assert_eq!([&one, &other].map(unfinished), [1, 1]);
    one.handle(&Ask::call()).await;
    other.handle(&Ask::call()).await;
    assert_eq!([&one, &other].map(unfinished), [3, 3]);
    assert_eq!(one.engine.unfinished_of(&Principal::new("somebody")), 0);
}

/// F84: with hints at once, without them within a second.
#[tokio::test(start_paused = true)]
async fn f84_a_cancel_at_one_gateway_reaches_the_call_that_another_runs() {
    for is_deaf in [false, true] {
        let (one, other, id) = pair(Script::silent(), is_deaf).await;
        let began = one.age();
        assert!(other.send(&Ask::task("tasks/cancel", &id)).await.json().await["result"].is_object());
        timeout(seconds(5), one.upstream.sees(&Saw::Cancel(0))).await.expect("it is told");
        let took = one.age() - began;
        assert!(took <= if is_deaf { millis(1_100) } else { millis(20) }, "{took:?}");
        assert_eq!(one.get(&id).await["status"], "cancelled");
        one.is_idle().await;
    }
}

/// F84: a call that waits for its turn sends no cancel to the server, and releases its principal's permit.
#[tokio::test(start_paused = true)]
async fn f84_a_cancel_at_one_gateway_ends_the_wait_of_a_call_at_another() {
    for is_deaf in [false, true] {
        let one = World::with(Rules { in_flight_max: 1, ..rules() }, Script::returns(seconds(600), "done"));
        one.store.is_deaf.store(is_deaf, Ordering::Relaxed);
        let other = one.beside();
        let running = one.handle(&Ask::call()).await;
        let waiting = one.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(3)).await;
        assert_eq!((one.engine.permits_taken(), one.permits.waiting()), (2, 1));
        assert!(other.send(&Ask::task("tasks/cancel", &waiting)).await.json().await["result"].is_object());
        tokio::time::sleep(millis(1_100)).await;
        assert_eq!((one.engine.permits_taken(), one.permits.waiting()), (1, 0), "deaf: {is_deaf}");
        assert_eq!(one.settled(&running).await["status"], "completed");
        assert_eq!((one.upstream.calls().len(), one.upstream.cancels()), (1, 0));
        one.is_idle().await;
    }
}

/// F99: the check of each second reads revisions; the rest of a record, such as stored arguments, is read after a change alone.
#[tokio::test(start_paused = true)]
async fn f99_a_running_task_is_read_again_only_after_a_change() {
    let (one, other, id) = pair(Script::silent(), true).await;
    tokio::time::sleep(seconds(5)).await;
    let loaded = || [&one, &other].map(|world| world.store.loaded());
    let before = loaded();
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(loaded(), before);
    assert!(other.send(&Ask::task("tasks/cancel", &id)).await.json().await["result"].is_object());
    timeout(seconds(5), one.upstream.sees(&Saw::Cancel(0))).await.expect("it is told");
    assert!(loaded()[0] > before[0]);
    one.is_idle().await;
}

/// F99: a row that a hint names is read at once, and not by the next check as well. The change is between two checks.
#[tokio::test(start_paused = true)]
async fn f99_a_change_that_a_hint_names_is_read_once() {
    let (one, other, id) = pair(Script::of([(millis(10_300), Happens::Elicits("a"))]), false).await;
    assert_eq!(other.get(&id).await["status"], "working");
    let watcher = other.engine.watchers().watch(&key(&id)).unwrap();
    tokio::time::sleep(seconds(5)).await;
    let (loaded, written) = (other.store.loaded(), one.store.replaced());
    tokio::time::sleep(seconds(10)).await;
    assert_eq!((other.store.loaded() - loaded, one.store.replaced() - written), (1, 1));
    drop(watcher);
    assert!(other.send(&Ask::task("tasks/cancel", &id)).await.json().await["result"].is_object());
    one.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn f84_an_answer_at_one_gateway_reaches_the_call_that_another_runs() {
    for is_deaf in [false, true] {
        let script = Script::of([
            (seconds(1), Happens::Elicits("a")),
            (seconds(0), Happens::Heard(1)),
            (seconds(1), Happens::Returns(result("done"))),
        ]);
        let (one, other, id) = pair(script, is_deaf).await;
        tokio::time::sleep(seconds(2)).await;
        let shown = other.send(&asking(Ask::task("tasks/get", &id))).await.json().await["result"].take();
        let open = shown["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let update = asking(Ask::task("tasks/update", &id)).member("inputResponses", json!({ open: accept() }));
        assert!(other.send(&update).await.json().await["result"].is_object());
        assert_eq!(timeout(seconds(9), other.settled(&id)).await.expect("it ends")["status"], "completed");
        assert_eq!(answers(&one).len(), 1);
        one.is_idle().await;
    }
}

/// GW-46: a call that was never sent was lost with no gateway.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_a_queued_call_hears_of_a_cancel_at_another_gateway() {
    let one = World::with(Rules { in_flight_max: 1, ..rules() }, Script::silent());
    let other = one.beside();
    let busy = one.handle(&Ask::call()).await;
    let waits = one.client(&named("k").without_extension());
    tokio::time::sleep(seconds(1)).await;
    let queued = other.store.unsettled().await.into_iter().find(|found| *found != key(&busy)).unwrap();
    other.engine.cancel(&queued).await.unwrap();
    let told = waits.await.unwrap().json().await;
    assert_eq!(told["error"]["data"]["reason"], "cancelled", "{told}");
    other.engine.cancel(&key(&busy)).await.unwrap();
    one.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn f84_a_client_that_waits_at_one_gateway_is_woken_by_the_end_at_another() {
    for is_deaf in [false, true] {
        let (one, other, id) = pair(Script::returns(seconds(5), "done"), is_deaf).await;
        let (engine, key) = (Arc::clone(&other.engine), key(&id));
        let waiting = TaskTracker::new().spawn(async move {
            let mut watcher = engine.watchers().watch(&key).unwrap();
            while !engine.load_visible(&key).await.unwrap().is_settled() {
                watcher.changed().await;
            }
        });
        timeout(seconds(7), waiting).await.expect("it is woken").unwrap();
        one.is_idle().await;
    }
}

/// F76, F79: one that was declared ended, and goes on, settles nothing; its exchange is dropped without a cancel.
#[tokio::test(start_paused = true)]
async fn f79_a_gateway_that_was_replaced_settles_nothing() {
    let (one, other, id) = pair(Script::returns(seconds(5), "late"), false).await;
    one.store.is_declared_ended();
    let failed = timeout(seconds(3), other.settled(&id)).await.expect("the other takes it over");
    let data = &failed["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("replica_lost"), &json!("unknown")));
    tokio::time::sleep(seconds(9)).await;
    assert_eq!(one.get(&id).await["status"], "failed", "there is one outcome");
    assert_eq!((one.upstream.calls().len(), one.upstream.cancels()), (1, 0));
    other.is_idle().await;
    one.is_idle().await;
}

/// GW-40: bounds on tasks hold for all gateways together, that of a principal too.
#[tokio::test(start_paused = true)]
async fn gw_40_gateways_at_one_store_take_no_more_tasks_together_than_there_may_be() {
    const MAX: usize = 6;
    let one = World::with(Rules { tasks_max: MAX, ..rules() }, Script::returns(seconds(60), "done"));
    let other = one.beside();
    let mut ids = Vec::new();
    for number in 0..MAX {
        ids.push([&one, &other][number % 2].handle(&Ask::call()).await);
    }
    for world in [&one, &other] {
        let refused = world.send(&Ask::call()).await.json().await;
        assert_eq!(refused["error"]["data"]["reason"], "too_many_tasks", "{refused}");
    }
    other.settled(&ids[0]).await;
    other.settled(&ids[1]).await;
    other.handle(&Ask::call()).await;
}

/// GW-40: a subtask that has a row is one task, and not two.
#[tokio::test(start_paused = true)]
async fn gw_40_a_subtask_counts_once_among_the_tasks_of_all_gateways() {
    let script = Script::of([(seconds(1), Happens::Names(&["sub"])), returns(10)]).resumed(Resumes::Follows);
    let one = World::with(Rules { tasks_max: 3, ..rules() }, script);
    let _other = one.beside();
    one.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(one.store.usage().unsettled, 2);
    one.handle(&Ask::call()).await;
}

/// F77, F78: a call that may be sent again is sent by the gateway that took it over, and by no other.
#[tokio::test(start_paused = true)]
async fn f77_a_call_of_a_gateway_that_ended_goes_on_at_another() {
    let rules = Rules { after_crash: AfterCrash::Rerun, ..rules() };
    let one = World::with(rules, Script::returns(seconds(5), "done"));
    let others = [one.beside(), one.beside()];
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(one.handle(&Ask::call()).await);
    }
    tokio::time::sleep(seconds(1)).await;
    one.life.end();
    one.store.is_declared_ended();
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(others[number % 2].settled(id).await["status"], "completed");
    }
    assert_eq!(one.upstream.calls().len(), 80, "each was sent again once");
    for other in &others {
        other.is_idle().await;
    }
}

/// F90: tasks of a gateway that ended are taken over while servers get the cancels that an earlier one left.
#[tokio::test(start_paused = true)]
async fn f90_a_server_that_hears_no_cancel_delays_no_other_task_of_a_gateway_that_ended() {
    const CANCELLED: usize = 10;
    let silent = Script { cancel_takes: seconds(60), ..Script::silent() }.resumed(Resumes::Follows);
    let works = Script::returns(seconds(5), "done").resumed(Resumes::Follows);
    let choose = move |call: &Call| if call.params.contains("silent") { silent.clone() } else { works.clone() };
    let one = World::choosing(rules(), choose);
    let other = one.beside();
    let mut cancels = Vec::new();
    for _ in 0..CANCELLED {
        let id = one.handle(&Ask::tool("silent")).await;
        tokio::time::sleep(seconds(3)).await;
        cancels.push(one.client(&Ask::task("tasks/cancel", &id)));
    }
    tokio::time::sleep(seconds(1)).await;
    one.life.end();
    one.store.is_declared_ended();
    while other.upstream.cancels() < 2 * CANCELLED {
        tokio::time::sleep(millis(100)).await;
    }
    let late = other.beside();
    let id = late.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(3)).await;
    late.life.end();
    late.store.is_declared_ended();
    let began = other.age();
    assert_eq!(other.settled(&id).await["status"], "completed");
    assert!(other.age() - began < seconds(10), "{:?}", other.age() - began);
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(other.upstream.cancels(), 2 * CANCELLED, "once by each");
    other.is_idle().await;
}

/// How long the calls of a gateway that ended wait for another one, which may send them again.
async fn taken_over_after(trouble: impl AsyncFnOnce([&World; 3], &str)) -> std::time::Duration {
    let rules = Rules { after_crash: AfterCrash::RerunIfSafe, ..rules() };
    let one = World::with(rules, Script::silent());
    let (first, other) = (one.beside(), one.beside());
    let stuck = first.handle(&Ask::call()).await;
    one.handle(&Ask::tool("read")).await;
    tokio::time::sleep(seconds(1)).await;
    first.life.end();
    trouble([&one, &first, &other], &stuck).await;
    let (began, sent) = (one.age(), one.upstream.calls().len());
    one.life.end();
    one.store.is_declared_ended();
    while one.upstream.calls().len() == sent {
        assert!(one.age() - began < seconds(60), "it is not taken over");
        tokio::time::sleep(millis(100)).await;
    }
    one.age() - began
}

/// F77: tasks of a gateway that ended are taken over in time, also while a row of an earlier one cannot be settled.
#[tokio::test(start_paused = true)]
async fn f77_a_row_that_cannot_be_settled_holds_up_no_other() {
    let took = taken_over_after(async |[one, first, other], stuck| {
        for world in [one, other] {
            *world.store.stuck.lock() = Some(key(stuck));
        }
        first.store.is_declared_ended();
        tokio::time::sleep(seconds(100)).await;
    })
    .await;
    assert!(took <= seconds(2), "{took:?}");
}

/// F77: a gateway that could not reach the store for long takes over soon after it can again.
#[tokio::test(start_paused = true)]
async fn f77_rows_are_claimed_soon_after_a_long_outage() {
    let took = taken_over_after(async |[_, _, other], _| {
        other.store.faults.strike(Method::Claim, StoreFault::Fails, 1_000_000);
        tokio::time::sleep(seconds(100)).await;
        other.store.faults.heal();
    })
    .await;
    assert!(took <= seconds(2), "{took:?}");
}

/// Gateways that come and are declared ended, as clients see them.
struct Fleet {
    /// Gateways that were not declared ended.
    living: Vec<World>,
    /// Those that were declared ended, and do not know.
    replaced: Vec<World>,
    /// The id of each call's task, and its last seen state.
    tasks: BTreeMap<usize, (String, Value)>,
}

impl Fleet {
    /// A client comes to any gateway.
    fn any<'a>(&'a self, choices: &mut Choices) -> &'a World {
        let at = choices.below(self.living.len() + self.replaced.len());
        self.living.get(at).unwrap_or_else(|| &self.replaced[at - self.living.len()])
    }

    async fn call(&mut self, choices: &mut Choices, number: usize) {
        let ask = Ask::call().arguments(json!({ "number": number }));
        let id = self.any(choices).handle(&ask).await;
        self.tasks.insert(number, (id, json!("working")));
    }

    /// A task is seen again: it never goes back, and has one end.
    async fn poll(&mut self, choices: &mut Choices, case: &str) {
        if self.tasks.is_empty() {
            return;
        }
        let number = choices.below(self.tasks.len());
        let (id, _) = &self.tasks[&number];
        let now = self.any(choices).get(id).await["status"].take();
        self.sees(number, now, case);
    }

    fn sees(&mut self, number: usize, now: Value, case: &str) {
        let (_, before) = self.tasks.get_mut(&number).unwrap();
        assert!(*before == "working" || *before == now, "{case}: task {number} was {before} and is {now}");
        assert!(now == "working" || now == "completed" || now == "failed", "{case}: task {number} is {now}");
        *before = now;
    }

    fn replaces_one(&mut self, choices: &mut Choices) {
        let at = choices.below(self.living.len());
        let ended = self.living.swap_remove(at);
        ended.store.is_declared_ended();
        self.living.push(ended.beside());
        self.replaced.push(ended);
    }
}

/// The number in a call's arguments.
fn number_of(params: &str) -> usize {
    let params: Value = serde_json::from_str(params).unwrap();
    usize::try_from(params["arguments"]["number"].as_u64().unwrap()).unwrap()
}

async fn random_replacements(seed: u64) {
    let after_crash = if seed.is_multiple_of(2) { AfterCrash::Fail } else { AfterCrash::Rerun };
    let rules = Rules { after_crash, in_flight_max: 2, queue_deadline: seconds(3600), ..rules() };
    let first = World::choosing(rules, |call| {
        Script::returns(millis(100 + 700 * (number_of(&call.params) as u64 % 5)), "done")
    });
    let (mut choices, case) = (Choices::new(seed), format!("seed {seed}"));
    let living = vec![first.beside(), first.beside(), first];
    let mut fleet = Fleet { living, replaced: Vec::new(), tasks: BTreeMap::new() };
    let mut number = 0;
    for _ in 0..120 {
        match choices.below(20) {
            0..6 => {
                fleet.call(&mut choices, number).await;
                number += 1;
            }
            6..12 => fleet.poll(&mut choices, &case).await,
            12..18 => tokio::time::sleep(millis(choices.below(600) as u64)).await,
            _ => fleet.replaces_one(&mut choices),
        }
    }
    for task in 0..number {
        let (id, _) = &fleet.tasks[&task];
        let settled = timeout(seconds(600), fleet.living[choices.below(fleet.living.len())].settled(id)).await;
        let now = settled.unwrap_or_else(|_| panic!("{case}: task {task} does not end"))["status"].take();
        fleet.sees(task, now, &case);
    }
    let mut sent = BTreeMap::<usize, usize>::new();
    for call in fleet.living[0].upstream.calls() {
        *sent.entry(number_of(&call.params)).or_default() += 1;
    }
    let most = if after_crash == AfterCrash::Fail { 1 } else { 1 + fleet.replaced.len() };
    assert!(sent.values().all(|times| *times <= most), "{case}: {sent:?}");
    let done = fleet.tasks.iter().filter(|(_, (_, status))| *status == "completed");
    assert!(done.clone().all(|(number, _)| sent.contains_key(number)), "{case}: an unsent call has a result");
    assert_eq!(fleet.living[0].upstream.cancels(), 0, "{case}");
    if after_crash == AfterCrash::Rerun {
        assert!(done.count() * 2 > number, "{case}: most calls come to their end");
    }
}

/// L1, L3, L4: a gateway is declared ended, at any moment, rightly or wrongly: no task is lost, none goes back, each
/// has one end, and no call is sent twice that must not be.
#[tokio::test(start_paused = true)]
async fn a_gateway_may_be_declared_ended_at_any_moment() {
    let courses = std::env::var("REPLACED_GATEWAYS").map_or(6, |courses| courses.parse().unwrap());
    for seed in 0..courses {
        random_replacements(seed).await;
    }
}
