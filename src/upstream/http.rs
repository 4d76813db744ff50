//! Implements streamable HTTP: in sessions, 2025-03-26 to 2025-11-25, and `stateless` for 2026-07-28. Read `exchange`
//! for one call in a session, `drive` for its course, then `upstream::session` for the state that calls share.
//! `task_follower` follows the upstream's own tasks; no status text leaves it.

mod drive;
pub(crate) mod exchange;
mod resume_token;
pub(crate) mod stateless;
mod task_follower;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};

use super::era::{EraCache, EraUpstream};
use super::exchange::ExchangeLatencies;
use super::issued_credential::{IssuedCredentialSettings, IssuedCredentials};
use super::limits::{CallPermits, CallPermitsByName};
use super::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use super::raw_channel::{RawBody, RawChannel, RawMethod, RawRequest, RawResponse, SessionBinding};
use super::resource_metadata::ResourceMetadata;
use super::session::own::{OwnSessionChannel, SessionLease};
use super::session::pool::SessionPool;
use super::session::{POLLS, SessionKey, UpstreamLink};
use super::transport::adapter::TransportAdapter;
use super::transport::credential::{Credential, CredentialIssuer};
use super::transport::http_client::{ClientTls, HttpClient};
use super::transport::sse::{self, SseDetected, SseTransport};
use super::transport::stdio::{LastLines, StdioTransport, StdioUpstreamSettings};
use super::transport::{Transport, TransportDetection};
use super::upstream_health::UpstreamHealth;
use super::version_choice::VersionChoice;
use super::{
    BeginError, CallContext, Era, Exchange, Handshake, NotificationSubscription, ResumeToken, TaskScope, Upstream,
    UpstreamRequest, own_ids,
};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Reason};
use crate::tls::{self, IdentityFiles, TlsFileError, read_roots};
use crate::upstream::exchange::{NotificationResult, SubscriptionResult};
use crate::wire::ProtocolVersion;
use drive::SessionSource;
use exchange::HttpExchange;
use resume_token::CallPosition;
use stateless::StatelessUpstream;

pub use super::transport::http_client::{ClientError, ProxyError, ProxySettings};
pub(crate) use stateless::task_token as stateless_task_token;

