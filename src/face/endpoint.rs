//! One served path: reads the message, finds its face, answers what no face serves.

use std::borrow::Cow;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method};
use tokio_util::sync::CancellationToken;

use super::answer::{Addressee, accepted, only_post};
use super::classify::{Face, face_of, header_is_stateless};
use super::headers;
use super::http::{Endpoint, Inbound, Response};
use super::session::{self, SessionFace, refuse};
use super::stateless::{StatelessFace, Surroundings};
use crate::dialect::Complaint;
use crate::wire::envelope::{self, EnvelopeError, Request, is_batch, split_batch};
use crate::wire::{Message, ProtocolVersion, RequestId, ScanError, ScanLimits, method};

/// Most messages in one array.
const BATCH_MAX: usize = 100;

/// Where one upstream is served.
#[derive(Debug)]
pub struct UpstreamEndpoint {
    stateless: StatelessFace,
    session: SessionFace,
}

impl UpstreamEndpoint {
    #[must_use]
    pub const fn new(stateless: StatelessFace, session: SessionFace) -> Self {
        Self { stateless, session }
    }

    /// Keeps what is cached small while nobody asks, until told to stop.
    pub async fn keep_tidy(&self, stop: &CancellationToken) {
        tokio::join!(self.stateless.keep_tidy(stop), self.session.keep_tidy(stop));
    }
}

#[async_trait]
impl Endpoint for UpstreamEndpoint {
    async fn serve(&self, inbound: Inbound) -> Response {
        if inbound.method != Method::POST {
            return Box::pin(self.operate(&inbound)).await;
        }
        if is_batch(&inbound.body) && !header_is_stateless(&inbound.headers) {
            return Box::pin(self.serve_batch(&inbound)).await;
        }
        match envelope::read(&inbound.body, ScanLimits::CLIENT) {
            Ok(message) => match era_of(&message, &inbound.headers) {
                Face::Stateless => self.serve_stateless(inbound, message).await,
                Face::Session => self.session.post(&inbound, message).await,
            },
            Err(error) => {
                let (id, complaint) = unreadable(error);
                if header_is_stateless(&inbound.headers) {
                    stateless_addressee(&inbound, id).complaint(&complaint)
                } else {
                    refuse(&session::addressee(id.as_ref(), inbound.accepted), &complaint)
                }
            }
        }
    }

    fn allow(&self) -> HeaderValue {
        session::ALLOWED
    }
}

impl UpstreamEndpoint {
    /// GET and DELETE are operations on a session; stateless clients have none (B53).
    async fn operate(&self, inbound: &Inbound) -> Response {
        let is_session = inbound.headers.contains_key(headers::SESSION_ID)
            || inbound.headers.contains_key(headers::PROTOCOL_VERSION);
        if !is_session || header_is_stateless(&inbound.headers) {
            return only_post();
        }
        if inbound.method == Method::GET { self.session.get(inbound).await } else { self.session.delete(inbound).await }
    }

    async fn serve_batch(&self, inbound: &Inbound) -> Response {
        let addressee = session::addressee(None, inbound.accepted);
        let items = match split_batch(&inbound.body, ScanLimits::CLIENT, BATCH_MAX) {
            Ok(items) => items,
            Err(error) => return refuse(&addressee, &unreadable(error).1),
        };
        let batch: Vec<_> = items.into_iter().map(|item| (envelope::read(&item, ScanLimits::CLIENT), item)).collect();
        let is_mixed = batch.iter().any(|(read, _)| match read {
            Ok(message) => era_of(message, &inbound.headers) == Face::Stateless,
            Err(_) => false,
        });
        if is_mixed {
            let complaint = Complaint::NotARequest(Cow::Borrowed("stateless requests come one by one"));
            return refuse(&addressee, &complaint);
        }
        self.session.post_batch(inbound, batch).await
    }

    async fn serve_stateless(&self, inbound: Inbound, message: Message) -> Response {
        let request = match message {
            Message::Request(request) => request,
            // Nothing that a stateless client notifies has an effect; cancelling is done by leaving (EXT-46).
            Message::Notification(notification) if is_request(&notification.method) => {
                let complaint = Complaint::NotARequest(Cow::Borrowed("this method needs an id"));
                return stateless_addressee(&inbound, None).complaint(&complaint);
            }
            Message::Notification(_) => return accepted(),
            Message::Response(_) => {
                let complaint = Complaint::NotARequest(Cow::Borrowed("clients send no responses"));
                return stateless_addressee(&inbound, None).complaint(&complaint);
            }
        };
        if is_handshake_without_metadata(&request) {
            let what = Cow::Borrowed("initialize is not sent with the header of a stateless version");
            return stateless_addressee(&inbound, Some(request.id)).complaint(&Complaint::Header(what));
        }
        let around = Surroundings {
            headers: &inbound.headers,
            body: &inbound.body,
            principal: inbound.principal,
            accepted: inbound.accepted,
            arrived: inbound.received_at,
        };
        // On the heap, so that a request of a session, which needs less, is not as large.
        Box::pin(self.stateless.serve(&request, around)).await
    }
}

fn stateless_addressee(inbound: &Inbound, id: Option<RequestId>) -> Addressee {
    Addressee { id, version: ProtocolVersion::V2026_07_28, accepted: inbound.accepted }
}

/// Which kind of client a message comes from.
fn era_of(message: &Message, all: &HeaderMap) -> Face {
    let params = match message {
        Message::Request(request) => request.params.object(),
        Message::Notification(notification) => notification.params.object(),
        Message::Response(_) => None,
    };
    face_of(params, all)
}

fn is_handshake_without_metadata(request: &Request) -> bool {
    request.method == method::INITIALIZE && crate::dialect::negotiate::named_version(request.params.object()).is_none()
}

/// Methods that make no sense without an answer (B104).
fn is_request(name: &str) -> bool {
    !name.starts_with("notifications/")
}

/// What a body that is no message is answered with, and the id where it may be echoed (B78 to B95).
pub(super) fn unreadable(error: EnvelopeError) -> (Option<RequestId>, Complaint) {
    match error {
        EnvelopeError::Scan { error, id } => {
            let what = error.to_string();
            let refused = |reason| Complaint::Refused { what: what.clone(), reason };
            let complaint = match error {
                ScanError::Syntax { .. } | ScanError::Utf8 { .. } | ScanError::LoneSurrogate { .. } => {
                    Complaint::NotJson(what)
                }
                ScanError::TooDeep { .. } => refused("too_deep"),
                ScanError::DuplicateKey { .. } => refused("duplicate_key"),
                ScanError::NumberRange { .. } => refused("number_range"),
                ScanError::TooManyNodes { .. } => refused("too_many_nodes"),
            };
            (id, complaint)
        }
        EnvelopeError::Shape { what, id } => (id, Complaint::NotARequest(Cow::Borrowed(what))),
        EnvelopeError::Batch => (None, Complaint::NotARequest(Cow::Borrowed("a batch is not accepted here"))),
    }
}
