//! Edits bodies of answers on their way: single events of a stream, and bodies whose beginning was read. Everything else goes by
//! untouched.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::raw_channel::RawBody;
use crate::wire::framing::{EventGate, GateOutput, read_event, with_data};

/// An event with what its message becomes; itself where that stays the same, or it is no message.
pub(crate) fn edited_event(event: Bytes, edit: impl FnOnce(Bytes) -> Vec<Bytes>) -> Bytes {
    match read_event(&event).filter(|read| read.name.as_deref().is_none_or(|name| name == "message")) {
        Some(read) => edited(event, read.data, edit),
        None => event,
    }
}

/// The same, whatever the event is called.
pub(crate) fn edited(event: Bytes, data: Bytes, edit: impl FnOnce(Bytes) -> Vec<Bytes>) -> Bytes {
    let messages = edit(data.clone());
    let is_same = matches!(messages.as_slice(), [only] if *only == data);
    if is_same { event } else { with_data(&event, &messages) }
}

/// An event stream in which the events that a gate hands over whole are edited.
pub(crate) fn edited_events(
    source: RawBody,
    gate: EventGate,
    edit: impl Fn(Bytes) -> Bytes + Send + Unpin + 'static,
) -> RawBody {
    RawBody::new(EditedEvents { events: GatedBody::new(source, gate), edit })
}

struct EditedEvents<E> {
    events: GatedBody<RawBody>,
    edit: E,
}

impl<E: Fn(Bytes) -> Bytes + Send + Unpin> Body for EditedEvents<E> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let bytes = match ready!(this.events.poll_next(cx)) {
            Some(Ok(GateOutput::Through(bytes))) => bytes,
            Some(Ok(GateOutput::Event(event))) => (this.edit)(event),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(this.events.gate.finish().map(|rest| Ok(Frame::data(rest)))),
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// An event stream, cut by a gate into what passes and events as a whole.
pub(crate) struct GatedBody<B> {
    source: B,
    gate: EventGate,
    /// What one piece of the source became.
    ready: VecDeque<GateOutput>,
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> GatedBody<B> {
    pub(crate) const fn new(source: B, gate: EventGate) -> Self {
        Self { source, gate, ready: VecDeque::new() }
    }

    /// What comes next; `None` at the end of the source.
    ///
    /// Fails as the source does, and where the gate refuses an event.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<GateOutput>>> {
        loop {
            if let Some(passage) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(passage)));
            }
            let piece = match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            match self.gate.feed(&piece) {
                Ok(passages) => self.ready.extend(passages),
                Err(error) => return Poll::Ready(Some(Err(io::Error::other(error)))),
            }
        }
    }

    /// The same. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<GateOutput>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// A body whose beginning was read already.
pub(crate) struct PartlyReadBody {
    pub(crate) pieces: VecDeque<Bytes>,
    pub(crate) rest: RawBody,
}

impl Body for PartlyReadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        match this.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(held + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(held + upper);
        }
        hint
    }
}
