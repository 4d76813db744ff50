//! Completes notifications, responses, cancels and keyed calls after their client has disconnected.
//!
//! hyper drops a request's future as soon as it sees the disconnect, perhaps before the first poll. A notification, a response, a
//! cancel or the end of a session is processed regardless; a call ends with its client, unless it has an idempotency key.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::face::idempotency_key;
use crate::wire::envelope::{self, EnvelopeError};
use crate::wire::meta::IDEMPOTENCY_KEY;
use crate::wire::{Message, ScanLimits, method};

/// How long a request may run without its client.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// The progress of a request, and whether its client is connected.
#[derive(Debug)]
pub(super) struct Arrival(Mutex<ArrivalState>);

#[derive(Debug)]
enum ArrivalState {
    /// The body is being read.
    Reading,
    /// The body is being read, and the client has disconnected.
    Alone,
    /// The request is processed, and ends with its client unless this body is one to complete.
    Served(Option<Bytes>),
    /// The request is processed to its end.
    Kept,
}

impl Arrival {
    pub(super) fn of(method: &Method, headers: &HeaderMap) -> Self {
        Self(Mutex::new(match *method {
            Method::POST if !headers.contains_key(idempotency_key::HEADER) => ArrivalState::Reading,
            Method::POST | Method::DELETE => ArrivalState::Kept,
            _ => ArrivalState::Served(None),
        }))
    }

    /// Records the body. Returns whether to process the request.
    pub(super) fn has_body(&self, body: &Bytes) -> bool {
        let state = &mut *self.0.lock();
        match state {
            ArrivalState::Kept | ArrivalState::Served(_) => true,
            ArrivalState::Alone => outlives_its_client(body),
            ArrivalState::Reading => {
                // Only calls have large bodies, and a body is not kept while its answer is waited for.
                *state = match has(body, method::TOOLS_CALL) {
                    true if has(body, IDEMPOTENCY_KEY) => ArrivalState::Kept,
                    true => ArrivalState::Served(None),
                    false => ArrivalState::Served(Some(body.clone())),
                };
                true
            }
        }
    }

    /// Whether the client disconnected before the body had arrived.
    pub(super) fn is_alone(&self) -> bool {
        matches!(*self.0.lock(), ArrivalState::Alone)
    }

    /// Records the disconnect. Returns whether the request continues.
    fn is_kept(&self) -> bool {
        let state = &mut *self.0.lock();
        match state {
            ArrivalState::Reading => {
                *state = ArrivalState::Alone;
                true
            }
            ArrivalState::Alone | ArrivalState::Kept => true,
            ArrivalState::Served(body) => body.as_ref().is_some_and(outlives_its_client),
        }
    }
}

fn has(body: &Bytes, text: &str) -> bool {
    memchr::memmem::find(body, text.as_bytes()).is_some()
}

/// Whether a body is processed to its end although its client has disconnected.
fn outlives_its_client(body: &Bytes) -> bool {
    if has(body, IDEMPOTENCY_KEY) {
        return true;
    }
    match envelope::read(body, ScanLimits::CLIENT) {
        Ok(message) => is_kept(&message),
        Err(EnvelopeError::Batch) => envelope::read_batch(body, ScanLimits::CLIENT, envelope::BATCH_MAX)
            .is_ok_and(|items| items.iter().flatten().any(is_kept)),
        Err(_) => false,
    }
}

fn is_kept(message: &Message) -> bool {
    match message {
        Message::Notification(_) | Message::Response(_) => true,
        Message::Request(request) => {
            matches!(&*request.method, method::TASKS_CANCEL | method::TASKS_UPDATE | method::TASKS_DELETE)
        }
    }
}

/// The future of a request. If it is dropped early and the request outlives its client, it continues in a task of the listener.
pub(super) struct KeptWork<F: Future<Output: Send> + Send + 'static> {
    /// `None` once it has finished.
    work: Option<Pin<Box<F>>>,
    arrival: Arc<Arrival>,
    tracker: TaskTracker,
}

impl<F: Future<Output: Send> + Send + 'static> KeptWork<F> {
    pub(super) fn new(work: F, arrival: Arc<Arrival>, tracker: TaskTracker) -> Self {
        Self { work: Some(Box::pin(work)), arrival, tracker }
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
        if let (true, Ok(runtime)) = (self.arrival.is_kept(), Handle::try_current()) {
            self.tracker.spawn_on(async { drop(timeout(ALONE_MAX, work).await) }, &runtime);
        }
    }
}
