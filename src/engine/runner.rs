//! A runner owns one upstream call: it turns the exchange's events into events of the task or of the
//! waiting client, and outlives the client's connection once there is a handle.
//!
//! Order (design.md 3.3): `always` and `required` insert, answer, then begin; `auto` begins and inserts
//! at the grace's end. A handle is sent only after `insert` returned. If the client is gone by then,
//! nobody knows the id: the row is dropped and the upstream told (T-27).

mod client;
mod live;
mod stage;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub(super) use live::LiveRunners;

use self::client::{Client, Held, words};
use self::live::Orders;
use self::stage::{Stage, StageEvent};
use super::admission::Place;
use super::call::{Askable, CallEnd, CallEvent, CallSpec, CallStream, EVENTS_MAX};
use super::{Engine, TaskError};
use crate::dialect::peer::{Refusal, Refused};
use crate::metric;
use crate::task::{
    Attempt, Event, Executed, Failure, GatewayFault, InputKey, Origin, Outcome, Phase, Plan, Reason, Shown, Task,
    TaskKey,
};
use crate::upstream::{Answer, ExchangeEvent, Lost, Progress};
use crate::wire::Payload;

/// Shortest time between two stored progress messages of a task (reliability.md U25).
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Starts a runner for one call.
pub(super) fn start(engine: Arc<Engine>, spec: CallSpec) -> CallStream {
    let (events, stream) = mpsc::channel(EVENTS_MAX);
    let claimed = CancellationToken::new();
    let stream = CallStream { events: stream, claimed: claimed.clone() };
    let span =
        tracing::info_span!("call", upstream = %spec.upstream.name(), tool = %spec.tool, task = tracing::field::Empty);
    let tracker = engine.runners.clone();
    let made: Arc<OnceLock<TaskKey>> = Arc::default();
    tracker.spawn(
        async move {
            let client = Client { events: events.clone(), claimed };
            let runner = Box::new(Runner::new(Arc::clone(&engine), spec, client, Arc::clone(&made)));
            if AssertUnwindSafe(runner.run()).catch_unwind().await.is_err() {
                settle_after_panic(&engine, made.get(), &events).await;
            }
        }
        .instrument(span),
    );
    stream
}

/// A bug ended the runner: whoever waits learns that the call may have run.
async fn settle_after_panic(engine: &Engine, made: Option<&TaskKey>, events: &mpsc::Sender<CallEvent>) {
    tracing::error!("a runner panicked");
    let failure = Failure::Gateway(GatewayFault::new(Reason::Internal, Executed::Unknown));
    match made {
        Some(key) => {
            let settled = engine.apply(key, Event::Faulted { attempt: Attempt::FIRST, failure }).await;
            engine.live.remove(key);
            if let Err(error) = settled {
                tracing::error!(%error, "the task of a runner that panicked could not be settled");
            }
        }
        None => {
            let _ = events.send(CallEvent::Ended(CallEnd::Outcome(Outcome::Faulted(failure)))).await;
        }
    }
}

/// What woke the runner.
enum Step {
    Upstream(StageEvent),
    Orders(live::Order),
    ClientGone,
    GraceOver,
    QueueOver,
    DeadlineOver,
    ProgressDue,
}

struct Runner {
    engine: Arc<Engine>,
    spec: CallSpec,
    stage: Stage,
    client: Client,
    /// The end of the grace period, while it lasts.
    grace_end: Option<Instant>,
    /// How long the call may still wait for its slot, where it lost the handle that it waited for.
    queue_end: Option<Instant>,
    /// From dispatch on.
    deadline: Option<Instant>,
    /// What waits for the grace period's end.
    held: Held,
    place: Option<Place>,
    handle: Option<Handle>,
    /// The task's key, for whoever cleans up after a panic.
    made: Arc<OnceLock<TaskKey>>,
}

/// What a runner has once its call is a task.
struct Handle {
    key: TaskKey,
    orders: Orders,
    progress: Option<Arc<str>>,
    progress_due: Option<Instant>,
}

/// Whether the runner goes on.
enum Next {
    Continue,
    Stop,
}

