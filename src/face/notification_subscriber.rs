//! Receives an upstream's notifications, and renews the subscription when it is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::dialect::subscriptions::SubscriptionFilter;
use crate::upstream::exchange::SubscriptionResult;
use crate::upstream::{CallContext, NotificationSubscription, ServerNotification, Upstream};
use crate::waits::or_pending;

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A subscription that lasted this long counts as successful.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(in crate::face) enum SubscriberEvent {
    News(ServerNotification),
    /// Notifications were missed: anything may have changed.
    TooMuch,
}

/// Subscriptions to single resources that an upstream has confirmed, one each, in order. Dropping this ends them.
#[derive(Debug, Default)]
pub(in crate::face) struct AgreedResources {
    kept: Vec<(String, NotificationSubscription)>,
    has_missed: bool,
}

impl AgreedResources {
    pub(in crate::face) fn add(&mut self, uri: String, agreed: NotificationSubscription) {
        self.has_missed |= self.has_ended();
        self.kept.retain(|(_, kept)| !kept.ended.is_cancelled());
        if self.kept.iter().all(|(known, _)| *known != uri) {
            self.kept.push((uri, agreed));
        }
    }

    pub(in crate::face) fn remove(&mut self, uri: &str) {
        self.kept.retain(|(known, _)| known != uri);
    }

    fn has_ended(&self) -> bool {
        self.kept.iter().any(|(_, kept)| kept.ended.is_cancelled())
    }
}

pub(in crate::face) struct NotificationSubscriber {
    upstream: Arc<dyn Upstream>,
    context: CallContext,
    wishes: SubscriptionFilter,
    /// Read even while its replacement is opened.
    listening: Option<NotificationSubscription>,
    opening: Option<BoxFuture<'static, SubscriptionResult>>,
    agreed: AgreedResources,
    opened: Instant,
    /// Failed subscriptions in a row.
    vain: u32,
    has_missed: bool,
}

impl NotificationSubscriber {
    pub(in crate::face) fn deaf(upstream: &Arc<dyn Upstream>, context: CallContext) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            context,
            wishes: SubscriptionFilter::default(),
            listening: None,
            opening: None,
            agreed: AgreedResources::default(),
            opened: Instant::now(),
            vain: 0,
            has_missed: false,
        }
    }

    /// `wishes` are used to renew it.
    pub(in crate::face) fn open(
        upstream: &Arc<dyn Upstream>,
        context: CallContext,
        wishes: SubscriptionFilter,
        listening: NotificationSubscription,
    ) -> Self {
        Self { wishes, listening: Some(listening), ..Self::deaf(upstream, context) }
    }

    /// As [`NotificationSubscriber::change`], for partly confirmed wishes: their notifications arrive without a gap.
    pub(in crate::face) fn change_to_agreed(&mut self, wishes: SubscriptionFilter, agreed: AgreedResources) {
        self.agreed.has_missed |= agreed.has_missed;
        agreed.kept.into_iter().for_each(|(uri, agreed)| self.agreed.add(uri, agreed));
        self.change(wishes);
    }

    /// The current subscription is read until the upstream has confirmed the new one.
    pub(in crate::face) fn change(&mut self, wishes: SubscriptionFilter) {
        self.agreed.kept.retain(|(uri, _)| wishes.resources.as_ref().is_some_and(|uris| uris.contains(uri)));
        if self.wishes == wishes {
            if self.opening.is_none() {
                self.agreed = AgreedResources::default();
            }
            return;
        }
        self.wishes = wishes;
        if self.wishes.concern_the_upstream() {
            self.reopen(Duration::ZERO);
        } else {
            (self.listening, self.opening) = (None, None);
        }
    }

    /// A lost session is replaced with the same wishes; notifications in between are lost. Cancel safe.
    pub(in crate::face) async fn next(&mut self) -> SubscriberEvent {
        loop {
            tokio::select! {
                biased;
                opened = or_pending(self.opening.as_mut()) => {
                    self.opening = None;
                    match opened {
                        Ok(listening) => {
                            self.take(listening);
                            if std::mem::take(&mut self.has_missed) {
                                return SubscriberEvent::TooMuch;
                            }
                        }
                        Err(error) => {
                            tracing::debug!(%error, "a listener waits for its upstream");
                            self.has_missed |= self.listening.is_none();
                            self.vain = self.vain.saturating_add(1);
                            self.reopen(self.pause());
                        }
                    }
                }
                event = receive(self.listening.as_mut()) => match event {
                    Ok(news) => return SubscriberEvent::News(news),
                    Err(RecvError::Lagged(_)) => return SubscriberEvent::TooMuch,
                    Err(RecvError::Closed) => self.lose(),
                },
            }
        }
    }

    fn take(&mut self, mut listening: NotificationSubscription) {
        self.opened = Instant::now();
        let agreed = std::mem::take(&mut self.agreed);
        self.has_missed |= agreed.has_missed || agreed.has_ended();
        let agreed = agreed.kept.into_iter().map(|(_, agreed)| agreed);
        // Both receive the same: queued notifications of the earlier one are delivered once, and in order.
        if let Some(before) = self.listening.take().into_iter().chain(agreed).find(|one| one.ended == listening.ended) {
            listening.news = before.news;
        }
        self.listening = Some(listening);
    }

    fn lose(&mut self) {
        self.listening = None;
        self.has_missed = true;
        self.vain = if self.opened.elapsed() < USEFUL_AFTER { self.vain.saturating_add(1) } else { 0 };
        if self.opening.is_none() {
            self.reopen(self.pause());
        }
    }

    fn pause(&self) -> Duration {
        match self.vain.checked_sub(1) {
            None => Duration::ZERO,
            Some(again) => (PAUSE_MIN * 2_u32.pow(again.min(6))).min(PAUSE_MAX),
        }
    }

    fn reopen(&mut self, pause: Duration) {
        let (upstream, context, wishes) = (Arc::clone(&self.upstream), self.context.clone(), self.wishes.clone());
        self.opening = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            upstream.listen(&context, &wishes).await
        }));
    }
}

