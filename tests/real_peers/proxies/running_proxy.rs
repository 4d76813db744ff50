//! nginx, Caddy and HAProxy as the distribution has them: started in the foreground in a folder of their own, ended by their
//! ids.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Version;
use support::certificates::Authority;
use support::peers::install::program;
use support::peers::process::Child;
use support::ports::reserved_address;
use support::session_client::{Client, HttpOptions};
use support::talk::ManualSetup;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Command;

/// The page whose blocks are the configurations that are recommended.
const PAGE: &str = include_str!("../../../docs/behind-a-proxy.md");
/// The name in its blocks, which clients connect to.
pub(super) const HOST: &str = "mcp.example";
const GATEWAY: &str = "127.0.0.1:8080";
/// The file of the distribution's package.
const HAPROXY_FILE: &str = "/etc/haproxy/haproxy.cfg";

const READY_CHECKS: usize = 1_500;
const READY_CHECK_PERIOD: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReverseProxy {
    Nginx,
    Caddy,
    Haproxy,
}

/// How a proxy is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxySetup {
    /// The least that proxies a host: without TLS, all else left as it is.
    Least,
    /// As the page says: with TLS.
    Documented,
    /// The same, with HTTP/2 towards the gateway.
    Http2,
}

impl ProxySetup {
    pub(super) const fn is_secure(self) -> bool {
        matches!(self, Self::Documented | Self::Http2)
    }
}

impl ReverseProxy {
    pub(super) const ALL: [Self; 3] = [Self::Nginx, Self::Caddy, Self::Haproxy];

    const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Haproxy => "haproxy",
        }
    }

    /// The block of the page that is its configuration, or the least one.
    fn block(self, setup: ProxySetup) -> &'static str {
        match (setup, self) {
            (ProxySetup::Documented | ProxySetup::Http2, Self::Nginx) => block_of("nginx"),
            (ProxySetup::Documented | ProxySetup::Http2, Self::Caddy) => block_of("caddyfile"),
            (ProxySetup::Documented | ProxySetup::Http2, Self::Haproxy) => block_of("haproxy"),
            (ProxySetup::Least, Self::Nginx) => {
                "server {\n listen :443;\n location / { proxy_pass http://127.0.0.1:8080; }\n}\n"
            }
            (ProxySetup::Least, Self::Caddy) => "http://mcp.example {\n reverse_proxy 127.0.0.1:8080\n}\n",
            (ProxySetup::Least, Self::Haproxy) => "listen mcp\n bind :443\n server gateway 127.0.0.1:8080\n",
        }
    }

    /// Its whole configuration, with addresses and files of the test in place of those that the page names.
    fn configuration(self, setup: ProxySetup, (own, gateway): (SocketAddr, SocketAddr), folder: &Path) -> String {
        let folder = folder.display().to_string();
        let put = |text: String, name: &str, value: &str| {
            assert!(text.contains(name), "{name} is not in {text}");
            text.replace(name, value)
        };
        let address = match (setup, self) {
            (ProxySetup::Http2, Self::Caddy) => format!("h2c://{gateway}"),
            (ProxySetup::Http2, Self::Haproxy) => format!("{gateway} proto h2"),
            (ProxySetup::Http2, Self::Nginx) => panic!("nginx has no HTTP/2 towards servers"),
            (ProxySetup::Least | ProxySetup::Documented, _) => gateway.to_string(),
        };
        let text = put(self.block(setup).to_owned(), GATEWAY, &address);
        let is_secure = setup.is_secure();
        match self {
            Self::Nginx => {
                let text = if is_secure { put(text, "/etc/nginx/", &format!("{folder}/")) } else { text };
                let text = put(text, if is_secure { "listen 443" } else { "listen :443" }, &format!("listen {own}"));
                nginx_file(&text)
            }
            Self::Caddy => {
                let text = put(text, "mcp.example {\n", &format!("{HOST}:{} {{\n bind 127.0.0.1\n", own.port()));
                let certificate = format!("bind 127.0.0.1\n tls {folder}/{HOST}.pem {folder}/{HOST}.key\n");
                let text = if is_secure { put(text, "bind 127.0.0.1\n", &certificate) } else { text };
                format!("{{\n admin off\n auto_https disable_redirects\n}}\n{text}")
            }
            Self::Haproxy => {
                let text = if is_secure { put(text, "/etc/haproxy/", &format!("{folder}/")) } else { text };
                let defaults = fs::read_to_string(HAPROXY_FILE).unwrap();
                let (_, defaults) = defaults.split_once("\ndefaults").expect("the distribution's file has defaults");
                format!("defaults{defaults}\n{}", put(text, "bind :443", &format!("bind {own}")))
            }
        }
    }

    fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        let file = folder.join("proxy.conf");
        match self {
            Self::Nginx => command.arg("-p").arg(folder).args(["-e", "stderr", "-c"]).arg(file),
            Self::Caddy => command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file),
            Self::Haproxy => command.args(["-db", "-f"]).arg(file),
        };
        command.current_dir(folder).env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
        command
    }
}

