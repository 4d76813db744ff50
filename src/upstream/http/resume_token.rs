//! Encodes tokens to resume calls in another process, and tracks positions in their streams. This process resumes after
//! all read events, a later one after the events that the call's owner has received.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::value::RawValue;

use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::task::time::millis;
use crate::upstream::ResumeToken;
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::reply::SseResumePoint;
use crate::wire::framing::SseEvent;
use crate::wire::{Payload, ProtocolVersion, RequestId};

/// Stored rows hold the token, so members keep their meaning. It has `last_event` or `task`.
#[derive(serde::Serialize, serde::Deserialize)]
struct ResumeTokenContent {
    request: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_event: Option<String>,
    session: Option<String>,
    version: Option<String>,
    retry_ms: Option<u64>,
    /// The upstream's own task (UPC-13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    task_cancel: bool,
    /// The upstream's tasks above `task`, nearest first (SEP-2268).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    above: Vec<String>,
    /// Questions that may be unanswered: their replay is no new question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    open: Vec<Box<RawValue>>,
}

#[derive(Clone, Debug)]
pub(super) enum CallPosition {
    Stream(SseResumePoint),
    Task { id: Arc<str>, tasks: UpstreamTaskSupport, above: Arc<[Arc<str>]> },
}

#[derive(Debug)]
pub(super) struct ResumedCall {
    pub(super) request: RequestId,
    pub(super) credentials: SessionHeaders,
    pub(super) at: CallPosition,
    pub(super) open: Vec<Payload>,
}

/// `None` while the stream gave no event id and the call has no task.
pub(super) fn token(
    request: &RequestId,
    credentials: &SessionHeaders,
    at: &CallPosition,
    open: &[Payload],
) -> Option<ResumeToken> {
    let (last_event, retry, task, tasks, above) = match at {
        CallPosition::Stream(point) => {
            let last_event = text(point.last_event.as_ref()?)?;
            (Some(last_event), point.retry, None, UpstreamTaskSupport::default(), Vec::new())
        }
        CallPosition::Task { id, tasks, above } => {
            (None, None, Some(id.as_ref().to_owned()), *tasks, above.iter().map(|id| id.to_string()).collect())
        }
    };
    let token = ResumeTokenContent {
        request: request.payload().read().ok()?,
        last_event,
        session: match &credentials.session {
            Some(session) => Some(text(session)?),
            None => None,
        },
        version: credentials.version.map(|version| version.as_str().to_owned()),
        retry_ms: retry.map(millis),
        task,
        task_cancel: tasks.cancel,
        above,
        open: open.iter().filter_map(|ask| ask.read().ok()).collect(),
    };
    Some(ResumeToken(Payload::of(&token)))
}

/// `None` for a foreign token.
pub(super) fn read(token: &ResumeToken) -> Option<ResumedCall> {
    let token: ResumeTokenContent = token.0.read().ok()?;
    let session = match &token.session {
        Some(session) => Some(HeaderValue::from_str(session).ok()?),
        None => None,
    };
    let at = match (token.task, &token.last_event) {
        (Some(id), _) => CallPosition::Task {
            id: Arc::from(id),
            tasks: UpstreamTaskSupport { calls: true, cancel: token.task_cancel },
            above: token.above.into_iter().map(Arc::from).collect(),
        },
        (None, Some(event)) => CallPosition::Stream(SseResumePoint {
            last_event: Some(HeaderValue::from_bytes(event.as_bytes()).ok()?),
            retry: token.retry_ms.map(Duration::from_millis),
        }),
        (None, None) => return None,
    };
    let open = token.open.iter().map(Payload::of).collect();
    Some(ResumedCall {
        open,
        request: RequestId::text(&token.request),
        credentials: SessionHeaders {
            session,
            version: token.version.as_deref().and_then(ProtocolVersion::parse),
            ..SessionHeaders::default()
        },
        at,
    })
}

fn text(value: &HeaderValue) -> Option<String> {
    String::from_utf8(value.as_bytes().to_vec()).ok()
}

/// The stream is read ahead of the owner, by at most the queue's length.
#[derive(Debug, Default)]
pub(super) struct StreamPositions {
    /// After all read events.
    pub(super) read: SseResumePoint,
    /// Positions ahead of the owner, oldest first, each with the number of events queued by then.
    ahead: VecDeque<(u64, SseResumePoint)>,
    /// After the owner's last event.
    at: SseResumePoint,
}

impl StreamPositions {
    pub(super) fn resumed(position: SseResumePoint) -> Self {
        Self { read: position.clone(), ahead: VecDeque::new(), at: position }
    }

