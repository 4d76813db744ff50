//! Servers that speak another transport than streamable HTTP, behind what looks like a streamable HTTP server.
//!
//! A [`Wire`] is how such a server is reached: one connection over which messages travel both ways, which is one
//! session of the server. [`WireStand`] answers POST, GET and DELETE out of it. Read [`session`] for one connection
//! from begin to end, [`table`] for which call a message belongs to, `stdio` for servers that are programs, [`sse`]
//! for those that speak HTTP+SSE.

mod backoff;
mod session;
pub(crate) mod sse;
pub mod stdio;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use parking_lot::Mutex;

use super::Forwarded;
use super::carrier::{AnswerBody, Stand};
use super::http::Life;
use super::http::client::HandedOver;
use super::http::post::Outgoing;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::fault::INVALID_REQUEST;
use crate::wire::{Message, Request, RequestId, RpcError, ScanLimits, envelope, method};
use backoff::Backoff;
use session::WireSession;

/// A session that nobody uses gives its place to another after this.
const YIELDS_AFTER: Duration = Duration::from_secs(10);
/// How long [`Stand::close`] waits for the servers to end.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The way to a server over which messages travel both ways.
#[async_trait]
pub(crate) trait Wire: Send + Sync + fmt::Debug {
    /// Opens a fresh connection, over which nothing was said yet, with these headers where it has any. Bounded in
    /// time; dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// If there is none to be had; nothing was sent.
    async fn open(&self, forwarded: &Forwarded) -> Result<Opened, GatewayFault>;

    /// The longest pause before a server that fails again and again is tried once more.
    fn pause_max(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// The two ends of one connection.
pub(crate) struct Opened {
    pub(crate) sender: Arc<dyn WireSender>,
    pub(crate) receiver: Box<dyn WireReceiver>,
}

/// The way to the server.
#[async_trait]
pub(crate) trait WireSender: Send + Sync + fmt::Debug {
    /// Sends the message of a POST. `handed_over` is set before its first byte can reach the server. Returns once the
    /// server has taken it, as far as it says so; what it answers may come before. Dropping the future sends the
    /// message whole or not at all.
    ///
    /// # Errors
    /// If this message cannot be sent; whether the connection is over is the receiver's to say, unless the fault
    /// has the status 404: then the server knows the session no more.
    async fn send(&self, outgoing: &Outgoing, handed_over: &HandedOver) -> Result<(), GatewayFault>;

    /// Ends the connection, and the server if it is this connection's own. Returns once that is done; bounded in time.
    async fn close(&self);
}

/// The way from the server.
#[async_trait]
pub(crate) trait WireReceiver: Send {
    /// The next text: a message, or an array of them. Cancel safe.
    ///
    /// # Errors
    /// Once the connection is over, for good; the fault says why, as calls in progress are to hear it.
    async fn next(&mut self) -> Result<Bytes, GatewayFault>;
}

/// A streamable HTTP server in place of one that is reached over wires, one for each session.
pub(crate) struct WireStand {
    shared: Arc<Shared>,
    wire: Box<dyn Wire>,
}

impl fmt::Debug for WireStand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireStand").field("wire", &self.wire).finish_non_exhaustive()
    }
}

/// What the sessions of one server share.
struct Shared {
    name: Arc<str>,
    life: Life,
    sessions: Mutex<HashMap<HeaderValue, Arc<WireSession>>>,
    /// Sessions at one time, those that end included unless another was given their place.
    sessions_max: usize,
    backoff: Backoff,
}

impl Shared {
    fn dropped(&self, reason: &'static str) {
        let upstream = Arc::clone(&self.name);
        metrics::counter!(crate::metric::UPSTREAM_DROPPED, "upstream" => upstream, "reason" => reason).increment(1);
    }
}

impl WireStand {
    /// A stand in front of a server that nothing was sent to yet.
    pub(crate) fn new(name: Arc<str>, wire: Box<dyn Wire>, sessions_max: usize, life: Life) -> Self {
        let backoff = Backoff::new(wire.pause_max());
        let shared = Shared { name, life, sessions: Mutex::default(), sessions_max, backoff };
        Self { shared: Arc::new(shared), wire }
    }

