//! Logs refused requests: once a minute per reason, with the deciding configuration key.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};
use parking_lot::Mutex;
use rustls::Error as RustlsError;
use tokio::time::Instant;

use super::ListenerRole;
use super::refusal::{HeadPart, Refusal};
use crate::audit::{AuditAct, AuditEvent, AuditLog};
use crate::line_budget::LogPace;
use crate::task::Principal;
use crate::task::reference::principal_reference;

const SHOWN_MAX: usize = 100;
const NOTICES_MAX: usize = 256;

/// The last notices of one listener. At most one entry per reason and issuer.
#[derive(Debug)]
pub(super) struct Notices {
    pub(super) listener: ListenerRole,
    by_reason: Mutex<BTreeMap<NoticeKey, LogPace>>,
    audit: OnceLock<AuditedRefusals>,
}

type NoticeKey = (&'static str, Option<Arc<str>>);

#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedCaller<'a> {
    pub(super) client: IpAddr,
    pub(super) principal: Option<&'a Principal>,
}

impl RefusedCaller<'_> {
    /// Whether its credential is valid.
    fn is_known(&self) -> bool {
        self.principal.is_some_and(|principal| principal.is_identified() && !principal.is_unchecked())
    }
}

impl Notices {
    pub(super) fn new(listener: ListenerRole, audit: Option<Arc<AuditLog>>) -> Self {
        let notices = Self { listener, by_reason: Mutex::new(BTreeMap::new()), audit: OnceLock::new() };
        if let Some(audit) = audit {
            notices.record_refusals(audit);
        }
        notices
    }

    /// Records refusals from now on. Only the first audit counts.
    pub(super) fn record_refusals(&self, log: Arc<AuditLog>) {
        let _ = self.audit.set(AuditedRefusals { log, anonymous: Mutex::default(), named: Mutex::default() });
    }

    /// Logs a refused request of a client or an operator that a key could allow, at most once a minute for each reason and issuer.
    /// Each refused credential and withheld path is an event of the audit.
    pub(super) fn refused(&self, refusal: &Refusal, caller: RefusedCaller<'_>, target: &Uri, headers: &HeaderMap) {
        if let Some(audit) = self.audit.get() {
            audit.record(refusal, caller, target, self.listener);
        }
        let advice = match self.listener {
            ListenerRole::Clients => refusal.advice(),
            ListenerRole::Operators => refusal.advice_to_operators(),
            ListenerRole::Probes | ListenerRole::Replicas => None,
        };
        let Some(advice) = advice else { return };
        let evidence = refusal.evidence();
        let issuer = evidence.and_then(|found| found.issuer.as_ref());
        let Some(more) = self.due(advice.reason, issuer) else { return };
        let field = |name| headers.get(name).map(|value: &http::HeaderValue| value.as_bytes());
        let value = match advice.shown {
            HeadPart::Host => field(HOST).or_else(|| target.authority().map(|name| name.as_str().as_bytes())),
            HeadPart::Origin => field(ORIGIN),
            HeadPart::Length => field(CONTENT_LENGTH),
            HeadPart::Path => Some(target.path().as_bytes()),
            HeadPart::Nothing => evidence.and_then(|found| found.value.as_deref()).map(str::as_bytes),
        };
        let (reason, key, sentence) = (advice.reason, advice.key, advice.sentence);
        let value = LoggedText(value.unwrap_or_default());
        let RefusedCaller { client, principal } = caller;
        let (principal, issuer) = (principal.map(principal_reference), issuer.map(|issuer| &**issuer));
        let listener = self.listener.name();
        tracing::warn!(listener, reason, key, %value, issuer, %client, principal, more, "refused: {sentence}");
    }

    /// Logs a connection that was closed at a bound, once a minute for each bound (B256).
    pub(super) fn refused_connection(&self, bound: &'static str, client: IpAddr) {
        let Some(more) = self.due(bound, None) else { return };
        let key = (self.listener == ListenerRole::Clients).then(|| key_of(bound));
        tracing::warn!(listener = self.listener.name(), reason = bound, key, %client, more, "refused: a connection above the bound was closed");
    }

