//! Serves `subscriptions/listen`: one long response with the notifications of a subscription (MOD-24). Notifications
//! are read when the client reads: a slow client delays only itself; repeated changes are sent once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{StatelessFace, StatelessRequestContext};
use crate::cause::CauseChain;
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::subscriptions::{Subscription, SubscriptionFilter};
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::change_subscribers::ChangeSubscriber;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::face::answer::{event_stream, missed};
use crate::face::call_stream::{CallMessage, CallMessages, stream};
use crate::face::http::FaceResponse;
use crate::face::listen_permits::ListenPermit;
use crate::face::notification_subscriber::{NotificationSubscriber, SubscriberEvent};
use crate::face::served::Served;
use crate::task::{Caller, Executed, GatewayFault, HandleSupport, Reason, Task, TaskKey};
use crate::upstream::BeginError;
use crate::wire::{Object, Payload};

enum ListenRefusal {
    Complaint(RequestError),
    Fault(GatewayFault),
    NotAcceptable,
}

from_variant!(ListenRefusal::Complaint(RequestError));

impl From<BeginError> for ListenRefusal {
    fn from(error: BeginError) -> Self {
        Self::Fault(error.into_fault())
    }
}

impl StatelessFace {
    /// Dropping the response or this future ends subscriptions without another holder: the client disconnected.
    pub(super) async fn listen(&self, request: &StatelessRequestContext<'_>) -> FaceResponse {
        let addressee = &request.addressee;
        match Box::pin(self.begin_to_listen(request)).await {
            // Counted as one miss: a client that reconnects may name all tasks that it ever had.
            Ok(listening) => {
                let has_missed = listening.watched.has_missed;
                let response = event_stream(stream(listening, addressee.clone(), None));
                if has_missed {
                    self.misses.note(&request.caller.principal);
                    return missed(response);
                }
                response
            }
            Err(ListenRefusal::Complaint(complaint)) => addressee.complaint(&complaint),
            Err(ListenRefusal::Fault(fault)) => addressee.fault(&fault),
            Err(ListenRefusal::NotAcceptable) => addressee.needs_stream(),
        }
    }

    async fn begin_to_listen(&self, request: &StatelessRequestContext<'_>) -> Result<ListenStream, ListenRefusal> {
        if !request.addressee.accepted.takes_stream() {
            return Err(ListenRefusal::NotAcceptable);
        }
        let Some(id) = request.addressee.id.clone() else { return Err(ListenRefusal::Fault(INTERNAL)) };
        if SubscriptionFilter::speak_of_tasks(request.params) && request.metadata.takes_tasks() == HandleSupport::No {
            return Err(StatelessRequest::needs_extension().into());
        }
        let wishes = SubscriptionFilter::read(request.params)?;
        let permit = self.listen_permit(request).map_err(ListenRefusal::Fault)?;
        let (subscriber, mut granted) = self.subscribe(request, wishes).await?;
        let watched = WatchedTasks::new(
            Arc::clone(&self.served.engine),
            self.dialect(),
            request.metadata.detached(),
            &request.caller,
            &mut granted,
        );
        let watched = watched.await.map_err(|error| {
            tracing::error!(error = %CauseChain(&error), "a task could not be served");
            ListenRefusal::Fault(GatewayFault::new(error.reason(), Executed::No))
        })?;
        let subscription = Subscription::new(id);
        Ok(ListenStream {
            due: VecDeque::from([subscription.acknowledged(&granted)]),
            subscription,
            granted,
            subscriber,
            watched,
            served: Arc::clone(&self.served),
            listens_end: Some(self.served.listens_end.clone()),
            server_info: self.identity(),
            _permit: permit,
        })
    }

    /// A permit for a stream; `None` if its reader holds one.
    pub(super) fn listen_permit(
        &self,
        request: &StatelessRequestContext<'_>,
    ) -> Result<Option<ListenPermit>, GatewayFault> {
        let take = || self.served.listeners.take(&request.counted_as, self.served.upstream.name());
        if request.is_counted { Ok(None) } else { take().map(Some) }
    }

