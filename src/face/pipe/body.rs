//! The body of an answer on its way through: frames as they come, life signs between events, an end where
//! the call takes too long.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::held_call::until_calls_end;
use super::stream_tail::{EVENT_BYTES_MAX, StreamPause, StreamTail};
use crate::dialect::faults::gateway_error;
use crate::engine::CallsEnd;
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::silence::Silence;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::{BodyBreakError, fault_in};
use crate::upstream::raw_channel::RawBody;
use crate::wire::framing::{BodyPart, SseDecoder};
use crate::wire::{RequestId, envelope};

/// How long a body may take.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::face) struct PipeTimeouts {
    /// Longest silence of the upstream.
    pub(in crate::face) idle: Option<Duration>,
    /// The end of the call.
    pub(in crate::face) deadline: Option<Instant>,
}

/// What stands in a body.
#[derive(Clone, Copy, Debug)]
pub(in crate::face) enum BodyForm {
    Json,
    Events,
}

/// The request that a body answers. Dropping it gives back what the request held.
pub(in crate::face) trait AnsweredRequest: Send + Unpin {
    fn id(&self) -> &RequestId;

    /// Notes that it ends with this in place of its answer.
    fn ended(&self, fault: &GatewayFault);

    /// Tells the upstream that nobody waits any more, where dropping its body does not.
    fn cancel(&self, reason: Reason);

    /// Whether the client may take its stream up again, where an event had an id (T-29).
    fn is_resumable(&self) -> bool;

    /// Cancelled once the gateway ends and no call is waited for any more; `None` of what takes no long.
    fn calls_end(&self) -> Option<&CallsEnd>;

    /// Notes whether its client can come back for the rest, also to a later process.
    fn note_place(&mut self, _has_place: bool) {}

    /// Notes that the upstream said something.
    fn heard(&self) {}

    /// What the client is told where this takes the place of its answer.
    fn told_of(&self, fault: &GatewayFault) -> GatewayFault {
        *fault
    }

    /// Whether a stream that ends without the answer has failed.
    fn ends_with_answer(&self) -> bool {
        true
    }

    /// Keeps the request, which goes on upstream, until its stream is taken up.
    fn pause(self, _pace: PipeTimeouts, _at: &StreamPause)
    where
        Self: Sized,
    {
    }
}

/// A body on its way. Dropping it lets go of the upstream's stream without a cancel (T-81).
pub(in crate::face) struct PipeBody<C> {
    source: RawBody,
    /// Where an event stream stands, and what its events say; none of JSON.
    events: Option<SseDecoder>,
    pace: PipeTimeouts,
    last_frame: Instant,
    /// Since the client last saw that the answer lives.
    silence: Silence,
    /// Made when there is first something to wait for: most answers are there at once.
    timer: Option<Pin<Box<Sleep>>>,
    /// The same for the end of all calls.
    calls_end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The call that is answered; none behind a stream of the client's own.
    call: Option<C>,
    /// Progress instead of comments.
    signs: Option<LifeSigns>,
    /// Tells whether that call is over when its stream ends.
    tail: Option<StreamTail>,
    /// Whether the stream may go on when the call is over.
    is_resumed: bool,
    /// Whether the call has had its answer, and holds nothing any more.
    is_settled: bool,
    is_over: bool,
}

impl<C: AnsweredRequest> PipeBody<C> {
    /// The rest of a call's stream. Servers may keep such a stream as the session's own once it has brought the
    /// answer.
    pub(in crate::face) fn resumed(source: RawBody, call: C, pace: PipeTimeouts) -> Self {
        Self { is_resumed: true, ..Self::new(source, BodyForm::Events, pace, Some(call)) }
    }

    pub(in crate::face) fn new(source: RawBody, form: BodyForm, pace: PipeTimeouts, call: Option<C>) -> Self {
        let now = Instant::now();
        let (tail, events) = match (form, call.as_ref().filter(|call| call.ends_with_answer())) {
            (BodyForm::Events, Some(call)) => {
                (Some(StreamTail::new(call.id())), Some(SseDecoder::new(EVENT_BYTES_MAX)))
            }
            (BodyForm::Events, None) => (None, Some(SseDecoder::of_nothing())),
            (BodyForm::Json, _) => (None, None),
        };
        Self {
            source,
            events,
            pace,
            last_frame: now,
            silence: Silence::since(now),
            timer: None,
            calls_end: None,
            call,
            signs: None,
            tail,
            is_resumed: false,
            is_settled: false,
            is_over: false,
        }
    }

    /// The same with progress in place of comments.
    pub(in crate::face) fn with_signs(self, signs: Option<LifeSigns>) -> Self {
        Self { signs, ..self }
    }

