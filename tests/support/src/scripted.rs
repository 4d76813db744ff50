//! A scripted streamable HTTP server. It keeps every request byte for byte, and is polite by itself: handshake,
//! 202, echo. A script sees each request first and may answer it otherwise.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Nothing that is waited for takes this long unless it hangs, also on a machine that does much else.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("it happens in time")
}

pub type ScriptedReply = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Script = dyn Fn(SeenRequest, Arc<ScriptedState>) -> BoxFuture<'static, Option<ScriptedReply>> + Send + Sync;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    pub method: Method,
    pub version: Version,
    /// The path, with its query.
    pub target: String,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    /// `null` where there was no JSON.
    pub body: Value,
}

impl SeenRequest {
    pub fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.body["id"].as_str().unwrap_or_default()
    }

    pub fn token(&self) -> &str {
        self.body["params"]["_meta"]["progressToken"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The names of its header fields, in order.
    pub fn fields(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.headers.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    pub fn is_call(&self) -> bool {
        self.rpc() == "tools/call"
    }
}

/// The requests at the server so far, and its behaviour.
#[derive(Debug, Default)]
pub struct ScriptedState {
    seen: Mutex<Vec<SeenRequest>>,
    sessions: Mutex<HashSet<String>>,
    handshakes: Mutex<u32>,
    news: Notify,
    /// The connections that were accepted.
    pub connections: AtomicUsize,
    /// How an unknown session is refused.
    pub lost_status: Mutex<Option<u16>>,
    /// Members that replace some in the result of `initialize`.
    pub initialize_result: Mutex<Value>,
}

impl ScriptedState {
    pub fn all(&self, is_meant: impl Fn(&SeenRequest) -> bool) -> Vec<SeenRequest> {
        self.seen.lock().iter().filter(|seen| is_meant(seen)).cloned().collect()
    }

    pub fn count(&self, rpc: &str) -> usize {
        self.all(|seen| seen.rpc() == rpc).len()
    }

    /// The first request of a kind, waiting for it.
    pub async fn first(&self, is_meant: impl Fn(&SeenRequest) -> bool) -> SeenRequest {
        self.nth(0, is_meant).await
    }

    pub async fn nth(&self, n: usize, is_meant: impl Fn(&SeenRequest) -> bool) -> SeenRequest {
        let found = async {
            loop {
                let news = self.news.notified();
                tokio::pin!(news);
                news.as_mut().enable();
                if let Some(seen) = self.all(&is_meant).into_iter().nth(n) {
                    return seen;
                }
                news.await;
            }
        };
        in_time(found).await
    }

    /// The effect of a restart: no session is known any more.
    pub fn forget(&self) {
        self.sessions.lock().clear();
        self.seen.lock().clear();
    }

    fn knows(&self, session: &str) -> bool {
        self.sessions.lock().contains(session)
    }
}

/// Dropping it ends all its connections.
pub struct ScriptedServer {
    pub address: SocketAddr,
    pub world: Arc<ScriptedState>,
    _stop: DropGuard,
}

/// A free port of this machine.
fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl ScriptedServer {
    /// A server that answers at once, and refuses sessions that it did not open.
    pub async fn start(script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static) -> Self {
        Self::start_at(anywhere(), None, script).await
    }

    /// The same at an address, and over TLS if it has an identity: HTTP/1.1 and HTTP/2, as negotiated.
    pub async fn start_at(
        address: SocketAddr,
        tls: Option<ServerConfig>,
        script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
    ) -> Self {
        let strict = move |seen: SeenRequest, world: Arc<ScriptedState>| {
            let unknown = seen.header("mcp-session-id").is_some_and(|id| !world.knows(id));
            let reply = if unknown { Some(lost(world.lost_status.lock().unwrap_or(404))) } else { script(&seen) };
            Box::pin(std::future::ready(reply)) as BoxFuture<'static, Option<ScriptedReply>>
        };
        Self::listen(address, tls, Arc::new(strict)).await
    }

    pub async fn polite() -> Self {
        Self::start(|_| None).await
    }

    /// A server whose script may wait, and that takes any session for its own.
    pub async fn slow<F>(script: impl Fn(SeenRequest, Arc<ScriptedState>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<ScriptedReply>> + Send + 'static,
    {
        Self::listen(anywhere(), None, Arc::new(move |seen, world| Box::pin(script(seen, world)))).await
    }

    /// A server that never answers a call.
    pub async fn holding_calls() -> Self {
        Self::slow(|seen, _| async move {
            if seen.is_call() {
                std::future::pending::<()>().await;
            }
            None
        })
        .await
    }

    /// A server that answers every call the same way.
    pub async fn answering(answer: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self::slow(move |seen, _| std::future::ready(seen.is_call().then(|| answer(&seen)))).await
    }

    pub fn url(&self) -> url::Url {
        url::Url::parse(&format!("http://{}/mcp", self.address)).unwrap()
    }

    async fn listen(address: SocketAddr, tls: Option<ServerConfig>, script: Arc<Script>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = Arc::new(ScriptedState::default());
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let accept = accept(listener, tls, Arc::new((Arc::clone(&world), script)), (tracker.clone(), stop.clone()));
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { address, world, _stop: stop.drop_guard() }
    }
}

type SharedScript = Arc<(Arc<ScriptedState>, Arc<Script>)>;

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shared: SharedScript,
    (tracker, stop): (TaskTracker, CancellationToken),
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        shared.0.connections.fetch_add(1, Ordering::Relaxed);
        let connection = async move {
            match tls {
                None => converse(stream, shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream, shared).await;
                    }
                }
            }
        };
        tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: SharedScript) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(serve(request, &shared).await) }
    });
    // Connections are cut by tests on purpose, so how one ends says nothing.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn serve(request: Request<Incoming>, shared: &SharedScript) -> ScriptedReply {
    let (world, script) = &**shared;
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let seen = SeenRequest { method: head.method, version: head.version, target, headers: head.headers, bytes, body };
    world.seen.lock().push(seen.clone());
    world.news.notify_waiters();
    script(seen.clone(), Arc::clone(world)).await.unwrap_or_else(|| polite(&seen, world))
}

