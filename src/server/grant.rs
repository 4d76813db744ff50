//! Ends a credential's streams when the credential is withdrawn, or is no longer valid. Every event stream is wrapped
//! as it leaves, and ends with its grant. A response in one piece is still sent (B152).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::face::http::{FaceResponse, ending_with};
use crate::task::{Clock, SystemClock, Timestamp};

/// The interval between two looks at the wall clock: timers miss that it was set, or that the machine slept.
const LOOK_EVERY: Duration = Duration::from_secs(60);

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

    /// Binds a response to the grant if it is an event stream, and to the end of its credential's validity, if there is one.
    pub(super) fn bind(&self, response: FaceResponse, ends_at: Option<Timestamp>) -> FaceResponse {
        ending_with(response, || {
            let mut withdrawn = self.0.subscribe();
            async move {
                let withdrawn = async {
                    // A dropped listener withdraws nothing: its connections end by themselves.
                    if withdrawn.wait_for(|is_withdrawn| *is_withdrawn).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                match ends_at {
                    Some(ends_at) => tokio::select! { () = withdrawn => (), () = reached(ends_at, &SystemClock) => () },
                    None => withdrawn.await,
                }
            }
        })
    }
}

async fn reached(time: Timestamp, clock: &impl Clock) {
    loop {
        let left = time.since(clock.now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(LOOK_EVERY)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use tokio::time::Instant;

    use super::*;
    use crate::face::http::{ResponseBody, full_body};
    use crate::task::ManualClock;

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

    #[tokio::test]
    async fn an_event_stream_ends_with_its_credentials_validity() {
        let bound = |ends_at| Grant::default().bind(answer("text/event-stream", endless()), Some(ends_at)).into_body();
        let now = SystemClock.now();
        let (mut later, mut soon) = (bound(now.after(Duration::from_secs(3600))), bound(now.after(LOOK_EVERY / 600)));
        assert!(soon.frame().await.is_none(), "it ends");
        assert!(later.frame().now_or_never().is_none(), "it is open");
    }

    /// Timers do not notice that the wall clock was set, or that the machine slept.
    #[tokio::test(start_paused = true)]
    async fn the_end_is_noticed_within_a_minute_of_a_leap_of_the_clock() {
        let (clock, began) = (ManualClock::default(), Instant::now());
        let mut end = pin!(reached(Timestamp::from_millis(3_600_000), &clock));
        assert!(end.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(3600));
        end.await;
        assert_eq!(began.elapsed(), LOOK_EVERY);
    }
}
