//! Sends HTTP requests to one upstream: connections, TLS, and the faults of failures. Knows no JSON. Follows no
//! redirect, accepts no encoding, adds no header by itself.

mod connector;
mod interim;
mod pool;
mod session_cookies;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, PROXY_AUTHORIZATION};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Frame, SizeHint};
use metrics::Counter;
use rustls::AlertDescription;
use tower::retry::budget::{Budget as _, TpsBudget};

use super::credential::{CredentialError, CredentialIssuer};
use super::failure_cause::{self, causes};
use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::tls::TlsFileError;
use crate::upstream::answer_body::{AnswerBody, AnswerReporter};
use crate::upstream::breaker::{AnswerHealth, Breaker};
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, RequestScope, SESSION_ID, common_headers};
use crate::upstream::reply;
use crate::upstream::upstream_health::{UpstreamFailure, UpstreamHealth};
pub(crate) use connector::{AddressReach, ClientTls, is_public};
use connector::{Connector, Proxy};
pub use connector::{ProxyError, ProxySettings};
pub(crate) use pool::PooledBody;
use pool::{ConnectionPool, SendError, StreamWait};
use session_cookies::SessionCookies;

/// Largest header block of a response (U13), in hyper's default of 100 fields: other limits fill its table first.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Counted beside name and value: colon, blank, line end.
const FIELD_OVERHEAD: usize = 4;
/// How often a request that certainly never left is sent again (F26).
const RESENDS_MAX: u32 = 2;
/// The retry budget: a share of sent requests, and some beside it.
const RESENDS_SHARE: f32 = 0.2;
const RESENDS_PER_SECOND: u32 = 10;
const RESENDS_SPAN: Duration = Duration::from_secs(1);
/// The pause before a retry, multiplied by its number.
const RESEND_PAUSE: Duration = Duration::from_millis(50);

/// TLS alerts about a client's certificate.
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

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the address is not a URI")]
    Address(#[from] http::uri::InvalidUri),
    #[error("the system's trusted roots cannot be used")]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    File(#[from] TlsFileError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    uri: Uri,
    path: Uri,
    /// For HTTP/1.1.
    headers: HeaderMap,
    /// The gateway's credential, and the operator's other headers.
    own: Arc<[(HeaderName, HeaderValue)]>,
    issuer: Option<Arc<dyn CredentialIssuer>>,
    connect_max: Duration,
    proxy: Option<Arc<Proxy>>,
    cookies: SessionCookies,
    pool: ConnectionPool,
    breaker: Arc<Breaker>,
    health: Arc<UpstreamHealth>,
    resends: Arc<TpsBudget>,
    resent: Counter,
}

impl HttpClient {
    /// The metrics recorder must be installed before.
    pub(crate) fn new(
        name: &Arc<str>,
        url: &url::Url,
        connect_max: Duration,
        tls: ClientTls,
        proxy: &ProxySettings,
    ) -> Result<Self, ClientError> {
        let uri: Uri = url.as_str().parse()?;
        let proxy = Proxy::of(proxy, url)?;
        let pool = ConnectionPool::new(Connector::new(uri.clone(), tls, proxy.clone())?, connect_max, HEAD_BYTES_MAX);
        let host = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let health = Arc::new(UpstreamHealth::new(name, &url.origin().ascii_serialization()));
        Ok(Self {
            path: path(&uri),
            uri,
            headers: common_headers(host),
            own: Arc::default(),
            issuer: None,
            connect_max,
            proxy: proxy.map(Arc::new),
            cookies: SessionCookies::new(),
            pool,
            breaker: Arc::new(Breaker::new(Arc::clone(&health))),
            health,
            resends: Arc::new(TpsBudget::new(RESENDS_SPAN, RESENDS_PER_SECOND, RESENDS_SHARE)),
            resent: metrics::counter!(metric::UPSTREAM_RESENT, "upstream" => Arc::clone(name)),
        })
    }

    pub(crate) fn with_headers(self, own: Vec<(HeaderName, HeaderValue)>) -> Self {
        Self { own: own.into(), ..self }
    }

    pub(crate) fn with_issuer(self, issuer: Option<Arc<dyn CredentialIssuer>>) -> Self {
        Self { issuer, ..self }
    }

    /// The same connections, for another address of the same origin.
    pub(crate) fn at(&self, url: &url::Url) -> Result<Self, ClientError> {
        let uri = url.as_str().parse()?;
        Ok(Self { path: path(&uri), uri, ..self.clone() })
    }

    pub(crate) const fn health(&self) -> &Arc<UpstreamHealth> {
        &self.health
    }

    /// A response whose body updates the health, by a break or an MCP message. A stream without a request may just end.
    pub(crate) fn answer_of(&self, outgoing: &OutgoingRequest, response: Response<PooledBody>) -> Response<AnswerBody> {
        let (is_answer, is_success) = (outgoing.method() == Method::POST, response.status().is_success());
        let reporter = is_answer.then(|| AnswerReporter::new(&self.health, is_success));
        response.map(|body| body.reporting_to(reporter))
    }

