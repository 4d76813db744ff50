//! A client may disconnect at any point. Each method of the engine that a request awaits is dropped after every number
//! of polls; every change that was stored by then must have its effects all the same, without another request (L1 to
//! L8). `dropped_stores` does the same to the stores themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};
use taskgate::engine::{Askable, CallEvent, RoundRetry, TaskError};
use taskgate::metric;
use taskgate::store::{DiskSettings, DiskStore, TaskStore};
use taskgate::task::{Answer, Outcome, Phase, Plan, Principal, ShortReference, Task, TaskKey, TaskMode, TreeLinks};
use taskgate::wire::Payload;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::rounds::answers;
use super::script::{Happens, Script, result};
use super::stores::GatedStore;
use super::world::{Rules, World, millis, seconds};

/// No method takes as many polls.
const POLLS_MAX: usize = 60;
/// How long something may take that must come about; nothing is proved by its length.
const PATIENCE: Duration = seconds(20);
/// Long enough for a task to be overdue.
const TTL: Duration = millis(20);

/// Polls a future so many times and drops it; `None` unless it was done by then.
pub(crate) async fn cut<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// Names of methods in a source file: of those lines that begin with one of these.
pub(crate) fn methods(source: &str, begins: &[&str], is_one: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let text = std::fs::read_to_string(path).unwrap();
    // A signature may go on over some lines.
    let flat = text.replace(",\n        ", ", ").replace("(\n        ", "(").replace(",\n    )", ")");
    let found = flat.lines().filter(|line| is_one(line));
    let names = found.filter_map(|line| begins.iter().find_map(|begin| line.strip_prefix(begin)));
    names.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()).collect()
}

/// How a case begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The upstream runs the task and says nothing.
    Running,
    /// The task's question is open; the call returns once it is answered.
    Asking,
    /// The task's time is over, and no request has read it.
    Overdue,
    /// A call without a handle is held for its client's answers.
    Held,
    /// The task was cancelled, at the upstream too.
    Ended,
}

/// The state after the method did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The task is over, and the upstream got one cancel.
    GivenUp,
    /// The upstream has the answer, once, and the call returned.
    Answered,
    /// Nothing changes.
    Same,
    /// There is no task any more.
    Gone,
}

type Run = for<'a> fn(&'a Case) -> BoxFuture<'a, ()>;

