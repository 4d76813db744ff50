//! Trees of tasks under random schedules: the promises of SEP-2268 hold at every read.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use taskgate::engine::{CallEvent, TaskError};
use taskgate::store::TaskStore;
use taskgate::task::{AfterCrash, Answer, Phase, Plan, Principal, Task, TaskId, TaskKey, TaskMode, Timestamp};

use super::script::{Happens, Resumes, Script, payload, result};
use super::world::{Rules, World, millis, seconds};

/// An action at a second of the schedule.
#[derive(Clone, Debug)]
enum Act {
    CancelParent,
    CancelChild(usize),
    /// Every open question is answered, wherever it stands.
    AnswerAll,
    /// The process ends, and the next one goes on.
    Crash,
}

/// One element's call: how many seconds it takes, whether it asks something first, and whether another process can resume it.
type Element = (u64, bool, bool);

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let act = prop_oneof![
        1 => Just(Act::CancelParent),
        2 => (0_usize..6).prop_map(Act::CancelChild),
        3 => Just(Act::AnswerAll),
        2 => Just(Act::Crash),
    ];
    proptest::collection::vec((0_u64..12, act), 0..5)
}

fn key(id: TaskId) -> TaskKey {
    TaskKey { owner: Principal::local(), id }
}

/// A row, also a hidden one.
async fn row(world: &World, id: TaskId) -> Option<Arc<Task>> {
    world.store.load(&key(id), Timestamp::from_millis(0)).await.unwrap().map(|row| row.task)
}

/// The record of a tree.
#[derive(Default)]
struct SeenTree {
    children: Vec<TaskId>,
    settled: HashMap<TaskId, Phase>,
}

impl SeenTree {
    /// SUB-01 to SUB-06, SUB-12, SUB-13, SUB-16, SUB-17.
    async fn look(&mut self, world: &World, parent: TaskId, sees: bool) {
        let Some(task) = row(world, parent).await else { panic!("the parent is gone") };
        assert_eq!(task.tree.parent, None, "SUB-01");
        assert!(task.tree.children.starts_with(&self.children), "SUB-03");
        assert!(!self.settled.contains_key(&parent) || task.tree.children.len() == self.children.len(), "SUB-12");
        self.children = task.tree.children.to_vec();
        assert!(!self.children.contains(&parent), "SUB-04");
        for id in self.children.clone() {
            let child = row(world, id).await.expect("SUB-06");
            assert_eq!(child.tree.parent, Some(parent), "SUB-01, SUB-02");
            assert!(child.expires_at() >= task.expires_at(), "SUB-17");
            assert!(!task.is_settled() || child.is_settled(), "SUB-13, SUB-16: {task:?} before {child:?}");
            let shown = world.engine.load_visible(&key(id)).await;
            match (sees, shown) {
                (true, Ok(shown)) => assert!(shown.expires_at() <= task.expires_at(), "SUB-17"),
                (false, Err(TaskError::Unknown)) => (),
                (_, other) => panic!("SUB-05, SUB-06: {other:?}"),
            }
            self.stays(&child);
        }
        self.stays(&task);
    }

    /// An outcome is final.
    fn stays(&mut self, task: &Task) {
        if let Some(before) = self.settled.get(&task.key.id) {
            assert_eq!(*before, task.phase);
        } else if task.is_settled() {
            self.settled.insert(task.key.id, task.phase.clone());
        }
    }
}

async fn answer_all(world: &World, ids: impl IntoIterator<Item = TaskId>) {
    for id in ids {
        let Ok(task) = world.engine.load_visible(&key(id)).await else { continue };
        if let Phase::AwaitingInput(open) = &task.phase {
            let answer = Answer::Result(payload(r#"{"action":"decline"}"#));
            let answers = open.keys().map(|key| (*key, answer.clone())).collect();
            world
                .engine
                .answer(&taskgate::task::Caller::of(task.key.owner.clone()), task.key.id, answers)
                .await
                .unwrap();
        }
    }
}

async fn run(elements: Vec<Element>, parallel: usize, sees: bool, acts: Vec<(u64, Act)>) {
    let count = elements.len();
    let rules = Rules {
        mode: TaskMode::Always,
        split: Some((parallel, 10)),
        durable: true,
        after_crash: AfterCrash::Rerun,
        input_deadline: seconds(20),
        ..Rules::DEFAULT
    };
    let mut world = World::choosing(rules, move |call| {
        let params: Value = serde_json::from_str(&call.params).unwrap();
        let (takes, asks, resumes) = elements[params["arguments"]["items"][0].as_u64().unwrap() as usize];
        let mut events = Vec::new();
        if asks {
            events.extend([(millis(100), Happens::Elicits("which")), (millis(100), Happens::Heard(1))]);
        }
        events.push((seconds(takes), Happens::Returns(result("done"))));
        let script = Script::of(events);
        if resumes { script.resumed(Resumes::Follows) } else { script }
    });
    let mut spec = world.spec(Plan::Task, &Principal::local());
    let items: Vec<usize> = (0..count).collect();
    let params = json!({ "name": "work", "arguments": { "items": items } }).to_string();
    spec.request.params = Some(payload(&params));
    spec.sees_subtasks = sees;
    let Some(CallEvent::Created(parent)) = world.engine.call(spec).next().await else { panic!("no task") };
    let (parent, mut seen) = (parent.key.id, SeenTree::default());
    for second in 0..14 {
        for (_, act) in acts.iter().filter(|(at, _)| *at == second) {
            match act {
                Act::CancelParent => {
                    world.engine.cancel(&key(parent)).await.unwrap();
                }
                Act::CancelChild(index) => {
                    if let Some(child) = seen.children.get(*index).filter(|_| sees) {
                        world.engine.cancel(&key(*child)).await.unwrap();
                    }
                }
                Act::AnswerAll => answer_all(&world, [&[parent], &seen.children[..]].concat()).await,
                Act::Crash => {
                    world = world.next_life();
                    world.recover().await;
                }
            }
            seen.look(&world, parent, sees).await;
        }
        tokio::time::sleep(millis(1_000)).await;
        seen.look(&world, parent, sees).await;
    }
    // Unanswered questions are cancelled, and everything ends.
    for _ in 0..200 {
        if row(&world, parent).await.is_some_and(|task| task.is_settled()) {
            break;
        }
        tokio::time::sleep(seconds(1)).await;
    }
    seen.look(&world, parent, sees).await;
    assert!(seen.settled.contains_key(&parent), "it does not end");
    world.is_idle().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sub_01_to_sub_17_hold_after_every_event(
        elements in proptest::collection::vec((0_u64..6, any::<bool>(), any::<bool>()), 1..6),
        parallel in 1_usize..4,
        sees in any::<bool>(),
        acts in acts(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(elements, parallel, sees, acts));
    }
}