    /// Records only a failure: a good head is no response yet.
    pub(crate) fn note_failure<B: Body>(&self, outgoing: &OutgoingRequest, response: &Response<B>) {
        let trouble = failure_cause::of_head(&self.uri, outgoing, response)
            // It asks a client to log in, as it should.
            .filter(|trouble| trouble.reason != Reason::UpstreamAuth || !outgoing.client().is_clients())
            .filter(|_| !limits_one_client(outgoing, response));
        trouble.into_iter().for_each(|trouble| self.health.failed(trouble));
    }

    /// As [`HttpClient::try_send`], and records a failure by the response's head.
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<PooledBody>, GatewayFault> {
        let response = self.try_send(outgoing, handed_over).await?;
        self.note_failure(outgoing, &response);
        Ok(response)
    }

    /// Returns with the response's head, without a time limit; records a missing response. Fails at once if the
    /// upstream is failing and the request is new. A request that certainly never left is sent again, at most twice,
    /// within the connect limit and the retry budget. Dropping the future drops the request.
    pub(crate) async fn try_send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<PooledBody>, GatewayFault> {
        // Boxed: few upstreams have issued credentials, and every call in progress holds this future.
        let issued = match &self.issuer {
            Some(issuer) => Some(Box::pin(self.issued(&**issuer, outgoing)).await?),
            None => None,
        };
        let pass = match outgoing.part() {
            RequestScope::New => Some(self.breaker.admit()?),
            RequestScope::UnderWay => None,
        };
        let answer = match self.issuer.as_ref().zip(issued) {
            Some((issuer, issued)) => {
                Box::pin(self.send_with_credential(&**issuer, outgoing, handed_over, issued)).await
            }
            None => self.send_within_limits(outgoing, Arc::clone(handed_over), None).await,
        };
        let answer = answer.map_err(|(fault, cause)| {
            self.health.failed(UpstreamFailure::new(fault.reason, cause));
            fault
        });
        if let Ok(response) = &answer {
            outgoing.forwarded().note(response);
            self.note_cookies(outgoing, response);
        }
        let is_about_client = answer.as_ref().is_ok_and(|response| limits_one_client(outgoing, response));
        if let Some(pass) = pass.filter(|_| !is_about_client) {
            pass.note(match &answer {
                Ok(response) if response.status().is_success() => AnswerHealth::Well,
                Ok(response) => {
                    AnswerHealth::of_head(response, reply::is_json(response.headers()), reply::retry_after(response))
                }
                Err(fault) => AnswerHealth::of_fault(fault),
            });
        }
        answer
    }

    /// The credential that is issued for a request. A call in progress may have run.
    async fn issued(
        &self,
        issuer: &dyn CredentialIssuer,
        outgoing: &OutgoingRequest,
    ) -> Result<HeaderValue, GatewayFault> {
        match issuer.header(&outgoing.client()).await {
            Ok(value) => Ok(value),
            Err(fault) => {
                if !issuer.is_per_client() {
                    let cause = format!("no credential was issued: {}", issuer.last_cause().unwrap_or_default());
                    self.health.failed(UpstreamFailure::new(fault.reason, cause));
                }
                let is_new = outgoing.part() == RequestScope::New;
                Err(GatewayFault { executed: if is_new { Executed::No } else { Executed::Unknown }, ..fault })
            }
        }
    }

    /// Sends a request once more with a renewed credential if the upstream answers 401, before which it has run nothing.
    async fn send_with_credential(
        &self,
        issuer: &dyn CredentialIssuer,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        issued: HeaderValue,
    ) -> Result<Response<PooledBody>, (GatewayFault, String)> {
        let response = self.send_within_limits(outgoing, Arc::clone(handed_over), Some(&issued)).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        match issuer.after_refusal(&outgoing.client(), &issued).await {
            // The refused request has certainly not run.
            Some(renewed) => self.send_within_limits(outgoing, HandedOver::default(), Some(&renewed)).await,
            None => Ok(response),
        }
    }

    /// Keeps a session's cookies, from the response that opens it on.
    fn note_cookies<B>(&self, outgoing: &OutgoingRequest, response: &Response<B>) {
        let headers = response.headers();
        if let Some(session) = outgoing.session().or_else(|| headers.get(SESSION_ID)) {
            match outgoing.method() {
                Method::DELETE => self.cookies.remove(session),
                _ => self.cookies.note(session, &self.uri, headers),
            }
        }
    }

