//! Serves the messages of an array, each as if it came alone, and responds with one JSON array (LEG-12). Messages
//! without response go first, in order; requests run concurrently, and each response is written once it is complete. A
//! call in an array has no stream: its progress and logs are dropped, its server's questions refused.

use std::collections::BTreeSet;
use std::future::ready;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http::StatusCode;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::answer::{ScopesNeeded, UnknownTaskMarker, accepted, event_stream, json, unreadable};
use super::arrival::ALONE_MAX;
use super::http::{AcceptedTypes, FaceResponse, Inbound, ResponseBody};
use super::served::Served;
use super::stream_client::caught;
use crate::answer_budget::as_one_request;
use crate::dialect::RequestError;
use crate::dialect::faults::{gateway_error, rate_error};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::reply::{ReadLimits, answer_in, read_whole};
use crate::wire::envelope::{self, EnvelopeError};
use crate::wire::framing::BodyPart;
use crate::wire::{Message, ProtocolVersion, RequestId, ScanLimits, method};

pub(super) type ArrayItems = Vec<(Result<Message, EnvelopeError>, Bytes)>;

#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayBounds {
    pub(super) result_bytes_max: usize,
    pub(super) parallel: usize,
}

/// One item of an array as a separate request, from a client that accepts no stream.
fn alone(inbound: &Inbound, body: Bytes) -> Box<Inbound> {
    Box::new(Inbound { body, message: None, accepted: AcceptedTypes::Json, ..inbound.clone() })
}

pub(super) const fn is_one_way(read: &Result<Message, EnvelopeError>) -> bool {
    matches!(read, Ok(Message::Notification(_) | Message::Response(_)))
}

/// Serves one message after the other. Returns the first failure; ends at a 503: the client may send the array again.
pub(super) async fn serve_one_way<P: Future<Output = FaceResponse>>(
    inbound: &Inbound,
    items: ArrayItems,
    post: impl Fn(Box<Inbound>, Box<Message>) -> P,
) -> FaceResponse {
    let mut refused = None;
    for (read, text) in items {
        let Ok(message) = read else { continue };
        let answer = post(alone(inbound, text), Box::new(message)).await;
        match answer.status() {
            StatusCode::ACCEPTED => (),
            StatusCode::SERVICE_UNAVAILABLE => return answer,
            _ => refused = refused.or(Some(answer)),
        }
    }
    refused.unwrap_or_else(accepted)
}

#[derive(Debug)]
struct ItemAnswer {
    text: Bytes,
    /// The scopes that its operation needs, if the token lacks one.
    needed: Option<Vec<Arc<str>>>,
}

impl From<Bytes> for ItemAnswer {
    fn from(text: Bytes) -> Self {
        Self { text, needed: None }
    }
}

