//! A minimal session server without tasks: answers in JSON or as a stream, at once, by half or never.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

use crate::bare::{self, json, result};
use crate::line::Protocol;
use crate::secure;

pub(crate) const NAME: &str = "upstream";

/// Answers with about 200 bytes.
pub(crate) const SMALL: &str = "small";
/// Answers with about 100 kB.
pub(crate) const LARGE: &str = "large";
/// Answers with about 10 MB.
pub(crate) const HUGE: &str = "huge";
/// Answers as [`SMALL`] does, with one event.
pub(crate) const EVENTS: &str = "events";
/// Begins an answer of 10 MB and never ends it.
pub(crate) const HALF: &str = "half";
/// Never answers.
pub(crate) const HOLD: &str = "hold";

/// Where the same tools are served without sessions.
pub(crate) const STATELESS: &str = "/stateless";

/// Where the same is served with as many tools as large servers have, and how many these are.
pub(crate) const WIDE: &str = "/wide";
pub(crate) const WIDE_TOOLS: usize = 50;

/// Where the number of calls in progress of [`HOLD`] and [`HALF`] is told.
pub(crate) const HELD_PATH: &str = "/held";

/// What a tool answers with.
pub(crate) fn text_of(tool: &str) -> String {
    "0123456789".repeat(match tool {
        HUGE => 1_000_000,
        LARGE => 10_000,
        _ => 16,
    })
}

type Frames = BoxStream<'static, Result<Frame<Bytes>, std::convert::Infallible>>;
type Answer = Either<Full<Bytes>, StreamBody<Frames>>;

/// The results of the tools.
struct Contents {
    small: Bytes,
    large: Bytes,
    huge: Bytes,
}

impl Contents {
    /// With the members of `more` behind the content.
    fn new(more: &str) -> Self {
        let content = |tool| {
            let text = text_of(tool);
            format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]{more}}}"#).into()
        };
        Self { small: content(SMALL), large: content(LARGE), huge: content(HUGE) }
    }
}

struct Upstream {
    contents: Contents,
    stateless_contents: Contents,
    tools: Bytes,
    stateless_tools: Bytes,
    wide_tools: Bytes,
    held: Arc<AtomicUsize>,
}

#[derive(Deserialize)]
struct Message<'a> {
    /// Absent on notifications.
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: &'a str,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Default, Deserialize)]
struct Params<'a> {
    name: Option<&'a str>,
}

/// What is printed before the address where the same is served over HTTP/2, behind TLS.
pub(crate) const SECURE: &str = "secure ";