/// The block of the page in this language.
fn block_of(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("the page has the block");
    rest.split_once("```").expect("the block ends").0
}

/// The distribution's file, without the parts about the machine: users, logs, folders, other sites.
fn nginx_file(server: &str) -> String {
    let folders: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!(" {name}_temp_path {name};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ worker_connections 768; }}\n\
         http {{\n sendfile on;\n tcp_nopush on;\n gzip on;\n access_log off;\n{folders}{server}}}\n"
    )
}

/// A proxy at work. Dropping it ends it.
pub(super) struct RunningProxy {
    pub(super) address: SocketAddr,
    authority: Authority,
    setup: ProxySetup,
    _child: Child,
    _folder: TempDir,
}

impl RunningProxy {
    /// In front of the gateway at this address.
    pub(super) async fn start(proxy: ReverseProxy, setup: ProxySetup, gateway: SocketAddr, test: &str) -> Self {
        let program =
            program(proxy.name()).unwrap_or_else(|| panic!("{} is not installed: run `make setup`", proxy.name()));
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let identity = authority.vouch(|params| {
            params.subject_alt_names = vec![rcgen::SanType::DnsName(HOST.try_into().unwrap())];
        });
        let files = identity.write(folder.path(), HOST);
        if proxy == ReverseProxy::Haproxy {
            let both = fs::read_to_string(&files.certificate).unwrap() + &fs::read_to_string(&files.key).unwrap();
            fs::write(&files.certificate, both).unwrap();
        }
        let address = reserved_address();
        let text = proxy.configuration(setup, (address, gateway), folder.path());
        fs::write(folder.path().join("proxy.conf"), text).unwrap();
        let name = format!("{test}-{}-{setup:?}", proxy.name()).to_lowercase();
        let mut child = Child::start(&name, proxy.command(&program, folder.path())).unwrap();
        assert!(is_ready(&mut child, address).await, "{} does not start: see the logs of {test}", proxy.name());
        Self { address, authority, setup, _child: child, _folder: folder }
    }

    /// A client without a session, as far as the proxy can be spoken to so.
    pub(super) fn client(&self, behind: &ManualSetup, version: Version) -> Client {
        let alpn = if version == Version::HTTP_2 { "h2" } else { "http/1.1" };
        let tls = self.setup.is_secure().then(|| Arc::new(self.authority.client(&[alpn])));
        let over = HttpOptions { version, tls, host: HOST, ..HttpOptions::default() };
        Client { address: self.address, over, ..behind.gate.client_without_session() }
    }
}

/// Whether it takes connections; `false` if it ended.
async fn is_ready(child: &mut Child, address: SocketAddr) -> bool {
    for _ in 0..READY_CHECKS {
        if child.has_ended() {
            return false;
        }
        if TcpStream::connect(address).await.is_ok() {
            return true;
        }
        tokio::time::sleep(READY_CHECK_PERIOD).await;
    }
    false
}
