//! Replaces the configuration while calls run.
//!
//! First everything that is new is opened; then one step replaces what clients meet, so that each request is served
//! by the old or the new (F24); then what is served no more is let go of, once its last call has ended (F66).
//! Upstreams that have not changed keep their sessions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::served_endpoint::{self, add_endpoints};
use super::shared_store::digest_of_upstreams;
use super::sockets::{check_admin_reach, check_reach};
use super::{Gateway, GatewayParts, OpenedUpstream, client_address, files, open};
use crate::config::{Config, UpstreamConfig};
use crate::engine::CallTarget;
use crate::face::client_login::{MetadataEndpoint, metadata_path};
use crate::face::closing::ClosingEndpoint;
use crate::face::combined::EndpointMember;
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::served::Served;
use crate::face::sse::{SseEndpoint, SseServed};
use crate::server::Routes;
use crate::server::api_keys::{AuthSettings, KeySource};
use crate::task::{Clock as _, SystemClock};
use crate::telemetry;
use crate::tls::IdentityFiles;
use crate::upstream::Upstream;
use crate::upstream::transport::credential::Credential;
use crate::upstream::transport::stdio::StdioUpstreamSettings;
use crate::upstream::upstream_health::UpstreamHealth;

/// How often an upstream that is served no more is looked at.
const RETIRING: Duration = Duration::from_millis(500);

/// Paths without an upstream where tasks are still to be had; above that the oldest is forgotten.
const GONE_MAX: usize = 64;

/// Most of a file that its fingerprint is taken from; none that is of use is larger.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What some files hold. Two that are alike hold the same.
pub(super) type Fingerprint = Vec<u8>;

/// One upstream that is served.
#[derive(Debug)]
pub(super) struct ServedUpstream {
    config: UpstreamConfig,
    /// Of the files that were read for it.
    files: Fingerprint,
    pub(super) served: Arc<Served>,
    health: Arc<UpstreamHealth>,
    endpoint: Arc<UpstreamEndpoint>,
    /// What its clients of the older transport are served with.
    older: SseServed,
    /// Ends its clients' own streams.
    leaving: DropGuard,
    /// Ends what runs for it in the background.
    stop: DropGuard,
}

impl ServedUpstream {
    /// Opens an upstream. Nothing is sent to it yet.
    ///
    /// # Errors
    /// If its address or its files are of no use.
    pub(super) fn new(config: UpstreamConfig, parts: &GatewayParts) -> anyhow::Result<Self> {
        telemetry::begin_upstream(&config.name);
        let mut own = parts.clone();
        own.leaving = parts.leaving.child_token();
        own.life.stop = parts.life.stop.child_token();
        let stop = own.life.stop.clone().drop_guard();
        let files = fingerprint_all(upstream_files(&config));
        let OpenedUpstream { served, health, login } = open(config.clone(), &own)?;
        let endpoint = Arc::new(UpstreamEndpoint::new(Arc::clone(&served)).with_login(login));
        let older = SseServed {
            served: Arc::clone(&served),
            name: Arc::clone(&config.name),
            result_bytes_max: served.settings.result_bytes_max,
            path: Arc::from(config.path.as_str()),
            streams: own.streams.clone(),
            leaving: own.leaving.child_token(),
        };
        let (kept, leaving) = (Arc::clone(&endpoint), own.leaving.clone());
        own.life.tracker.spawn(async move { kept.keep_tidy(&leaving).await });
        let leaving = own.leaving.drop_guard();
        Ok(Self { config, files, served, health, endpoint, older, leaving, stop })
    }

    /// What its calls are made with.
    pub(super) fn target(&self) -> CallTarget {
        self.served.target()
    }

    /// What serves its clients.
    pub(super) const fn endpoint(&self) -> &Arc<UpstreamEndpoint> {
        &self.endpoint
    }

    /// What an endpoint of several has of it.
    pub(super) fn member(&self) -> EndpointMember {
        EndpointMember { served: Arc::clone(&self.served), endpoint: Arc::clone(&self.endpoint) }
    }

    /// What its clients of the older transport are served with beside it.
    pub(super) const fn older(&self) -> &SseServed {
        &self.older
    }

    /// How it stands.
    pub(super) fn health(&self) -> Arc<UpstreamHealth> {
        Arc::clone(&self.health)
    }

    fn is(&self, config: &UpstreamConfig) -> bool {
        self.config == *config && self.files == fingerprint_all(upstream_files(config))
    }

