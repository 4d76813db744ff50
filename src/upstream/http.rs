//! Speaks streamable HTTP: with a handshake, 2025-03-26 to 2025-11-25, and `stateless` for 2026-07-28.
//!
//! Knows nothing of the gateway's tasks; of the upstream's own it knows what `task_follower` does, and no status
//! word. Read `exchange` for one call in a session from begin to end, `drive` for what happens to it on the way,
//! then `upstream::session` for what calls share.

mod client_session;
mod drive;
mod driven_call;
pub(crate) mod exchange;
mod passthrough;
mod poll_schedule;
mod resume_token;
mod side_request;
pub(crate) mod stateless;
mod stream_places;
mod task_follower;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use tokio::sync::{Semaphore, broadcast};

use super::era::{EraCache, EraUpstream};
use super::latencies::ExchangeLatencies;
use super::limits::{CallPermits, CallPermitsByName};
use super::resource_metadata::ResourceMetadata;
use super::session::own::OwnSessionChannel;
use super::session::pool::SessionPool;
use super::session::{POLLS_MAX, SessionKey, UpstreamLink};
use super::transport::Transport;
use super::transport::adapter::TransportAdapter;
use super::transport::credential::Credential;
use super::transport::detection::TransportDetection;
pub use super::transport::http_client::ClientError;
use super::transport::http_client::{ClientTls, HttpClient};
pub use super::transport::http_client::{ProxyError, ProxySettings};
use super::transport::sse::{self, SseDetected, SseTransport};
use super::transport::stdio::{LastLines, StdioTransport, StdioUpstreamSettings};
use super::upstream_health::UpstreamHealth;
use super::version_choice::VersionChoice;
use super::{
    BeginError, CallContext, Era, Exchange, NotificationSubscription, ResumeToken, ServerFacts, ServerNotification,
    TaskScope, Upstream, UpstreamRequest, own_ids,
};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Clock, Executed, GatewayFault, Reason, SystemClock};
use crate::tls::{IdentityFiles, TlsFileError, read_roots};
use crate::wire::ProtocolVersion;
use drive::SessionSource;
use exchange::HttpExchange;
use resume_token::CallPosition;
use stateless::StatelessUpstream;
pub(crate) use stateless::task_token as stateless_task_token;

/// How long [`Upstream::close`] may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// One streamable HTTP upstream, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUpstreamSettings {
    pub name: Arc<str>,
    /// `http` or `https`, no user info, no fragment.
    pub url: url::Url,
    pub transport: HttpTransport,
    /// Largest event of the one stream that HTTP+SSE has; over streamable HTTP each call has its own bound.
    pub event_bytes_max: usize,
    /// A fixed version towards this upstream; `None` negotiates.
    pub protocol: Option<ProtocolVersion>,
    pub connect_max: Duration,
    pub tls: UpstreamTlsFiles,
    /// Shown on every request.
    pub credential: Option<Credential>,
    pub proxy: ProxySettings,
    /// Shown on every request besides; none of them has the credential's name.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// How messages travel over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP, or HTTP+SSE where the server refuses that.
    #[default]
    Auto,
    Streamable,
    /// That of 2024-11-05, whatever the version.
    Sse,
}

/// What `https` towards one upstream is made of besides the system's trusted roots. PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTlsFiles {
    /// The authorities that may vouch for the upstream, instead of the system's: a private server should not
    /// be impersonated by whoever any public authority certifies.
    pub ca: Option<PathBuf>,
    /// The gateway's own identity, for upstreams that ask for one.
    pub identity: Option<IdentityFiles>,
}

impl UpstreamTlsFiles {
    fn read(&self) -> Result<ClientTls, TlsFileError> {
        let identity = self.identity.as_ref().map(|files| files.read(SystemClock.now()));
        Ok(ClientTls { roots: self.ca.as_deref().map(read_roots).transpose()?, identity: identity.transpose()? })
    }
}

/// A streamable HTTP server, in sessions.
#[derive(Debug)]
pub struct SessionUpstream {
    link: Arc<UpstreamLink>,
    pool: Arc<SessionPool>,
    /// The era that the operator's version belongs to.
    era: Option<Era>,
    /// What the server says of itself as a protected resource, if it is reached over HTTP.
    metadata: Option<Arc<ResourceMetadata>>,
}

