//! One connection of a stand from begin to end: what is sent over it, and where what comes over it goes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::table::{self, Begun, NotBegun, NotTaken, Pieces, Table};
use super::{Opened, Shared, WireReceiver, WireSender, events, refusal};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::Forwarded;
use crate::upstream::carrier::{AnswerBody, BrokenOff};
use crate::upstream::http::client::HandedOver;
use crate::upstream::http::post::{Credentials, Outgoing};
use crate::wire::envelope::EnvelopeError;
use crate::wire::fault::INTERNAL_ERROR;
use crate::wire::framing::read_event;
use crate::wire::{Message, Payload, Request, RequestId, RpcError, ScanLimits, envelope, method};

/// Most messages in one array.
const BATCH_MAX: usize = 1_000;
/// Largest message that is no answer: so many of them may wait that their size must be small.
const ASIDE_BYTES_MAX: usize = 1024 * 1024;
/// Refusals of the stand's own that may be on their way.
const REPLIES_MAX: usize = 32;
/// A session that nobody used for so long is ended: its client has left without a word.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// A session of the server, and the connection that it is.
pub(super) struct WireSession {
    shared: Arc<Shared>,
    id: HeaderValue,
    sender: OnceLock<Arc<dyn WireSender>>,
    /// Headers of the client that opened the session, for what the stand itself says.
    forwarded: OnceLock<Forwarded>,
    table: Mutex<Table>,
    replies: Arc<Semaphore>,
    /// Nothing more is sent or heard.
    over: CancellationToken,
    /// The server is gone.
    ended: CancellationToken,
    /// Why, unless somebody ended it here.
    why: OnceLock<GatewayFault>,
}

impl WireSession {
    pub(super) fn new(shared: Arc<Shared>, id: HeaderValue) -> Arc<Self> {
        let over = shared.life.stop.child_token();
        Arc::new(Self {
            shared,
            id,
            sender: OnceLock::new(),
            forwarded: OnceLock::new(),
            table: Mutex::new(Table::new()),
            replies: Arc::new(Semaphore::new(REPLIES_MAX)),
            over,
            ended: CancellationToken::new(),
            why: OnceLock::new(),
        })
    }

    /// Ends the session when it is dropped, unless it is disarmed.
    pub(super) fn ends_unless_kept(self: &Arc<Self>) -> Unopened {
        Unopened(Some(Arc::clone(self)))
    }

    /// Begins to listen to the server.
    pub(super) fn start(self: &Arc<Self>, opened: Opened, forwarded: Forwarded) {
        // Set once: this is the only place.
        let _ = self.forwarded.set(forwarded);
        let _ = self.sender.set(opened.sender);
        self.shared.life.tracker.spawn(Arc::clone(self).run(opened.receiver));
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Ends the session; the server is stopped in the background.
    pub(super) fn end(&self) {
        self.over.cancel();
    }

    /// Waits until the server is gone.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// How long the session has been of no use to anybody.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        self.table.lock().idle_for()
    }

    /// Opens the stream for what belongs to no request.
    pub(super) fn listen(&self) -> Pieces {
        self.table.lock().listen()
    }

    /// Sends `initialize` and waits for its answer; whether that is a result.
    ///
    /// # Errors
    /// If there is no answer.
    pub(super) async fn first(
        &self,
        request: &Request,
        outgoing: &Outgoing,
        handed_over: &HandedOver,
    ) -> Result<(Bytes, bool), GatewayFault> {
        let mut begun = self.begin(request)?;
        self.send(outgoing, handed_over).await?;
        while let Some(piece) = begun.pieces.recv().await {
            let piece = piece.map_err(|error| BrokenOff::known_in(&error).unwrap_or_else(|| self.fault()))?;
            let Some(event) = read_event(&piece) else { continue };
            if let Ok(Message::Response(response)) = envelope::read(&event.data, ScanLimits::UPSTREAM) {
                return Ok((event.data, response.outcome.is_ok()));
            }
        }
        Err(self.fault())
    }

