//! Forwards a response body: frames as they arrive, life signs between events, time limits.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{WaitForCancellationFuture, WaitForCancellationFutureOwned};

use crate::connection_timer::poll_until;
use crate::dialect::faults::gateway_error;
use crate::engine::CallsEnd;
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::brings_answer;
use crate::face::call_stream::{LIFE_SIGN, Silence};
use crate::face::lazy_timer::within;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::{BodyBreakError, fault_in};
use crate::upstream::raw_channel::RawBody;
use crate::wire::framing::{BodyPart, INCOMPLETE_EVENT_END, SseDecoder, SseEvent, StreamEvent};
use crate::wire::{MessageText, RequestId, envelope};

/// Parts in a row that a client does not get, before the time limits are checked.
const LEFT_OUT_MAX: usize = 64;
/// The outcome of a call with a response that was forwarded unread.
const FORWARDED: &str = "answered";

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::face) struct PipeTimeouts {
    pub(in crate::face) idle: Option<Duration>,
    pub(in crate::face) deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::face) enum BodyForm {
    Json,
    Events,
}

/// The request that a body answers. Dropping it releases its permit.
pub(in crate::face) trait AnsweredRequest: Send + Unpin {
    fn id(&self) -> &RequestId;

    /// Records the fault that takes the response's place.
    fn ended(&self, _fault: &GatewayFault) {}

    /// Notes for the audit that the response has arrived, or why not. The first note counts.
    fn answered(&self, _outcome: &'static str) {}

    /// Cancels the request upstream, if dropping its body does not.
    fn cancel(&self, _reason: Reason) {}

    /// Records that its client left before the response.
    fn given_up(&self) {}

    /// Whether the client may resume its stream if an event had an id (T-29).
    fn is_resumable(&self) -> bool {
        false
    }

    /// Cancelled once the gateway ends and waits for no more calls; `None` for a short request.
    fn calls_end(&self) -> Option<&CallsEnd> {
        None
    }

    /// Whether its client can resume, also in a later process.
    fn note_position(&mut self, _has_position: bool) {}

    fn record_activity(&mut self, _at: Instant) {}

    /// Whether the client still waits, as far as is remembered.
    fn is_wanted(&self) -> bool {
        true
    }

    fn fault_for_client(&self, fault: &GatewayFault) -> GatewayFault {
        *fault
    }

    /// Whether a stream that ends without the response has failed.
    fn ends_with_answer(&self) -> bool {
        true
    }

    /// Whether a stream may end in order without the response: another gateway has decided so.
    fn may_end_unanswered(&self) -> bool {
        false
    }

    /// Keeps the request, which continues upstream, until its stream is resumed.
    fn pause(self, _pace: PipeTimeouts, _at: &StreamPause)
    where
        Self: Sized,
    {
    }
}

/// Dropping it closes the upstream's stream without a cancel (T-81).
pub(in crate::face) struct PipeBody<C> {
    source: RawBody,
    /// The position in an event stream; `None` for JSON.
    events: Option<SseDecoder>,
    pace: PipeTimeouts,
    last_frame: Instant,
    /// The time since the client's last sign of life.
    silence: Silence,
    /// When it was last checked whether the client still waits.
    looked: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    calls_end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// `None` for a client's own stream.
    call: Option<C>,
    /// Sends progress in place of comments.
    signs: Option<LifeSigns>,
    /// Whether the call is over when its stream ends.
    tail: Option<StreamTail>,
    is_resumed: bool,
    /// Whether the call has its response and holds nothing any more.
    is_settled: bool,
    is_over: bool,
}

impl<C: AnsweredRequest> PipeBody<C> {
    /// The rest of a call's stream, which some servers continue as the session's own after the response.
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
            looked: now,
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

    pub(in crate::face) fn with_signs(self, signs: Option<LifeSigns>) -> Self {
        Self { signs, ..self }
    }