    /// Logs a refused handshake, once a minute for each reason; not a connection that ends before: monitors do that.
    pub(super) fn refused_handshake(&self, error: &io::Error, client: IpAddr) {
        let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<RustlsError>()) else { return };
        let listener = self.listener.name();
        if matches!(error, RustlsError::InvalidCertificate(_) | RustlsError::NoCertificatesPresented) {
            let Some(more) = self.due("client_certificate", None) else { return };
            let key = (self.listener == ListenerRole::Clients).then_some("listen.tls.client_ca");
            tracing::warn!(
                listener, reason = "client_certificate", key, %client, more, %error,
                "refused: a client has no valid certificate of an authority of this listener"
            );
        } else if let Some(more) = self.due("tls_handshake", None) {
            tracing::warn!(listener, reason = "tls_handshake", %client, more, %error, "refused: a TLS handshake failed");
        }
    }

    /// Whether to log this reason now, and how many refusals since the last time.
    fn due(&self, reason: &'static str, issuer: Option<&Arc<str>>) -> Option<u64> {
        let (key, mut notices) = ((reason, issuer.cloned()), self.by_reason.lock());
        if notices.len() >= NOTICES_MAX && !notices.contains_key(&key) {
            // Of issuers that a reload removed.
            notices.retain(|_, one| one.is_recent());
        }
        notices.entry(key).or_default().admit()
    }
}

/// The bound of one address is fixed: its key is the one that exempts a proxy.
fn key_of(bound: &str) -> &'static str {
    if bound == "connections_max" { "limits.connections_max" } else { "listen.trusted_proxies" }
}

/// Refusals a second that have lines: no client fills the disk. Clients with valid credentials have as many lines.
const RECORDED_MAX: u64 = 100;

#[derive(Debug)]
struct AuditedRefusals {
    log: Arc<AuditLog>,
    anonymous: Mutex<RefusalSecond>,
    named: Mutex<RefusalSecond>,
}

#[derive(Debug, Default)]
struct RefusalSecond {
    began: Option<Instant>,
    seen: u64,
}

impl AuditedRefusals {
    fn record(&self, refusal: &Refusal, caller: RefusedCaller<'_>, target: &Uri, listener: ListenerRole) {
        use Refusal as R;
        let (status, reason) = refusal.status();
        let shows_credential =
            matches!(refusal, R::CredentialsAmbiguous | R::KeyAndToken | R::TokenInQuery | R::TooManyTokens(_));
        let act = match status {
            _ if matches!(refusal, R::PathWithheld(_)) => AuditAct::RuleDenied,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => AuditAct::LoginRefused,
            _ if shows_credential => AuditAct::LoginRefused,
            _ => return,
        };
        let second = if caller.is_known() { &self.named } else { &self.anonymous };
        if !second.lock().has_room() {
            return self.log.count_unnamed();
        }
        // Not the path, which may have a task's id.
        let of_operators = (listener == ListenerRole::Operators).then_some("admin");
        let item = if act == AuditAct::RuleDenied { Some(target.path()) } else { of_operators };
        let (who, client, outcome) = (caller.principal, Some(caller.client), Some(reason));
        self.log.record(&AuditEvent { who, client, item, outcome, ..AuditEvent::new(act) });
    }
}

impl RefusalSecond {
    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            *self = Self { began: Some(now), seen: 0 };
        }
        self.seen += 1;
        self.seen <= RECORDED_MAX
    }
}

/// A client's text as a log may contain it: printable and truncated (B160).
struct LoggedText<'a>(&'a [u8]);

