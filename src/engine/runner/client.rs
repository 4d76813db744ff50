//! The client's end of a call, while the call is not a task: what it is told, and what is held back.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dialect::peer::status_text;
use crate::engine::call::CallEvent;
use crate::task::Task;
use crate::upstream::Progress;
use crate::wire::Payload;

/// Log messages that wait for the end of a grace period.
const HELD_LOGS_MAX: usize = 64;

/// Progress notifications that wait likewise; beyond that only the newest is kept.
const HELD_PROGRESS_MAX: usize = 16;

/// The way to the client, and what goes out once the grace period is over.
pub(super) struct Client {
    pub(super) events: mpsc::Sender<CallEvent>,
    pub(super) claimed: CancellationToken,
}

impl Client {
    /// Waits for room where the client reads slowly. A client that left is noticed by the next step.
    pub(super) async fn tell(&self, event: CallEvent) {
        let _ = self.events.send(event).await;
    }

    /// Returns once the client left. Cancel safe.
    pub(super) async fn left(&self) {
        self.events.closed().await;
    }

    /// Hands out the handle; false if the client left before it took it, so that nobody knows the id.
    pub(super) async fn hand_over(&self, task: Arc<Task>) -> bool {
        if self.events.send(CallEvent::Created(task)).await.is_err() {
            return false;
        }
        tokio::select! {
            biased;
            () = self.claimed.cancelled() => true,
            () = self.events.closed() => false,
        }
    }

    /// Lets out what a grace period held back.
    pub(super) async fn release(&self, held: Held) {
        for progress in held.progress {
            self.tell(CallEvent::Progress(progress)).await;
        }
        for log in held.logs {
            self.tell(CallEvent::Log(log)).await;
        }
    }
}

/// What waits for a grace period's end.
#[derive(Default)]
pub(super) struct Held {
    progress: Vec<Progress>,
    logs: Vec<Payload>,
}

impl Held {
    pub(super) fn keep_progress(&mut self, progress: Progress) {
        if self.progress.len() >= HELD_PROGRESS_MAX {
            self.progress.pop();
        }
        self.progress.push(progress);
    }

    pub(super) fn keep_log(&mut self, log: Payload) {
        if self.logs.len() < HELD_LOGS_MAX {
            self.logs.push(log);
        }
    }

    pub(super) fn last_words(&self) -> Option<Arc<str>> {
        self.progress.last().and_then(words)
    }
}

/// A status line for a progress notification: its message, else how far of how much (protocol.md 5.12).
pub(super) fn words(progress: &Progress) -> Option<Arc<str>> {
    match (&progress.message, &progress.total) {
        (Some(message), _) => status_text(message),
        (None, Some(total)) => status_text(&format!("{}/{}", progress.progress.as_str(), total.as_str())),
        (None, None) => status_text(progress.progress.as_str()),
    }
}