    /// Records a read event. Its messages are among the first `queued` of the queue.
    pub(super) fn note(&mut self, event: &SseEvent, queued: u64) {
        self.read.note(event);
        match self.ahead.back_mut() {
            // An event that found no room was counted for a moment.
            Some((behind, position)) if *behind >= queued => position.clone_from(&self.read),
            Some(_) | None => self.ahead.push_back((queued, self.read.clone())),
        }
    }

    /// Call it for each event that the owner receives. A later process that resumes at the returned position gets all
    /// others.
    pub(super) fn received(&mut self, received: u64) -> &SseResumePoint {
        let count = self.ahead.iter().take_while(|(queued, _)| *queued <= received).count();
        if let Some((_, position)) = self.ahead.drain(..count).next_back() {
            self.at = position;
        }
        &self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> SessionHeaders {
        SessionHeaders {
            session: Some(HeaderValue::from_static("s-1")),
            version: Some(ProtocolVersion::V2025_11_25),
            ..SessionHeaders::default()
        }
    }

    #[test]
    fn a_token_reads_back() {
        let mut point = SseResumePoint { last_event: None, retry: Some(Duration::from_millis(250)) };
        let request = RequestId::text("tg:1");
        assert_eq!(
            token(&request, &credentials(), &CallPosition::Stream(point.clone()), &[]),
            None,
            "nothing to resume after"
        );
        point.last_event = Some(HeaderValue::from_bytes("caf\u{e9}-7".as_bytes()).unwrap());
        let open = [Payload::of(&7), Payload::of("ask")];
        let back =
            read(&token(&request, &credentials(), &CallPosition::Stream(point.clone()), &open).unwrap()).unwrap();
        assert_eq!((back.request, back.credentials, back.open), (request, credentials(), open.to_vec()));
        let CallPosition::Stream(read) = back.at else { panic!("{:?}", back.at) };
        assert_eq!((read.last_event, read.retry), (point.last_event, point.retry));
    }

    #[test]
    fn upc_13_a_token_brings_back_the_upstreams_task() {
        for cancel in [false, true] {
            let tasks = UpstreamTaskSupport { calls: true, cancel };
            let above: Arc<[Arc<str>]> = [Arc::from("u-2"), Arc::from("u-3")].into();
            let at = CallPosition::Task { id: Arc::from("\"u\" 1"), tasks, above: Arc::clone(&above) };
            let back = read(&token(&RequestId::text("tg:1"), &credentials(), &at, &[]).unwrap()).unwrap();
            assert_eq!(back.credentials, credentials());
            let CallPosition::Task { id, tasks: read, above: over } = back.at else { panic!("{:?}", back.at) };
            assert_eq!((&*id, read, over), ("\"u\" 1", tasks, above));
        }
    }

    #[test]
    fn tokens_of_earlier_releases_are_read() {
        let text = r#"{"request":"tg:1","last_event":"e-1","session":null,"version":"2025-06-18","retry_ms":null}"#;
        let value: Box<RawValue> = serde_json::from_str(text).unwrap();
        let back = read(&ResumeToken(Payload::of(&value))).unwrap();
        assert!(
            matches!(back.at, CallPosition::Stream(point) if point.last_event == Some(HeaderValue::from_static("e-1")))
        );
    }

    #[test]
    fn a_foreign_token_is_refused() {
        assert!(read(&ResumeToken(Payload::empty_object())).is_none());
        let nowhere = serde_json::json!({"request": "tg:1"});
        assert!(read(&ResumeToken(Payload::of(&nowhere))).is_none());
    }

    fn event(id: &str) -> SseEvent {
        SseEvent { id: Some(id.into()), ..SseEvent::default() }
    }

    #[test]
    fn an_offset_is_reached_once_all_earlier_events_were_received() {
        let at = |positions: &mut StreamPositions, received| {
            positions.received(received).last_event.clone().map(|id| id.to_str().unwrap().to_owned())
        };
        let mut positions = StreamPositions::default();
        assert_eq!(at(&mut positions, 0), None);
        // The first event only primes the stream; the next yields two events, and the one after it none.
        for (id, queued) in [("e-0", 0), ("e-1", 2), ("e-2", 2), ("e-3", 3)] {
            positions.note(&event(id), queued);
        }
        assert_eq!(positions.read.last_event.as_ref().unwrap(), "e-3");
        for (received, position) in [(0, "e-0"), (1, "e-0"), (2, "e-2"), (3, "e-3"), (3, "e-3")] {
            assert_eq!(at(&mut positions, received).as_deref(), Some(position), "{received} received");
        }
        positions.note(&event("e-4"), 5);
        // One of the counted events found no room.
        positions.note(&event("e-5"), 4);
        assert_eq!([4, 5].map(|received| at(&mut positions, received)), ["e-3", "e-5"].map(|id| Some(id.to_owned())));
        assert_eq!(StreamPositions::resumed(positions.read.clone()).received(0).last_event, positions.read.last_event);
    }
}
