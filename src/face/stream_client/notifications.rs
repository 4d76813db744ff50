//! Forwards a client's notifications and responses in a session.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::{CompletedWork, ParsedMessage, StreamClientLoop, WAITING_MAX, caught};
use crate::metric;
use crate::wire::{Message, method};

/// Harmless if it is repeated or reordered.
const ROOTS_CHANGED: &str = "notifications/roots/list_changed";

impl StreamClientLoop {
    /// A slow server delays neither requests nor responses: only ordered notifications wait; above a limit they are
    /// dropped.
    pub(super) fn note(&mut self, parsed: ParsedMessage) {
        let is_free = match &parsed.message {
            Some(Message::Notification(notification)) => {
                matches!(notification.method.as_str(), method::CANCELLED | ROOTS_CHANGED)
            }
            Some(Message::Request(_) | Message::Response(_)) | None => true,
        };
        if is_free {
            self.noting += 1;
            let noting = self.noted(parsed);
            return self.work.push(noting.map(|()| CompletedWork::Noted { in_order: false }).boxed());
        }
        if self.notes.len() >= WAITING_MAX {
            let upstream = self.link.upstream();
            tracing::debug!(%upstream, "a notification was dropped: the server accepts them too slowly");
            metric::count_dropped(upstream, "note_flood");
            return;
        }
        self.notes.push_back(parsed);
        self.note_next();
    }

    pub(super) fn note_next(&mut self) {
        if self.is_noting {
            return;
        }
        let Some(parsed) = self.notes.pop_front() else { return };
        self.is_noting = true;
        let noting = self.noted(parsed);
        self.work.push(noting.map(|()| CompletedWork::Noted { in_order: true }).boxed());
    }

    /// Only logs a refusal: these messages get no response.
    fn noted(&self, parsed: ParsedMessage) -> impl Future<Output = ()> + Send + use<> {
        let link = Arc::clone(&self.link);
        let noting = async move {
            let response = link.serve(link.inside(parsed)).await;
            if !response.status().is_success() {
                tracing::debug!(status = response.status().as_u16(), "a notification or an answer was refused");
            }
        };
        caught(noting).map(|_| ())
    }
}