    /// Subscribes to the upstream's notifications that are wished for and offered.
    async fn subscribe(
        &self,
        request: &StatelessRequestContext<'_>,
        wishes: SubscriptionFilter,
    ) -> Result<(NotificationSubscriber, SubscriptionFilter), ListenRefusal> {
        let context = self.context(request);
        let upstream = &self.served.upstream;
        if !wishes.concern_the_upstream() {
            return Ok((NotificationSubscriber::deaf(upstream, context), wishes));
        }
        let handshake = upstream.handshake(&context).await?;
        self.cache_identity(&handshake);
        let mut granted = wishes.within(&handshake.capabilities);
        if !granted.concern_the_upstream() {
            return Ok((NotificationSubscriber::deaf(upstream, context), granted));
        }
        let listening = upstream.listen(&context, &granted).await?;
        granted = SubscriptionFilter { tasks: granted.tasks.take(), ..granted.in_common(&listening.granted) };
        Ok((NotificationSubscriber::open(upstream, context, granted.of_the_upstream(), listening), granted))
    }
}

const LAST_READ_MAX: Duration = Duration::from_secs(1);
const INTERNAL: GatewayFault = GatewayFault::new(Reason::Internal, Executed::No);

struct ListenStream {
    subscription: Subscription,
    granted: SubscriptionFilter,
    subscriber: NotificationSubscriber,
    watched: WatchedTasks,
    served: Arc<Served>,
    /// Bounded by the granted subscription.
    due: VecDeque<Bytes>,
    /// Ends the stream properly; `None` once it has.
    listens_end: Option<CancellationToken>,
    server_info: Payload,
    /// `None` if the stream's reader holds a permit for it.
    _permit: Option<ListenPermit>,
}

impl ListenStream {
    /// The notification for the client, judged by the rights of its caller now (SEC-48).
    fn passed_on(&self, name: &str, params: Option<&Payload>) -> Option<Bytes> {
        let is_seen = self.served.may_see(&self.watched.caller, name, params.and_then(Object::of).as_ref());
        is_seen.then(|| self.subscription.passed_on(&self.granted, name, params)).flatten()
    }

    fn anything(&self) -> Vec<Bytes> {
        let mut granted = self.granted.clone();
        granted.resources = granted.resources.map(|all| self.served.visible(&self.watched.caller, all));
        self.subscription.anything(&granted).collect()
    }
}

impl CallMessages for ListenStream {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            let listens_end = self.listens_end.as_ref()?;
            if let Some(message) = self.due.pop_front() {
                return Some(CallMessage::event(message));
            }
            let event = tokio::select! {
                () = listens_end.cancelled() => {
                    if let Ok(Some(snapshot)) = timeout(LAST_READ_MAX, self.watched.next_stored()).await {
                        self.due.extend(self.subscription.task(&snapshot));
                        continue;
                    }
                    self.listens_end = None;
                    return Some(CallMessage::event(self.subscription.ended(&self.server_info)));
                }
                snapshot = self.watched.next() => {
                    self.due.extend(self.subscription.task(&snapshot));
                    continue;
                }
                event = self.subscriber.next() => event,
            };
            match event {
                SubscriberEvent::News((name, params)) => self.due.extend(self.passed_on(&name, params.as_ref())),
                SubscriberEvent::TooMuch => self.due.extend(self.anything()),
            }
        }
    }
}

/// The tasks of a subscription: their state at the beginning, then after each change.
struct WatchedTasks {
    engine: Arc<Engine>,
    caller: Caller,
    dialect: ExtTasks,
    metadata: StatelessRequest,
    /// Tasks that have changed or were not read yet.
    due: VecDeque<WatchedTask>,
    quiet: FuturesUnordered<BoxFuture<'static, WatchedTask>>,
    has_missed: bool,
}

struct WatchedTask {
    key: TaskKey,
    watcher: ChangeSubscriber,
    /// The last state sent, while it may still change.
    sent: Option<Payload>,
    /// The time until the next try after a failed read.
    again: Option<Duration>,
    pauses: RetryDelays,
}

