//! Fetches a server's protected resource metadata (RFC 9728): its authorization servers. Asks only the server's own
//! origin: another origin could send clients to an attacker's authorization server.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use super::answer_body::BodyKind;
use super::outgoing::{HandedOver, SessionHeaders};
use super::reply::{self, ReadLimits};
use super::transport::http_client::HttpClient;
use crate::wire::{Object, Payload, ScanLimits};

pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

const BYTES_MAX: usize = 64 * 1024;
/// How long all attempts together may take.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// How long metadata is cached, and how long its absence.
const FRESH_FOR: Duration = Duration::from_secs(60);
const FAILED_FOR: Duration = Duration::from_secs(5);
/// How long the same error is not logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Longest accepted address, and most authorization servers.
const ADDRESS_BYTES_MAX: usize = 2 * 1024;
const SERVERS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("the server has no metadata of a protected resource")]
    Missing,
    /// The metadata was not fetched.
    #[error("the server has its metadata at another origin, where the gateway does not look")]
    Foreign,
    #[error("the server's metadata cannot be fetched: {0}")]
    Unreachable(&'static str),
    #[error("the server's metadata is unusable: {0}")]
    Unusable(&'static str),
}

#[derive(Debug)]
pub struct ResourceMetadata {
    name: Arc<str>,
    client: HttpClient,
    url: Url,
    announced: Mutex<Option<Url>>,
    /// One request at a time; others wait for its result.
    known: tokio::sync::Mutex<Option<KnownMetadata>>,
    logged_at: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct KnownMetadata {
    at: Instant,
    announced: Option<Url>,
    found: Result<Payload, MetadataError>,
}

impl KnownMetadata {
    fn is_fresh(&self, announced: Option<&Url>) -> bool {
        let span = if self.found.is_ok() { FRESH_FOR } else { FAILED_FOR };
        self.at.elapsed() < span && self.announced.as_ref() == announced
    }
}

impl ResourceMetadata {
    pub(super) fn new(name: &Arc<str>, client: HttpClient, url: Url) -> Self {
        let (announced, known, logged_at) = (Mutex::default(), tokio::sync::Mutex::default(), Mutex::default());
        Self { name: Arc::clone(name), client, url, announced, known, logged_at }
    }

    pub fn announce(&self, address: &str) {
        if address.len() <= ADDRESS_BYTES_MAX
            && let Ok(address) = self.url.join(address)
        {
            *self.announced.lock() = Some(address);
        }
    }

    /// The metadata, verbatim. Cancel safe. Fails if the server's own origin has no usable metadata.
    pub async fn get(&self) -> Result<Payload, MetadataError> {
        let mut known = self.known.lock().await;
        let announced = self.announced.lock().clone();
        if let Some(known) = known.as_ref().filter(|known| known.is_fresh(announced.as_ref())) {
            return known.found.clone();
        }
        let late = Err(MetadataError::Unreachable("it did not come in time"));
        let found = tokio::time::timeout(FETCH_MAX, self.fetch(announced.as_ref())).await.unwrap_or(late);
        if let Err(error) = &found {
            self.log_failure(error, announced.as_ref());
        }
        *known = Some(KnownMetadata { at: Instant::now(), announced, found: found.clone() });
        found
    }

    /// Tries each location in turn: the announced one, the one of the server's path (RFC 9728, 3.1), the one of its root.
    async fn fetch(&self, announced: Option<&Url>) -> Result<Payload, MetadataError> {
        let is_foreign = announced.is_some_and(|address| address.origin() != self.url.origin());
        let mut first = is_foreign.then_some(MetadataError::Foreign);
        for address in self.candidates(announced) {
            match self.fetch_at(&address).await {
                Ok(found) => return Ok(found),
                Err(MetadataError::Missing) => (),
                // The request would fail at every other location as well.
                Err(error @ MetadataError::Unreachable(_)) => return Err(first.unwrap_or(error)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(MetadataError::Missing))
    }

    /// The possible locations of the metadata, all of the server's own origin.
    fn candidates(&self, announced: Option<&Url>) -> Vec<Url> {
        let path = self.url.path().trim_end_matches('/');
        let at = |path: String| {
            let mut address = self.url.clone();
            address.set_path(&path);
            address.set_query(None);
            address
        };
        let announced = announced.filter(|address| address.origin() == self.url.origin()).cloned();
        let mut candidates: Vec<Url> = announced.into_iter().collect();
        for address in [at(format!("{WELL_KNOWN}{path}")), at(WELL_KNOWN.to_owned())] {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        candidates
    }

    async fn fetch_at(&self, address: &Url) -> Result<Payload, MetadataError> {
        let client = self.client.at(address).map_err(|_| MetadataError::Unusable("its address is invalid"))?;
        let sent = client.try_send(&SessionHeaders::default().document(), &HandedOver::default()).await;
        let response = sent.map_err(|fault| MetadataError::Unreachable(fault.reason.key()))?;
        match response.status() {
            StatusCode::OK => (),
            // Servers report missing metadata by various statuses; some require credentials at every path.
            status if status.is_client_error() => return Err(MetadataError::Missing),
            status if status.is_redirection() => {
                return Err(MetadataError::Unusable("it is at another address, which is not followed"));
            }
            _ => return Err(MetadataError::Unusable("the server answers for it with an error")),
        }
        if reply::content_of(response.headers()) != BodyKind::Json {
            return Err(MetadataError::Unusable("it is not application/json"));
        }
        let body = response.into_body().reporting_to(None);
        let text = reply::read_whole(body, &ReadLimits::of_bytes(BYTES_MAX)).await;
        let text = text.map_err(|_| MetadataError::Unusable("it is larger than 64 KiB, or broke off"))?;
        checked(&text)
    }

    /// Logs for operators why clients cannot log in, at most once a minute.
    fn log_failure(&self, error: &MetadataError, announced: Option<&Url>) {
        let mut logged_at = self.logged_at.lock();
        if *error == MetadataError::Missing || logged_at.is_some_and(|logged_at| logged_at.elapsed() < LOG_INTERVAL) {
            return;
        }
        *logged_at = Some(Instant::now());
        // Without path and query, which may hold a secret.
        let announced = announced.map(|address| address.origin().ascii_serialization()).unwrap_or_default();
        tracing::warn!(upstream = %self.name, announced, %error, "clients cannot learn how to log in at the server");
    }
}

/// Metadata that is safe for clients: the members that they follow are present and of the right type.
fn checked(text: &bytes::Bytes) -> Result<Payload, MetadataError> {
    let payload = Payload::parse(text, ScanLimits::UPSTREAM).map_err(|_| MetadataError::Unusable("it is not JSON"))?;
    let metadata = Object::of(&payload).ok_or(MetadataError::Unusable("it is not an object"))?;
    let is_named = metadata.get_string("resource").is_some_and(|resource| is_address(&resource));
    if !is_named {
        return Err(MetadataError::Unusable("`resource` is not an address"));
    }
    if let Some(servers) = metadata.get("authorization_servers") {
        let servers: Option<Vec<String>> = servers.read().ok();
        let fits = |servers: &Vec<String>| {
            (1..=SERVERS_MAX).contains(&servers.len()) && servers.iter().all(|one| is_address(one))
        };
        if !servers.as_ref().is_some_and(fits) {
            return Err(MetadataError::Unusable("`authorization_servers` is not a list of addresses"));
        }
    }
    let is_fit = |(name, value): (Cow<'_, str>, Payload)| {
        !names_address(&name) || value.read::<String>().is_ok_and(|address| is_address(&address))
    };
    if !metadata.entries().all(is_fit) {
        return Err(MetadataError::Unusable("a member that is an address is not http or https"));
    }
    Ok(payload)
}

/// Whether a member is an address to follow, with or without a language tag (RFC 9728, 2).
fn names_address(name: &str) -> bool {
    let name = name.split_once('#').map_or(name, |(name, _language)| name);
    name.ends_with("_uri") || name.ends_with("_url") || name == "resource_documentation"
}

fn is_address(text: &str) -> bool {
    let is_of_the_web = |url: Url| matches!(url.scheme(), "http" | "https");
    text.len() <= ADDRESS_BYTES_MAX && Url::parse(text).is_ok_and(is_of_the_web)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::upstream::transport::http_client::{ClientTls, ProxySettings};

    fn of(url: &str) -> ResourceMetadata {
        let (name, url): (Arc<str>, Url) = (Arc::from("up"), url.parse().unwrap());
        let client =
            HttpClient::new(&name, &url, Duration::from_secs(1), ClientTls::default(), &ProxySettings::Direct).unwrap();
        ResourceMetadata::new(&name, client, url)
    }

    /// RFC 9728, 3.1.
    #[test]
    fn metadata_is_asked_for_at_the_servers_own_origin_alone() {
        for (url, announced, places) in [
            (
                "http://up:9/mcp?key=1",
                None,
                &[
                    "http://up:9/.well-known/oauth-protected-resource/mcp",
                    "http://up:9/.well-known/oauth-protected-resource",
                ][..],
            ),
            ("http://up:9/", None, &["http://up:9/.well-known/oauth-protected-resource"][..]),
            (
                "http://up:9/",
                Some("/meta"),
                &["http://up:9/meta", "http://up:9/.well-known/oauth-protected-resource"][..],
            ),
            ("http://up:9/", Some("http://up:8/meta"), &["http://up:9/.well-known/oauth-protected-resource"][..]),
            ("http://up:9/", Some("https://up:9/meta"), &["http://up:9/.well-known/oauth-protected-resource"][..]),
            ("http://up:9/", Some("//evil/meta"), &["http://up:9/.well-known/oauth-protected-resource"][..]),
            ("http://up:9/", Some("http://up:9@evil/"), &["http://up:9/.well-known/oauth-protected-resource"][..]),
            ("http://up:9/", Some("http://["), &["http://up:9/.well-known/oauth-protected-resource"][..]),
        ] {
            let source = of(url);
            announced.into_iter().for_each(|address| source.announce(address));
            let announced = source.announced.lock().clone();
            let found: Vec<String> = source.candidates(announced.as_ref()).iter().map(Url::to_string).collect();
            assert_eq!(found, places, "{url} {announced:?}");
        }
    }

    #[test]
    fn metadata_that_would_lead_clients_nowhere_is_not_shown() {
        for (text, expected) in [
            (r#"{"resource":"https://up/mcp"}"#, "fine"),
            (r#"{"resource":"https://up/mcp","authorization_servers":["https://as"],"x":[1]}"#, "fine"),
            ("", "not JSON"),
            ("<html>", "not JSON"),
            ("[]", "not an object"),
            (r#""https://up""#, "not an object"),
            ("{}", "`resource`"),
            (r#"{"resource":7}"#, "`resource`"),
            (r#"{"resource":"up"}"#, "`resource`"),
            (r#"{"resource":"file:///etc/passwd"}"#, "`resource`"),
            (r#"{"resource":"https://up","resource":"https://evil"}"#, "not JSON"),
            (r#"{"resource":"https://up","authorization_servers":[]}"#, "`authorization_servers`"),
            (r#"{"resource":"https://up","authorization_servers":"https://as"}"#, "`authorization_servers`"),
            (r#"{"resource":"https://up","authorization_servers":["javascript:alert(1)"]}"#, "`authorization_servers`"),
            (r#"{"resource":"https://up","jwks_uri":"http://up/k","resource_documentation":"https://d"}"#, "fine"),
            (r#"{"resource":"https://up","jwks_uri":"javascript:alert(1)"}"#, "a member that is an address"),
            (
                r#"{"resource":"https://up","resource_documentation#fr":"data:text/html,x"}"#,
                "a member that is an address",
            ),
            (r#"{"resource":"https://up","resource_policy_uri":"file:///etc"}"#, "a member that is an address"),
            (r#"{"resource":"https://up","resource_tos_uri":["https://up"]}"#, "a member that is an address"),
            (r#"{"resource":"https://up","resource_name":"Docs: all"}"#, "fine"),
        ] {
            let found = checked(&Bytes::from(text)).map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
