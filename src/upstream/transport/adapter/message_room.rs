//! Counts the message that comes in over a connection among the bytes of its principal's answers, from its first byte on.
//!
//! Where there are no bytes for it, the connection is read no further, for a minute at most: then the message is read to its end and
//! dropped, so that the other calls of the connection go on.

use bytes::Bytes;

use super::MessageReceiver;
use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::task::GatewayFault;

/// The bytes of the message under way.
pub(crate) struct MessageRoom {
    /// What messages over the connection may hold now.
    current: Box<dyn Fn() -> AnswerShare + Send + Sync>,
    /// That, as it was when the message grew large.
    share: Option<AnswerShare>,
    held: AnswerPermit,
    /// Why there are no bytes for the message.
    refused: Option<GatewayFault>,
}

impl MessageRoom {
    pub(super) fn new(current: impl Fn() -> AnswerShare + Send + Sync + 'static) -> Self {
        Self { current: Box::new(current), share: None, held: AnswerPermit::default(), refused: None }
    }

    /// Waits until a message that has `bytes` by now may be read on. Cancel safe.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        if bytes <= FREE_BYTES {
            // What was under way has come to nothing.
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
