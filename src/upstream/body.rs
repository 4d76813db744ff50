//! Edits bodies in transit: single events of a stream, and bodies that were partly read. All other bytes are unchanged,
//! or the body breaks off.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_util::future::BoxFuture;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep_until};

use super::answer_body::BodyBreakError;
use super::raw_channel::RawBody;
use super::reply::BodyReadError;
use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::task::GatewayFault;
use crate::wire::MessageText;
use crate::wire::framing::{BodyPart, EventGate, EventVerdict, FramingError, GateOutput, SseEvent};

/// A stream in which `edit` replaces the events that a gate yields whole by messages.
pub(crate) fn edited_events(
    source: RawBody,
    gate: EventGate,
    share: Option<AnswerShare>,
    edit: impl Fn(&SseEvent) -> Vec<MessageText> + Send + Unpin + 'static,
) -> RawBody {
    RawBody::new(EditedBody { parts: GatedBody::new(source, gate).within(share), edit, ready: VecDeque::new() })
}

fn edited(
    event: BodyPart,
    share: Option<&AnswerShare>,
    edit: impl FnOnce(&SseEvent) -> Vec<MessageText>,
) -> Vec<BodyPart> {
    let Some(read) = event.event() else { return vec![event] };
    let messages = edit(&read);
    let is_same = matches!(messages.as_slice(), [only] if *only == read.data);
    if is_same {
        return vec![event];
    }
    let Some(share) = share else { return event.with_data(&messages) };
    let counted = |message: MessageText| message.held_by(|text| share.rehold(text));
    match event {
        BodyPart::Bytes(_) => {
            let written = event.with_data(&messages).into_iter();
            written.map(|part| BodyPart::Bytes(share.rehold(part.into_bytes()))).collect()
        }
        BodyPart::Event(_) => event.with_data(&messages.into_iter().map(counted).collect::<Vec<_>>()),
    }
}

/// Replaces a part that is withheld from the client, so that it still counts as activity of the server.
const LEFT_OUT: BodyPart = BodyPart::Bytes(Bytes::new());

struct EditedBody<E> {
    parts: GatedBody<RawBody>,
    edit: E,
    ready: VecDeque<BodyPart>,
}

impl<E: Fn(&SseEvent) -> Vec<MessageText> + Send + Unpin> Body for EditedBody<E> {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some(part) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            match ready!(this.parts.poll_next(cx)) {
                Some(Ok(GatedPart::Through(part))) => return Poll::Ready(Some(Ok(Frame::data(part)))),
                Some(Ok(GatedPart::Event(event))) => {
                    this.ready.extend(edited(event, this.parts.share.as_ref(), &this.edit));
                    if this.ready.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(LEFT_OUT))));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let rest = this.parts.gate.finish().map(BodyPart::Bytes);
                    return Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))));
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum GatedPart {
    Through(BodyPart),
    Event(BodyPart),
}

