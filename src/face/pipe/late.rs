//! Answers that keep a client waiting: the head of an event stream as a life sign, the answer later.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep};

use super::inject::injected;
use super::read;
use super::signs::Signs;
use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, bare, event_stream};
use crate::face::call_stream::silence::{LIFE_SIGN, Silence};
use crate::face::http::{AcceptedTypes, Response, ResponseBody, empty_body, full_body};
use crate::face::session::streams::SessionStream;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::{sse_comment, sse_message};
use crate::wire::{RequestId, RpcError, envelope};

/// What became of a request.
pub(in crate::face) enum Answer {
    Json(ResponseBody),
    Events(ResponseBody),
    Error(RpcError),
    /// An error that the upstream gave under a status of its own.
    Refused(StatusCode, RpcError),
    /// A fault of the gateway, for clients that take a status which means that it may be repeated.
    Fault(GatewayFault),
    /// A status alone, for a stream that there is not.
    Status(Response),
}

/// An answer that was read whole. Several messages in one array become several events, or the answer
/// alone for a client that takes no stream.
pub(super) fn several(mut messages: Vec<Bytes>, accepted: AcceptedTypes, id: &RequestId) -> Answer {
    if messages.len() == 1 {
        return Answer::Json(full_body(messages.swap_remove(0)));
    }
    if accepted == AcceptedTypes::Json {
        let answers = |message: &Bytes| read::is_answer(message, id);
        return match messages.into_iter().find(answers) {
            Some(answer) => Answer::Json(full_body(answer)),
            None => Answer::Error(gateway_error(&GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes))),
        };
    }
    let events: Vec<Bytes> = messages.iter().map(sse_message).collect();
    Answer::Events(full_body(events.concat().into()))
}

