//! Holds the client's end of a call, while the call is not a task.

use crate::engine::call::{CallEnd, CallEvent, CallStreamSender};

/// Clients that wait for one call at a time: the first one, and those that resumed it.
const CLIENTS_MAX: usize = 8;

/// The clients that wait for the call: more than one only if a client repeats a request that is still in progress.
pub(in crate::engine::runner) struct AttachedClients {
    senders: Vec<CallStreamSender>,
}

impl AttachedClients {
    pub(in crate::engine::runner) fn new(sender: CallStreamSender) -> Self {
        Self { senders: vec![sender] }
    }

    pub(in crate::engine::runner) const fn none() -> Self {
        Self { senders: Vec::new() }
    }

    /// Adds a returning client, if there is room.
    pub(in crate::engine::runner) fn attach(&mut self, sender: CallStreamSender) {
        self.senders.retain(|sender| !sender.events.is_closed());
        if self.senders.len() < CLIENTS_MAX {
            self.senders.push(sender);
        }
    }

    pub(in crate::engine::runner) fn first(&self) -> Option<CallStreamSender> {
        self.senders.first().cloned()
    }

    pub(in crate::engine::runner) const fn is_there(&self) -> bool {
        !self.senders.is_empty()
    }

    /// Sends an event; waits while a client reads slowly. The next step notices a client that left.
    pub(in crate::engine::runner) async fn send(&self, event: CallEvent) {
        if let [all_but_last @ .., last] = self.senders.as_slice() {
            for sender in all_but_last {
                sender.send(event.clone()).await;
            }
            last.send(event).await;
        }
    }

    /// Sends the last event of a call that no client will resume.
    pub(in crate::engine::runner) async fn end(&mut self, end: CallEnd) {
        self.send(CallEvent::Ended(end)).await;
        self.senders.clear();
    }

    /// Returns once all clients have left. Cancel safe.
    pub(in crate::engine::runner) async fn left(&self) {
        for sender in &self.senders {
            sender.events.closed().await;
        }
    }

    /// Sends a task's reference and detaches all clients; false if no client received it, so that none knows the task.
    pub(in crate::engine::runner) async fn hand_over(&mut self, event: CallEvent) -> bool {
        self.send(event).await;
        let mut taken = false;
        for sender in std::mem::take(&mut self.senders) {
            tokio::select! {
                () = sender.claimed.cancelled() => {}
                () = sender.events.closed() => {}
            }
            // Checked last: a client receives the event before it leaves, perhaps between the two polls above.
            taken |= sender.claimed.is_cancelled();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::engine::call::CallStream;
    use crate::store::contract::task;

    /// T-27. If both have happened, either may be seen first.
    #[test]
    fn t_27_whoever_takes_a_handle_and_leaves_at_once_has_taken_it() {
        let task = Arc::new(task("a", 1));
        for takes in [true, false].repeat(64) {
            let (sender, mut stream) = CallStream::new();
            let mut clients = AttachedClients::new(sender);
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
