//! Serves a bridged session's own stream: notifications of the server and of tasks. Servers notify only subscribers.
//! Notifications are read when the client reads: nothing runs in the background; resource subscriptions are kept for
//! the next stream. Only the newest of several streams receives them (LEG-08).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::session_cache::ClientSession;
use super::super::{SessionFaceState, not_allowed};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::session_results::session_error;
use crate::dialect::subscriptions::{ListKind, SubscriptionFilter, untagged_notification};
use crate::face::answer::{addressee, bare, event_stream};
use crate::face::call_stream::replay::resume_replay;
use crate::face::call_stream::{CallMessage, CallMessages, stream};
use crate::face::headers;
use crate::face::http::{AcceptedTypes, FaceResponse, Inbound};
use crate::face::notification_subscriber::{AgreedResources, NotificationSubscriber, SubscriberEvent};
use crate::face::session::session_streams::{SessionStream, StreamTurn};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::session::own::PreferenceChange;
use crate::upstream::{BeginError, CallContext, Upstream};
use crate::wire::envelope::Request;
use crate::wire::{Payload, RpcError, envelope, method};

const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

fn all(resources: impl IntoIterator<Item = String>) -> SubscriptionFilter {
    let resources = Some(resources.into_iter().collect()).filter(|uris: &BTreeSet<_>| !uris.is_empty());
    SubscriptionFilter { lists: ListKind::ALL.into_iter().collect(), resources, tasks: None }
}

struct BridgedUpstream {
    upstream: Arc<dyn Upstream>,
    context: CallContext,
}

impl BridgedUpstream {
    fn of(shared: &SessionFaceState, session: &ClientSession, principal: &Principal) -> Self {
        Self { upstream: Arc::clone(&shared.served.stateless), context: shared.context(session, principal) }
    }

    /// An error if the server does not return them in time.
    async fn capabilities(&self) -> Result<Payload, BeginError> {
        let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
        let asking = timeout(HANDSHAKE_MAX, self.upstream.handshake(&self.context));
        let handshake = asking.await.unwrap_or(Err(BeginError::Gateway(late)))?;
        Ok(handshake.capabilities.clone())
    }
}

/// Opens the session's own stream, or resumes a call's. 405 if it could never carry a notification (LEG-08).
pub(in crate::face::session) async fn get(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    inbound: &Inbound,
) -> FaceResponse {
    if let Some(last_event) = inbound.headers.get(headers::LAST_EVENT_ID) {
        let taken_up = last_event.to_str().ok().and_then(|event| {
            resume_replay(&shared.open.replays, &shared.served, &session.token, &inbound.caller, event)
        });
        // Not 404, which would mean that the session has ended.
        return taken_up.unwrap_or_else(|| bare(StatusCode::BAD_REQUEST));
    }
    let principal = &inbound.caller.principal;
    let bridged = BridgedUpstream::of(shared, &session, principal);
    // An unavailable server is asked later: the client would not retry after a refusal.
    let declared = bridged.capabilities().await.ok();
    let offers = |wishes: SubscriptionFilter| {
        declared.as_ref().map_or_else(|| wishes.clone(), |declared| wishes.clone().within(declared))
    };
    let tells = offers(all(["any:".to_owned()]));
    if !tells.concern_the_upstream() && !shared.tasks.are_for(&session) {
        return not_allowed(&Method::GET);
    }
    let Some(own) = shared.open.streams.try_open(session.token.nonce, &inbound.caller) else {
        return bare(StatusCode::TOO_MANY_REQUESTS);
    };
    // Checked after the stream was registered: the session may have ended while the server was asked (B241).
    if shared.sessions.is_over(&session) {
        return bare(StatusCode::NOT_FOUND);
    }
    shared.meter.streams.increment(1);
    let mut listen = BridgeListenStream {
        subscriber: NotificationSubscriber::deaf(&bridged.upstream, bridged.context),
        wanted: SubscriptionFilter::default(),
        tells,
        own,
        due: VecDeque::new(),
        streams_end: shared.served.streams_end.clone(),
        shared: Arc::clone(shared),
        session,
    };
    listen.adopt_wishes();
    event_stream(stream(listen, addressee(None, AcceptedTypes::Both), None))
}

struct BridgeListenStream {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    /// The list notifications that the server sends, and whether it sends resource notifications.
    tells: SubscriptionFilter,
    wanted: SubscriptionFilter,
    subscriber: NotificationSubscriber,
    /// Receives notifications of tasks; knows whether this stream is the newest.
    own: SessionStream,
    /// Messages to send; bounded by the wishes.
    due: VecDeque<Bytes>,
    streams_end: CancellationToken,
}

