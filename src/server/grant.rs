//! Ends a credential's streams when the credential is withdrawn, or is no longer valid. Every event stream is wrapped
//! as it leaves, and ends with its grant. A response in one piece is still sent (B152).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

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

    /// Binds a response to the grant if it is an event stream, and to the rest of its credential's validity if that ends.
    pub(super) fn bind(&self, response: FaceResponse, ends_in: Option<Duration>) -> FaceResponse {
        ending_with(response, || {
            let mut withdrawn = self.0.subscribe();
            let end = ends_in.map(|span| Instant::now() + span);
            async move {
                let withdrawn = async {
                    // A dropped listener withdraws nothing: its connections end by themselves.
                    if withdrawn.wait_for(|is_withdrawn| *is_withdrawn).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                match end {
                    Some(end) => drop(tokio::time::timeout_at(end, withdrawn).await),
                    None => withdrawn.await,
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
        ResponseBody::new(http_body_util::StreamBody::new(futures_util::stream::pending()))
    }

    #[tokio::test]
    async fn an_event_stream_ends_with_its_grant_and_an_answer_is_given() {
        let grant = Grant::default();
        let mut open = grant.bind(answer("text/event-stream; charset=utf-8", endless()), None).into_body();
        assert!(open.frame().now_or_never().is_none(), "it is open");
        let whole = grant.bind(answer("application/json", full_body(Bytes::from_static(b"{}"))), None);
        let other = Grant::default().bind(answer("text/event-stream", endless()), None).into_body();
        grant.withdraw();
        assert!(matches!(open.frame().now_or_never(), Some(None)), "it ends");
        assert!(matches!(open.frame().now_or_never(), Some(None)), "and stays ended");
        assert_eq!(whole.into_body().collect().await.unwrap().to_bytes(), "{}");
        let late = grant.bind(answer("text/event-stream", full_body(Bytes::from_static(b"data: 1\n\n"))), None);
        assert_eq!(late.into_body().collect().await.unwrap().to_bytes(), "", "begun after it");
        let mut other = other;
        assert!(other.frame().now_or_never().is_none(), "a stream continues when its sender is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_stream_ends_with_its_credentials_validity() {
        let grant = Grant::default();
        let mut open = grant.bind(answer("text/event-stream", endless()), Some(Duration::from_secs(60))).into_body();
        assert!(open.frame().now_or_never().is_none(), "it is open");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(open.frame().now_or_never().is_none(), "it is still open");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(open.frame().now_or_never(), Some(None)), "it ends");
    }
}
