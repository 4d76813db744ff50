//! Carries the text of a message together with what was read in it, so that it is read once on its way through.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::ScanLimits;
use super::envelope::{self, EnvelopeError, Message};

/// The text of a message. Two are the same if they are spelt the same.
#[derive(Clone, Debug, Default)]
pub struct MessageText {
    text: Bytes,
    message: Option<Arc<Message>>,
}

impl MessageText {
    /// A text in which this message was read.
    #[must_use]
    pub const fn with_message(text: Bytes, message: Arc<Message>) -> Self {
        Self { text, message: Some(message) }
    }

    /// The message, if somebody has read it.
    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        self.message.as_deref()
    }

    /// The message, read now unless somebody has.
    ///
    /// # Errors
    /// As [`envelope::read`].
    pub fn read(&self, limits: ScanLimits) -> Result<Arc<Message>, EnvelopeError> {
        match &self.message {
            Some(message) => Ok(Arc::clone(message)),
            None => envelope::read(&self.text, limits).map(Arc::new),
        }
    }

    /// The message, or those of an array.
    ///
    /// # Errors
    /// As [`envelope::read_batch`].
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

    /// The text in another buffer, to be parsed again: parsed parts refer to the old buffer.
    #[must_use]
    pub(crate) fn held_by(self, attach: impl FnOnce(Bytes) -> Bytes) -> Self {
        attach(self.text).into()
    }

    /// The text alone.
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
