//! Replaces the configuration while calls run. First all new parts are opened; then one step replaces the routes: each
//! request is served by the old or the new configuration (F24); then removed upstreams are closed after their last call
//! (F66). Unchanged ones keep sessions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::files::FileUse;
use super::shared_store::digest_of_upstreams;
use super::sockets::{check_admin_reach, check_reach};
use super::{Gateway, GatewayParts, OpenedUpstream, client_address, files, open, token_keys};
use crate::config::{Config, UpstreamConfig};
use crate::face::client_login::{MetadataEndpoint, metadata_path};
use crate::face::combined::{CombinedEndpoint, CombinedSettings, EndpointMember};
use crate::face::endpoint::{ClosingEndpoint, UpstreamEndpoint};
use crate::face::served::Served;
use crate::face::sse::{SseEndpoint, SseServed};
use crate::server::Routes;
use crate::server::api_keys::KeySource;
use crate::tls::{IdentityFiles, show_end};
use crate::upstream::http::certificate_use;
use crate::upstream::issued_credential::IssuedCredentialSettings;
use crate::upstream::transport::credential::Credential;
use crate::upstream::transport::stdio::StdioUpstreamSettings;
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{SessionMemories, Upstream};
use crate::{metric, system};

const RETIRING: Duration = Duration::from_millis(500);

/// Paths of removed upstreams that still serve tasks; beyond that the oldest is dropped.
const GONE_MAX: usize = 64;

/// The most of a file that is fingerprinted; no usable file is larger.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The fingerprint of some files. Equal fingerprints mean equal contents.
pub(super) type Fingerprint = Vec<u8>;

#[derive(Debug)]
pub(super) struct ServedUpstream {
    config: UpstreamConfig,
    files: Fingerprint,
    pub(super) served: Arc<Served>,
    pub(super) health: Arc<UpstreamHealth>,
    pub(super) endpoint: Arc<UpstreamEndpoint>,
    /// The state for clients of the HTTP+SSE transport.
    pub(super) older: SseServed,
    stop: DropGuard,
    /// Cancelled after its last call, before its sessions are closed.
    closed: CancellationToken,
}

impl ServedUpstream {
    pub(super) fn new(
        config: UpstreamConfig,
        parts: &GatewayParts,
        known: Arc<SessionMemories>,
    ) -> anyhow::Result<Self> {
        metric::begin_upstream(&config.name);
        let mut own = parts.clone();
        own.streams_end = parts.streams_end.child_token();
        own.scope.stop = parts.scope.stop.child_token();
        let stop = own.scope.stop.clone().drop_guard();
        let files = fingerprint_all(upstream_files(&config));
        let OpenedUpstream { served, health, login } = open(config.clone(), &own, known)?;
        let endpoint = Arc::new(UpstreamEndpoint::new(Arc::clone(&served)).with_login(login));
        let older = SseServed {
            served: Arc::clone(&served),
            name: Arc::clone(&config.name),
            result_bytes_max: served.settings.result_bytes_max,
            path: Arc::from(config.path.as_str()),
            streams: own.streams.clone(),
            streams_end: own.streams_end.child_token(),
        };
        let (kept, stopped) = (Arc::clone(&endpoint), own.scope.stop);
        own.scope.tracker.spawn(async move { kept.evict_expired(&stopped).await });
        Ok(Self { config, files, served, health, endpoint, older, stop, closed: CancellationToken::new() })
    }

    pub(super) fn member(&self) -> EndpointMember {
        EndpointMember { served: Arc::clone(&self.served), endpoint: Arc::clone(&self.endpoint) }
    }

    /// Whether the upstream has this configuration already. Unreadable certificates count as unchanged (B170).
    fn is(&self, config: &UpstreamConfig) -> bool {
        let has_same_files = || self.files == fingerprint_all(upstream_files(config));
        self.config == *config && (has_same_files() || !files::tls_mistakes_of(config).is_empty())
    }

