//! Finishes requests that arrived whole although their client left: see [`Arrival`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::face::arrival::Arrival;

/// How long a request may go on without its client.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// The work for a request. Dropped before its end it goes on in a task of the listener's, where the request outlives its client.
pub(super) struct KeptWork<F: Future<Output: Send> + Send + 'static> {
    /// There until its end.
    work: Option<Pin<Box<F>>>,
    arrival: Arrival,
    tracker: TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> KeptWork<F> {
    /// The work is boxed by the caller, where it is made: moving it costs as much as it is large.
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
        // A panic has left nothing that could go on.
        let Some(work) = self.work.take().filter(|_| !std::thread::panicking()) else { return };
        if let (true, Ok(runtime)) = (self.arrival.leave(), Handle::try_current()) {
            self.tracker.spawn_on(async { drop(timeout(ALONE_MAX, work).await) }, &runtime);
        }
    }
}
