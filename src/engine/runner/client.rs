//! Holds the client's end of a call, while the call is not a task.

use std::sync::Arc;

use crate::engine::call::{CallEnd, CallEvent, CallStreamSender};
use crate::upstream::Progress;
use crate::wire::one_line::status_text;

/// Clients that wait for one call at a time: the one that made it, and those that came back for it.
const SEATS_MAX: usize = 8;

/// The way to the client. More than one seat is taken only where a client repeats a request that it does not trust to
/// be under way any more; nobody is displaced by it.
pub(super) struct AttachedClients {
    seats: Vec<CallStreamSender>,
}

impl AttachedClients {
    pub(super) fn new(seat: CallStreamSender) -> Self {
        Self { seats: vec![seat] }
    }

    /// Nobody waits: the call's client was one of an earlier life of the process.
    pub(super) const fn nobody() -> Self {
        Self { seats: Vec::new() }
    }

    /// Gives a client that came back a seat, if there is one.
    pub(super) fn seat(&mut self, seat: CallStreamSender) {
        self.seats.retain(|seat| !seat.events.is_closed());
        if self.seats.len() < SEATS_MAX {
            self.seats.push(seat);
        }
    }

    /// The seat of the client that made the call.
    pub(super) fn first(&self) -> Option<CallStreamSender> {
        self.seats.first().cloned()
    }

    /// Whether anybody waits for this call.
    pub(super) const fn is_there(&self) -> bool {
        !self.seats.is_empty()
    }

    /// Waits for room where the client reads slowly. A client that left is noticed by the next step.
    pub(super) async fn tell(&self, event: CallEvent) {
        if let [all_but_last @ .., last] = self.seats.as_slice() {
            for seat in all_but_last {
                seat.tell(event.clone()).await;
            }
            last.tell(event).await;
        }
    }

    /// The last event of a call that nobody comes back for.
    pub(super) async fn end(&mut self, end: CallEnd) {
        self.tell(CallEvent::Ended(end)).await;
        self.seats.clear();
    }

    /// Returns once everybody left. Cancel safe.
    pub(super) async fn left(&self) {
        for seat in &self.seats {
            seat.events.closed().await;
        }
    }

    /// Hands out what refers to a task; false if everybody left before taking it, so that nobody knows. Nobody waits
    /// any more after this.
    pub(super) async fn hand_over(&mut self, event: CallEvent) -> bool {
        self.tell(event).await;
        let mut taken = false;
        for seat in std::mem::take(&mut self.seats) {
            tokio::select! {
                () = seat.claimed.cancelled() => {}
                () = seat.events.closed() => {}
            }
            // Asked once it is decided: whoever takes the event does so before leaving, maybe between two looks above.
            taken |= seat.claimed.is_cancelled();
        }
        taken
    }
}

/// A status line for a progress notification: its message, else how far of how much (GW-24).
pub(super) fn progress_text(progress: &Progress) -> Option<Arc<str>> {
    match (&progress.message, &progress.total) {
        (Some(message), _) => status_text(message),
        (None, Some(total)) => status_text(&format!("{}/{}", progress.progress.as_str(), total.as_str())),
        (None, None) => status_text(progress.progress.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::engine::call::CallStream;
    use crate::store::contract::task;

    /// T-27. Where both have come, either may be seen first.
    #[test]
    fn t_27_whoever_takes_a_handle_and_leaves_at_once_has_taken_it() {
        let task = Arc::new(task("a", 1));
        for takes in [true, false].repeat(64) {
            let (seat, mut stream) = CallStream::new();
            let mut clients = AttachedClients::new(seat);
            let mut handing = pin!(clients.hand_over(CallEvent::Created(Arc::clone(&task))));
            assert_eq!(handing.as_mut().now_or_never(), None);
            if takes {
                assert!(stream.next().now_or_never().flatten().is_some());
            }
            drop(stream);
            assert_eq!(handing.now_or_never(), Some(takes));
        }
    }
}
