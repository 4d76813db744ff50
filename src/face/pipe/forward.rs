//! Forwards the response to one request, for clients of either era. Holds the request's permit, metrics and time
//! limits, and selects one of three kinds of body.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::{Body as _, Frame};
use metrics::{Counter, Histogram};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::body::{AnsweredRequest, BodyForm, PipeBody, PipeTimeouts, StreamPause, in_time};
use crate::audit::AuditedCall;
use crate::engine::CallsEnd;
use crate::face::call_stream::progress::LifeSigns;
use crate::face::call_stream::request_answer::{RequestAnswer, unanswered};
use crate::face::http::{AcceptedTypes, ResponseBody};
use crate::face::served::Served;
use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::limits::{CallInProgress, CallPermit};
use crate::upstream::raw_channel::{RawBody, RawResponse};
use crate::upstream::reply::{self, ReadLimits};
use crate::upstream::upstream_health::{HealthMark, UpstreamHealth};
use crate::wire::framing::BodyPart;
use crate::wire::meta::{META, SUBSCRIPTION_ID};
use crate::wire::object::ObjectWriter;
use crate::wire::{MessageText, Payload, RequestId, envelope};

/// The differences between the eras for a request at the upstream.
pub(in crate::face) trait PipeEra: Send + Unpin + Sized + 'static {
    /// Whether the client may resume its stream if an event had an id (T-29).
    const IS_RESUMABLE: bool;
    /// Whether the upstream's longest silence also limits the wait for a JSON body's beginning.
    const OPENS_WITHIN_IDLE: bool;

    fn id(&self) -> &RequestId;

    fn served(&self) -> &Served;

    fn metrics(&self) -> &PipeMetrics;

    /// The limits of a response that is read, within its client's share of bytes.
    fn read_limits(&self) -> ReadLimits;

    /// Whether the client still waits, as far as is remembered.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Whether the client subscribes again if the request ends without a result.
    fn is_subscription(&self) -> bool {
        false
    }

    fn note_end(&self, _fault: &GatewayFault) {}

    /// Cancels the request upstream, if dropping its body does not.
    fn cancel(&self, _reason: Reason) {}

    /// Keeps a call, which continues upstream, until its stream is resumed.
    fn pause(_call: PipedCall<Self>, _pace: PipeTimeouts, _at: &StreamPause) {}
}

pub(in crate::face) trait ResponseEdits<E>: Send + Sync {
    /// Reads JSON until it is known whether the rest can be forwarded as it arrives.
    fn open(
        &self,
        era: &E,
        body: RawBody,
        accepted: AcceptedTypes,
    ) -> impl Future<Output = Result<OpenedAnswer, GatewayFault>> + Send;

    fn whole(&self, era: &E, text: Bytes, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault>;

    /// Observes a message that the client does not get.
    fn skip(&self, _era: &E, _text: &MessageText) {}

    fn events(self, era: &E, source: RawBody) -> RawBody;
}

pub(in crate::face) enum OpenedAnswer {
    Whole(RequestAnswer),
    Through(RawBody),
}

#[derive(Debug)]
pub(in crate::face) struct PipedCall<E: PipeEra> {
    pub(in crate::face) era: E,
    began: Instant,
    permit: Option<HeldCall>,
    mark: HealthMark,
}

impl<E: PipeEra> PipedCall<E> {
    pub(in crate::face) fn begin(era: E, permit: Option<HeldCall>) -> Self {
        let metrics = era.metrics();
        let other = if era.is_subscription() { &metrics.streams } else { &metrics.requests };
        if permit.is_some() { &metrics.calls } else { other }.increment(1);
        let mark = era.served().channel.health().map(UpstreamHealth::mark).unwrap_or_default();
        Self { era, began: Instant::now(), permit, mark }
    }

    /// The time so long after its beginning.
    pub(in crate::face) fn at(&self, span: Duration) -> Instant {
        self.began + span
    }

