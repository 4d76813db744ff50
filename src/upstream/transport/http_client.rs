//! Sends HTTP requests to one upstream: connections, TLS, and what a failure to send means.
//!
//! Knows no JSON. Follows no redirect, asks for no encoding, carries no header that it was not given.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use metrics::Counter;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::retry::budget::{Budget as _, TpsBudget};

use super::credential::CredentialError;
use super::failure_cause::{self, causes};
use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::tls::{TlsFileError, provider};
use crate::upstream::answer_body::AnswerBody;
use crate::upstream::breaker::{AnswerHealth, Breaker};
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, RequestScope, common_headers};
use crate::upstream::reply;
use crate::upstream::upstream_health::{UpstreamFailure, UpstreamHealth};

/// Largest header block of an answer (U13). It has 100 fields at most, which is hyper's own bound: where another is set,
/// hyper fills its table of fields before it reads them.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most interim answers to one request (U13).
const INTERIM_MAX: usize = 16;
/// Most that one read takes from a connection: fewer reads, and fewer wake-ups, for large answers. A connection
/// begins with 8 KiB and grows with what comes. hyper bounds heads by the same number, so theirs is checked again.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Field syntax counted beside name and value: colon, blank, line end.
const FIELD_OVERHEAD: usize = 4;
/// How often a request is sent again that certainly never left (F26).
const RESENDS_MAX: u32 = 2;
/// All such repetitions together: a share of what is sent, and some beside it. Counted second by second.
const RESENDS_SHARE: f32 = 0.2;
const RESENDS_PER_SECOND: u32 = 10;
const RESENDS_SPAN: Duration = Duration::from_secs(1);
/// Pause before such a repetition, times its number.
const RESEND_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection is kept for the next request. Node closes idle ones after five seconds, and whether
/// a call that meets such a close has run nobody can tell.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Dead peers are found by this, since silence is normal for a running call.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Alerts that are about the certificate of a client.
const REFUSALS: [AlertDescription; 8] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];

type BoxError = Box<dyn Error + Send + Sync>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the address is no URI")]
    Address(#[from] http::uri::InvalidUri),
    #[error("the system's trusted roots cannot be used")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    File(#[from] TlsFileError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
}

/// Whom `https` trusts, and as whom it comes. The default trusts the system's roots and comes as nobody.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    /// Trusted instead of the system's roots.
    pub(crate) roots: Option<RootCertStore>,
    /// Shown to upstreams that ask for a certificate.
    pub(crate) identity: Option<Arc<CertifiedKey>>,
}

/// Connections to one upstream.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    uri: Uri,
    /// See [`target`].
    target: Uri,
    /// What every request has in common.
    headers: HeaderMap,
    /// What the upstream lets the gateway in for.
    credential: Option<(HeaderName, HeaderValue)>,
    connect_max: Duration,
    /// Boxed: a connection has a queue with room for 32 requests, however few it will ever have.
    pool: Client<ConnectLimit, Box<SinglePieceBody>>,
    breaker: Arc<Breaker>,
    health: Arc<UpstreamHealth>,
    /// How many requests may be sent again, beside those that are sent at all.
    resends: Arc<TpsBudget>,
    resent: Counter,
}

impl HttpClient {
    /// A client for one address.
    ///
    /// The metrics recorder must be installed before.
    pub(crate) fn new(
        name: &Arc<str>,
        url: &url::Url,
        connect_max: Duration,
        tls: ClientTls,
    ) -> Result<Self, ClientError> {
        let uri: Uri = url.as_str().parse()?;
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_keepalive(Some(KEEP_ALIVE));
        let secure = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(url, tls)?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(plain);
        let pool = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .http1_max_buf_size(READ_BYTES_MAX)
            .http2_max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_while_idle(true)
            .build(ConnectLimit { inner: secure, to: uri.clone(), max: connect_max });
        let is_plain = uri.scheme() == Some(&Scheme::HTTP);
        let authority = uri.authority().filter(|_| is_plain);
        // Elsewhere than over plain HTTP/1.1 the connection decides whether there is one.
        let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let health = Arc::new(UpstreamHealth::new(name, &url.origin().ascii_serialization()));
        Ok(Self {
            target: target(&uri),
            uri,
            headers: common_headers(host),
            credential: None,
            connect_max,
            pool,
            breaker: Arc::new(Breaker::new(Arc::clone(&health))),
            health,
            resends: Arc::new(TpsBudget::new(RESENDS_SPAN, RESENDS_PER_SECOND, RESENDS_SHARE)),
            resent: metrics::counter!(metric::UPSTREAM_RESENT, "upstream" => Arc::clone(name)),
        })
    }

