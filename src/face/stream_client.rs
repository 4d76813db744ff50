//! Serves one client over one bidirectional stream of messages: stdio, or an event stream with POSTs.
//! Each message is handed to the [`Endpoint`] that serves HTTP, and its response is sent as messages; a message itself
//! shows its session (GW-02). All work of a client runs in one task, in order of arrival: a cancellation finds its
//! request. Read [`serve`], then `client_link` (messages to requests) and `answer_relay` (responses to messages).

mod answer_relay;
mod client_link;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::json;
use smallvec::{SmallVec, smallvec};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::unreadable;
use super::headers::{self, Face, face_of};
use super::http::{AcceptedTypes, Endpoint, Inbound};
use crate::answer_budget::as_one_request;
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Caller, Executed, GatewayFault, Reason};
use crate::waits::unless_cancelled;
use crate::wire::envelope::{self, Notification, is_batch};
use crate::wire::{Message, Payload, ProtocolVersion, RequestId, RpcError, ScanLimits, method};
use answer_relay::OpenRequests;
use client_link::ClientLink;

const REQUESTS_MAX: usize = 1_024;
/// The limit of small messages that wait for the client to read. Above it, the client's input is not read.
const SENDING_MAX: usize = 64;
/// The limit of messages that wait for the handshake, and of ordered notifications that wait.
const WAITING_MAX: usize = 64;
/// The limit of responses and unordered notifications in progress.
const NOTES_MAX: usize = 32;
/// The time for cancels of pending requests at the server, at the end.
const CANCEL_MAX: Duration = Duration::from_millis(500);
/// The first requests wait this long for the head of the session's own stream; some delay it to the first event.
const OPENING_MAX: Duration = Duration::from_millis(500);

/// Harmless if it is repeated or reordered.
const ROOTS_CHANGED: &str = "notifications/roots/list_changed";

#[derive(Clone)]
pub struct StreamClient {
    pub endpoint: Arc<dyn Endpoint>,
    pub upstream: Arc<str>,
    pub path: String,
    pub caller: Caller,
    /// The client's address, if it is remote.
    pub address: Option<IpAddr>,
    /// The limits on the bytes of its responses.
    pub limits: SharedLimits,
    /// A call with a larger response gets an error.
    pub message_bytes_max: usize,
}

debug_members!(StreamClient, |client| path: client.path, principal: client.caller.principal);

#[derive(Clone, Debug, Default)]
pub struct ClientMessage {
    /// Bounded by its reader.
    pub text: Bytes,
    /// Its headers, to be forwarded to the upstream. HTTP's session and version headers are ignored.
    pub headers: HeaderMap,
    /// The caller that sent it, if it had a separate credential of the stream's principal.
    pub caller: Option<Caller>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// The client has left: its requests are cancelled.
    ClientLeft,
    /// The client sends no more requests, and still reads the answers.
    ClientReads,
}

/// Serves one client until `received` ends, or the receiver of `outgoing` is dropped. Each item of `outgoing` is one
/// JSON text, maybe with line breaks: a message, or an array if a client of 2025-03-26 sent one. While a client does
/// not read and the queues are full, its input is not read. Drop an item once it is written: until then its bytes count
/// as the principal's (see `answer_budget`). At the end, plain calls are cancelled and the session is ended, within two
/// seconds; tasks continue. Dropping the future leaves a session open.
pub async fn serve(client: StreamClient, received: mpsc::Receiver<ClientMessage>, outgoing: mpsc::Sender<Bytes>) {
    serve_to_input_end(client, received, outgoing, CancellationToken::new(), InputEnd::ClientLeft).await;
}

