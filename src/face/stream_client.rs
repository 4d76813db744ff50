//! Serves one client whose messages travel both ways over one ordered stream: standard input and output, or an event
//! stream with its POSTs.
//!
//! Each message is handed, in this process, to the same [`Endpoint`] that serves HTTP, and what that answers goes out
//! as messages. Whether a message belongs to a session or stands alone is in the message (GW-02); the stream
//! has no say in it, and both kinds may come over one. Read [`serve`] first, then `line` for what a message becomes,
//! `answer` for what becomes of an answer, `exchange` for the streams that are opened on the client's behalf.
//!
//! Everything for one client is done in one task, in the order in which it came: a message is looked at only when
//! everything before it has been begun. So a cancellation finds its request.

mod answer_relay;
mod client_link;
mod input_end;
mod notifications;
mod outgoing_budget;
mod stream_requests;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use serde_json::json;
use smallvec::{SmallVec, smallvec};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::unreadable;
use super::classify::{Face, face_of};
use super::headers;
use super::http::Endpoint;
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::wire::envelope::{self, Notification, is_batch};
use crate::wire::{Message, Payload, ProtocolVersion, RequestId, RpcError, ScanLimits, method};
use client_link::{ClientDisconnected, ClientLink};
pub use input_end::InputEnd;
use input_end::RequestKind;
pub use outgoing_budget::{OutgoingMessage, OutgoingPermit};

/// Requests at one time; further ones are refused.
const REQUESTS_MAX: usize = 1_024;
/// Refusals and other small things that wait for the client to read. Nothing more is taken from it then.
const SAYINGS_MAX: usize = 64;
/// Messages that wait for the handshake, and notifications that wait for those before them.
const WAITING_MAX: usize = 64;
/// Answers, and notifications whose order means nothing, that are on their way at a time.
const NOTES_MAX: usize = 32;
/// How long the server is told, at the end, that nobody waits for its answers.
const CANCEL_MAX: Duration = Duration::from_millis(500);
/// How long the first requests wait for the head of the session's own stream; some servers send none before its first event.
const OPENING_MAX: Duration = Duration::from_millis(500);

/// Who is at the other end, and who serves it.
#[derive(Clone)]
pub struct StreamClient {
    pub endpoint: Arc<dyn Endpoint>,
    /// The name of the server that it serves, for metrics.
    pub upstream: Arc<str>,
    /// The path that the endpoint has for HTTP.
    pub path: String,
    /// Whose the calls and tasks are.
    pub principal: Principal,
    /// Where the client is, if it came over a network.
    pub address: Option<IpAddr>,
    /// Largest message that is said to the client; a call whose answer is larger gets an error.
    pub message_bytes_max: usize,
}

impl fmt::Debug for StreamClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("path", &self.path).field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// One message of a client, as it came.
#[derive(Clone, Debug, Default)]
pub struct ClientMessage {
    /// Bounded by whoever read it.
    pub text: Bytes,
    /// What came with it, for what is forwarded to the upstream. Those that HTTP has for sessions and versions are not
    /// looked at.
    pub headers: HeaderMap,
}

/// Serves one client until it is gone: until `spoken` ends, or nothing receives `outgoing` any more.
///
/// Each item of `outgoing` is one whole JSON text: a message, or an array of them for a client of 2025-03-26 that sent
/// one. Line breaks between its parts may be in it. A client that does not read is not listened to any more once the
/// queue and what is about to be said are full; and of large answers it then has 8 MiB and one more at most, which the
/// server behind is held up with. An item is dropped once it is written: until then it has its room.
///
/// At the end plain calls are cancelled and the session is ended, which takes two seconds at most; tasks go on.
/// Dropping the future leaves a session open.
pub async fn serve(
    client: StreamClient,
    spoken: mpsc::Receiver<ClientMessage>,
    outgoing: mpsc::Sender<OutgoingMessage>,
) {
    serve_until(client, spoken, outgoing, CancellationToken::new()).await;
}

/// The same; and once `leaving` is cancelled, until no request waits for its answer.
pub async fn serve_until(
    client: StreamClient,
    spoken: mpsc::Receiver<ClientMessage>,
    outgoing: mpsc::Sender<OutgoingMessage>,
    leaving: CancellationToken,
) {
    serve_to_input_end(client, spoken, outgoing, leaving, InputEnd::ClientLeft).await;
}

