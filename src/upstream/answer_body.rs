//! Defines the body of a server's response, for every transport, and why one breaks off.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use super::upstream_health::{UpstreamFailure, UpstreamHealth};
use crate::body_wakes::poll_piece;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::MessageText;
use crate::wire::framing::BodyPart;

/// Why a response broke off, if the transport knows; the inside of an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off: {}", .0.reason.key())]
pub(crate) struct BodyBreakError(pub(crate) GatewayFault);

impl BodyBreakError {
    pub(crate) fn known_in(error: &io::Error) -> Option<GatewayFault> {
        Some(error.get_ref()?.downcast_ref::<Self>()?.0)
    }
}

/// The messages of a response over another transport than HTTP. Counts their unread bytes.
#[derive(Debug)]
pub(crate) struct AnswerMessages {
    receiver: mpsc::Receiver<io::Result<MessageText>>,
    waiting: Arc<AtomicUsize>,
}

impl AnswerMessages {
    /// Senders add a message's bytes to `waiting`, except for an uncounted one: the last.
    pub(crate) const fn new(receiver: mpsc::Receiver<io::Result<MessageText>>, waiting: Arc<AtomicUsize>) -> Self {
        Self { receiver, waiting }
    }

    /// The text of the next message; `None` at the end. Cancel safe.
    pub(crate) async fn recv(&mut self) -> Option<io::Result<MessageText>> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<MessageText>>> {
        self.receiver.poll_recv(cx).map(|message| message.inspect(|message| self.taken(message)))
    }

    fn taken(&self, message: &io::Result<MessageText>) {
        let bytes = message.as_ref().map_or(0, |text| text.len());
        let less = |waiting: usize| Some(waiting.saturating_sub(bytes));
        // It always takes the new value.
        let _ = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&mut self) -> Result<io::Result<MessageText>, mpsc::error::TryRecvError> {
        self.receiver.try_recv().inspect(|message| self.taken(message))
    }
}

#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// With the reporter that updates the upstream's health.
    Http(Incoming, Option<AnswerReporter>),
    Messages(AnswerMessages),
    Whole(Option<Bytes>),
    /// Another body, and a guard that is dropped with it.
    Kept {
        body: Box<Self>,
        _kept: Box<dyn Any + Send + Sync>,
    },
}

pub(crate) type AnswerResult = Result<Response<AnswerBody>, GatewayFault>;

impl Body for AnswerBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        match self.get_mut() {
            Self::Http(body, reporter) => poll_piece(Pin::new(body), cx).map(|frame| {
                let frame = frame?.map_err(|error| {
                    if let Some(reporter) = reporter.take() {
                        reporter.broke_off();
                    }
                    io::Error::other(error)
                });
                if let (Ok(frame), Some(reporter)) = (&frame, reporter) {
                    reporter.look_at(frame.data_ref());
                }
                Some(frame.map(|frame| frame.map_data(BodyPart::Bytes)))
            }),
            Self::Messages(messages) => {
                let event = |text| Frame::data(BodyPart::message(text));
                messages.poll_recv(cx).map(|message| message.map(|message| message.map(event)))
            }
            Self::Whole(data) => Poll::Ready(data.take().map(|data| Ok(Frame::data(BodyPart::Bytes(data))))),
            Self::Kept { body, .. } => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body, _) => body.is_end_stream(),
            Self::Messages(_) => false,
            Self::Whole(data) => data.is_none(),
            Self::Kept { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body, _) => body.size_hint(),
            Self::Messages(_) => SizeHint::default(),
            Self::Whole(data) => SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64)),
            Self::Kept { body, .. } => body.size_hint(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct AnswerReporter {
    health: Arc<UpstreamHealth>,
    /// Set while a valid MCP response would change the health.
    search: Option<MessageSearch>,
}

impl AnswerReporter {
    /// `is_success`: the status allows the body to count as a valid response.
    pub(crate) fn new(health: &Arc<UpstreamHealth>, is_success: bool) -> Self {
        let search = (is_success && !health.is_ok()).then(MessageSearch::default);
        Self { health: Arc::clone(health), search }
    }

    fn look_at(&mut self, data: Option<&Bytes>) {
        if let (Some(search), Some(data)) = (&mut self.search, data)
            && search.is_found_in(data)
        {
            self.search = None;
            self.health.answered();
        }
    }

    fn broke_off(&self) {
        let cause = "the connection broke before an answer was whole";
        self.health.failed(UpstreamFailure::new(Reason::UpstreamClosed, cause));
    }
}

#[derive(Debug, Default)]
struct MessageSearch {
    matched: usize,
}

impl MessageSearch {
    const MEMBER: &'static [u8] = b"\"jsonrpc\"";

    fn is_found_in(&mut self, piece: &[u8]) -> bool {
        for byte in piece {
            // The first byte is also the last of the pattern, and occurs nowhere else in it.
            self.matched = match *byte == Self::MEMBER[self.matched] {
                true => self.matched + 1,
                false => usize::from(*byte == Self::MEMBER[0]),
            };
            if self.matched == Self::MEMBER.len() {
                return true;
            }
        }
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Json,
    Events,
    /// Of another type, encoded, or without a type.
    Other,
}

pub(crate) fn fault_in(error: &io::Error) -> GatewayFault {
    let closed = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
    BodyBreakError::known_in(error).unwrap_or(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UPC-30: a page of HTML and a keep-alive are no valid responses.
    #[test]
    fn an_answer_counts_once_it_holds_a_message_of_mcp() {
        for (pieces, is_found) in [
            (&["{\"jsonrpc\":\"2.0\""][..], true),
            (&["{\"result\":{}", ",\"json", "rpc\":\"2.0\"}"], true),
            (&["\"", "\"jsonrpc", "\""], true),
            (&[": keep-alive\n\n", "data: {\"jsonrpc\":"], true),
            (&["<html>jsonrpc</html>", "{\"ok\":true}"], false),
            (&[": keep-alive\n\n"], false),
            (&[], false),
        ] {
            let mut search = MessageSearch::default();
            assert_eq!(pieces.iter().any(|piece| search.is_found_in(piece.as_bytes())), is_found, "{pieces:?}");
        }
    }
}
