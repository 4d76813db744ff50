//! Decides who reads the GET stream of a client's own session: the client, or the gateway, while the client does not
//! and tasks of the server's run in the session. Many servers have one such stream in a session, so they take turns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::task_message_filter::{StreamConsumer, sift_for, sifted};
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::session::SessionFaceState;
use crate::face::session::pipe::UpstreamStream;
use crate::face::session::session_cache::ClientSession;
use crate::upstream::answer_body::BodyKind;

/// Between two attempts to read a stream that ended.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a call waits for the gateway's own stream: not every server sends the head of one before it has something to
/// say.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// How long the gateway's own stream may take to end.
const END_MAX: Duration = Duration::from_secs(1);

/// How long an upstream may take to notice that its stream was let go, and between two attempts.
const TURN_MAX: Duration = Duration::from_secs(2);
const TURN_PAUSE: Duration = Duration::from_millis(50);

/// The readers of sessions in which anybody reads, by nonce.
#[derive(Debug, Default)]
pub(super) struct SessionStreamReaders(Mutex<HashMap<u128, StreamReaderState>>);

#[derive(Debug, Default)]
struct StreamReaderState {
    /// Streams of the client's.
    clients: usize,
    own: Option<GatewayReader>,
}

/// The gateway's stream.
#[derive(Debug)]
struct GatewayReader {
    stop: CancellationToken,
    /// Cancelled once it is open, or is not to be had.
    settled: CancellationToken,
    /// Set once it runs.
    running: Option<JoinHandle<()>>,
}

impl SessionStreamReaders {
    fn enter(&self, nonce: u128) {
        self.0.lock().entry(nonce).or_default().clients += 1;
    }

    fn leave(&self, nonce: u128) {
        let mut all = self.0.lock();
        if let Some(readers) = all.get_mut(&nonce) {
            readers.clients -= 1;
            if readers.clients == 0 && readers.own.is_none() {
                all.remove(&nonce);
            }
        }
    }

    /// Takes the gateway's turn, if it is free.
    fn take_turn(&self, nonce: u128) -> Option<(CancellationToken, CancellationToken)> {
        let mut all = self.0.lock();
        let readers = all.entry(nonce).or_default();
        if readers.clients > 0 || readers.own.is_some() {
            return None;
        }
        let (stop, settled) = (CancellationToken::new(), CancellationToken::new());
        readers.own = Some(GatewayReader { stop: stop.clone(), settled: settled.clone(), running: None });
        Some((stop, settled))
    }

    fn settled(&self, nonce: u128) -> Option<CancellationToken> {
        Some(self.0.lock().get(&nonce)?.own.as_ref()?.settled.clone())
    }

    fn runs(&self, nonce: u128, running: JoinHandle<()>) {
        if let Some(own) = self.0.lock().get_mut(&nonce).and_then(|readers| readers.own.as_mut()) {
            own.running = Some(running);
        }
    }

    /// Ends the gateway's turn, whoever ended it.
    fn turn_over(&self, nonce: u128) {
        let mut all = self.0.lock();
        if let Some(readers) = all.get_mut(&nonce) {
            readers.own = None;
            if readers.clients == 0 {
                all.remove(&nonce);
            }
        }
    }

    /// Tells the gateway's stream to end; `None` if there is none, else what can be waited for.
    fn stop(&self, nonce: u128) -> Option<Option<JoinHandle<()>>> {
        let mut all = self.0.lock();
        let own = all.get_mut(&nonce)?.own.as_mut()?;
        own.stop.cancel();
        Some(own.running.take())
    }
}

/// A client's stream. While it is there the gateway does not read.
#[derive(Debug)]
pub(in crate::face) struct ClientReaderGuard {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    hearing: Arc<SessionStreamReaders>,
}

impl Drop for ClientReaderGuard {
    fn drop(&mut self) {
        self.hearing.leave(self.session.token.nonce);
        // Where the runtime itself ends nobody reads on.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.shared.hear(&self.session);
        }
    }
}

impl SessionFaceState {
    /// Notes that a client reads its session's stream, where that makes a difference.
    fn carry(self: &Arc<Self>, session: &ClientSession) -> Option<ClientReaderGuard> {
        let native = self.native.as_ref().filter(|_| session.token.tasks.calls)?;
        let hearing = Arc::clone(&native.hearing);
        hearing.enter(session.token.nonce);
        Some(ClientReaderGuard { shared: Arc::clone(self), session: session.clone(), hearing })
    }

    /// Gives the stream of a session free for its client; whether the gateway had it.
    async fn make_way(&self, session: &ClientSession) -> bool {
        let Some(native) = self.native.as_ref().filter(|_| session.token.tasks.calls) else { return false };
        match native.hearing.stop(session.token.nonce) {
            Some(Some(running)) => {
                let _ = tokio::time::timeout(END_MAX, running).await;
                true
            }
            Some(None) => true,
            None => false,
        }
    }

    /// Reads the stream of a session for the calls that run in it, unless its client does. Returns at once.
    pub(in crate::face::session) fn hear(self: &Arc<Self>, session: &ClientSession) {
        let Some(native) = &self.native else { return };
        let Some(over) = self.tasks.over(session).filter(|_| !self.tasks.ears(session).is_empty()) else { return };
        let nonce = session.token.nonce;
        let Some((stop, settled)) = native.hearing.take_turn(nonce) else { return };
        let (shared, session, hearing) = (Arc::clone(self), session.clone(), Arc::clone(&native.hearing));
        let life = self.served.life.clone();
        let running = life.tracker.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => (),
                () = over.cancelled() => (),
                () = life.stop.cancelled() => (),
                () = shared.read_for_calls(&session, &settled) => (),
            }
            settled.cancel();
            hearing.turn_over(nonce);
            // Whoever wanted the stream may have left it before this one ended.
            if stop.is_cancelled() {
                shared.hear(&session);
            }
        });
        native.hearing.runs(nonce, running);
    }

    /// Returns once the gateway's stream of a session is open, if it is to be; within [`OPEN_MAX`].
    pub(in crate::face::session) async fn heard(&self, session: &ClientSession) {
        if let Some(settled) = self.native.as_ref().and_then(|native| native.hearing.settled(session.token.nonce)) {
            let _ = tokio::time::timeout(OPEN_MAX, settled.cancelled()).await;
        }
    }

    /// Returns if the server has no such stream, or no more of them.
    async fn read_for_calls(self: &Arc<Self>, session: &ClientSession, settled: &CancellationToken) {
        while let Ok((response, _)) = self.stream(session, None).await {
            settled.cancel();
            if response.content != BodyKind::Events {
                return;
            }
            let mut body = sift_for(self, session, response.body, StreamConsumer::Gateway);
            while let Some(Ok(_)) = body.frame().await {}
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// The client's stream at the upstream. Where the gateway had it for calls of its own, the upstream may take a moment to
/// notice that it is free.
pub(in crate::face::session) async fn own_stream(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    last_event: Option<HeaderValue>,
) -> UpstreamStream {
    let carried = shared.carry(session);
    let until = Instant::now() + TURN_MAX;
    let had_turn = shared.make_way(session).await;
    loop {
        match shared.stream(session, last_event.clone()).await {
            Err(RequestAnswer::Status(refusal))
                if had_turn && refusal.status() == StatusCode::CONFLICT && Instant::now() < until =>
            {
                tokio::time::sleep(TURN_PAUSE).await;
            }
            Ok((mut response, taken_up)) if response.content == BodyKind::Events => {
                response.body = sifted(shared, session, response.body, carried);
                return Ok((response, taken_up));
            }
            found => return found,
        }
    }
}
