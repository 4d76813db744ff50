//! Connects to one server: name, TCP, a proxy's tunnel, and TLS; chooses the proxy. Requests to `https` use a tunnel
//! (CONNECT) that shows the proxy the host alone; `http` shows it the whole address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, FutureExt as _, select};
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::uri::Scheme;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tower::{Service, ServiceExt as _};
use url::{Host, Url, form_urlencoded};

use super::BoxError;
use crate::secret_file::{self, SecretFileError};
use crate::tls::provider;

/// Detects dead peers over TCP and HTTP/2, since silence is normal for a running call.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(30);
const CREDENTIALS_BYTES_MAX: usize = 8 * 1024;

/// Boxed: TLS is large, and over HTTP/2 hyper gives each request a future with room for the connection.
pub(super) type Stream = Box<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// By default the system's roots, no certificate, and servers at every address.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    pub(crate) roots: Option<RootCertStore>,
    pub(crate) identity: Option<Arc<CertifiedKey>>,
    pub(crate) reach: AddressReach,
}

#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<RouteConnector>,
    to: Uri,
}

impl Connector {
    /// Fails if the system's trusted roots cannot be used.
    pub(super) fn new(to: Uri, tls: ClientTls, proxy: Option<Proxy>) -> Result<Self, rustls::Error> {
        let reach = if proxy.is_some() { AddressReach::Any } else { tls.reach };
        let mut plain = HttpConnector::new_with_resolver(ReachedNames::new(reach));
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_keepalive(Some(KEEP_ALIVE));
        let inner = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(&to, tls)?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(RouteConnector { direct: plain, proxy });
        Ok(Self { inner, to })
    }

    /// Dropping the future abandons the connection.
    pub(super) async fn connect(&self) -> Result<Stream, BoxError> {
        self.inner.clone().oneshot(self.to.clone()).await.map(Box::new)
    }
}

/// Plain `http` needs no trusted roots, so a machine without certificates can serve it.
fn tls_config(to: &Uri, tls: ClientTls) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match tls.roots {
        Some(roots) => builder.with_root_certificates(roots),
        None if to.scheme() != Some(&Scheme::HTTPS) => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier::new(provider())?)),
    };
    Ok(match tls.identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    })
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxySettings {
    /// `HTTPS_PROXY` or `HTTP_PROXY`, and `NO_PROXY`.
    #[default]
    Environment,
    Direct,
    /// An `http` address; the file holds `user:password`.
    At {
        url: Url,
        credentials_file: Option<PathBuf>,
    },
}

impl ProxySettings {
    pub fn file(&self) -> Option<&Path> {
        if let Self::At { credentials_file, .. } = self { credentials_file.as_deref() } else { None }
    }

    /// Reads the credentials file, if there is one. Fails if it holds none, or other users than its owner may read it.
    pub fn check(&self) -> Result<(), ProxyError> {
        match self {
            Self::At { credentials_file: Some(file), .. } => read_credentials(file.clone()).map(drop),
            Self::At { credentials_file: None, .. } | Self::Environment | Self::Direct => Ok(()),
        }
    }
}

/// Prints no credential.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("{variable} names no usable proxy; write http://HOST:PORT, or `proxy = \"none\"` for this server")]
    Variable { variable: &'static str },
    #[error("proxy {url}: is not usable; write http://HOST:PORT")]
    Address { url: Url },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: SecretFileError },
    #[error("{}: holds no credentials of a proxy; write one line such as user:password", .path.display())]
    Content { path: PathBuf },
}

#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error("it asks for other credentials (HTTP 407); see `proxy_credentials_file`")]
    Credentials,
    #[error("it refused to connect to the server (HTTP {})", .0.as_u16())]
    Refused(StatusCode),
    #[error("its response to CONNECT is not understood")]
    NotATunnel,
}

#[derive(Clone, Debug, Default)]
struct ProxyVariables {
    http: Option<String>,
    https: Option<String>,
    no: Option<String>,
}