impl SessionUpstream {
    /// An upstream that nothing was sent to yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the address, the system's trusted roots or the files that the settings name are of no use.
    pub fn new(settings: HttpUpstreamSettings, life: TaskScope) -> Result<Self, ClientError> {
        let client = HttpClient::new(
            &settings.name,
            &settings.url,
            settings.connect_max,
            settings.tls.read()?,
            &settings.proxy,
        )?;
        let era = settings.protocol.map(Era::of);
        let credential = settings.credential.as_ref().map(Credential::read).transpose()?;
        let client = client.with_headers(credential.into_iter().chain(settings.headers.iter().cloned()).collect());
        let health = Arc::clone(client.health());
        let metadata = ResourceMetadata::new(&settings.name, client.clone(), settings.url.clone());
        // Only servers with sessions speak HTTP+SSE.
        let (transport, era) = match (settings.transport, era) {
            (HttpTransport::Streamable, era) | (HttpTransport::Auto, era @ Some(Era::Stateless)) => {
                (Transport::Http(client), era)
            }
            (HttpTransport::Auto, era) => {
                let seen = SseDetected::default();
                let sse = sse_stand(&settings, client.clone(), seen.clone(), &life);
                (
                    Transport::Either(Box::new(TransportDetection::new(Arc::clone(&settings.name), client, sse, seen))),
                    era,
                )
            }
            (HttpTransport::Sse, _) => {
                let sse = sse_stand(&settings, client, SseDetected::default(), &life);
                (Transport::Adapted(Box::new(sse)), Some(Era::Session))
            }
        };
        let upstream = Self::over(transport, (settings.name, health), settings.protocol, era, life);
        Ok(Self { metadata: Some(Arc::new(metadata)), ..upstream })
    }

    /// What the server says of itself as a protected resource, if it is reached over HTTP.
    #[must_use]
    pub const fn metadata(&self) -> Option<&Arc<ResourceMetadata>> {
        self.metadata.as_ref()
    }

    /// How the server stands, for operators.
    #[must_use]
    pub fn health(&self) -> Arc<UpstreamHealth> {
        Arc::clone(&self.link.health)
    }

    /// A program that is spoken to over its standard input and output. Nothing is started yet. Must be called within a
    /// tokio runtime.
    #[must_use]
    pub fn stdio(settings: StdioUpstreamSettings, life: TaskScope) -> Self {
        let processes = CallPermitsByName::default().unmetered_of(&settings.name, settings.process_permits());
        Self::of_program(settings, life, processes, None)
    }

    /// The same within places for processes that may be shared.
    #[must_use]
    pub fn stdio_within(settings: StdioUpstreamSettings, life: TaskScope, processes: CallPermits) -> Self {
        Self::of_program(settings, life, processes, None)
    }

    /// The same, for whoever shows what the program writes to its standard error.
    #[must_use]
    pub fn stdio_with_output(settings: StdioUpstreamSettings, life: TaskScope, output: Arc<LastLines>) -> Self {
        let processes = CallPermitsByName::default().unmetered_of(&settings.name, settings.process_permits());
        Self::of_program(settings, life, processes, Some(output))
    }

    fn of_program(
        settings: StdioUpstreamSettings,
        life: TaskScope,
        processes: CallPermits,
        output: Option<Arc<LastLines>>,
    ) -> Self {
        let (name, protocol) = (Arc::clone(&settings.name), settings.protocol);
        let apart = settings.apart.clone();
        // Its arguments may hold secrets.
        let health = Arc::new(UpstreamHealth::new(&name, &settings.program));
        let wire = Box::new(StdioTransport::new(settings, Arc::clone(&health), life.clone(), output));
        let stand =
            TransportAdapter::within(Arc::clone(&health), wire, processes, life.clone()).with_calls_apart(apart);
        Self::over(Transport::Adapted(Box::new(stand)), (name, health), protocol, protocol.map(Era::of), life)
    }

    fn over(
        transport: Transport,
        (name, health): (Arc<str>, Arc<UpstreamHealth>),
        protocol: Option<ProtocolVersion>,
        era: Option<Era>,
        life: TaskScope,
    ) -> Self {
        let link = Arc::new(UpstreamLink {
            latencies: ExchangeLatencies::of(&name),
            name,
            health,
            transport,
            versions: VersionChoice::new(protocol.filter(|version| !version.is_stateless())),
            tracker: life.tracker,
            stop: life.stop,
            polls: Semaphore::new(POLLS_MAX),
        });
        Self { pool: SessionPool::new(Arc::clone(&link)), link, era, metadata: None }
    }