    /// When time next means something.
    fn next_time(&self) -> Instant {
        let life_sign = self.events.as_ref().map(|_| self.silence.ends_at());
        let idle = self.pace.idle.map(|idle| self.last_frame + idle);
        // Far enough away to be never, near enough for a timer.
        let never = || Instant::now() + Duration::from_secs(24 * 60 * 60);
        [life_sign, idle, self.pace.deadline].into_iter().flatten().min().unwrap_or_else(never)
    }

    /// What the passing of time means now, if anything.
    fn timed(&mut self) -> Option<Result<Frame<BodyPart>, io::Error>> {
        let now = Instant::now();
        let late = GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown);
        let silent = GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown);
        if self.pace.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(self.give_up(&late));
        }
        if self.pace.idle.is_some_and(|idle| now >= self.last_frame + idle) {
            return Some(self.give_up(&silent));
        }
        let is_due = self.events.is_some() && now >= self.silence.ends_at();
        if is_due {
            self.silence.broken();
        }
        (is_due && self.is_between_events()).then(|| Ok(Frame::data(self.sign())))
    }

    /// Whether an event may be put in here.
    fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(SseDecoder::is_between_events)
    }

    fn sign(&self) -> BodyPart {
        self.signs.as_ref().map_or_else(BodyPart::comment, LifeSigns::sign)
    }

    /// Takes note of what passes.
    fn watched(&mut self, frame: Frame<BodyPart>) -> Frame<BodyPart> {
        let Some(decoder) = &mut self.events else { return frame };
        let part = match frame.into_data() {
            Ok(part) => part,
            Err(other) => return other,
        };
        let began_between = decoder.is_between_events();
        let events = decoder.take(&part).ok();
        let is_whole = began_between && decoder.is_between_events();
        let (part, says) = match &self.signs {
            Some(signs) => signs.pass(part, events.as_deref(), is_whole),
            None => (part, true),
        };
        if let Some(tail) = &mut self.tail {
            tail.pass(events);
        }
        let has_place = self.can_be_taken_up();
        if let Some(call) = &mut self.call {
            call.note_place(has_place);
        }
        self.let_go();
        if says {
            self.silence = Silence::since(self.last_frame);
        }
        Frame::data(part)
    }

    /// Ends the call, and tells the upstream.
    fn give_up(&mut self, fault: &GatewayFault) -> Result<Frame<BodyPart>, io::Error> {
        if let Some(call) = &self.call {
            call.cancel(fault.reason);
        }
        self.end_with(fault)
    }

    /// The last thing that the client hears: an error in an event of its own, or a cut in the middle of
    /// something that cannot be completed.
    fn end_with(&mut self, fault: &GatewayFault) -> Result<Frame<BodyPart>, io::Error> {
        self.is_over = true;
        if let Some(call) = &self.call {
            call.ended(fault);
        }
        match self.call.take().filter(|_| self.is_between_events()) {
            Some(call) => {
                let error = envelope::error(Some(call.id()), &gateway_error(&call.told_of(fault)));
                Ok(Frame::data(BodyPart::message(error)))
            }
            None => Err(io::Error::other("the answer cannot be completed")),
        }
    }

    /// What is told of the call if the gateway ends, and waits for it no longer.
    fn ends_with_gateway(&mut self, cx: &mut Context<'_>) -> Option<GatewayFault> {
        let end = self.call.as_ref().and_then(AnsweredRequest::calls_end)?;
        let wait = self.calls_end.get_or_insert_with(|| Box::pin(end.token().clone().cancelled_owned()));
        let is_over = wait.as_mut().poll(cx).is_ready();
        is_over.then(|| end.fault(Executed::Unknown))
    }

    /// A stream that broke.
    fn broke(&mut self, error: io::Error) -> Result<Frame<BodyPart>, io::Error> {
        if self.events.is_some() && !self.can_be_taken_up() {
            return self.end_with(&fault_in(&error));
        }
        self.rest();
        Err(error)
    }

    /// Whether the client goes on by itself: its events had ids, here or on the stream that this one goes on with.
    fn can_be_taken_up(&self) -> bool {
        let gave_ids = || self.events.as_ref().is_some_and(SseDecoder::gave_ids);
        let gave_id = self.tail.as_ref().and_then(StreamTail::gave_id).unwrap_or_else(gave_ids);
        self.call.as_ref().is_none_or(AnsweredRequest::is_resumable) && (self.is_resumed || gave_id)
    }

    /// Lets go of a call whose answer has come on a stream that goes on.
    fn let_go(&mut self) {
        if self.is_resumed && self.tail.as_mut().is_some_and(StreamTail::is_answered) {
            (self.call, self.tail) = (None, None);
            (self.pace.idle, self.pace.deadline) = (None, None);
        }
    }

    /// Returns the permit of an answered call though its server keeps the stream open. Checked only while the stream is silent:
    /// most streams end behind their answer.
    fn settle(&mut self) {
        let is_answered =
            !self.is_resumed && self.is_between_events() && self.tail.as_mut().is_some_and(StreamTail::brought_answer);
        if is_answered {
            if let Some(end) = self.call.as_ref().and_then(AnsweredRequest::calls_end) {
                self.calls_end.get_or_insert_with(|| Box::pin(end.token().clone().cancelled_owned()));
            }
            (self.call, self.tail, self.is_settled) = (None, None, true);
        }
    }

    /// Whether a stream that goes on behind its answer has gone on for long enough: until its call would have ended, or the
    /// gateway does.
    fn is_done(&mut self, cx: &mut Context<'_>) -> bool {
        let now = Instant::now();
        let is_late = self.pace.deadline.is_some_and(|deadline| now >= deadline)
            || self.pace.idle.is_some_and(|idle| now >= self.last_frame + idle);
        self.is_settled && (is_late || self.calls_end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready()))
    }

    /// The stream has ended in order. A client whose answer did not come, and that cannot come back for it, would
    /// wait for ever (U22).
    fn end(&mut self) -> Option<Result<Frame<BodyPart>, io::Error>> {
        let is_open = self.call.is_some() && self.tail.as_mut().is_some_and(|tail| !tail.is_answered());
        if is_open && !self.can_be_taken_up() {
            return Some(self.end_with(&GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)));
        }
        self.rest();
        None
    }

    /// The stream is over. The call may not be: its client then comes back for the rest (T-29).
    fn rest(&mut self) {
        self.is_over = true;
        if let (Some(call), Some(tail)) = (self.call.take(), self.tail.take())
            && let Some(at) = tail.pause()
        {
            call.pause(self.pace, &at);
        }
    }
}

