//! Inserts the gateway's own events into an upstream's event stream, between its events.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};

use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::call_stream::{CallMessage, CallMessages};
use crate::face::http::ResponseBody;
use crate::face::session::session_streams::SessionStream;
use crate::wire::framing::{BodyPart, SseDecoder};

/// A session's own stream, with the gateway's messages before it and between its events.
pub(super) struct SessionOwnStream {
    pub(super) answering: BoxFuture<'static, RequestAnswer>,
    pub(super) own: Option<SessionStream>,
}

impl CallMessages for SessionOwnStream {
    async fn next(&mut self) -> Option<CallMessage> {
        tokio::select! {
            biased;
            answer = &mut self.answering => Some(CallMessage::Answer(match (answer, self.own.take()) {
                (RequestAnswer::Events(source), Some(own)) => {
                    RequestAnswer::Events(InjectedStream { source, own, position: SseDecoder::of_nothing() }.boxed_unsync())
                }
                (answer, _) => answer,
            })),
            Some(message) = next(self.own.as_mut()) => Some(CallMessage::event(message)),
        }
    }
}

async fn next(own: Option<&mut SessionStream>) -> Option<Bytes> {
    Some(own?.next().await)
}

/// An event stream with the messages of `own`. Ends with the stream.
struct InjectedStream {
    source: ResponseBody,
    own: SessionStream,
    position: SseDecoder,
}

impl Body for InjectedStream {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        // Within an event the source goes first, and wakes this task.
        if this.position.is_between_events()
            && let Poll::Ready(message) = this.own.poll(cx)
        {
            // Without an id: only the source's events can be resumed.
            return Poll::Ready(Some(Ok(Frame::data(BodyPart::message(message)))));
        }
        let polled = Pin::new(&mut this.source).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let _ = this.position.take(data);
        }
        polled
    }
}
