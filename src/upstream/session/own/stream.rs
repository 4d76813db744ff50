//! Reads a client session's GET stream, either for the client or for the session's calls. Servers may allow only one
//! stream, so client and gateway take turns. A server's task is shown only to its call (T-67).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{OwnSession, OwnSessions};
use crate::dialect::relay_core_2025_11_25::{self as relay, MessageConcern};
use crate::task::{Executed, GatewayFault};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::body::edited_events;
use crate::upstream::raw_channel::{RawBody, RawMethod, RawResponse, SessionBinding};
use crate::upstream::recent_map::RecentMap;
use crate::upstream::reply::{self, BodyReadError, EventStream, JudgedResponse, ReadLimits, SseResumePoint};
use crate::upstream::session::route::{CallMatch, unassigned_answer};
use crate::wire::framing::{EventGate, HoldPolicy, PrimerPolicy};
use crate::wire::{Message, MessageText, ScanLimits};

/// How long a client's stream waits for an unavailable server, and the pause between two attempts.
const OUTAGE_MAX: Duration = Duration::from_secs(60);
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_secs(1);
/// How long a call waits for the gateway's own stream: some servers send no head before the first event.
const OPEN_MAX: Duration = Duration::from_secs(1);
const STOP_MAX: Duration = Duration::from_secs(1);
/// How long a server may take to notice that its stream was released, the pause between two attempts, and their least
/// number: a gateway that was suspended may have seen only one response.
const TURN_MAX: Duration = Duration::from_secs(2);
const TURN_PAUSE: Duration = Duration::from_millis(50);
const TURN_TRIES_MIN: usize = 5;
/// How long a released stream may be the cause of a server's refusal of another one.
const RELEASED_FOR: Duration = Duration::from_secs(10);
const RELEASED_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct SessionStreamReaders {
    states: Mutex<HashMap<u128, StreamReaderState>>,
    released: RecentMap<Instant>,
}

impl Default for SessionStreamReaders {
    fn default() -> Self {
        Self { states: Mutex::default(), released: RecentMap::new(RELEASED_MAX) }
    }
}

#[derive(Debug, Default)]
struct StreamReaderState {
    clients: usize,
    gateway: Option<GatewayReader>,
}

#[derive(Debug)]
struct GatewayReader {
    release: CancellationToken,
    /// Cancelled once it is open, or is known to be unavailable.
    settled: CancellationToken,
    running: Option<JoinHandle<()>>,
}

impl SessionStreamReaders {
    fn release(&self, session: &OwnSession) {
        self.released.insert(session.opened.nonce, &session.opened.counted_as, Instant::now());
    }

    fn was_released_lately(&self, nonce: u128) -> bool {
        self.released.get(nonce).is_some_and(|when| when.elapsed() < RELEASED_FOR)
    }

    fn change(&self, nonce: u128, change: impl FnOnce(&mut StreamReaderState)) {
        let mut all = self.states.lock();
        let Some(readers) = all.get_mut(&nonce) else { return };
        change(readers);
        if readers.clients == 0 && readers.gateway.is_none() {
            all.remove(&nonce);
        }
    }

    fn take_turn(&self, nonce: u128) -> Option<(CancellationToken, CancellationToken)> {
        let mut all = self.states.lock();
        let readers = all.entry(nonce).or_default();
        if readers.clients > 0 || readers.gateway.is_some() {
            return None;
        }
        let (release, settled) = (CancellationToken::new(), CancellationToken::new());
        readers.gateway = Some(GatewayReader { release: release.clone(), settled: settled.clone(), running: None });
        Some((release, settled))
    }

    fn settled(&self, nonce: u128) -> Option<CancellationToken> {
        Some(self.states.lock().get(&nonce)?.gateway.as_ref()?.settled.clone())
    }

    fn runs(&self, nonce: u128, running: JoinHandle<()>) {
        if let Some(own) = self.states.lock().get_mut(&nonce).and_then(|readers| readers.gateway.as_mut()) {
            own.running = Some(running);
        }
    }

    /// Stops the gateway's stream; `None` if there is none, else the task to wait for.
    fn stop(&self, nonce: u128) -> Option<Option<JoinHandle<()>>> {
        let mut all = self.states.lock();
        let own = all.get_mut(&nonce)?.gateway.as_mut()?;
        own.release.cancel();
        Some(own.running.take())
    }
}

/// A client's stream. While it exists the gateway does not read.
#[derive(Debug)]
#[must_use]
struct ClientReaderGuard {
    sessions: Arc<OwnSessions>,
    session: OwnSession,
    has_stream: bool,
}

impl Drop for ClientReaderGuard {
    fn drop(&mut self) {
        if self.has_stream {
            self.sessions.readers.release(&self.session);
        }
        self.sessions.readers.change(self.session.opened.nonce, |readers| readers.clients -= 1);
        // Without a runtime no task can read on.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.sessions.read_for_calls(&self.session);
        }
    }
}

