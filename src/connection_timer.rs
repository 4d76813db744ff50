//! Keeps one timer for all time limits of a client's HTTP/1.1 connection. To set and remove a timer for each request costs
//! more than the rest of its wait. The timer may fire early: the request then waits on.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

thread_local! {
    static CURRENT: Cell<Option<ConnectionPoll>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct ConnectionPoll {
    /// Identifies the waker: a future within the request may have another one, which the timer does not wake.
    waker: *const (),
    has_fired: bool,
    due: Option<Instant>,
}

/// Waits for `end` by the timer of the connection that is being polled; `None` in other tasks, and with another waker.
pub(crate) fn poll_until(end: Instant, context: &Context<'_>) -> Option<Poll<()>> {
    let current = CURRENT.get().filter(|current| current.waker == context.waker().data())?;
    if current.has_fired && Instant::now() >= end {
        return Some(Poll::Ready(()));
    }
    let due = current.due.map_or(end, |due| due.min(end));
    CURRENT.set(Some(ConnectionPoll { due: Some(due), ..current }));
    Some(Poll::Pending)
}

#[derive(Debug, Default)]
pub(crate) struct ConnectionTimer(Option<Pin<Box<Sleep>>>);

impl ConnectionTimer {
    /// Polls a connection, always with the same waker. Its requests wait by [`poll_until`].
    pub(crate) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let has_fired = self.0.as_ref().is_some_and(|timer| timer.is_elapsed());
        let begun = BegunPoll::of(ConnectionPoll { waker: context.waker().data(), has_fired, due: None });
        let polled = poll(context);
        if let (Some(due), Poll::Pending) = (begun.due(), &polled) {
            self.fire_before(due, context);
        }
        polled
    }

    fn fire_before(&mut self, due: Instant, context: &mut Context<'_>) {
        let timer = match &mut self.0 {
            Some(timer) if !timer.is_elapsed() && timer.deadline() <= due => return,
            Some(timer) => {
                timer.as_mut().reset(due);
                timer
            }
            None => self.0.insert(Box::pin(sleep_until(due))),
        };
        // Not within the task's budget: the timer would not be set.
        if pin!(unconstrained(timer.as_mut())).poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
    }
}

/// Ends when dropped, also by a panic.
struct BegunPoll;

impl BegunPoll {
    fn of(poll: ConnectionPoll) -> Self {
        CURRENT.set(Some(poll));
        Self
    }

    fn due(&self) -> Option<Instant> {
        CURRENT.get()?.due
    }
}

impl Drop for BegunPoll {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;
    use std::time::Duration;

    use super::*;

    const SPAN: Duration = Duration::from_secs(15);

    /// Waits in a connection; returns the time of the end, and the number of polls.
    async fn wait(timer: &mut ConnectionTimer, end: Instant) -> (Instant, usize) {
        let mut polls = 0;
        let waiting = |context: &mut Context<'_>| poll_until(end, context).expect("it is polled in a connection");
        poll_fn(|context| {
            polls += 1;
            timer.poll(context, waiting)
        })
        .await;
        (Instant::now(), polls)
    }

    #[tokio::test(start_paused = true)]
    async fn one_timer_serves_all_requests_of_a_connection() {
        let (begun, mut timer) = (Instant::now(), ConnectionTimer::default());
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(wait(&mut timer, after(15)).await, (after(15), 2));
        for seconds in [30, 31, 32] {
            let waiting = |context: &mut Context<'_>| poll_until(after(seconds), context).unwrap();
            assert!(poll_fn(|context| Poll::Ready(timer.poll(context, waiting))).await.is_pending());
            let fires_at = timer.0.as_ref().map(|timer| timer.deadline());
            assert_eq!(fires_at, Some(after(30)), "a later end needs no other timer");
        }
        // The timer fires for the first of these requests, and is set again for the one that still waits.
        assert_eq!(wait(&mut timer, after(45)).await, (after(45), 3));
        assert_eq!(wait(&mut timer, after(45)).await, (after(45), 1), "the timer has fired");
        let both = |context: &mut Context<'_>| {
            let _ = poll_until(after(90), context);
            poll_until(after(60), context).unwrap()
        };
        assert!(poll_fn(|context| Poll::Ready(timer.poll(context, both))).await.is_pending());
        assert_eq!(wait(&mut timer, after(50)).await, (after(50), 2), "an earlier end moves the timer");
        poll_fn(|context| timer.poll(context, both)).await;
        assert_eq!(Instant::now(), after(60), "the earlier of two ends counts");
    }

    #[tokio::test(start_paused = true)]
    async fn another_task_and_another_waker_have_no_such_timer() {
        let (end, mut timer) = (Instant::now() + SPAN, ConnectionTimer::default());
        let alone = Context::from_waker(Waker::noop());
        assert_eq!(poll_until(end, &alone), None);
        let waiting = |_: &mut Context<'_>| Poll::Ready(poll_until(end, &alone));
        assert_eq!(poll_fn(|context| timer.poll(context, waiting)).await, None);
        assert!(timer.0.is_none());
        assert_eq!(poll_fn(|context| Poll::Ready(poll_until(end, context))).await, None, "the poll is over");
    }
}