/// How servers refuse a session that they do not know.
fn lost(code: u16) -> ScriptedReply {
    let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
    let mut reply = json_text(json!({"jsonrpc": "2.0", "error": error, "id": null}).to_string());
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    reply
}

/// The answers of a server without faults.
pub fn polite(seen: &SeenRequest, world: &ScriptedState) -> ScriptedReply {
    match (seen.method.as_str(), seen.rpc()) {
        ("POST", "initialize") => {
            let n = {
                let mut handshakes = world.handshakes.lock();
                *handshakes += 1;
                *handshakes
            };
            let mut result = json!({
                "protocolVersion": seen.body["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "scripted", "version": "1"},
            });
            if let Value::Object(members) = &*world.initialize_result.lock() {
                for (key, value) in members {
                    result[key] = value.clone();
                }
            }
            let mut reply = answer(seen, &result);
            world.sessions.lock().insert(format!("s-{n}"));
            reply.headers_mut().insert("mcp-session-id", format!("s-{n}").parse().unwrap());
            reply.headers_mut().insert("set-cookie", "a=b".parse().unwrap());
            reply
        }
        ("POST", "tools/call") => answer(seen, &seen.body["params"]["arguments"]),
        ("POST", _) if seen.body.get("id").is_some() && seen.body.get("method").is_some() => answer(seen, &json!({})),
        ("POST", _) => status(202),
        ("DELETE", _) => {
            world.sessions.lock().remove(seen.header("mcp-session-id").unwrap_or_default());
            status(200)
        }
        _ => status(405),
    }
}

pub fn status(code: u16) -> ScriptedReply {
    let mut reply = whole("");
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    reply
}

pub fn whole(body: impl Into<Bytes>) -> ScriptedReply {
    Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed_unsync())
}

pub fn json_text(text: impl Into<Bytes>) -> ScriptedReply {
    let mut reply = whole(text);
    reply.headers_mut().insert("content-type", "application/json; charset=utf-8".parse().unwrap());
    reply
}

pub fn answer(seen: &SeenRequest, result: &Value) -> ScriptedReply {
    json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}).to_string())
}

/// The sending end of a body. Dropping it ends the body in order.
#[derive(Clone)]
pub struct BodySender(mpsc::Sender<Result<Bytes, io::Error>>);

impl BodySender {
    /// An open event stream, and the reply that carries it.
    pub fn open() -> (Self, ScriptedReply) {
        Self::of_type("text/event-stream")
    }

    /// An event stream without events that stays open for as long as the test runs.
    pub fn silent() -> ScriptedReply {
        let (events, reply) = Self::open();
        events.stay_open();
        reply
    }

    /// Leaves the body open for as long as the test runs.
    pub fn stay_open(self) {
        std::mem::forget(self);
    }

    /// A body of any type that is sent piece by piece.
    pub fn of_type(media: &'static str) -> (Self, ScriptedReply) {
        let (events, queue) = mpsc::channel(1_000);
        let frames = futures_util::stream::unfold(queue, |mut queue: mpsc::Receiver<Result<Bytes, io::Error>>| async {
            queue.recv().await.map(|bytes| (bytes.map(Frame::data), queue))
        });
        let mut reply = Response::new(StreamBody::new(frames).boxed_unsync());
        reply.headers_mut().insert("content-type", media.parse().unwrap());
        (Self(events), reply)
    }

    pub fn raw(&self, text: impl Into<Bytes>) {
        // A client may close the stream once it has its answer.
        let _ = self.0.try_send(Ok(text.into()));
    }

    pub fn message(&self, message: &Value) {
        self.raw(format!("data: {message}\n\n"));
    }

    pub fn numbered(&self, id: &str, message: &Value) {
        self.raw(format!("id: {id}\ndata: {message}\n\n"));
    }

    pub fn result(&self, seen: &SeenRequest, result: &Value) {
        self.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}));
    }

    /// Cuts the connection.
    pub fn cut(&self) {
        let _ = self.0.try_send(Err(io::Error::other("cut")));
    }

    /// Whether a client still reads.
    pub fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Returns once no client reads any more.
    pub async fn left(&self) {
        in_time(self.0.closed()).await;
    }

    /// The same, without a time limit.
    pub async fn abandoned(&self) {
        self.0.closed().await;
    }

    pub fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

/// A stream that a script hands out once, and its sending end for the test.
pub struct Once(Mutex<Option<ScriptedReply>>);

impl Once {
    pub fn events() -> (BodySender, Arc<Self>) {
        Self::body("text/event-stream")
    }

    pub fn body(media: &'static str) -> (BodySender, Arc<Self>) {
        let (events, reply) = BodySender::of_type(media);
        (events, Arc::new(Self(Mutex::new(Some(reply)))))
    }

    pub fn take(&self) -> Option<ScriptedReply> {
        self.0.lock().take()
    }
}