#[derive(Debug)]
enum StreamConsumer {
    Client {
        _stream: ClientReaderGuard,
    },
    /// The gateway, for the session's calls, while the client does not read.
    Gateway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumedStreamKind {
    Same,
    Another,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRefusal {
    /// The server cannot be reached, or has no session.
    Unreachable,
    Refused(GatewayFault),
}

impl OwnSessions {
    /// The client's stream, without messages of tasks. Waits out a short outage: some clients give up at two refusals.
    pub(crate) async fn stream_for_client(
        self: &Arc<Self>,
        session: &OwnSession,
        last_event: Option<HeaderValue>,
    ) -> Result<(RawResponse, ResumedStreamKind), StreamRefusal> {
        if !session.opened.tasks.calls {
            return self.stream(session, last_event).await;
        }
        self.readers.states.lock().entry(session.opened.nonce).or_default().clients += 1;
        let mut guard = ClientReaderGuard { sessions: Arc::clone(self), session: session.clone(), has_stream: true };
        self.stop_reading(session).await;
        let found = self.stream_in_turn(session, last_event).await;
        guard.has_stream = found.as_ref().is_ok_and(|(response, _)| response.content == BodyKind::Events);
        let (mut response, kind) = found?;
        if guard.has_stream {
            response.body = self.filtered(session, response.body, StreamConsumer::Client { _stream: guard });
        }
        Ok((response, kind))
    }

    /// As [`OwnSessions::stream`]. The server may need a moment to notice that a stream in use until now is free.
    async fn stream_in_turn(
        self: &Arc<Self>,
        session: &OwnSession,
        last_event: Option<HeaderValue>,
    ) -> Result<(RawResponse, ResumedStreamKind), StreamRefusal> {
        let until = Instant::now() + TURN_MAX;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.stream(session, last_event.clone()).await {
                Err(StreamRefusal::Refused(GatewayFault { http_status: Some(409), .. }))
                    // Checked each time: it may have been released while the server refused this one.
                    if self.readers.was_released_lately(session.opened.nonce)
                        && (tries < TURN_TRIES_MIN || Instant::now() < until) =>
                {
                    tokio::time::sleep(TURN_PAUSE).await;
                }
                found => return found,
            }
        }
    }

    /// Releases the stream of a session for its client, if the gateway reads it.
    async fn stop_reading(&self, session: &OwnSession) {
        let nonce = session.opened.nonce;
        let Some(running) = self.readers.stop(nonce) else { return };
        if let Some(running) = running {
            let _ = tokio::time::timeout(STOP_MAX, running).await;
        }
        self.readers.release(session);
    }

    /// Reads the stream of a session for its calls, unless the client reads it. Returns at once.
    pub(super) fn read_for_calls(self: &Arc<Self>, session: &OwnSession) {
        let nonce = session.opened.nonce;
        let idle = self.leases.with(nonce, |leased| leased.idle.clone());
        let Some(idle) = idle.filter(|_| !self.leases.listening(nonce).is_empty()) else { return };
        let Some((release, settled)) = self.readers.take_turn(nonce) else { return };
        let (sessions, session) = (Arc::clone(self), session.clone());
        let running = self.scope.tracker.spawn(async move {
            let is_cut = tokio::select! {
                () = release.cancelled() => true,
                () = idle.cancelled() => true,
                () = sessions.scope.stop.cancelled() => true,
                () = sessions.read(&session, &settled) => false,
            };
            if is_cut {
                sessions.readers.release(&session);
            }
            settled.cancel();
            sessions.readers.change(nonce, |readers| readers.gateway = None);
            // The client may have left the stream before this one ended.
            if release.is_cancelled() {
                sessions.read_for_calls(&session);
            }
        });
        self.readers.runs(nonce, running);
    }

    /// Waits at most [`OPEN_MAX`] for the gateway's stream, if it opens one: some servers drop earlier messages.
    pub(super) async fn stream_settled(&self, session: &OwnSession) {
        if let Some(settled) = self.readers.settled(session.opened.nonce) {
            let _ = tokio::time::timeout(OPEN_MAX, settled.cancelled()).await;
        }
    }

    /// Returns if the server has no such stream, or no more of them.
    async fn read(self: &Arc<Self>, session: &OwnSession, settled: &CancellationToken) {
        let (mut point, mut refusals) = (SseResumePoint::default(), 0_u32);
        loop {
            let (response, kind) = match self.stream_in_turn(session, point.last_event.clone()).await {
                Ok(found) if found.0.content == BodyKind::Events => found,
                // The server is overloaded, or restarts behind its proxy.
                Err(StreamRefusal::Refused(GatewayFault { http_status: Some(429 | 502..=504), .. })) => {
                    settled.cancel();
                    tokio::time::sleep((AGAIN * 2_u32.pow(refusals.min(6))).min(OUTAGE_MAX)).await;
                    refusals = refusals.saturating_add(1);
                    continue;
                }
                // The server may have dropped the event (U98).
                Err(StreamRefusal::Refused(_)) if point.last_event.is_some() => {
                    point.last_event = None;
                    continue;
                }
                Ok(_) | Err(_) => return,
            };
            settled.cancel();
            refusals = 0;
            point.last_event.take_if(|_| kind == ResumedStreamKind::Another);
            let limits = ReadLimits::within(self.event_bytes_max, self.limits.answers_to(&session.opened.owner));
            let mut events = EventStream::new(response.body, limits);
            let is_too_large = loop {
                let event = match events.next().await {
                    Ok(Some(event)) => event,
                    end => break matches!(end, Err(BodyReadError::TooLarge)),
                };
                point.note(&event);
                if let Some(text) = reply::message_in(&event) {
                    self.is_for_client(session, text, &StreamConsumer::Gateway);
                }
            };
            // A resumed stream would begin with the same event.
            point.last_event.take_if(|_| is_too_large);
            drop(events);
            self.readers.release(session);
            tokio::time::sleep(point.pause().max(AGAIN)).await;
        }
    }

    async fn stream(
        self: &Arc<Self>,
        session: &OwnSession,
        last_event: Option<HeaderValue>,
    ) -> Result<(RawResponse, ResumedStreamKind), StreamRefusal> {
        let unreachable = |_| StreamRefusal::Unreachable;
        let mut binding = self.binding(session);
        self.subscribe_postponed(session, &binding);
        let first = RawMethod::Get { last_event: last_event.clone() };
        let mut judged = self.send_patiently(&binding, &first, session).await.map_err(unreachable)?;
        let is_lost = matches!(judged, JudgedResponse::SessionLost);
        // The event id may be of a lost session, with all events after it.
        let is_of_another =
            last_event.is_some() && matches!(judged, JudgedResponse::Refused { .. }) && self.is_renewed(session);
        if is_lost {
            binding = self.renew(session, &binding).await.map_err(unreachable)?;
        }
        if is_lost || is_of_another {
            let without_position = RawMethod::Get { last_event: None };
            judged = self.send(&binding, without_position, &session.forwarded).await.map_err(unreachable)?;
        }
        match judged {
            JudgedResponse::Fine(response) if is_lost || is_of_another => Ok((response, ResumedStreamKind::Another)),
            JudgedResponse::Fine(response) => Ok((response, ResumedStreamKind::Same)),
            JudgedResponse::SessionLost => Err(StreamRefusal::Unreachable),
            JudgedResponse::Refused { fault, .. } => Err(StreamRefusal::Refused(fault)),
        }
    }

    /// As [`OwnSessions::send`], waiting for a briefly unavailable server.
    async fn send_patiently(
        &self,
        binding: &SessionBinding,
        method: &RawMethod,
        session: &OwnSession,
    ) -> Result<JudgedResponse, GatewayFault> {
        let end = Instant::now() + OUTAGE_MAX;
        loop {
            match self.send(binding, method.clone(), &session.forwarded).await {
                Err(GatewayFault { executed: Executed::No, .. }) if Instant::now() + OUTAGE_PAUSE < end => {
                    tokio::time::sleep(OUTAGE_PAUSE).await;
                }
                judged => return judged,
            }
        }
    }

    /// A session's own stream without the messages for its calls.
    fn filtered(self: &Arc<Self>, session: &OwnSession, source: RawBody, consumer: StreamConsumer) -> RawBody {
        let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, self.event_bytes_max);
        let share = self.limits.answers_to(&session.opened.owner);
        let (sessions, session) = (Arc::clone(self), session.clone());
        edited_events(source, gate, Some(share), move |event| {
            let is_shown = !event.is_message() || sessions.is_for_client(&session, &event.data, &consumer);
            is_shown.then(|| event.data.clone()).into_iter().collect()
        })
    }