    async fn post(&self, outgoing: &Outgoing, handed_over: &HandedOver) -> Result<Response<AnswerBody>, GatewayFault> {
        let text = outgoing.body().cloned().unwrap_or_default();
        let Ok(message) = envelope::read(&text, ScanLimits::UPSTREAM) else {
            return Ok(refusal(None, "the body is no message"));
        };
        let (session, message) = match (outgoing.session(), message) {
            (None, Message::Request(request)) if request.method == method::INITIALIZE => {
                return self.initialize(&request, outgoing, handed_over).await;
            }
            (None, _) => return Ok(refusal(None, "there is no session before initialize")),
            (Some(id), message) => match self.session(id) {
                Some(session) => (session, message),
                None => return Ok(answered(StatusCode::NOT_FOUND)),
            },
        };
        let answer = match message {
            Message::Request(request) => session.request(&request, outgoing, handed_over).await,
            Message::Notification(_) | Message::Response(_) => {
                let told = session.tell(&message, outgoing, handed_over).await;
                told.map(|()| answered(StatusCode::ACCEPTED))
            }
        };
        match answer {
            Err(fault) if fault.http_status == Some(StatusCode::NOT_FOUND.as_u16()) => {
                session.end();
                Ok(answered(StatusCode::NOT_FOUND))
            }
            answer => answer,
        }
    }

    /// Opens a session. There is none unless the server answers with a result.
    async fn initialize(
        &self,
        request: &Request,
        outgoing: &Outgoing,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        self.shared.backoff.wait().await?;
        let id = new_id()?;
        self.make_room()?;
        // Takes the place before the first wait, so that nobody opens one too many.
        let session = WireSession::new(Arc::clone(&self.shared), id.clone());
        self.shared.sessions.lock().insert(id.clone(), Arc::clone(&session));
        let unless_opened = session.ends_unless_kept();
        let opened = self.wire.open(outgoing.forwarded()).await.inspect_err(|fault| {
            // A server that refuses one client is well.
            if fault.http_status.is_none_or(|status| status >= 500) {
                self.shared.backoff.note_failure();
            }
        })?;
        session.start(opened, outgoing.forwarded().clone());
        let (answer, is_result) = session.first(request, outgoing, handed_over).await?;
        let mut response = json(StatusCode::OK, answer);
        if is_result {
            unless_opened.disarm();
            response.headers_mut().insert(super::http::post::SESSION_ID, id);
        }
        Ok(response)
    }

    fn session(&self, id: &HeaderValue) -> Option<Arc<WireSession>> {
        self.shared.sessions.lock().get(id).filter(|session| !session.is_over()).cloned()
    }

    /// Ends the session that was idle longest, if there is no place left.
    fn make_room(&self) -> Result<(), GatewayFault> {
        let mut sessions = self.shared.sessions.lock();
        if sessions.len() < self.shared.sessions_max {
            return Ok(());
        }
        let idle = sessions.iter().filter_map(|(id, session)| Some((session.idle_for()?, id)));
        let longest = idle.max_by_key(|(idle, _)| *idle).filter(|(idle, _)| *idle >= YIELDS_AFTER);
        let Some(id) = longest.map(|(_, id)| id.clone()) else {
            return Err(GatewayFault::new(Reason::QueueFull, Executed::No));
        };
        if let Some(session) = sessions.remove(&id) {
            session.end();
        }
        Ok(())
    }
}

#[async_trait]
impl Stand for WireStand {
    async fn send(&self, outgoing: &Outgoing, handed_over: &HandedOver) -> Result<Response<AnswerBody>, GatewayFault> {
        let method = outgoing.method();
        if method == Method::POST {
            return self.post(outgoing, handed_over).await;
        }
        let Some(session) = outgoing.session().and_then(|id| self.session(id)) else {
            return Ok(answered(StatusCode::NOT_FOUND));
        };
        if method == Method::GET {
            return Ok(events(session.listen()));
        }
        session.end();
        Ok(answered(StatusCode::OK))
    }

    async fn close(&self) {
        let all: Vec<_> = self.shared.sessions.lock().values().cloned().collect();
        all.iter().for_each(|session| session.end());
        let ended = futures_util::future::join_all(all.iter().map(|session| session.ended()));
        let _ = tokio::time::timeout(CLOSE_MAX, ended).await;
    }
}

/// The id of a new session: nobody can guess it.
fn new_id() -> Result<HeaderValue, GatewayFault> {
    let internal = GatewayFault::new(Reason::Internal, Executed::No);
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| internal)?;
    HeaderValue::from_str(&uuid::Uuid::from_bytes(bytes).simple().to_string()).map_err(|_| internal)
}

fn answered(status: StatusCode) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(None));
    *response.status_mut() = status;
    response
}

fn json(status: StatusCode, text: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(Some(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn events(pieces: table::Pieces) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Made(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn refusal(id: Option<&RequestId>, message: &str) -> Response<AnswerBody> {
    json(StatusCode::BAD_REQUEST, envelope::error(id, &RpcError::new(INVALID_REQUEST, message)))
}
