//! One served path: reads the message, finds its face, answers what no face serves.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio_util::sync::CancellationToken;

use super::answer::{Addressee, UnknownTaskMarker, accepted, addressee, only_post, too_often, unreadable};
use super::classify::{Face, face_of, header_is_stateless};
use super::headers;
use super::http::{Endpoint, FaceResponse, Inbound};
use super::request_outcomes::RequestOutcomes;
use super::served::Served;
use super::session::{self, SessionFace, refuse};
use super::stateless::{MessageContext, StatelessFace};
use crate::dialect::RequestError;
use crate::dialect::faults::rate_error;
use crate::task::{Principal, RateRefusal};
use crate::wire::envelope::{self, Request, is_batch, split_batch};
use crate::wire::{Message, ProtocolVersion, RequestId, ScanLimits, method};

/// Where one upstream is served.
#[derive(Debug)]
pub struct UpstreamEndpoint {
    stateless: StatelessFace,
    session: SessionFace,
    served: Arc<Served>,
    outcomes: RequestOutcomes,
}

impl UpstreamEndpoint {
    #[must_use]
    pub fn new(served: Arc<Served>) -> Self {
        let (stateless, session) = (StatelessFace::new(Arc::clone(&served)), SessionFace::new(Arc::clone(&served)));
        let outcomes = RequestOutcomes::of(served.upstream.name());
        Self { stateless, session, served, outcomes }
    }

    /// Keeps what is cached small while nobody asks, until told to stop.
    pub async fn keep_tidy(&self, stop: &CancellationToken) {
        tokio::join!(self.stateless.keep_tidy(stop), self.session.keep_tidy(stop));
    }
}

#[async_trait]
impl Endpoint for UpstreamEndpoint {
    async fn serve(&self, inbound: Inbound) -> FaceResponse {
        let response = self.answer(inbound).await;
        self.outcomes.count(&response);
        response
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.served.settings.forwarding.has(header)
    }

    fn allow(&self) -> HeaderValue {
        session::ALLOWED
    }
}

impl UpstreamEndpoint {
    async fn answer(&self, mut inbound: Inbound) -> FaceResponse {
        if is_batch(&inbound.body) && !header_is_stateless(&inbound.headers) {
            return Box::pin(self.serve_batch(&inbound)).await;
        }
        if inbound.method != Method::POST {
            return match self.served.rates.admit(&inbound.counted_as(), 1) {
                Ok(()) => Box::pin(self.operate(&inbound)).await,
                Err(refusal) => too_often(&refusal),
            };
        }
        let read = match inbound.message.take() {
            Some(message) => Ok(message),
            None => envelope::read(&inbound.body, ScanLimits::CLIENT),
        };
        match read {
            // Boxed: the waits below would each hold it twice.
            Ok(message) => self.serve_message(Box::new(inbound), Box::new(message)).await,
            Err(error) => {
                if let Err(refusal) = self.served.rates.admit(&inbound.counted_as(), 1) {
                    return too_often(&refusal);
                }
                let (id, complaint) = unreadable(error);
                if header_is_stateless(&inbound.headers) {
                    stateless_addressee(&inbound, id).complaint(&complaint)
                } else {
                    refuse(&addressee(id.as_ref(), inbound.accepted), &complaint)
                }
            }
        }
    }

    /// GET and DELETE are operations on a session; stateless clients have none (B53).
    async fn operate(&self, inbound: &Inbound) -> FaceResponse {
        let is_session = inbound.headers.contains_key(headers::SESSION_ID)
            || inbound.headers.contains_key(headers::PROTOCOL_VERSION);
        if !is_session || header_is_stateless(&inbound.headers) {
            return only_post();
        }
        if inbound.method == Method::GET { self.session.get(inbound).await } else { self.session.delete(inbound).await }
    }

    async fn serve_message(&self, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
        let face = era_of(&message, &inbound.headers);
        let asker = RateLimitedRequest::of(&message, face, &inbound);
        if let Err(refusal) = self.admit(&asker, &inbound, &message) {
            return asker.refuse(&refusal);
        }
        let response = match face {
            Face::Stateless => self.serve_stateless(&inbound, message).await,
            Face::Session => self.session.post(inbound, message).await,
        };
        if response.extensions().get::<UnknownTaskMarker>().is_none() {
            return response;
        }
        match self.served.rates.missed(&asker.principal) {
            Ok(()) => response,
            Err(refusal) => asker.refuse(&refusal),
        }
    }