impl fmt::Display for LoggedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..SHOWN_MAX);
        write!(f, "{}", shown.unwrap_or(self.0).escape_ascii())?;
        if shown.is_some() && self.0.len() > SHOWN_MAX { f.write_str("…") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::AuditSettings;
    use crate::task::WithheldBy;

    #[test]
    fn b256_a_bound_that_no_key_changes_is_logged_with_the_key_for_proxies() {
        assert_eq!(key_of("connections_max"), "limits.connections_max");
        assert_eq!(key_of("connections_per_address_max"), "listen.trusted_proxies");
    }

    /// 10,000 refusals of strangers, one of a known client, and none afterwards.
    #[tokio::test]
    async fn sec_60_a_flood_of_refusals_hides_no_known_client_and_all_are_counted_at_the_end() {
        const FLOOD: u64 = 10_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let settings = AuditSettings {
            path: path.clone(),
            is_required: false,
            records_calls: true,
            digests_arguments: false,
            anchor: None,
        };
        let log = AuditLog::open(settings, None).await.unwrap();
        let notices = Notices::new(ListenerRole::Clients, Some(Arc::clone(&log)));
        let refuse = |refusal: &Refusal, principal: Option<&Principal>| {
            let caller = RefusedCaller { client: IpAddr::from([192, 0, 2, 7]), principal };
            notices.refused(refusal, caller, &Uri::from_static("/up/mcp"), &HeaderMap::new());
        };
        refuse(&Refusal::TokenInQuery, None);
        refuse(&Refusal::CredentialsAmbiguous, None);
        (0..FLOOD).for_each(|_| refuse(&Refusal::Unauthorized, None));
        refuse(&Refusal::PathWithheld(WithheldBy::Rules), Some(&Principal::anonymous()));
        refuse(&Refusal::PathWithheld(WithheldBy::Rules), Some(&Principal::holding("ada")));
        refuse(&Refusal::BodyEmpty, Some(&Principal::holding("ada")));
        let operators = Notices::new(ListenerRole::Operators, Some(Arc::clone(&log)));
        let stranger = RefusedCaller { client: IpAddr::from([192, 0, 2, 7]), principal: None };
        operators.refused(&Refusal::Unauthorized, stranger, &Uri::from_static("/tasks"), &HeaderMap::new());
        log.close().await;
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |outcome: &str| lines.iter().filter(|line| line["outcome"] == outcome).collect::<Vec<_>>();
        assert_eq!((of("token_in_query").len(), of("credentials_unclear").len()), (1, 1));
        let withheld = of("path_withheld");
        assert!(withheld.iter().any(|line| line["who"] == "key:ada" && line["item"] == "/up/mcp"), "{withheld:?}");
        let unnamed: u64 = lines.iter().filter_map(|line| line["unnamed"].as_u64()).sum();
        let named = (of("unauthorized").len() + withheld.len()) as u64;
        assert!(unnamed > 0 && of("body_empty").is_empty());
        assert_eq!(named + unnamed, FLOOD + 3);
        assert_eq!(lines.iter().filter(|line| line["item"] == "admin").count(), 1, "one is the operators' listener's");
    }

    #[tokio::test(start_paused = true)]
    async fn each_reason_is_told_once_a_minute_with_how_many_more_there_were() {
        let notices = Notices::new(ListenerRole::Clients, None);
        let due = |reason| notices.due(reason, None);
        assert_eq!(due("host_foreign"), Some(0));
        assert_eq!(due("path_unknown"), Some(0), "another one");
        for _ in 0..7 {
            assert_eq!(due("host_foreign"), None);
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(due("host_foreign"), Some(7));
        assert_eq!(due("host_foreign"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_issuer_has_its_own_notices_and_earlier_issuers_are_forgotten() {
        let notices = Notices::new(ListenerRole::Clients, None);
        for n in 0..10 * NOTICES_MAX {
            let issuer = Arc::from(format!("https://login-{n}.example"));
            assert_eq!(notices.due("token_expired", Some(&issuer)), Some(0), "{n}");
            assert_eq!(notices.due("token_expired", Some(&issuer)), None, "{n}");
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert!(notices.by_reason.lock().len() <= NOTICES_MAX);
    }

    #[test]
    fn b160_a_clients_text_is_logged_printable_and_cut() {
        assert_eq!(LoggedText(b"mcp.example").to_string(), "mcp.example");
        assert_eq!(LoggedText(b"a\x1b[2Jb\r\n\xe2\x80\xae").to_string(), r"a\x1b[2Jb\r\n\xe2\x80\xae");
        assert_eq!(LoggedText(&[b'x'; SHOWN_MAX]).to_string(), "x".repeat(SHOWN_MAX));
        assert_eq!(LoggedText(&[b'x'; 9_000]).to_string(), "x".repeat(SHOWN_MAX) + "…");
    }
}
