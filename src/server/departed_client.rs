//! Completes requests that their client abandoned after sending them: see [`Arrival`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::face::arrival::{ALONE_MAX, Arrival};

/// The future of a request. If it is dropped early and the request outlives its client, it continues in a task of the listener.
pub(super) struct KeptWork<F: Future<Output: Send> + Send + 'static> {
    /// `None` once it has finished.
    work: Option<Pin<Box<F>>>,
    arrival: Arrival,
    tracker: TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> KeptWork<F> {
    /// Boxed by the caller, where it is created: moving a large future costs its size.
    pub(super) const fn new(work: Pin<Box<F>>, arrival: Arrival, tracker: TaskTracker) -> Self {
        Self { work: Some(work), arrival, tracker }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for KeptWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let work = self.work.as_mut().expect("it is not polled after its end");
        let response = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(response)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for KeptWork<F> {
    fn drop(&mut self) {
        // A future that panicked cannot continue.
        let Some(work) = self.work.take().filter(|_| !std::thread::panicking()) else { return };
        if let (true, Ok(runtime)) = (self.arrival.leave(), Handle::try_current()) {
            self.tracker.spawn_on(async { drop(timeout(ALONE_MAX, work).await) }, &runtime);
        }
    }
}