    /// Sends a request; the answer is a stream.
    ///
    /// # Errors
    /// If it could not be sent.
    pub(super) async fn request(
        &self,
        request: &Request,
        outgoing: &Outgoing,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        let begun = self.table.lock().begin(request);
        let begun = match begun {
            Ok(begun) => begun,
            Err(NotBegun::IdInUse) => return Ok(refusal(Some(&request.id), "this request id is in use")),
            Err(NotBegun::TooMany) => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let unless_sent = Unsent { session: self, id: Some(&request.id) };
        tokio::select! {
            biased;
            sent = self.send(outgoing, handed_over) => sent?,
            // Some servers say that they have taken a request only once it is done.
            () = begun.heard.notified() => (),
        }
        unless_sent.disarm();
        Ok(events(begun.pieces))
    }

    /// Sends what wants no answer.
    ///
    /// # Errors
    /// If it could not be sent.
    pub(super) async fn tell(
        &self,
        message: &Message,
        outgoing: &Outgoing,
        handed_over: &HandedOver,
    ) -> Result<(), GatewayFault> {
        self.send(outgoing, handed_over).await?;
        let mut table = self.table.lock();
        table.touch();
        match message {
            Message::Notification(notification) => {
                if let Some(id) = table::cancelled(notification) {
                    table.cancel(&id);
                }
            }
            Message::Response(response) => response.id.iter().for_each(|id| table.answered(id)),
            Message::Request(_) => (),
        }
        drop(table);
        Ok(())
    }

    fn begin(&self, request: &Request) -> Result<Begun, GatewayFault> {
        self.table.lock().begin(request).map_err(|_| GatewayFault::new(Reason::Internal, Executed::No))
    }

    async fn send(&self, outgoing: &Outgoing, handed_over: &HandedOver) -> Result<(), GatewayFault> {
        let Some(sender) = self.sender.get() else { return Err(GatewayFault::new(Reason::Internal, Executed::No)) };
        tokio::select! {
            biased;
            sent = sender.send(outgoing, handed_over) => sent,
            () = self.over.cancelled() => {
                let fault = self.fault();
                let executed = if handed_over.initialized() { fault.executed } else { Executed::No };
                Err(GatewayFault { executed, ..fault })
            }
        }
    }

    /// Why there is no answer.
    fn fault(&self) -> GatewayFault {
        let closed = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
        self.why.get().copied().unwrap_or(closed)
    }

    /// Listens until the connection is over, then ends what is left of it.
    async fn run(self: Arc<Self>, mut receiver: Box<dyn WireReceiver>) {
        let began = Instant::now();
        let fault = self.hear(&mut *receiver).await;
        if let Some(fault) = fault {
            // Set once: this is the only place.
            let _ = self.why.set(fault);
            self.shared.backoff.note_end(began.elapsed());
            tracing::warn!(upstream = %self.shared.name, reason = ?fault.reason, exit = ?fault.exit, "an upstream connection ended by itself");
        }
        self.over.cancel();
        self.table.lock().end(self.fault());
        drop(receiver);
        if let Some(sender) = self.sender.get() {
            sender.close().await;
        }
        self.leave();
    }

    async fn hear(self: &Arc<Self>, receiver: &mut dyn WireReceiver) -> Option<GatewayFault> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = self.over.cancelled() => return None,
                text = receiver.next() => match text {
                    Ok(text) => self.take(&text),
                    Err(fault) => return Some(fault),
                },
                _ = look.tick() => {
                    if self.idle_for().is_some_and(|idle| idle >= IDLE_MAX) {
                        return None;
                    }
                }
            }
        }
    }

    fn take(self: &Arc<Self>, text: &Bytes) {
        if !envelope::is_batch(text) {
            return self.take_one(text);
        }
        match envelope::split_batch(text, ScanLimits::UPSTREAM, BATCH_MAX) {
            Ok(items) => items.iter().for_each(|item| self.take_one(item)),
            Err(_) => self.shared.dropped("malformed_event"),
        }
    }

    fn take_one(self: &Arc<Self>, text: &Bytes) {
        let taken = match envelope::read(text, ScanLimits::UPSTREAM) {
            Ok(Message::Response(response)) => {
                if !self.table.lock().answer(response.id.as_ref(), text) {
                    self.shared.dropped("foreign_response");
                }
                return;
            }
            Ok(Message::Notification(_) | Message::Request(_)) if text.len() > ASIDE_BYTES_MAX => Err(NotTaken::Slow),
            Ok(Message::Notification(notification)) => self.table.lock().note(&notification, text),
            Ok(Message::Request(request)) => return self.ask(&request, text),
            Err(EnvelopeError::Scan { id: Some(id), .. } | EnvelopeError::Shape { id: Some(id), .. }) => {
                let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
                if !self.table.lock().break_off(&id, malformed) {
                    self.shared.dropped("malformed_event");
                }
                return;
            }
            Err(_) => return self.shared.dropped("malformed_event"),
        };
        match taken {
            Ok(()) => (),
            Err(NotTaken::Nobody) => self.shared.dropped("stray_notification"),
            Err(NotTaken::Slow) => self.shared.dropped("slow_reader"),
        }
    }

    fn ask(self: &Arc<Self>, request: &Request, text: &Bytes) {
        let asked = self.table.lock().ask(request, text);
        let why = match asked {
            Ok(()) => return,
            Err(NotTaken::Nobody) if request.method == method::PING => {
                return self.reply(envelope::result(&request.id, &Payload::empty_object()));
            }
            Err(NotTaken::Nobody) => "no single call that this can belong to",
            Err(NotTaken::Slow) => "the client does not keep up",
        };
        self.shared.dropped("stray_request");
        self.reply(refused(&request.id, why));
    }

    /// Sends an answer of the stand's own in the background. Under a flood it is dropped and counted.
    fn reply(self: &Arc<Self>, text: Bytes) {
        let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned() else {
            return self.shared.dropped("reply_flood");
        };
        let session = Arc::clone(self);
        let forwarded = self.forwarded.get().cloned().unwrap_or_default();
        let outgoing = Credentials::default().post(text).under_way().forwarding(forwarded);
        self.shared.life.tracker.spawn(async move {
            let _permit = permit;
            if session.send(&outgoing, &HandedOver::default()).await.is_err() {
                session.shared.dropped("reply_failed");
            }
        });
    }

    fn leave(&self) {
        let mut sessions = self.shared.sessions.lock();
        if sessions.get(&self.id).is_some_and(|session| std::ptr::eq(Arc::as_ptr(session), self)) {
            sessions.remove(&self.id);
        }
        drop(sessions);
        self.ended.cancel();
    }
}

fn refused(id: &RequestId, why: &str) -> Bytes {
    envelope::error(Some(id), &RpcError::new(INTERNAL_ERROR, why))
}

/// A session that nobody knows of yet. Dropping it ends that session.
pub(super) struct Unopened(Option<Arc<WireSession>>);

impl Unopened {
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unopened {
    fn drop(&mut self) {
        let Some(session) = self.0.take() else { return };
        session.end();
        if session.sender.get().is_none() {
            // Nothing runs that would.
            session.leave();
        }
    }
}

/// A request that is not sent yet. Dropping it forgets the request.
struct Unsent<'a> {
    session: &'a WireSession,
    id: Option<&'a RequestId>,
}

impl Unsent<'_> {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.table.lock().cancel(id);
        }
    }
}