/// Each method with the state that it needs.
const METHODS: &[(&str, Stage, Then, Run)] = &[
    ("get", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.load_visible(&case.key).await) })
    }),
    ("get_unaudited", Stage::Overdue, Then::GivenUp, |case| {
        let caller = taskgate::task::Caller::of(case.key.owner.clone());
        Box::pin(async move { drop(case.world.engine.get_unaudited(&caller, case.key.id).await) })
    }),
    ("load_visible", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.load_visible(&case.key).await) })
    }),
    ("load_any", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.load_any(&case.key).await) })
    }),
    ("list", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            drop(case.world.engine.list(&taskgate::task::Caller::of(case.key.owner.clone()), None, 10).await)
        })
    }),
    ("list_filtered", Stage::Overdue, Then::GivenUp, |case| {
        let all = taskgate::task::ListFilter::default();
        Box::pin(async move {
            drop(
                case.world
                    .engine
                    .list_filtered(&taskgate::task::Caller::of(case.key.owner.clone()), &all, None, 10)
                    .await,
            )
        })
    }),
    ("get", Stage::Running, Then::Same, |case| {
        Box::pin(async { drop(case.world.engine.load_visible(&case.key).await) })
    }),
    ("survey", Stage::Running, Then::Same, |case| {
        Box::pin(async { drop(case.world.engine.survey(None, |_| std::ops::ControlFlow::Continue(())).await) })
    }),
    ("holders", Stage::Running, Then::Same, |case| {
        Box::pin(async { drop(case.world.engine.holders(std::slice::from_ref(&case.key)).await) })
    }),
    ("rows_without_runner", Stage::Running, Then::Same, |case| {
        Box::pin(async { drop(case.world.engine.rows_without_runner().await) })
    }),
    ("named_by", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.named_by(ShortReference::of(&case.key)).await) })
    }),
    ("subtasks_of", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            let above = TreeLinks { parent: None, children: [case.key.id].into() };
            drop(case.world.engine.subtasks_of(&case.key.owner, &above, 10).await);
        })
    }),
    ("as_seen", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            let Ok(task) = case.world.engine.load_any(&case.key).await else { return };
            let tree = TreeLinks { parent: None, children: [case.key.id].into() };
            drop(case.world.engine.as_seen(Arc::new(Task { tree, ..Task::clone(&task) })).await);
        })
    }),
    ("share", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            let Ok(task) = case.world.engine.load_any(&case.key).await else { return };
            drop(case.world.engine.share(task).await);
        })
    }),
    ("seen_tree", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            let above = TreeLinks { parent: None, children: [case.key.id].into() };
            drop(case.world.engine.seen_tree(&case.key.owner, &above).await);
        })
    }),
    ("settled_subtasks", Stage::Overdue, Then::GivenUp, |case| {
        Box::pin(async {
            let above = TreeLinks { parent: None, children: [case.key.id].into() };
            drop(case.world.engine.settled_subtasks(&case.key.owner, &above, usize::MAX).await);
        })
    }),
    ("changed", Stage::Running, Then::Same, |case| {
        Box::pin(async {
            let mut watcher = case.world.engine.watchers().watch(&case.key).unwrap();
            drop(tokio::time::timeout(millis(1), watcher.changed()).await);
        })
    }),
    ("answer", Stage::Asking, Then::Answered, |case| {
        Box::pin(async {
            drop(
                case.world
                    .engine
                    .answer(&taskgate::task::Caller::of(case.key.owner.clone()), case.key.id, case.answers().await)
                    .await,
            )
        })
    }),
    ("cancel", Stage::Running, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.cancel(&case.key).await) })
    }),
    ("cancel", Stage::Asking, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.cancel(&case.key).await) })
    }),
    ("cancel_for", Stage::Running, Then::GivenUp, |case| {
        let caller = taskgate::task::Caller::of(case.key.owner.clone());
        Box::pin(async move { drop(case.world.engine.cancel_for(&caller, case.key.id).await) })
    }),
    ("cancel_for_operator", Stage::Running, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.cancel_for_operator(&case.key).await) })
    }),
    ("delete", Stage::Running, Then::Same, |case| {
        Box::pin(async {
            drop(case.world.engine.delete(&taskgate::task::Caller::of(case.key.owner.clone()), case.key.id).await)
        })
    }),
    ("delete", Stage::Ended, Then::Gone, |case| {
        Box::pin(async {
            drop(case.world.engine.delete(&taskgate::task::Caller::of(case.key.owner.clone()), case.key.id).await)
        })
    }),
    ("cancel_held", Stage::Held, Then::GivenUp, |case| {
        Box::pin(async { drop(case.world.engine.cancel_held(&case.key).await) })
    }),
];

/// Those that are not in the table: calls and their streams have tests of their own below, a drain is awaited by the
/// process alone, `wait` is a pause, `ended` only waits, and `share_outcome` is `share` with another error.
const ELSEWHERE: [&str; 7] = ["call", "next", "retry", "drain", "wait", "share_outcome", "ended"];

/// A new method must be dropped, too.
#[test]
fn every_public_method_of_the_engine_that_waits_is_dropped_here() {
    let waits =
        |line: &str| line.starts_with("    pub async fn") || line.contains("CallStream") && line.contains("pub fn");
    let mut sources = vec!["src/engine.rs".to_owned()];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        sources.extend(Some(format!("src/engine/{name}")).filter(|path| path.ends_with(".rs")));
    }
    assert!(sources.len() >= 12, "only {} files were seen", sources.len());
    let looked = sources.iter().map(|source| methods(source, &["    pub async fn ", "    pub fn "], waits));
    let found: BTreeSet<String> = looked.flatten().collect();
    let tried = METHODS.iter().map(|(name, ..)| *name).chain(ELSEWHERE);
    assert_eq!(found, tried.map(str::to_owned).collect());
}

