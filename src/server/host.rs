//! Host and Origin: the two checks that keep a web page in somebody's browser away (T06).
//!
//! They are independent of each other and hold on every listener.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::{HeaderValue, Request, Version};

use super::refusal::Refusal;
use super::stack::Guard;

/// Names that always mean this machine.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Which names this listener answers to, on any port.
#[derive(Clone, Debug)]
pub(super) struct HostGuard {
    names: Arc<HashSet<String>>,
    /// The address that the client connected to. A page whose name was rebound cannot send it as `Host`.
    local: IpAddr,
}

impl HostGuard {
    /// `bound` is where the listener listens; `allowed` adds names in lower case, without port.
    pub(super) fn new(bound: SocketAddr, allowed: &[String]) -> Self {
        let mut names: HashSet<String> = allowed.iter().map(|name| name.to_ascii_lowercase()).collect();
        // A listener on all addresses listens on loopback too.
        if bound.ip().is_loopback() || bound.ip().is_unspecified() {
            names.extend(LOOPBACK_NAMES.map(str::to_owned));
        }
        Self { names: Arc::new(names), local: bound.ip() }
    }

    /// The same guard for a connection that came in on `local`.
    pub(super) fn on(&self, local: IpAddr) -> Self {
        Self { names: Arc::clone(&self.names), local }
    }

    fn welcomes(&self, authority: &str) -> bool {
        let Some(name) = host_name(authority) else {
            return false;
        };
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        // Nearly every client sends the name as it is listed; only the others pay for a copy.
        self.names.contains(name)
            || self.names.contains(&name.to_ascii_lowercase())
            || bare.parse::<IpAddr>().is_ok_and(|ip| ip == self.local && !ip.is_unspecified())
    }
}

impl Guard for HostGuard {
    fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let mut fields = request.headers().get_all(HOST).iter();
        let (field, second) = (fields.next(), fields.next());
        if second.is_some() {
            return Err(Refusal::HostUnclear);
        }
        let target = request.uri().authority().map(http::uri::Authority::as_str);
        let field = field.map(text).transpose()?;
        if request.version() > Version::HTTP_11 {
            return match (target, field) {
                (Some(target), Some(field)) if !target.eq_ignore_ascii_case(field) => Err(Refusal::HostUnclear),
                (Some(name), _) | (None, Some(name)) => self.admit(name),
                (None, None) => Err(Refusal::HostUnclear),
            };
        }
        let Some(field) = field else {
            return Err(Refusal::HostUnclear);
        };
        // The target counts where it names a host, but a field that names another is not waved through (B51).
        target.map_or(Ok(()), |target| self.admit(target))?;
        self.admit(field)
    }
}

impl HostGuard {
    fn admit(&self, authority: &str) -> Result<(), Refusal> {
        if self.welcomes(authority) { Ok(()) } else { Err(Refusal::HostForeign) }
    }
}

/// Whether a host name, without port, always means this machine.
pub(crate) fn is_loopback(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let is_local = |name: &str| name == "localhost" || name.ends_with(".localhost");
    is_local(name)
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
        || is_local(&name.to_ascii_lowercase())
}

/// Whether every host that a request names is this machine. One that cannot be read is another.
pub(super) fn names_this_machine<B>(request: &Request<B>) -> bool {
    let is_here = |authority: &str| host_name(authority).is_some_and(is_loopback);
    let fields = request.headers().get_all(HOST).iter();
    request.uri().authority().is_none_or(|target| is_here(target.as_str()))
        && fields.into_iter().all(|field| field.to_str().is_ok_and(is_here))
}

fn text(value: &HeaderValue) -> Result<&str, Refusal> {
    value.to_str().map_err(|_| Refusal::HostForeign)
}

/// The host of `host[:port]`, brackets kept; `None` where it is written any other way.
fn host_name(authority: &str) -> Option<&str> {
    let end = if authority.starts_with('[') {
        authority.find(']')? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (name, port) = authority.split_at(end);
    let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte));
    let ported = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => digits.is_empty() || (digits.parse::<u16>().is_ok() && !digits.starts_with('+')),
    };
    (named && ported).then_some(name)
}

/// Whose pages may call this listener. A request without `Origin` comes from no page.
#[derive(Clone, Debug)]
pub(super) struct OriginGuard {
    allowed: Arc<HashSet<String>>,
    pages: Pages,
}

/// Pages that need no listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    None,
    /// Those served from this machine, on any port: the listener is for this machine alone.
    Loopback,
}

impl OriginGuard {
    /// `allowed` holds origins as `scheme://host[:port]`.
    pub(super) fn new(bound: SocketAddr, allowed: &[String]) -> Self {
        let pages = if bound.ip().is_loopback() { Pages::Loopback } else { Pages::None };
        Self { allowed: Arc::new(allowed.iter().map(|origin| origin.to_ascii_lowercase()).collect()), pages }
    }

    fn welcomes(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.allowed.contains(&origin) {
            return true;
        }
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match self.pages {
            Pages::None => false,
            Pages::Loopback => authority.and_then(host_name).is_some_and(|name| LOOPBACK_NAMES.contains(&name)),
        }
    }
}

impl Guard for OriginGuard {
    fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let mut fields = request.headers().get_all(ORIGIN).iter();
        match (fields.next(), fields.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) if origin.to_str().is_ok_and(|origin| self.welcomes(origin)) => Ok(()),
            (Some(_), _) => Err(Refusal::OriginForeign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(bound: &str, allowed: &[&str]) -> HostGuard {
        HostGuard::new(bound.parse().unwrap(), &allowed.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    #[track_caller]
    fn check(guard: &HostGuard, authority: &str, welcome: &str) {
        assert_eq!(guard.welcomes(authority), welcome == "in", "{authority}");
    }

    /// B58, B59.
    #[test]
    fn a_loopback_listener_answers_to_loopback_names_alone() {
        let guard = guard("127.0.0.1:8080", &["gate.example"]);
        for name in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.0.0.1:", "[::1]:8080", "[::1]", "Gate.example:443"]
        {
            check(&guard, name, "in");
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
            check(&guard, name, "out");
        }
    }

    #[test]
    fn a_listener_on_all_addresses_answers_to_the_one_that_was_dialled() {
        let guard = guard("0.0.0.0:8080", &[]);
        check(&guard, "localhost:8080", "in");
        check(&guard, "0.0.0.0:8080", "out");
        check(&guard, "10.0.0.7:8080", "out");
        let dialled = guard.on("10.0.0.7".parse().unwrap());
        check(&dialled, "10.0.0.7:8080", "in");
        check(&dialled, "10.0.0.8:8080", "out");
    }

    #[track_caller]
    fn check_origin(guard: &OriginGuard, origin: &str, welcome: &str) {
        assert_eq!(guard.welcomes(origin), welcome == "in", "{origin}");
    }

    /// B60, B61, B63.
    #[test]
    fn origins_are_loopback_or_listed_exactly() {
        let listed = ["https://app.example:8443".to_owned()];
        let guard = OriginGuard::new("127.0.0.1:8080".parse().unwrap(), &listed);
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
        let public = OriginGuard::new("192.0.2.1:8080".parse().unwrap(), &listed);
        check_origin(&public, "http://localhost", "out");
        check_origin(&public, "https://app.example:8443", "in");
    }
}
