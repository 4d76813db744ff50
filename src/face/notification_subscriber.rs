//! What the upstream says that belongs to no call, from whichever session or stream there is at the moment.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::dialect::subscriptions::SubscriptionFilter;
use crate::upstream::{BeginError, CallContext, NotificationSubscription, ServerNotification, Upstream};

/// Soonest and latest repetition where listening was in vain.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A session that was heard for this long was of use even if it is lost.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

/// What was heard.
#[derive(Debug)]
pub(in crate::face) enum SubscriberEvent {
    News(ServerNotification),
    /// Something was missed: anything may have changed.
    TooMuch,
}

/// What an upstream has agreed to tell of single resources: at most once each, in the order in which it did. It is told as
/// long as this is kept.
#[derive(Debug, Default)]
pub(in crate::face) struct AgreedResources {
    kept: Vec<(String, NotificationSubscription)>,
    /// Whether one of them was over before anybody heard it.
    has_missed: bool,
}

impl AgreedResources {
    pub(in crate::face) fn add(&mut self, uri: String, agreed: NotificationSubscription) {
        self.has_missed |= self.has_ended();
        self.kept.retain(|(_, kept)| !kept.over.is_cancelled());
        if self.kept.iter().all(|(known, _)| *known != uri) {
            self.kept.push((uri, agreed));
        }
    }

    pub(in crate::face) fn remove(&mut self, uri: &str) {
        self.kept.retain(|(known, _)| known != uri);
    }

    fn has_ended(&self) -> bool {
        self.kept.iter().any(|(_, kept)| kept.over.is_cancelled())
    }
}

/// One listener's ear at an upstream.
pub(in crate::face) struct NotificationSubscriber {
    upstream: Arc<dyn Upstream>,
    context: CallContext,
    wishes: SubscriptionFilter,
    /// Heard as long as it lasts, also while another is opened in its place.
    listening: Option<NotificationSubscription>,
    opening: Option<BoxFuture<'static, Result<NotificationSubscription, BeginError>>>,
    /// What is among the wishes, and not yet among what is heard; no more than they are.
    agreed: AgreedResources,
    opened: Instant,
    /// How often in a row listening was in vain.
    vain: u32,
    /// Whether something was said that nobody heard.
    has_missed: bool,
}

impl NotificationSubscriber {
    /// Nothing of the upstream's is of interest.
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

    /// An ear that hears already. `wishes` are what it is opened again for.
    pub(in crate::face) fn open(
        upstream: &Arc<dyn Upstream>,
        context: CallContext,
        wishes: SubscriptionFilter,
        listening: NotificationSubscription,
    ) -> Self {
        Self { wishes, listening: Some(listening), ..Self::deaf(upstream, context) }
    }

    /// The same as [`NotificationSubscriber::change`], where the upstream has agreed to some of it already: it is told of that
    /// without a gap.
    pub(in crate::face) fn change_to_agreed(&mut self, wishes: SubscriptionFilter, agreed: AgreedResources) {
        self.agreed.has_missed |= agreed.has_missed;
        agreed.kept.into_iter().for_each(|(uri, agreed)| self.agreed.add(uri, agreed));
        self.change(wishes);
    }

    /// Wants to hear something else from now on. What is heard already is heard on until the upstream has agreed.
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

    /// What is heard next. A session that is lost is replaced, with the same wishes; what was said between the two
    /// nobody knows. Cancel safe.
    pub(in crate::face) async fn next(&mut self) -> SubscriberEvent {
        loop {
            tokio::select! {
                biased;
                opened = opened(self.opening.as_mut()) => {
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
                heard = hear(self.listening.as_mut()) => match heard {
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
        // Where both hear the same, what the one before has still to say is said once, and in order.
        if let Some(before) = self.listening.take().into_iter().chain(agreed).find(|one| one.over == listening.over) {
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

/// What is said next where anything is heard. Cancel safe.
async fn hear(listening: Option<&mut NotificationSubscription>) -> Result<ServerNotification, RecvError> {
    let Some(listening) = listening else { return std::future::pending().await };
    let heard = tokio::select! {
        biased;
        heard = listening.news.recv() => heard,
        () = listening.over.cancelled() => Err(RecvError::Closed),
    };
    if matches!(heard, Err(RecvError::Lagged(_))) {
        // All of it may have changed, so what is still to come of it says nothing new.
        listening.news = listening.news.resubscribe();
    }
    heard
}

async fn opened(
    opening: Option<&mut BoxFuture<'static, Result<NotificationSubscription, BeginError>>>,
) -> Result<NotificationSubscription, BeginError> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::sync::{broadcast, mpsc};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::task::Principal;
    use crate::upstream::{Exchange, ResumeToken, ServerFacts, Timeouts, UpstreamRequest};
    use crate::wire::Payload;

    const NEWS: &str = "notifications/resources/updated";

    /// Gives everybody who listens the next of its subscriptions.
    #[derive(Debug)]
    struct ListenedUpstream(Arc<str>, tokio::sync::Mutex<mpsc::Receiver<NotificationSubscription>>);

    #[async_trait]
    impl Upstream for ListenedUpstream {
        fn name(&self) -> &Arc<str> {
            &self.0
        }

        async fn facts(&self, _: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
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

        async fn close(&self) {}
    }

    /// Something is told on it already.
    fn subscription(over: &CancellationToken) -> NotificationSubscription {
        let (told, news) = broadcast::channel(1);
        told.send((Arc::from(NEWS), None)).expect("somebody listens");
        let granted = SubscriptionFilter::default();
        NotificationSubscription { news, granted, over: over.clone(), kept: Box::new(told) }
    }

    /// What a subscriber hears first that was handed these subscriptions, and then listens to one that ends with `over`.
    async fn first_heard(agreed: &[(&str, CancellationToken)], over: &CancellationToken) -> SubscriberEvent {
        let (subscriptions, queue) = mpsc::channel(1);
        subscriptions.send(subscription(over)).await.expect("there is room");
        let upstream: Arc<dyn Upstream> = Arc::new(ListenedUpstream(Arc::from("u"), tokio::sync::Mutex::new(queue)));
        let context = CallContext::new(Principal::local(), Payload::empty_object(), Timeouts::default(), 1);
        let mut ear = NotificationSubscriber::deaf(&upstream, context);
        let mut handed_over = AgreedResources::default();
        for (uri, over) in agreed {
            handed_over.add((*uri).to_owned(), subscription(over));
        }
        let resources = Some(["a".to_owned(), "b".to_owned()].into());
        ear.change_to_agreed(SubscriptionFilter { resources, ..SubscriptionFilter::default() }, handed_over);
        ear.next().await
    }

    #[tokio::test]
    async fn what_was_agreed_and_ended_before_it_was_heard_has_missed_something() {
        let (gone, live) = (CancellationToken::new(), CancellationToken::new());
        gone.cancel();
        let heard = first_heard(&[("a", live.clone())], &live).await;
        assert!(matches!(heard, SubscriberEvent::News(_)), "nothing was missed: {heard:?}");
        let heard = first_heard(&[("a", gone.clone())], &live).await;
        assert!(matches!(heard, SubscriberEvent::TooMuch), "it ended before it was heard: {heard:?}");
        let heard = first_heard(&[("a", gone.clone()), ("b", live.clone())], &live).await;
        assert!(matches!(heard, SubscriberEvent::TooMuch), "it ended before another was agreed: {heard:?}");
        let heard = first_heard(&[("a", gone), ("a", live.clone())], &live).await;
        assert!(matches!(heard, SubscriberEvent::TooMuch), "it ended before it was agreed again: {heard:?}");
    }
}