/// A world with one call, at the stage that a method is tried at.
struct Case {
    world: World,
    key: TaskKey,
    /// Ends when the task is settled: it waits for that, as an open `tasks/result` does.
    woken: tokio::task::JoinHandle<()>,
    in_flight: Arc<AtomicU64>,
}

/// Keeps the gauge of tasks in flight, and nothing else.
struct Recorder(Arc<AtomicU64>);

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        if key.name() == metric::TASKS_IN_FLIGHT { Gauge::from_arc(Arc::clone(&self.0)) } else { Gauge::noop() }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

impl Case {
    async fn new(store: Arc<GatedStore>, stage: Stage, in_flight: &Arc<AtomicU64>) -> Self {
        in_flight.store(0, Ordering::Relaxed);
        let ttl = if stage == Stage::Overdue { TTL } else { seconds(3600) };
        let rules = Rules { ttl, ..Rules::mode(TaskMode::Always) };
        let events = [
            (Duration::ZERO, Happens::Elicits("a")),
            (Duration::ZERO, Happens::Heard(1)),
            (Duration::ZERO, Happens::Returns(result("done"))),
        ];
        let asks = matches!(stage, Stage::Asking | Stage::Held);
        let script = if asks { Script::of(events) } else { Script::silent() };
        store.pauses.store(true, Ordering::Relaxed);
        let world = World::over(store, rules, move |_| script.clone());
        let plan = if stage == Stage::Held { Plan::Direct } else { Plan::Task };
        let key = match world.start_as(plan, &Principal::local()).next().await {
            Some(CallEvent::Created(task) | CallEvent::InputRequired { task, .. }) => task.key.clone(),
            other => panic!("{other:?}"),
        };
        let mut watcher = world.engine.watchers().watch(&key).unwrap();
        let (store, awaited) = (Arc::clone(&world.store), key.clone());
        let woken = TaskTracker::new().spawn(async move {
            while !is_settled(&store, &awaited).await {
                watcher.changed().await;
            }
        });
        let case = Self { world, key, woken, in_flight: Arc::clone(in_flight) };
        case.eventually("sent", async || case.world.upstream.begins() == 1).await;
        if asks {
            let is_open = async || case.phase().await.is_some_and(|phase| matches!(phase, Phase::AwaitingInput(_)));
            case.eventually("asked", is_open).await;
        }
        if stage == Stage::Overdue {
            sleep(TTL * 2).await;
        }
        if stage == Stage::Ended {
            case.world.engine.cancel(&case.key).await.unwrap();
            case.eventually("the cancel", async || case.world.upstream.cancels() == 1).await;
        }
        case
    }

    async fn phase(&self) -> Option<Phase> {
        let row = self.world.store.load(&self.key, taskgate::task::Timestamp::from_millis(0)).await.unwrap();
        row.map(|row| row.task.phase.clone())
    }

