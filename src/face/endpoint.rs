//! One served path: reads the message, finds its face, answers what no face serves.

use std::borrow::Cow;

use async_trait::async_trait;
use http::{Method, StatusCode};
use tokio_util::sync::CancellationToken;

use super::answer::{Addressee, accepted, bare, only_post};
use super::classify::{Face, face_of};
use super::headers;
use super::http::{Endpoint, Inbound, Response};
use super::stateless::{StatelessFace, Surroundings};
use crate::dialect::Complaint;
use crate::wire::envelope::{self, EnvelopeError, Request};
use crate::wire::{Message, ProtocolVersion, RequestId, ScanError, ScanLimits, method};

/// Where one upstream is served.
#[derive(Debug)]
pub struct UpstreamEndpoint {
    stateless: StatelessFace,
}

impl UpstreamEndpoint {
    #[must_use]
    pub const fn new(stateless: StatelessFace) -> Self {
        Self { stateless }
    }

    /// Keeps what is cached small while nobody asks, until told to stop.
    pub async fn keep_tidy(&self, stop: &CancellationToken) {
        self.stateless.keep_tidy(stop).await;
    }
}

#[async_trait]
impl Endpoint for UpstreamEndpoint {
    async fn serve(&self, inbound: Inbound) -> Response {
        if inbound.method != Method::POST {
            return no_session(&inbound);
        }
        let addressee = |id| Addressee { id, version: ProtocolVersion::V2026_07_28, accepted: inbound.accepted };
        let request = match envelope::read(&inbound.body, ScanLimits::CLIENT) {
            Ok(Message::Request(request)) => request,
            // Nothing that a stateless client notifies has an effect; cancelling is done by leaving (EXT-46).
            Ok(Message::Notification(notification)) if is_request(&notification.method) => {
                let complaint = Complaint::NotARequest(Cow::Borrowed("this method needs an id"));
                return addressee(None).complaint(&complaint);
            }
            Ok(Message::Notification(_)) => return accepted(),
            Ok(Message::Response(_)) => {
                let complaint = Complaint::NotARequest(Cow::Borrowed("clients send no responses"));
                return addressee(None).complaint(&complaint);
            }
            Err(error) => {
                let (id, complaint) = unreadable(error);
                return addressee(id).complaint(&complaint);
            }
        };
        match face_of(request.params.object(), &inbound.headers) {
            Face::Stateless if is_handshake_without_metadata(&request) => {
                let what = Cow::Borrowed("initialize is not sent with the header of a stateless version");
                addressee(Some(request.id)).complaint(&Complaint::Header(what))
            }
            Face::Stateless => {
                let around = Surroundings {
                    headers: &inbound.headers,
                    principal: inbound.principal,
                    accepted: inbound.accepted,
                    arrived: inbound.received_at,
                };
                self.stateless.serve(&request, around).await
            }
            Face::Session => addressee(Some(request.id.clone())).complaint(&no_session_face(&request)),
        }
    }
}

/// GET and DELETE are operations on a session, and none is ever given out (B53).
fn no_session(inbound: &Inbound) -> Response {
    let names_session = inbound.headers.contains_key(headers::SESSION_ID);
    let is_stateless = headers::single(&inbound.headers, &headers::PROTOCOL_VERSION)
        .ok()
        .flatten()
        .and_then(ProtocolVersion::parse)
        .is_some_and(ProtocolVersion::is_stateless);
    if names_session && !is_stateless { bare(StatusCode::NOT_FOUND) } else { only_post() }
}

/// A client of a session version is told which version is served here.
fn no_session_face(request: &Request) -> Complaint {
    let requested = request.params.object().and_then(|params| params.get_string("protocolVersion"));
    match requested {
        Some(requested) if request.method == method::INITIALIZE => Complaint::Version { requested },
        _ => Complaint::Metadata(Cow::Borrowed(
            "params._meta must be an object with the protocol version and the client's capabilities",
        )),
    }
}

fn is_handshake_without_metadata(request: &Request) -> bool {
    request.method == method::INITIALIZE && crate::dialect::negotiate::named_version(request.params.object()).is_none()
}

/// Methods that make no sense without an answer (B104).
fn is_request(name: &str) -> bool {
    !name.starts_with("notifications/")
}

/// What a body that is no message is answered with, and the id where it may be echoed (B78 to B95).
fn unreadable(error: EnvelopeError) -> (Option<RequestId>, Complaint) {
    match error {
        EnvelopeError::Scan { error, id } => {
            let words = error.to_string();
            let complaint = match error {
                ScanError::Syntax { .. } | ScanError::Utf8 { .. } | ScanError::LoneSurrogate { .. } => {
                    Complaint::NotJson(words)
                }
                ScanError::TooDeep { .. }
                | ScanError::DuplicateKey { .. }
                | ScanError::NumberRange { .. }
                | ScanError::TooManyNodes { .. } => Complaint::NotARequest(Cow::Owned(words)),
            };
            (id, complaint)
        }
        EnvelopeError::Shape { what, id } => (id, Complaint::NotARequest(Cow::Borrowed(what))),
        EnvelopeError::Batch => (None, Complaint::NotARequest(Cow::Borrowed("a batch is not accepted here"))),
    }
}
