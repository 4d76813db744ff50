//! Reads the response to one request, and the call's other messages on its stream.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::HttpCall;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::AnswerBody;
use crate::upstream::http::resume_token::StreamPositions;
use crate::upstream::reply::{self, BodyReadError, EventStream, ReadLimits};
use crate::upstream::session::UpstreamLink;
use crate::upstream::session::calls::SessionCall;
use crate::wire::envelope::{EnvelopeError, MalformedMessage};
use crate::wire::{Message, MessageText, Payload, RequestId, RpcError, ScanLimits, envelope};

/// Malformed events that one request tolerates (U19).
pub(in crate::upstream::http) const MALFORMED_MAX: u32 = 10;
const DRAIN_MAX: Duration = Duration::from_secs(1);

pub(in crate::upstream::http) type RpcResult = Result<Payload, RpcError>;

pub(in crate::upstream::http) enum StreamEnd {
    Answered(RpcResult),
    /// It ended without the response, in order or not.
    Broke {
        any: bool,
    },
}

#[derive(Debug)]
pub(in crate::upstream::http) struct AwaitedRequest<'a> {
    pub(in crate::upstream::http) id: &'a RequestId,
    pub(in crate::upstream::http) limits: ReadLimits,
    pub(in crate::upstream::http) positions: &'a Mutex<StreamPositions>,
    /// The call that receives the stream's events; `None` if no later process resumes the stream.
    pub(in crate::upstream::http) call: Option<&'a SessionCall>,
}

impl HttpCall {
    /// Reads a JSON response, which is the last message.
    pub(in crate::upstream::http) async fn read(
        &self,
        body: AnswerBody,
        awaited: &AwaitedRequest<'_>,
    ) -> Result<RpcResult, GatewayFault> {
        let text = reply::read_whole(body, &awaited.limits).await?;
        let answer = self.answer_in(&text.into(), awaited.id).await;
        match answer {
            Some(_) => self.session().took(),
            // Some servers refuse a session by an error without a request id.
            None => Box::pin(self.session().refused()).await,
        }
        answer.ok_or(GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes))
    }

    async fn answer_in(&self, text: &MessageText, id: &RequestId) -> Option<RpcResult> {
        let mut answer = None;
        for message in self.messages(text).ok()? {
            let found = self.take(message.ok()?, id).await;
            answer = answer.or(found);
        }
        answer
    }

    /// Reads a stream until the response or a break. `malformed` counts across streams.
    pub(in crate::upstream::http) async fn read_stream(
        &self,
        events: &mut EventStream,
        awaited: &AwaitedRequest<'_>,
        malformed: &mut u32,
    ) -> Result<StreamEnd, GatewayFault> {
        let mut any = false;
        loop {
            match events.next().await {
                Ok(Some(event)) => {
                    any = true;
                    // Boxed: a stream may be silent for hours, and must not hold this future's memory.
                    if let Some(text) = reply::message_in(&event)
                        && let Some(answer) = Box::pin(self.take_event(text, awaited.id, malformed)).await?
                    {
                        return Ok(StreamEnd::Answered(answer));
                    }
                    // All its messages are in the queue now.
                    awaited.positions.lock().note(&event, awaited.call.map_or(0, SessionCall::queued));
                }
                Ok(None) | Err(BodyReadError::Closed) => return Ok(StreamEnd::Broke { any }),
                Err(known @ (BodyReadError::Idle | BodyReadError::TooLarge | BodyReadError::Known(_))) => {
                    return Err(known.into_fault());
                }
            }
        }
    }

    /// An unreadable event is dropped, unless it is the response or there are too many.
    async fn take_event(
        &self,
        text: &MessageText,
        id: &RequestId,
        malformed: &mut u32,
    ) -> Result<Option<RpcResult>, GatewayFault> {
        let messages = match self.messages(text) {
            Ok(messages) => messages,
            Err(_) if is_unreadable_answer(text, id) => {
                return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes));
            }
            Err(error) => vec![Err(error)],
        };
        let mut answer = None;
        for message in messages {
            match message {
                Ok(message) => {
                    let found = self.take(message, id).await;
                    answer = answer.or(found);
                }
                Err(error) if is_answer(&error, id) => {
                    return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes));
                }
                Err(_) => {
                    *malformed += 1;
                    self.session().link.dropped("malformed_event");
                    if *malformed > MALFORMED_MAX {
                        return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown));
                    }
                }
            }
        }
        Ok(answer)
    }

    async fn take(&self, message: Message, id: &RequestId) -> Option<RpcResult> {
        let session = self.session();
        match message {
            Message::Notification(notification) => session.note_to(&self.call, notification).await,
            Message::Request(request) => session.receive_request_of(&self.call, request).await,
            Message::Response(response) if response.id.as_ref() == Some(id) => return Some(response.into_outcome()),
            // Of another call, or of none (U09, U23).
            Message::Response(_) => session.link.dropped("foreign_response"),
        }
        None
    }

    fn messages(&self, text: &MessageText) -> Result<Vec<Result<Message, EnvelopeError>>, EnvelopeError> {
        // Only 2025-03-26 has batches; a response in one counts in every version.
        text.read_all(ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX)
    }
}

/// Reads a stream to its end in the background, for at most a second: a connection dropped earlier cannot be reused.
pub(in crate::upstream::http) fn drain(link: &Arc<UpstreamLink>, mut events: EventStream) {
    let upstream = Arc::clone(link);
    link.tracker.spawn(async move {
        let rest = async {
            while let Ok(Some(event)) = events.next().await {
                if reply::message_in(&event).is_some() {
                    upstream.dropped("after_response");
                }
            }
        };
        let _ = tokio::time::timeout(DRAIN_MAX, rest).await;
    });
}

fn is_answer(error: &EnvelopeError, awaited: &RequestId) -> bool {
    match error {
        EnvelopeError::Scan { id, .. } | EnvelopeError::Shape { id, .. } => id.as_ref() == Some(awaited),
        EnvelopeError::Batch => false,
    }
}

/// Whether an unreadable text is the response: on a request's stream, any response without another id.
pub(in crate::upstream::http) fn is_unreadable_answer(text: &[u8], awaited: &RequestId) -> bool {
    let is_meant = |seen: &MalformedMessage| seen.is_answer && seen.id.as_ref().is_none_or(|id| id == awaited);
    envelope::glimpse(text).iter().any(is_meant)
}
