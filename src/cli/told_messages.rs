//! Detects late messages of a task: notifications and polls repeat each other in any order.

use std::collections::VecDeque;
use std::sync::Arc;

const MESSAGES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageSource {
    Notification,
    Poll,
}

/// Messages from one source that the other has not repeated yet, in order. Each source repeats the other's sooner or later.
#[derive(Debug, Default)]
pub(super) struct ToldMessages(VecDeque<(MessageSource, Arc<str>)>);

impl ToldMessages {
    /// Whether the other source has reported something newer than this message.
    pub(super) fn is_late(&mut self, source: MessageSource, message: &Arc<str>) -> bool {
        let known = self.0.iter().position(|(other, told)| *other != source && told == message);
        if let Some(at) = known {
            self.0.remove(at);
            return at < self.0.len();
        }
        if self.0.len() == MESSAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((source, Arc::clone(message)));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::MessageSource::{Notification, Poll};
    use super::*;

    #[test]
    fn a_message_that_the_other_source_has_gone_beyond_is_late() {
        let mut told = ToldMessages::default();
        for (source, message, is_late) in [
            (Poll, "5", false),
            (Poll, "6", false),
            (Notification, "5", true),
            (Notification, "6", false),
            (Notification, "7", false),
            (Notification, "8", false),
            (Poll, "7", true),
            (Poll, "8", false),
            // A source may repeat itself.
            (Notification, "7", false),
            (Notification, "9", false),
            (Notification, "7", false),
        ] {
            assert_eq!(told.is_late(source, &Arc::from(message)), is_late, "{source:?} {message}");
        }
    }
}
