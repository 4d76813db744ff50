//! Holds an HTTP/2 connection to a replica, on h2 itself: requests need no tasks.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use super::LinkPermit;
use crate::cause::CauseChain;
use crate::upstream::TaskScope;
use crate::upstream::transport::http_client::is_unprocessed;
use crate::wire::framing::BodyPart;

/// The flow-control window of a response. The connection's is the sum of all: a client that does not read blocks none.
const STREAM_WINDOW: u32 = 64 << 10;
const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;
/// A ping detects a replica that has died silently, as silence is normal during a call.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_MAX: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct ReplicaSender(SendRequest<Bytes>);

pub(super) enum Unanswered {
    /// The replica has certainly not processed the request.
    Unsent,
    /// The replica may have processed it.
    Lost(h2::Error),
}

impl ReplicaSender {
    /// Shakes hands, for `requests_max` concurrent requests, until the replica has responded. Lasts as its users do.
    pub(super) async fn speak<T>(io: T, requests_max: u32, scope: &TaskScope) -> Result<Self, h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * requests_max)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            // Late frames of cancelled responses are no error of the replica's, however many there are.
            .max_concurrent_reset_streams(requests_max as usize)
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(io)
            .await?;
        let mut pings = connection.ping_pong().expect("no other code took it");
        // Whether the replica accepts this side's certificate is known only after its first response, not at the end of this
        // side's handshake (RFC 8446, 4.4.2): a request sent earlier would be lost with the connection.
        tokio::select! {
            ended = &mut connection => return Err(ended.err().unwrap_or_else(|| Reason::NO_ERROR.into())),
            answered = pings.ping(Ping::opaque()) => answered?,
        };
        let stop = scope.stop.clone();
        scope.tracker.spawn(async move {
            let ended = async {
                tokio::select! {
                    ended = connection => ended.map_err(|error| CauseChain(&error).to_string()),
                    () = unanswered_ping(pings) => Err("it answers no ping".to_owned()),
                }
            };
            // Requests in progress fail with the connection.
            if let Some(Err(error)) = stop.run_until_cancelled(ended).await {
                tracing::debug!(%error, "a connection to another replica ended");
            }
        });
        Ok(Self(sender))
    }

    pub(super) async fn is_open(&self) -> bool {
        self.0.clone().ready().await.is_ok()
    }

    /// Sends a request and returns the response head. The request must have no hop-by-hop header (RFC 9113, 8.2.2).
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<RecvStream>, Unanswered> {
        let (mut head, body) = request.into_parts();
        if !body.is_empty() {
            head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(body.len()));
        }
        let mut sender = self.0.clone().ready().await.map_err(|_| Unanswered::Unsent)?;
        let sent = sender.send_request(Request::from_parts(head, ()), body.is_empty());
        let (answer, mut stream) = sent.map_err(|_| Unanswered::Unsent)?;
        if !body.is_empty() {
            // The whole body is in memory. h2 sends as much as the replica's windows allow and queues the rest. A failure means
            // that the stream has ended, which the response reports, too.
            let _ = stream.send_data(body, true);
        }
        answer.await.map_err(|error| if is_unprocessed(&error) { Unanswered::Unsent } else { Unanswered::Lost(error) })
    }
}

async fn unanswered_ping(mut pings: PingPong) {
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_MAX, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended, and its own future reports why.
            Ok(Err(_)) => return pending().await,
            Err(_) => return,
        }
    }
}

/// A response body from a replica. Dropping it cancels the request there.
pub(super) struct ForwardedBody {
    incoming: RecvStream,
    /// The bytes that `Content-Length` still announces.
    left: Option<u64>,
    data_ended: bool,
    _permit: LinkPermit,
}

impl ForwardedBody {
    pub(super) fn new(incoming: RecvStream, headers: &HeaderMap, permit: LinkPermit) -> Self {
        let left = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { incoming, left, data_ended: false, _permit: permit }
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let Some(read) = ready!(self.incoming.poll_data(context)) else { return Poll::Ready(None) };
        Poll::Ready(Some(read.and_then(|data| {
            self.incoming.flow_control().release_capacity(data.len())?;
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            Ok(data)
        })))
    }
}

impl Body for ForwardedBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        if !self.data_ended {
            match ready!(self.poll_data(context)) {
                Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(data))))),
                // The response is complete: the replica only stopped reading the request (RFC 9113, 8.1).
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.incoming.poll_trailers(context));
        Poll::Ready(trailers.map_err(io::Error::other).transpose().map(|read| read.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
