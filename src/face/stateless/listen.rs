//! Serves `subscriptions/listen`: one long response with the notifications of a subscription (MOD-24).
//!
//! The stream reads notifications when its client reads: a slow client delays only itself, and repeated changes
//! meanwhile are sent once.

mod watched_tasks;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::{StatelessFace, StatelessRequestContext, not_begun};
use crate::cause::CauseChain;
use crate::dialect::RequestError;
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::subscriptions::{Subscription, SubscriptionFilter};
use crate::face::answer::{bare, event_stream, missed};
use crate::face::call_stream::{CallMessage, CallMessages, stream};
use crate::face::http::FaceResponse;
use crate::face::listen_permits::ListenPermit;
use crate::face::notification_subscriber::{NotificationSubscriber, SubscriberEvent};
use crate::task::{Executed, GatewayFault, HandleSupport, Reason};
use crate::upstream::BeginError;
use crate::wire::Payload;
use watched_tasks::WatchedTasks;

enum ListenRefusal {
    Complaint(RequestError),
    Fault(GatewayFault),
    NotAcceptable,
}

impl From<RequestError> for ListenRefusal {
    fn from(complaint: RequestError) -> Self {
        Self::Complaint(complaint)
    }
}

impl From<BeginError> for ListenRefusal {
    fn from(error: BeginError) -> Self {
        Self::Fault(not_begun(error))
    }
}

impl StatelessFace {
    /// Dropping the response or this future ends subscriptions without another holder: the client disconnected.
    pub(super) async fn listen(&self, inquiry: &StatelessRequestContext<'_>) -> FaceResponse {
        let addressee = &inquiry.addressee;
        match Box::pin(self.begin_to_listen(inquiry)).await {
            // Counted as one miss: a client that reconnects may name all tasks that it ever had.
            Ok(listening) => {
                let has_missed = listening.watched.has_missed();
                let response = event_stream(stream(listening, addressee.clone(), None));
                if has_missed {
                    self.misses.note(&inquiry.principal);
                    return missed(response);
                }
                response
            }
            Err(ListenRefusal::Complaint(complaint)) => addressee.complaint(&complaint),
            Err(ListenRefusal::Fault(fault)) => addressee.fault(&fault),
            Err(ListenRefusal::NotAcceptable) => bare(StatusCode::NOT_ACCEPTABLE),
        }
    }

    async fn begin_to_listen(&self, inquiry: &StatelessRequestContext<'_>) -> Result<ListenStream, ListenRefusal> {
        if !inquiry.addressee.accepted.takes_stream() {
            return Err(ListenRefusal::NotAcceptable);
        }
        let Some(id) = inquiry.addressee.id.clone() else { return Err(ListenRefusal::Fault(INTERNAL)) };
        if SubscriptionFilter::speak_of_tasks(inquiry.params) && inquiry.metadata.takes_tasks() == HandleSupport::No {
            return Err(StatelessRequest::needs_extension().into());
        }
        let wishes = SubscriptionFilter::read(inquiry.params)?;
        let listeners = &self.served.listeners;
        let permit = match inquiry.is_counted {
            true => None,
            false => {
                Some(listeners.take(&inquiry.counted_as, self.served.upstream.name()).map_err(ListenRefusal::Fault)?)
            }
        };
        let (subscriber, mut granted) = self.subscribe(inquiry, wishes).await?;
        let watched = WatchedTasks::new(
            Arc::clone(&self.served.engine),
            self.dialect(),
            inquiry.metadata.clone(),
            &inquiry.principal,
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
            ending: Some(listeners.ending().clone()),
            server_info: self.identity(),
            _permit: permit,
        })
    }

    /// Subscribes to the upstream's notifications that are wished for and offered.
    async fn subscribe(
        &self,
        inquiry: &StatelessRequestContext<'_>,
        wishes: SubscriptionFilter,
    ) -> Result<(NotificationSubscriber, SubscriptionFilter), ListenRefusal> {
        let context = self.context(inquiry);
        let upstream = &self.served.upstream;
        if !wishes.concern_the_upstream() {
            return Ok((NotificationSubscriber::deaf(upstream, context), wishes));
        }
        let facts = upstream.facts(&context).await?;
        self.remember(&facts);
        let mut granted = wishes.within(&facts.capabilities);
        if !granted.concern_the_upstream() {
            return Ok((NotificationSubscriber::deaf(upstream, context), granted));
        }
        let listening = upstream.listen(&context, &granted).await?;
        granted = SubscriptionFilter { tasks: granted.tasks.take(), ..granted.in_common(&listening.granted) };
        Ok((NotificationSubscriber::open(upstream, context, granted.of_the_upstream(), listening), granted))
    }
}

const INTERNAL: GatewayFault = GatewayFault::new(Reason::Internal, Executed::No);

struct ListenStream {
    subscription: Subscription,
    granted: SubscriptionFilter,
    subscriber: NotificationSubscriber,
    watched: WatchedTasks,
    /// Bounded by the granted subscription.
    due: VecDeque<Bytes>,
    /// Ends the stream properly; `None` once it has.
    ending: Option<CancellationToken>,
    server_info: Payload,
    /// `None` if the stream's reader holds a permit for it.
    _permit: Option<ListenPermit>,
}

impl CallMessages for ListenStream {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            let ending = self.ending.as_ref()?;
            if let Some(message) = self.due.pop_front() {
                return Some(CallMessage::event(message));
            }
            let event = tokio::select! {
                () = ending.cancelled() => {
                    self.ending = None;
                    return Some(CallMessage::event(self.subscription.ended(&self.server_info)));
                }
                snapshot = self.watched.next() => {
                    self.due.extend(self.subscription.task(&snapshot));
                    continue;
                }
                event = self.subscriber.next() => event,
            };
            match event {
                SubscriberEvent::News((name, params)) => {
                    self.due.extend(self.subscription.passed_on(&self.granted, &name, params.as_ref()));
                }
                SubscriberEvent::TooMuch => self.due.extend(self.subscription.anything(&self.granted)),
            }
        }
    }
}