/// As [`serve`]; once `streams_end` is cancelled, only until all requests are answered. With [`InputEnd::ClientReads`],
/// requests are still answered after `received` has ended.
pub async fn serve_to_input_end(
    client: StreamClient,
    mut received: mpsc::Receiver<ClientMessage>,
    outgoing: mpsc::Sender<Bytes>,
    streams_end: CancellationToken,
    input_end: InputEnd,
) {
    let link = ClientLink::new(client, outgoing);
    let mut client_loop = StreamClientLoop {
        link: Arc::clone(&link),
        work: FuturesUnordered::new(),
        unanswered: Vec::new(),
        serials: 0,
        is_in_handshake: false,
        held: VecDeque::new(),
        notes: VecDeque::new(),
        is_noting: false,
        noting: 0,
    };
    loop {
        tokio::select! {
            biased;
            Some(done) = client_loop.work.next(), if !client_loop.work.is_empty() => client_loop.done(done),
            () = link.gone() => break,
            message = received.recv(), if client_loop.listens() => match message {
                Some(message) => client_loop.receive(message),
                None => {
                    // A gateway that shuts down has ended the calls by now.
                    if input_end == InputEnd::ClientReads && !streams_end.is_cancelled() {
                        client_loop.answer_what_was_read().await;
                    }
                    break;
                }
            },
            // Polled last, so that received messages are handled first.
            () = streams_end.cancelled(), if client_loop.is_answered() => break,
        }
    }
    client_loop.end().await;
}

struct ParsedMessage {
    message: Option<Message>,
    received: ClientMessage,
    arrived: Instant,
}

#[derive(Clone)]
struct UnansweredRequest {
    serial: u64,
    open: Arc<OpenRequests>,
    /// Whether it has no response as long as its client listens.
    is_subscription: bool,
    face: Face,
    withdrawn: CancellationToken,
}

enum CompletedWork {
    Handshake {
        serial: Option<u64>,
        listens: bool,
    },
    Answered(u64),
    /// A notification; `in_order` if others wait for it.
    Noted {
        in_order: bool,
    },
    Sent,
}

struct StreamClientLoop {
    link: Arc<ClientLink>,
    work: FuturesUnordered<BoxFuture<'static, CompletedWork>>,
    unanswered: Vec<UnansweredRequest>,
    serials: u64,
    /// Whether a handshake message is in progress. Other messages of the session wait for it.
    is_in_handshake: bool,
    held: VecDeque<ParsedMessage>,
    notes: VecDeque<ParsedMessage>,
    is_noting: bool,
    noting: usize,
}

impl StreamClientLoop {
    /// Responses and cancellations are read even while all requests are in progress.
    fn listens(&self) -> bool {
        self.work.len() < self.unanswered.len() + self.noting + SENDING_MAX
            && self.held.len() < WAITING_MAX
            && self.noting < NOTES_MAX
    }

    fn done(&mut self, done: CompletedWork) {
        match done {
            CompletedWork::Handshake { serial, listens } => {
                self.is_in_handshake = false;
                self.unanswered.retain(|request| Some(request.serial) != serial);
                if listens {
                    self.open_stream();
                }
            }
            CompletedWork::Answered(serial) => self.unanswered.retain(|request| request.serial != serial),
            CompletedWork::Noted { in_order: true } => {
                self.is_noting = false;
                self.note_next();
            }
            CompletedWork::Noted { in_order: false } => self.noting -= 1,
            CompletedWork::Sent => (),
        }
        while !self.is_in_handshake
            && let Some(parsed) = self.held.pop_front()
        {
            self.take(parsed);
        }
    }

    /// Opens the session's own stream. Requests wait for it briefly: without it, some servers drop unrelated messages.
    fn open_stream(&mut self) {
        self.is_in_handshake = true;
        let opened = CancellationToken::new();
        let waiting = timeout(OPENING_MAX, opened.clone().cancelled_owned());
        self.work.push(waiting.map(|_| CompletedWork::Handshake { serial: None, listens: false }).boxed());
        let listening = Arc::clone(&self.link).listen(opened.drop_guard());
        self.work.push(listening.map(|_| CompletedWork::Sent).boxed());
    }

