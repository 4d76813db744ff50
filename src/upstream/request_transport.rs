//! Takes a request to a server and returns the head of its answer.
//!
//! Everything above speaks streamable HTTP: one POST per message, GET for a stream, DELETE at the end of a session. A
//! server that speaks something else is put behind a [`StreamableAdapter`], which behaves like a streamable HTTP server in its
//! place, so that sessions, routing, exchanges and the pipe are the same for all.

use std::any::Any;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use super::http::client::{HandedOver, HttpClient};
use super::http::post::OutgoingRequest;
use super::transport_detection::TransportDetection;
use super::upstream_health::{UpstreamFailure, UpstreamHealth};
use crate::dialect::faults::reason_key;
use crate::task::{GatewayFault, Reason};

/// The way to one upstream.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each upstream")]
pub(crate) enum Transport {
    Http(HttpClient),
    /// HTTP, of which transport is to be found out.
    Either(Box<TransportDetection>),
    Stand(Box<dyn StreamableAdapter>),
}

/// Stands in for a streamable HTTP server in front of one that speaks another transport.
#[async_trait]
pub(crate) trait StreamableAdapter: Send + Sync + fmt::Debug {
    /// Answers a request as a streamable HTTP server of the session era would: a request with an event stream or
    /// JSON, a notification or an answer with 202, GET with the session's own stream, DELETE with the session's end,
    /// a session that is gone with 404. `handed_over` is set before the first byte of a message can reach the server.
    /// Dropping the future, or the answer's body, says nothing to the server. A request of 2026-07-28, which has no
    /// session, is answered as a server of that version would: there dropping takes the request back.
    ///
    /// # Errors
    /// If there is no answer; the fault says whether the server may have run what it was sent.
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault>;

    /// Ends every session; bounded in time.
    async fn close(&self);
}

impl Transport {
    /// Sends a request and waits for the head of its answer, which may take as long as the upstream likes. Dropping
    /// the future drops the request wherever it is.
    ///
    /// # Errors
    /// If there is no answer; the fault says whether the request may have arrived. A refusing status is an answer.
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        match self {
            Self::Http(client) => {
                Ok(client.send(outgoing, handed_over).await?.map(|body| client.body_of(outgoing, body)))
            }
            Self::Either(fallback) => fallback.send(outgoing, handed_over).await,
            Self::Stand(stand) => stand.send(outgoing, handed_over).await,
        }
    }

    /// Whether the server is reached over a wire.
    pub(crate) const fn is_stand(&self) -> bool {
        matches!(self, Self::Stand(_))
    }

    /// Ends what outlives single requests; bounded in time.
    pub(crate) async fn close(&self) {
        match self {
            Self::Http(_) => (),
            Self::Either(fallback) => fallback.close().await,
            Self::Stand(stand) => stand.close().await,
        }
    }
}

/// Why an answer broke off, where a stand knows more than that it did; the inside of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off: {}", reason_key(.0.reason))]
pub(crate) struct BodyBreakError(pub(crate) GatewayFault);

impl BodyBreakError {
    /// What an error of a body says of the upstream.
    pub(crate) fn known_in(error: &io::Error) -> Option<GatewayFault> {
        Some(error.get_ref()?.downcast_ref::<Self>()?.0)
    }
}

/// Pieces of an event stream as they are made, and how many bytes of them wait.
#[derive(Debug)]
pub(crate) struct BodyPieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    waiting: Arc<AtomicUsize>,
}

impl BodyPieces {
    /// Whoever puts a piece in adds its bytes to `waiting`, unless it is one that is not counted: the last.
    pub(crate) const fn new(receiver: mpsc::Receiver<io::Result<Bytes>>, waiting: Arc<AtomicUsize>) -> Self {
        Self { receiver, waiting }
    }

    /// The next piece; `None` at the end. Cancel safe.
    pub(crate) async fn recv(&mut self) -> Option<io::Result<Bytes>> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.receiver.poll_recv(cx).map(|piece| piece.inspect(|piece| self.taken(piece)))
    }

    fn taken(&self, piece: &io::Result<Bytes>) {
        let bytes = piece.as_ref().map_or(0, Bytes::len);
        let less = |waiting: usize| Some(waiting.saturating_sub(bytes));
        // It always takes the new value.
        let _ = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&mut self) -> Result<io::Result<Bytes>, mpsc::error::TryRecvError> {
        self.receiver.try_recv().inspect(|piece| self.taken(piece))
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// With where it is to be reported that it breaks off.
    Http(Incoming, Option<Arc<UpstreamHealth>>),
    /// Pieces as they are made; an error breaks the body off.
    Made(BodyPieces),
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// Another one, and what is dropped with it.
    Kept { body: Box<Self>, _kept: Box<dyn Any + Send + Sync> },
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Http(body, standing) => Pin::new(body).poll_frame(cx).map_err(|error| {
                if let Some(standing) = standing.take() {
                    standing.failed(UpstreamFailure::new(
                        Reason::UpstreamClosed,
                        "the connection broke before an answer was whole",
                    ));
                }
                io::Error::other(error)
            }),
            Self::Made(pieces) => pieces.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Self::Whole(data) => Poll::Ready(data.take().map(|data| Ok(Frame::data(data)))),
            Self::Kept { body, .. } => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body, _) => body.is_end_stream(),
            Self::Made(_) => false,
            Self::Whole(data) => data.is_none(),
            Self::Kept { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body, _) => body.size_hint(),
            Self::Made(_) => SizeHint::default(),
            Self::Whole(data) => SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64)),
            Self::Kept { body, .. } => body.size_hint(),
        }
    }
}
