//! Counts the incoming message of a connection as an answer to the connection's principal, from its first byte on.
//!
//! If the budget is exhausted, the connection is not read for at most a minute. After that the message is read to its end and dropped,
//! so that the other calls of the connection continue.

use bytes::Bytes;

use super::MessageReceiver;
use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::task::GatewayFault;

/// The reserved bytes of the incoming message.
pub(crate) struct MessageRoom {
    /// What messages over the connection may hold now.
    current: Box<dyn Fn() -> AnswerShare + Send + Sync>,
    /// The principal's share, taken when the message grew above [`FREE_BYTES`].
    share: Option<AnswerShare>,
    held: AnswerPermit,
    /// The refusal of bytes for the message, if there is one.
    refused: Option<GatewayFault>,
}

impl MessageRoom {
    pub(super) fn new(current: impl Fn() -> AnswerShare + Send + Sync + 'static) -> Self {
        Self { current: Box::new(current), share: None, held: AnswerPermit::default(), refused: None }
    }

    /// Waits until a message with `bytes` so far may be read further. Cancel safe.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        if bytes <= FREE_BYTES {
            // The incomplete message was dropped.
            (self.share, self.held, self.refused) = (None, AnswerPermit::default(), None);
        } else if self.refused.is_none() {
            let share = self.share.get_or_insert_with(&self.current);
            self.refused = share.grow(&mut self.held, bytes).await.err();
        }
    }

    /// The next message that `receiver` has, with the bytes that it holds; or the message and why there are none.
    ///
    /// # Errors
    /// As [`MessageReceiver::next`].
    pub(super) async fn next(
        &mut self,
        receiver: &mut dyn MessageReceiver,
    ) -> Result<Result<Bytes, (Bytes, GatewayFault)>, GatewayFault> {
        let text = receiver.next(self).await?;
        self.grow(text.len()).await;
        let held = std::mem::take(&mut self.held);
        self.share = None;
        Ok(match self.refused.take() {
            Some(fault) => Err((text, fault)),
            None => Ok(held.attach(text)),
        })
    }
}