    fn next_time(&self) -> Instant {
        let look = self.call.as_ref().map(|_| self.looked + LIFE_SIGN);
        let life_sign = self.events.as_ref().map_or(look, |_| Some(self.silence.ends_at()));
        let idle = self.pace.idle.map(|idle| self.last_frame + idle);
        // Never fires, and is near enough for a timer.
        let never = || Instant::now() + Duration::from_secs(24 * 60 * 60);
        [life_sign, idle, self.pace.deadline].into_iter().flatten().min().unwrap_or_else(never)
    }

    /// For a body that no client's HTTP/1.1 connection polls.
    fn poll_timer(&mut self, next: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
        if timer.is_elapsed() {
            timer.as_mut().reset(next);
        }
        // Not within the task's budget: a source that uses all of it would outlive the time limits.
        pin!(unconstrained(timer.as_mut())).poll(cx)
    }

    fn timed(&mut self) -> Option<Result<Frame<BodyPart>, io::Error>> {
        let now = Instant::now();
        if self.pace.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(self.give_up(Reason::DeadlineExceeded));
        }
        if self.pace.idle.is_some_and(|idle| now >= self.last_frame + idle) {
            return Some(self.give_up(Reason::UpstreamTimeout));
        }
        // A cancelled event stream ends at a life sign; JSON has none (U90).
        if self.events.is_none() && now >= self.looked + LIFE_SIGN {
            self.looked = now;
            if self.end_if_cancelled() {
                let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
                return Some(Err(io::Error::other(BodyBreakError(fault))));
            }
        }
        let is_due = self.events.is_some() && now >= self.silence.ends_at();
        if is_due {
            self.silence.broken();
        }
        (is_due && self.is_between_events()).then(|| Ok(Frame::data(self.life_sign())))
    }

    fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(SseDecoder::is_between_events)
    }

    fn life_sign(&mut self) -> BodyPart {
        let is_wanted = !self.end_if_cancelled();
        self.signs.as_ref().filter(|_| is_wanted).map_or_else(BodyPart::comment, LifeSigns::life_sign)
    }

    /// Ends the body of a call that its client has cancelled: it has no response (LEG-14, U90).
    fn end_if_cancelled(&mut self) -> bool {
        self.is_over |= self.call.take_if(|call| !call.is_wanted()).is_some();
        self.is_over
    }

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
            tail.pass(events, decoder.is_between_events());
        }
        let has_position = self.can_be_taken_up();
        if let Some(call) = &mut self.call {
            call.note_position(has_position);
        }
        self.release_call();
        if says {
            self.silence = Silence::since(self.last_frame);
        }
        // A server may go on with its comments and messages after a cancel (U90).
        if self.last_frame >= self.looked + LIFE_SIGN && self.is_between_events() {
            self.looked = self.last_frame;
            self.end_if_cancelled();
        }
        Frame::data(part)
    }

    /// Ends the call, and cancels it upstream.
    fn give_up(&mut self, reason: Reason) -> Result<Frame<BodyPart>, io::Error> {
        self.call.iter().for_each(|call| call.cancel(reason));
        self.end_with(&GatewayFault::new(reason, Executed::Unknown))
    }

    /// Ends the client's body with an error event. JSON, and a stream without a call, are aborted.
    fn end_with(&mut self, fault: &GatewayFault) -> Result<Frame<BodyPart>, io::Error> {
        self.is_over = true;
        self.call.iter().for_each(|call| call.ended(fault));
        let Some(call) = self.call.take().filter(|_| self.events.is_some()) else {
            return Err(io::Error::other(BodyBreakError(*fault)));
        };
        let lead: &'static [u8] = if self.is_between_events() { b"" } else { INCOMPLETE_EVENT_END };
        if call.is_wanted() {
            let error = envelope::error(Some(call.id()), &gateway_error(&call.fault_for_client(fault)));
            return Ok(Frame::data(BodyPart::Event(StreamEvent::message(error).after(lead))));
        }
        // The client has cancelled the call: the stream ends without a response, and its connection stays (U90).
        Ok(Frame::data(if lead.is_empty() { BodyPart::comment() } else { Bytes::from_static(lead).into() }))
    }

    /// Ready if the body ends although its source continues.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        self.settle();
        if let Some(ended) = self.ends_with_gateway(cx) {
            // A client that can resume does so at the next process.
            return Poll::Ready(Some(self.broke(io::Error::other(BodyBreakError(ended)))));
        }
        if self.is_done(cx) {
            self.is_over = true;
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    /// The call's fault if the gateway ends and no longer waits for it.
    fn ends_with_gateway(&mut self, cx: &mut Context<'_>) -> Option<GatewayFault> {
        let end = self.call.as_ref().and_then(AnsweredRequest::calls_end)?;
        let wait = self.calls_end.get_or_insert_with(|| Box::pin(end.token().clone().cancelled_owned()));
        let is_over = wait.as_mut().poll(cx).is_ready();
        is_over.then(|| end.fault(Executed::Unknown))
    }

    fn broke(&mut self, error: io::Error) -> Result<Frame<BodyPart>, io::Error> {
        // Behind a response that is too large to be recognised, an error would be a second response.
        let may_be_answered = self.call.as_ref().is_some_and(AnsweredRequest::may_end_unanswered)
            && self.tail.as_ref().is_some_and(|tail| tail.has_large);
        if self.events.is_some() && !self.can_be_taken_up() && !may_be_answered {
            return self.end_with(&fault_in(&error));
        }
        if let Some(call) = self.call.as_ref().filter(|_| self.events.is_none()) {
            call.answered(fault_in(&error).reason.key());
        }
        self.rest();
        Err(error)
    }

    /// Whether the last whole event was the response, or came after it.
    fn has_ended_with_answer(&mut self) -> bool {
        self.is_between_events() && self.tail.as_mut().is_some_and(StreamTail::brought_answer)
    }

    /// Whether events had ids, here or on the resumed stream.
    fn can_be_taken_up(&self) -> bool {
        let gave_ids = || self.events.as_ref().is_some_and(SseDecoder::gave_ids);
        let gave_id = self.tail.as_ref().and_then(StreamTail::gave_id).unwrap_or_else(gave_ids);
        self.call.as_ref().is_none_or(AnsweredRequest::is_resumable) && (self.is_resumed || gave_id)
    }

    /// Releases a call that was answered on a stream that continues.
    fn release_call(&mut self) {
        if self.is_resumed && self.tail.as_mut().is_some_and(StreamTail::is_answered) {
            self.call.iter().for_each(|call| call.answered(FORWARDED));
            (self.call, self.tail) = (None, None);
            (self.pace.idle, self.pace.deadline) = (None, None);
        }
    }

    /// Releases an answered call's permit while its stream stays open. Checked only in silence: most streams end soon.
    fn settle(&mut self) {
        let is_answered =
            !self.is_resumed && self.is_between_events() && self.tail.as_mut().is_some_and(StreamTail::brought_answer);
        if is_answered {
            if let Some(end) = self.call.as_ref().and_then(AnsweredRequest::calls_end) {
                self.calls_end.get_or_insert_with(|| Box::pin(end.token().clone().cancelled_owned()));
            }
            self.call.iter().for_each(|call| call.answered(FORWARDED));
            (self.call, self.tail, self.is_settled) = (None, None, true);
        }
    }

    /// Whether a stream has continued long enough after its response: to the call's deadline or the gateway's end.
    fn is_done(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_settled {
            return false;
        }
        let now = Instant::now();
        let is_late = self.pace.deadline.is_some_and(|deadline| now >= deadline)
            || self.pace.idle.is_some_and(|idle| now >= self.last_frame + idle);
        is_late || self.calls_end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready())
    }

    /// A client without a response that cannot resume would wait forever (U22).
    fn end(&mut self) -> Option<Result<Frame<BodyPart>, io::Error>> {
        let must_answer = self.call.as_ref().is_some_and(|call| !call.may_end_unanswered());
        let is_open = must_answer && self.tail.as_mut().is_some_and(|tail| !tail.is_answered());
        if is_open && !self.end_if_cancelled() && !self.can_be_taken_up() {
            return Some(self.end_with(&GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)));
        }
        self.rest();
        None
    }

    /// The next part of the response. Each part counts as activity, also one that was left out and is therefore empty.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        for _ in 0..LEFT_OUT_MAX {
            let polled = Pin::new(&mut self.source).poll_frame(cx);
            let Poll::Ready(Some(Ok(frame))) = &polled else { return polled };
            self.last_frame = Instant::now();
            self.call.iter_mut().for_each(|call| call.record_activity(self.last_frame));
            if frame.data_ref().is_none_or(|part| !part.is_empty()) {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Notes the end of a JSON body, which may not be polled again.
    fn note_last_frame(&self) {
        if let Some(call) = self.call.as_ref().filter(|_| self.events.is_none() && self.source.is_end_stream()) {
            call.answered(FORWARDED);
        }
    }

    /// If the call is not over, its client resumes (T-29).
    fn rest(&mut self) {
        self.is_over = true;
        let Some(call) = self.call.take() else { return };
        match self.tail.take().and_then(StreamTail::pause) {
            Some(at) => call.pause(self.pace, &at),
            None => call.answered(FORWARDED),
        }
    }
}