    /// The same client with a header on every request.
    pub(crate) fn with_credential(self, credential: Option<(HeaderName, HeaderValue)>) -> Self {
        Self { credential, ..self }
    }

    /// The same client, connections and all, for another address of the same origin.
    ///
    /// # Errors
    /// If the address is no URI.
    pub(crate) fn at(&self, url: &url::Url) -> Result<Self, ClientError> {
        let uri = url.as_str().parse()?;
        Ok(Self { target: target(&uri), uri, ..self.clone() })
    }

    /// Where this reports what is wrong with the upstream.
    pub(crate) const fn health(&self) -> &Arc<UpstreamHealth> {
        &self.health
    }

    /// The body of an answer to this request, which reports if it breaks off. Streams that belong to no request of the
    /// gateway's end as their servers like.
    pub(crate) fn body_of(&self, outgoing: &OutgoingRequest, body: Incoming) -> AnswerBody {
        let is_answer = outgoing.method() == Method::POST;
        AnswerBody::Http(body, is_answer.then(|| Arc::clone(&self.health)))
    }

    /// Notes what the head of an answer says of the upstream.
    pub(crate) fn note<B: Body>(&self, outgoing: &OutgoingRequest, response: &Response<B>) {
        match failure_cause::of_head(&self.uri, outgoing, response) {
            Some(trouble) => self.health.failed(trouble),
            None => self.health.answered(),
        }
    }

    /// As [`HttpClient::try_send`], with what the head of the answer says noted.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<Incoming>, GatewayFault> {
        let response = self.try_send(outgoing, handed_over).await?;
        self.note(outgoing, &response);
        Ok(response)
    }

    /// Sends a request and waits for the head of its answer, which may take as long as the upstream likes. That there is
    /// none is noted.
    ///
    /// What certainly never left is sent again, at most twice, within the connect limit and what all requests
    /// together may. Dropping the future drops the request wherever it is.
    ///
    /// # Errors
    /// If there is no answer; at once where the upstream is ill and the request a new one.
    pub(crate) async fn try_send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<Incoming>, GatewayFault> {
        let pass = match outgoing.part() {
            RequestScope::New => Some(self.breaker.admit()?),
            RequestScope::UnderWay => None,
        };
        let answer = self.send_within_limits(outgoing, handed_over).await.map_err(|(fault, cause)| {
            self.health.failed(UpstreamFailure::new(fault.reason, cause));
            fault
        });
        if let Some(pass) = pass {
            pass.note(match &answer {
                Ok(response) => {
                    let headers = response.headers();
                    AnswerHealth::of_head(response, reply::is_json(headers), reply::retry_after(headers))
                }
                Err(fault) => AnswerHealth::of_fault(fault),
            });
        }
        answer
    }

    async fn send_within_limits(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<Incoming>, (GatewayFault, String)> {
        let malformed =
            |cause: &str| (GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown), cause.to_owned());
        self.resends.deposit();
        let resend_until = tokio::time::Instant::now() + self.connect_max;
        let mut resends = 0;
        loop {
            let interim = InterimAnswers::default();
            let request = interim.counted(self.request(outgoing, handed_over));
            let answer = tokio::select! {
                answer = self.pool.request(request) => answer,
                // Dropping the request closes its connection.
                () = interim.too_many() => return Err(malformed("too many interim answers")),
            };
            if interim.is_too_many() {
                return Err(malformed("too many interim answers"));
            }
            let failure = match answer {
                Ok(response) if head_bytes(response.headers()) > HEAD_BYTES_MAX => {
                    return Err(malformed("a header block that is too large"));
                }
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let left = handed_over.initialized() || (outgoing.body().is_none() && !failure.is_connect());
            let fault = if left { fault_after(&failure) } else { fault_before(&failure) };
            let again = !left && fault.reason == Reason::UpstreamUnreachable && resends < RESENDS_MAX;
            if !again || tokio::time::Instant::now() >= resend_until || !self.resends.withdraw() {
                return Err((fault, failure_cause::cause(&failure)));
            }
            resends += 1;
            self.resent.increment(1);
            tokio::time::sleep(RESEND_PAUSE * resends).await;
        }
    }

    fn request(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> Request<Box<SinglePieceBody>> {
        let body = SinglePieceBody { data: outgoing.body().cloned(), handed_over: Arc::clone(handed_over) };
        let mut request = Request::new(Box::new(body));
        *request.method_mut() = outgoing.method();
        *request.uri_mut() = self.target.clone();
        let mut headers = outgoing.headers(&self.headers);
        if let Some((name, value)) = &self.credential {
            headers.insert(name, value.clone());
        }
        *request.headers_mut() = headers;
        request
    }
}

/// What requests to an address are made for. The pool hashes the authority letter by letter, twice for each request. Over
/// plain HTTP/1.1 nobody else reads it: one letter will do, since the connector knows where it goes.
fn target(uri: &Uri) -> Uri {
    let mut parts = uri.clone().into_parts();
    if parts.scheme == Some(Scheme::HTTP) {
        parts.authority = Some(Authority::from_static("u"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// TLS for one address. Plain `http` needs no trust, so that a machine without certificates can serve it.
fn tls_config(url: &url::Url, tls: ClientTls) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match tls.roots {
        Some(roots) => builder.with_root_certificates(roots),
        None if url.scheme() != "https" => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier::new(provider())?)),
    };
    Ok(match tls.identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    })
}

fn head_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum()
}

