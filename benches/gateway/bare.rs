//! What the gateway is compared with: the least that a server in Rust can do for the same answer.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::Ipv4Addr;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_TYPE, HOST};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::line::Protocol;

/// The bare reverse proxy; its argument is the upstream's address.
pub(crate) const PROXY: &str = "proxy";
/// The same towards clients of HTTP/2.
pub(crate) const PROXY_HTTP2: &str = "proxy-http2";

/// Calls in progress on one connection over HTTP/2.
const STREAMS_MAX: u32 = 20_000;

/// Serves one protocol on a free port until the process is ended, and says where.
pub(crate) async fn serve<F, A, B>(protocol: Protocol, answer: F) -> anyhow::Result<()>
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = anyhow::Result<Response<B>>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port")?;
    writeln!(std::io::stdout(), "serving http://{}/", listener.local_addr()?)?;
    serve_on(listener, protocol, None, answer).await
}

/// The same on a listener, behind TLS if there is an acceptor.
pub(crate) async fn serve_on<F, A, B>(
    listener: TcpListener,
    protocol: Protocol,
    tls: Option<TlsAcceptor>,
    answer: F,
) -> anyhow::Result<()>
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = anyhow::Result<Response<B>>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let tracker = TaskTracker::new();
    loop {
        let (socket, _) = listener.accept().await.context("cannot accept")?;
        socket.set_nodelay(true)?;
        let (answer, tls) = (answer.clone(), tls.clone());
        tracker.spawn(async move {
            // A connection that breaks off is the client's affair: it counts its answers.
            match tls {
                None => drive(socket, protocol, answer).await,
                Some(tls) => {
                    if let Ok(socket) = tls.accept(socket).await {
                        drive(socket, protocol, answer).await;
                    }
                }
            }
        });
    }
}

async fn drive<I, F, A, B>(socket: I, protocol: Protocol, answer: F)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = anyhow::Result<Response<B>>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (socket, service) = (TokioIo::new(socket), service_fn(answer));
    let _ = match protocol {
        Protocol::Http1 => http1::Builder::new().serve_connection(socket, service).await,
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(STREAMS_MAX).serve_connection(socket, service).await
        }
    };
}

/// A successful answer, as the gateway writes it.
pub(crate) fn result(id: &str, result: &[u8]) -> Bytes {
    let mut text = BytesMut::with_capacity(result.len() + id.len() + 40);
    for part in [b"{\"jsonrpc\":\"2.0\",\"id\":", id.as_bytes(), b",\"result\":", result, b"}"] {
        text.extend_from_slice(part);
    }
    text.freeze()
}

pub(crate) fn json(body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Passes each request on to one address, and its answer back, both as streams.
pub(crate) async fn serve_proxy(protocol: Protocol, upstream: &str) -> anyhow::Result<()> {
    let authority: http::uri::Authority = upstream.parse()?;
    let host = HeaderValue::from_str(upstream)?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    serve(protocol, move |request| {
        let (client, authority, host) = (client.clone(), authority.clone(), host.clone());
        async move {
            let forwarded = client.request(forward(request, authority, host)?).await;
            Ok(forwarded.map(|response| response.map(BodyExt::boxed)).unwrap_or_else(|_| bad_gateway()))
        }
    })
    .await
}

fn forward(
    mut request: Request<Incoming>,
    authority: http::uri::Authority,
    host: HeaderValue,
) -> anyhow::Result<Request<Incoming>> {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().remove(CONNECTION);
    *request.version_mut() = Version::HTTP_11;
    Ok(request)
}

fn bad_gateway() -> Response<http_body_util::combinators::BoxBody<Bytes, hyper::Error>> {
    let empty = Full::default().map_err(|never: Infallible| match never {});
    let mut response = Response::new(empty.boxed());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}