/// The same, where the end of `spoken` may leave a client that still reads: its requests are answered then.
pub async fn serve_to_input_end(
    client: StreamClient,
    mut spoken: mpsc::Receiver<ClientMessage>,
    outgoing: mpsc::Sender<OutgoingMessage>,
    leaving: CancellationToken,
    input_end: InputEnd,
) {
    let line = ClientLink::new(client, outgoing);
    let mut talk = StreamClientLoop::new(Arc::clone(&line));
    loop {
        tokio::select! {
            biased;
            Some(done) = talk.work.next(), if !talk.work.is_empty() => talk.done(done),
            () = line.gone() => break,
            message = spoken.recv(), if talk.listens() => match message {
                Some(message) => talk.hear(message),
                None => {
                    // A gateway that is leaving has ended the calls by now.
                    if input_end == InputEnd::ClientReads && !leaving.is_cancelled() {
                        talk.answer_what_was_read().await;
                    }
                    break;
                }
            },
            // Last: what was taken is heard.
            () = leaving.cancelled(), if talk.is_answered() => break,
        }
    }
    talk.end().await;
}

/// A message that was looked at.
struct ParsedMessage {
    /// `None` for an array.
    message: Option<Message>,
    spoken: ClientMessage,
    arrived: Instant,
}

/// A request that has no answer yet.
struct UnansweredRequest {
    serial: u64,
    /// One, or those of an array.
    ids: SmallVec<[RequestId; 1]>,
    kind: RequestKind,
    face: Face,
    /// The client wants no answer any more.
    withdrawn: CancellationToken,
}

/// Something that was to be done, and is.
enum CompletedWork {
    /// Of the handshake: what waited for it can go on.
    Handshake {
        serial: Option<u64>,
        listens: bool,
    },
    Answered(u64),
    /// Of a notification, or of one that others wait for.
    Noted {
        in_order: bool,
    },
    Said,
}

struct StreamClientLoop {
    line: Arc<ClientLink>,
    work: FuturesUnordered<BoxFuture<'static, CompletedWork>>,
    asked: Vec<UnansweredRequest>,
    serials: u64,
    /// Whether a message of the handshake is under way. The others of the session wait for it.
    shakes_hands: bool,
    held: VecDeque<ParsedMessage>,
    /// Notifications whose order may mean something go one after the other.
    notes: VecDeque<ParsedMessage>,
    is_noting: bool,
    /// All others that are on their way.
    noting: usize,
}

impl StreamClientLoop {
    fn new(line: Arc<ClientLink>) -> Self {
        Self {
            line,
            work: FuturesUnordered::new(),
            asked: Vec::new(),
            serials: 0,
            shakes_hands: false,
            held: VecDeque::new(),
            notes: VecDeque::new(),
            is_noting: false,
            noting: 0,
        }
    }

    /// Whether there is room for another message. Answers and cancellations are taken while all requests are under way.
    fn listens(&self) -> bool {
        self.work.len() < self.asked.len() + self.noting + SAYINGS_MAX
            && self.held.len() < WAITING_MAX
            && self.noting < NOTES_MAX
    }

    fn done(&mut self, done: CompletedWork) {
        match done {
            CompletedWork::Handshake { serial, listens } => {
                self.shakes_hands = false;
                self.asked.retain(|asked| Some(asked.serial) != serial);
                if listens {
                    self.open_stream();
                }
            }
            CompletedWork::Answered(serial) => self.asked.retain(|asked| asked.serial != serial),
            CompletedWork::Noted { in_order: true } => {
                self.is_noting = false;
                self.note_next();
            }
            CompletedWork::Noted { in_order: false } => self.noting -= 1,
            CompletedWork::Said => (),
        }
        while !self.shakes_hands
            && let Some(heard) = self.held.pop_front()
        {
            self.take(heard);
        }
    }

    /// Opens the session's own stream. What belongs to no request is lost at some servers while there is none, so
    /// requests wait for it a little.
    fn open_stream(&mut self) {
        self.shakes_hands = true;
        let opened = CancellationToken::new();
        let waiting = timeout(OPENING_MAX, opened.clone().cancelled_owned());
        self.work.push(waiting.map(|_| CompletedWork::Handshake { serial: None, listens: false }).boxed());
        let listening = Arc::clone(&self.line).listen(opened.drop_guard());
        self.work.push(listening.map(|_| CompletedWork::Said).boxed());
    }