/// Cancel safe.
async fn receive(listening: Option<&mut NotificationSubscription>) -> Result<ServerNotification, RecvError> {
    let Some(listening) = listening else { return std::future::pending().await };
    let event = tokio::select! {
        biased;
        event = listening.news.recv() => event,
        () = listening.ended.cancelled() => Err(RecvError::Closed),
    };
    if matches!(event, Err(RecvError::Lagged(_))) {
        // Everything may have changed: queued notifications add nothing.
        listening.news = listening.news.resubscribe();
    }
    event
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::sync::{broadcast, mpsc};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::task::Principal;
    use crate::upstream::{BeginError, Exchange, Handshake, ResumeToken, Timeouts, UpstreamRequest};
    use crate::wire::Payload;

    const NEWS: &str = "notifications/resources/updated";

    /// Gives every subscriber the next of its subscriptions.
    #[derive(Debug)]
    struct ListenedUpstream(Arc<str>, tokio::sync::Mutex<mpsc::Receiver<NotificationSubscription>>);

    #[async_trait]
    impl Upstream for ListenedUpstream {
        fn name(&self) -> &Arc<str> {
            &self.0
        }

        async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
            unreachable!()
        }

        async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
            unreachable!()
        }

        async fn resume(&self, _: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
            unreachable!()
        }

        async fn notifications(&self, _: &CallContext) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
            unreachable!()
        }

        async fn listen(
            &self,
            _: &CallContext,
            _: &SubscriptionFilter,
        ) -> Result<NotificationSubscription, BeginError> {
            Ok(self.1.lock().await.recv().await.expect("there is one"))
        }
    }

    /// A subscription with a queued notification.
    fn subscription(ended: &CancellationToken) -> NotificationSubscription {
        let (told, news) = broadcast::channel(1);
        told.send((Arc::from(NEWS), None)).expect("a client listens");
        let granted = SubscriptionFilter::default();
        NotificationSubscription { news, granted, ended: ended.clone(), kept: Box::new(told) }
    }

    /// The first event of a subscriber that was handed these subscriptions, and then opens one that ends with `over`.
    async fn first_event(agreed: &[(&str, CancellationToken)], ended: &CancellationToken) -> SubscriberEvent {
        let (subscriptions, queue) = mpsc::channel(1);
        subscriptions.send(subscription(ended)).await.expect("there is room");
        let upstream: Arc<dyn Upstream> = Arc::new(ListenedUpstream(Arc::from("u"), tokio::sync::Mutex::new(queue)));
        let context = CallContext::new(Principal::local(), Payload::empty_object(), Timeouts::default(), 1);
        let mut subscriber = NotificationSubscriber::deaf(&upstream, context);
        let mut handed_over = AgreedResources::default();
        for (uri, ended) in agreed {
            handed_over.add((*uri).to_owned(), subscription(ended));
        }
        let resources = Some(["a".to_owned(), "b".to_owned()].into());
        subscriber.change_to_agreed(SubscriptionFilter { resources, ..SubscriptionFilter::default() }, handed_over);
        subscriber.next().await
    }

    #[tokio::test]
    async fn a_subscription_that_ended_before_its_first_event_has_missed_some() {
        let (gone, live) = (CancellationToken::new(), CancellationToken::new());
        gone.cancel();
        let event = first_event(&[("a", live.clone())], &live).await;
        assert!(matches!(event, SubscriberEvent::News(_)), "nothing was missed: {event:?}");
        let event = first_event(&[("a", gone.clone())], &live).await;
        assert!(matches!(event, SubscriberEvent::TooMuch), "it ended before it was heard: {event:?}");
        let event = first_event(&[("a", gone.clone()), ("b", live.clone())], &live).await;
        assert!(matches!(event, SubscriberEvent::TooMuch), "it ended before another was agreed: {event:?}");
        let event = first_event(&[("a", gone), ("a", live.clone())], &live).await;
        assert!(matches!(event, SubscriberEvent::TooMuch), "it ended before it was agreed again: {event:?}");
    }
}
