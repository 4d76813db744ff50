//! Keeps one issuer's key set: reads it from a file, or fetches it again before it is stale.

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::Instant;
use url::Url;

use super::keys::{KEY_SET_BYTES_MAX, KeySet, KeySetError};
use super::settings::{IssuerSettings, KeyLocation};
use crate::server::forwarded::is_at_loopback;
use crate::system;
use crate::upstream::TaskScope;
use crate::upstream::document::{DocumentError, IssuerConnections};
use crate::upstream::shared_lookups::SharedLookups;
use crate::upstream::transport::http_client::AddressReach;
use crate::wire::{Payload, ScanLimits, one_line};

const REFRESHED_EACH: Duration = Duration::from_secs(600);
/// How often tokens with an unknown key cause a fetch, and how soon a failed fetch is repeated.
const ASKED_EACH: Duration = Duration::from_secs(30);
const METADATA_BYTES_MAX: usize = 256 << 10;
const SHOWN_BYTES_MAX: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    #[error("the file cannot be read")]
    File(#[source] io::Error),
    #[error(transparent)]
    Set(#[from] KeySetError),
    #[error("its key set: {0}")]
    Keys(DocumentError),
    #[error("its metadata: {0}")]
    Metadata(String),
}

pub(super) struct IssuerKeys {
    settings: Arc<IssuerSettings>,
    connections: IssuerConnections,
    known: Mutex<KnownKeys>,
    /// One fetch at a time; others wait for its result.
    fetching: tokio::sync::Mutex<()>,
    /// Runs fetches whose clients have disconnected.
    asked: SharedLookups<(), ()>,
    news: Notify,
}

#[derive(Clone, Debug, Default)]
struct KnownKeys {
    set: Option<(Arc<KeySet>, Instant)>,
    /// The last fetch, whether it succeeded or not.
    tried: Option<Instant>,
    /// The last fetch for a token with an unknown key.
    asked: Option<Instant>,
    failed: bool,
}

impl KnownKeys {
    fn current(&self, settings: &IssuerSettings) -> Option<&Arc<KeySet>> {
        let (set, at) = self.set.as_ref()?;
        let is_kept = settings.keys.file().is_some() || at.elapsed() < settings.max_stale;
        is_kept.then_some(set)
    }
}

debug_members!(IssuerKeys, |keys| settings: keys.settings);

impl IssuerKeys {
    /// Reads the keys of a file. Keys at an address are not known yet.
    pub(super) fn new(settings: Arc<IssuerSettings>) -> Self {
        let host = Url::parse(&settings.issuer).ok().and_then(|url| url.host_str().map(str::to_owned));
        let connections = IssuerConnections::new(Arc::from(format!("issuer {}", host.as_deref().unwrap_or("-"))));
        let known = Mutex::default();
        let (fetching, asked, news) = (tokio::sync::Mutex::default(), SharedLookups::default(), Notify::new());
        let keys = Self { settings, connections, known, fetching, asked, news };
        if let Some(path) = keys.settings.keys.file() {
            keys.note(read_file(path));
        }
        keys
    }

    /// Whether both have the same keys. A file of keys is read again at each reload.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        let digest = |keys: &Self| keys.known.lock().set.as_ref().map(|(set, _)| set.digest);
        self.settings.keys.file().is_none() || digest(self) == digest(other)
    }

    /// Begins with the keys of `before`, if they are at the same location. A file was read again.
    pub(super) fn succeed(&self, before: &Self) {
        if self.settings.keys == before.settings.keys && self.settings.keys.file().is_none() {
            let known = before.known.lock().clone();
            *self.known.lock() = known;
        }
    }

    /// The keys, unless their last fetch is too long ago.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        let known = self.known.lock();
        known.current(&self.settings).cloned()
    }

    pub(super) fn are_current(&self) -> bool {
        self.known.lock().current(&self.settings).is_some()
    }

    /// Returns after a fetch. One task may wait.
    pub(super) async fn fetched(&self) {
        self.news.notified().await;
    }

    /// Whether the last fetch failed, so that an unknown key may be a new one.
    pub(super) fn is_unavailable(&self) -> bool {
        self.known.lock().failed
    }

    /// Whether a token may wait for a fetch: at most one in 30 s is made for tokens.
    pub(super) fn may_be_asked(&self) -> bool {
        let is_remote = self.settings.keys.file().is_none();
        is_remote && self.known.lock().asked.is_none_or(|asked| asked.elapsed() >= ASKED_EACH)
    }

    /// Fetches the keys for a token with an unknown key: one fetch for all waiting requests, even if clients leave.
    pub(super) async fn ask(self: &Arc<Self>, scope: &OnceLock<TaskScope>) {
        let keys = Arc::clone(self);
        // Before the gateway serves, no request waits.
        if let Some(scope) = scope.get() {
            self.asked.get((), (), scope, || None, || async move { keys.fetch_for_token().await }).await;
        }
    }

    async fn fetch_for_token(&self) {
        let before = self.known.lock().tried;
        let _one = self.fetching.lock().await;
        if !self.may_be_asked() {
            return;
        }
        // The background, or another token, has fetched the keys meanwhile.
        if self.known.lock().tried == before {
            self.fetch().await;
            self.known.lock().asked = Some(Instant::now());
        }
    }

    /// Fetches the keys if a fetch is due; returns the time until the next one is due or the keys are stale.
    pub(super) async fn refresh(&self) -> Duration {
        if self.settings.keys.file().is_some() || self.settings.needs_no_keys() {
            return REFRESHED_EACH;
        }
        let _one = self.fetching.lock().await;
        if self.due_in().is_zero() {
            self.fetch().await;
        }
        self.stale_in().map_or_else(|| self.due_in(), |stale| stale.min(self.due_in()))
    }

    fn due_in(&self) -> Duration {
        let known = self.known.lock();
        let each = if known.failed { ASKED_EACH } else { REFRESHED_EACH.min(self.settings.max_stale / 2) };
        known.tried.map_or(Duration::ZERO, |tried| each.saturating_sub(tried.elapsed()))
    }

    /// The rest of the time for which the known keys may be used; `None` if they are stale or unknown.
    fn stale_in(&self) -> Option<Duration> {
        let known = self.known.lock();
        let (_, at) = known.set.as_ref()?;
        self.settings.max_stale.checked_sub(at.elapsed())
    }

    async fn fetch(&self) {
        let fetched = match &self.settings.keys {
            KeyLocation::File(_) => return,
            KeyLocation::Url(url) => self.fetch_set(url, AddressReach::Any).await,
            KeyLocation::Discovered(issuer) => self.discover(issuer).await,
        };
        self.note(fetched);
    }

    fn note(&self, fetched: Result<KeySet, KeySourceError>) {
        let now = Instant::now();
        let mut known = self.known.lock();
        known.tried = Some(now);
        known.failed = fetched.is_err();
        let issuer = &self.settings.issuer;
        match fetched {
            Ok(set) => {
                for why in set.newly_unused(known.set.as_ref().map(|(before, _)| &**before)) {
                    tracing::warn!(%issuer, "a key of the issuer is not used: {why}");
                }
                known.set = Some((Arc::new(set), now));
            }
            // The issuer responds, and no longer publishes the keys that it had (SEC-53).
            Err(KeySourceError::Set(error @ KeySetError::NoneUsable(_))) => {
                known.set = None;
                tracing::warn!(%issuer, %error, "the issuer publishes no usable key: its tokens are refused");
            }
            Err(error) => tracing::warn!(%issuer, %error, "the keys of an issuer cannot be fetched"),
        }
        drop(known);
        self.news.notify_one();
    }

    async fn fetch_set(&self, url: &Url, reach: AddressReach) -> Result<KeySet, KeySourceError> {
        let text = self.connections.fetch(url, KEY_SET_BYTES_MAX, reach).await.map_err(KeySourceError::Keys)?;
        Ok(KeySet::parse(&text)?)
    }

    /// Reads the issuer's metadata (RFC 8414, 3 and 5). Another program may answer at some of its locations (B253).
    async fn discover(&self, issuer: &Url) -> Result<KeySet, KeySourceError> {
        let mut faults = Vec::new();
        for location in metadata_locations(issuer) {
            let fetched = self.connections.fetch(&location, METADATA_BYTES_MAX, AddressReach::Any).await;
            // The other locations are on the same host: each would take the whole time limit again.
            let is_last = matches!(fetched, Err(DocumentError::Unreachable(_)));
            let named = fetched.map_err(|error| error.to_string());
            match named.and_then(|text| keys_in(&text, &self.settings.issuer)) {
                Ok(url) => return self.fetch_set(&url, reach_of(&url, issuer)).await,
                Err(fault) => faults.push(format!("{location}: {fault}")),
            }
            if is_last {
                break;
            }
        }
        Err(KeySourceError::Metadata(faults.join("; ")))
    }
}

