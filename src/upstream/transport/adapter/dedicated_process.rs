//! Runs calls on separate connections (`process_per_call`), one for each call. Each connection repeats the session's
//! `initialize`. The connection's messages go to its call, and the ids of its questions name the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use wildmatch::WildMatch;

use super::call_table::RequestTerms;
use super::connection::{AdapterConnection, ConnectionPurpose, UnopenedConnectionGuard};
use super::connection_permits::PermitWait;
use super::{TransportAdapter, owner_of, refusal, request_ids};
use crate::task::{Executed, GatewayFault, PublishedName, Reason, ToolNames};
use crate::upstream::answer_body::AnswerResult;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest};
use crate::waits::unless_cancelled;
use crate::wire::{Message, Request, RequestId, envelope, meta, method};

/// Includes the wait for a permit.
const OPENING_MAX: Duration = Duration::from_secs(60);

const LATE: GatewayFault = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
/// The client expects no response.
const CANCELLED: GatewayFault = GatewayFault::new(Reason::UpstreamClosed, Executed::No);

/// The tools with such calls. The first rule that matches the name that clients see decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DedicatedProcessRules {
    rules: Vec<(WildMatch, bool)>,
    names: ToolNames,
}

/// Patterns and names are text.
impl Eq for DedicatedProcessRules {}

impl DedicatedProcessRules {
    pub fn new(rules: Vec<(WildMatch, bool)>, names: ToolNames) -> Self {
        if rules.iter().any(|(_, is_dedicated)| *is_dedicated) { Self { rules, names } } else { Self::default() }
    }

    /// Not for a call that the server makes a task: the task outlives the response, and would end with its process.
    pub(super) fn include(&self, request: &Request) -> bool {
        if self.rules.is_empty() || request.method != method::TOOLS_CALL {
            return false;
        }
        let Some(params) = request.params.object().filter(|params| !params.contains("task")) else { return false };
        let Some(own) = params.get_str("name") else { return false };
        let PublishedName::Name(name) = self.names.shown(&own) else { return false };
        self.rules.iter().find(|(pattern, _)| pattern.matches(&name)).is_some_and(|(_, is_dedicated)| *is_dedicated)
    }
}

struct OpeningCall<'a> {
    session: &'a AdapterConnection,
    id: RequestId,
    cancelled: CancellationToken,
}

impl Drop for OpeningCall<'_> {
    fn drop(&mut self) {
        self.session.opening.lock().remove(&self.id);
    }
}

impl TransportAdapter {
    /// Runs a call of a session on its own connection, which must be ready in time.
    pub(super) async fn call_dedicated(
        &self,
        session: &Arc<AdapterConnection>,
        request: &Request,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let Some(opening) = session.begin_opening(&request.id) else {
            return Ok(refusal(Some(&request.id), "this request id is in use"));
        };
        let _stays = session.opener();
        // A call that is cancelled by then is not sent: its cancel is not sent either.
        let ready = unless_cancelled(&opening.cancelled, Box::pin(self.open_like(session)));
        let ready = tokio::time::timeout(OPENING_MAX, ready).await.unwrap_or(Some(Err(LATE))).unwrap_or(Err(CANCELLED));
        // Only messages before the call were sent.
        let (other, unless_called) = ready.map_err(|fault| GatewayFault { executed: Executed::No, ..fault })?;
        session.keep(&other)?;
        let terms = RequestTerms { _done: Some(other.end_guard()), ..RequestTerms::default() };
        let response = other.request_on(request, outgoing, terms, handed_over).await?;
        unless_called.disarm();
        Ok(response)
    }

