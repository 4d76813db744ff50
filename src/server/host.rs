//! Checks Host and Origin, which blocks foreign web pages and DNS rebinding (SEC-06). The two checks are independent,
//! and apply to every listener.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::{Request, Version};

use super::forwarded::is_loopback;
use super::handshake::ListenerCertificate;
use super::refusal::Refusal;

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The names that this listener serves, on any port.
#[derive(Clone, Debug)]
pub(super) struct HostGuard {
    /// Sorted; `None` where any name is served.
    names: Option<Arc<[String]>>,
    /// The certificate of a TLS listener; its names are served, too.
    certificate: Option<Arc<ListenerCertificate>>,
}

impl HostGuard {
    /// `bound` is the listener's address; `allowed` adds names in lower case, without port.
    pub(super) fn new(bound: SocketAddr, allowed: &[String], certificate: Option<Arc<ListenerCertificate>>) -> Self {
        let mut names: BTreeSet<String> = allowed.iter().map(|name| name.to_ascii_lowercase()).collect();
        // A listener on all addresses includes loopback.
        if bound.ip().is_loopback() || bound.ip().is_unspecified() {
            names.extend(LOOPBACK_NAMES.map(str::to_owned));
        }
        Self { names: Some(names.into_iter().collect()), certificate }
    }

    /// Serves any name. A page under a rebound name gains nothing there: it has no credential, or its origin is refused.
    pub(super) fn of_any_name(self) -> Self {
        Self { names: None, ..self }
    }

    pub(super) const fn certificate(&self) -> Option<&Arc<ListenerCertificate>> {
        self.certificate.as_ref()
    }

    /// `local` is the address that the client connected to. A page under a rebound name cannot send it as `Host`.
    pub(super) fn welcomes(&self, authority: &str, local: IpAddr) -> bool {
        let Some(name) = host_name(authority) else {
            return false;
        };
        let Some(names) = &self.names else {
            return true;
        };
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        // Nearly every client sends the name as it is listed; only the others pay for a copy.
        let is_listed = |name: &str| names.binary_search_by(|listed| listed.as_str().cmp(name)).is_ok();
        is_listed(name)
            || is_listed(&name.to_ascii_lowercase())
            || bare.parse::<IpAddr>().is_ok_and(|ip| ip == local && !ip.is_unspecified())
            || self.certificate.as_ref().is_some_and(|shown| shown.is_for(bare))
    }

    pub(super) fn check<B>(&self, request: &Request<B>, local: IpAddr) -> Result<(), Refusal> {
        let mut fields = request.headers().get_all(HOST).iter();
        let (field, second) = (fields.next(), fields.next());
        if second.is_some() {
            return Err(Refusal::HostAmbiguous);
        }
        let target = request.uri().authority().map(http::uri::Authority::as_str);
        let field = field.map(|value| value.to_str().map_err(|_| Refusal::HostNotAllowed)).transpose()?;
        if request.version() > Version::HTTP_11 {
            return match (target, field) {
                (Some(target), Some(field)) if !target.eq_ignore_ascii_case(field) => Err(Refusal::HostAmbiguous),
                (Some(name), _) | (None, Some(name)) => self.admit(name, local),
                (None, None) => Err(Refusal::HostAmbiguous),
            };
        }
        let Some(field) = field else {
            return Err(Refusal::HostAmbiguous);
        };
        // The target takes precedence, but a `Host` field that disagrees is checked as well (B51).
        target.map_or(Ok(()), |target| self.admit(target, local))?;
        self.admit(field, local)
    }

    fn admit(&self, authority: &str, local: IpAddr) -> Result<(), Refusal> {
        if self.welcomes(authority, local) { Ok(()) } else { Err(Refusal::HostNotAllowed) }
    }
}

/// Whether every host of a request is this machine. An unreadable host is not.
pub(super) fn names_this_machine<B>(request: &Request<B>) -> bool {
    let is_here = |authority: &str| host_name(authority).is_some_and(is_loopback);
    let fields = request.headers().get_all(HOST).iter();
    request.uri().authority().is_none_or(|target| is_here(target.as_str()))
        && fields.into_iter().all(|field| field.to_str().is_ok_and(is_here))
}

