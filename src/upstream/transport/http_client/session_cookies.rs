//! Keeps a server's cookies for each gateway session, and sends them only there (RFC 6265). A load balancer names a
//! session's node by a cookie for the gateway alone: clients' cookies are not forwarded (B75). Cookies are kept in
//! memory by session id and origin, so that no session, principal or other server shares them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue, Uri};
use moka::policy::EvictionPolicy;
use tokio::time::Instant;

/// More are dropped.
const COOKIES_MAX: usize = 16;
/// Name and value.
const COOKIE_BYTES_MAX: usize = 4 * 1024;
/// All cookies at one server; the least recently used are evicted.
const BYTES_MAX: u64 = 4 << 20;
/// Memory of a cookie beside its text.
const OVERHEAD_BYTES: usize = 128;
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Debug)]
pub(super) struct SessionCookies {
    by_session: moka::sync::Cache<HeaderValue, Arc<[SessionCookie]>>,
    /// Most servers send none, and their requests need no lookup.
    are_given: Arc<AtomicBool>,
}

#[derive(Clone)]
struct SessionCookie {
    name: Box<str>,
    value: Box<str>,
    path: Box<str>,
    is_secure: bool,
    expires: Option<Instant>,
}

debug_members!(SessionCookie, |cookie| name: cookie.name);

impl SessionCookie {
    /// Reads a `Set-Cookie` field; `None` for an invalid one. An expired cookie removes the one of its name.
    fn read(text: &str, from: &Uri) -> Option<Self> {
        let mut parts = text.split(';');
        let (name, value) = parts.next()?.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let is_text = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if name.is_empty() || !is_text(name) || !is_text(value) || name.len() + value.len() > COOKIE_BYTES_MAX {
            return None;
        }
        let path = from.path().rsplit_once('/').map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder });
        let mut cookie =
            Self { name: name.into(), value: value.into(), path: path.into(), is_secure: false, expires: None };
        let (mut max_age, mut is_over) = (None, false);
        for attribute in parts {
            let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let value = value.trim();
            match key.trim().to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => cookie.path = value.into(),
                "domain" if !is_domain_of(value, from.host()?) => return None,
                "secure" => cookie.is_secure = true,
                "max-age" => max_age = value.parse::<i64>().ok().or(max_age),
                // Servers remove a cookie by the date of the epoch.
                "expires" => is_over = value.contains("1970"),
                _ => (),
            }
        }
        cookie.expires = match (max_age, is_over) {
            (Some(seconds), _) => {
                let span = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
                Instant::now().checked_add(span)
            }
            (None, true) => Some(Instant::now()),
            (None, false) => None,
        };
        Some(cookie)
    }

    fn is_alive(&self) -> bool {
        self.expires.is_none_or(|expires| expires > Instant::now())
    }

    fn goes_to(&self, to: &Uri) -> bool {
        let below = to.path().strip_prefix(&*self.path);
        let is_below = below.is_some_and(|rest| rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/'));
        is_below && self.is_alive() && (!self.is_secure || to.scheme_str() == Some("https"))
    }
}

