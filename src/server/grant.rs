//! Ends a credential's streams when the credential is withdrawn.
//!
//! Wraps every event stream as it leaves, for all faces: the stream ends with its grant. A response in one piece is still sent,
//! because its request was admitted (B152).

use std::sync::Arc;

use tokio::sync::watch;

use crate::face::http::{FaceResponse, ending_with};

/// The validity of one credential. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Grant(Arc<watch::Sender<bool>>);

impl Default for Grant {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Grant {
    /// Ends every stream of this grant, present and future.
    pub(super) fn withdraw(&self) {
        self.0.send_replace(true);
    }

    /// Binds a response to the grant if it is an event stream.
    pub(super) fn bind(&self, response: FaceResponse) -> FaceResponse {
        ending_with(response, || {
            let mut withdrawn = self.0.subscribe();
            async move {
                // A dropped listener withdraws nothing: its connections end by themselves.
                if withdrawn.wait_for(|is_withdrawn| *is_withdrawn).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::face::http::{ResponseBody, full_body};

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
        assert!(other.frame().now_or_never().is_none(), "a stream continues when its sender is dropped");
    }
}
