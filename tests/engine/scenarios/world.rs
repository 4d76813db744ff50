//! An engine, a stateless face in front of it, a clock that follows the paused time, and clients.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use support::serving;
use taskgate::engine::recovery::{self, CallTargets};
use taskgate::engine::{CallSpec, CallStream, CallTarget, Engine, RoundSupport, changes_elsewhere};
use taskgate::face::endpoint::UpstreamEndpoint;
use taskgate::face::http::{AcceptedTypes, Endpoint, Inbound};
use taskgate::face::listen_permits::ListenPermits;
use taskgate::face::served::Served;
use taskgate::shared_limits::SharedLimits;
use taskgate::store::TaskStore;
use taskgate::task::{Clock, Plan, Principal, Task, TaskKey, Timestamp};
use taskgate::upstream::limits::{CallPermitSettings, CallPermits};
use taskgate::upstream::{Upstream, UpstreamRequest};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use super::answer::Answer;
use super::lives::{Mortal, Process};
pub(crate) use super::rules::Rules;
use super::script::{Call, Script, Scripted};
use super::stores::GatedStore;

pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const GRACE: Duration = seconds(2);

/// Wall time that moves with the paused time, from a fixed moment on.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_785_196_800_000).after(self.0.elapsed())
    }
}

/// The parts of both faces; the server knows no sessions.
fn served(rules: Rules, server: Arc<dyn Upstream>, permits: &Arc<CallPermits>, engine: &Arc<Engine>) -> Served {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    Served {
        settings: Arc::new(rules.service()),
        engine: Arc::clone(engine),
        permits: Arc::clone(permits),
        random: || DRAWN.fetch_add(1, Ordering::Relaxed).into(),
        is_stateless: true,
        ..serving::served(server, serving::Unreachable::named("scripted"))
    }
}

/// Everything on one side of the network.
pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) store: Arc<GatedStore>,
    pub(crate) upstream: Arc<Scripted>,
    pub(crate) permits: Arc<CallPermits>,
    pub(crate) rules: Rules,
    pub(crate) started: Instant,
    /// Ends the streams of those who listen.
    pub(crate) ending: CancellationToken,
    pub(crate) life: Process,
    pub(crate) face: Arc<UpstreamEndpoint>,
    clients: TaskTracker,
    follows: Once,
}

impl World {
    /// A world whose upstream treats every call in the same way.
    pub(crate) fn with(rules: Rules, script: Script) -> Self {
        Self::choosing(rules, move |_| script.clone())
    }

    pub(crate) fn choosing(rules: Rules, choose: impl Fn(&Call) -> Script + Send + Sync + 'static) -> Self {
        Self::over(GatedStore::new(rules.stored_bytes_max), rules, choose)
    }

    /// A world that keeps its tasks in this store.
    pub(crate) fn over(
        store: Arc<GatedStore>,
        rules: Rules,
        choose: impl Fn(&Call) -> Script + Send + Sync + 'static,
    ) -> Self {
        let upstream = Scripted::new(Arc::clone(&store) as Arc<dyn TaskStore>, choose);
        Self::alive(rules, Instant::now(), store, upstream, 1)
    }

    /// This process is killed, in any state; the next one begins with the stored rows. Nothing is recovered before
    /// [`World::recover`].
    pub(crate) fn next_life(&self) -> Self {
        self.life.end();
        self.store.next_life();
        let number = self.engine.usage().tasks as u64 + 1_000 * (self.started.elapsed().as_millis() as u64 + 1);
        Self::alive(self.rules, self.started, Arc::clone(&self.store), Arc::clone(&self.upstream), number)
    }

    /// Another gateway beside this one, at the same rows and the same server. From here on, both follow the other's
    /// writes, and take over the rows that it leaves.
    pub(crate) fn beside(&self) -> Self {
        static OTHERS: AtomicU64 = AtomicU64::new(1);
        let first_id = OTHERS.fetch_add(1, Ordering::Relaxed) << 40;
        let other = Self::alive(self.rules, self.started, self.store.beside(), Arc::clone(&self.upstream), first_id);
        for world in [self, &other] {
            world.follows();
        }
        other
    }

    /// The background work of a gateway.
    fn follows(&self) {
        self.follows.call_once(|| {
            let (engine, stop) = (Arc::clone(&self.engine), self.ending.clone());
            self.clients.spawn(recovery::run(Arc::clone(&engine), self.origins(), stop.clone()));
            self.clients.spawn(changes_elsewhere::run(engine, stop));
        });
    }

