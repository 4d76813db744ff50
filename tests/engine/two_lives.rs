//! Calls over real sockets that outlive the process which made them: one engine is killed with its whole runtime, and
//! the next one continues with its stored rows (GW-39).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kept;

use support::scripted as server;
use support::serving;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use taskgate::engine::recovery::{self, CallTargets};
use taskgate::engine::{CallEvent, CallTarget, Engine};
use taskgate::shared_limits::SharedLimits;
use taskgate::store::TaskStore;
use taskgate::task::{
    Answer, Failure, GatewayFault, InputKey, Outcome, Phase, Plan, Principal, SystemClock, Task, TaskKey, TaskMode,
    ToolPolicy,
};
use taskgate::upstream::http::{HttpUpstreamSettings, SessionUpstream};
use taskgate::upstream::limits::{CallPermitSettings, CallPermits};
use taskgate::upstream::{TaskScope, Upstream, UpstreamRequest};
use taskgate::wire::Payload;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use kept::Kept;
use server::{BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, in_time, status};

fn policy() -> ToolPolicy {
    let hour = Duration::from_secs(3600);
    ToolPolicy {
        grace: Duration::from_millis(50),
        ttl: hour,
        ttl_max: hour,
        keep_result_min: hour,
        input_deadline: hour,
        ..serving::policy(TaskMode::Auto)
    }
}

/// One process.
struct Process {
    engine: Arc<Engine>,
    upstream: Arc<dyn Upstream>,
    permits: Arc<CallPermits>,
    /// Dropped with all that runs in it.
    runtime: Option<Runtime>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Process {
    fn start(kept: &Kept, server: &ScriptedServer, first_id: u128) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        crate::listen_to_logs();
        let settings = HttpUpstreamSettings::new(Arc::from("scripted"), server.url());
        let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let upstream: Arc<dyn Upstream> = Arc::new(SessionUpstream::new(settings, life).unwrap());
        let limits = SharedLimits::default();
        let engine = Engine::new(
            Arc::clone(&kept.store) as Arc<dyn TaskStore>,
            Arc::new(SystemClock),
            Box::new(move || first_id),
            10,
            limits.clone(),
        );
        let in_flight_max = NonZeroUsize::MIN;
        let settings = CallPermitSettings { in_flight_max, queue_max: 1 };
        let permits = Arc::new(CallPermits::new(Arc::from("scripted"), settings, limits));
        drop(_inside);
        Self { engine, upstream, permits, runtime: Some(runtime) }
    }

    fn spawn<T: Send + 'static>(&self, doing: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
        self.runtime.as_ref().unwrap().spawn(doing)
    }

    /// Makes a call that becomes a task.
    async fn call(&self) -> TaskKey {
        let params = Some(Payload::of(&json!({ "name": "slow", "arguments": {} })));
        let request = UpstreamRequest { method: Arc::from("tools/call"), params };
        let capabilities = Payload::of(&json!({ "elicitation": { "form": {} } }));
        let maker = serving::maker(&Principal::local(), capabilities);
        let mut spec = self.target().plain_call(maker, request, Some((Arc::from("slow"), policy())));
        spec.plan = Plan::Task;
        spec.context.progress = true;
        let engine = Arc::clone(&self.engine);
        let called = self.spawn(async move { engine.call(spec).next().await });
        match in_time(called).await.unwrap() {
            Some(CallEvent::Created(task)) => task.key.clone(),
            other => panic!("no handle: {other:?}"),
        }
    }

    fn target(&self) -> CallTarget {
        serving::target(Arc::clone(&self.upstream), &self.permits, serving::settings(policy()))
    }

    async fn recover(&self) {
        let engine = Arc::clone(&self.engine);
        let pass = self.spawn(recovery::run(engine, CallTargets::new([self.target()]), CancellationToken::new()));
        in_time(pass).await.unwrap();
    }

    /// Waits until the task is as it is meant to be.
    async fn sees(&self, key: &TaskKey, is_meant: impl Fn(&Task) -> bool) -> Arc<Task> {
        let mut watcher = self.engine.watchers().watch(key).unwrap();
        in_time(async {
            loop {
                let task = self.engine.load_any(key).await.unwrap();
                if is_meant(&task) {
                    return task;
                }
                // Changes that only a later process can see wake no watcher.
                let _ = tokio::time::timeout(Duration::from_millis(20), watcher.changed()).await;
            }
        })
        .await
    }
}

