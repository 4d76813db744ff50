//! From what an endpoint answers to the messages that its client reads: a JSON body is one, an event stream any number,
//! a refusal in the words of HTTP becomes one in those of JSON-RPC.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http_body_util::BodyExt as _;

use super::line::{Gone, Line};
use crate::dialect::faults::{gateway_error, reason_key};
use crate::face::http::{Response, ResponseBody};
use crate::face::pipe::read::brings_answer;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::SseDecoder;
use crate::wire::{Message, RequestId, ScanLimits, envelope};

/// How an answer ended.
#[derive(Debug)]
pub(super) enum Relayed {
    /// With all that was to be said.
    Whole,
    /// A stream without the answer that was waited for; where it could be taken up again.
    Short(Place),
    /// There was nothing in it.
    Nothing,
}

/// Where a stream stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) event: Option<String>,
    /// How long the server wants to be left alone first.
    pub(super) retry: Option<Duration>,
    /// Whether anything was said on it.
    pub(super) moved: bool,
}

impl Line {
    /// Says what is in an answer: to the request `id`, or to nobody in particular.
    pub(super) async fn relay(&self, response: Response, id: Option<&RequestId>) -> Result<Relayed, Gone> {
        let (head, body) = response.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        if kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
            return self.relay_events(body, id).await;
        }
        let text = match collect(body, self.message_bytes_max()).await {
            Ok(text) => text,
            Err(fault) => {
                self.say_fault(id, &fault).await?;
                return Ok(Relayed::Whole);
            }
        };
        if text.is_empty() && (head.status.is_success() || id.is_none()) {
            return Ok(Relayed::Nothing);
        }
        if head.status.is_success() {
            self.say(text).await?;
            return Ok(Relayed::Whole);
        }
        let wait = head.headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let refusal = refusal(&text, id, head.status, wait.map(Duration::from_secs));
        self.say(refusal).await?;
        Ok(Relayed::Whole)
    }

    async fn relay_events(&self, mut body: ResponseBody, id: Option<&RequestId>) -> Result<Relayed, Gone> {
        let mut decoder = SseDecoder::new(self.message_bytes_max());
        let (mut place, mut is_answered) = (Place::default(), false);
        // What cuts a stream off ends it, like its end.
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(bytes) = frame.into_data() else { continue };
            let Ok(events) = decoder.feed(&bytes) else {
                self.say_fault(id, &GatewayFault::new(Reason::ResultTooLarge, Executed::Yes)).await?;
                return Ok(Relayed::Whole);
            };
            for event in events {
                place.event = event.id.or_else(|| place.event.take());
                place.retry = event.retry_ms.map(Duration::from_millis).or(place.retry);
                // One without data only names a place; one with a name of its own is no message.
                if event.data.is_empty() || event.name.is_some_and(|name| name != "message") {
                    continue;
                }
                place.moved = true;
                is_answered |= id.is_some_and(|id| brings_answer(&event.data, id));
                self.say(event.data).await?;
            }
        }
        let place = Place { event: place.event.filter(|event| !event.is_empty()), ..place };
        Ok(if is_answered { Relayed::Whole } else { Relayed::Short(place) })
    }

    /// What is nobody's in particular is not worth an error.
    pub(super) async fn say_fault(&self, id: Option<&RequestId>, fault: &GatewayFault) -> Result<(), Gone> {
        match id {
            Some(id) => self.say_error(Some(id), &gateway_error(fault)).await,
            None => {
                tracing::debug!(reason = reason_key(fault.reason), "a message to the client was lost");
                Ok(())
            }
        }
    }
}

/// A refusal as the client that sent `id` can read it.
fn refusal(text: &Bytes, id: Option<&RequestId>, status: StatusCode, retry_after: Option<Duration>) -> Bytes {
    let Some(id) = id else { return text.clone() };
    if let Ok(Message::Response(response)) = envelope::read(text, ScanLimits::UPSTREAM) {
        match (response.id, response.outcome) {
            (Some(named), _) if named.says(id) => return text.clone(),
            (_, Err(error)) => return envelope::error(Some(id), &error),
            (_, Ok(_)) => (),
        }
    }
    let reason = match status {
        StatusCode::TOO_MANY_REQUESTS => Reason::RateLimited,
        StatusCode::SERVICE_UNAVAILABLE => Reason::Draining,
        _ => Reason::Internal,
    };
    let fault = GatewayFault { retry_after, ..GatewayFault::new(reason, Executed::No) };
    envelope::error(Some(id), &gateway_error(&fault))
}

async fn collect(mut body: ResponseBody, bytes_max: usize) -> Result<Bytes, GatewayFault> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))?;
        let Ok(bytes) = frame.into_data() else { continue };
        if all.len() + bytes.len() > bytes_max {
            return Err(GatewayFault::new(Reason::ResultTooLarge, Executed::Yes));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all.freeze())
}