/// Waits within the limits, else cancels the request. Records a failure as the request's end. The caller pins the
/// future: one that is moved into another takes its space twice.
pub(in crate::face) async fn in_time<T>(
    call: &impl AnsweredRequest,
    mut waiting: Pin<&mut impl Future<Output = Result<T, GatewayFault>>>,
    silence_max: Option<Duration>,
    deadline: Option<Instant>,
) -> Result<T, GatewayFault> {
    let mut ending = pin!(None::<WaitForCancellationFuture<'_>>);
    // The response goes first: most that are awaited here have come, and need no look at the gateway's end.
    let mut waiting = poll_fn(|context| {
        if let Poll::Ready(done) = waiting.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        let Some(calls_end) = call.calls_end() else { return Poll::Pending };
        if ending.is_none() {
            ending.set(Some(calls_end.token().cancelled()));
        }
        let ended = ending.as_mut().as_pin_mut().is_some_and(|ending| ending.poll(context).is_ready());
        if ended { Poll::Ready(Err(calls_end.fault(Executed::Unknown))) } else { Poll::Pending }
    });
    let began = Instant::now();
    let silent = silence_max.map(|max| (began + max, Reason::UpstreamTimeout));
    let late = deadline.map(|deadline| (deadline, Reason::DeadlineExceeded));
    let limit = [silent, late].into_iter().flatten().min_by_key(|(end, _)| *end);
    let mut awaited = AwaitedAnswer(Some(call));
    let outcome = loop {
        let look = Instant::now() + LIFE_SIGN;
        let end = limit.map_or(look, |(end, _)| end.min(look));
        match (within(end, &mut waiting).await, limit) {
            (Some(done), _) => break done,
            (None, Some((limit, reason))) if limit <= end => {
                call.cancel(reason);
                break Err(GatewayFault::new(reason, Executed::Unknown));
            }
            // The client has cancelled it (U90). An early cancel does not show that the server hangs (B254).
            (None, _) if !call.is_wanted() => {
                awaited.0 = awaited.0.filter(|_| began.elapsed() >= 2 * LIFE_SIGN);
                return Err(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown));
            }
            (None, _) => (),
        }
    };
    awaited.0 = None;
    outcome.inspect_err(|fault| call.ended(fault))
}

struct AwaitedAnswer<'a, C: AnsweredRequest>(Option<&'a C>);

impl<C: AnsweredRequest> Drop for AwaitedAnswer<'_, C> {
    fn drop(&mut self) {
        self.0.iter().for_each(|call| call.given_up());
    }
}