const CLOSE_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUpstreamSettings {
    pub name: Arc<str>,
    /// `http` or `https`, no user info, no fragment.
    pub url: url::Url,
    pub transport: HttpTransport,
    /// Largest event of HTTP+SSE's only stream; over streamable HTTP each call has its own limit.
    pub event_bytes_max: usize,
    /// A fixed version for this upstream; `None` negotiates.
    pub protocol: Option<ProtocolVersion>,
    pub connect_max: Duration,
    pub tls: UpstreamTlsFiles,
    /// Sent with every request.
    pub credential: Option<Credential>,
    /// A credential with a limited lifetime; the credential above is then not in `Authorization`.
    pub issued: Option<Box<IssuedCredentialSettings>>,
    pub proxy: ProxySettings,
    /// Sent with every request; none has the credential's name.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl HttpUpstreamSettings {
    /// Without a credential, and without a proxy.
    pub fn new(name: Arc<str>, url: url::Url) -> Self {
        Self {
            name,
            url,
            transport: HttpTransport::Auto,
            event_bytes_max: 32 << 20,
            protocol: None,
            connect_max: Duration::from_secs(5),
            tls: UpstreamTlsFiles::default(),
            credential: None,
            issued: None,
            proxy: ProxySettings::Direct,
            headers: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP, or HTTP+SSE if the server refuses that.
    #[default]
    Auto,
    Streamable,
    /// HTTP+SSE of 2024-11-05, for every version.
    Sse,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTlsFiles {
    /// Trusted instead of the system's authorities, any of which could certify an impostor of a private server.
    pub ca: Option<PathBuf>,
    pub identity: Option<IdentityFiles>,
}

impl UpstreamTlsFiles {
    fn read(&self) -> Result<ClientTls, TlsFileError> {
        let identity = self.identity.as_ref().map(IdentityFiles::read);
        let roots = self.ca.as_deref().map(read_roots).transpose()?;
        Ok(ClientTls { roots, identity: identity.transpose()?, ..ClientTls::default() })
    }
}

pub fn certificate_use(upstream: &str) -> String {
    format!("upstream {upstream}")
}

#[derive(Debug)]
pub struct SessionUpstream {
    link: Arc<UpstreamLink>,
    pool: Arc<SessionPool>,
    era: Option<Era>,
    /// Absent for a program.
    metadata: Option<Arc<ResourceMetadata>>,
}

impl SessionUpstream {
    /// Sends nothing yet. Needs a tokio runtime. Fails if the address, trusted roots or a configured file is unusable.
    pub fn new(settings: HttpUpstreamSettings, scope: TaskScope) -> Result<Self, ClientError> {
        Self::within(settings, scope, &SharedLimits::default())
    }

    /// As [`SessionUpstream::new`], within these limits of principals. Fails as [`SessionUpstream::new`].
    pub fn within(
        settings: HttpUpstreamSettings,
        scope: TaskScope,
        limits: &SharedLimits,
    ) -> Result<Self, ClientError> {
        let tls = settings.tls.read()?;
        tls::show_end(certificate_use(&settings.name), tls.identity.as_deref());
        let client = HttpClient::new(&settings.name, &settings.url, settings.connect_max, tls, &settings.proxy)?;
        let era = settings.protocol.map(Era::of);
        let credential = settings.credential.as_ref().map(Credential::read).transpose()?;
        let client = client.with_headers(credential.into_iter().chain(settings.headers.iter().cloned()).collect());
        let issued = settings.issued.as_deref();
        let issuer = issued.map(|issued| IssuedCredentials::new(&settings.name, issued, scope.clone())).transpose()?;
        let client = client.with_issuer(issuer.map(|issuer| Arc::new(issuer) as Arc<dyn CredentialIssuer>));
        let health = Arc::clone(client.health());
        let metadata = ResourceMetadata::new(&settings.name, client.clone(), settings.url.clone());
        // Only servers with sessions speak HTTP+SSE.
        let (transport, era) = match (settings.transport, era) {
            (HttpTransport::Streamable, era) | (HttpTransport::Auto, era @ Some(Era::Stateless)) => {
                (Transport::Http(client), era)
            }
            (HttpTransport::Auto, era) => {
                let seen = SseDetected::default();
                let sse = sse_stand(&settings, client.clone(), seen.clone(), &scope, limits);
                (
                    Transport::Either(Box::new(TransportDetection::new(Arc::clone(&settings.name), client, sse, seen))),
                    era,
                )
            }
            (HttpTransport::Sse, _) => {
                let sse = sse_stand(&settings, client, SseDetected::default(), &scope, limits);
                (Transport::Adapted(Box::new(sse)), Some(Era::Session))
            }
        };
        let upstream = Self::over(transport, health, settings.protocol, era, scope, limits.clone());
        Ok(Self { metadata: Some(Arc::new(metadata)), ..upstream })
    }

    pub const fn metadata(&self) -> Option<&Arc<ResourceMetadata>> {
        self.metadata.as_ref()
    }

    pub fn health(&self) -> Arc<UpstreamHealth> {
        Arc::clone(&self.link.health)
    }

    /// A program with MCP over standard I/O, not started yet; `processes` may be shared. Needs a tokio runtime.
    pub fn stdio_within(settings: StdioUpstreamSettings, scope: TaskScope, processes: CallPermits) -> Self {
        Self::of_program(settings, scope, processes, None)
    }

    /// As [`Self::stdio_within`] without sharing; `output` keeps the program's standard error for display.
    pub fn stdio_with_output(settings: StdioUpstreamSettings, scope: TaskScope, output: Arc<LastLines>) -> Self {
        let processes = CallPermitsByName::default().unmetered_of(&settings.name, settings.process_permits());
        Self::of_program(settings, scope, processes, Some(output))
    }

    fn of_program(
        settings: StdioUpstreamSettings,
        scope: TaskScope,
        processes: CallPermits,
        output: Option<Arc<LastLines>>,
    ) -> Self {
        let (protocol, dedicated) = (settings.protocol, settings.dedicated.clone());
        // Not the arguments, which may hold secrets.
        let health = Arc::new(UpstreamHealth::new(&settings.name, &settings.program));
        let wire = Box::new(StdioTransport { settings, health: Arc::clone(&health), scope: scope.clone(), output });
        let stand = TransportAdapter::within(Arc::clone(&health), wire, processes, scope.clone())
            .with_dedicated_calls(dedicated);
        let (transport, era) = (Transport::Adapted(Box::new(stand)), protocol.map(Era::of));
        // A program's messages come whole, and are counted where they are read.
        Self::over(transport, health, protocol, era, scope, SharedLimits::default())
    }

    fn over(
        transport: Transport,
        health: Arc<UpstreamHealth>,
        protocol: Option<ProtocolVersion>,
        era: Option<Era>,
        scope: TaskScope,
        limits: SharedLimits,
    ) -> Self {
        let name = Arc::clone(health.name());
        let link = Arc::new(UpstreamLink {
            latencies: ExchangeLatencies::of(&name),
            name,
            health,
            transport,
            versions: VersionChoice::new(protocol.filter(|version| !version.is_stateless())),
            tracker: scope.tracker,
            stop: scope.stop,
            polls: CallPermits::unmetered(POLLS, limits.clone()),
            limits,
        });
        Self { pool: SessionPool::new(Arc::clone(&link)), link, era, metadata: None }
    }

    /// The same server for stateless clients, in their era if the server supports it.
    pub fn for_stateless_clients(self: &Arc<Self>) -> EraUpstream {
        let eras =
            if self.link.transport.is_adapted() { EraCache::of_started(self.era) } else { EraCache::new(self.era) };
        let eras = Arc::new(eras);
        let stateless = Arc::new(StatelessUpstream::new(Arc::clone(&self.link), Arc::clone(&eras)));
        EraUpstream::new(Arc::<Self>::clone(self), stateless, eras, self.link.tracker.clone())
    }

    /// Raw access, in clients' own sessions or without one.
    pub fn channel(&self) -> Arc<dyn OwnSessionChannel> {
        Arc::new(Arc::clone(&self.link))
    }

    /// Opens this client's session, and waits for its stream up to `max`: some servers lose messages sent before it is
    /// open, others send no response head before the first event. Cancel safe. Fails if no handshake succeeds.
    pub async fn listened(&self, context: &CallContext, max: Duration) -> Result<(), BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let _ = tokio::time::timeout(max, session.listened()).await;
        Ok(())
    }

    /// A token to follow a server's task in this client's session, from another's handle. Fails without a handshake.
    pub async fn task_token(&self, task: &str, context: &CallContext) -> Result<ResumeToken, BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let at = CallPosition::Task { id: Arc::from(task), tasks: session.tasks, above: Arc::default() };
        let token = resume_token::token(&own_ids::mint(), &session.credentials, &at, &[]);
        token.ok_or(BeginError::Gateway(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)))
    }

    fn source(&self, context: &CallContext) -> SessionSource {
        SessionSource::Pool { pool: Arc::clone(&self.pool), key: SessionKey::of(context) }
    }
}

