//! How a call gets its row, its handle and its end.

use std::sync::Arc;

use tokio::time::Instant;

use super::client::Held;
use super::live::Orders;
use super::{CallEnd, CallEvent, Next, Runner};
use crate::engine::TaskError;
use crate::metric;
use crate::task::{
    Attempt, Event, Executed, Failure, GatewayFault, InputKey, Origin, Outcome, Phase, Plan, Question, Reason,
    Recovery, Shown, Task, TaskKey, transition,
};

/// What a runner has once its call has a row.
pub(super) struct Row {
    pub(super) key: TaskKey,
    /// Whether its owner has the handle.
    pub(super) shown: Shown,
    pub(super) orders: Orders,
    pub(super) progress: Option<Arc<str>>,
    pub(super) progress_due: Option<Instant>,
}

impl Runner {
    pub(super) fn row_key(&self) -> Option<TaskKey> {
        self.row.as_ref().map(|row| row.key.clone())
    }

    /// Whether the client has, or is being given, a handle.
    pub(super) fn has_handle(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.shown == Shown::Handle)
    }

    /// Makes the task, or shows the hidden one, and hands out its handle.
    pub(super) async fn promote(&mut self, first: Option<Question>) -> Result<Next, Reason> {
        let task = match self.row_key() {
            Some(key) => self.reveal(&key).await?,
            None => self.insert(Shown::Handle, first).await?,
        };
        if !self.client.hand_over(CallEvent::Created(task)).await {
            return Ok(self.drop_orphan().await);
        }
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::TASKS_CREATED, "upstream" => Arc::clone(&upstream)).increment(1);
        metrics::gauge!(metric::TASKS_IN_FLIGHT, "upstream" => upstream).increment(1.0);
        if matches!(self.spec.plan, Plan::Grace(_)) {
            self.count_grace("task");
        }
        tracing::info!("a call became a task");
        self.held = Held::default();
        Ok(Next::Continue)
    }

    /// Adds the row, with its first question where that is what it is made for.
    pub(super) async fn insert(&mut self, shown: Shown, first: Option<Question>) -> Result<Arc<Task>, Reason> {
        let key = self.engine.mint_key(&self.spec.owner);
        let now = self.engine.clock.now();
        let policy = &self.spec.policy;
        let mut task = Task {
            key: key.clone(),
            shown,
            origin: Origin {
                upstream: Arc::clone(self.spec.upstream.name()),
                tool: Arc::clone(&self.spec.tool),
                maker: self.spec.maker,
            },
            created_at: now,
            updated_at: now,
            ttl: policy.ttl,
            keep_result_min: policy.keep_result_min,
            poll_interval: policy.poll_interval,
            attempt: Attempt::FIRST,
            phase: if self.stage.is_waiting() { Phase::Queued } else { Phase::Working },
            next_key: InputKey::default(),
            status_message: self.held.last_words(),
            recovery: Recovery::default(),
            idempotency: None,
        };
        if let Some(question) = first {
            task = transition(task, Event::Asked { attempt: Attempt::FIRST, question }, now).0;
        }
        // Orders can be given from the moment the row is there.
        let orders = self.engine.live.insert(key.clone());
        if let Err(error) = self.engine.store.insert(&task).await {
            self.engine.live.remove(&key);
            tracing::warn!(%error, "a task could not be stored");
            return Err(TaskError::from(error).reason());
        }
        let _ = self.made.set(key.clone());
        tracing::Span::current().record("task", tracing::field::debug(key.id));
        self.row = Some(Row { key, shown, orders, progress: None, progress_due: None });
        Ok(Arc::new(task))
    }

    /// The hidden task becomes the one that the client gets to know: same row, same id.
    async fn reveal(&mut self, key: &TaskKey) -> Result<Arc<Task>, Reason> {
        let applied = self.engine.apply(key, Event::Revealed).await.map_err(|error| error.reason())?;
        match &mut self.row {
            Some(row) if applied.changed => row.shown = Shown::Handle,
            // It was settled in between: the order that says so is on its way.
            Some(_) | None => return Err(Reason::TtlExpired),
        }
        Ok(applied.task)
    }

    /// The client left before it could learn the id: nobody will ever ask (T-27).
    async fn drop_orphan(&mut self) -> Next {
        if let Some(row) = self.row.take() {
            self.engine.live.remove(&row.key);
            if let Err(error) = self.engine.store.remove(&row.key).await {
                tracing::warn!(%error, "a task that nobody knows was not dropped");
            }
        }
        self.stage.cancel("the client left").await;
        Next::Stop
    }

    /// A client without a handle cancels its call by leaving (MOD-20).
    pub(super) async fn client_left(&mut self) -> Next {
        self.settle_cancelled().await;
        self.stage.cancel("the client left").await;
        Next::Stop
    }

    /// Settles the row, if there is one, as cancelled.
    pub(super) async fn settle_cancelled(&mut self) {
        if let Some(key) = self.row_key()
            && let Err(error) = self.engine.apply(&key, Event::CancelRequested).await
        {
            tracing::error!(%error, "a cancel could not be stored");
        }
    }

    /// Settles the task, and answers the client that waits.
    pub(super) async fn end(&mut self, outcome: Outcome) -> Next {
        if self.spec.plan == Plan::Task && self.asks_first() && self.row.is_some() && self.is_waited_for() {
            // `always` and `required` end in a handle, however quick the call was after its questions.
            match self.promote(None).await {
                Ok(Next::Stop) => return Next::Stop,
                Ok(Next::Continue) => (),
                Err(_) => tracing::warn!("a call stays without the handle that it should have"),
            }
        }
        if self.grace_end.take().is_some() && matches!(self.spec.plan, Plan::Grace(_)) {
            self.count_grace("plain");
        }
        if let Some(key) = self.row_key() {
            self.settle(&key, outcome.clone()).await;
        }
        if self.client.is_there() {
            self.client.release(std::mem::take(&mut self.held)).await;
            self.client.end(CallEnd::Outcome(outcome)).await;
        }
        Next::Stop
    }

    async fn settle(&mut self, key: &TaskKey, outcome: Outcome) {
        // The last words belong to the task even where they came too fast to be stored one by one.
        if let Some(message) = self.row.as_mut().and_then(|row| row.progress.take()) {
            let _ = self.engine.apply(key, Event::Progressed { attempt: Attempt::FIRST, message }).await;
        }
        let attempt = Attempt::FIRST;
        let event = match outcome {
            Outcome::Returned { result, is_error } => Event::Returned { attempt, result, is_error },
            Outcome::Faulted(failure) => Event::Faulted { attempt, failure },
            Outcome::Cancelled => Event::CancelRequested,
        };
        match self.engine.apply(key, event).await {
            Ok(applied) if !applied.changed => {
                metrics::counter!(metric::UPSTREAM_DROPPED, "upstream" => Arc::clone(self.spec.upstream.name()), "reason" => "settled")
                    .increment(1);
                tracing::info!("a late outcome was dropped");
            }
            Ok(_) => (),
            Err(error) => tracing::error!(%error, "an outcome could not be stored"),
        }
    }

    /// The runner's last act. A client that still waits is told what became of its call.
    pub(super) async fn leave(mut self: Box<Self>) {
        let Some(row) = &mut self.row else { return };
        self.engine.live.remove(&row.key);
        while let Some(seat) = row.orders.late() {
            self.client.seat(seat);
        }
        if self.client.is_there() {
            let end = match self.engine.held(&row.key).await {
                Ok(task) => end_of(&task),
                Err(_) => CallEnd::Gone,
            };
            self.client.end(end).await;
        }
    }
}

/// How a settled task is told to a client that waits for it.
fn end_of(task: &Task) -> CallEnd {
    match &task.phase {
        Phase::Settled(Outcome::Cancelled) => CallEnd::Gone,
        Phase::Settled(outcome) => CallEnd::Outcome(outcome.clone()),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => {
            CallEnd::Outcome(Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::Internal, Executed::Unknown))))
        }
    }
}
