//! What the gateway itself has to say on a stream that is otherwise somebody else's: whole events, put in
//! between those that pass.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};

use crate::face::http::ResponseBody;
use crate::face::session::streams::SessionStream;
use crate::wire::framing::{SseDecoder, sse_message};

/// An event stream with the messages of `own` in it, `first` in front of them. Ends with the stream.
pub(super) fn injected(source: ResponseBody, own: SessionStream, first: Option<Bytes>) -> ResponseBody {
    Injected { source, own, first, position: SseDecoder::of_nothing() }.boxed_unsync()
}

struct Injected {
    source: ResponseBody,
    own: SessionStream,
    first: Option<Bytes>,
    position: SseDecoder,
}

impl Body for Injected {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        // In the middle of an event the source goes on first, and wakes this when it does.
        if this.position.is_between_events()
            && let Poll::Ready(message) = this.first.take().map_or_else(|| this.own.poll(cx), Poll::Ready)
        {
            // Without an id: what the client takes up again is the source's alone.
            return Poll::Ready(Some(Ok(Frame::data(sse_message(&message)))));
        }
        let polled = Pin::new(&mut this.source).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let _ = this.position.feed(data);
        }
        polled
    }
}