    /// Closes the upstream's sessions after its last call, when only `holders` references to its endpoint remain.
    fn close_after_last_call(
        &self,
        holders: usize,
        why: &'static str,
        retired: &RetiredUpstreams,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let (upstream, retired, stop) = (Arc::clone(&self.served.upstream), retired.clone(), stop.clone());
        let (closed, streams_end) = (self.closed.clone(), self.served.streams_end.clone());
        let (endpoint, permits) = (Arc::downgrade(&self.endpoint), Arc::downgrade(&self.served.permits));
        retired.add(&upstream);
        self.health.retire();
        // Later calls belong to another upstream, which may have the same name and another path.
        let last_call = Instant::now();
        async move {
            // Calls hold the permits, or are counted: clients may resume those in the pipe, but not at an upstream that was replaced.
            let has_begun = || permits.upgrade().is_some_and(|permits| permits.has_calls_begun_by(last_call));
            let is_counted = || !streams_end.is_cancelled() && has_begun();
            let has_calls = || permits.strong_count() > 1 || is_counted();
            // Requests in progress hold the endpoint.
            let is_over = || !has_calls() && endpoint.strong_count() <= holders;
            let over = async {
                // Twice: a request may be passing from the one to the other.
                while !(is_over() && paused(&is_over).await) {
                    if !has_calls() {
                        streams_end.cancel();
                    }
                    upstream.end_idle();
                    tokio::time::sleep(RETIRING).await;
                }
            };
            if stop.run_until_cancelled(over).await.is_some() {
                streams_end.cancel();
                closed.cancel();
                upstream.close().await;
                tracing::info!(upstream = %upstream.name(), why, "an upstream's sessions were closed");
            }
            retired.remove(&upstream);
        }
    }
}

async fn paused(is_over: &(impl Fn() -> bool + Sync)) -> bool {
    tokio::time::sleep(RETIRING).await;
    is_over()
}

/// A removed upstream with an unused path, where clients may still read their tasks.
#[derive(Debug)]
pub(super) struct ClosingUpstream {
    opened: ServedUpstream,
    endpoint: Arc<ClosingEndpoint>,
}

/// Removed upstreams that are not closed yet. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct RetiredUpstreams(Arc<Mutex<Vec<Arc<dyn Upstream>>>>);

impl RetiredUpstreams {
    pub(super) fn all(&self) -> Vec<Arc<dyn Upstream>> {
        self.0.lock().clone()
    }

    fn add(&self, upstream: &Arc<dyn Upstream>) {
        self.0.lock().push(Arc::clone(upstream));
    }

    fn remove(&self, upstream: &Arc<dyn Upstream>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, upstream));
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadSummary {
    /// Upstreams that are new or changed.
    pub opened: usize,
    pub kept: usize,
    /// Upstreams that were removed or changed; their calls continue.
    pub retired: usize,
    pub others: bool,
    /// Keys that take effect only at the next start.
    pub need_restart: Vec<&'static str>,
}

impl ReloadSummary {
    pub fn is_none(&self) -> bool {
        self.opened == 0 && self.retired == 0 && !self.others && self.need_restart.is_empty()
    }
}