    fn alive(rules: Rules, started: Instant, store: Arc<GatedStore>, upstream: Arc<Scripted>, first_id: u64) -> Self {
        crate::listen_to_logs();
        let life = Process::default();
        let mortal: Arc<dyn Upstream> = Arc::new(Mortal::new(&upstream, &life, rules.durable));
        let limits = SharedLimits::default();
        let next_id = AtomicU64::new(first_id);
        let engine = Engine::new(
            Arc::new(Mortal::new(&store, &life, rules.durable)),
            Arc::new(PausedClock(started)),
            Box::new(move || u128::from(next_id.fetch_add(1, Ordering::Relaxed)) << 64),
            rules.tasks_max,
            limits.clone(),
        );
        let in_flight_max = NonZeroUsize::new(rules.in_flight_max).unwrap();
        let settings = CallPermitSettings { in_flight_max, queue_max: rules.queue_max };
        let permits = Arc::new(CallPermits::new(Arc::from("scripted"), settings, limits.clone()));
        let ending = CancellationToken::new();
        let face = Arc::new(UpstreamEndpoint::new(Arc::new(Served {
            listeners: ListenPermits::new(ending.clone(), limits),
            listens_end: ending.clone(),
            clock: Arc::new(PausedClock(started)),
            ..served(rules, mortal, &permits, &engine)
        })));
        Self {
            engine,
            store,
            upstream,
            permits,
            rules,
            started,
            ending,
            life,
            face,
            clients: TaskTracker::new(),
            follows: Once::new(),
        }
    }

    /// The targets of recovered calls.
    pub(crate) fn origins(&self) -> CallTargets {
        CallTargets::new([self.target(Arc::new(Mortal::new(&self.upstream, &self.life, self.rules.durable)))])
    }

    /// The target of calls at this server.
    pub(crate) fn target(&self, upstream: Arc<dyn Upstream>) -> CallTarget {
        serving::target(upstream, &self.permits, self.rules.service())
    }

    /// Recovers everything that earlier processes left behind.
    pub(crate) async fn recover(&self) {
        recovery::run(Arc::clone(&self.engine), self.origins(), CancellationToken::new()).await;
    }

    /// Starts a call at the engine itself, as a client with the extension.
    pub(crate) fn start(&self) -> CallStream {
        self.start_as(self.plan(), &Principal::local())
    }

    fn plan(&self) -> Plan {
        self.rules.mode.plan(taskgate::task::HandleSupport::AfterGrace, GRACE)
    }

    pub(crate) fn start_as(&self, plan: Plan, owner: &Principal) -> CallStream {
        self.engine.call(self.spec(plan, owner))
    }

