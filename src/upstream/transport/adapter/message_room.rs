//! Charges a connection's incoming message to its principal's answer budget, from the first byte on.
//!
//! If the budget is exhausted, the connection is not read for up to a minute. Then the message is read and dropped, so
//! that the connection's other calls continue.

use bytes::Bytes;

use super::MessageReceiver;
use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::task::GatewayFault;

pub(crate) struct MessageRoom {
    /// The present share of the connection's principal.
    current: Box<dyn Fn() -> AnswerShare + Send + Sync>,
    /// The share of the message, taken when it grew above [`FREE_BYTES`].
    share: Option<AnswerShare>,
    held: AnswerPermit,
    /// Why the budget refused bytes for the message.
    refused: Option<GatewayFault>,
}

impl MessageRoom {
    pub(super) fn new(current: impl Fn() -> AnswerShare + Send + Sync + 'static) -> Self {
        Self { current: Box::new(current), share: None, held: AnswerPermit::default(), refused: None }
    }

    /// Waits until a message with `bytes` so far may grow. Cancel safe.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        if bytes <= FREE_BYTES {
            // The incomplete message was dropped.
            (self.share, self.held, self.refused) = (None, AnswerPermit::default(), None);
        } else if self.refused.is_none() {
            let share = self.share.get_or_insert_with(&self.current);
            self.refused = share.grow(&mut self.held, bytes).await.err();
        }
    }

    /// The next message, holding its bytes; or the message and why the budget refused them. Fails as
    /// [`MessageReceiver::next`].
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