/// Waits for something of the upstream's, within its limits; past them it is told that nobody waits. Notes a failure as
/// the end of the request. It is pinned by the caller: a future that is moved into another one takes its room twice.
pub(in crate::face) async fn in_time<T>(
    call: &impl AnsweredRequest,
    waiting: Pin<&mut impl Future<Output = Result<T, GatewayFault>>>,
    silence_max: Option<Duration>,
    deadline: Option<Instant>,
) -> Result<T, GatewayFault> {
    let waiting = pin!(until_calls_end(call.calls_end(), Executed::Unknown, waiting));
    let silent = silence_max.map(|max| (Instant::now() + max, Reason::UpstreamTimeout));
    let late = deadline.map(|deadline| (deadline, Reason::DeadlineExceeded));
    let Some((end, reason)) = [silent, late].into_iter().flatten().min_by_key(|(end, _)| *end) else {
        return waiting.await.inspect_err(|fault| call.ended(fault));
    };
    let outcome = tokio::time::timeout_at(end, waiting).await.unwrap_or_else(|_| {
        call.cancel(reason);
        Err(GatewayFault::new(reason, Executed::Unknown))
    });
    outcome.inspect_err(|fault| call.ended(fault))
}

impl<C: AnsweredRequest> Body for PipeBody<C> {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.source).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.last_frame = Instant::now();
                this.call.iter().for_each(C::heard);
                return Poll::Ready(Some(Ok(this.watched(frame))));
            }
            // The client has what it waited for.
            Poll::Ready(Some(Err(_))) if this.is_settled => {
                this.is_over = true;
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(this.broke(error))),
            Poll::Ready(None) => return Poll::Ready(this.end()),
            Poll::Pending => this.settle(),
        }
        if let Some(ended) = this.ends_with_gateway(cx) {
            // As if its server had broken off: who can come back for the rest does, to the next process.
            return Poll::Ready(Some(this.broke(io::Error::other(BodyBreakError(ended)))));
        }
        if this.is_done(cx) {
            this.is_over = true;
            return Poll::Ready(None);
        }
        loop {
            let next = this.next_time();
            let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(next)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if this.is_done(cx) {
                this.is_over = true;
                return Poll::Ready(None);
            }
            if let Some(frame) = this.timed() {
                return Poll::Ready(Some(frame));
            }
            let next = this.next_time();
            if let Some(timer) = &mut this.timer {
                timer.as_mut().reset(next);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Where the end means something it must be asked for.
        self.is_over || (self.tail.is_none() && self.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.events.is_none() { self.source.size_hint() } else { SizeHint::default() }
    }
}
