//! Serves HTTP: sockets, connections, and the layers in front of the faces. Refuses requests that HTTP alone shows to
//! be invalid. Knows no JSON-RPC method and no task. Read `stack.rs` first.

/// Declares an enum of reasons, each with a label for logs and metrics, and a sentence.
macro_rules! reasons {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$why:meta])* $reason:ident: $label:literal, $sentence:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$why])* $reason,)*
        }

        impl $name {
            $vis const fn label(self) -> &'static str {
                match self {
                    $(Self::$reason => $label,)*
                }
            }

            $vis const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$reason => $sentence,)*
                }
            }
        }
    };
}

pub mod admin;
pub mod api_keys;
pub mod client_certificates;
mod connection;
mod connection_state;
mod dispatch;
pub mod forwarded;
mod frames;
mod grant;
mod handshake;
mod head;
mod host;
mod io;
pub mod listener;
mod media;
mod notices;
mod principal;
mod refusal;
pub mod replica_link;
pub mod replicas;
mod stack;
pub mod tokens;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::tls::{ClientCertificateFiles, IdentityFiles};
use api_keys::ApiKeySettings;
pub use dispatch::Routes;
use forwarded::AddressRange;
pub(crate) use forwarded::{is_at_loopback, is_loopback};
pub use listener::{DrainPlan, Drained, ListenerSpec, RunningListener, StartError, start, start_on};
pub use principal::{Authenticator, CertificateHolders, ForwardedCallers, LocalUser, TokenHolders};

named_variants! {
    pub enum ListenerRole, name {
        /// MCP clients. Pages of allowed origins may send requests and read responses.
        Clients = "clients",
        /// Operators. No page of another origin may read a response.
        Operators = "admin",
        /// Metrics scrapers and health probes, under any host name. No page may send requests.
        Probes = "metrics",
        /// Other replicas of the gateway, which forward their clients' requests.
        Replicas = "replicas",
    }
}

impl ListenerRole {
    const fn address_key(self) -> &'static str {
        match self {
            Self::Clients => "listen.address",
            Self::Operators => "admin.address",
            Self::Probes => "metrics.address",
            Self::Replicas => "replica.address",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    pub address: SocketAddr,
    /// The TLS identity; without it the listener serves plain HTTP.
    pub tls: Option<IdentityFiles>,
    /// How clients' certificates are verified; without it none are requested. Needs `tls`.
    pub client_certificates: Option<ClientCertificateFiles>,
    /// Whether other machines may send keys in the clear, because a proxy terminates TLS.
    pub plaintext: bool,
    /// Allowed host names besides the bound address, loopback and the certificate's names; lower case, without port.
    pub allowed_hosts: Vec<String>,
    /// Allowed origins besides loopback and the served hosts, as `scheme://host[:port]`.
    pub allowed_origins: Vec<String>,
    /// Base of clients' URLs if not the listener's address: `scheme://host[:port]`. Its host and origin are allowed.
    pub public_url: Option<String>,
    /// Proxies that may set `Forwarded` and `X-Forwarded-*`.
    pub trusted_proxies: Vec<AddressRange>,
    pub body_bytes_max: NonZeroUsize,
    pub connections_max: NonZeroUsize,
    /// How long a drain waits for held calls.
    pub drain_max: Duration,
}

impl ListenSettings {
    /// A listener without TLS and further names, whose drain waits for no call.
    pub const fn new(address: SocketAddr, body_bytes_max: NonZeroUsize, connections_max: NonZeroUsize) -> Self {
        Self {
            address,
            tls: None,
            client_certificates: None,
            plaintext: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            public_url: None,
            trusted_proxies: Vec::new(),
            body_bytes_max,
            connections_max,
            drain_max: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    pub address: SocketAddr,
    /// The operators' tokens; empty where none is required, which is allowed on loopback only.
    pub tokens: Vec<ApiKeySettings>,
}

/// The limits of one connection and one request (SEC-11). Not configurable; tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// From the accept to the end of the TLS handshake.
    pub handshake_deadline: Duration,
    /// The interval at which the certificate's files are checked for changes.
    pub certificate_check: Duration,
    /// From the accept (with TLS, the handshake) to the first byte, and from the first byte of a head to its last.
    pub head_deadline: Duration,
    /// From a response to the first byte of the next request, over HTTP/1.
    pub idle_deadline: Duration,
    pub head_bytes_max: usize,
    /// The same over HTTP/2, where a field counts 32 bytes more (RFC 9113, 6.5.2).
    pub header_list_bytes_max: u32,
    pub target_bytes_max: usize,
    pub headers_max: usize,
    /// From the head to the last byte of the body.
    pub body_deadline: Duration,
    /// A body that brings fewer than `body_window_bytes_min` within one window is too slow.
    pub body_window: Duration,
    pub body_window_bytes_min: usize,
    /// How long a peer may leave a response unread before its connection is reset; over HTTP/2 the stream of that response, since
    /// others on the connection may belong to other clients. A peer that reads no byte at all always loses its connection.
    pub write_stall: Duration,
    /// How long a connection that ends early is still read, so that the peer receives the response and not a reset.
    pub linger: Duration,
    /// Connections per peer address, or per IPv6 /64; loopback peers are exempt.
    pub connections_per_address_max: usize,
    pub streams_max: u32,
    /// Streams that an HTTP/2 peer may reset before they are accepted; one more ends the connection.
    pub unseen_resets_max: usize,
    /// The same where many clients share a connection, as behind a trusted proxy: they may disconnect at once.
    pub shared_resets_max: usize,
    /// Refused requests per connection before it is ended.
    pub glitches_max: u32,
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    /// PING, SETTINGS and PRIORITY frames that an HTTP/2 peer may send per window.
    pub control_frames_max: u32,
    pub control_window: Duration,
}

/// Room for an access token of 16 KiB, its proof of 8 KiB, and other fields.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// HTTP/2 counts 32 bytes more for each field (RFC 9113, 6.5.2), also for the pseudo-headers.
const FIELD_BYTES: usize = 32;
const PSEUDO_HEADERS: usize = 4;

/// The header list of HTTP/2 for heads of this size: [`head::HeadGuard`] judges them alike in every version of HTTP.
fn header_list_bytes(head_bytes: usize, headers: usize) -> u32 {
    u32::try_from(head_bytes + (headers + PSEUDO_HEADERS) * FIELD_BYTES).unwrap_or(u32::MAX)
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            handshake_deadline: Duration::from_secs(10),
            certificate_check: Duration::from_secs(5),
            head_deadline: Duration::from_secs(10),
            idle_deadline: Duration::from_secs(75),
            head_bytes_max: HEAD_BYTES_MAX,
            header_list_bytes_max: header_list_bytes(HEAD_BYTES_MAX, HEADERS_MAX),
            target_bytes_max: 8 << 10,
            headers_max: HEADERS_MAX,
            body_deadline: Duration::from_secs(30),
            body_window: Duration::from_secs(10),
            body_window_bytes_min: 10 << 10,
            write_stall: Duration::from_secs(30),
            linger: Duration::from_secs(2),
            connections_per_address_max: 256,
            streams_max: 64,
            unseen_resets_max: 20,
            shared_resets_max: 1_024,
            glitches_max: 20,
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(10),
            control_frames_max: 100,
            control_window: Duration::from_secs(10),
        }
    }
}