fn is_domain_of(domain: &str, host: &str) -> bool {
    let (domain, host) = (domain.trim_start_matches('.').to_ascii_lowercase(), host.to_ascii_lowercase());
    host.strip_suffix(&domain).is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

impl SessionCookies {
    pub(super) fn new() -> Self {
        let weigh = |session: &HeaderValue, cookies: &Arc<[SessionCookie]>| {
            let bytes = |cookie: &SessionCookie| cookie.name.len() + cookie.value.len() + cookie.path.len();
            let all = cookies.iter().map(|cookie| bytes(cookie) + OVERHEAD_BYTES).sum::<usize>();
            u32::try_from(all + session.len()).unwrap_or(u32::MAX)
        };
        // LRU: a new session must be admitted, however often the others are looked up.
        let by_session = moka::sync::Cache::builder().max_capacity(BYTES_MAX).eviction_policy(EvictionPolicy::lru());
        let by_session = by_session.weigher(weigh).time_to_idle(KEPT_FOR).build();
        Self { by_session, are_given: Arc::default() }
    }

    pub(super) fn field(&self, session: &HeaderValue, to: &Uri) -> Option<HeaderValue> {
        if !self.are_given.load(Ordering::Relaxed) {
            return None;
        }
        let cookies = self.by_session.get(session)?;
        let going: Vec<_> = cookies.iter().filter(|cookie| cookie.goes_to(to)).collect();
        let pairs: Vec<_> = going.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
        let mut field = HeaderValue::from_str(&pairs.join("; ")).ok().filter(|field| !field.is_empty())?;
        field.set_sensitive(true);
        Some(field)
    }

    pub(super) fn note(&self, session: &HeaderValue, from: &Uri, headers: &HeaderMap) {
        let fields = headers.get_all(SET_COOKIE).iter().filter_map(|field| field.to_str().ok());
        let received: Vec<_> = fields.take(COOKIES_MAX).filter_map(|field| SessionCookie::read(field, from)).collect();
        if received.is_empty() {
            return;
        }
        let mut cookies = self.by_session.get(session).map(|cookies| cookies.to_vec()).unwrap_or_default();
        for cookie in received {
            cookies.retain(|known| known.is_alive() && (known.name != cookie.name || known.path != cookie.path));
            if cookie.is_alive() && cookies.len() < COOKIES_MAX {
                cookies.push(cookie);
            }
        }
        self.by_session.insert(session.clone(), cookies.into());
        self.are_given.store(true, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, session: &HeaderValue) {
        self.by_session.invalidate(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (SET_COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap())).collect()
    }

    #[test]
    fn a_session_sends_the_cookies_that_it_was_given_and_no_other() {
        let (from, a, b) = (
            Uri::from_static("https://up.example/v1/mcp"),
            HeaderValue::from_static("a"),
            HeaderValue::from_static("b"),
        );
        for (lines, to, expected) in [
            (
                &["AWSALB=x/+=; Path=/", "n=1; HttpOnly; SameSite=Lax"][..],
                "https://up.example/v1/mcp",
                "AWSALB=x/+=; n=1",
            ),
            (&["n=1", "n=2"], "https://up.example/v1/mcp", "n=2"),
            (&["n=1", "n=; Max-Age=0"], "https://up.example/v1/mcp", ""),
            (&["n=1", "n=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], "https://up.example/v1/mcp", ""),
            (&["n=1; Path=/v1", "m=2; Path=/other"], "https://up.example/v1/messages", "n=1"),
            (&["n=1; Path=/v"], "https://up.example/v1/mcp", ""),
            (&["n=1; Secure"], "http://up.example/v1/mcp", ""),
            (
                &["n=1; Domain=example", "m=2; Domain=evil.example", "o=3; Domain=ample"],
                "https://up.example/v1/mcp",
                "n=1",
            ),
            (&["=1", "n", "n=a\u{e4}", "m=a, b"], "https://up.example/v1/mcp", "m=a, b"),
        ] {
            let cookies = SessionCookies::new();
            for line in lines {
                cookies.note(&a, &from, &received(&[line]));
            }
            let field = cookies.field(&a, &to.parse().unwrap());
            assert_eq!(field.as_ref().map_or("", |field| field.to_str().unwrap()), expected, "{lines:?}");
            assert_eq!(cookies.field(&b, &from), None);
            cookies.remove(&a);
            assert_eq!(cookies.field(&a, &from), None);
        }
    }

    #[test]
    fn cookies_are_bounded_in_number_and_bytes() {
        let (from, session) = (Uri::from_static("http://up/mcp"), HeaderValue::from_static("a"));
        let cookies = SessionCookies::new();
        let lines: Vec<_> = (0..100).map(|n| format!("n{n}=1")).collect();
        for line in &lines {
            cookies.note(&session, &from, &received(&[line]));
        }
        cookies.note(&session, &from, &received(&[&format!("n0={}", "x".repeat(COOKIE_BYTES_MAX))]));
        let field = cookies.field(&session, &from).unwrap();
        assert_eq!(field.to_str().unwrap().split("; ").count(), COOKIES_MAX);
        assert!(!field.to_str().unwrap().contains("xx"));
    }

    #[test]
    fn a_new_session_has_its_cookies_however_often_those_of_others_are_looked_up() {
        let from = Uri::from_static("http://up/mcp");
        let large = format!("n={}", "x".repeat(COOKIE_BYTES_MAX - 1));
        let cookies = SessionCookies::new();
        let sessions = usize::try_from(BYTES_MAX).unwrap() / COOKIE_BYTES_MAX;
        let session = |n: usize| HeaderValue::from_str(&format!("s-{n}")).unwrap();
        for n in 0..sessions {
            cookies.note(&session(n), &from, &received(&[&large]));
            for _ in 0..8 {
                cookies.field(&session(n), &from);
            }
        }
        for n in sessions..sessions + 100 {
            cookies.note(&session(n), &from, &received(&[&large]));
            cookies.by_session.run_pending_tasks();
            assert!(cookies.field(&session(n), &from).is_some(), "{n}");
            assert!(cookies.by_session.weighted_size() <= BYTES_MAX);
        }
    }
}
