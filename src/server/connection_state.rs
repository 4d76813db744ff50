//! Shares state between a connection's requests and its I/O layer.

pub(super) mod unread_answers;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use hyper::body::{Body, Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use super::listener_metrics::{GaugeGuard, ListenerMetrics};
use crate::face::http::ResponseBody;
use crate::wire::framing::BodyPart;
use unread_answers::{PIECE_MAX, UnreadAnswers, next_piece};

/// The state of one connection, written by its requests. All of it is advisory, so relaxed ordering suffices.
#[derive(Debug)]
pub(super) struct ConnectionState {
    begun: AtomicU32,
    open: AtomicU32,
    glitches: AtomicU32,
    close_announced: AtomicBool,
    leave: CancellationToken,
    unread: UnreadAnswers,
}

impl ConnectionState {
    /// Cancelling `leave` ends the connection after the responses in progress.
    pub(super) fn new(leave: CancellationToken) -> Self {
        Self {
            begun: 0.into(),
            open: 0.into(),
            glitches: 0.into(),
            close_announced: false.into(),
            leave,
            unread: UnreadAnswers::default(),
        }
    }

    pub(super) const fn leave(&self) -> &CancellationToken {
        &self.leave
    }

    pub(super) const fn unread(&self) -> &UnreadAnswers {
        &self.unread
    }

    /// Counts a refused request. The request after `max` ends the connection gracefully.
    pub(super) fn glitch(&self, max: u32) -> PeerState {
        if self.glitches.fetch_add(1, Ordering::Relaxed) < max {
            return PeerState::Good;
        }
        self.leave.cancel();
        PeerState::Leaving
    }

    /// The number of requests that have begun; wraps.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Whether a response announced the end of the connection, perhaps before the peer had sent its whole request.
    pub(super) fn is_close_announced(&self) -> bool {
        self.close_announced.load(Ordering::Relaxed)
    }

    pub(super) fn announce_close(&self) {
        self.close_announced.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Good,
    Leaving,
}

/// One request, from its head to the last byte of its response or the departure of its client.
#[derive(Debug)]
pub(super) struct OpenRequest {
    trail: Arc<ConnectionState>,
    number: u32,
    _counted: GaugeGuard,
}

impl OpenRequest {
    pub(super) fn new(trail: Arc<ConnectionState>, meter: &ListenerMetrics) -> Self {
        let number = trail.begun.fetch_add(1, Ordering::Relaxed);
        trail.open.fetch_add(1, Ordering::Relaxed);
        Self { trail, number, _counted: meter.request() }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.trail.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response; it keeps its request open.
#[derive(Debug)]
pub(super) struct OpenRequestBody {
    body: ResponseBody,
    open: OpenRequest,
    carriage: BodyDelivery,
}

#[derive(Debug)]
enum BodyDelivery {
    /// Over HTTP/1: only the socket shows whether the peer reads.
    Socket,
    /// Over HTTP/2 in pieces; holds the rest of a frame.
    Stream(BodyPart),
}

impl OpenRequestBody {
    pub(super) const fn new(body: ResponseBody, open: OpenRequest, version: Version) -> Self {
        let carriage = match version {
            Version::HTTP_2 => BodyDelivery::Stream(BodyPart::Bytes(Bytes::new())),
            _ => BodyDelivery::Socket,
        };
        Self { body, open, carriage }
    }
}

impl Body for OpenRequestBody {
    type Data = BodyPart;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPart>, std::io::Error>>> {
        let this = self.get_mut();
        let BodyDelivery::Stream(left) = &mut this.carriage else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        let OpenRequest { trail, number, .. } = &this.open;
        trail.unread.taken(*number);
        // An empty frame carries nothing, and peers count them (h2 ends a connection after a hundred).
        while left.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    // A small event is sent as one piece; a large one is not copied as a whole.
                    Ok(data) if data.len() <= PIECE_MAX => *left = BodyPart::Bytes(data.into_bytes()),
                    Ok(data) => *left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other @ (Some(Err(_)) | None) => return Poll::Ready(other),
            }
        }
        trail.unread.handed(*number);
        Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(next_piece(left))))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.carriage {
            BodyDelivery::Stream(left) if !left.is_empty() => false,
            BodyDelivery::Stream(_) | BodyDelivery::Socket => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.carriage {
            // hyper asks only before the first frame.
            BodyDelivery::Stream(left) if !left.is_empty() => SizeHint::default(),
            BodyDelivery::Stream(_) | BodyDelivery::Socket => self.body.size_hint(),
        }
    }
}

impl Drop for OpenRequestBody {
    fn drop(&mut self) {
        self.open.trail.unread.taken(self.open.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[tokio::test]
    async fn an_empty_piece_of_an_answer_is_not_sent_on() {
        let pieces = ["", "a", "", "", "b", ""].map(|piece| Ok(Frame::data(BodyPart::Bytes(Bytes::from(piece)))));
        let body = StreamBody::new(stream::iter(pieces)).boxed_unsync();
        let trail = Arc::new(ConnectionState::new(CancellationToken::new()));
        let open = OpenRequest::new(trail, &ListenerMetrics::new("replicas"));
        let mut body = OpenRequestBody::new(body, open, Version::HTTP_2);
        let mut sent = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            sent.push(frame.unwrap().into_data().unwrap().into_bytes());
        }
        assert_eq!(sent, ["a", "b"]);
    }
}