/// A stream, divided by a gate into forwarded parts and whole events.
pub(crate) struct GatedBody<B> {
    source: B,
    gate: EventGate,
    ready: VecDeque<GatedPart>,
    share: Option<AnswerShare>,
    /// The share's bytes for the event in the gate.
    held: AnswerPermit,
    growing: Option<BoxFuture<'static, Result<AnswerPermit, GatewayFault>>>,
    /// Limits the time of the event in the gate (U76).
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = BodyPart, Error = io::Error> + Unpin> GatedBody<B> {
    pub(crate) fn new(source: B, gate: EventGate) -> Self {
        let (ready, held) = (VecDeque::new(), AnswerPermit::default());
        Self { source, gate, ready, share: None, held, growing: None, timer: None }
    }

    pub(crate) fn within(self, share: Option<AnswerShare>) -> Self {
        Self { share, ..self }
    }

    /// Ready once the share has bytes for the event that the gate holds.
    fn poll_grow(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(share) = self.share.as_ref().filter(|_| self.gate.held() > FREE_BYTES) else {
            return Poll::Ready(Ok(()));
        };
        if self.growing.is_none() && share.grow_now(&mut self.held, self.gate.held()) {
            return Poll::Ready(Ok(()));
        }
        let (share, bytes, held) = (share.clone(), self.gate.held(), &mut self.held);
        let growing = self.growing.get_or_insert_with(|| {
            let mut held = std::mem::take(held);
            Box::pin(async move { share.grow(&mut held, bytes).await.map(|()| held) })
        });
        let grown = ready!(growing.as_mut().poll(cx));
        self.growing = None;
        self.held = grown.map_err(|fault| io::Error::other(BodyBreakError(fault)))?;
        Poll::Ready(Ok(()))
    }

    /// Ready once the server has been too slow with the event in the gate, which holds bytes.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while let Some(look) = self.held.look() {
            if self.held.is_stalled() {
                return Poll::Ready(io::Error::other(BodyBreakError(BodyReadError::Idle.into_fault())));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(look)));
            timer.as_mut().reset(look);
            ready!(timer.as_mut().poll(cx));
        }
        Poll::Pending
    }

    /// Fails if the source or the gate fails.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<GatedPart>>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            if let Err(error) = ready!(self.poll_grow(cx)) {
                return Poll::Ready(Some(Err(error)));
            }
            let part = match Pin::new(&mut self.source).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return self.poll_stalled(cx).map(|error| Some(Err(error))),
            };
            if let Err(error) = self.take(part) {
                return Poll::Ready(Some(Err(io::Error::other(error))));
            }
        }
    }

    fn take(&mut self, part: BodyPart) -> Result<(), FramingError> {
        match part {
            BodyPart::Bytes(bytes) => {
                let outputs = self.gate.feed(&bytes)?;
                if outputs.is_empty() && self.gate.held() == 0 {
                    self.ready.push_back(GatedPart::Through(LEFT_OUT));
                }
                for output in outputs {
                    self.ready.push_back(match output {
                        GateOutput::Through(bytes) => GatedPart::Through(BodyPart::Bytes(bytes)),
                        GateOutput::Event(bytes) => {
                            GatedPart::Event(BodyPart::Bytes(std::mem::take(&mut self.held).attach(bytes)))
                        }
                    });
                }
            }
            BodyPart::Event(event) => match self.gate.judge(&event)? {
                EventVerdict::Passes => self.ready.push_back(GatedPart::Through(BodyPart::Event(event))),
                EventVerdict::Held => self.ready.push_back(GatedPart::Event(BodyPart::Event(event))),
                EventVerdict::Withheld => self.ready.push_back(GatedPart::Through(LEFT_OUT)),
            },
        }
        if self.gate.held() <= FREE_BYTES {
            // The event with these bytes is complete, or is forwarded piece by piece.
            self.held = AnswerPermit::default();
        }
        Ok(())
    }

    /// As [`Self::poll_next`], as a future. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<io::Result<GatedPart>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

pub(crate) struct PartlyReadBody {
    pub(crate) parts: VecDeque<BodyPart>,
    pub(crate) rest: RawBody,
}

impl Body for PartlyReadBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        match this.parts.pop_front() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(held + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(held + upper);
        }
        hint
    }
}

/// A body that breaks off at the first bytes that `watch` refuses.
pub(crate) fn watched(
    body: RawBody,
    watch: impl FnMut(&[u8]) -> Result<(), FramingError> + Send + Unpin + 'static,
) -> RawBody {
    RawBody::new(WatchedBody { body, watch })
}

struct WatchedBody<W> {
    body: RawBody,
    watch: W,
}

impl<W: FnMut(&[u8]) -> Result<(), FramingError> + Unpin> Body for WatchedBody<W> {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        match data.map(|data| (this.watch)(data.chunk())) {
            Some(Err(refused)) => Poll::Ready(Some(Err(io::Error::other(refused)))),
            Some(Ok(())) | None => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