impl<C: AnsweredRequest> Body for PipeBody<C> {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        // The source may never be silent.
        if this.events.is_some() && this.last_frame >= this.next_time() {
            if let ended @ Poll::Ready(_) = this.poll_end(cx) {
                return ended;
            }
            if let Some(frame) = this.timed() {
                return Poll::Ready(Some(frame));
            }
        }
        match this.poll_part(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let frame = this.watched(frame);
                this.note_last_frame();
                return Poll::Ready(Some(Ok(frame)));
            }
            // The client has its response.
            Poll::Ready(Some(Err(_))) if this.is_settled || this.has_ended_with_answer() => {
                this.rest();
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(this.broke(error))),
            Poll::Ready(None) => return Poll::Ready(this.end()),
            Poll::Pending => (),
        }
        if let ended @ Poll::Ready(_) = this.poll_end(cx) {
            return ended;
        }
        loop {
            let next = this.next_time();
            if poll_until(next, cx).unwrap_or_else(|| this.poll_timer(next, cx)).is_pending() {
                return Poll::Pending;
            }
            if let ended @ Poll::Ready(_) = this.poll_end(cx) {
                return ended;
            }
            if let Some(frame) = this.timed() {
                return Poll::Ready(Some(frame));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // The end must be polled if it has an effect.
        self.is_over || (self.tail.is_none() && self.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.events.is_none() { self.source.size_hint() } else { SizeHint::default() }
    }
}

/// A larger event counts as the response, unparsed.
const EVENT_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(in crate::face) struct StreamPause {
    pub(in crate::face) event: String,
    pub(in crate::face) retry: Duration,
}

/// The progress of a response's event stream: holds the last event, and the position to resume the stream.
#[derive(Debug)]
struct StreamTail {
    id: RequestId,
    /// Whether an event has ended that was too large to parse.
    has_large: bool,
    event: Option<String>,
    retry: Duration,
    /// The data of the last event with any, until it is parsed.
    data: Option<MessageText>,
    was_answered: bool,
}

impl StreamTail {
    fn new(id: &RequestId) -> Self {
        Self { id: id.clone(), has_large: false, event: None, retry: Duration::ZERO, data: None, was_answered: false }
    }

    /// Records the next events; `None` if one is too large. `is_whole`: whether the last event has ended.
    fn pass(&mut self, events: Option<Vec<SseEvent>>, is_whole: bool) {
        self.has_large |= events.is_none() && is_whole;
        for event in events.into_iter().flatten() {
            let is_message = event.is_message();
            self.event = event.id.or_else(|| self.event.take());
            self.retry = event.retry_ms.map_or(self.retry, Duration::from_millis);
            if is_message && !event.data.is_empty() {
                // Most streams have one event, which is parsed at the end.
                self.is_answered();
                self.data = Some(event.data);
            }
        }
    }

    /// Whether the response has arrived; an event that is too large counts as the response once it has ended.
    fn is_answered(&mut self) -> bool {
        if let Some(data) = self.data.take().filter(|_| !self.was_answered) {
            self.was_answered = brings_answer(&data, &self.id);
        }
        self.was_answered || self.has_large
    }

    /// Whether the response has certainly arrived.
    fn brought_answer(&mut self) -> bool {
        self.is_answered() && self.was_answered
    }

    /// Whether an event had a usable id; `None` once that is unknown. An id that SSE decoders ignore is none (U21).
    fn gave_id(&self) -> Option<bool> {
        (!self.has_large).then(|| self.event.as_ref().is_some_and(|event| !event.is_empty()))
    }

    /// `None` if the response has arrived, or the stream cannot be resumed.
    fn pause(mut self) -> Option<StreamPause> {
        let event = self.event.take().filter(|event| !event.is_empty())?;
        (!self.is_answered()).then_some(StreamPause { event, retry: self.retry })
    }
}

#[cfg(test)]
mod tests;