    pub(crate) fn spec(&self, plan: Plan, owner: &Principal) -> CallSpec {
        let params = Some(super::script::payload(r#"{"name":"work"}"#));
        let request = UpstreamRequest { method: Arc::from("tools/call"), params };
        let maker = serving::maker(owner, taskgate::wire::Payload::empty_object());
        let target = self.target(Arc::clone(&self.upstream) as Arc<dyn Upstream>);
        let mut spec = target.plain_call(maker, request, Some((Arc::from("work"), self.rules.policy())));
        spec.context.progress = true;
        CallSpec { plan, rounds: RoundSupport::Allowed, ..spec }
    }

    /// How a task stands, by the engine's own view.
    pub(crate) async fn task(&self, key: &TaskKey) -> Arc<Task> {
        self.engine.load_visible(key).await.unwrap()
    }

    /// All calls have ended, and no place is taken any more. Nothing can be called after this.
    pub(crate) async fn is_idle(&self) {
        assert_eq!(self.engine.drain(seconds(600)).await, 0, "runners");
        assert_eq!(self.store.usage().unsettled, 0, "unsettled tasks");
        assert_eq!(self.engine.permits_taken(), 0, "task places");
        let (mut permits, owner) = (Vec::new(), Principal::local());
        for _ in 0..self.rules.in_flight_max {
            permits.push(self.permits.acquire(&owner, Some(Duration::ZERO)).await.expect("every slot is free"));
        }
    }

    /// Sends a request, and has the client wait for its answer however long it takes.
    pub(crate) async fn send(&self, ask: &Ask) -> Answer {
        Answer::of(self.face.serve(Box::new(ask.inbound())).await, self.started)
    }

    /// The same without waiting: dropping the future disconnects the client.
    pub(crate) fn sending(&self, ask: &Ask) -> impl Future<Output = Answer> + Send + 'static {
        let (face, started, inbound) = (Arc::clone(&self.face), self.started, Box::new(ask.inbound()));
        async move { Answer::of(face.serve(inbound).await, started) }
    }

    /// The same in the background.
    pub(crate) fn client(&self, ask: &Ask) -> tokio::task::JoinHandle<Answer> {
        self.clients.spawn(self.sending(ask))
    }

    /// Sends a call that becomes a task, and returns its handle.
    pub(crate) async fn handle(&self, ask: &Ask) -> String {
        let answer = self.send(ask).await.json().await;
        answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {answer}")).to_owned()
    }

    /// `tasks/get`, as `local`.
    pub(crate) async fn get(&self, id: &str) -> Value {
        self.send(&Ask::task("tasks/get", id)).await.json().await["result"].take()
    }

    /// The engine's law, as far as the store can be read: an unsettled row that this process holds has a runner.
    pub(crate) async fn every_row_is_run(&self) {
        for key in self.engine.rows_without_runner().await.unwrap_or_default() {
            let task = self.engine.load_any(&key).await.unwrap();
            // A subtask that its parent does not name is no task: the next looks remove it.
            assert!(task.tree.parent.is_some(), "a row has no runner: {task:?}");
        }
    }

    /// Polls as a client does, until the task is settled.
    pub(crate) async fn settled(&self, id: &str) -> Value {
        loop {
            let task = self.get(id).await;
            self.every_row_is_run().await;
            match task["status"].as_str() {
                Some("working" | "input_required") => tokio::time::sleep(seconds(1)).await,
                _ => return task,
            }
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }
}

/// One request of a stateless client.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    id: Value,
    method: &'static str,
    params: Value,
    capabilities: Value,
    meta: Value,
    name: Option<String>,
    principal: Principal,
    accepted: AcceptedTypes,
    arrived: Option<Instant>,
}

impl Ask {
    pub(crate) fn new(method: &'static str, params: Value) -> Self {
        Self {
            id: json!(1),
            method,
            params,
            capabilities: json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }),
            meta: json!({}),
            name: None,
            principal: Principal::local(),
            accepted: AcceptedTypes::Both,
            arrived: None,
        }
    }

    /// A call of the tool `work` by a client with the extension.
    pub(crate) fn call() -> Self {
        Self::tool("work")
    }

    /// A call of any tool by such a client.
    pub(crate) fn tool(name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new("tools/call", json!({ "name": name, "arguments": {} })) }
    }

    /// A method of the extension.
    pub(crate) fn task(method: &'static str, id: &str) -> Self {
        Self::named(method, "taskId", id)
    }

    /// A method whose params name something, which the headers repeat.
    pub(crate) fn named(method: &'static str, member: &str, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new(method, json!({ member: name })) }
    }

    /// A client that declares these capabilities alone.
    pub(crate) fn declaring(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    pub(crate) fn without_extension(self) -> Self {
        self.declaring(json!({}))
    }

    /// Wants no answer.
    pub(crate) fn notification(self) -> Self {
        self.id(Value::Null)
    }

    pub(crate) fn id(self, id: impl Into<Value>) -> Self {
        Self { id: id.into(), ..self }
    }

    pub(crate) fn arguments(self, arguments: Value) -> Self {
        self.member("arguments", arguments)
    }

    /// A further member of `params`.
    pub(crate) fn member(mut self, name: &str, value: Value) -> Self {
        self.params[name] = value;
        self
    }

    pub(crate) fn principal(self, name: &str) -> Self {
        Self { principal: Principal::new(name), ..self }
    }

    pub(crate) fn accepting(self, accepted: AcceptedTypes) -> Self {
        Self { accepted, ..self }
    }

    /// A further member of `_meta`.
    pub(crate) fn saying(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.meta[name] = value.into();
        self
    }

    /// Wants progress under this token.
    pub(crate) fn token(self, token: impl Into<Value>) -> Self {
        self.saying("progressToken", token)
    }

    /// Wants log messages from this level on.
    pub(crate) fn log_level(mut self, level: &str) -> Self {
        self.meta["io.modelcontextprotocol/logLevel"] = json!(level);
        self
    }

    /// The head was read this long ago.
    pub(crate) fn arrived_before(self, ago: Duration) -> Self {
        Self { arrived: Some(Instant::now() - ago), ..self }
    }

    fn inbound(&self) -> Inbound {
        let mut params = self.params.clone();
        params["_meta"] = self.meta.clone();
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        let mut body = json!({ "jsonrpc": "2.0", "method": self.method, "params": params });
        if !self.id.is_null() {
            body["id"] = self.id.clone();
        }
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        };
        put("mcp-protocol-version", "2026-07-28");
        put("mcp-method", self.method);
        if let Some(name) = &self.name {
            put("mcp-name", name);
        }
        let caller = taskgate::task::Caller::of(self.principal.clone());
        Inbound {
            headers,
            body: Bytes::from(body.to_string()),
            accepted: self.accepted,
            received_at: self.arrived.unwrap_or_else(Instant::now),
            ..Inbound::new(Method::POST, "/mcp".to_owned(), caller)
        }
    }
}