    async fn open_like(
        &self,
        session: &Arc<AdapterConnection>,
    ) -> Result<(Arc<AdapterConnection>, UnopenedConnectionGuard), GatewayFault> {
        let internal = GatewayFault::new(Reason::Internal, Executed::No);
        let origin = session.origin.get().ok_or(internal)?;
        let process = self.shared.processes.fetch_add(1, Ordering::Relaxed).to_string();
        let (other, unless_kept) = self
            .open(
                ConnectionPurpose::Dedicated { process },
                &owner_of(&origin.outgoing),
                PermitWait::Waits,
                origin.outgoing.forwarded(),
            )
            .await?;
        let (_, is_result) = other.first(&origin.initialize, &origin.outgoing, &HandedOver::default()).await?;
        if !is_result {
            return Err(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
        }
        other.send(&other.own(envelope::notification(method::INITIALIZED, None)), &HandedOver::default()).await?;
        let level = origin.level.lock().clone();
        if let Some(level) = level {
            drop(other.begin(&level)?);
            other.send(&other.own(request_ids::text_of(&level)), &HandedOver::default()).await?;
        }
        Ok((other, unless_kept))
    }
}

impl AdapterConnection {
    /// Records a log level for the session's further connections.
    pub(super) fn note_level(&self, request: &Request) {
        if request.method == method::SET_LEVEL
            && let Some(origin) = self.origin.get()
        {
            *origin.level.lock() = Some(request.clone());
        }
    }

    fn keep(&self, other: &Arc<Self>) -> Result<(), GatewayFault> {
        let mut dedicated = self.dedicated.lock();
        dedicated.retain(|other| !other.is_closed());
        // The session's end ends the connections listed by then.
        if self.is_closed() {
            return Err(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No));
        }
        dedicated.push(Arc::clone(other));
        Ok(())
    }

    /// Records that a connection for this call is being opened, until the guard is dropped. `None` if the id is in use.
    fn begin_opening(&self, id: &RequestId) -> Option<OpeningCall<'_>> {
        let mut opening = self.opening.lock();
        let has = |session: &Self| session.table.lock().has(id);
        if opening.contains_key(id) || has(self) || self.dedicated.lock().iter().any(|other| has(other)) {
            return None;
        }
        let cancelled = CancellationToken::new();
        opening.insert(id.clone(), cancelled.clone());
        Some(OpeningCall { session: self, id: id.clone(), cancelled })
    }

    /// Cancels a call that waits for its dedicated connection. The server has not received the call, so it gets no notification.
    pub(super) fn cancels_opening(&self, message: &Message) -> bool {
        let Message::Notification(notification) = message else { return false };
        let Some(id) = notification.cancelled() else { return false };
        self.opening.lock().get(&id).inspect(|cancelled| cancelled.cancel()).is_some()
    }

    /// The connection of a notification or answer about such a call, and the text to send there.
    pub(super) fn target_of(&self, message: &Message) -> Option<(Arc<Self>, Option<Bytes>)> {
        match message {
            Message::Notification(notification) if notification.method == method::PROGRESS => {
                let token = RequestId::from_payload(&notification.params.object()?.get(meta::PROGRESS_TOKEN)?)?;
                let (process, token) = request_ids::inward(&token)?;
                let text = request_ids::progress_of(notification, &token.payload());
                Some((self.dedicated_of(&process)?, Some(text)))
            }
            Message::Notification(notification) => {
                let (id, dedicated) = (notification.cancelled()?, self.dedicated.lock());
                let other = dedicated.iter().find(|other| other.table.lock().has(&id))?;
                Some((Arc::clone(other), None))
            }
            Message::Response(response) => {
                let (process, id) = request_ids::inward(response.id.as_ref()?)?;
                Some((self.dedicated_of(&process)?, Some(response.under(&id))))
            }
            Message::Request(_) => None,
        }
    }

    fn dedicated_of(&self, process: &str) -> Option<Arc<Self>> {
        let is_meant = |other: &&Arc<Self>| matches!(other.kind(), ConnectionPurpose::Dedicated { process: own } if own == process);
        self.dedicated.lock().iter().find(is_meant).cloned()
    }
}