fn sse_stand(
    settings: &HttpUpstreamSettings,
    client: HttpClient,
    seen: SseDetected,
    scope: &TaskScope,
    limits: &SharedLimits,
) -> TransportAdapter {
    let (name, url) = (Arc::clone(&settings.name), settings.url.clone());
    let health = Arc::clone(client.health());
    let event_bytes_max = settings.event_bytes_max;
    let wire = SseTransport { name, url, client, event_bytes_max, seen, scope: scope.clone() };
    TransportAdapter::new(health, Box::new(wire), sse::SESSIONS_MAX, limits.clone(), scope.clone())
}

#[async_trait]
impl Upstream for SessionUpstream {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let handshake = session.handshake().cloned();
        handshake.ok_or(BeginError::Gateway(GatewayFault::new(Reason::Internal, Executed::No)))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(HttpExchange::begin(&self.link, self.source(&context), request, &context).await?))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(HttpExchange::resume(&self.link, self.source(&context), &token, &context)?))
    }

    async fn notifications(&self, context: &CallContext) -> NotificationResult {
        Ok(self.pool.session(&SessionKey::of(context), &context.forwarded).await?.subscribe())
    }

    async fn listen(&self, context: &CallContext, wishes: &SubscriptionFilter) -> SubscriptionResult {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        // Before the first subscription request, so that no notification is missed.
        let news = session.subscribe();
        let ended = session.ended().clone();
        let held = session.hold(wishes.resources.iter().flatten().cloned().collect()).await;
        let resources = wishes.resources.as_ref().map(|_| held.uris().into_iter().collect());
        let granted = SubscriptionFilter { resources, ..wishes.of_the_upstream() };
        Ok(NotificationSubscription { news, granted, ended, kept: Box::new(held) })
    }

    fn end_idle(&self) {
        self.link.transport.end_idle();
    }

    async fn restart(&self) {
        self.link.transport.restart().await;
        // A handshake with the program that has just ended fails.
        self.pool.remove_handshakes();
    }

    async fn close(&self) {
        let _ = tokio::time::timeout(CLOSE_MAX, self.pool.close()).await;
        self.link.transport.close().await;
    }
}