    /// Tells the upstream that its sessions are over, once nobody can call it any more. `holders` is how many hold its
    /// endpoint by then.
    fn let_go(
        &self,
        (holders, why): (usize, &'static str),
        retired: &RetiredUpstreams,
        life: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let (upstream, retired, life) = (Arc::clone(&self.served.upstream), retired.clone(), life.clone());
        let (endpoint, permits) = (Arc::downgrade(&self.endpoint), Arc::downgrade(&self.served.permits));
        retired.add(&upstream);
        self.health.retire();
        async move {
            // Requests that are under way hold the endpoint, and calls the permits, as `served` does for as long as it is there.
            let is_over = || endpoint.strong_count() <= holders && permits.strong_count() <= 1;
            let over = async {
                // Twice: a request may be on its way from the one to the other.
                while !(is_over() && paused(&is_over).await) {
                    // Whoever comes back is served by others, and they have the same places.
                    upstream.end_idle();
                    tokio::time::sleep(RETIRING).await;
                }
            };
            if life.run_until_cancelled(over).await.is_some() {
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

/// What is left of an upstream whose path nobody else has: clients may ask for their tasks there.
#[derive(Debug)]
pub(super) struct ClosingUpstream {
    opened: ServedUpstream,
    endpoint: Arc<ClosingEndpoint>,
}

/// Upstreams that are served no more and not let go of. Clones share the list.
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

/// What a reading changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadSummary {
    /// Upstreams that are new, or are not what they were.
    pub opened: usize,
    /// Upstreams that go on as they were.
    pub kept: usize,
    /// Upstreams that are served no more as they were; their calls go on.
    pub retired: usize,
    /// Whether anything else is different from now on.
    pub others: bool,
    /// Keys whose change holds only from the next start on.
    pub need_restart: Vec<&'static str>,
}

impl ReloadSummary {
    /// Whether everything is as before.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.opened == 0 && self.retired == 0 && !self.others && self.need_restart.is_empty()
    }
}

impl Gateway {
    /// Puts another configuration in force: upstreams with their rules and limits, the names and origins that may be
    /// used, who everybody is, bounds. Calls that run end as they began. Certificates are read again.
    ///
    /// # Errors
    /// If a file that it names is of no use, an upstream cannot be opened, or anybody could come who is not asked for
    /// credentials. Then nothing is changed.
    pub fn reload(&mut self, config: Config) -> anyhow::Result<ReloadSummary> {
        files::check(&config, SystemClock.now())?;
        let need_restart = config.need_restart(&self.started);
        let config = config.within(&self.started);
        check_reach(self.clients.local_addr(), &config)?;
        check_admin_reach(self.admin.local_addr(), &config)?;
        let (callers, operators) = (files::callers(&config)?, files::operators(&config.admin)?);
        let mut fresh = Vec::new();
        for one in &config.upstreams {
            let is_kept = self.upstreams.iter().any(|opened| opened.is(one));
            fresh.push(if is_kept { None } else { Some(ServedUpstream::new(one.clone(), &self.parts)?) });
        }
        // Nothing below can fail.
        self.parts.limits.replace(Arc::clone(&config.principals));
        self.parts.engine.access().replace(Arc::clone(&config.access));
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
        // Before the replaced ones are let go: who could still call them holds them.
        self.targets.replace(self.upstreams.iter().map(ServedUpstream::target));
        changes.kept = self.upstreams.len() - changes.opened;
        changes.retired = before.len();
        self.retire(before);
        let endpoints = std::mem::take(&mut self.endpoints);
        let members: Vec<_> = self.upstreams.iter().map(ServedUpstream::member).collect();
        self.endpoints = served_endpoint::renewed(&config.endpoints, endpoints, &members, &self.parts);
        self.healths.set(self.upstreams.iter().map(ServedUpstream::health).collect());
        self.parts.engine.set_tasks_max(config.store.limits().tasks_max);
        if let Some(shared) = &self.shared {
            shared.store.tell_config(digest_of_upstreams(&config));
        }
        let routes = add_endpoints(routes(&self.upstreams, &self.gone), &self.endpoints);
        if let Some(replicas) = &mut self.replicas {
            replicas.replace(config.listen.body_bytes_max, routes.clone());
        }
        self.clients.replace(&config.listen, callers, routes);
        self.admin.replace(&self.operators.settings, operators, self.operators.routes.clone());
        changes.others = self.adopt(config);
        Ok(changes)
    }

    /// Lets go of upstreams that are served no more, each once its last call has ended. Where nobody else has its path,
    /// its tasks are still to be had there.
    fn retire(&mut self, before: Vec<ServedUpstream>) {
        // A stream holds the endpoint for as long as its client likes: it ends once nothing is under way on it.
        before.iter().for_each(|one| one.older.leaving.cancel());
        let is_served = |one: &ServedUpstream| self.upstreams.iter().any(|other| other.config.path == one.config.path);
        let (replaced, gone): (Vec<_>, Vec<_>) = before.into_iter().partition(is_served);
        let (come_back, still_gone) =
            std::mem::take(&mut self.gone).into_iter().partition(|one| is_served(&one.opened));
        self.gone = still_gone;
        let life = &self.parts.life;
        for opened in gone {
            let endpoint = Arc::new(ClosingEndpoint::new(Arc::clone(&opened.endpoint)));
            // Held here, by what is served instead, and by who keeps it tidy.
            tracing::warn!(
                upstream = %opened.config.name, path = opened.config.path,
                unsettled_tasks = self.parts.engine.unsettled_tasks(&opened.config.name),
                "an upstream was removed; its tasks can be read at this path until the gateway is restarted, and nowhere \
                 after that"
            );
            life.tracker.spawn(opened.let_go((3, "it is served no more"), &self.retired, &life.stop));
            self.gone.push(ClosingUpstream { opened, endpoint });
        }
        let too_many = self.gone.len().saturating_sub(GONE_MAX);
        let forgotten = self.gone.drain(..too_many).chain(come_back).map(|one: ClosingUpstream| one.opened);
        for opened in replaced.into_iter().chain(forgotten) {
            let over = opened.let_go((1, "it was replaced"), &self.retired, &life.stop);
            life.tracker.spawn(async move {
                // By name: what is not named is not moved in here, and what holds the places counts.
                let ServedUpstream { leaving, endpoint, served, stop, .. } = opened;
                // Its clients' own streams end, and are opened again at what is served now.
                drop(leaving);
                over.await;
                drop((endpoint, served, stop));
            });
        }
    }

    /// Remembers what else is in force now; whether it is anything new.
    fn adopt(&mut self, config: Config) -> bool {
        let before = &self.current;
        let is_new = before.listen != config.listen
            || before.auth != config.auth
            || before.admin.tokens != config.admin.tokens
            || before.store.limits() != config.store.limits()
            || before.endpoints != config.endpoints
            || before.principals != config.principals
            || before.access != config.access;
        self.drain_max = config.listen.drain_max;
        self.current = config;
        is_new
    }
}

/// Who is served where.
pub(super) fn routes(upstreams: &[ServedUpstream], gone: &[ClosingUpstream]) -> Routes {
    let routes = gone.iter().fold(Routes::new(), |routes, one| {
        routes.with(one.opened.config.path.clone(), Arc::<ClosingEndpoint>::clone(&one.endpoint))
    });
    upstreams.iter().fold(routes, |routes, one| {
        let endpoint = Arc::clone(&one.endpoint);
        let older = SseEndpoint::new(one.older.clone(), Arc::<UpstreamEndpoint>::clone(&endpoint));
        let login = endpoint.login().cloned();
        let rates = Arc::clone(&one.served.rates);
        let routes = routes.with(one.config.path.clone(), endpoint).with(one.config.sse_path.clone(), Arc::new(older));
        match login {
            Some(login) => routes.with(metadata_path(&one.config.path), Arc::new(MetadataEndpoint::new(login, rates))),
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
    let variables = config.server.stdio().into_iter().flat_map(|stdio| &stdio.env_files);
    ca.into_iter().chain(identities).chain(credential).chain(variables.map(|(_, file)| file.as_path()))
}

/// The file of a configuration and all that it names.
pub(super) fn files(file: &Path, config: &Config) -> Vec<PathBuf> {
    let own = config.listen.tls.iter().flat_map(identity);
    let keys = match &config.auth {
        AuthSettings::Everyone(_) => &[][..],
        AuthSettings::ApiKeys(keys) => keys,
    };
    let keys = keys.iter().chain(&config.admin.tokens).filter_map(|key| match &key.source {
        KeySource::Known(_) => None,
        KeySource::File(path) => Some(path.as_path()),
    });
    let of_keys = config.key_files.iter().map(PathBuf::as_path);
    let theirs = config.upstreams.iter().flat_map(upstream_files);
    std::iter::once(file).chain(own).chain(of_keys).chain(keys).chain(theirs).map(Path::to_owned).collect()
}

/// What a configuration's file and all that it names hold.
pub(super) fn fingerprint(file: &Path, config: &Config) -> Fingerprint {
    fingerprint_all(files(file, config).iter().map(PathBuf::as_path))
}

/// What a file alone holds.
pub(super) fn fingerprint_of(file: &Path) -> Fingerprint {
    fingerprint_all([file].into_iter())
}

/// A file that cannot be read holds nothing.
fn fingerprint_all<'a>(files: impl Iterator<Item = &'a Path>) -> Fingerprint {
    use std::io::Read as _;

    let mut context = Context::new(&SHA256);
    for file in files {
        let mut held = Vec::new();
        let opened = std::fs::File::open(file);
        let _ = opened.and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut held));
        context.update(&(held.len() as u64).to_be_bytes());
        context.update(&held);
    }
    context.finish().as_ref().to_vec()
}