    fn receive(&mut self, received: ClientMessage) {
        let arrived = Instant::now();
        if is_batch(&received.text) {
            return self.receive_in_session(ParsedMessage { message: None, received, arrived });
        }
        let message = match envelope::read(&received.text, ScanLimits::CLIENT) {
            Ok(message) => message,
            Err(error) => {
                let (id, complaint) = unreadable(error);
                return self.refuse(id.or_else(|| envelope::asked_in(&received.text)), &complaint);
            }
        };
        let face = match &message {
            Message::Request(request) => face_of(request.params.object(), &HeaderMap::new()),
            Message::Notification(notification) => face_of(notification.params.object(), &HeaderMap::new()),
            Message::Response(_) => Face::Session,
        };
        match (face, &message) {
            (_, Message::Notification(notification)) if self.withdraw(notification) => (),
            (Face::Stateless, Message::Request(request)) => {
                let id = request.id.clone();
                let parsed = ParsedMessage { message: Some(message), received, arrived };
                self.serve_request(id, Face::Stateless, self.link.outside(parsed));
            }
            // Other messages of a stateless client have no effect.
            (Face::Stateless, Message::Notification(_) | Message::Response(_)) => (),
            (Face::Session, _) => self.receive_in_session(ParsedMessage { message: Some(message), received, arrived }),
        }
    }

    /// Cancels a stateless request. Returns false for a request in a session: the caller forwards the cancellation.
    fn withdraw(&self, notification: &Notification) -> bool {
        let Some(id) = notification.cancelled() else { return false };
        let Some(request) = self.unanswered.iter().find(|request| request.open.ids.lock().contains(&id)) else {
            return false;
        };
        if request.open.is_array {
            // The other requests of the array continue.
            request.open.take_one(&id);
            return false;
        }
        request.withdrawn.cancel();
        request.face == Face::Stateless
    }

    fn receive_in_session(&mut self, parsed: ParsedMessage) {
        if self.is_in_handshake { self.held.push_back(parsed) } else { self.take(parsed) }
    }

    /// Handles a message of a session, or the message that opens it.
    fn take(&mut self, parsed: ParsedMessage) {
        match &parsed.message {
            Some(Message::Request(request)) if request.method == method::INITIALIZE => {
                let id = request.id.clone();
                if self.link.is_open() {
                    let what = "the session is open already; a stream has only one";
                    return self.refuse(Some(id), &RequestError::not_a_request(what));
                }
                self.shake_hands(id, parsed);
            }
            // Allowed before the handshake, without a session to answer it.
            Some(Message::Request(request)) if request.method == method::PING && !self.link.is_open() => {
                self.send(envelope::result(&request.id, &Payload::empty_object()));
            }
            Some(Message::Request(request)) if !self.link.is_open() => {
                let what = "the session is not open; send initialize first, or name the protocol version in _meta";
                self.refuse(Some(request.id.clone()), &RequestError::not_a_request(what));
            }
            Some(Message::Request(request)) => {
                let id = request.id.clone();
                self.serve_request(id, Face::Session, self.link.inside(parsed));
            }
            None if !self.link.is_open() => {
                let what = "the session is not open; send initialize first, not in an array";
                self.refuse(None, &RequestError::not_a_request(what));
            }
            None => self.serve_batch(parsed),
            Some(Message::Notification(_) | Message::Response(_)) if !self.link.is_open() => (),
            Some(Message::Notification(notification)) if notification.method == method::INITIALIZED => {
                self.is_in_handshake = true;
                let link = Arc::clone(&self.link);
                let inbound = link.inside(parsed);
                let notifying = async move { link.serve(inbound).await };
                self.work
                    .push(caught(notifying).map(|_| CompletedWork::Handshake { serial: None, listens: true }).boxed());
            }
            Some(Message::Notification(_) | Message::Response(_)) => self.note(parsed),
        }
    }

    fn shake_hands(&mut self, id: RequestId, parsed: ParsedMessage) {
        let Some(request) = self.enter(&id, false, Face::Session) else { return };
        self.is_in_handshake = true;
        let (link, serial) = (Arc::clone(&self.link), request.serial);
        let shaking = async move {
            let with = parsed.received.headers.clone();
            let response = link.serve(link.outside(parsed)).await;
            if let Some(session) = response.headers().get(headers::SESSION_ID) {
                link.open(session.clone(), with);
            }
            let relayed = link.relay(response, Some(&request.open)).await?;
            link.see_through(relayed, &request).await
        };
        let done = CompletedWork::Handshake { serial: Some(serial), listens: false };
        self.work.push(caught(shaking).map(|_| done).boxed());
    }

