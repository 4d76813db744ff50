//! Runs one `subscriptions/listen` from acknowledgement to end.

use std::sync::Arc;

use crate::dialect::subscriptions::{SubscriptionFilter, untagged};
use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::http::stateless::stateless_sender::{DraftRequest, StatelessSender};
use crate::upstream::outgoing::HandedOver;
use crate::upstream::reply::{self, AcceptedResponse, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal};
use crate::upstream::session::UpstreamLink;
use crate::upstream::{ServerNotification, own_ids};
use crate::wire::envelope::Notification;
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, MessageText, RequestId, RpcError, ScanLimits, envelope, method, rpc_error};

/// Largest event: the acknowledgement names all resources.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Malformed events that one stream tolerates (U19).
const MALFORMED_MAX: u32 = 10;

#[derive(Debug)]
pub(super) enum ListenError {
    /// The server does not support it, so another attempt is pointless.
    Refused(String),
    Failed(GatewayFault),
}

/// Dropping it ends the stream at the upstream.
#[derive(Debug)]
pub(super) struct UpstreamListenStream {
    link: Arc<UpstreamLink>,
    id: RequestId,
    events: EventStream,
    malformed: u32,
    pub(super) granted: SubscriptionFilter,
}

enum ListenEvent {
    Nothing,
    Notified(Notification),
    End,
}

impl UpstreamListenStream {
    /// Subscribes and waits for the acknowledgement, without a time limit: before it the server promises nothing.
    pub(super) async fn open(line: &StatelessSender, wishes: &SubscriptionFilter) -> Result<Self, ListenError> {
        let id = own_ids::mint();
        let params = ObjectWriter::new().member("notifications", &wishes.written()).finish();
        let post = line.post(&DraftRequest::new(method::LISTEN, Some(params)), &id);
        let response = line.link.transport.send(&post, &HandedOver::default()).await.map_err(ListenError::Failed)?;
        let limits = ReadLimits::of_bytes(EVENT_BYTES_MAX);
        let events = match reply::open(response, ErrorAddressee::Handshake, &limits).await {
            Ok(AcceptedResponse::Events(events)) => events,
            Ok(AcceptedResponse::Json(body)) => {
                let text = reply::read_whole(body, &limits).await.map_err(ListenError::Failed)?;
                return Err(match envelope::read(&text, ScanLimits::UPSTREAM) {
                    Ok(Message::Response(response)) => response.outcome.err().map_or(MALFORMED, refused),
                    Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => MALFORMED,
                });
            }
            Err(ResponseRefusal::Rpc(error)) => return Err(refused(error)),
            Err(ResponseRefusal::Gateway(fault)) if matches!(fault.http_status, Some(404 | 405 | 501)) => {
                return Err(ListenError::Refused("the server has no such method".to_owned()));
            }
            Err(ResponseRefusal::Gateway(fault)) => return Err(ListenError::Failed(fault)),
            Err(ResponseRefusal::SessionLost) => return Err(MALFORMED),
        };
        metrics::gauge!(metric::UPSTREAM_LISTENS, "upstream" => Arc::clone(&line.link.name)).increment(1.0);
        let link = Arc::clone(&line.link);
        let mut spoken = Self { link, id, events, malformed: 0, granted: SubscriptionFilter::default() };
        spoken.granted = spoken.acknowledged(wishes).await?;
        Ok(spoken)
    }

    /// The acknowledgement comes first (MOD-24); earlier messages are dropped.
    async fn acknowledged(&mut self, wishes: &SubscriptionFilter) -> Result<SubscriptionFilter, ListenError> {
        loop {
            let event = match self.events.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Err(CLOSED),
                Err(broken) => return Err(ListenError::Failed(broken.into_fault())),
            };
            let Some(text) = reply::message_in(&event) else { continue };
            if let Some(Message::Response(response)) = text.read(ScanLimits::UPSTREAM).ok().as_deref()
                && response.id.as_ref() == Some(&self.id)
            {
                return Err(response.outcome.clone().err().map_or(CLOSED, refused));
            }
            match self.read(text) {
                ListenEvent::Notified(notification) if notification.method == method::LISTEN_ACKNOWLEDGED => {
                    return notification.params.object().map(|params| wishes.granted_by(params)).ok_or(MALFORMED);
                }
                ListenEvent::Notified(_) => self.link.dropped("before_acknowledgement"),
                ListenEvent::Nothing => (),
                ListenEvent::End => return Err(MALFORMED),
            }
        }
    }

    /// The next granted notification, without the subscription's id; `None` at the end. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<ServerNotification> {
        loop {
            let event = self.events.next().await.ok()??;
            let Some(text) = reply::message_in(&event) else { continue };
            match self.read(text) {
                ListenEvent::Notified(notification) => match self.news(&notification) {
                    Some(news) => return Some(news),
                    None => self.link.dropped("stray_notification"),
                },
                ListenEvent::Nothing => (),
                ListenEvent::End => return None,
            }
        }
    }

    fn read(&mut self, text: &MessageText) -> ListenEvent {
        match text.read(ScanLimits::UPSTREAM).map(Arc::unwrap_or_clone) {
            Ok(Message::Notification(notification)) => return ListenEvent::Notified(notification),
            // A regular end, if it is a result (MOD-25).
            Ok(Message::Response(response)) if response.id.as_ref() == Some(&self.id) => return ListenEvent::End,
            Ok(Message::Response(_)) => self.link.dropped("foreign_response"),
            Ok(Message::Request(_)) => self.link.dropped("stray_request"),
            Err(_) => {
                self.malformed += 1;
                self.link.dropped("malformed_event");
                if self.malformed > MALFORMED_MAX {
                    return ListenEvent::End;
                }
            }
        }
        ListenEvent::Nothing
    }

    /// The notification, if granted and of this subscription.
    fn news(&self, notification: &Notification) -> Option<ServerNotification> {
        let params = notification.params.object();
        if !self.granted.want(&notification.method, params) {
            return None;
        }
        let (params, tag) = untagged(params);
        let is_own = tag.is_none_or(|tag| RequestId::from_payload(&tag).as_ref() == Some(&self.id));
        is_own.then(|| (Arc::from(notification.method.as_str()), params.map(|params| params.detached())))
    }
}

impl Drop for UpstreamListenStream {
    fn drop(&mut self) {
        metrics::gauge!(metric::UPSTREAM_LISTENS, "upstream" => Arc::clone(&self.link.name)).decrement(1.0);
    }
}

const MALFORMED: ListenError = ListenError::Failed(GatewayFault::new(Reason::UpstreamMalformed, Executed::No));
const CLOSED: ListenError = ListenError::Failed(GatewayFault::new(Reason::UpstreamClosed, Executed::No));

/// An error about the request is permanent, any other may pass.
fn refused(error: RpcError) -> ListenError {
    let is_for_good = matches!(
        error.code,
        rpc_error::METHOD_NOT_FOUND
            | rpc_error::INVALID_PARAMS
            | rpc_error::INVALID_REQUEST
            | rpc_error::MISSING_CLIENT_CAPABILITY
            | rpc_error::HEADER_MISMATCH
            | rpc_error::UNSUPPORTED_VERSION
    );
    match is_for_good {
        true => ListenError::Refused(error.message),
        false => ListenError::Failed(GatewayFault::new(Reason::UpstreamRefused, Executed::No)),
    }
}
