//! Carries a message's text with its parsed form, so that it is parsed once.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::ScanLimits;
use super::envelope::{self, EnvelopeError, Message};

/// The text of a message. Compared as text.
#[derive(Clone, Debug, Default)]
pub struct MessageText {
    text: Bytes,
    message: Option<Arc<Message>>,
}

impl MessageText {
    /// A text with the message that was read in it.
    #[must_use]
    pub const fn with_message(text: Bytes, message: Arc<Message>) -> Self {
        Self { text, message: Some(message) }
    }

    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        self.message.as_deref()
    }

    /// The message; reads it unless it was read before. Fails as [`envelope::read`].
    pub fn read(&self, limits: ScanLimits) -> Result<Arc<Message>, EnvelopeError> {
        match &self.message {
            Some(message) => Ok(Arc::clone(message)),
            None => envelope::read(&self.text, limits).map(Arc::new),
        }
    }

    /// The message, or the messages of a batch. Fails as [`envelope::read_batch`].
    pub fn read_all(
        &self,
        limits: ScanLimits,
        items_max: usize,
    ) -> Result<Vec<Result<Message, EnvelopeError>>, EnvelopeError> {
        match self.message() {
            Some(message) => Ok(vec![Ok(message.clone())]),
            None => envelope::read_batch(&self.text, limits, items_max),
        }
    }

    /// The text in another buffer, unparsed: the parsed parts refer to the old buffer.
    #[must_use]
    pub(crate) fn held_by(self, attach: impl FnOnce(Bytes) -> Bytes) -> Self {
        attach(self.text).into()
    }

    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.text
    }
}

impl Deref for MessageText {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.text
    }
}

impl From<Bytes> for MessageText {
    fn from(text: Bytes) -> Self {
        Self { text, message: None }
    }
}

impl PartialEq for MessageText {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for MessageText {}