/// Serves until the process is ended. The certificate of HTTP/2 is left in `folder`.
pub(crate) async fn serve(folder: &Path) -> anyhow::Result<()> {
    let tools =
        [SMALL, LARGE, HUGE, EVENTS, HALF, HOLD].map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
    let upstream = Arc::new(Upstream {
        contents: Contents::new(""),
        stateless_contents: Contents::new(r#","resultType":"complete""#),
        tools: json!({"tools": tools}).to_string().into(),
        stateless_tools: json!({"tools": tools, "resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"})
            .to_string()
            .into(),
        wide_tools: json!({"tools": wide_tools()}).to_string().into(),
        held: Arc::default(),
    });
    let answer = move |request| {
        let upstream = Arc::clone(&upstream);
        async move { upstream.answer(request).await }
    };
    let secure = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port")?;
    let (at, acceptor) = (secure.local_addr()?, secure::acceptor(folder)?);
    let also = async {
        // Behind the other address, which has been printed by now.
        tokio::task::yield_now().await;
        writeln!(std::io::stdout(), "{SECURE}{at}")?;
        bare::serve_on(secure, Protocol::Http2, Some(acceptor), answer.clone()).await
    };
    tokio::try_join!(bare::serve(Protocol::Http1, answer.clone()), also)?;
    Ok(())
}

/// Those that are called, and others with schemas of a common size.
fn wide_tools() -> Vec<serde_json::Value> {
    let others = (0..WIDE_TOOLS - 2).map(|number| {
        let property = json!({"type": "string", "description": "What it is to be called with"});
        json!({
            "name": format!("tool_{number:02}"),
            "description": "Does one thing of many, as its description says in about one hundred characters of text.",
            "inputSchema": {"type": "object", "properties": {"first": property, "second": property}, "required": ["first"]},
        })
    });
    let called = [SMALL, LARGE].map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
    called.into_iter().chain(others).collect()
}

impl Upstream {
    async fn answer(&self, request: Request<Incoming>) -> anyhow::Result<Response<Answer>> {
        if request.method() == Method::GET && request.uri().path() == HELD_PATH {
            return Ok(json(self.held.load(Ordering::Relaxed).to_string().into()).map(Either::Left));
        }
        if request.method() != Method::POST {
            return Ok(bare_status(StatusCode::METHOD_NOT_ALLOWED));
        }
        let (is_stateless, is_wide) = (request.uri().path() == STATELESS, request.uri().path() == WIDE);
        let body = request.into_body().collect().await?.to_bytes();
        let message: Message<'_> = serde_json::from_slice(&body)?;
        let Some(id) = message.id.map(RawValue::get) else {
            return Ok(bare_status(StatusCode::ACCEPTED));
        };
        match message.method {
            "initialize" if !is_stateless => {
                let mut response = json(result(id, greeting().as_bytes()));
                response.headers_mut().insert("mcp-session-id", HeaderValue::from_static("bench"));
                Ok(response.map(Either::Left))
            }
            "server/discover" if is_stateless => Ok(json(result(id, discovered().as_bytes())).map(Either::Left)),
            "tools/list" if is_stateless => Ok(json(result(id, &self.stateless_tools)).map(Either::Left)),
            "tools/list" if is_wide => Ok(json(result(id, &self.wide_tools)).map(Either::Left)),
            "tools/list" => Ok(json(result(id, &self.tools)).map(Either::Left)),
            "tools/call" => {
                let contents = if is_stateless { &self.stateless_contents } else { &self.contents };
                self.call(id, message.params.name.context("a tool has a name")?, contents).await
            }
            _ => Ok(json(error(id)).map(Either::Left)),
        }
    }

    async fn call(&self, id: &str, tool: &str, contents: &Contents) -> anyhow::Result<Response<Answer>> {
        let text = match tool {
            HOLD => {
                let _counted = Held::new(&self.held);
                std::future::pending().await
            }
            EVENTS => {
                let event = [b"event: message\ndata: ", result(id, &contents.small).as_ref(), b"\n\n"].concat();
                return Ok(stream("text/event-stream", stream::iter([Bytes::from(event)]).boxed()));
            }
            HALF => {
                let whole = result(id, &contents.huge);
                let held = Held::new(&self.held);
                let rest = stream::once(async move {
                    let _counted = held;
                    std::future::pending().await
                });
                let pieces = stream::iter([whole.slice(..whole.len() / 2)]).chain(rest).boxed();
                return Ok(stream("application/json", pieces));
            }
            HUGE => &contents.huge,
            LARGE => &contents.large,
            _ => &contents.small,
        };
        Ok(json(result(id, text)).map(Either::Left))
    }
}

fn greeting() -> String {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bench-upstream", "version": "1"},
    })
    .to_string()
}

fn discovered() -> String {
    json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
        "ttlMs": 60_000, "cacheScope": "public",
    })
    .to_string()
}

fn error(id: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"method not found"}}}}"#).into()
}

/// A body whose length nobody knows beforehand.
fn stream(content: &'static str, pieces: BoxStream<'static, Bytes>) -> Response<Answer> {
    let frames: Frames = Box::pin(pieces.map(|piece| Ok(Frame::data(piece))));
    let mut response = Response::new(Either::Right(StreamBody::new(frames)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

fn bare_status(status: StatusCode) -> Response<Answer> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = status;
    response
}

/// Counts a held call for as long as its connection lives.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