fn is_resume(seen: &SeenRequest) -> bool {
    seen.method == Method::GET && seen.headers.contains_key("last-event-id")
}

fn is_answer(seen: &SeenRequest) -> bool {
    seen.body.get("result").is_some()
}

fn question() -> Value {
    json!({ "jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": { "message": "sure?" } })
}

fn progress(call: &SeenRequest) -> Value {
    let params = json!({ "progressToken": call.token(), "progress": 1, "total": 2, "message": "half" });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

/// Answers a call by a stream with an event id that has this message and stays open, and its resumption by `rest`.
async fn server(
    first: fn(&SeenRequest) -> Value,
    rest: fn(&SeenRequest, Arc<ScriptedState>, BodySender),
) -> ScriptedServer {
    ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| async move {
        if seen.is_call() {
            let (events, reply) = BodySender::open();
            events.raw("id: e-1\nretry: 100\ndata: \n\n");
            events.numbered("e-2", &first(&seen));
            return Some(held(reply, events));
        }
        let call = world.all(SeenRequest::is_call).into_iter().next()?;
        if is_resume(&seen) {
            let (events, reply) = BodySender::open();
            rest(&call, world, events.clone());
            return Some(held(reply, events));
        }
        (seen.method == Method::GET).then(|| status(405))
    })
    .await
}

/// A stream that stays open until its reader leaves.
fn held(reply: ScriptedReply, events: BodySender) -> ScriptedReply {
    TaskTracker::new().spawn(async move { events.left().await });
    reply
}

fn returned(task: &Task) -> &str {
    match &task.phase {
        Phase::Settled(Outcome::Returned { result, .. }) => result.as_str(),
        Phase::Settled(Outcome::Faulted(Failure::Gateway(GatewayFault { reason, .. }))) => panic!("{reason:?}"),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(_) => panic!("{:?}", task.phase),
    }
}

fn has_place(task: &Task, event: &str) -> bool {
    task.recovery.resume.as_ref().is_some_and(|place| place.as_str().contains(event))
}