impl ProxyVariables {
    /// The lower-case spelling wins. In a CGI program `HTTP_PROXY` is a client's header.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let either = |small: &str, large: &str| variable(small).or_else(|| variable(large));
        let http = match variable("REQUEST_METHOD") {
            Some(_) => variable("http_proxy"),
            None => either("http_proxy", "HTTP_PROXY"),
        };
        Self { http, https: either("https_proxy", "HTTPS_PROXY"), no: either("no_proxy", "NO_PROXY") }
    }

    /// None for a server on this machine: a remote proxy would look for it on its own machine.
    fn proxy_for(&self, to: &Url) -> Result<Option<Proxy>, ProxyError> {
        let (variable, written) = match to.scheme() {
            "https" => ("HTTPS_PROXY", &self.https),
            _ => ("HTTP_PROXY", &self.http),
        };
        let Some(written) = written.as_deref().map(str::trim) else { return Ok(None) };
        if is_this_machine(to) || self.no.as_deref().is_some_and(|no| is_excepted(no, to)) {
            return Ok(None);
        }
        let with_scheme = if written.contains("://") { written.to_owned() } else { format!("http://{written}") };
        let proxy = Url::parse(&with_scheme).ok().and_then(|url| Proxy::at(&url, own_credentials(&url)));
        proxy.map(Some).ok_or(ProxyError::Variable { variable })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Proxy {
    address: Uri,
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
}

impl Proxy {
    pub(super) fn of(settings: &ProxySettings, to: &Url) -> Result<Option<Self>, ProxyError> {
        match settings {
            ProxySettings::Direct => Ok(None),
            ProxySettings::Environment => ProxyVariables::read(|name| std::env::var(name).ok()).proxy_for(to),
            ProxySettings::At { url, credentials_file } => {
                let authorization = credentials_file.clone().map(read_credentials).transpose()?;
                Self::at(url, authorization).map(Some).ok_or_else(|| ProxyError::Address { url: url.clone() })
            }
        }
    }

    fn at(url: &Url, authorization: Option<HeaderValue>) -> Option<Self> {
        let (host, port) = (url.host_str().filter(|host| !host.is_empty())?, url.port_or_known_default()?);
        let address = format!("http://{host}:{port}/").parse().ok()?;
        (url.scheme() == "http").then_some(Self { address, authorization })
    }

    /// The proxy's host and port, for logs.
    pub(super) fn name(&self) -> &str {
        self.address.authority().map_or("", |authority| authority.as_str())
    }
}

fn basic(credentials: &[u8]) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(credentials))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn own_credentials(url: &Url) -> Option<HeaderValue> {
    let decoded = |text: &str| {
        // Forms write two characters differently from addresses.
        let text = text.replace('+', "%2B").replace('&', "%26");
        form_urlencoded::parse(format!("={text}").as_bytes()).map(|(_, value)| value.into_owned()).collect::<String>()
    };
    let is_there = !url.username().is_empty() || url.password().is_some();
    let password = url.password().unwrap_or_default();
    is_there.then(|| basic(format!("{}:{}", decoded(url.username()), decoded(password)).as_bytes())).flatten()
}

fn read_credentials(path: PathBuf) -> Result<HeaderValue, ProxyError> {
    let held = secret_file::read(&path, "credentials", CREDENTIALS_BYTES_MAX)
        .map_err(|source| ProxyError::File { path: path.clone(), source })?;
    let line = held.trim_ascii();
    let is_line = line.contains(&b':') && !line.iter().any(u8::is_ascii_control);
    basic(line).filter(|_| is_line).ok_or(ProxyError::Content { path })
}

fn is_this_machine(to: &Url) -> bool {
    let is_own = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    match to.host() {
        Some(Host::Domain(name)) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => is_own(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => is_own(address.to_canonical()),
        None => false,
    }
}

/// Whether `NO_PROXY` names an address by `*`, a host, a parent domain, an IP address, a network, maybe with a port.
fn is_excepted(no: &str, to: &Url) -> bool {
    let Some(host) = to.host() else { return false };
    let port = to.port_or_known_default();
    no.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        let (address, name) = match &host {
            Host::Domain(name) => (None, *name),
            Host::Ipv4(address) => (Some(IpAddr::V4(*address)), ""),
            Host::Ipv6(address) => (Some(address.to_canonical()), ""),
        };
        if let Some(address) = address {
            let (entry, is_port) = without_port(entry, port);
            return is_port && is_in(entry.trim_matches(['[', ']']), address);
        }
        let (entry, is_port) = without_port(entry, port);
        let domain = entry.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
        let above = name.strip_suffix(domain.as_str());
        is_port && !domain.is_empty() && above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

/// An entry without its port, and whether that port matches.
fn without_port(entry: &str, port: Option<u16>) -> (&str, bool) {
    match entry.rsplit_once(':') {
        // An IPv6 address has its port after a bracket.
        Some((host, digits)) if !host.contains(':') || host.ends_with(']') => (host, digits.parse().ok() == port),
        Some(_) | None => (entry, true),
    }
}

/// Whether an entry is this address, or a network that contains it.
fn is_in(entry: &str, address: IpAddr) -> bool {
    let (first, length) = entry.split_once('/').map_or((entry, None), |(first, length)| (first, Some(length)));
    let (Ok(first), bits) = (first.parse::<IpAddr>(), if address.is_ipv4() { 32 } else { 128 }) else { return false };
    let length: u32 = match length.map(str::parse) {
        None => bits,
        Some(Ok(length)) if length <= bits => length,
        Some(_) => return false,
    };
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let differ = number(first.to_canonical()) ^ number(address);
    first.to_canonical().is_ipv4() == address.is_ipv4() && differ.checked_shr(bits - length).unwrap_or(0) == 0
}

#[derive(Clone, Debug)]
struct RouteConnector {
    direct: HttpConnector<ReachedNames>,
    proxy: Option<Proxy>,
}

impl Service<Uri> for RouteConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(cx).map_err(BoxError::from)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else { return self.direct.call(to).map(|made| Ok(made?)).boxed() };
        let connecting = self.direct.call(proxy.address.clone());
        let connecting = async move {
            let stream = connecting.await?;
            if to.scheme() == Some(&Scheme::HTTPS) { tunnel(stream, &to, &proxy).await } else { Ok(stream) }
        };
        connecting.boxed()
    }
}

