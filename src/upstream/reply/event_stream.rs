//! Reads the events of a stream one by one, within the bytes that a response may hold.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use hyper::body::Body;
use tokio::time::{Instant, sleep_until};

use super::{BodyReadError, ReadLimits};
use crate::answer_budget::{AnswerPermit, FREE_BYTES};
use crate::upstream::answer_body::AnswerBody;
use crate::wire::framing::{BodyPart, SseDecoder, SseEvent};

#[derive(Debug)]
pub(crate) struct EventStream<B = AnswerBody> {
    body: B,
    decoder: SseDecoder,
    pub(crate) ready: VecDeque<SseEvent>,
    limits: ReadLimits,
    /// The permit for the current event, and its bytes so far.
    held: AnswerPermit,
    pending: usize,
    /// Whether the ready events arrived as whole events, which hold bytes of the share already.
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
                // The permit's event was dropped.
                self.held = AnswerPermit::default();
            }
            // More bytes of this event will come.
            self.limits.grow(&mut self.held, self.pending).await.map_err(BodyReadError::Known)?;
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Reads one more piece of the stream; `false` where it ended in order. Cancel safe.
    pub(crate) async fn read_more(&mut self) -> Result<bool, BodyReadError> {
        self.comments.wait().await;
        let part = self.limits.next_part(&mut self.body, &mut self.held).await?;
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

    pub(crate) const fn pending(&self) -> usize {
        self.pending
    }
}

/// Bytes of comments that are read in a second, over [`BURST`].
const BYTES_PER_SECOND: u32 = 1 << 20;
const BURST: Duration = Duration::from_secs(1);

/// Slows the reading of a stream of comments only: they cost as much to read as messages, and end no wait.
#[derive(Debug, Default)]
struct CommentRate {
    /// The time at which the rate allows the comments that were read.
    paid_at: Option<Instant>,
}

impl CommentRate {
    fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        let cost = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_PER_SECOND;
        self.paid_at = Some(self.paid_at.map_or(now, |paid_at| paid_at.max(now)) + cost);
    }

    /// Returns once more may be read. Cancel safe.
    async fn wait(&self) {
        if let Some(next) = self.paid_at.and_then(|paid_at| paid_at.checked_sub(BURST))
            && next > Instant::now()
        {
            sleep_until(next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// How long it takes to read so many pieces of 64 KiB, all of them comments.
    async fn time_to_read(pieces: usize) -> Duration {
        let comments = Bytes::from(": x\n".repeat(16 << 10));
        let frames = (0..pieces).map(move |_| Ok::<_, io::Error>(Frame::data(BodyPart::from(comments.clone()))));
        let mut events = EventStream::new(StreamBody::new(stream::iter(frames)), ReadLimits::of_bytes(1 << 20));
        let began = Instant::now();
        assert!(matches!(events.next().await, Ok(None)));
        began.elapsed()
    }

    /// U47.
    #[tokio::test(start_paused = true)]
    async fn comments_without_end_are_read_at_a_rate() {
        let took = time_to_read(160).await;
        assert!((Duration::from_secs(8)..Duration::from_secs(10)).contains(&took), "10 MiB took {took:?}");
        assert_eq!(time_to_read(16).await, Duration::ZERO, "a little is free");
    }
}