    async fn send_within_limits(
        &self,
        outgoing: &OutgoingRequest,
        mut handed_over: HandedOver,
        issued: Option<&HeaderValue>,
    ) -> Result<Response<PooledBody>, (GatewayFault, String)> {
        let malformed =
            |cause: &str| (GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown), cause.to_owned());
        self.resends.deposit();
        let resend_until = tokio::time::Instant::now() + self.connect_max;
        let mut resends = 0;
        loop {
            let answer = self.pool.send(|version| self.request(outgoing, issued, &handed_over, version)).await;
            let failure = match answer {
                Ok(response) if head_bytes(response.headers()) > HEAD_BYTES_MAX => {
                    return Err(malformed("a header block that is too large"));
                }
                Ok(response) => return Ok(response),
                Err(SendError::TooManyInterim) => return Err(malformed("too many interim answers")),
                Err(failure) => failure,
            };
            let is_connected = !matches!(failure, SendError::Connect(_));
            let is_refused = causes(&failure).any(|cause| cause.downcast_ref().is_some_and(is_unprocessed));
            let left = (handed_over.initialized() || (outgoing.body().is_none() && is_connected)) && !is_refused;
            let fault = if left { fault_after(&failure) } else { fault_before(&failure) };
            let again = !left && fault.reason == Reason::UpstreamUnreachable && resends < RESENDS_MAX;
            let is_timely = || tokio::time::Instant::now() < resend_until && self.resends.withdraw();
            if !again || !(matches!(failure, SendError::NoStream) || is_timely()) {
                let cause = failure_cause::cause(&failure);
                let through = self.proxy.as_ref().map(|proxy| format!("through the proxy {}: {cause}", proxy.name()));
                return Err((fault, through.unwrap_or(cause)));
            }
            resends += 1;
            if is_refused {
                handed_over = HandedOver::default();
            }
            self.resent.increment(1);
            tokio::time::sleep(RESEND_PAUSE * resends).await;
        }
    }

    fn request(
        &self,
        outgoing: &OutgoingRequest,
        issued: Option<&HeaderValue>,
        handed_over: &HandedOver,
        version: Version,
    ) -> Request<Box<SinglePieceBody>> {
        let body = SinglePieceBody { data: outgoing.body().cloned(), handed_over: Arc::clone(handed_over), wait: None };
        let mut request = Request::new(Box::new(body));
        *request.method_mut() = outgoing.method();
        let mut headers = outgoing.headers(&self.headers);
        // Over TLS a proxy only has its tunnel.
        let proxy = self.proxy.as_ref().filter(|_| self.uri.scheme() == Some(&Scheme::HTTP));
        *request.uri_mut() = if version == Version::HTTP_2 {
            headers.remove(HOST);
            self.uri.clone()
        } else if proxy.is_some() {
            self.uri.clone()
        } else {
            self.path.clone()
        };
        if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization.as_ref()) {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        if let Some(cookies) = outgoing.session().and_then(|session| self.cookies.field(session, &self.uri)) {
            headers.insert(COOKIE, cookies);
        }
        for (name, value) in &*self.own {
            headers.insert(name, value.clone());
        }
        if let Some(value) = issued {
            headers.insert(AUTHORIZATION, value.clone());
        }
        // One allocation, where hyper's own field takes two.
        if let Some(length) = outgoing.body().and_then(|body| HeaderValue::try_from(body.len().to_string()).ok()) {
            headers.insert(CONTENT_LENGTH, length);
        }
        *request.headers_mut() = headers;
        request
    }
}

/// A server may limit each client by its own credential: its 429 does not concern the others (SEC-90).
fn limits_one_client<B>(outgoing: &OutgoingRequest, response: &Response<B>) -> bool {
    let client = outgoing.client();
    let has_credential = client.value().is_some() || client.subject().is_some();
    has_credential && response.status() == StatusCode::TOO_MANY_REQUESTS
}

fn path(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from)
}

fn head_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum()
}

/// Whether a peer reported that it did not process a request (RFC 9113, 8.7). h2 applies GOAWAY to later streams only.
pub(crate) fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// Before any byte of the request has left, or after the upstream reported that it processed none.
fn fault_before(failure: &(dyn Error + 'static)) -> GatewayFault {
    let tls = causes(failure).any(|cause| cause.is::<rustls::Error>());
    let reason = if tls { Reason::UpstreamTls } else { Reason::UpstreamUnreachable };
    GatewayFault::new(reason, Executed::No)
}

/// After the request may have arrived. With TLS 1.3 a client may send before its certificate is checked: an upstream
/// that refuses the certificate has run nothing (RFC 8446, 4.4.2.4).
fn fault_after(failure: &(dyn Error + 'static)) -> GatewayFault {
    if causes(failure).any(refuses_us) {
        return GatewayFault::new(Reason::UpstreamTls, Executed::No);
    }
    let garbled = causes(failure).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse));
    let reason = if garbled { Reason::UpstreamMalformed } else { Reason::UpstreamClosed };
    GatewayFault::new(reason, Executed::Unknown)
}

/// Whether the upstream refused the client's certificate, by the text: HTTP/2 keeps nothing else of a socket's error.
fn refuses_us(cause: &(dyn Error + 'static)) -> bool {
    let words = cause.to_string();
    REFUSALS.into_iter().any(|alert| rustls::Error::AlertReceived(alert).to_string() == words)
}

/// A body in one piece that reports when a connection takes it.
#[derive(Debug)]
struct SinglePieceBody {
    data: Option<Bytes>,
    handed_over: HandedOver,
    wait: Option<StreamWait>,
}

impl Body for SinglePieceBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let data = self.data.take();
        self.wait = None;
        if data.is_some() {
            // Set already if another connection took an earlier copy.
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

#[cfg(test)]
mod tests;