/// Finds the address of the keys in metadata of this issuer, or its fault, for operators.
pub(super) fn keys_in(text: &Bytes, issuer: &str) -> Result<Url, String> {
    let metadata = Payload::parse(text, ScanLimits::CLIENT).ok().and_then(|text| text.read().ok());
    let metadata: Map<String, Value> = metadata.unwrap_or_default();
    let says = |name: &str| metadata.get(name).and_then(Value::as_str);
    let named = says("issuer").ok_or("it is not a JSON object with an `issuer`")?;
    if named != issuer {
        let shown = one_line::shown(named, SHOWN_BYTES_MAX);
        return Err(format!("it is of the issuer `{shown}`; if that is yours, write it as `issuer`, byte for byte"));
    }
    let url = says("jwks_uri").and_then(|url| Url::parse(url).ok()).filter(is_trustworthy);
    url.ok_or_else(|| "it has no `jwks_uri` of https".to_owned())
}

/// The three locations of metadata: RFC 8414, and OpenID Connect with the path behind and before its name.
fn metadata_locations(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let at = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url
    };
    let mut places = vec![
        at(format!("/.well-known/oauth-authorization-server{path}")),
        at(format!("/.well-known/openid-configuration{path}")),
        at(format!("{path}/.well-known/openid-configuration")),
    ];
    places.dedup();
    places
}

/// Whether a document from this address cannot be replaced on its way: by https, or on this machine.
pub fn is_trustworthy(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && is_at_loopback(url))
}

/// The issuer's own host may have any address. Another, named by metadata, must be public unless the issuer is local.
fn reach_of(url: &Url, issuer: &Url) -> AddressReach {
    if url.host() == issuer.host() || is_at_loopback(issuer) { AddressReach::Any } else { AddressReach::Public }
}

pub fn check_file(path: &Path) -> Result<(), KeySourceError> {
    read_file(path).map(drop)
}

fn read_file(path: &Path) -> Result<KeySet, KeySourceError> {
    let mut text = Vec::new();
    let limit = u64::try_from(KEY_SET_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let read = system::open_file(path).and_then(|file| file.take(limit).read_to_end(&mut text));
    read.map_err(KeySourceError::File)?;
    Ok(KeySet::parse(&Bytes::from(text))?)
}