/// Responds with an array, or events if only streams are accepted; 202 if it is empty, 403 if all lack a scope.
pub(super) async fn respond<P>(
    served: &Arc<Served>,
    inbound: &Inbound,
    items: ArrayItems,
    bounds: ArrayBounds,
    post: impl Fn(Box<Inbound>, Box<Message>) -> P + Send + 'static,
) -> FaceResponse
where
    P: Future<Output = FaceResponse> + Send + 'static,
{
    if items.iter().all(|(read, _)| is_one_way(read)) {
        // Boxed, as a rare case should not enlarge the future of every array.
        return Box::pin(serve_one_way(inbound, items, post)).await;
    }
    let (one_way, requests): (ArrayItems, ArrayItems) = items.into_iter().partition(|(read, _)| is_one_way(read));
    let (accepted_types, inbound_arrival, tracker) =
        (inbound.accepted, inbound.arrival.clone(), served.scope.tracker.clone());
    let inbound = Inbound { array_tools: Some(Arc::default()), ..inbound.clone() };
    let served = Arc::clone(served);
    let serve = move |(read, text): (Result<Message, EnvelopeError>, Bytes)| {
        let id = read.as_ref().ok().and_then(Message::request).map(|request| request.id.clone());
        let posted = match read {
            Ok(Message::Request(request)) if request.method == method::INITIALIZE => {
                Err(error_text(id.as_ref(), &RequestError::not_a_request("initialize must not be in a batch")))
            }
            Ok(message) => Ok(post(alone(&inbound, text), Box::new(message))),
            Err(error) => {
                let (id, complaint) = unreadable(error);
                Err(error_text(id.as_ref(), &complaint))
            }
        };
        let (principal, bytes_max) = (inbound.caller.principal.clone(), bounds.result_bytes_max);
        let answering = response_text(posted, id.clone(), Arc::clone(&served), principal, inbound.client, bytes_max);
        // A response and its copy are one request's: the copy does not wait for the response.
        as_one_request(or_error(Box::pin(answering), id))
    };
    let has_only_requests = one_way.is_empty();
    let mut refusals = Vec::new();
    for item in one_way {
        refusals.extend(serve(item).await);
    }
    // Started as it is needed: an item that waits for its turn holds its text and its parsed message alone.
    let outlives_client = inbound_arrival.outlives_client();
    let answers = stream::iter(requests).map(serve).buffer_unordered(bounds.parallel);
    let answers = stream::iter(refusals).chain(answers.filter_map(ready)).boxed();
    let mut answers = if outlives_client { finished_alone(&tracker, answers) } else { answers };
    let mut lacking = Vec::new();
    let mut needed = BTreeSet::new();
    let first = loop {
        match answers.next().await {
            Some(ItemAnswer { text, needed: Some(scopes) }) if has_only_requests => {
                lacking.push(text);
                needed.extend(scopes);
            }
            other => break other,
        }
    };
    match first {
        None if lacking.is_empty() => accepted(),
        None => insufficient_scope(lacking, needed),
        Some(first) => {
            let texts = stream::iter(lacking).chain(stream::once(ready(first.text)));
            joined(texts.chain(answers.map(|answer| answer.text)), accepted_types)
        }
    }
}

/// The challenge of a single message, for all messages of an array.
fn insufficient_scope(errors: Vec<Bytes>, needed: BTreeSet<Arc<str>>) -> FaceResponse {
    let mut response = joined(stream::iter(errors), AcceptedTypes::Json);
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.extensions_mut().insert(ScopesNeeded(needed.into_iter().collect()));
    response
}

pub(super) fn joined(
    answers: impl stream::Stream<Item = Bytes> + Send + 'static,
    accepted_types: AcceptedTypes,
) -> FaceResponse {
    match accepted_types {
        AcceptedTypes::EventStream => event_stream(body(answers.map(BodyPart::message))),
        AcceptedTypes::Json | AcceptedTypes::Both | AcceptedTypes::Neither => {
            let pieces = answers
                .enumerate()
                .flat_map(|(at, text)| stream::iter([Bytes::from_static(if at == 0 { b"[" } else { b"," }), text]));
            json(body(pieces.chain(stream::once(ready(Bytes::from_static(b"]")))).map(BodyPart::Bytes)))
        }
    }
}

/// The same responses. If the client leaves, the rest of the requests is still processed, for at most [`ALONE_MAX`].
fn finished_alone(
    tracker: &TaskTracker,
    mut answers: BoxStream<'static, ItemAnswer>,
) -> BoxStream<'static, ItemAnswer> {
    let (sender, mut receiver) = mpsc::channel(1);
    tracker.spawn(async move {
        while let Some(answer) = answers.next().await {
            if sender.send(answer).await.is_err() {
                drop(timeout(ALONE_MAX, answers.for_each(|_| ready(()))).await);
                return;
            }
        }
    });
    stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed()
}

fn error_text(id: Option<&RequestId>, complaint: &RequestError) -> Bytes {
    envelope::error(id, &complaint.to_error(ProtocolVersion::NEWEST_SESSION))
}

fn body(parts: impl stream::Stream<Item = BodyPart> + Send + 'static) -> ResponseBody {
    ResponseBody::new(StreamBody::new(parts.map(|part| Ok::<_, io::Error>(Frame::data(part)))))
}

/// Responds with an error if the future panics: the other requests of the array continue (F64).
async fn or_error(answering: impl Future<Output = Option<ItemAnswer>>, id: Option<RequestId>) -> Option<ItemAnswer> {
    let fault = GatewayFault::new(Reason::Internal, Executed::Unknown);
    caught(answering).await.unwrap_or_else(|| Some(envelope::error(Some(&id?), &gateway_error(&fault)).into()))
}