    async fn eventually(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let wait = async {
            while !is_so().await {
                sleep(millis(1)).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, wait).await;
        assert!(came.is_ok(), "{what} never came about: {:?}, {:?}", self.phase().await, self.world.upstream.saw());
    }

    async fn answers(&self) -> BTreeMap<taskgate::task::InputKey, Answer> {
        let open = match self.phase().await {
            Some(Phase::AwaitingInput(open)) => open.keys().copied().collect(),
            _ => vec![taskgate::task::InputKey::default()],
        };
        open.into_iter().map(|key| (key, Answer::Result(Payload::empty_object()))).collect()
    }

    /// Whether the method's change is stored.
    async fn is_stored(&self, then: Then) -> bool {
        match then {
            Then::GivenUp => is_settled(&self.world.store, &self.key).await,
            Then::Answered => !matches!(self.phase().await, Some(Phase::AwaitingInput(_))),
            Then::Same => true,
            Then::Gone => self.phase().await.is_none(),
        }
    }

    /// The effects have come, and nothing is left behind.
    async fn check(self, then: Then) {
        match then {
            Then::GivenUp => {
                self.eventually("the cancel", async || self.world.upstream.cancels() == 1).await;
            }
            Then::Answered => {
                self.eventually("the answer", async || answers(&self.world).len() == 1).await;
                self.eventually("the result", async || self.is_stored(Then::GivenUp).await).await;
                let phase = self.phase().await;
                assert!(matches!(phase, Some(Phase::Settled(Outcome::Returned { .. }))), "{phase:?}");
            }
            Then::Gone => assert!(self.phase().await.is_none()),
            Then::Same => {
                assert!(matches!(self.phase().await, Some(Phase::Working)));
                self.world.engine.cancel(&self.key).await.unwrap();
            }
        }
        if then == Then::Gone {
            assert!(matches!(self.world.engine.load_visible(&self.key).await, Err(TaskError::Unknown)));
        }
        self.eventually("the wake", async || self.woken.is_finished()).await;
        let in_flight = f64::from_bits(self.in_flight.load(Ordering::Relaxed));
        assert!(in_flight.abs() < 0.5, "{in_flight} tasks are counted as in flight");
        self.world.is_idle().await;
        assert!(self.world.upstream.cancels() <= 1 && answers(&self.world).len() <= 1, "each once");
    }
}

async fn is_settled(store: &GatedStore, key: &TaskKey) -> bool {
    let row = store.load(key, taskgate::task::Timestamp::from_millis(0)).await.unwrap();
    row.is_none_or(|row| row.task.is_settled())
}

/// A store of its own for each case.
type MakeStore = fn(&std::path::Path) -> BoxFuture<'static, Arc<GatedStore>>;

fn in_memory(_: &std::path::Path) -> BoxFuture<'static, Arc<GatedStore>> {
    Box::pin(async { GatedStore::new(1 << 20) })
}

fn on_disk(folder: &std::path::Path) -> BoxFuture<'static, Arc<GatedStore>> {
    let mut settings = DiskSettings::new(folder.to_owned(), 1 << 20);
    settings.is_ephemeral = true;
    Box::pin(async move { GatedStore::over(DiskStore::open(settings).await.unwrap()) })
}