async fn tunnel(stream: TokioIo<TcpStream>, to: &Uri, proxy: &Proxy) -> Result<TokioIo<TcpStream>, BoxError> {
    let (mut sender, connection) = http1::handshake(stream).await?;
    let authority = format!("{}:{}", to.host().unwrap_or_default(), to.port_u16().unwrap_or(443));
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = authority.parse()?;
    request.headers_mut().insert(HOST, HeaderValue::from_str(&authority)?);
    if let Some(authorization) = &proxy.authorization {
        request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
    }
    let asking = pin!(async {
        let response = sender.send_request(request).await?;
        match response.status() {
            status if status.is_success() => Ok(hyper::upgrade::on(response).await?),
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(BoxError::from(TunnelError::Credentials)),
            status => Err(TunnelError::Refused(status).into()),
        }
    });
    let upgraded = match select(asking, connection.with_upgrades()).await {
        Either::Left((upgraded, _)) => upgraded?,
        // This future ends once its stream is handed over, or with an error that the request has, too.
        Either::Right((_, asking)) => asking.await?,
    };
    let parts = upgraded.downcast::<TokioIo<TcpStream>>().map_err(|_| TunnelError::NotATunnel)?;
    // In TLS the client sends first.
    if parts.read_buf.is_empty() { Ok(parts.io) } else { Err(TunnelError::NotATunnel.into()) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AddressReach {
    /// The operator wrote the address.
    #[default]
    Any,
    /// Another server named it: private networks are out of reach, however their names resolve.
    Public,
}

/// The system's resolver, without the addresses that are out of reach.
#[derive(Clone, Debug)]
pub(super) struct ReachedNames {
    system: GaiResolver,
    reach: AddressReach,
}

impl ReachedNames {
    pub(super) fn new(reach: AddressReach) -> Self {
        Self { system: GaiResolver::new(), reach }
    }
}

impl Service<Name> for ReachedNames {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, reach) = (self.system.call(name), self.reach);
        async move {
            let found = resolving.await?.filter(|address| reach == AddressReach::Any || is_public(address.ip()));
            let found: Vec<SocketAddr> = found.collect();
            match found.is_empty() {
                true => Err(io::Error::other("the name has no address, or only private ones")),
                false => Ok(found.into_iter()),
            }
        }
        .boxed()
    }
}

pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            // Shared by a provider's customers, and for tests of networks.
            let is_inside = (first == 100 && (64..128).contains(&second)) || (first == 198 && second & 0xfe == 18);
            let is_kept = first == 0 || first >= 224 || (first == 192 && second == 0 && ip.octets()[2] == 0);
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_inside || is_kept)
        }
        IpAddr::V6(ip) => {
            let [first, second, ..] = ip.segments();
            // Of the global addresses, these stand for addresses of version 4: Teredo, and 6to4.
            let is_translated = (first == 0x2001 && second < 0x200) || first == 0x2002;
            first & 0xe000 == 0x2000 && !is_translated
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn proxy_of(variables: &[(&str, &str)], to: &str) -> String {
        let read = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        match ProxyVariables::read(read).proxy_for(&to.parse().unwrap()) {
            Ok(Some(proxy)) => {
                let authorization = proxy.authorization.as_ref().map(|value| format!(" {}", value.to_str().unwrap()));
                format!("{}{}", proxy.name(), authorization.unwrap_or_default())
            }
            Ok(None) => "direct".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_environment_names_the_proxy_by_scheme_and_except_for_some() {
        let both = [("HTTP_PROXY", "http://a:3128"), ("https_proxy", "b:8080"), ("HTTPS_PROXY", "http://c:1")];
        for (to, expected) in [
            ("http://up.example/mcp", "a:3128"),
            ("https://up.example/mcp", "b:8080"),
            ("http://localhost:9000/mcp", "direct"),
            ("http://127.0.0.7/mcp", "direct"),
            ("https://[::1]/mcp", "direct"),
            ("http://localhost.:9000/mcp", "direct"),
            ("http://0.0.0.0:9000/mcp", "direct"),
            ("http://[::]:9000/mcp", "direct"),
            ("http://10.1.2.3/mcp", "a:3128"),
        ] {
            assert_eq!(proxy_of(&both, to), expected, "{to}");
        }
        let to = "http://up.example/mcp";
        let found = |variables: &[(&str, &str)]| proxy_of(variables, to);
        assert_eq!(
            found(&[("HTTP_PROXY", "http://us%40er:p%2B+w@a")]),
            format!("a:80 Basic {}", BASE64_STANDARD.encode("us@er:p++w"))
        );
        assert_eq!(found(&[("HTTP_PROXY", "http://a"), ("REQUEST_METHOD", "GET")]), "direct", "a client's header");
        assert_eq!(found(&[("HTTP_PROXY", " "), ("http_proxy", "")]), "direct");
        assert_eq!(found(&[("HTTPS_PROXY", "http://a"), ("ALL_PROXY", "socks5://b")]), "direct");
        for wrong in ["socks5://s3cr3t@a", "https://u:s3cr3t@a", "http://"] {
            let refused = found(&[("HTTP_PROXY", wrong)]);
            assert!(refused.starts_with("HTTP_PROXY names no usable proxy") && !refused.contains("s3cr3t"));
        }
        for (no, to, is_direct) in [
            ("*", "http://up.example", true),
            ("other, example", "http://up.example", true),
            (".up.example", "http://up.example", true),
            ("*.example", "http://UP.example", true),
            ("ample", "http://up.example", false),
            ("up.example:8080", "http://up.example", false),
            ("up.example:80 x", "http://up.example", true),
            ("10.0.0.0/8", "http://10.1.2.3", true),
            ("10.0.0.0/8", "http://11.1.2.3", false),
            ("10.1.2.3:80", "http://10.1.2.3", true),
            ("0.0.0.0/0", "http://10.1.2.3", true),
            ("2001:db8::/32", "http://[2001:db8::7]", true),
            ("[2001:db8::7]:81", "http://[2001:db8::7]", false),
            ("10.0.0.0/40", "http://10.1.2.3", false),
        ] {
            let found = proxy_of(&[("http_proxy", "http://a"), ("NO_PROXY", no)], to);
            assert_eq!(found == "direct", is_direct, "{no} {to}: {found}");
        }
    }

    #[test]
    fn credentials_of_a_proxy_are_in_a_file_of_one_line_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy");
        for (content, expected) in [
            ("user:s3cr3t\n", None),
            ("s3cr3t", Some("holds no credentials of a proxy")),
            ("a:s3cr3t\nb:c", Some("holds no credentials of a proxy")),
        ] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let url = "http://proxy:1".parse().unwrap();
            let settings = ProxySettings::At { url, credentials_file: Some(path.clone()) };
            // Even a server on this machine: the operator configured it.
            let found = Proxy::of(&settings, &"http://localhost/".parse().unwrap());
            let shown = format!("{found:?}");
            assert!(!shown.contains("s3cr3t") && !shown.contains(&BASE64_STANDARD.encode("user:s3cr3t")), "{shown}");
            assert_eq!(found.as_ref().ok().is_some(), expected.is_none(), "{shown}");
            if let (Err(error), Some(expected)) = (found, expected) {
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    }

    #[test]
    fn private_networks_are_told_from_the_internet() {
        for (address, expected) in [
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.31.0.1", false),
            ("192.168.0.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("192.0.0.8", false),
            ("198.19.0.1", false),
            ("::1", false),
            ("::", false),
            ("::ffff:10.0.0.1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("64:ff9b::a00:1", false),
            ("2002:a00:1::", false),
            ("2001:0:a00:1::1", false),
            ("::10.0.0.1", false),
            ("::ffff:0:10.0.0.1", false),
            ("fec0::1", false),
            ("100::1", false),
            ("8.8.8.8", true),
            ("172.32.0.1", true),
            ("100.128.0.1", true),
            ("198.20.0.1", true),
            ("2a00:1450:4001::1", true),
            ("2001:4860:4860::8888", true),
            ("2606:4700::1111", true),
            ("::ffff:8.8.8.8", true),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_alone_is_out_of_reach() {
        for (reach, expected) in [(AddressReach::Any, true), (AddressReach::Public, false)] {
            let found = ReachedNames::new(reach).call("localhost".parse().unwrap()).await;
            assert_eq!(found.is_ok(), expected, "{reach:?}");
        }
    }
}