fn named_host<B>(request: &Request<B>) -> Option<&str> {
    let target = request.uri().authority().map(http::uri::Authority::as_str);
    target.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// The host of `host[:port]`, brackets kept; `None` for any other form.
fn host_name(authority: &str) -> Option<&str> {
    let end = if authority.starts_with('[') {
        authority.find(']')? + 1
    } else {
        memchr::memchr(b':', authority.as_bytes()).unwrap_or(authority.len())
    };
    let (name, port) = authority.split_at(end);
    let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte));
    let ported = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => digits.is_empty() || (digits.parse::<u16>().is_ok() && !digits.starts_with('+')),
    };
    (named && ported).then_some(name)
}

/// The origins that may call this listener. A request without `Origin` comes from no page.
#[derive(Clone, Debug)]
pub(super) struct OriginGuard {
    allowed: Arc<HashSet<String>>,
    pages: ImplicitOrigins,
    own: OwnPages,
    /// Whether the listener uses TLS, so that none of its pages is `http`.
    is_tls: bool,
}

/// Pages that are allowed without being listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImplicitOrigins {
    None,
    /// Pages of this machine, on any port: the listener is on loopback.
    Loopback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnPages {
    Welcome,
    Barred,
}

impl OriginGuard {
    /// `allowed` holds origins as `scheme://host[:port]`.
    pub(super) fn new(bound: SocketAddr, allowed: &[String], is_tls: bool) -> Self {
        let pages = if bound.ip().is_loopback() { ImplicitOrigins::Loopback } else { ImplicitOrigins::None };
        Self {
            allowed: Arc::new(allowed.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
            pages,
            own: OwnPages::Welcome,
            is_tls,
        }
    }

    /// The guard of a listener that no page may call.
    pub(super) fn against_pages() -> Self {
        Self { allowed: Arc::default(), pages: ImplicitOrigins::None, own: OwnPages::Barred, is_tls: false }
    }

    /// Whether a page belongs to the host of its request, which the host guard has admitted: a proxy may serve pages under that
    /// name. Names and ports are compared literally, except for the scheme's default port.
    fn is_of(&self, host: &str, origin: &str, is_https: bool) -> bool {
        if self.own == OwnPages::Barred {
            return false;
        }
        let origin = origin.to_ascii_lowercase();
        let (page, port) = match (origin.strip_prefix("https://"), origin.strip_prefix("http://")) {
            (Some(page), _) => (page, ":443"),
            (None, Some(page)) if !self.is_tls && !is_https => (page, ":80"),
            (None, _) => return false,
        };
        let host = host.to_ascii_lowercase();
        let bare = |authority: &str| authority.strip_suffix(port).unwrap_or(authority).to_owned();
        !page.is_empty() && bare(page) == bare(&host)
    }

    fn welcomes(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.allowed.contains(&origin) {
            return true;
        }
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match self.pages {
            ImplicitOrigins::None => false,
            ImplicitOrigins::Loopback => {
                authority.and_then(host_name).is_some_and(|name| LOOPBACK_NAMES.contains(&name))
            }
        }
    }
}

impl OriginGuard {
    /// Checks an origin. `asked`: the requested host as a proxy reports it; `is_https`: the client used TLS to it.
    pub(super) fn check<B>(&self, request: &Request<B>, asked: Option<&str>, is_https: bool) -> Result<(), Refusal> {
        let mut fields = request.headers().get_all(ORIGIN).iter();
        match (fields.next(), fields.next()) {
            (None, _) => Ok(()),
            (Some(origin), None)
                if origin.to_str().is_ok_and(|origin| {
                    let host = asked.or_else(|| named_host(request));
                    self.welcomes(origin) || host.is_some_and(|host| self.is_of(host, origin, is_https))
                }) =>
            {
                Ok(())
            }
            (Some(_), _) => Err(Refusal::OriginNotAllowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(bound: &str, allowed: &[&str]) -> HostGuard {
        let allowed: Vec<_> = allowed.iter().map(|&name| name.to_owned()).collect();
        HostGuard::new(bound.parse().unwrap(), &allowed, None)
    }

    #[track_caller]
    fn check(guard: &HostGuard, local: &str, authority: &str, welcome: &str) {
        assert_eq!(guard.welcomes(authority, local.parse().unwrap()), welcome == "in", "{authority}");
    }

    /// B58, B59.
    #[test]
    fn a_loopback_listener_answers_to_loopback_names_alone() {
        let guard = guard("127.0.0.1:8080", &["gate.example"]);
        for name in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.0.0.1:", "[::1]:8080", "[::1]", "Gate.example:443"]
        {
            check(&guard, "127.0.0.1", name, "in");
        }
        for name in [
            "",
            ":80",
            "evil.example",
            "localhost.",
            "localhost.evil.example",
            "127.0.0.1.evil",
            "127.0.0.2",
            "[::1].evil",
            "[::1",
            "::1",
            "user@localhost",
            "localhost:80:80",
            "localhost:+80",
            "localhost:65536",
            "localhost, localhost",
            "localhost/",
            "[0.0.0.0]",
        ] {
            check(&guard, "127.0.0.1", name, "out");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_answers_to_the_one_that_was_dialled() {
        let guard = guard("0.0.0.0:8080", &[]);
        check(&guard, "0.0.0.0", "localhost:8080", "in");
        check(&guard, "0.0.0.0", "0.0.0.0:8080", "out");
        check(&guard, "0.0.0.0", "10.0.0.7:8080", "out");
        check(&guard, "10.0.0.7", "10.0.0.7:8080", "in");
        check(&guard, "10.0.0.7", "10.0.0.8:8080", "out");
    }

    #[track_caller]
    fn check_origin(guard: &OriginGuard, origin: &str, welcome: &str) {
        assert_eq!(guard.welcomes(origin), welcome == "in", "{origin}");
    }

    /// B60, B61, B63.
    #[test]
    fn origins_are_loopback_or_listed_exactly() {
        let listed = ["https://app.example:8443".to_owned()];
        let guard = OriginGuard::new("127.0.0.1:8080".parse().unwrap(), &listed, false);
        for origin in [
            "http://localhost",
            "https://localhost:3000",
            "http://127.0.0.1:1",
            "http://[::1]:9",
            "https://app.example:8443",
        ] {
            check_origin(&guard, origin, "in");
        }
        for origin in [
            "null",
            "http://evil.example",
            "https://app.example",
            "https://app.example:8444",
            "http://app.example:8443",
            "https://app.example:8443/",
            "http://localhost/path",
            "ftp://localhost",
            "http://localhost.evil.example",
            "http://user@localhost",
        ] {
            check_origin(&guard, origin, "out");
        }
        let public = OriginGuard::new("192.0.2.1:8080".parse().unwrap(), &listed, false);
        check_origin(&public, "http://localhost", "out");
        check_origin(&public, "https://app.example:8443", "in");
    }

    #[test]
    fn pages_of_the_host_that_is_asked_may_call_it() {
        let check = |is_tls: bool, host: &str, origin: &str, welcome: bool| {
            let guard = OriginGuard::new("192.0.2.1:8080".parse().unwrap(), &[], is_tls);
            let request = Request::builder().header("host", host).header("origin", origin).body(()).unwrap();
            assert_eq!(guard.check(&request, None, false).is_ok(), welcome, "{is_tls} {host} {origin}");
        };
        for is_tls in [false, true] {
            check(is_tls, "mcp.example", "https://mcp.example", true);
            check(is_tls, "MCP.example:443", "https://mcp.example", true);
            check(is_tls, "mcp.example:8443", "https://mcp.example:8443", true);
            check(is_tls, "mcp.example", "http://mcp.example", !is_tls);
            check(is_tls, "192.0.2.1:8080", "http://192.0.2.1:8080", !is_tls);
            for origin in [
                "https://mcp.example:8443",
                "https://evil.example",
                "https://mcp.example.evil.example",
                "https://a.mcp.example",
                "https://mcp.example/",
                "ftp://mcp.example",
                "mcp.example",
                "https://",
                "null",
            ] {
                check(is_tls, "mcp.example", origin, false);
            }
        }
        let other = Request::builder().uri("http://mcp.example/").header("host", "other.example");
        let other = other.header("origin", "https://other.example").body(()).unwrap();
        let guard = OriginGuard::new("192.0.2.1:8080".parse().unwrap(), &[], false);
        assert!(guard.check(&other, None, false).is_err(), "the target counts");
    }
}