    fn hear(&mut self, spoken: ClientMessage) {
        let arrived = Instant::now();
        if is_batch(&spoken.text) {
            return self.hear_in_session(ParsedMessage { message: None, spoken, arrived });
        }
        let message = match envelope::read(&spoken.text, ScanLimits::CLIENT) {
            Ok(message) => message,
            Err(error) => {
                let (id, complaint) = unreadable(error);
                return self.refuse(id.or_else(|| envelope::asked_in(&spoken.text)), &complaint);
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
                let heard = ParsedMessage { message: Some(message), spoken, arrived };
                self.ask(id, Face::Stateless, self.line.outside(heard));
            }
            // Nothing else that such a client notifies has an effect.
            (Face::Stateless, Message::Notification(_) | Message::Response(_)) => (),
            (Face::Session, _) => self.hear_in_session(ParsedMessage { message: Some(message), spoken, arrived }),
        }
    }

    /// Drops a request of a stateless client that takes it back, as a disconnect would over HTTP. A session's is told
    /// of it, which is the caller's to do: then this is false.
    fn withdraw(&mut self, notification: &Notification) -> bool {
        let Some(id) = cancelled(notification) else { return false };
        let says = |own: &RequestId| own.says(&id);
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.ids.iter().any(says)) else { return false };
        if asked.kind == RequestKind::Array {
            // The others of the array go on.
            asked.ids.retain(|own| !own.says(&id));
            return false;
        }
        asked.withdrawn.cancel();
        asked.face == Face::Stateless
    }

    fn hear_in_session(&mut self, heard: ParsedMessage) {
        if self.shakes_hands { self.held.push_back(heard) } else { self.take(heard) }
    }

    /// Takes a message of a session, or the one that opens it.
    fn take(&mut self, heard: ParsedMessage) {
        match &heard.message {
            Some(Message::Request(request)) if request.method == method::INITIALIZE => {
                let id = request.id.clone();
                if self.line.is_open() {
                    let what = "the session is open already, and there is one for each stream";
                    return self.refuse(Some(id), &RequestError::NotARequest(Cow::Borrowed(what)));
                }
                self.shake_hands(id, heard);
            }
            // Allowed before the handshake, and then nobody else's to answer.
            Some(Message::Request(request)) if request.method == method::PING && !self.line.is_open() => {
                self.say(envelope::result(&request.id, &Payload::empty_object()));
            }
            Some(Message::Request(request)) if !self.line.is_open() => {
                let what = "a session begins with initialize, and a request without one names its version in _meta";
                self.refuse(Some(request.id.clone()), &RequestError::NotARequest(Cow::Borrowed(what)));
            }
            Some(Message::Request(request)) => {
                let id = request.id.clone();
                self.ask(id, Face::Session, self.line.inside(heard));
            }
            None if !self.line.is_open() => {
                let what = "a session begins with initialize, which stands alone";
                self.refuse(None, &RequestError::NotARequest(Cow::Borrowed(what)));
            }
            None => self.ask_all(heard),
            // Of no session, so about nothing.
            Some(Message::Notification(_) | Message::Response(_)) if !self.line.is_open() => (),
            Some(Message::Notification(notification)) if notification.method == method::INITIALIZED => {
                self.shakes_hands = true;
                let line = Arc::clone(&self.line);
                let inbound = line.inside(heard);
                let telling = async move {
                    line.serve(inbound).await;
                };
                self.work
                    .push(caught(telling).map(|_| CompletedWork::Handshake { serial: None, listens: true }).boxed());
            }
            Some(Message::Notification(_) | Message::Response(_)) => self.note(heard),
        }
    }

    fn shake_hands(&mut self, id: RequestId, heard: ParsedMessage) {
        let Some((serial, withdrawn)) = self.enter(&id, RequestKind::Single, Face::Session) else { return };
        self.shakes_hands = true;
        let line = Arc::clone(&self.line);
        let shaking = async move {
            let with = heard.spoken.headers.clone();
            let response = line.serve(line.outside(heard)).await;
            if let Some(session) = response.headers().get(headers::SESSION_ID) {
                line.open(session.clone(), with);
            }
            let relayed = line.relay(response, Some(&id)).await?;
            line.see_through(relayed, &id, &withdrawn).await
        };
        let done = CompletedWork::Handshake { serial: Some(serial), listens: false };
        self.work.push(caught(shaking).map(|_| done).boxed());
    }

    /// Hands over a request.
    fn ask(&mut self, id: RequestId, face: Face, inbound: super::http::Inbound) {
        let Some((serial, withdrawn)) = self.enter(&id, RequestKind::of(&inbound), face) else { return };
        let line = Arc::clone(&self.line);
        let asking = async move {
            let asking = async {
                match caught(line.ask(inbound, &id, &withdrawn)).await {
                    Some(_) => (),
                    None => {
                        let fault = GatewayFault::new(Reason::Internal, Executed::Unknown);
                        // Fails if the client has gone, and then there is nobody to tell.
                        let _ = line.say_fault(Some(&id), &fault).await;
                    }
                }
            };
            match face {
                Face::Stateless => {
                    withdrawn.run_until_cancelled(Box::pin(asking)).await;
                }
                Face::Session => asking.await,
            }
            CompletedWork::Answered(serial)
        };
        self.work.push(asking.boxed());
    }

    /// Hands over an array of a session.
    fn ask_all(&mut self, heard: ParsedMessage) {
        if self.is_full() {
            return self.refuse_with(None, full());
        }
        let messages =
            envelope::read_batch(&heard.spoken.text, ScanLimits::CLIENT, envelope::BATCH_READ_MAX).unwrap_or_default();
        let ids = messages.into_iter().filter_map(|message| match message {
            Ok(Message::Request(request)) => Some(request.id),
            Ok(Message::Notification(_) | Message::Response(_)) | Err(_) => None,
        });
        let (serial, _) = self.entered(ids.collect(), RequestKind::Array, Face::Session);
        let line = Arc::clone(&self.line);
        let asking = async move {
            let response = line.serve(line.inside(heard)).await;
            line.relay(response, None).await
        };
        self.work.push(caught(asking).map(move |_| CompletedWork::Answered(serial)).boxed());
    }

    /// Whether no further request is taken. An array counts as its requests, and as one at least.
    fn is_full(&self) -> bool {
        self.asked.iter().map(|asked| asked.ids.len().max(1)).sum::<usize>() >= REQUESTS_MAX
    }

    /// Notes a request that is to be answered; `None` if it was refused instead.
    fn enter(&mut self, id: &RequestId, kind: RequestKind, face: Face) -> Option<(u64, CancellationToken)> {
        if self.is_full() {
            self.refuse_with(Some(id.clone()), full());
            return None;
        }
        if self.asked.iter().any(|asked| asked.ids.contains(id)) {
            let what = "a request with this id has no answer yet";
            self.refuse(Some(id.clone()), &RequestError::NotARequest(Cow::Borrowed(what)));
            return None;
        }
        Some(self.entered(smallvec![id.clone()], kind, face))
    }

    fn entered(&mut self, ids: SmallVec<[RequestId; 1]>, kind: RequestKind, face: Face) -> (u64, CancellationToken) {
        self.serials += 1;
        let (serial, withdrawn) = (self.serials, CancellationToken::new());
        self.asked.push(UnansweredRequest { serial, ids, kind, face, withdrawn: withdrawn.clone() });
        (serial, withdrawn)
    }

    fn refuse(&self, id: Option<RequestId>, complaint: &RequestError) {
        self.refuse_with(id, complaint.to_error(ProtocolVersion::NEWEST_SESSION));
    }

    fn refuse_with(&self, id: Option<RequestId>, error: RpcError) {
        self.say(envelope::error(id.as_ref(), &error));
    }

    fn say(&self, message: Bytes) {
        let line = Arc::clone(&self.line);
        self.work.push(
            async move { line.say(message).await }.map(|_: Result<(), ClientDisconnected>| CompletedWork::Said).boxed(),
        );
    }

    /// Leaves as an orderly client would: calls are taken back, the session is ended.
    async fn end(mut self) {
        let plain = self.asked.iter().filter(|asked| asked.face == Face::Session && !asked.withdrawn.is_cancelled());
        let cancels = plain.flat_map(|asked| &asked.ids).filter_map(|id| {
            let params = Payload::of(&json!({ "requestId": id, "reason": "the client has gone" }));
            self.line.by_itself(envelope::notification(method::CANCELLED, Some(&params)))
        });
        let cancelling = join_all(cancels.map(|cancel| caught(self.line.serve(cancel))));
        let _ = timeout(CANCEL_MAX, cancelling).await;
        // Requests of stateless clients are cancelled by this.
        self.work.clear();
        let _ = caught(self.line.end()).await;
    }
}

fn full() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::QueueFull, Executed::No))
}

/// The request that a notification takes back.
fn cancelled(notification: &Notification) -> Option<RequestId> {
    let params = notification.params.object().filter(|_| notification.method == method::CANCELLED)?;
    params.get("requestId").and_then(|id| RequestId::from_payload(&id))
}

/// `None` in place of a panic: a bug costs one answer, not the client's stream (F64).
async fn caught<T>(doing: impl Future<Output = T>) -> Option<T> {
    let done = AssertUnwindSafe(doing).catch_unwind().await.ok();
    if done.is_none() {
        metrics::counter!(metric::HTTP_PANICS).increment(1);
    }
    done
}