impl BridgeListenStream {
    /// Adopts the session's current wishes, if this stream is the newest.
    fn adopt_wishes(&mut self) {
        let mut agreed = AgreedResources::default();
        self.wanted = match self.own.turn() {
            StreamTurn::Newest => {
                // Before the wishes: a confirmation in between wakes the stream again.
                agreed = self.own.agreed();
                let (session, shared) = (&self.session.own, &self.shared);
                let resources = match self.tells.resources {
                    Some(_) => shared.served.visible(&session.caller, shared.own.subscriptions(session)),
                    None => Default::default(),
                };
                SubscriptionFilter { lists: self.tells.lists.clone(), ..all(resources) }
            }
            StreamTurn::Older | StreamTurn::Over => SubscriptionFilter::default(),
        };
        self.subscriber.change_to_agreed(self.wanted.clone(), agreed);
    }
}

impl CallMessages for BridgeListenStream {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            if let Some(message) = self.due.pop_front() {
                return Some(CallMessage::event(message));
            }
            let event = tokio::select! {
                // Wishes are updated first, so that unwanted notifications are dropped.
                biased;
                () = self.streams_end.cancelled() => return None,
                news = self.own.news() => match news {
                    Some(message) => return Some(CallMessage::event(message)),
                    None if self.own.turn() == StreamTurn::Over => return None,
                    None => {
                        self.adopt_wishes();
                        continue;
                    }
                },
                event = self.subscriber.next() => event,
            };
            match event {
                SubscriberEvent::News((name, params)) => {
                    let object = params.as_ref().and_then(crate::wire::Object::of);
                    let is_seen = self.shared.served.may_see(&self.session.own.caller, &name, object.as_ref());
                    if is_seen && self.wanted.want(&name, object.as_ref()) {
                        self.due.push_back(envelope::notification(&name, params.as_ref()));
                    }
                }
                SubscriberEvent::TooMuch => {
                    self.adopt_wishes();
                    self.due.extend(self.wanted.everything().map(|(name, uri)| untagged_notification(name, uri)));
                }
            }
        }
    }
}

/// Turns `resources/subscribe` and `resources/unsubscribe` into wishes of the server's subscription.
pub(super) fn subscription(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    request: &Request,
    principal: &Principal,
) -> Option<BoxFuture<'static, Result<Payload, RpcError>>> {
    let is_new = match &*request.method {
        method::RESOURCES_SUBSCRIBE => true,
        method::RESOURCES_UNSUBSCRIBE => false,
        _ => return None,
    };
    let (shared, session, principal) = (Arc::clone(shared), session.clone(), principal.clone());
    let (name, uri) = (request.method.clone(), request.params.object().and_then(|params| params.get_string("uri")));
    let answering = async move {
        let complain = |complaint: RequestError| complaint.to_error(session.token.client_version);
        let bridged = BridgedUpstream::of(&shared, &session, &principal);
        let declared = bridged.capabilities().await.map_err(refused)?;
        let offered = all(["any:".to_owned()]).within(&declared);
        if offered.resources.is_none() {
            return Err(complain(RequestError::UnknownMethod(name)));
        }
        let uri = uri.ok_or_else(|| complain(RequestError::params("uri must be a string")))?;
        if is_new {
            subscribe(&shared, &session, &bridged, uri).await?;
        } else {
            shared.own.record_preference(&session.own, PreferenceChange::Unsubscribe(uri.clone()));
            shared.open.streams.unwanted(session.token.nonce, &uri);
            shared.open.streams.changed(session.token.nonce);
        }
        Ok(Payload::empty_object())
    };
    Some(answering.boxed())
}

/// Adds a subscription. If there is a stream, the server has to confirm it first; the stream takes it over later.
async fn subscribe(
    shared: &SessionFaceState,
    session: &ClientSession,
    bridged: &BridgedUpstream,
    uri: String,
) -> Result<(), RpcError> {
    let complain = |what| RequestError::params(what).to_error(session.token.client_version);
    let wishes = SubscriptionFilter { resources: Some([uri.clone()].into()), ..SubscriptionFilter::default() };
    let agreed = match shared.open.streams.is_open(session.token.nonce) {
        true => Some(bridged.upstream.listen(&bridged.context, &wishes).await.map_err(refused)?),
        false => None,
    };
    if agreed.as_ref().is_some_and(|agreed| !agreed.granted.cover(&wishes)) {
        return Err(complain("the server does not notify of updates of this resource"));
    }
    shared.own.record_preference(&session.own, PreferenceChange::Subscribe(uri.clone()));
    if let Some(agreed) = agreed {
        shared.open.streams.agreed(session.token.nonce, uri.clone(), agreed);
    }
    // Checked last: a client that unsubscribes meanwhile, or has too many subscriptions, leaves nothing behind.
    if !shared.own.subscriptions(&session.own).contains(&uri) {
        shared.open.streams.unwanted(session.token.nonce, &uri);
        return Err(complain("the session has too many subscriptions (256, or too long addresses)"));
    }
    shared.open.streams.changed(session.token.nonce);
    Ok(())
}

fn refused(error: BeginError) -> RpcError {
    match error {
        BeginError::Gateway(fault) => gateway_error(&fault),
        BeginError::Refused(error) => session_error(&error, None),
    }
}
