//! What the upstream says that belongs to no call, from whichever session there is at the moment.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::dialect::subscriptions::Wishes;
use crate::upstream::{BeginError, CallContext, Listening, News, Upstream};

/// Soonest and latest repetition where listening was in vain.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A session that was heard for this long was of use even if it is lost.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    News(News),
    /// Something was missed: anything may have changed.
    TooMuch,
}

/// One listener's ear at an upstream.
pub(super) struct Ear {
    upstream: Arc<dyn Upstream>,
    context: CallContext,
    state: State,
    opened: Instant,
    /// How often in a row listening was in vain.
    vain: u32,
}

enum State {
    /// Nothing of the upstream's is of interest.
    Deaf,
    Open(Listening),
    Opening(BoxFuture<'static, Result<Listening, BeginError>>),
}

impl Ear {
    pub(super) fn deaf(upstream: &Arc<dyn Upstream>, context: CallContext) -> Self {
        Self::new(upstream, context, State::Deaf)
    }

    pub(super) fn open(upstream: &Arc<dyn Upstream>, context: CallContext, listening: Listening) -> Self {
        Self::new(upstream, context, State::Open(listening))
    }

    fn new(upstream: &Arc<dyn Upstream>, context: CallContext, state: State) -> Self {
        Self { upstream: Arc::clone(upstream), context, state, opened: Instant::now(), vain: 0 }
    }

    /// What is heard next. A session that is lost is replaced, with the same subscriptions; what was said
    /// between the two nobody knows. Cancel safe.
    pub(super) async fn next(&mut self, granted: &Wishes) -> Heard {
        loop {
            match &mut self.state {
                State::Deaf => std::future::pending().await,
                State::Open(listening) => {
                    let heard = tokio::select! {
                        biased;
                        heard = listening.news.recv() => heard,
                        () = listening.over.cancelled() => Err(RecvError::Closed),
                    };
                    match heard {
                        Ok(news) => return Heard::News(news),
                        Err(RecvError::Lagged(_)) => {
                            listening.news = listening.news.resubscribe();
                            return Heard::TooMuch;
                        }
                        Err(RecvError::Closed) => {
                            self.vain =
                                if self.opened.elapsed() < USEFUL_AFTER { self.vain.saturating_add(1) } else { 0 };
                            self.reopen(granted);
                        }
                    }
                }
                State::Opening(opening) => match opening.await {
                    Ok(listening) => {
                        self.opened = Instant::now();
                        self.state = State::Open(listening);
                        return Heard::TooMuch;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a listener waits for its upstream");
                        self.vain = self.vain.saturating_add(1);
                        self.reopen(granted);
                    }
                },
            }
        }
    }

    fn reopen(&mut self, granted: &Wishes) {
        let pause = match self.vain.checked_sub(1) {
            None => Duration::ZERO,
            Some(again) => (PAUSE_MIN * 2_u32.pow(again.min(6))).min(PAUSE_MAX),
        };
        let (upstream, context) = (Arc::clone(&self.upstream), self.context.clone());
        let uris: Vec<String> = granted.resources.iter().flatten().cloned().collect();
        self.state = State::Opening(Box::pin(async move {
            tokio::time::sleep(pause).await;
            upstream.listen(&context, uris).await
        }));
    }
}
