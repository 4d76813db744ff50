//! Spawns runners; if one panics, settles its task or answers its client.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tracing::Instrument;

use crate::cause::CauseChain;
use crate::engine::Engine;
use crate::engine::call::{CallEnd, CallEvent, CallStreamSender};
use crate::task::{Attempt, Event, Executed, Failure, GatewayFault, Outcome, Reason, TaskKey};

/// The recipient of the failure if a runner panics: its client, until the task exists.
#[derive(Clone)]
pub(super) enum BugRecipient {
    Client(CallStreamSender),
    Task(TaskKey),
}

pub(super) type SharedBugRecipient = Arc<Mutex<BugRecipient>>;

pub(super) fn spawn(
    engine: &Arc<Engine>,
    span: tracing::Span,
    bug_recipient: SharedBugRecipient,
    runner: impl Future<Output = ()> + Send + 'static,
) {
    let own = Arc::clone(engine);
    // Boxed: a future that is moved into another one takes its memory twice, and this one lives for hours.
    let runner = AssertUnwindSafe(Box::pin(runner)).catch_unwind();
    engine.runners.spawn(
        async move {
            if runner.await.is_err() {
                let bug_recipient = bug_recipient.lock().clone();
                Box::pin(settle_after_panic(&own, bug_recipient)).await;
            }
        }
        .instrument(span),
    );
}

/// Settles the task, or answers the client, of a runner that panicked: the call may have run.
async fn settle_after_panic(engine: &Arc<Engine>, bug_recipient: BugRecipient) {
    tracing::error!("a runner panicked");
    let failure = Failure::Gateway(GatewayFault::new(Reason::Internal, Executed::Unknown));
    match bug_recipient {
        BugRecipient::Task(key) => {
            let attempt = engine.load_any(&key).await.map_or(Attempt::FIRST, |task| task.attempt);
            let settled = engine.store_outcome(&key, Event::Faulted { attempt, failure }).await;
            engine.live.remove(&key);
            if let Err(error) = settled {
                tracing::error!(error = %CauseChain(&error), "the task of a runner that panicked could not be settled");
            }
        }
        BugRecipient::Client(sender) => {
            sender.send(CallEvent::Ended(CallEnd::Outcome(Outcome::Faulted(failure)))).await
        }
    }
}
