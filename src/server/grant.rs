//! Ends the streams of a credential when the credential is withdrawn.
//!
//! The one place where the streams of a credential are ended, whatever face they belong to: an event stream is wrapped
//! as it leaves, and ends with its grant. An answer in one piece is given all the same, as its request was admitted
//! (B152).

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

use crate::face::http::{FaceResponse, ResponseBody, empty_body};
use crate::wire::framing::BodyPart;

/// What one credential is served on. Clones are one grant.
#[derive(Clone, Debug)]
pub(super) struct Grant(Arc<watch::Sender<bool>>);

impl Default for Grant {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Grant {
    /// Ends every stream that was or will be begun on it.
    pub(super) fn withdraw(&self) {
        self.0.send_replace(true);
    }

    /// The same answer, which ends with the grant if it is an event stream.
    pub(super) fn bind(&self, response: FaceResponse) -> FaceResponse {
        let is_stream =
            response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream {
            return response;
        }
        let mut withdrawn = self.0.subscribe();
        let ended = async move {
            // A listener that is gone withdraws nothing: its connections end by themselves.
            if withdrawn.wait_for(|is_withdrawn| *is_withdrawn).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        response.map(|body| RevocableBody { body, ended: ended.boxed() }.boxed_unsync())
    }
}

/// A body that ends with a grant.
struct RevocableBody {
    body: ResponseBody,
    ended: BoxFuture<'static, ()>,
}

impl fmt::Debug for RevocableBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Body for RevocableBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(context).is_ready() {
            // Not polled again; and whatever the stream held is let go of now, not when its client has read the end.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::face::http::full_body;

    fn answer(kind: &'static str, body: ResponseBody) -> FaceResponse {
        let mut response = FaceResponse::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    fn endless() -> ResponseBody {
        http_body_util::StreamBody::new(futures_util::stream::pending()).boxed_unsync()
    }

    #[tokio::test]
    async fn an_event_stream_ends_with_its_grant_and_an_answer_is_given() {
        let grant = Grant::default();
        let mut open = grant.bind(answer("text/event-stream; charset=utf-8", endless())).into_body();
        assert!(open.frame().now_or_never().is_none(), "it is open");
        let whole = grant.bind(answer("application/json", full_body(Bytes::from_static(b"{}"))));
        let other = Grant::default().bind(answer("text/event-stream", endless())).into_body();
        grant.withdraw();
        assert!(matches!(open.frame().now_or_never(), Some(None)), "it ends");
        assert!(matches!(open.frame().now_or_never(), Some(None)), "and stays ended");
        assert_eq!(whole.into_body().collect().await.unwrap().to_bytes(), "{}");
        let late = grant.bind(answer("text/event-stream", full_body(Bytes::from_static(b"data: 1\n\n"))));
        assert_eq!(late.into_body().collect().await.unwrap().to_bytes(), "", "begun after it");
        let mut other = other;
        assert!(other.frame().now_or_never().is_none(), "whose sender is gone, goes on");
    }
}
