//! A scripted streamable HTTP server. It is polite by itself: handshake, 202, no GET stream. A script sees
//! each request first and may answer it otherwise.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use url::Url;

pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Script = dyn Fn(Seen, Arc<World>) -> BoxFuture<'static, Option<Reply>> + Send + Sync;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    /// `null` where there was no body.
    pub(crate) body: Value,
}

impl Seen {
    pub(crate) fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn id(&self) -> &str {
        self.body["id"].as_str().unwrap_or_default()
    }

    pub(crate) fn token(&self) -> &str {
        self.body["params"]["_meta"]["progressToken"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_call(&self) -> bool {
        self.rpc() == "tools/call"
    }
}

/// What happened at the server so far.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) handshakes: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
    news: Notify,
}

impl World {
    pub(crate) fn all(&self, is_meant: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        self.seen.lock().iter().filter(|seen| is_meant(seen)).cloned().collect()
    }

    /// The first request of a kind, waiting for it.
    pub(crate) async fn first(&self, is_meant: impl Fn(&Seen) -> bool) -> Seen {
        self.nth(0, is_meant).await
    }

    pub(crate) async fn nth(&self, n: usize, is_meant: impl Fn(&Seen) -> bool) -> Seen {
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
        tokio::time::timeout(WAIT_MAX, found).await.expect("the server sees such a request in time")
    }
}

pub(crate) struct Server {
    pub(crate) url: Url,
    pub(crate) world: Arc<World>,
    _stop: DropGuard,
}

impl Server {
    pub(crate) async fn start<F>(script: impl Fn(Seen, Arc<World>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Reply>> + Send + 'static,
    {
        let script: Arc<Script> = Arc::new(move |seen, world| Box::pin(script(seen, world)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let world = Arc::new(World::default());
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let accept = accept(listener, Arc::clone(&world), script, (tracker.clone(), stop.clone()));
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { url, world, _stop: stop.drop_guard() }
    }

    /// A server that answers every call the same way.
    pub(crate) async fn answering(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(move |seen, _| {
            let answer = seen.is_call().then(|| answer(&seen));
            async move { answer }
        })
        .await
    }
}

async fn accept(
    listener: TcpListener,
    world: Arc<World>,
    script: Arc<Script>,
    (tracker, stop): (TaskTracker, CancellationToken),
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (world, script) = (Arc::clone(&world), Arc::clone(&script));
        let service = service_fn(move |request| {
            let (world, script) = (Arc::clone(&world), Arc::clone(&script));
            async move { Ok::<_, Infallible>(serve(request, world, script).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // Connections are cut by tests on purpose, so how one ends says nothing.
        tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}

async fn serve(request: Request<Incoming>, world: Arc<World>, script: Arc<Script>) -> Reply {
    let (head, body) = request.into_parts();
    let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let seen =
        Seen { method: head.method, headers: head.headers, body: serde_json::from_slice(&text).unwrap_or_default() };
    world.seen.lock().push(seen.clone());
    world.news.notify_waiters();
    match script(seen.clone(), Arc::clone(&world)).await {
        Some(reply) => reply,
        None => polite(&seen, &world),
    }
}

/// What a server does that has nothing to hide.
pub(crate) fn polite(seen: &Seen, world: &World) -> Reply {
    match (seen.method.as_str(), seen.rpc()) {
        ("POST", "initialize") => {
            let n = world.handshakes.fetch_add(1, Ordering::SeqCst) + 1;
            let version = seen.body["params"]["protocolVersion"].clone();
            let mut reply = result(
                seen,
                &json!({
                    "protocolVersion": version,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                }),
            );
            reply.headers_mut().insert("mcp-session-id", format!("s-{n}").parse().unwrap());
            reply
        }
        ("POST", "tools/call") => result(seen, &seen.body["params"]["arguments"]),
        ("POST", _) => status(202),
        ("DELETE", _) => status(200),
        _ => status(405),
    }
}

pub(crate) fn status(code: u16) -> Reply {
    let mut reply = whole("");
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    reply
}

pub(crate) fn whole(body: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed_unsync())
}

pub(crate) fn json_text(text: impl Into<Bytes>) -> Reply {
    let mut reply = whole(text);
    reply.headers_mut().insert("content-type", "application/json; charset=utf-8".parse().unwrap());
    reply
}

pub(crate) fn result(seen: &Seen, result: &Value) -> Reply {
    json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}).to_string())
}

/// The sending end of an event stream. Dropping it ends the stream in order.
#[derive(Clone)]
pub(crate) struct Events(mpsc::Sender<Result<Bytes, io::Error>>);

impl Events {
    /// An open stream, and the reply that carries it.
    pub(crate) fn open() -> (Self, Reply) {
        let (events, queue) = mpsc::channel(1_000);
        let frames = futures_util::stream::unfold(queue, |mut queue: mpsc::Receiver<Result<Bytes, io::Error>>| async {
            queue.recv().await.map(|bytes| (bytes.map(Frame::data), queue))
        });
        let mut reply = Response::new(StreamBody::new(frames).boxed_unsync());
        reply.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        (Self(events), reply)
    }

    pub(crate) fn raw(&self, text: impl Into<Bytes>) {
        // A client that has what it wants may be gone.
        let _ = self.0.try_send(Ok(text.into()));
    }

    pub(crate) fn message(&self, message: &Value) {
        self.raw(format!("data: {message}\n\n"));
    }

    pub(crate) fn numbered(&self, id: &str, message: &Value) {
        self.raw(format!("id: {id}\ndata: {message}\n\n"));
    }

    pub(crate) fn result(&self, seen: &Seen, result: &Value) {
        self.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}));
    }

    /// Cuts the connection.
    pub(crate) fn cut(&self) {
        let _ = self.0.try_send(Err(io::Error::other("cut")));
    }
}