    /// The same server as stateless clients have it: spoken to in their era where it can.
    #[must_use]
    pub fn for_stateless_clients(self: &Arc<Self>) -> EraUpstream {
        let eras =
            if self.link.transport.is_adapted() { EraCache::of_started(self.era) } else { EraCache::new(self.era) };
        let eras = Arc::new(eras);
        let stateless = Arc::new(StatelessUpstream::new(Arc::clone(&self.link), Arc::clone(&eras)));
        EraUpstream::new(Arc::<Self>::clone(self), stateless, eras, self.link.tracker.clone())
    }

    /// Raw access to the server, in sessions that are clients' own or in none.
    #[must_use]
    pub fn channel(&self) -> Arc<dyn OwnSessionChannel> {
        Arc::new(Arc::clone(&self.link))
    }

    /// Opens this client's session, and waits until its own stream is heard, if it has one: some servers lose what they
    /// say before. For `max` at most, since some send no head before the first event. Cancel safe.
    ///
    /// # Errors
    /// If no handshake succeeds.
    pub async fn listened(&self, context: &CallContext, max: Duration) -> Result<(), BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let _ = tokio::time::timeout(max, session.listened()).await;
        Ok(())
    }

    /// What takes up a task of the server's that another program was given the handle of, in this client's session.
    ///
    /// # Errors
    /// If no handshake succeeds.
    pub async fn task_token(&self, task: &str, context: &CallContext) -> Result<ResumeToken, BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let at = CallPosition::Task { id: Arc::from(task), tasks: session.tasks, above: Arc::default() };
        let token = resume_token::token(&own_ids::mint(), &session.credentials, &at, &[]);
        token.ok_or(BeginError::Gateway(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)))
    }

    fn home(&self, context: &CallContext) -> SessionSource {
        SessionSource::Pool { pool: Arc::clone(&self.pool), key: SessionKey::of(context) }
    }
}

/// A server that speaks HTTP+SSE, behind what looks like streamable HTTP.
fn sse_stand(
    settings: &HttpUpstreamSettings,
    client: HttpClient,
    seen: SseDetected,
    life: &TaskScope,
) -> TransportAdapter {
    let (name, url) = (Arc::clone(&settings.name), settings.url.clone());
    let health = Arc::clone(client.health());
    let wire = SseTransport::new(name, url, client, settings.event_bytes_max, seen, life.clone());
    TransportAdapter::new(health, Box::new(wire), sse::SESSIONS_MAX, life.clone())
}

#[async_trait]
impl Upstream for SessionUpstream {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        let facts = session.facts().cloned();
        facts.ok_or(BeginError::Gateway(GatewayFault::new(Reason::Internal, Executed::No)))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let exchange = HttpExchange::begin(&self.link, self.home(&context), request, &context).await?;
        Ok(Box::new(exchange))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let exchange = HttpExchange::resume(&self.link, self.home(&context), &token, &context)?;
        Ok(Box::new(exchange))
    }

    async fn notifications(
        &self,
        context: &CallContext,
    ) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        Ok(self.pool.session(&SessionKey::of(context), &context.forwarded).await?.subscribe())
    }

    async fn listen(
        &self,
        context: &CallContext,
        wishes: &SubscriptionFilter,
    ) -> Result<NotificationSubscription, BeginError> {
        let session = self.pool.session(&SessionKey::of(context), &context.forwarded).await?;
        // Heard from before the first subscription on, so that nothing falls between.
        let news = session.subscribe();
        let over = session.over().clone();
        let held = session.hold(wishes.resources.iter().flatten().cloned().collect()).await;
        let resources = wishes.resources.as_ref().map(|_| held.uris().into_iter().collect());
        let granted = SubscriptionFilter { resources, ..wishes.of_the_upstream() };
        Ok(NotificationSubscription { news, granted, over, kept: Box::new(held) })
    }

    fn end_idle(&self) {
        self.link.transport.end_idle();
    }

    async fn close(&self) {
        let _ = tokio::time::timeout(CLOSE_MAX, self.pool.close()).await;
        self.link.transport.close().await;
    }
}
