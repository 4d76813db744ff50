//! Serves stateless clients from a server of 2026-07-28 behind the adapter. A connection has no handshake and carries
//! any request. A principal's requests share one connection: no message is ambiguous, as questions are results.
//! Principals share no connection: a server may keep state. Abandoned requests are cancelled by id.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use http::StatusCode;

use super::call_table::{RequestStartError, RequestTerms};
use super::connection::{AdapterConnection, ConnectionPurpose};
use super::connection_permits::PermitWait;
use super::{TransportAdapter, answered, events_with, owner_of, refusal, request_ids};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::ForwardedHeaders;
use crate::upstream::answer_body::AnswerResult;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest};
use crate::wire::{Message, Request, RequestId, method};

#[derive(Default)]
pub(super) struct StatelessConnections {
    /// Only probed so far.
    spare: Option<Arc<AdapterConnection>>,
    of: HashMap<Principal, Arc<AdapterConnection>>,
    /// Held while a principal's connection is opened; its other requests wait.
    openings: HashMap<Principal, Weak<tokio::sync::Mutex<()>>>,
}

impl StatelessConnections {
    /// The principal's connection, else the spare one; not the spare one if the principal `has_share`, its full share of
    /// permits.
    fn find(&mut self, principal: &Principal, is_probe: bool, has_share: bool) -> Option<Arc<AdapterConnection>> {
        if let Some(session) = self.of.get(principal).filter(|session| !session.is_closed()) {
            return Some(Arc::clone(session));
        }
        let spare = self.spare.clone().filter(|session| !session.is_closed())?;
        if is_probe {
            return Some(spare);
        }
        if has_share && spare.owner().as_ref() != Some(principal) {
            return None;
        }
        self.spare = None;
        spare.pass_to(principal);
        self.of.insert(principal.clone(), Arc::clone(&spare));
        Some(spare)
    }

    fn opening(&mut self, principal: &Principal) -> Arc<tokio::sync::Mutex<()>> {
        if let Some(opening) = self.openings.get(principal).and_then(Weak::upgrade) {
            return opening;
        }
        self.openings.retain(|_, opening| opening.strong_count() > 0);
        let opening = Arc::default();
        self.openings.insert(principal.clone(), Arc::downgrade(&opening));
        opening
    }

    /// `false` if there is another connection by now.
    fn insert(&mut self, principal: &Principal, is_probe: bool, session: &Arc<AdapterConnection>) -> bool {
        if is_probe && self.spare.as_ref().is_some_and(|spare| !spare.is_closed()) {
            return false;
        }
        self.of.retain(|_, session| !session.is_closed());
        let session = Arc::clone(session);
        match is_probe {
            true => self.spare = Some(session),
            false => drop(self.of.insert(principal.clone(), session)),
        }
        true
    }
}

impl TransportAdapter {
    pub(super) async fn post_stateless(
        &self,
        outgoing: &OutgoingRequest,
        message: &Message,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let Message::Request(request) = message else {
            // To cancel a request, these clients stop reading.
            return Ok(answered(StatusCode::ACCEPTED));
        };
        let terms = || RequestTerms { is_kept: outgoing.is_kept(), ..RequestTerms::default() };
        if self.dedicated.include(request) {
            let owner = owner_of(outgoing);
            let (session, unless_called) =
                self.open(ConnectionPurpose::Stateless, &owner, PermitWait::Waits, outgoing.forwarded()).await?;
            let terms = RequestTerms { _done: Some(session.end_guard()), ..terms() };
            let response = session.request_named(&request_ids::without_tasks(request), terms, handed_over).await?;
            unless_called.disarm();
            return Ok(response);
        }
        let principal = owner_of(outgoing);
        let session = self.connection(&principal, request).await?;
        let first = session.request_named(request, terms(), handed_over).await;
        if first.is_ok() || handed_over.initialized() || !session.is_closed() {
            return first;
        }
        // The connection has just ended, and nothing was sent.
        let session = self.connection(&principal, request).await?;
        session.request_named(request, terms(), handed_over).await
    }

    /// The principal's connection. One request opens it; only that principal's other requests wait.
    async fn connection(
        &self,
        principal: &Principal,
        request: &Request,
    ) -> Result<Arc<AdapterConnection>, GatewayFault> {
        let is_probe = request.method == method::DISCOVER;
        let find = || {
            let has_share = self.shared.permits.has_share(principal);
            let mut connections = self.connections.lock();
            connections.find(principal, is_probe, has_share).ok_or_else(|| connections.opening(principal))
        };
        let opening = match find() {
            Ok(session) => return Ok(session),
            Err(opening) => opening,
        };
        let _opening = opening.lock().await;
        if let Ok(session) = find() {
            return Ok(session);
        }
        let (session, unless_kept) =
            self.open(ConnectionPurpose::Stateless, principal, PermitWait::First, &ForwardedHeaders::default()).await?;
        if self.connections.lock().insert(principal, is_probe, &session) {
            unless_kept.disarm();
            return Ok(session);
        }
        drop(unless_kept);
        find().map_err(|_| GatewayFault::new(Reason::UpstreamClosed, Executed::No))
    }
}

impl AdapterConnection {
    /// Sends a request under an id of the adapter. Dropping the response cancels the request.
    async fn request_named(
        self: &Arc<Self>,
        request: &Request,
        terms: RequestTerms,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let id = RequestId::number(self.numbered.fetch_add(1, Ordering::Relaxed));
        let (renumbered, text, outer) = request_ids::renumbered(request, &id);
        let is_probe = outer.is_probe;
        let begun = match self.enter(&renumbered, RequestTerms { outer: Some(outer), ..terms }) {
            Ok(begun) => begun,
            Err(RequestStartError::IdInUse) => return Ok(refusal(Some(&request.id), "this request id is in use")),
            // The caller tries another connection.
            Err(RequestStartError::Over) => return Err(GatewayFault::new(Reason::UpstreamClosed, Executed::No)),
            Err(RequestStartError::TooMany) => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let waits =
            PendingAnswerGuard { session: Arc::clone(self), id, is_probe, handed_over: Arc::clone(handed_over) };
        self.send_request(&self.own(text), handed_over, &begun.request_ended).await?;
        Ok(events_with(begun.messages, Box::new(waits)))
    }

    /// After a failed probe, the next message goes to a server that has received nothing.
    pub(super) fn end_after_probe(&self) {
        let table = self.table.lock();
        if !self.is_proven.load(Ordering::Relaxed) && table.is_empty() {
            // Under the table's lock, so that no request begins.
            self.end();
        }
    }

    fn take_back(self: &Arc<Self>, id: &RequestId) {
        let (session, text) = (Arc::clone(self), request_ids::cancelled(id));
        self.shared.scope.tracker.spawn(async move {
            if session.send(&session.own(text), &HandedOver::default()).await.is_err() {
                session.shared.dropped("cancel_failed");
            }
        });
    }
}

/// Cancels a request when its response is dropped.
#[must_use]
struct PendingAnswerGuard {
    session: Arc<AdapterConnection>,
    id: RequestId,
    is_probe: bool,
    handed_over: HandedOver,
}

impl Drop for PendingAnswerGuard {
    fn drop(&mut self) {
        let was_waiting = self.session.table.lock().cancel(&self.id);
        if !was_waiting {
            return;
        }
        if self.handed_over.initialized() && !self.session.is_closed() {
            self.session.take_back(&self.id);
        }
        if self.is_probe {
            self.session.end_after_probe();
        }
    }
}

#[cfg(test)]
mod tests;
