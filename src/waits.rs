//! Waits for a moment or a future that may be absent: without one, for ever.

use tokio::time::{Instant, sleep_until};

pub(crate) async fn at(moment: Option<Instant>) {
    or_pending(moment.map(sleep_until)).await;
}

pub(crate) async fn or_pending<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
