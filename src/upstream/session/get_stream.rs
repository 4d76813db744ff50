//! Reads a session's GET stream, for messages that belong to no POST. It is reopened when it ends, omitted if the
//! upstream has none, and keeps no session alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{UpstreamLink, UpstreamSession};
use crate::task::Principal;
use crate::upstream::outgoing::{HandedOver, SessionHeaders, StreamPurpose};
use crate::upstream::reply::{
    self, AcceptedResponse, BodyReadError, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal, SseResumePoint,
};
use crate::wire::{Message, RequestId, ScanLimits, envelope};

/// Shortest and longest pause before a stream that ended is reopened.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A stream that lasted this long was useful even without events.
const USEFUL_AFTER: Duration = Duration::from_secs(5);
/// Largest event; questions are small.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

enum GetStreamResult {
    Refused,
    /// It had one, and no longer knows the session.
    Lost,
    /// It failed, or ended too soon.
    Useless,
    Useful,
}

/// A message of the stream stayed incomplete for too long (U76).
struct StalledError;

struct GetStreamReader {
    link: Arc<UpstreamLink>,
    credentials: SessionHeaders,
    session: Weak<UpstreamSession>,
    owner: Principal,
    point: SseResumePoint,
    /// Whether there was a stream: only then may a refusal be about the session.
    was_open: bool,
    /// Set for a session that is kept for this stream alone.
    purpose: Option<StreamPurpose>,
}

/// Opens the stream in the background, without waiting for it: some upstreams send no head before the first event.
pub(super) fn start(session: &Arc<UpstreamSession>, owner: &Principal, purpose: Option<StreamPurpose>) {
    let listener = GetStreamReader {
        link: Arc::clone(&session.link),
        credentials: session.credentials.clone(),
        session: Arc::downgrade(session),
        owner: owner.clone(),
        point: SseResumePoint::default(),
        was_open: false,
        purpose,
    };
    let session_ended = session.ended.clone();
    session.link.tracker.spawn(listener.run(session_ended));
}

impl GetStreamReader {
    async fn run(mut self, session_ended: CancellationToken) {
        let mut useless = 0_u32;
        loop {
            let Some(result) = session_ended.run_until_cancelled(Box::pin(self.listen())).await else { return };
            useless = match result {
                GetStreamResult::Refused => return self.note_decided(),
                // Subscribers must know, and the next call needs a session that the upstream knows.
                GetStreamResult::Lost => return session_ended.cancel(),
                GetStreamResult::Useless => useless.saturating_add(1),
                GetStreamResult::Useful => 0,
            };
            let pause = (self.point.pause().max(PAUSE_MIN) * 2_u32.pow(useless.min(6))).min(PAUSE_MAX);
            if session_ended.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    async fn listen(&mut self) -> GetStreamResult {
        let get = self.credentials.get(self.point.last_event.as_ref());
        let get = match &self.purpose {
            Some(purpose) => get.for_use(purpose.clone()),
            None => get,
        };
        let opened = Instant::now();
        let Ok(response) = self.link.transport.send(&get, &HandedOver::default()).await else {
            return GetStreamResult::Useless;
        };
        let status = response.status();
        // A server may still count the previous stream (B274). Other refusals but temporary ones mean that it has no stream.
        let may_pass = matches!(status.as_u16(), 408 | 409 | 429) || status.is_server_error();
        if may_pass && status != StatusCode::NOT_IMPLEMENTED {
            return GetStreamResult::Useless;
        }
        let limits = ReadLimits::within(EVENT_BYTES_MAX, self.link.limits.answers_to(&self.owner));
        // A stream has no id; the refusal only shows whether the session is known.
        let nobody = RequestId::number(0);
        let in_session = self.was_open && self.credentials.session.is_some();
        let addressee = if in_session { ErrorAddressee::RequestInSession(&nobody) } else { ErrorAddressee::Handshake };
        let events = match reply::open(response, addressee, &limits).await {
            Ok(AcceptedResponse::Events(events)) => events,
            Err(ResponseRefusal::SessionLost) => return GetStreamResult::Lost,
            Ok(AcceptedResponse::Json(_)) | Err(ResponseRefusal::Gateway(_) | ResponseRefusal::Rpc(_)) => {
                return GetStreamResult::Refused;
            }
        };
        self.was_open = true;
        self.note_decided();
        match self.follow(events).await {
            Ok(received_any) if received_any || opened.elapsed() >= USEFUL_AFTER => GetStreamResult::Useful,
            Ok(_) | Err(StalledError) => GetStreamResult::Useless,
        }
    }

    fn note_decided(&self) {
        if let Some(session) = self.session.upgrade() {
            // Lets callers continue: the server has this stream, or refused it. Already set if it was opened before.
            let _ = session.listened.set(());
        }
    }

    /// Routes the stream's messages until it ends; returns whether any came. Fails if the server stopped within one.
    async fn follow(&mut self, mut events: EventStream) -> Result<bool, StalledError> {
        let mut received_any = false;
        loop {
            let event = match events.next().await {
                Ok(Some(event)) => event,
                Err(BodyReadError::Idle) => return Err(StalledError),
                end @ (Ok(None) | Err(BodyReadError::Closed | BodyReadError::TooLarge | BodyReadError::Known(_))) => {
                    // A resumed stream would begin with the same event.
                    self.point.last_event.take_if(|_| matches!(end, Err(BodyReadError::TooLarge)));
                    return Ok(received_any);
                }
            };
            self.point.note(&event);
            let Some(text) = reply::message_in(&event) else { continue };
            received_any = true;
            let Some(session) = self.session.upgrade() else { return Ok(received_any) };
            match text.read_all(ScanLimits::UPSTREAM, envelope::BATCH_MAX) {
                Ok(messages) => messages.into_iter().for_each(|message| match message {
                    Ok(Message::Notification(notification)) => session.note(notification),
                    Ok(Message::Request(request)) => session.receive_request(request),
                    // Responses come only on the stream of their own request (LEG-08).
                    Ok(Message::Response(_)) => self.link.dropped("foreign_response"),
                    Err(_) => self.link.dropped("malformed_event"),
                }),
                Err(_) => self.link.dropped("malformed_event"),
            }
        }
    }
}