impl Runner {
    fn new(engine: Arc<Engine>, spec: CallSpec, client: Client, made: Arc<OnceLock<TaskKey>>) -> Self {
        // Without a place `auto` runs plainly (T-58).
        let place = match spec.plan {
            Plan::Direct | Plan::Refuse => None,
            Plan::Grace(_) | Plan::Task => engine.admission.take(&spec.owner).ok(),
        };
        let stage = Stage::new(&spec, place.is_none().then_some(spec.queue_deadline));
        let grace_end = match spec.plan {
            Plan::Grace(grace) if place.is_some() => Some(spec.arrived + grace),
            Plan::Grace(_) | Plan::Direct | Plan::Refuse | Plan::Task => None,
        };
        let held = Held::default();
        let (queue_end, deadline) = (None, None);
        Self { engine, spec, stage, client, grace_end, queue_end, deadline, held, place, handle: None, made }
    }

    async fn run(mut self: Box<Self>) {
        if matches!(self.prepare().await, Next::Stop) {
            return;
        }
        loop {
            let step = self.step().await;
            if matches!(self.handle_step(step).await, Next::Stop) {
                break;
            }
        }
        if let Some(handle) = &self.handle {
            self.engine.live.remove(&handle.key);
        }
    }

    /// Makes the task before the upstream is called, where the plan says so.
    async fn prepare(&mut self) -> Next {
        match self.spec.plan {
            Plan::Grace(_) if self.place.is_none() => {
                self.client.tell(CallEvent::StaysPlain).await;
                Next::Continue
            }
            Plan::Direct | Plan::Refuse | Plan::Grace(_) => Next::Continue,
            Plan::Task if self.place.is_none() => self.refuse(self.engine.admission.refusal()).await,
            Plan::Task => match self.promote().await {
                Ok(next) => next,
                Err(reason) => self.refuse(reason).await,
            },
        }
    }

    async fn refuse(&mut self, reason: Reason) -> Next {
        let failure = Failure::Gateway(GatewayFault::new(reason, Executed::No));
        self.end(Outcome::Faulted(failure)).await
    }

    async fn step(&mut self) -> Step {
        let handle = &mut self.handle;
        let is_task = handle.is_some();
        let progress_due = handle.as_ref().and_then(|handle| handle.progress_due);
        let orders = async {
            match handle {
                Some(handle) => handle.orders.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            order = orders => Step::Orders(order),
            () = self.client.left(), if !is_task => Step::ClientGone,
            () = at(self.deadline) => Step::DeadlineOver,
            event = self.stage.next() => Step::Upstream(event),
            () = at(self.queue_end) => Step::QueueOver,
            () = at(self.grace_end) => Step::GraceOver,
            () = at(progress_due) => Step::ProgressDue,
        }
    }

    async fn handle_step(&mut self, step: Step) -> Next {
        match step {
            Step::Upstream(StageEvent::PlaceTaken) => self.dispatched().await,
            Step::Upstream(StageEvent::Begun) => Next::Continue,
            Step::Upstream(StageEvent::NotBegun(outcome)) => self.end(outcome).await,
            Step::Upstream(StageEvent::Exchange(event)) => match self.heard(event).await {
                Next::Continue => self.catch_up().await,
                Next::Stop => Next::Stop,
            },
            Step::Orders(live::Order::Abandon) => {
                self.stage.cancel("the task was cancelled").await;
                Next::Stop
            }
            Step::Orders(live::Order::Deliver(answers)) => {
                for (ask, answer) in answers {
                    if let Err(lost) = self.stage.answer(&ask, answer).await {
                        tracing::warn!(%lost, "an answer did not reach the upstream");
                    }
                }
                Next::Continue
            }
            Step::ClientGone => {
                self.stage.cancel("the client left").await;
                Next::Stop
            }
            Step::DeadlineOver => {
                self.stage.cancel("the call ran longer than its deadline").await;
                self.end(lost(GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown))).await
            }
            Step::GraceOver => self.grace_over().await,
            Step::QueueOver => {
                let failure = GatewayFault::new(Reason::QueueDeadline, Executed::No);
                let shed = self.spec.slots.as_ref().map_or(failure, |slots| slots.shed(Reason::QueueDeadline));
                self.end(lost(shed)).await
            }
            Step::ProgressDue => self.store_progress().await,
        }
    }

    /// Serves timers that are overdue: an upstream that never pauses must not keep them from being heard.
    async fn catch_up(&mut self) -> Next {
        let now = Instant::now();
        if self.grace_end.is_some_and(|end| end < now) {
            return self.grace_over().await;
        }
        if self.handle.as_ref().and_then(|handle| handle.progress_due).is_some_and(|due| due < now) {
            return self.store_progress().await;
        }
        Next::Continue
    }

    async fn grace_over(&mut self) -> Next {
        self.grace_end = None;
        match self.promote().await {
            Ok(next) => next,
            Err(reason) => self.stay_plain(reason).await,
        }
    }