/// `None` for a message without response, and for a cancelled request.
async fn response_text(
    posted: Result<impl Future<Output = FaceResponse>, Bytes>,
    id: Option<RequestId>,
    served: Arc<Served>,
    principal: Principal,
    client: Option<IpAddr>,
    result_bytes_max: usize,
) -> Option<ItemAnswer> {
    let mut answer = match posted {
        Ok(posting) => posting.await,
        Err(refusal) => return Some(refusal.into()),
    };
    if answer.extensions().get::<UnknownTaskMarker>().is_some()
        && let Err(refusal) = served.rates.missed(&principal.counted_at(client))
    {
        return Some(envelope::error(id.as_ref(), &rate_error(&refusal)).into());
    }
    let needed = answer.extensions_mut().remove().map(|ScopesNeeded(needed)| needed);
    let limits = ReadLimits::within(result_bytes_max, served.engine.limits().answers_to(&principal)).with_envelope();
    let item = |text: Bytes| item_text(text.clone(), id.as_ref()).map(|item| limits.rehold_edited(item, &text));
    match read_whole(answer.into_body(), &limits).await.and_then(item) {
        Ok(text) => Some(ItemAnswer { text, needed }).filter(|answer| !answer.text.is_empty()),
        Err(fault) => Some(envelope::error(id.as_ref(), &gateway_error(&fault)).into()),
    }
}

/// Checks that a text is one response, or empty: any other text would spoil the responses around it (F34).
fn item_text(text: Bytes, id: Option<&RequestId>) -> Result<Bytes, GatewayFault> {
    let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    let is_meant = |named: &RequestId| id.is_none_or(|id| named == id);
    match envelope::read(&text, ScanLimits::UPSTREAM) {
        _ if text.is_empty() => Ok(text),
        Ok(Message::Response(response)) if response.id.as_ref().is_none_or(is_meant) => Ok(text),
        Err(EnvelopeError::Batch) => id.and_then(|id| Some(answer_in(&text, id)?.under(id))).ok_or(malformed),
        Ok(_) | Err(_) => Err(malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LEG-12, F34.
    #[test]
    fn a_response_that_is_no_message_fails() {
        let id = RequestId::number(1);
        let read = |text: &str| item_text(Bytes::copy_from_slice(text.as_bytes()), Some(&id));
        let fine = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let other = fine.replace('1', "2");
        let unaddressed = r#"{"jsonrpc":"2.0","error":{"code":-1,"message":"m"}}"#;
        for kept in ["", fine, &format!(" {fine}\n"), unaddressed] {
            assert_eq!(read(kept).unwrap(), kept);
        }
        assert_eq!(read(&format!("[{other},{fine}]")).unwrap(), fine);
        for odd in
            [&fine[1..], &format!("{fine},{other}"), &format!("{fine}]"), &format!("\u{feff}{fine}"), &other, "[]"]
        {
            assert_eq!(read(odd).unwrap_err().reason, Reason::UpstreamMalformed, "{odd}");
        }
    }

    /// F64.
    #[tokio::test]
    async fn a_panic_costs_one_response_of_an_array() {
        let id = RequestId::number(1);
        let answer = or_error(async { panic!("a bug") }, Some(id.clone())).await.unwrap();
        let Ok(Message::Response(response)) = envelope::read(&answer.text, ScanLimits::UPSTREAM) else { panic!() };
        assert_eq!(response.id, Some(id));
        assert!(response.outcome.is_err());
        assert!(or_error(async { panic!("a bug") }, None).await.is_none(), "a notification has no response");
    }

    #[tokio::test]
    async fn requests_of_an_array_whose_client_leaves_are_still_processed() {
        let tracker = TaskTracker::new();
        let (leaves, left) = tokio::sync::oneshot::channel::<()>();
        let (processed, is_processed) = tokio::sync::oneshot::channel();
        let late = stream::once(async move {
            let _ = left.await;
            processed.send(()).unwrap();
            ItemAnswer::from(Bytes::from_static(b"2"))
        });
        let answers = stream::once(ready(ItemAnswer::from(Bytes::from_static(b"1")))).chain(late).boxed();
        let mut answers = finished_alone(&tracker, answers);
        assert_eq!(answers.next().await.unwrap().text, "1");
        drop(answers);
        drop(leaves);
        is_processed.await.unwrap();
    }
}
