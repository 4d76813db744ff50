//! Ends event streams early when their credential or right is withdrawn.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use super::http::{FaceResponse, ResponseBody, empty_body};
use crate::wire::framing::BodyPart;

/// Ends an event stream once `ended` returns; a response in one piece is unchanged.
pub(crate) fn ending_with<E>(response: FaceResponse, ended: impl FnOnce() -> E) -> FaceResponse
where
    E: Future<Output = ()> + Send + 'static,
{
    let is_stream =
        response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    match is_stream {
        true => response.map(|body| RevocableBody { body, ended: ended().boxed() }.boxed_unsync()),
        false => response,
    }
}

struct RevocableBody {
    body: ResponseBody,
    ended: BoxFuture<'static, ()>,
}

impl fmt::Debug for RevocableBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocableBody").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Body for RevocableBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(context).is_ready() {
            // The body is released now, not when the client has read the end; `ended` is not polled again.
            this.ended = std::future::pending().boxed();
            this.body = empty_body();
        }
        Pin::new(&mut this.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
