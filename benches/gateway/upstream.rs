//! A minimal session server without tasks: answers in JSON, at once or never.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::bare::{self, json, result};

pub(crate) const NAME: &str = "upstream";

/// Answers with about 200 bytes.
pub(crate) const SMALL: &str = "small";
/// Answers with about 100 kB.
pub(crate) const LARGE: &str = "large";
/// Never answers.
pub(crate) const HOLD: &str = "hold";

/// Where the number of calls in progress of [`HOLD`] is told.
pub(crate) const HELD_PATH: &str = "/held";

/// What a tool answers with.
pub(crate) fn text_of(tool: &str) -> String {
    "0123456789".repeat(if tool == LARGE { 10_000 } else { 16 })
}

struct Upstream {
    small: Bytes,
    large: Bytes,
    tools: Bytes,
    held: AtomicUsize,
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

/// Serves until the process is ended.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let tools = [SMALL, LARGE, HOLD].map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
    let upstream = Arc::new(Upstream {
        small: content(SMALL),
        large: content(LARGE),
        tools: json!({"tools": tools}).to_string().into(),
        held: AtomicUsize::new(0),
    });
    bare::serve(move |request| {
        let upstream = Arc::clone(&upstream);
        async move { upstream.answer(request).await }
    })
    .await
}

fn content(tool: &str) -> Bytes {
    json!({"content": [{"type": "text", "text": text_of(tool)}]}).to_string().into()
}

impl Upstream {
    async fn answer(&self, request: Request<Incoming>) -> anyhow::Result<Response<Full<Bytes>>> {
        if request.method() == Method::GET && request.uri().path() == HELD_PATH {
            return Ok(json(self.held.load(Ordering::Relaxed).to_string().into()));
        }
        if request.method() != Method::POST {
            return Ok(bare_status(StatusCode::METHOD_NOT_ALLOWED));
        }
        let body = request.into_body().collect().await?.to_bytes();
        let message: Message<'_> = serde_json::from_slice(&body)?;
        let Some(id) = message.id.map(RawValue::get) else {
            return Ok(bare_status(StatusCode::ACCEPTED));
        };
        match message.method {
            "initialize" => {
                let mut response = json(result(id, greeting().as_bytes()));
                response.headers_mut().insert("mcp-session-id", HeaderValue::from_static("bench"));
                Ok(response)
            }
            "tools/list" => Ok(json(result(id, &self.tools))),
            "tools/call" => self.call(id, message.params.name.context("a tool has a name")?).await,
            _ => Ok(json(error(id))),
        }
    }

    async fn call(&self, id: &str, tool: &str) -> anyhow::Result<Response<Full<Bytes>>> {
        let text = match tool {
            HOLD => {
                let _counted = Held::new(&self.held);
                std::future::pending().await
            }
            LARGE => &self.large,
            _ => &self.small,
        };
        Ok(json(result(id, text)))
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

fn error(id: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"method not found"}}}}"#).into()
}

fn bare_status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// Counts a held call for as long as its connection lives.
struct Held<'a>(&'a AtomicUsize);

impl<'a> Held<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
