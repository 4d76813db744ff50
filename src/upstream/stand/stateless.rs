//! Clients without sessions at a server of 2026-07-28 that is reached over a wire.
//!
//! A connection is no conversation there: it carries whatever is asked, and is opened without a word. All requests of one
//! principal share one, since nothing on it has to be guessed: questions are results. Principals share none, whatever a
//! server keeps in its process. A request that nobody waits for any more is taken back by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Response, StatusCode};

use super::session::{Kind, WireSession};
use super::table::{NotBegun, Terms};
use super::{Patience, WireStand, answered, events_with, names, refusal};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::Forwarded;
use crate::upstream::carrier::AnswerBody;
use crate::upstream::http::client::HandedOver;
use crate::upstream::http::post::Outgoing;
use crate::wire::{Message, Request, RequestId, method};

/// The connections in use.
#[derive(Default)]
pub(super) struct Connections {
    /// Nothing but what the server is was asked on it.
    spare: Option<Arc<WireSession>>,
    of: HashMap<Principal, Arc<WireSession>>,
}

impl Connections {
    /// The one that requests of a principal go to, if there is one.
    fn find(&mut self, principal: &Principal, is_probe: bool) -> Option<Arc<WireSession>> {
        self.of.retain(|_, session| !session.is_over());
        self.spare = self.spare.take().filter(|session| !session.is_over());
        if let Some(session) = self.of.get(principal) {
            return Some(Arc::clone(session));
        }
        if is_probe {
            return self.spare.clone();
        }
        let session = self.spare.take()?;
        self.of.insert(principal.clone(), Arc::clone(&session));
        Some(session)
    }

    fn put(&mut self, principal: &Principal, is_probe: bool, session: &Arc<WireSession>) {
        let session = Arc::clone(session);
        match is_probe {
            true => self.spare = Some(session),
            false => drop(self.of.insert(principal.clone(), session)),
        }
    }
}

impl WireStand {
    /// Takes a message of a client without a session.
    ///
    /// # Errors
    /// If there is no connection, or the message could not be sent.
    pub(super) async fn post_stateless(
        &self,
        outgoing: &Outgoing,
        message: &Message,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        let Message::Request(request) = message else {
            // Such clients say nothing but requests; what they take back they stop reading.
            return Ok(answered(StatusCode::ACCEPTED));
        };
        if self.apart.include(request) {
            let (session, unless_called) = self.open(Kind::Stateless, Patience::Waits, outgoing.forwarded()).await?;
            let terms = Terms { _done: Some(session.end_guard()), ..Terms::default() };
            let response = session.request_named(&names::without_tasks(request), terms, handed_over).await?;
            unless_called.disarm();
            return Ok(response);
        }
        let principal = outgoing.principal().cloned().unwrap_or_else(Principal::anonymous);
        let session = self.connection(&principal, request).await?;
        let first = session.request_named(request, Terms::default(), handed_over).await;
        if first.is_ok() || handed_over.initialized() || !session.is_over() {
            return first;
        }
        // It ended just now, and nothing was sent.
        let session = self.connection(&principal, request).await?;
        session.request_named(request, Terms::default(), handed_over).await
    }

    async fn connection(&self, principal: &Principal, request: &Request) -> Result<Arc<WireSession>, GatewayFault> {
        let is_probe = request.method == method::DISCOVER;
        // Held while one is opened, so that nobody opens a second.
        let mut connections = self.connections.lock().await;
        if let Some(session) = connections.find(principal, is_probe) {
            return Ok(session);
        }
        let (session, unless_kept) = self.open(Kind::Stateless, Patience::None, &Forwarded::default()).await?;
        unless_kept.disarm();
        connections.put(principal, is_probe, &session);
        Ok(session)
    }
}

impl WireSession {
    /// Sends a request under an id of the stand's own; the answer is a stream, which ends the request when it is dropped.
    ///
    /// # Errors
    /// If it could not be sent.
    async fn request_named(
        self: &Arc<Self>,
        request: &Request,
        terms: Terms,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        let id = RequestId::number(self.numbered.fetch_add(1, Ordering::Relaxed));
        let (renumbered, text, outer) = names::renumbered(request, &id);
        let is_probe = outer.is_probe;
        let begun = self.table.lock().begin_on(&renumbered, Terms { outer: Some(outer), ..terms });
        let pieces = match begun {
            Ok(begun) => begun.pieces,
            Err(NotBegun::IdInUse) => return Ok(refusal(Some(&request.id), "this request id is in use")),
            Err(NotBegun::TooMany) => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let waits = Waits { session: Arc::clone(self), id, is_probe, handed_over: Arc::clone(handed_over) };
        self.send(&self.own(text), handed_over).await?;
        Ok(events_with(pieces, Box::new(waits)))
    }

    /// Ends a connection on which nothing but what the server is was asked, in vain: what comes next is said to a
    /// server that has heard nothing.
    pub(super) fn end_after_probe(&self) {
        if !self.is_proven.load(Ordering::Relaxed) && self.table.lock().is_empty() {
            self.end();
        }
    }

    fn take_back(self: &Arc<Self>, id: &RequestId) {
        let (session, text) = (Arc::clone(self), names::cancelled(id));
        self.shared.life.tracker.spawn(async move {
            if session.send(&session.own(text), &HandedOver::default()).await.is_err() {
                session.shared.dropped("cancel_failed");
            }
        });
    }
}

/// Whoever waits for an answer.
struct Waits {
    session: Arc<WireSession>,
    id: RequestId,
    is_probe: bool,
    handed_over: HandedOver,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let was_waiting = self.session.table.lock().cancel(&self.id);
        if !was_waiting {
            return;
        }
        if self.handed_over.initialized() && !self.session.is_over() {
            self.session.take_back(&self.id);
        }
        if self.is_probe {
            self.session.end_after_probe();
        }
    }
}

#[cfg(test)]
mod tests;