/// What a failure means while nothing of the request has left.
fn fault_before(failure: &(dyn Error + 'static)) -> GatewayFault {
    let tls = causes(failure).any(|cause| cause.is::<rustls::Error>());
    let reason = if tls { Reason::UpstreamTls } else { Reason::UpstreamUnreachable };
    GatewayFault::new(reason, Executed::No)
}

/// What a failure means once the request may have arrived.
///
/// With TLS 1.3 a client may send before the upstream has judged its certificate. An upstream that refuses the
/// certificate has looked at nothing else (RFC 8446, 4.4.2.4), so nothing was run.
fn fault_after(failure: &(dyn Error + 'static)) -> GatewayFault {
    if causes(failure).any(refuses_us) {
        return GatewayFault::new(Reason::UpstreamTls, Executed::No);
    }
    let garbled = causes(failure).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse));
    let reason = if garbled { Reason::UpstreamMalformed } else { Reason::UpstreamClosed };
    GatewayFault::new(reason, Executed::Unknown)
}

/// Whether the upstream ended the handshake because of the certificate that it was shown, or was not.
///
/// Told by its words: of what the socket reported, HTTP/2 keeps nothing else.
fn refuses_us(cause: &(dyn Error + 'static)) -> bool {
    let words = cause.to_string();
    REFUSALS.into_iter().any(|alert| rustls::Error::AlertReceived(alert).to_string() == words)
}

/// Counts the interim answers (1xx) to one request.
#[derive(Clone, Debug, Default)]
struct InterimAnswers(Arc<(AtomicUsize, Notify)>);

impl InterimAnswers {
    fn counted<B>(&self, mut request: Request<B>) -> Request<B> {
        let Self(shared) = self.clone();
        hyper::ext::on_informational(&mut request, move |_| {
            if shared.0.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX {
                shared.1.notify_one();
            }
        });
        request
    }

    fn is_too_many(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) > INTERIM_MAX
    }

    /// Returns once there were more than there may be. Cancel safe.
    async fn too_many(&self) {
        self.0.1.notified().await;
    }
}

/// A body in one piece that tells when a connection takes it.
#[derive(Debug)]
struct SinglePieceBody {
    data: Option<Bytes>,
    handed_over: HandedOver,
}

impl Body for SinglePieceBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let data = self.data.take();
        if data.is_some() {
            // Set already where another connection took an earlier copy; both mean the same.
            let _ = self.handed_over.set(());
        }
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// Connects to one server. Bounds everything that leads to a usable connection: name, TCP and TLS.
#[derive(Clone, Debug)]
struct ConnectLimit {
    inner: HttpsConnector<HttpConnector>,
    to: Uri,
    max: Duration,
}

impl tower::Service<Uri> for ConnectLimit {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.inner.call(self.to.clone());
        let max = self.max;
        Box::pin(async move { tokio::time::timeout(max, connecting).await? })
    }
}

#[cfg(test)]
mod tests;