impl Gateway {
    /// Applies another configuration: running calls end as they began, certificates are read again. Nothing changes if
    /// a file cannot be used, an upstream cannot be opened, or a client without credentials could connect.
    pub fn reload(&mut self, config: Config) -> anyhow::Result<ReloadSummary> {
        files::check(&config, FileUse::Reload)?;
        let need_restart = config.need_restart(&self.started);
        let config = config.within(&self.started);
        check_reach(self.clients.local_addr(), &config)?;
        check_admin_reach(self.admin.local_addr(), &config)?;
        // Before the files are read: a later change is another reload's.
        let files = fingerprint_of_named(&config);
        let (callers, operators) = (files::callers(&config)?, files::operators(&config.admin)?);
        let callers = token_keys::succeeding(callers, self.tokens.as_ref(), &self.proofs);
        let mut fresh = Vec::new();
        for one in &config.upstreams {
            let known = self.upstreams.iter().find(|opened| opened.config.name == one.name);
            let memories = known.map(|opened| Arc::clone(&opened.served.memories)).unwrap_or_default();
            let opening = || ServedUpstream::new(one.clone(), &self.parts, memories);
            fresh.push(if known.is_some_and(|opened| opened.is(one)) { None } else { Some(opening()?) });
        }
        // Nothing below can fail.
        self.parts.limits.replace(Arc::clone(&config.principals));
        self.parts.engine.access().replace(Arc::clone(&config.access), config.auth.admitted());
        if let Some(audit) = self.parts.engine.audit() {
            super::know_issuers(audit, &config);
        }
        self.parts.address.set(&client_address(&self.clients, config.listen.public_url.as_deref()));
        let mut before = std::mem::take(&mut self.upstreams);
        let mut changes = ReloadSummary { need_restart, ..ReloadSummary::default() };
        for (one, fresh) in config.upstreams.iter().zip(fresh) {
            let kept = || before.iter().position(|opened| opened.config == *one).map(|at| before.swap_remove(at));
            match fresh.map_or_else(kept, |fresh| {
                changes.opened += 1;
                Some(fresh)
            }) {
                Some(opened) => {
                    opened.served.permits.rebound(one.permits);
                    if let Some(processes) = one.server.stdio().map(StdioUpstreamSettings::process_permits) {
                        self.parts.processes.unmetered_of(&one.name, processes).rebound(processes);
                    }
                    self.upstreams.push(opened);
                }
                None => tracing::error!(upstream = %one.name, "an upstream was lost"),
            }
        }
        // Before the replaced upstreams are released: their remaining callers hold them.
        self.targets.replace(self.upstreams.iter().map(|one| one.served.target()));
        changes.kept = self.upstreams.len() - changes.opened;
        changes.retired = before.len();
        self.retire(before);
        let endpoints = std::mem::take(&mut self.endpoints);
        let members: Vec<_> = self.upstreams.iter().map(ServedUpstream::member).collect();
        self.endpoints = renewed_endpoints(&config.endpoints, endpoints, &members, &self.parts);
        self.healths.set(self.upstreams.iter().map(|one| Arc::clone(&one.health)).collect());
        self.parts.engine.set_tasks_max(config.store.limits().tasks_max);
        if let Some(shared) = &self.shared {
            shared.store.announce_config(digest_of_upstreams(&config));
        }
        let routes = add_endpoints(routes(&self.upstreams, &self.gone), &self.endpoints);
        let routes = token_keys::with_metadata(routes, &config, &self.parts.rates);
        if let Some(replicas) = &mut self.replicas {
            replicas.replace(config.listen.body_bytes_max, routes.clone());
        }
        self.tokens = token_keys::keep_fresh(&callers, &self.parts.scope, &self.readiness);
        self.clients.replace(&config.listen, callers, routes);
        self.admin.replace(&self.operators.settings, operators, self.operators.routes.clone());
        changes.others = self.adopt(config, files);
        Ok(changes)
    }

    /// Retires removed upstreams after their last call. Its tasks can be read at its path, unless another has it.
    fn retire(&mut self, before: Vec<ServedUpstream>) {
        let uses = |one: &ServedUpstream| one.config.server.http().map(|_| certificate_use(&one.config.name));
        let still_used: Vec<_> = self.upstreams.iter().filter_map(uses).collect();
        let ended = before.iter().filter_map(uses).filter(|one| !still_used.contains(one));
        ended.for_each(|one| show_end(one, None));
        for one in &before {
            one.older.streams_end.cancel();
            one.served.listens_end.cancel();
        }
        let is_served = |one: &ServedUpstream| self.upstreams.iter().any(|other| other.config.path == one.config.path);
        let (replaced, gone): (Vec<_>, Vec<_>) = before.into_iter().partition(is_served);
        let (come_back, still_gone) =
            std::mem::take(&mut self.gone).into_iter().partition(|one| is_served(&one.opened));
        self.gone = still_gone;
        let scope = &self.parts.scope;
        for opened in gone {
            let endpoint = Arc::new(ClosingEndpoint::new(Arc::clone(&opened.endpoint), opened.closed.clone()));
            tracing::warn!(
                upstream = %opened.config.name, path = opened.config.path,
                unsettled_tasks = self.parts.engine.unsettled_tasks(&opened.config.name),
                "an upstream was removed; its tasks can be read at this path until the gateway is restarted, and then at \
                 the other paths, but with access tokens nowhere"
            );
            // `self.gone`, the closing endpoint and the upkeep task hold the endpoint.
            scope.tracker.spawn(opened.close_after_last_call(3, "it was removed", &self.retired, &scope.stop));
            self.gone.push(ClosingUpstream { opened, endpoint });
        }
        let too_many = self.gone.len().saturating_sub(GONE_MAX);
        let dropped = self.gone.drain(..too_many).chain(come_back).map(|one: ClosingUpstream| one.opened);
        for opened in replaced.into_iter().chain(dropped) {
            // Else clients would get no message of the new upstream (F115).
            opened.served.streams_end.cancel();
            let over = opened.close_after_last_call(2, "it was replaced", &self.retired, &scope.stop);
            scope.tracker.spawn(async move {
                // Binds each field that holds the upstream: this future must own them until it drops them.
                let ServedUpstream { endpoint, served, stop, .. } = opened;
                over.await;
                drop((endpoint, served, stop));
            });
        }
    }

