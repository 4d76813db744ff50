//! Reads the GET stream of a session, on which the upstream says what belongs to no POST.
//!
//! It is opened once, reopened when it ends, and done without where the upstream has none. It keeps no
//! session alive: the session's end is its end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{UpstreamLink, UpstreamSession};
use crate::upstream::outgoing::{HandedOver, SessionHeaders, StreamPurpose};
use crate::upstream::reply::{
    self, AcceptedResponse, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal, SseResumePoint,
};
use crate::wire::{Message, RequestId, ScanLimits, envelope};

/// Soonest and latest reopening of a stream that ended.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A stream that lasted this long was of use even if nothing came.
const USEFUL_AFTER: Duration = Duration::from_secs(5);
/// Largest event; questions are small.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How one opening of the stream went.
enum GetStreamResult {
    /// The upstream has no such stream.
    Refused,
    /// It had one, and now knows no such session.
    Lost,
    /// Nothing came of it.
    Vain,
    /// It was there for a while.
    Useful,
}

struct GetStreamReader {
    link: Arc<UpstreamLink>,
    credentials: SessionHeaders,
    session: Weak<UpstreamSession>,
    point: SseResumePoint,
    /// Whether there was a stream: only then a refusal may be about the session.
    was_open: bool,
    /// What the stream is there for, if that alone makes the session one that is in use.
    purpose: Option<StreamPurpose>,
}

/// Opens the stream in the background, without waiting for it: some upstreams send no head before the
/// first event.
pub(super) fn start(session: &Arc<UpstreamSession>, purpose: Option<StreamPurpose>) {
    let listener = GetStreamReader {
        link: Arc::clone(&session.link),
        credentials: session.credentials.clone(),
        session: Arc::downgrade(session),
        point: SseResumePoint::default(),
        was_open: false,
        purpose,
    };
    let over = session.over.clone();
    session.link.tracker.spawn(listener.run(over));
}

impl GetStreamReader {
    async fn run(mut self, over: CancellationToken) {
        let mut vain = 0_u32;
        loop {
            let spell = tokio::select! {
                () = over.cancelled() => return,
                spell = self.listen() => spell,
            };
            vain = match spell {
                GetStreamResult::Refused => return self.listened(),
                // Whoever listens must know, and the next call needs a session that the upstream knows.
                GetStreamResult::Lost => return over.cancel(),
                GetStreamResult::Vain => vain.saturating_add(1),
                GetStreamResult::Useful => 0,
            };
            let pause = (self.point.pause().max(PAUSE_MIN) * 2_u32.pow(vain.min(6))).min(PAUSE_MAX);
            tokio::select! {
                () = over.cancelled() => return,
                () = tokio::time::sleep(pause) => (),
            }
        }
    }

    /// Opens the stream once and follows it to its end.
    async fn listen(&mut self) -> GetStreamResult {
        let get = self.credentials.get(self.point.last_event.as_ref());
        let get = match &self.purpose {
            Some(purpose) => get.for_use(purpose.clone()),
            None => get,
        };
        let opened = Instant::now();
        let Ok(response) = self.link.transport.send(&get, &HandedOver::default()).await else {
            return GetStreamResult::Vain;
        };
        match response.status() {
            // These may pass; every other refusal is the upstream's way to say that it has no stream.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => return GetStreamResult::Vain,
            status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
                return GetStreamResult::Vain;
            }
            _ => (),
        }
        let limits = ReadLimits::of_bytes(EVENT_BYTES_MAX);
        // A stream has no id; what matters is whether the session is known.
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
        self.listened();
        let heard = self.follow(events).await;
        if heard || opened.elapsed() >= USEFUL_AFTER { GetStreamResult::Useful } else { GetStreamResult::Vain }
    }

    /// Notes that it is known whether there is such a stream.
    fn listened(&self) {
        if let Some(session) = self.session.upgrade() {
            // Set already where the stream was opened before.
            let _ = session.listened.set(());
        }
    }

    /// Passes on what comes until the stream ends; whether anything came.
    async fn follow(&mut self, mut events: EventStream) -> bool {
        let mut heard = false;
        while let Ok(Some(event)) = events.next().await {
            self.point.note(&event);
            let Some(text) = reply::message_in(&event) else { continue };
            heard = true;
            let Some(session) = self.session.upgrade() else { return heard };
            match text.read_all(ScanLimits::UPSTREAM, envelope::BATCH_MAX) {
                Ok(messages) => messages.into_iter().for_each(|message| match message {
                    Ok(Message::Notification(notification)) => session.note(notification),
                    Ok(Message::Request(request)) => session.ask(request),
                    // Answers come on the stream of their own request alone (LEG-08).
                    Ok(Message::Response(_)) => self.link.dropped("foreign_response"),
                    Err(_) => self.link.dropped("malformed_event"),
                }),
                Err(_) => self.link.dropped("malformed_event"),
            }
        }
        heard
    }
}