    /// Counts a message. Whoever has many tasks asks often how they stand.
    fn admit(&self, asker: &RateLimitedRequest, inbound: &Inbound, message: &Message) -> Result<(), RateRefusal> {
        let Served { rates, engine, .. } = &*self.served;
        match message {
            Message::Request(request) if matches!(&*request.method, method::TASKS_GET | method::TASKS_RESULT) => {
                rates.poll(&asker.principal, engine.places_taken_by(&inbound.principal))
            }
            Message::Request(_) | Message::Notification(_) | Message::Response(_) => rates.admit(&asker.principal, 1),
        }
    }

    async fn serve_batch(&self, inbound: &Inbound) -> FaceResponse {
        let addressee = addressee(None, inbound.accepted);
        let items = match split_batch(&inbound.body, ScanLimits::CLIENT, envelope::BATCH_MAX) {
            Ok(items) => items,
            Err(error) => return refuse(&addressee, &unreadable(error).1),
        };
        if let Err(refusal) = self.served.rates.admit(&inbound.counted_as(), items.len()) {
            return too_often(&refusal);
        }
        let batch: Vec<_> = items.into_iter().map(|item| (envelope::read(&item, ScanLimits::CLIENT), item)).collect();
        let is_mixed = batch.iter().any(|(read, _)| match read {
            Ok(message) => era_of(message, &inbound.headers) == Face::Stateless,
            Err(_) => false,
        });
        if is_mixed {
            let complaint = RequestError::NotARequest(Cow::Borrowed("stateless requests come one by one"));
            return refuse(&addressee, &complaint);
        }
        self.session.post_batch(inbound, batch).await
    }

    async fn serve_stateless(&self, inbound: &Inbound, message: Box<Message>) -> FaceResponse {
        let request = match *message {
            Message::Request(request) => request,
            // Nothing that a stateless client notifies has an effect; cancelling is done by leaving (EXT-46).
            Message::Notification(notification) if is_request(&notification.method) => {
                let complaint = RequestError::NotARequest(Cow::Borrowed("this method needs an id"));
                return stateless_addressee(inbound, None).complaint(&complaint);
            }
            Message::Notification(_) => return accepted(),
            Message::Response(_) => {
                let complaint = RequestError::NotARequest(Cow::Borrowed("clients send no responses"));
                return stateless_addressee(inbound, None).complaint(&complaint);
            }
        };
        if is_handshake_without_metadata(&request) {
            let what = Cow::Borrowed("initialize is not sent with the header of a stateless version");
            return stateless_addressee(inbound, Some(request.id)).complaint(&RequestError::Header(what));
        }
        let around = MessageContext {
            headers: &inbound.headers,
            body: &inbound.body,
            principal: inbound.principal.clone(),
            counted_as: inbound.counted_as(),
            accepted: inbound.accepted,
            arrived: inbound.received_at,
            carriage: inbound.carriage,
        };
        // On the heap, so that a request of a session, which needs less, is not as large.
        Box::pin(self.stateless.serve(&request, around)).await
    }
}

/// Whoever is told that this is too much: what is left of a request once it is with its face.
struct RateLimitedRequest {
    principal: Principal,
    addressee: Addressee,
    face: Face,
}

impl RateLimitedRequest {
    fn of(message: &Message, face: Face, inbound: &Inbound) -> Self {
        let id = match message {
            Message::Request(request) => Some(request.id.clone()),
            Message::Notification(_) | Message::Response(_) => None,
        };
        let addressee = match face {
            Face::Stateless => stateless_addressee(inbound, id),
            Face::Session => addressee(id.as_ref(), inbound.accepted),
        };
        Self { principal: inbound.counted_as(), addressee, face }
    }

    /// 429, but for requests of session clients, which drop their connection then (GW-04).
    fn refuse(&self, refusal: &RateRefusal) -> FaceResponse {
        match (self.face, &self.addressee.id) {
            (_, None) => too_often(refusal),
            (Face::Stateless, Some(_)) => self.addressee.too_often(refusal),
            (Face::Session, Some(_)) => self.addressee.error(StatusCode::OK, &rate_error(refusal)),
        }
    }
}

fn stateless_addressee(inbound: &Inbound, id: Option<RequestId>) -> Addressee {
    Addressee { id, version: ProtocolVersion::STATELESS, accepted: inbound.accepted }
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
    request.method == method::INITIALIZE && !crate::dialect::negotiate::names_version(request.params.object())
}

/// Methods that make no sense without an answer (B104).
fn is_request(name: &str) -> bool {
    !name.starts_with("notifications/")
}