    /// Records the other settings in force; returns whether any, or a file that they name, changed.
    fn adopt(&mut self, config: Config, files: Fingerprint) -> bool {
        let before = &self.current;
        let is_new = self.files != files
            || before.listen != config.listen
            || before.auth != config.auth
            || before.admin.tokens != config.admin.tokens
            || before.store.limits() != config.store.limits()
            || before.endpoints != config.endpoints
            || before.principals != config.principals
            || before.access != config.access;
        self.drain_max = config.listen.drain_max;
        (self.current, self.files) = (config, files);
        is_new
    }
}

pub(super) fn routes(upstreams: &[ServedUpstream], gone: &[ClosingUpstream]) -> Routes {
    let routes = gone.iter().fold(Routes::new(), |routes, one| {
        routes.with(one.opened.config.path.clone(), Arc::<ClosingEndpoint>::clone(&one.endpoint))
    });
    upstreams.iter().fold(routes, |routes, one| {
        let endpoint = Arc::clone(&one.endpoint);
        let older = SseEndpoint::new(one.older.clone(), Arc::<UpstreamEndpoint>::clone(&endpoint));
        let login = endpoint.login.clone();
        let rates = Arc::clone(&one.served.rates);
        let routes = routes.with(one.config.path.clone(), endpoint).with(one.config.sse_path.clone(), Arc::new(older));
        match login {
            Some(login) => {
                routes.with(metadata_path(&one.config.path), Arc::new(MetadataEndpoint::relayed(login, rates)))
            }
            None => routes,
        }
    })
}

fn identity(files: &IdentityFiles) -> [&Path; 2] {
    [&files.certificate, &files.key]
}

fn upstream_files(config: &UpstreamConfig) -> impl Iterator<Item = &Path> {
    let http = config.server.http();
    let tls = http.map(|http| &http.tls);
    let ca = tls.and_then(|tls| tls.ca.as_deref());
    let identities = tls.into_iter().flat_map(|tls| tls.identity.iter().flat_map(identity));
    let credential = http.and_then(|http| http.credential.as_ref()).and_then(Credential::file);
    let clients = http.and_then(|http| http.issued.as_deref()).into_iter().flat_map(IssuedCredentialSettings::clients);
    let secrets = clients.filter_map(|(_, client)| client.file());
    let proxy = http.and_then(|http| http.proxy.file());
    let credential = credential.into_iter().chain(secrets).chain(proxy);
    let variables = config.server.stdio().into_iter().flat_map(|stdio| &stdio.env_files);
    ca.into_iter().chain(identities).chain(credential).chain(variables.map(|(_, file)| file.as_path()))
}

fn named_files(config: &Config) -> Vec<&Path> {
    let clients = config.listen.client_certificates.iter().flat_map(|files| [Some(&files.ca), files.crl.as_ref()]);
    let clients = clients.flatten().map(PathBuf::as_path);
    let own = config.listen.tls.iter().flat_map(identity).chain(clients);
    let issuers = config.auth.tokens().into_iter().flat_map(|tokens| &tokens.issuers);
    let key_sets = issuers.filter_map(|issuer| issuer.keys.file()).map(PathBuf::as_path);
    let keys = config.auth.keys().iter().chain(&config.admin.tokens).filter_map(|key| match &key.source {
        KeySource::Known(_) => None,
        KeySource::File(path) => Some(path.as_path()),
    });
    let further = config.further_files.iter().map(PathBuf::as_path);
    let theirs = config.upstreams.iter().flat_map(upstream_files);
    own.chain(further).chain(keys).chain(key_sets).chain(theirs).collect()
}