impl Answer {
    pub(in crate::face) fn into_response(self, addressee: &Addressee) -> Response {
        match self {
            Self::Json(body) if addressee.accepted == AcceptedTypes::EventStream => {
                event_stream(OneEvent::new(body).boxed_unsync())
            }
            Self::Json(body) => {
                let mut response = Response::new(body);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Self::Events(body) => event_stream(body),
            Self::Error(error) => addressee.error(StatusCode::OK, &error),
            Self::Refused(status, error) => addressee.error(status, &error),
            Self::Fault(fault) => addressee.fault(&fault),
            Self::Status(response) => response,
        }
    }

    /// What it is where the head of an event stream is given already.
    pub(in crate::face) fn into_events(self, addressee: &Addressee) -> Option<ResponseBody> {
        match self {
            Self::Json(body) => Some(OneEvent::new(body).boxed_unsync()),
            Self::Events(body) => Some(body),
            Self::Error(error) | Self::Refused(_, error) => Some(error_event(addressee, &error)),
            Self::Fault(fault) => Some(error_event(addressee, &gateway_error(&fault))),
            Self::Status(_) => None,
        }
    }
}

fn error_event(addressee: &Addressee, error: &RpcError) -> ResponseBody {
    full_body(sse_message(&envelope::error(addressee.id.as_ref(), error)))
}

/// Answers as soon as there is an answer, or begins an event stream where that takes long and the client
/// takes one.
pub(in crate::face) async fn respond(
    mut answering: BoxFuture<'static, Answer>,
    addressee: Addressee,
    signs: Option<Signs>,
) -> Response {
    if !matches!(addressee.accepted, AcceptedTypes::EventStream | AcceptedTypes::Both) {
        return answering.await.into_response(&addressee);
    }
    match Silence::begin().wait(&mut answering).await {
        Some(answer) => answer.into_response(&addressee),
        None => {
            let timer = Box::pin(tokio::time::sleep_until(Instant::now()));
            event_stream(LateBody { state: State::Waiting(answering), addressee, signs, timer }.boxed_unsync())
        }
    }
}

/// A stream whose head is given: signs of life until there is an answer, the first after one silence.
pub(super) fn waiting(
    answering: BoxFuture<'static, Answer>,
    addressee: Addressee,
    signs: Option<Signs>,
) -> ResponseBody {
    let timer = Box::pin(tokio::time::sleep_until(Silence::begin().ends_at()));
    LateBody { state: State::Waiting(answering), addressee, signs, timer }.boxed_unsync()
}

/// The same for a stream on which the gateway has something to say too: it begins with the first of that at
/// the latest, whether the answer is there or not.
pub(super) async fn respond_along(
    mut answering: BoxFuture<'static, Answer>,
    addressee: Addressee,
    mut own: SessionStream,
) -> Response {
    let (answer, first) = tokio::select! {
        biased;
        answer = &mut answering => (Some(answer), None),
        message = own.next() => (None, Some(message)),
        () = tokio::time::sleep(LIFE_SIGN) => (None, None),
    };
    let body = match answer {
        Some(Answer::Events(body)) => body,
        Some(
            answer @ (Answer::Json(_) | Answer::Error(_) | Answer::Refused(..) | Answer::Fault(_) | Answer::Status(_)),
        ) => {
            return answer.into_response(&addressee);
        }
        None => waiting(answering, addressee, None),
    };
    event_stream(injected(body, own, first))
}

/// What answers a request that was cancelled: there is no response (LEG-14), but HTTP wants one.
pub(super) fn unanswered(accepted: AcceptedTypes) -> Answer {
    match accepted {
        AcceptedTypes::Json => status(StatusCode::ACCEPTED),
        AcceptedTypes::EventStream | AcceptedTypes::Both | AcceptedTypes::Neither => Answer::Events(empty_body()),
    }
}

/// Any answer of the gateway's own where a status is all there is to say.
pub(super) fn status(status: StatusCode) -> Answer {
    Answer::Status(bare(status))
}

struct LateBody {
    state: State,
    addressee: Addressee,
    signs: Option<Signs>,
    timer: Pin<Box<Sleep>>,
}

enum State {
    Waiting(BoxFuture<'static, Answer>),
    Answering(ResponseBody),
    Over,
}

impl Body for LateBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Waiting(answering) => match answering.as_mut().poll(cx) {
                    Poll::Ready(answer) => {
                        let events = answer.into_events(&this.addressee);
                        this.state = events.map_or(State::Over, State::Answering);
                    }
                    Poll::Pending => {
                        ready!(this.timer.as_mut().poll(cx));
                        this.timer.as_mut().reset(Silence::begin().ends_at());
                        let sign = this.signs.as_ref().map_or_else(sse_comment, Signs::sign);
                        return Poll::Ready(Some(Ok(Frame::data(sign))));
                    }
                },
                State::Answering(body) => return Pin::new(body).poll_frame(cx),
                State::Over => return Poll::Ready(None),
            }
        }
    }
}

/// A JSON body as one event, piece by piece. Line ends in it, which only JSON's whitespace has, become
/// several lines of data that read back as the same JSON.
struct OneEvent {
    source: ResponseBody,
    at: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Data,
    Over,
}

impl OneEvent {
    const fn new(source: ResponseBody) -> Self {
        Self { source, at: Part::Head }
    }
}

impl Body for OneEvent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.at == Part::Over {
            return Poll::Ready(None);
        }
        let frame = match ready!(Pin::new(&mut this.source).poll_frame(cx)) {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => {
                this.at = Part::Over;
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"\n\n")))));
            }
        };
        let is_first = std::mem::replace(&mut this.at, Part::Data) == Part::Head;
        if !is_first && memchr::memchr2(b'\r', b'\n', &frame).is_none() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        let mut out = BytesMut::with_capacity(frame.len() + 32);
        if is_first {
            out.extend_from_slice(b"event: message\ndata: ");
        }
        for (at, line) in frame.split(|byte| *byte == b'\r' || *byte == b'\n').enumerate() {
            if at > 0 {
                out.extend_from_slice(b"\ndata: ");
            }
            out.extend_from_slice(line);
        }
        Poll::Ready(Some(Ok(Frame::data(out.freeze()))))
    }
}