    pub(in crate::face) async fn answer(
        self,
        response: RawResponse,
        edits: impl ResponseEdits<E>,
        accepted: AcceptedTypes,
        pace: PipeTimeouts,
        signs: Option<LifeSigns>,
    ) -> Result<RequestAnswer, GatewayFault> {
        match response.content {
            BodyKind::Other => self.malformed(Executed::Unknown, accepted),
            // The request was accepted, and the client would read an empty response.
            BodyKind::Json if response.body.is_end_stream() => self.malformed(Executed::Yes, accepted),
            BodyKind::Json => {
                let opening = edits.open(&self.era, response.body, accepted);
                let opening_max = pace.idle.filter(|_| E::OPENS_WITHIN_IDLE);
                let opened = in_time(&self, pin!(opening), opening_max, pace.deadline).await;
                match opened {
                    Err(fault) => self.failed(fault, accepted),
                    Ok(OpenedAnswer::Whole(answer)) => {
                        self.answered(answer.outcome());
                        Ok(answer)
                    }
                    Ok(OpenedAnswer::Through(body)) => Ok(RequestAnswer::Json(ResponseBody::new(PipeBody::new(
                        body,
                        BodyForm::Json,
                        pace,
                        Some(self),
                    )))),
                }
            }
            BodyKind::Events if accepted == AcceptedTypes::Json => {
                // Boxed: few clients accept no stream.
                let mut reading = Box::pin(self.last_of(response, &edits, accepted));
                let answer = in_time(&self, reading.as_mut(), None, pace.deadline).await;
                answer.inspect(|answer| self.answered(answer.outcome())).or_else(|fault| self.failed(fault, accepted))
            }
            BodyKind::Events => {
                let subscription =
                    self.era.is_subscription().then(|| (self.era.id().clone(), self.era.served().streams_end.clone()));
                let source = edits.events(&self.era, response.body);
                let body = PipeBody::new(source, BodyForm::Events, pace, Some(self)).with_signs(signs);
                Ok(RequestAnswer::Events(match subscription {
                    Some((id, streams_end)) => until_streams_end(body, &id, streams_end),
                    None => ResponseBody::new(body),
                }))
            }
        }
    }

    fn malformed(&self, executed: Executed, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        self.answered(Reason::UpstreamMalformed.key());
        self.failed(GatewayFault::new(Reason::UpstreamMalformed, executed), accepted)
    }

    /// The fault of the request, or no response if its client has cancelled it (LEG-14).
    pub(in crate::face) fn failed(
        &self,
        fault: GatewayFault,
        accepted: AcceptedTypes,
    ) -> Result<RequestAnswer, GatewayFault> {
        if self.era.is_wanted() { Err(fault) } else { Ok(unanswered(accepted)) }
    }

    /// Reads the response in a stream for a client that accepts none: earlier messages are dropped.
    async fn last_of(
        &self,
        response: RawResponse,
        edits: &impl ResponseEdits<E>,
        accepted: AcceptedTypes,
    ) -> Result<RequestAnswer, GatewayFault> {
        let (id, limits) = (self.era.id(), self.era.read_limits());
        let answer = reply::answer_after(response, id, &limits, |text| edits.skip(&self.era, text)).await?;
        edits.whole(&self.era, limits.rehold(answer.under(id)), accepted)
    }
}

/// Ends a subscription with its result when the gateway shuts down (MOD-25).
fn until_streams_end<E: PipeEra>(body: PipeBody<PipedCall<E>>, id: &RequestId, end: CancellationToken) -> ResponseBody {
    let meta = ObjectWriter::new().member(SUBSCRIPTION_ID, &id.payload()).finish();
    let result = ObjectWriter::new().text("resultType", "complete").member(META, &meta).finish();
    let message = BodyPart::message(envelope::result(id, &result));
    let stopped = end.clone();
    let last = stream::once(async move { stopped.is_cancelled().then(|| Ok(Frame::data(message))) });
    let frames = BodyStream::new(body).take_until(end.cancelled_owned());
    ResponseBody::new(StreamBody::new(frames.chain(last.filter_map(std::future::ready))))
}

impl<E: PipeEra> AnsweredRequest for PipedCall<E> {
    fn id(&self) -> &RequestId {
        self.era.id()
    }

    fn calls_end(&self) -> Option<&CallsEnd> {
        self.permit.as_ref().map(|_| self.era.served().engine.calls_end())
    }

    fn is_resumable(&self) -> bool {
        E::IS_RESUMABLE
    }

    fn is_wanted(&self) -> bool {
        self.era.is_wanted()
    }

    fn record_activity(&mut self, at: Instant) {
        self.permit.iter_mut().for_each(|held| held.record_activity(at));
    }

    fn note_position(&mut self, has_position: bool) {
        if let Some(held) = self.permit.as_mut().filter(|_| E::IS_RESUMABLE) {
            held.note_position(has_position);
        }
    }

    fn answered(&self, outcome: &'static str) {
        self.permit.iter().flat_map(|held| &held.audited).for_each(|audited| audited.note(outcome));
    }

