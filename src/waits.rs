//! Waits for a moment or a future that may be absent: without one, for ever. And for a cancellation beside other work.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

pub(crate) async fn at(moment: Option<Instant>) {
    or_pending(moment.map(sleep_until)).await;
}

pub(crate) async fn or_pending<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Runs `work` until `token` is cancelled. If both are ready, the cancellation wins: `run_until_cancelled` of the token
/// would return the result, and its last step would have effects after the end.
pub(crate) async fn unless_cancelled<T>(token: &CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = token.cancelled() => None,
        done = work => Some(done),
    }
}

/// Polls `waiting` for `token` at little cost: a task's first poll sets `registered`, later ones read the token alone.
pub(crate) fn poll_cancelled(
    token: &CancellationToken,
    waiting: Pin<&mut WaitForCancellationFuture<'_>>,
    registered: &mut Option<Waker>,
    context: &mut Context<'_>,
) -> Poll<()> {
    if registered.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
        return if token.is_cancelled() { Poll::Ready(()) } else { Poll::Pending };
    }
    *registered = Some(context.waker().clone());
    waiting.poll(context)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// The work beside the wait is polled by one task, and then by another.
    #[tokio::test]
    async fn a_cancellation_wakes_the_task_that_polled_last() {
        let token = CancellationToken::new();
        let wait = |token: CancellationToken| async move {
            let (mut waiting, mut registered) = (pin!(token.cancelled()), None);
            poll_fn(|context| poll_cancelled(&token, waiting.as_mut(), &mut registered, context)).await;
        };
        let mut waiting = Box::pin(wait(token.clone()));
        for _ in 0..2 {
            assert_eq!(waiting.as_mut().now_or_never(), None);
        }
        let mut other = JoinSet::new();
        other.spawn(waiting);
        yield_now().await;
        token.cancel();
        other.join_next().await.unwrap().unwrap();
        assert_eq!(wait(token).now_or_never(), Some(()), "it is over");
    }

    /// Both become ready between two polls, as on a busy machine.
    #[tokio::test]
    async fn a_cancellation_wins_over_a_result_that_is_ready_with_it() {
        let (token, (finish, finished)) = (CancellationToken::new(), oneshot::channel::<()>());
        let mut work = Box::pin(unless_cancelled(&token, finished));
        assert_eq!(work.as_mut().now_or_never(), None);
        finish.send(()).unwrap();
        token.cancel();
        assert_eq!(work.now_or_never(), Some(None));
        let other = CancellationToken::new();
        assert_eq!(unless_cancelled(&other, std::future::ready(1)).now_or_never(), Some(Some(1)), "without an end");
    }
}