    fn serve_request(&mut self, id: RequestId, face: Face, inbound: Inbound) {
        let is_subscription =
            matches!(&inbound.message, Some(Message::Request(request)) if request.method == method::LISTEN);
        let Some(request) = self.enter(&id, is_subscription, face) else { return };
        let link = Arc::clone(&self.link);
        let asking = async move {
            let asking = async {
                // Boxed: each wrapper around the work would move all of it.
                if caught(as_one_request(Box::pin(link.serve_request(inbound, &id, &request)))).await.is_none() {
                    let fault = GatewayFault::new(Reason::Internal, Executed::Unknown);
                    // Fails if the client has disconnected: then no reader is left.
                    let _ = link.send_fault(Some(&request.open), &fault).await;
                }
            };
            match face {
                Face::Stateless => _ = unless_cancelled(&request.withdrawn, Box::pin(asking)).await,
                Face::Session => asking.await,
            }
            CompletedWork::Answered(request.serial)
        };
        self.work.push(asking.boxed());
    }

    /// Serves an array: each of its requests gets a response or an error, unless it is cancelled (U94).
    fn serve_batch(&mut self, parsed: ParsedMessage) {
        let messages = envelope::read_batch(&parsed.received.text, ScanLimits::CLIENT, envelope::BATCH_READ_MAX)
            .unwrap_or_default();
        let mut ids = SmallVec::new();
        for message in messages.into_iter().flatten() {
            match message {
                Message::Request(request) => ids.push(request.id),
                Message::Notification(notification) => _ = self.withdraw(&notification),
                Message::Response(_) => (),
            }
        }
        match self.is_full() {
            // Its cancels make room.
            true if ids.is_empty() => return self.note(parsed),
            true => return ids.into_iter().for_each(|id| self.refuse_with(Some(id), full())),
            false => (),
        }
        let request = self.entered(OpenRequests { ids: Mutex::new(ids), is_array: true }, false, Face::Session);
        let link = Arc::clone(&self.link);
        let asking = async move {
            let open = Some(&*request.open);
            // One event for each response: no client of a stream reads the array as a whole.
            let inbound = Inbound { accepted: AcceptedTypes::EventStream, ..link.inside(parsed) };
            let relaying = async { link.relay(link.serve(inbound).await, open).await };
            let is_done = caught(as_one_request(Box::pin(relaying))).await.is_some();
            let reason = if is_done { Reason::UpstreamClosed } else { Reason::Internal };
            let _ = link.send_fault(open, &GatewayFault::new(reason, Executed::Unknown)).await;
            CompletedWork::Answered(request.serial)
        };
        self.work.push(asking.boxed());
    }

    /// An array counts as its requests, and as one at least.
    fn is_full(&self) -> bool {
        self.unanswered.iter().map(|request| request.open.ids.lock().len().max(1)).sum::<usize>() >= REQUESTS_MAX
    }

    fn enter(&mut self, id: &RequestId, is_subscription: bool, face: Face) -> Option<UnansweredRequest> {
        if self.is_full() {
            self.refuse_with(Some(id.clone()), full());
            return None;
        }
        if self.unanswered.iter().any(|request| request.open.ids.lock().contains(id)) {
            let what = "a request with this id has no answer yet";
            self.refuse(Some(id.clone()), &RequestError::not_a_request(what));
            return None;
        }
        let open = OpenRequests { ids: Mutex::new(smallvec![id.clone()]), is_array: false };
        Some(self.entered(open, is_subscription, face))
    }

    fn entered(&mut self, open: OpenRequests, is_subscription: bool, face: Face) -> UnansweredRequest {
        self.serials += 1;
        let (serial, withdrawn) = (self.serials, CancellationToken::new());
        let request = UnansweredRequest { serial, open: Arc::new(open), is_subscription, face, withdrawn };
        self.unanswered.push(request.clone());
        request
    }