    fn ended(&self, fault: &GatewayFault) {
        self.answered(fault.reason.key());
        self.era.note_end(fault);
        if let Some(health) = self.era.served().channel.health().filter(|_| self.era.is_wanted()) {
            health.ended(self.mark, fault);
        }
    }

    fn pause(self, pace: PipeTimeouts, at: &StreamPause) {
        if self.permit.is_some() {
            E::pause(self, pace, at);
        }
    }

    fn cancel(&self, reason: Reason) {
        self.era.cancel(reason);
    }

    fn ends_with_answer(&self) -> bool {
        !self.era.is_subscription()
    }

    fn given_up(&self) {
        if self.permit.is_none() && !self.era.is_subscription() {
            self.era.served().channel.health().iter().for_each(|health| health.given_up(self.began));
        }
    }
}

impl<E: PipeEra> Drop for PipedCall<E> {
    fn drop(&mut self) {
        let metrics = self.era.metrics();
        let histogram = if self.permit.is_some() { &metrics.call_time } else { &metrics.request_time };
        histogram.record(self.began.elapsed());
    }
}

/// The permit and the count of a forwarded `tools/call`.
#[derive(Debug)]
pub(in crate::face) struct HeldCall {
    _permit: CallPermit,
    in_progress: CallInProgress,
    audited: Option<Box<AuditedCall>>,
}

impl HeldCall {
    /// Waits for a permit within the queue's deadline. Cancel safe: a dropped wait gives its turn to the next. Fails as
    /// [`crate::upstream::limits::CallPermits::acquire`]; if the gateway ends; if a required record cannot be made.
    pub(in crate::face) fn begin(
        served: &Served,
        owner: &Principal,
        tool: Arc<str>,
        arguments: impl FnOnce() -> Option<Payload>,
    ) -> impl Future<Output = Result<Self, GatewayFault>> {
        let name = served.upstream.name();
        let audited = served.engine.audit().map(|audit| audit.call(owner, name, &tool, arguments, false));
        let in_progress = served.permits.call_begins(tool, owner.clone());
        async move {
            let note = |fault: &GatewayFault| audited.iter().for_each(|call| call.note(fault.reason.key()));
            let permit = match served.permits.try_acquire(owner) {
                Some(permit) => permit,
                None => {
                    let calls_end = served.engine.calls_end();
                    let waited = tokio::select! {
                        // First: the permit of an ended call must not start the next one.
                        biased;
                        () = calls_end.ended() => Err(calls_end.fault(Executed::No)),
                        done = served.permits.acquire(owner, Some(served.settings.queue_deadline)) => done,
                    };
                    waited.inspect_err(note)?
                }
            };
            if let Some(audited) = &audited {
                // Boxed: a call without an audit waits without the memory that this takes.
                Box::pin(audited.begin()).await.inspect_err(note)?;
            }
            Ok(Self { _permit: permit, in_progress, audited })
        }
    }

    /// Records whether the client can resume, also in a later process.
    pub(in crate::face) fn note_position(&mut self, has_position: bool) {
        self.in_progress.now_held(has_position);
    }

    pub(in crate::face) fn record_activity(&mut self, at: Instant) {
        self.in_progress.note_sign(at);
    }
}

/// The metrics of one upstream's forwarded messages, looked up once.
pub(in crate::face) struct PipeMetrics {
    pub(in crate::face) calls: Counter,
    pub(in crate::face) requests: Counter,
    pub(in crate::face) notifications: Counter,
    pub(in crate::face) responses: Counter,
    pub(in crate::face) streams: Counter,
    /// The time until the last byte of a response.
    pub(in crate::face) call_time: Histogram,
    pub(in crate::face) request_time: Histogram,
}

impl PipeMetrics {
    /// The metrics recorder must be installed before.
    pub(in crate::face) fn of(upstream: &Arc<str>) -> Self {
        let counter =
            |kind: &'static str| metrics::counter!(metric::PIPED, "upstream" => Arc::clone(upstream), "kind" => kind);
        let histogram = |class: &'static str| metrics::histogram!(metric::UPSTREAM_REQUEST, "upstream" => Arc::clone(upstream), "class" => class);
        Self {
            calls: counter("call"),
            requests: counter("request"),
            notifications: counter("notification"),
            responses: counter("response"),
            streams: counter("stream"),
            call_time: histogram("call"),
            request_time: histogram("other"),
        }
    }
}

debug_members!(PipeMetrics);