#[derive(Debug)]
struct ClientSessionUpstream {
    link: Arc<UpstreamLink>,
    lease: Arc<SessionLease>,
}

/// The client alone received the handshake's result and the notifications.
const NOT_KNOWN_HERE: GatewayFault = GatewayFault::new(Reason::Internal, Executed::No);

#[async_trait]
impl Upstream for ClientSessionUpstream {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        Err(BeginError::Gateway(NOT_KNOWN_HERE))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let source = SessionSource::Own(Arc::clone(&self.lease));
        Ok(Box::new(HttpExchange::begin(&self.link, source, request, &context).await?))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(HttpExchange::resume(&self.link, SessionSource::Own(Arc::clone(&self.lease)), &token, &context)?))
    }

    async fn notifications(&self, _: &CallContext) -> NotificationResult {
        Err(BeginError::Gateway(NOT_KNOWN_HERE))
    }
}

#[async_trait]
impl RawChannel for Arc<UpstreamLink> {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion {
        self.versions.fixed().unwrap_or(client)
    }

    fn version_after(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion> {
        self.versions.older(asked, refusal)
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        let outgoing = outgoing(request);
        let response = self.transport.send(&outgoing, &HandedOver::default()).await?;
        Ok(response.map(RawBody::from).into())
    }

    fn health(&self) -> Option<&UpstreamHealth> {
        Some(&self.health)
    }

    fn makes_streams(&self) -> bool {
        self.transport.is_adapted()
    }

    fn reads_messages(&self) -> bool {
        self.transport.is_adapted()
    }
}

impl OwnSessionChannel for Arc<UpstreamLink> {
    fn calls_in(&self, lease: SessionLease) -> Arc<dyn Upstream> {
        Arc::new(ClientSessionUpstream { link: Self::clone(self), lease: Arc::new(lease) })
    }
}

fn outgoing(request: RawRequest) -> OutgoingRequest {
    let SessionBinding { session, version, tasks: _ } = request.binding;
    let credentials = SessionHeaders { session, version, ..SessionHeaders::default() };
    let outgoing = match request.verb {
        RawMethod::Post(message) => credentials.post(message),
        RawMethod::Note(message) => credentials.post(message).under_way(),
        RawMethod::PostWith { message, headers, principal } => {
            credentials.post_with(message, headers).on_behalf_of(principal)
        }
        RawMethod::Get { last_event } => credentials.get(last_event.as_ref()),
        RawMethod::Delete => credentials.delete(),
    };
    outgoing.forwarding(request.forwarded)
}