    fn refuse(&self, id: Option<RequestId>, complaint: &RequestError) {
        self.refuse_with(id, complaint.to_error(ProtocolVersion::NEWEST_SESSION));
    }

    fn refuse_with(&self, id: Option<RequestId>, error: RpcError) {
        self.send(envelope::error(id.as_ref(), &error));
    }

    fn send(&self, message: Bytes) {
        let link = Arc::clone(&self.link);
        self.work.push(async move { link.send(message).await }.map(|_| CompletedWork::Sent).boxed());
    }

    /// A slow server delays no request or response: only ordered notifications wait; above a limit they are dropped.
    fn note(&mut self, parsed: ParsedMessage) {
        let is_free = match &parsed.message {
            Some(Message::Notification(notification)) => {
                matches!(notification.method.as_str(), method::CANCELLED | ROOTS_CHANGED)
            }
            Some(Message::Request(_) | Message::Response(_)) | None => true,
        };
        if is_free {
            self.noting += 1;
            let noting = self.noted(parsed);
            return self.work.push(noting.map(|()| CompletedWork::Noted { in_order: false }).boxed());
        }
        if self.notes.len() >= WAITING_MAX {
            let upstream = self.link.upstream();
            tracing::debug!(%upstream, "a notification was dropped: the server accepts them too slowly");
            metric::count_dropped(upstream, "note_flood");
            return;
        }
        self.notes.push_back(parsed);
        self.note_next();
    }

    fn note_next(&mut self) {
        if self.is_noting {
            return;
        }
        let Some(parsed) = self.notes.pop_front() else { return };
        self.is_noting = true;
        let noting = self.noted(parsed);
        self.work.push(noting.map(|()| CompletedWork::Noted { in_order: true }).boxed());
    }

    /// Only logs a refusal: these messages get no response.
    fn noted(&self, parsed: ParsedMessage) -> impl Future<Output = ()> + Send + use<> {
        let link = Arc::clone(&self.link);
        let noting = async move {
            let response = link.serve(link.inside(parsed)).await;
            if !response.status().is_success() {
                tracing::debug!(status = response.status().as_u16(), "a notification or an answer was refused");
            }
        };
        caught(noting).map(|_| ())
    }

    /// Returns once all requests except subscriptions are answered, or the client has disconnected.
    async fn answer_what_was_read(&mut self) {
        let link = Arc::clone(&self.link);
        while !self.is_answered_but_for_subscriptions() && !self.work.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.work.next() => self.done(done),
                () = link.gone() => return,
            }
        }
    }

    fn is_answered_but_for_subscriptions(&self) -> bool {
        let is_over = |request: &UnansweredRequest| request.is_subscription || request.withdrawn.is_cancelled();
        self.unanswered.iter().all(is_over) && self.is_idle()
    }

    fn is_answered(&self) -> bool {
        self.unanswered.iter().all(|request| request.withdrawn.is_cancelled()) && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.notes.is_empty() && !self.is_noting && self.noting == 0
    }

    /// Disconnects as an orderly client would: cancels calls, and ends the session.
    async fn end(mut self) {
        let plain =
            self.unanswered.iter().filter(|request| request.face == Face::Session && !request.withdrawn.is_cancelled());
        let cancels = plain.flat_map(|request| request.open.ids.lock().clone()).filter_map(|id| {
            let params = Payload::of(&json!({ "requestId": id, "reason": "the client has gone" }));
            self.link.by_itself(envelope::notification(method::CANCELLED, Some(&params)))
        });
        let cancelling = join_all(cancels.map(|cancel| caught(self.link.serve(cancel))));
        let _ = timeout(CANCEL_MAX, cancelling).await;
        // This cancels the requests of stateless clients.
        self.work.clear();
        let _ = caught(self.link.end()).await;
    }
}

fn full() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::QueueFull, Executed::No))
}

/// `None` in place of a panic: a bug costs one response, not the stream (F64).
pub(super) async fn caught<T>(doing: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(doing).catch_unwind().await.ok();
    if done.is_none() {
        metrics::counter!(metric::HTTP_PANICS).increment(1);
    }
    done
}