impl WatchedTask {
    fn new(key: TaskKey, watcher: ChangeSubscriber) -> Self {
        Self { key, watcher, sent: None, again: None, pauses: RetryDelays::of_readers() }
    }

    async fn due(mut self) -> Self {
        match self.again.take() {
            // An unread change may have been the last.
            Some(pause) => drop(timeout(pause, self.watcher.changed()).await),
            None => self.watcher.changed().await,
        }
        self
    }
}

impl WatchedTasks {
    /// Watches the granted tasks, and removes unknown tasks, foreign tasks and tasks with too many watchers from the
    /// grant (T-53). An error if a task could not be read: then its existence is unknown.
    async fn new(
        engine: Arc<Engine>,
        dialect: ExtTasks,
        metadata: StatelessRequest,
        caller: &Caller,
        granted: &mut SubscriptionFilter,
    ) -> Result<Self, TaskError> {
        let (mut due, mut has_missed) = (VecDeque::new(), false);
        if let Some(ids) = &mut granted.tasks {
            for id in std::mem::take(ids) {
                let key = caller.task(id);
                // Read after the watch began, so that no change is missed.
                let Ok(watcher) = engine.watchers().watch(&key) else { continue };
                match engine.get(caller, id).await {
                    Ok(_) => {
                        ids.insert(id);
                        due.push_back(WatchedTask::new(key, watcher));
                    }
                    Err(TaskError::Unknown) => has_missed = true,
                    Err(error @ (TaskError::Contended | TaskError::Store(_))) => return Err(error),
                }
            }
        }
        Ok(Self { engine, caller: caller.clone(), dialect, metadata, due, quiet: FuturesUnordered::new(), has_missed })
    }

    /// The `tasks/get` result of the next changed task. Cancel safe.
    async fn next(&mut self) -> Payload {
        loop {
            if let Some(snapshot) = self.next_due().await {
                return snapshot;
            }
            match self.quiet.next().await {
                Some(one) => self.due.push_back(one),
                None => std::future::pending().await,
            }
        }
    }

    /// The same of the next task that has changed by now. Cancel safe.
    async fn next_stored(&mut self) -> Option<Payload> {
        while let Some(Some(one)) = self.quiet.next().now_or_never() {
            self.due.push_back(one);
        }
        self.next_due().await
    }

    async fn next_due(&mut self) -> Option<Payload> {
        while let Some(one) = self.due.front() {
            // Stays in front until it was read: this future may be dropped in between.
            let read = self.engine.get_unaudited(&self.caller, one.key.id).await;
            let mut one = self.due.pop_front()?;
            let task = match read {
                Ok(task) => task,
                Err(TaskError::Unknown) => continue,
                Err(error) => {
                    tracing::debug!(error = %CauseChain(&error), "a listener's task could not be read and is read again");
                    self.read_again(one);
                    continue;
                }
            };
            let snapshot = self.snapshot(&task).filter(|snapshot| one.sent.as_ref() != Some(snapshot));
            // The outcome is sent once the audit has recorded the read.
            if snapshot.is_some() && self.engine.record_shown(&task).is_err() {
                self.read_again(one);
                continue;
            }
            one.pauses = RetryDelays::of_readers();
            if !task.is_settled() {
                one.sent = snapshot.clone().or(one.sent);
                self.quiet.push(Box::pin(one.due()));
            }
            if snapshot.is_some() {
                return snapshot;
            }
        }
        None
    }

    fn read_again(&self, mut one: WatchedTask) {
        one.again = Some(one.pauses.take());
        self.quiet.push(Box::pin(one.due()));
    }

    /// `None` if the task asks a question of a kind that this client did not declare (GW-25).
    fn snapshot(&self, task: &Task) -> Option<Payload> {
        let open = task.open_questions().map(|(_, question)| &question.request);
        if self.metadata.missing(open).is_some() {
            return None;
        }
        self.dialect.encode(TaskReply::Snapshot(task)).ok()
    }
}