    /// No task could be made: the call is held (design.md 3.3), and what waited may go out now. Without a
    /// handle to wait under, it waits for its slot no longer than any plain call.
    async fn stay_plain(&mut self, reason: Reason) -> Next {
        let reason = crate::dialect::faults::reason_key(reason);
        tracing::warn!(reason, "the call could not become a task and is held");
        self.place = None;
        self.queue_end = self.stage.is_waiting().then(|| self.spec.arrived + self.spec.queue_deadline);
        self.client.tell(CallEvent::StaysPlain).await;
        self.client.release(std::mem::take(&mut self.held)).await;
        Next::Continue
    }

    async fn dispatched(&mut self) -> Next {
        self.queue_end = None;
        self.deadline = Some(Instant::now() + self.spec.policy.deadline);
        match self.handle_key() {
            Some(key) => {
                // The row says `dispatching` before the first byte goes out (design.md 4).
                match self.engine.apply(&key, Event::Dispatched { attempt: Attempt::FIRST }).await {
                    Ok(applied) if applied.changed => Next::Continue,
                    // It was settled while it waited: nothing is sent after an acknowledged cancel (L6).
                    Ok(_) => Next::Stop,
                    Err(error) => {
                        tracing::error!(%error, "the task could not be marked as sent and is not sent");
                        self.end(lost(GatewayFault::new(Reason::StoreFailed, Executed::No))).await
                    }
                }
            }
            None => Next::Continue,
        }
    }

    async fn heard(&mut self, event: ExchangeEvent) -> Next {
        match event {
            ExchangeEvent::Progress(progress) => self.progressed(progress).await,
            ExchangeEvent::Log(log) => self.logged(log).await,
            ExchangeEvent::Asked { ask, method, .. } => self.asked(&ask, &method).await,
            // Questions are refused at once, so there is nothing open to take back.
            ExchangeEvent::Withdrawn { .. } => Next::Continue,
            ExchangeEvent::Returned(result) => {
                let outcome = match self.spec.peer.decode_result(result) {
                    Ok(returned) => Outcome::Returned { result: returned.result, is_error: returned.is_error },
                    Err(reason) => lost(GatewayFault::new(reason, Executed::Yes)),
                };
                self.end(outcome).await
            }
            ExchangeEvent::Faulted(error) => self.end(Outcome::Faulted(Failure::Upstream(error))).await,
            ExchangeEvent::Lost(Lost(fault)) => self.end(lost(fault)).await,
        }
    }

    async fn progressed(&mut self, progress: Progress) -> Next {
        if let Some(handle) = &mut self.handle {
            if let Some(words) = words(&progress) {
                handle.progress = Some(words);
                handle.progress_due.get_or_insert_with(Instant::now);
            }
        } else if self.grace_end.is_some() {
            self.held.keep_progress(progress);
        } else {
            self.client.tell(CallEvent::Progress(progress)).await;
        }
        Next::Continue
    }

    async fn logged(&mut self, log: Payload) -> Next {
        if self.handle.is_some() {
            // Log messages never travel for tasks (EXT-52).
        } else if self.grace_end.is_some() {
            self.held.keep_log(log);
        } else {
            self.client.tell(CallEvent::Log(log)).await;
        }
        Next::Continue
    }

    /// Refuses a question. A plain call that cannot be served without it ends with what its client must
    /// declare (MOD-10); every other question gets the answer that protocol.md 5.9 gives.
    async fn asked(&mut self, ask: &Payload, method: &str) -> Next {
        let why = match (self.spec.questions)(method) {
            Askable::Declared => Refusal::Unanswered,
            Askable::Required(capability) if self.handle.is_none() => {
                self.stage.cancel("the client cannot be asked").await;
                self.client.tell(CallEvent::Ended(CallEnd::NeedsCapability(capability))).await;
                return Next::Stop;
            }
            Askable::Undeclared | Askable::Required(_) => Refusal::Undeclared,
        };
        let answer = match self.spec.peer.refuse(method, why) {
            Refused::Result(result) => Answer::Result(result),
            Refused::Error(error) => Answer::Error(error),
        };
        if let Err(lost) = self.stage.answer(ask, answer).await {
            tracing::warn!(%lost, "a refusal did not reach the upstream");
        }
        Next::Continue
    }

