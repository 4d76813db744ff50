//! Reads the events of a stream one by one, within the bytes that a response may hold.

use std::collections::VecDeque;
use std::io;

use hyper::body::Body;

use super::comment_rate::CommentRate;
use super::{BodyReadError, ReadLimits, next_part};
use crate::answer_budget::{AnswerPermit, FREE_BYTES};
use crate::upstream::answer_body::AnswerBody;
use crate::wire::framing::{BodyPart, SseDecoder, SseEvent};

#[derive(Debug)]
pub(crate) struct EventStream<B = AnswerBody> {
    body: B,
    decoder: SseDecoder,
    ready: VecDeque<SseEvent>,
    limits: ReadLimits,
    /// The permit for the current event, and its bytes so far.
    held: AnswerPermit,
    pending: usize,
    /// Whether the events that are ready came whole: they hold bytes already.
    is_counted: bool,
    comments: CommentRate,
}

impl<B: Body<Data = BodyPart, Error = io::Error> + Unpin> EventStream<B> {
    pub(crate) fn new(body: B, limits: ReadLimits) -> Self {
        let (decoder, comments) = (SseDecoder::new(limits.bytes_max), CommentRate::default());
        Self {
            body,
            decoder,
            ready: VecDeque::new(),
            limits,
            held: AnswerPermit::default(),
            pending: 0,
            is_counted: false,
            comments,
        }
    }

    /// The next event; `None` when the stream ended in order. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<SseEvent>, BodyReadError> {
        loop {
            if self.is_counted && !self.ready.is_empty() {
                return Ok(self.ready.pop_front());
            }
            if let Some(event) = self.ready.front() {
                self.limits.grow(&mut self.held, event.data.len()).await.map_err(BodyReadError::Known)?;
                let held = std::mem::take(&mut self.held);
                return Ok(self.ready.pop_front().map(|event| match held.bytes() {
                    0 => event,
                    _ => SseEvent { data: event.data.held_by(|text| held.attach(text)), ..event },
                }));
            }
            if self.pending <= FREE_BYTES {
                // The event that it was for was dropped.
                self.held = AnswerPermit::default();
            }
            // An event of this size has more to come.
            self.limits.grow(&mut self.held, self.pending).await.map_err(BodyReadError::Known)?;
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Reads one more piece of the stream; `false` where it ended in order. Cancel safe.
    pub(crate) async fn read_more(&mut self) -> Result<bool, BodyReadError> {
        self.comments.wait().await;
        let part = next_part(&mut self.body, self.limits.idle).await?;
        let before = self.decoder.held();
        // The decoder returns the events before an oversized one, and then fails.
        let is_end = part.is_none();
        let part = part.unwrap_or_default();
        let events = self.decoder.take(&part).map_err(|_| BodyReadError::TooLarge)?;
        if is_end {
            return Ok(false);
        }
        self.is_counted = matches!(part, BodyPart::Event(_));
        self.pending = self.decoder.held();
        if events.is_empty() {
            self.comments.count(part.len().saturating_sub(self.pending.saturating_sub(before)));
        }
        self.ready.extend(events);
        Ok(true)
    }

    /// An event that was read, without bytes of the share.
    pub(crate) fn take_ready(&mut self) -> Option<SseEvent> {
        self.ready.pop_front()
    }

    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }
}
