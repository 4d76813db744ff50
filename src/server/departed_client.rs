//! Finishes notifications, answers, cancels and keyed calls that arrived whole although their client left.
//!
//! hyper drops the future of a request as soon as it sees that the client is gone, perhaps before it was polled. A notification,
//! an answer, a cancel or the end of a session is carried out all the same; a call ends with its client, unless it has an
//! idempotency key.

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

/// How long a request may go on without its client.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// How far a request has come, and whether its client is there.
#[derive(Debug)]
pub(super) struct Arrival(Mutex<ArrivalState>);

#[derive(Debug)]
enum ArrivalState {
    /// The body is being read.
    Reading,
    /// The body is being read, and the client has left.
    Alone,
    /// It is carried out, and ends with its client unless this body says otherwise.
    Served(Option<Bytes>),
    /// It is carried out to its end.
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

    /// The body is there. Whether the request is to be carried out.
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

    /// Whether the client left before the body was there.
    pub(super) fn is_alone(&self) -> bool {
        matches!(*self.0.lock(), ArrivalState::Alone)
    }

    /// The client has left. Whether the request goes on.
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

/// Whether a body is carried out to its end though its client has left.
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

/// The work for a request. Dropped before its end it goes on in a task of the listener's, where the request outlives its client.
pub(super) struct KeptWork<F: Future<Output: Send> + Send + 'static> {
    /// There until its end.
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
        // A panic has left nothing that could go on.
        let Some(work) = self.work.take().filter(|_| !std::thread::panicking()) else { return };
        if let (true, Ok(runtime)) = (self.arrival.is_kept(), Handle::try_current()) {
            self.tracker.spawn_on(async { drop(timeout(ALONE_MAX, work).await) }, &runtime);
        }
    }
}
