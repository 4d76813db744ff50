//! Awaits a future until an instant, by the connection's timer, or by a separate timer that is seldom polled.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::connection_timer::poll_until;

/// `None` if the instant comes first. A future that is ready at once needs no timer. Cancel safe if `waiting` is.
pub(super) async fn within<T>(end: Instant, waiting: impl Future<Output = T>) -> Option<T> {
    let mut waiting = pin!(waiting);
    let (mut timer, mut task) = (pin!(None::<Sleep>), None);
    poll_fn(|context| match waiting.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => poll_until(end, context)
            .unwrap_or_else(|| poll_timer(timer.as_mut(), &mut task, end, context))
            .map(|()| None),
    })
    .await
}

/// Sets the timer at the first poll. Later, it is polled only once it has elapsed, or for another task than before.
fn poll_timer(
    mut timer: Pin<&mut Option<Sleep>>,
    task: &mut Option<Waker>,
    end: Instant,
    context: &mut Context<'_>,
) -> Poll<()> {
    let is_set = timer.as_ref().as_pin_ref().is_some_and(|timer| !timer.is_elapsed());
    if is_set && task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
        return Poll::Pending;
    }
    if timer.is_none() {
        timer.set(Some(sleep_until(end)));
    }
    *task = Some(context.waker().clone());
    match timer.as_pin_mut() {
        // Not within the task's budget: a future that uses all of it would outlive its time.
        Some(timer) => pin!(unconstrained(timer)).poll(context),
        None => Poll::Pending,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::stream::FuturesUnordered;
    use futures_util::{FutureExt as _, StreamExt as _};
    use tokio::sync::Notify;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::connection_timer::ConnectionTimer;

    const SPAN: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_future_that_is_ready_needs_no_time() {
        assert_eq!(within(Instant::now(), async { 7 }).await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_ends_a_wait_whose_future_was_polled_meanwhile() {
        let (begun, busy) = (Instant::now(), Notify::new());
        let waiting = async {
            for _ in 0..3 {
                busy.notified().await;
            }
            std::future::pending::<()>().await;
        };
        let (ended, ()) = tokio::join!(within(begun + SPAN, waiting), async {
            for _ in 0..3 {
                busy.notify_one();
                tokio::task::yield_now().await;
            }
        });
        assert_eq!((ended, begun.elapsed()), (None, SPAN));
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_that_polled_last_is_woken() {
        let begun = Instant::now();
        let mut waiting = Box::pin(within(begun + SPAN, std::future::pending::<()>()));
        // As a request does that polls once, and then moves the wait into another task.
        assert_eq!(waiting.as_mut().now_or_never(), None);
        let mut other = JoinSet::new();
        other.spawn(timeout(2 * SPAN, waiting));
        let ended = other.join_next().await.unwrap().unwrap();
        assert_eq!((ended, begun.elapsed()), (Ok(None), SPAN));
    }

    /// The wait continues in another task once its client has disconnected.
    #[tokio::test(start_paused = true)]
    async fn a_wait_that_leaves_its_connection_ends_in_time() {
        let (begun, mut timer) = (Instant::now(), ConnectionTimer::default());
        let mut waiting = Box::pin(within(begun + SPAN, std::future::pending::<()>()));
        let first = poll_fn(|context| Poll::Ready(timer.poll(context, |context| waiting.as_mut().poll(context))));
        assert!(first.await.is_pending());
        drop(timer);
        let mut other = JoinSet::new();
        other.spawn(timeout(2 * SPAN, waiting));
        let ended = other.join_next().await.unwrap().unwrap();
        assert_eq!((ended, begun.elapsed()), (Ok(None), SPAN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_with_a_waker_of_its_own_ends_in_time_within_a_connection() {
        let (begun, mut timer) = (Instant::now(), ConnectionTimer::default());
        let mut all = FuturesUnordered::from_iter([within(begun + SPAN, std::future::pending::<()>())]);
        let next = poll_fn(|context| timer.poll(context, |context| all.poll_next_unpin(context)));
        assert_eq!((next.await, begun.elapsed()), (Some(None), SPAN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_never_rests_is_ended_in_time() {
        let begun = Instant::now();
        let restless = async {
            loop {
                tokio::task::coop::consume_budget().await;
                tokio::time::advance(Duration::from_millis(10)).await;
            }
        };
        assert_eq!(within::<()>(begun + SPAN, restless).await, None);
    }
}