    async fn store_progress(&mut self) -> Next {
        let Some(handle) = &mut self.handle else { return Next::Continue };
        let Some(message) = handle.progress.take() else {
            handle.progress_due = None;
            return Next::Continue;
        };
        // Due again, so that what comes within the interval is stored at its end.
        handle.progress_due = Some(Instant::now() + PROGRESS_INTERVAL);
        let event = Event::Progressed { attempt: Attempt::FIRST, message };
        if let Err(error) = self.engine.apply(&handle.key, event).await {
            tracing::warn!(%error, "progress was not stored");
        }
        Next::Continue
    }

    /// Makes the task and hands out its handle.
    async fn promote(&mut self) -> Result<Next, Reason> {
        let key = self.engine.mint_key(&self.spec.owner);
        let now = self.engine.clock.now();
        let policy = &self.spec.policy;
        let task = Task {
            key: key.clone(),
            shown: Shown::Handle,
            origin: Origin { upstream: Arc::clone(self.spec.upstream.name()), tool: Arc::clone(&self.spec.tool) },
            created_at: now,
            updated_at: now,
            ttl: policy.ttl,
            keep_result_min: policy.keep_result_min,
            poll_interval: policy.poll_interval,
            attempt: Attempt::FIRST,
            phase: if self.stage.is_waiting() { Phase::Queued } else { Phase::Working },
            next_key: InputKey::default(),
            status_message: self.held.last_words(),
        };
        // Orders can be given from the moment the row is there.
        let orders = self.engine.live.insert(key.clone());
        if let Err(error) = self.engine.store.insert(&task).await {
            self.engine.live.remove(&key);
            tracing::warn!(%error, "a task could not be stored");
            return Err(TaskError::from(error).reason());
        }
        let _ = self.made.set(key.clone());
        tracing::Span::current().record("task", tracing::field::debug(key.id));
        if !self.client.hand_over(Arc::new(task)).await {
            return Ok(self.drop_orphan(&key).await);
        }
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::TASKS_CREATED, "upstream" => Arc::clone(&upstream)).increment(1);
        metrics::gauge!(metric::TASKS_IN_FLIGHT, "upstream" => upstream).increment(1.0);
        if matches!(self.spec.plan, Plan::Grace(_)) {
            self.count_grace("task");
        }
        tracing::info!("a call became a task");
        self.held = Held::default();
        self.handle = Some(Handle { key, orders, progress: None, progress_due: None });
        Ok(Next::Continue)
    }

    /// The client left before it could learn the id: nobody will ever ask (T-27).
    async fn drop_orphan(&mut self, key: &TaskKey) -> Next {
        self.engine.live.remove(key);
        if let Err(error) = self.engine.store.remove(key).await {
            tracing::warn!(%error, "a task that nobody knows was not dropped");
        }
        self.stage.cancel("the client left").await;
        Next::Stop
    }

    /// Settles the task, or answers the client that waits.
    async fn end(&mut self, outcome: Outcome) -> Next {
        let Some(key) = self.handle_key() else {
            if self.grace_end.take().is_some() {
                self.count_grace("plain");
            }
            self.client.release(std::mem::take(&mut self.held)).await;
            self.client.tell(CallEvent::Ended(CallEnd::Outcome(outcome))).await;
            return Next::Stop;
        };
        // The last words belong to the task even where they came too fast to be stored one by one.
        if let Some(message) = self.handle.as_mut().and_then(|handle| handle.progress.take()) {
            let _ = self.engine.apply(&key, Event::Progressed { attempt: Attempt::FIRST, message }).await;
        }
        let attempt = Attempt::FIRST;
        let event = match outcome {
            Outcome::Returned { result, is_error } => Event::Returned { attempt, result, is_error },
            Outcome::Faulted(failure) => Event::Faulted { attempt, failure },
            Outcome::Cancelled => Event::CancelRequested,
        };
        match self.engine.apply(&key, event).await {
            Ok(applied) if !applied.changed => {
                metrics::counter!(metric::UPSTREAM_DROPPED, "upstream" => Arc::clone(self.spec.upstream.name()), "reason" => "settled")
                    .increment(1);
                tracing::info!("a late outcome was dropped");
            }
            Ok(_) => (),
            Err(error) => tracing::error!(%error, "an outcome could not be stored"),
        }
        Next::Stop
    }

    fn handle_key(&self) -> Option<TaskKey> {
        self.handle.as_ref().map(|handle| handle.key.clone())
    }

    fn count_grace(&self, result: &'static str) {
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::GRACE, "upstream" => upstream, "result" => result).increment(1);
    }
}

/// Sleeps until a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

const fn lost(fault: GatewayFault) -> Outcome {
    Outcome::Faulted(Failure::Gateway(fault))
}
