//! Answers the requests read before a client's input ended: the client may still read.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::StreamClientLoop;
use crate::face::http::Inbound;
use crate::wire::{Message, method};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// The client has left: its requests are cancelled.
    ClientLeft,
    /// The client sends no more requests, and still reads the answers.
    ClientReads,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Single,
    Array,
    /// Has no response as long as its client listens.
    Subscription,
}

impl RequestKind {
    pub(super) fn of(inbound: &Inbound) -> Self {
        match &inbound.message {
            Some(Message::Request(request)) if request.method == method::LISTEN => Self::Subscription,
            Some(_) | None => Self::Single,
        }
    }
}

impl StreamClientLoop {
    /// Returns once all requests except subscriptions are answered, or the client has disconnected.
    pub(super) async fn answer_what_was_read(&mut self) {
        let link = Arc::clone(&self.link);
        while !self.is_answered_but_for_subscriptions() && !self.work.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.work.next() => self.done(done),
                () = link.gone() => return,
            }
        }
    }

    fn is_answered_but_for_subscriptions(&self) -> bool {
        self.unanswered.iter().all(|request| request.kind == RequestKind::Subscription) && self.is_idle()
    }

    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_empty() && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.notes.is_empty() && !self.is_noting && self.noting == 0
    }
}