pub(super) fn files(file: &Path, config: &Config) -> Vec<PathBuf> {
    std::iter::once(file).chain(named_files(config)).map(Path::to_owned).collect()
}

pub(super) fn fingerprint(file: &Path, config: &Config) -> Fingerprint {
    fingerprint_all(files(file, config).iter().map(PathBuf::as_path))
}

pub(super) fn fingerprint_of_named(config: &Config) -> Fingerprint {
    fingerprint_all(named_files(config).into_iter())
}

pub(super) fn fingerprint_of(file: &Path) -> Fingerprint {
    fingerprint_all([file].into_iter())
}

/// A file that is unreadable, or a pipe, counts as empty.
fn fingerprint_all<'a>(files: impl Iterator<Item = &'a Path>) -> Fingerprint {
    use std::io::Read as _;

    let mut context = Context::new(&SHA256);
    for file in files {
        let mut held = Vec::new();
        let opened = system::open_file(file);
        let _ = opened.and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut held));
        context.update(&(held.len() as u64).to_be_bytes());
        context.update(&held);
    }
    context.finish().as_ref().to_vec()
}

#[derive(Debug)]
pub(super) struct ServedEndpoint {
    settings: CombinedSettings,
    pub(super) endpoint: Arc<CombinedEndpoint>,
    pub(super) older: SseServed,
    _ends: [DropGuard; 2],
}

impl ServedEndpoint {
    pub(super) fn new(settings: &CombinedSettings, upstreams: &[EndpointMember], parts: &GatewayParts) -> Self {
        Self::of_members(settings, members(settings, upstreams), parts)
    }

    fn of_members(settings: &CombinedSettings, members: Vec<EndpointMember>, parts: &GatewayParts) -> Self {
        let (streams_end, listens_end) = (parts.streams_end.child_token(), parts.listeners.listens_end().child_token());
        let ends = [streams_end.clone().drop_guard(), listens_end.clone().drop_guard()];
        let sessions = Arc::clone(&parts.combined);
        let combined = CombinedEndpoint::new(settings.clone(), members, sessions, streams_end.clone(), listens_end);
        let older = SseServed {
            served: Arc::clone(combined.any_served()),
            name: Arc::clone(&settings.path),
            result_bytes_max: combined.result_bytes_max(),
            path: Arc::clone(&settings.path),
            streams: parts.streams.clone(),
            streams_end,
        };
        let (settings, endpoint) = (settings.clone(), Arc::new(combined));
        Self { settings, endpoint, older, _ends: ends }
    }
}

/// The endpoints of a new configuration. An unchanged endpoint continues without interruption.
pub(super) fn renewed_endpoints(
    settings: &[CombinedSettings],
    mut before: Vec<ServedEndpoint>,
    upstreams: &[EndpointMember],
    parts: &GatewayParts,
) -> Vec<ServedEndpoint> {
    let renew = |settings: &CombinedSettings| {
        let members = members(settings, upstreams);
        match before.iter().position(|one| one.endpoint.is_made_of(settings, &members)) {
            Some(at) => before.swap_remove(at),
            None => ServedEndpoint::of_members(settings, members, parts),
        }
    };
    settings.iter().map(renew).collect()
}

fn members(settings: &CombinedSettings, upstreams: &[EndpointMember]) -> Vec<EndpointMember> {
    let named = |name: &Arc<str>| upstreams.iter().find(|one| one.served.upstream.name() == name);
    settings.upstreams.iter().filter_map(named).cloned().collect()
}

pub(super) fn add_endpoints(routes: Routes, endpoints: &[ServedEndpoint]) -> Routes {
    endpoints.iter().fold(routes, |routes, one| {
        let endpoint = Arc::clone(&one.endpoint);
        let older = SseEndpoint::new(one.older.clone(), Arc::<CombinedEndpoint>::clone(&endpoint));
        routes.with(&*one.settings.path, endpoint).with(one.settings.sse_path.clone(), Arc::new(older))
    })
}