    /// Routes a message of a session's own stream to its call; returns whether it is the client's instead.
    fn is_for_client(self: &Arc<Self>, session: &OwnSession, text: &MessageText, consumer: &StreamConsumer) -> bool {
        // Only servers of a version without tasks send batches.
        let Ok(message) = text.read(ScanLimits::UPSTREAM) else { return !relay::concerns_a_task(text) };
        let concern = relay::concern(&message);
        let may_be_clients = matches!(consumer, StreamConsumer::Client { .. }) && concern != MessageConcern::Task;
        if may_be_clients && concern == MessageConcern::Client {
            return true;
        }
        let calls = self.leases.listening(session.opened.nonce);
        let matching = match (calls.len(), consumer) {
            (1, StreamConsumer::Gateway) => CallMatch::OnlyOne,
            (1, StreamConsumer::Client { .. }) => CallMatch::OnlyTask,
            _ => CallMatch::Named,
        };
        let left = calls.iter().try_fold(Arc::unwrap_or_clone(message), |message, call| call.route(message, matching));
        match left {
            None => false,
            Some(_) if may_be_clients => true,
            Some(Message::Request(request)) => {
                self.reply(session, unassigned_answer(&request));
                false
            }
            Some(Message::Notification(_) | Message::Response(_)) => {
                self.dropped("stray_notification");
                false
            }
        }
    }
}