/// F09, F10, U23, GW-41: the stream is resumed after the stored event, and only the call's own answer counts.
#[tokio::test]
async fn f09_f10_u23_a_call_is_taken_up_by_the_next_process() {
    let server = server(progress, |call, _, events| {
        events.numbered("x-1", &json!({ "jsonrpc": "2.0", "id": "tg:other", "result": { "of": "another" } }));
        events.numbered("e-2", &progress(call));
        events.result(call, &json!({ "content": [], "n": 1.10 }));
    })
    .await;
    let store = Kept::open().await;
    let first = Process::start(&store, &server, 1);
    let key = first.call().await;
    first.sees(&key, |task| has_place(task, "e-2")).await;
    drop(first);
    let store = store.next_life().await;
    let second = Process::start(&store, &server, 2);
    assert_eq!(second.engine.load_any(&key).await.unwrap().phase, Phase::Working, "until it is looked at");
    second.recover().await;
    let task = second.sees(&key, Task::is_settled).await;
    assert_eq!(returned(&task), r#"{"content":[],"n":1.1}"#);
    let resume = server.world.first(is_resume).await;
    let marks = (resume.header("last-event-id"), resume.header("mcp-session-id"));
    assert_eq!(marks, (Some("e-2"), Some("s-1")));
    assert_eq!((server.world.count("tools/call"), server.world.count("initialize")), (1, 1), "L4");
}

/// Says nothing until the question was answered.
fn waits_for_answer(call: &SeenRequest, world: Arc<ScriptedState>, events: BodySender) {
    let call = call.clone();
    TaskTracker::new().spawn(async move {
        let answer = world.first(is_answer).await;
        events.result(&call, &json!({ "content": [], "said": answer.body["result"] }));
    });
}

/// F11, F12, F14: a question stays open under its key whether or not it is replayed, and its answer reaches the
/// upstream also if it came before recovery.
#[tokio::test]
async fn f11_f12_f14_a_question_over_http_is_answered_in_the_next_process() {
    let replays = |call: &SeenRequest, world: Arc<ScriptedState>, events: BodySender| {
        events.numbered("e-2", &question());
        waits_for_answer(call, world, events);
    };
    let rests: [fn(&SeenRequest, Arc<ScriptedState>, BodySender); 2] = [waits_for_answer, replays];
    for (rest, is_early) in [(rests[0], true), (rests[0], false), (rests[1], true), (rests[1], false)] {
        let server = server(|_| question(), rest).await;
        let store = Kept::open().await;
        let first = Process::start(&store, &server, 1);
        let key = first.call().await;
        first.sees(&key, |task| matches!(task.phase, Phase::AwaitingInput(_)) && has_place(task, "e-2")).await;
        drop(first);
        let store = store.next_life().await;
        let second = Process::start(&store, &server, 2);
        let answers = BTreeMap::from([(InputKey(0), Answer::Result(Payload::of(&json!({ "action": "accept" }))))]);
        if is_early {
            second.engine.answer(&taskgate::task::Caller::of(key.owner.clone()), key.id, answers).await.unwrap();
            second.recover().await;
        } else {
            second.recover().await;
            server.world.first(is_resume).await;
            let task = second.engine.load_any(&key).await.unwrap();
            let Phase::AwaitingInput(open) = &task.phase else { panic!("{:?}", task.phase) };
            assert_eq!(open.keys().collect::<Vec<_>>(), [&InputKey(0)]);
            second.engine.answer(&taskgate::task::Caller::of(key.owner.clone()), key.id, answers).await.unwrap();
        }
        let task = second.sees(&key, Task::is_settled).await;
        assert_eq!(returned(&task), r#"{"content":[],"said":{"action":"accept"}}"#);
        let given = server.world.all(is_answer);
        assert_eq!(given.len(), 1, "L5");
        let marks = (&given[0].body["id"], given[0].header("mcp-session-id"));
        assert_eq!(marks, (&json!(7), Some("s-1")));
        assert_eq!(server.world.count("tools/call"), 1, "L4");
    }
}

/// F20: a task that was cancelled before recovery is cancelled at the upstream, under the call's id.
#[tokio::test]
async fn f20_an_upstream_is_told_of_a_cancel_by_the_next_process() {
    let server = server(progress, |_, _, _| ()).await;
    let store = Kept::open().await;
    let first = Process::start(&store, &server, 1);
    let key = first.call().await;
    first.sees(&key, |task| has_place(task, "e-2")).await;
    drop(first);
    let store = store.next_life().await;
    let second = Process::start(&store, &server, 2);
    second.engine.cancel(&key).await.unwrap();
    second.recover().await;
    let told = server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    let call = server.world.first(SeenRequest::is_call).await;
    assert_eq!((&told.body["params"]["requestId"], told.header("mcp-session-id")), (&call.body["id"], Some("s-1")));
    let task = second.sees(&key, |task| !task.recovery.must_notify_upstream()).await;
    assert_eq!(task.phase, Phase::Settled(Outcome::Cancelled));
}

/// The upstream gets nothing: no cancel, and no end of the call's session.
#[tokio::test]
async fn f67_a_drained_call_is_left_in_its_session_for_the_next_process() {
    let server = server(progress, |call, _, events| events.result(call, &json!({ "content": [] }))).await;
    let store = Kept::open().await;
    let first = Process::start(&store, &server, 1);
    let key = first.call().await;
    let (engine, upstream) = (Arc::clone(&first.engine), Arc::clone(&first.upstream));
    let drained = first.spawn(async move {
        let left = engine.drain(Duration::from_secs(10)).await;
        upstream.close().await;
        left
    });
    assert_eq!(in_time(drained).await.unwrap(), 0, "no drain waits for it");
    assert_eq!(server.world.all(|seen| seen.method == Method::DELETE).len(), 0, "its session stays");
    drop(first);
    let store = store.next_life().await;
    let second = Process::start(&store, &server, 2);
    second.recover().await;
    let task = second.sees(&key, Task::is_settled).await;
    assert_eq!(returned(&task), r#"{"content":[]}"#);
    assert_eq!(server.world.count("tools/call") + server.world.count("notifications/cancelled"), 1);
}