async fn drop_each_at_every_point(make: MakeStore) {
    let in_flight = Arc::default();
    let recorder = Recorder(Arc::clone(&in_flight));
    let _recorded = metrics::set_default_local_recorder(&recorder);
    for (method, stage, then, run) in METHODS {
        for polls in 1.. {
            assert!(polls <= POLLS_MAX, "{method} is not done");
            let folder = tempfile::tempdir().unwrap();
            let case = Case::new(make(folder.path()).await, *stage, &in_flight).await;
            let done = cut(polls, run(&case)).await;
            // A begun change comes to its end; one that was not begun was not acknowledged either.
            sleep(millis(20)).await;
            if done.is_none() && !case.is_stored(*then).await {
                run(&case).await;
            }
            case.check(*then).await;
            if done.is_some() {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_finished_at_any_point_of_a_disconnect() {
    drop_each_at_every_point(in_memory).await;
}

#[tokio::test]
async fn requests_are_finished_at_any_point_of_a_disconnect_on_disk() {
    drop_each_at_every_point(on_disk).await;
}

/// L1, T-27: a client with a handle finds its task; a call whose client disconnected before leaves nothing.
async fn drop_calls_at_every_point(make: MakeStore) {
    for (plan, silent) in
        [Plan::Task, Plan::Grace(millis(3)), Plan::Direct].into_iter().flat_map(|plan| [(plan, true), (plan, false)])
    {
        for polls in 1.. {
            assert!(polls <= POLLS_MAX, "{plan:?} is not done");
            let folder = tempfile::tempdir().unwrap();
            let store = make(folder.path()).await;
            store.pauses.store(true, Ordering::Relaxed);
            let script = if silent { Script::silent() } else { Script::returns(Duration::ZERO, "done") };
            let rules = Rules { deadline: seconds(1), ..Rules::mode(TaskMode::Always) };
            let world = World::over(store, rules, move |_| script.clone());
            let mut stream = world.start_as(plan, &Principal::local());
            let event = cut(polls, stream.next()).await;
            drop(stream);
            match &event {
                Some(Some(CallEvent::Created(task))) => {
                    assert!(world.engine.load_visible(&task.key).await.is_ok(), "a handle without a task");
                    world.engine.cancel(&task.key).await.unwrap();
                }
                Some(Some(CallEvent::Ended(_))) | None => (),
                other => panic!("{other:?}"),
            }
            world.is_idle().await;
            let is_task = matches!(event, Some(Some(CallEvent::Created(_))));
            assert_eq!(world.store.usage().tasks, usize::from(is_task), "{plan:?} after {polls} polls");
            if event.is_some() {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_leaves_a_task_or_nothing_wherever_its_client_leaves() {
    drop_calls_at_every_point(in_memory).await;
}

#[tokio::test]
async fn a_call_leaves_a_task_or_nothing_wherever_its_client_leaves_on_disk() {
    drop_calls_at_every_point(on_disk).await;
}

/// Waiting for an event of a call can be dropped and repeated at any point: no event is lost.
#[tokio::test(start_paused = true)]
async fn the_next_event_of_a_call_comes_however_often_it_is_waited_for() {
    let store = GatedStore::new(1 << 20);
    store.pauses.store(true, Ordering::Relaxed);
    let world = World::over(store, Rules::mode(TaskMode::Always), |_| Script::silent());
    let mut stream = world.start_as(Plan::Task, &Principal::local());
    let key = loop {
        if let Some(event) = cut(1, stream.next()).await {
            let Some(CallEvent::Created(task)) = event else { panic!("{event:?}") };
            break task.key.clone();
        }
        tokio::task::yield_now().await;
    };
    drop(stream);
    assert!(world.engine.load_visible(&key).await.is_ok());
}

/// A client that comes back with answers and leaves again: they reach the upstream once or not at all, and the call
/// ends either way.
async fn drop_retries_at_every_point(make: MakeStore) {
    let in_flight = Arc::default();
    for polls in 1.. {
        assert!(polls <= POLLS_MAX, "the retry is not done");
        let folder = tempfile::tempdir().unwrap();
        let case = Case::new(make(folder.path()).await, Stage::Held, &in_flight).await;
        let retry = RoundRetry {
            answers: case.answers().await,
            plan: Plan::Direct,
            questions: Arc::new(|_| Askable::Declared),
        };
        let mut stream = case.world.engine.retry(&case.key, retry).unwrap();
        let event = cut(polls, stream.next()).await;
        drop(stream);
        case.eventually("the end", async || case.is_stored(Then::GivenUp).await).await;
        case.eventually("the wake", async || case.woken.is_finished()).await;
        case.world.is_idle().await;
        let heard = answers(&case.world).len();
        assert!(heard <= 1 && heard + case.world.upstream.cancels() >= 1, "{:?}", case.world.upstream.saw());
        if let Some(event) = event {
            assert!(matches!(event, Some(CallEvent::Ended(_))), "{event:?}");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_and_leaves_at_any_point_leaves_nothing_open() {
    drop_retries_at_every_point(in_memory).await;
}

#[tokio::test]
async fn a_client_that_comes_back_and_leaves_at_any_point_leaves_nothing_open_on_disk() {
    drop_retries_at_every_point(on_disk).await;
}
