//! Gives an admitted request to its face, and answers requests that no face serves.

use std::borrow::Cow;
use std::sync::Arc;

use http::Method;
use tokio_util::sync::CancellationToken;

use super::admitted_request::{AdmittedMessage, AdmittedRequest};
use super::answer::{accepted, stateless_addressee};
use super::array_answer::ArrayItems;
use super::headers::Face;
use super::http::{FaceResponse, Inbound};
use super::served::Served;
use crate::dialect::RequestError;
use crate::wire::envelope::Request;
use crate::wire::{Message, RequestId, method};

pub(super) trait PathFaces: Send + Sync {
    fn path(&self) -> PathContext<'_>;

    fn stateless(&self, inbound: &Inbound, request: &Request) -> impl Future<Output = FaceResponse> + Send;

    fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> impl Future<Output = FaceResponse> + Send;

    fn post_batch(&self, inbound: &Inbound, batch: ArrayItems) -> impl Future<Output = FaceResponse> + Send;

    /// Opens or resumes a session's stream.
    fn get(&self, inbound: &Inbound) -> impl Future<Output = FaceResponse> + Send;

    fn delete(&self, inbound: &Inbound) -> impl Future<Output = FaceResponse> + Send;

    /// Whether this process has a request of this session.
    fn has_in_flight(&self, nonce: u128, id: &RequestId) -> bool;
}

#[derive(Clone, Copy)]
pub(super) struct PathContext<'a> {
    pub(super) served: &'a Served,
    /// The name by which the path's streams are counted.
    pub(super) name: &'a Arc<str>,
    /// Ends streams that have no other end.
    pub(super) streams_end: &'a CancellationToken,
}

/// Rare requests are boxed, so that a message's future is not as large.
pub(super) async fn serve(faces: &impl PathFaces, admitted: AdmittedRequest) -> FaceResponse {
    match admitted {
        AdmittedRequest::Message(AdmittedMessage { inbound, message, face, refusable }) => {
            let response = match face {
                Face::Stateless => {
                    let response = serve_stateless(faces, &inbound, &message).await;
                    inbound.finish();
                    response
                }
                Face::Session => faces.post(inbound, message).await,
            };
            match refusable {
                Some(refusable) => refusable.count_miss(faces.path().served, response),
                None => response,
            }
        }
        AdmittedRequest::Batch(inbound, batch) => Box::pin(faces.post_batch(&inbound, batch)).await,
        AdmittedRequest::Operation(inbound) if inbound.method == Method::GET => Box::pin(faces.get(&inbound)).await,
        AdmittedRequest::Operation(inbound) => Box::pin(faces.delete(&inbound)).await,
        AdmittedRequest::Refused(refusal) => refusal,
    }
}

async fn serve_stateless(faces: &impl PathFaces, inbound: &Inbound, message: &Message) -> FaceResponse {
    let request = match message {
        Message::Request(request) => request,
        // Notifications of stateless clients have no effect; they cancel by disconnecting (EXT-46).
        Message::Notification(notification) if is_request(&notification.method) => {
            let complaint = RequestError::not_a_request("this method is a request; send it with an id");
            return stateless_addressee(inbound, None).complaint(&complaint);
        }
        Message::Notification(_) => return accepted(),
        Message::Response(_) => {
            let complaint = RequestError::not_a_request("clients send no responses");
            return stateless_addressee(inbound, None).complaint(&complaint);
        }
    };
    if is_handshake_without_metadata(request) {
        let what = Cow::Borrowed("initialize cannot have the header of a stateless version");
        return stateless_addressee(inbound, Some(request.id.clone())).complaint(&RequestError::Header(what));
    }
    faces.stateless(inbound, request).await
}

fn is_handshake_without_metadata(request: &Request) -> bool {
    request.method == method::INITIALIZE && !crate::dialect::negotiate::names_version(request.params.object())
}

/// Whether a method requires a response (B104).
fn is_request(name: &str) -> bool {
    !name.starts_with("notifications/")
}
