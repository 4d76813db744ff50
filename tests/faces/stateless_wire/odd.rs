//! A session server of 2025-11-25 that writes valid JSON in its own way, and keeps its requests.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Results by tool: spelling, order and unknown members that must survive.
pub(crate) const RESULTS: [(&str, &str); 4] = [
    (
        "numbers",
        r#"{"z":1.10,"content":[],"a":12345678901234567890123,"structuredContent":{"b":-0,"a":1E5,"B":0.1e-7}}"#,
    ),
    ("texts", r#"{"content":[ {"text":"caf\u00e9 \/ \ud83d\ude00 \u0000","type":"text"} ] , "isError":false}"#),
    ("members", r#"{"x-unknown":null,"content":[{"type":"future","nested":{"k":[[],{}]}}],"":0}"#),
    ("late", r#"{"late":1.0,"content":[]}"#),
];

/// The server's description of itself.
pub(crate) const SERVER_INFO: &str = r#"{"version":"0.10","name":"odd","title":"Odd \u00e9"}"#;

#[derive(Clone)]
pub(crate) struct Odd {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Odd {
    pub(crate) async fn start(tracker: &TaskTracker, stop: CancellationToken) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let odd = Self { url: format!("http://{}/mcp", listener.local_addr().unwrap()), seen: Arc::default() };
        let server = odd.clone();
        let connections = tracker.clone();
        tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                let service = service_fn(move |request| {
                    let server = server.clone();
                    async move { Ok::<_, Infallible>(server.answer(request).await) }
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(stop.clone().run_until_cancelled_owned(connection));
            }
        }));
        odd
    }

    /// The bodies of all `tools/call`, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.seen.lock().iter().filter(|body| body.contains("\"tools/call\"")).cloned().collect()
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::POST {
            return with_status(StatusCode::METHOD_NOT_ALLOWED);
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let message: Value = serde_json::from_str(&text).unwrap();
        self.seen.lock().push(text);
        let Some(id) = message.get("id") else { return with_status(StatusCode::ACCEPTED) };
        let outcome = match message["method"].as_str().unwrap() {
            "initialize" => format!(
                r#""result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{"listChanged":true}},"tasks":{{"list":{{}}}}}},"serverInfo":{SERVER_INFO}}}"#
            ),
            "tools/list" => format!(r#""result":{}"#, tools()),
            "tools/call" => {
                let tool = message["params"]["name"].as_str().unwrap();
                let result = RESULTS.iter().find(|(name, _)| *name == tool);
                format!(r#""result":{}"#, result.map_or(r#"{"content":[]}"#, |(_, result)| result))
            }
            "resources/read" => r#""error":{"code":-32002,"message":"gone"}"#.to_owned(),
            "prompts/list" => r#""result":{"prompts":[]}"#.to_owned(),
            _ => r#""error":{"code":-32601,"message":"no such method"}"#.to_owned(),
        };
        let mut response = Response::new(Full::from(format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#)));
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
        response
    }
}

fn with_status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// A tool's definition as the server writes it, and as clients read it.
pub(crate) const TOOLS: [(&str, &str); 7] = [
    (
        r#"{"inputSchema":{"type":"object","maximum":1.10},"name":"numbers","execution":{"taskSupport":"optional"}}"#,
        r#"{"inputSchema":{"type":"object","maximum":1.10},"name":"numbers"}"#,
    ),
    (
        r#"{"name":"texts","x":[1, 2],"inputSchema":{"$ref":"http://127.0.0.1:1/x"}}"#,
        r#"{"name":"texts","x":[1, 2],"inputSchema":{"$ref":"http://127.0.0.1:1/x"}}"#,
    ),
    (r#"{"name":"members","inputSchema":{}}"#, r#"{"name":"members","inputSchema":{}}"#),
    (r#"{"name":"late","inputSchema":{}}"#, r#"{"name":"late","inputSchema":{}}"#),
    (
        r#"{"name":"mirrored","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"Count"},"dry":{"type":"boolean","x-mcp-header":"Dry"}}}}"#,
        r#"{"name":"mirrored","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"Count"},"dry":{"type":"boolean","x-mcp-header":"Dry"}}}}"#,
    ),
    (
        r#"{"name":"badly-mirrored","inputSchema":{"properties":{"n":{"type":"number","x-mcp-header":"N"}}}}"#,
        r#"{"name":"badly-mirrored","inputSchema":{"properties":{"n":{"type":"number"}}}}"#,
    ),
    (r#"{"name":"späße","inputSchema":{}}"#, r#"{"name":"späße","inputSchema":{}}"#),
];

fn tools() -> String {
    let tools = TOOLS.map(|(written, _)| written).join(" , ");
    format!(r#"{{"odd":0.50, "tools":[{tools}],"_meta":{{"k":1.0}}}}"#)
}
