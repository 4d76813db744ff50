//! Serves HTTP: sockets, connections, and the layers in front of the faces.
//!
//! Everything that can be refused by looking at HTTP alone is refused here; what a face receives is whole and
//! within bounds. Knows no JSON-RPC method and no task. Read `stack.rs` first: it names the layers in order.

pub mod admin;
pub mod api_keys;
mod body;
mod certificate;
mod connection;
mod connection_state;
mod cors;
mod departed_client;
mod dispatch;
pub mod drain;
pub mod forwarded;
mod forwarded_callers;
mod frames;
mod grant;
mod head;
mod header_timeout;
mod host;
mod io;
pub mod listener;
mod listener_metrics;
mod media;
mod notices;
mod principal;
mod refusal;
pub mod replica_link;
pub mod replicas;
mod stack;
mod tls;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::tls::IdentityFiles;
use api_keys::ApiKeySettings;
pub use dispatch::Routes;
pub use drain::{DrainPlan, Drained};
use forwarded::AddressRange;
pub use forwarded_callers::ForwardedCallers;
pub(crate) use host::is_loopback;
pub use listener::{ListenerSpec, RunningListener, StartError, start, start_on};
pub use principal::{Authenticator, LocalUser};

/// Whom a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerRole {
    /// MCP clients. Pages of allowed origins may call and read.
    Clients,
    /// Operators. No page of another origin reads anything.
    Operators,
    /// What scrapes metrics and probes health, by whatever name it knows the gateway. No page may come.
    Probes,
    /// Other replicas of the gateway, which pass on what their clients ask.
    Replicas,
}

impl ListenerRole {
    /// What metrics and logs call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Operators => "admin",
            Self::Probes => "metrics",
            Self::Replicas => "replicas",
        }
    }
}

/// The client listener, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    pub address: SocketAddr,
    /// The identity for TLS; without one the listener speaks plain HTTP.
    pub tls: Option<IdentityFiles>,
    /// Whether keys may come in clear from other machines: something in front speaks TLS.
    pub plaintext: bool,
    /// Host names besides the bound address, loopback and those of the certificate; lower case, without port.
    pub allowed_hosts: Vec<String>,
    /// Origins besides loopback's and those of the hosts that are served, as `scheme://host[:port]`.
    pub allowed_origins: Vec<String>,
    /// The beginning of the addresses that clients use, if it is not where the gateway listens: `scheme://host[:port]`. Its
    /// host and its origin are among the allowed ones.
    pub public_url: Option<String>,
    /// Peers whose `Forwarded` and `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<AddressRange>,
    pub body_bytes_max: NonZeroUsize,
    pub connections_max: NonZeroUsize,
    /// How long a drain waits for calls that are held.
    pub drain_max: Duration,
}

/// The operators' listener, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    pub address: SocketAddr,
    /// What operators come with; none where nobody is asked, which is on loopback alone.
    pub tokens: Vec<ApiKeySettings>,
}

/// What one connection and one request may take before they are cut off (SEC-11).
///
/// Not configuration: an operator has no reason to change these. Tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// From the accept to the end of the TLS handshake.
    pub handshake_deadline: Duration,
    /// How often the certificate's files are looked at.
    pub certificate_check: Duration,
    /// From the accept (with TLS, the handshake) to the first byte, and from the first byte of a head to its last.
    pub head_deadline: Duration,
    /// From an answer to the first byte of the next request, over HTTP/1.
    pub idle_deadline: Duration,
    pub head_bytes_max: usize,
    /// The same over HTTP/2, where fields are counted as they are kept.
    pub header_list_bytes_max: u32,
    pub target_bytes_max: usize,
    pub headers_max: usize,
    /// From the head to the last byte of the body.
    pub body_deadline: Duration,
    /// A body that brings fewer than `body_window_bytes_min` within one window is too slow.
    pub body_window: Duration,
    pub body_window_bytes_min: usize,
    /// How long a peer may leave an answer unread before its connection is reset, or that answer.
    pub write_stall: Duration,
    pub stall_cost: StallCost,
    /// How long a connection that ends early still reads, so that the peer sees the answer and not a reset.
    pub linger: Duration,
    /// Connections of one peer address, or of one /64 of IPv6; loopback peers are exempt.
    pub connections_per_address_max: usize,
    pub streams_max: u32,
    /// Streams that an HTTP/2 peer has reset before anybody has looked at them; one more ends the connection.
    pub unseen_resets_max: usize,
    /// Requests that one connection may have refused before it is ended.
    pub glitches_max: u32,
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    /// PING, SETTINGS and PRIORITY frames that an HTTP/2 peer may send within one window.
    pub control_frames_max: u32,
    pub control_window: Duration,
}

/// What a peer loses over HTTP/2 that leaves an answer unread. One that takes no byte at all loses its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallCost {
    Connection,
    /// That answer: others that come over its connection are not its own.
    Answer,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            handshake_deadline: Duration::from_secs(10),
            certificate_check: Duration::from_secs(5),
            head_deadline: Duration::from_secs(10),
            idle_deadline: Duration::from_secs(75),
            head_bytes_max: 32 << 10,
            header_list_bytes_max: 16 << 10,
            target_bytes_max: 8 << 10,
            headers_max: 64,
            body_deadline: Duration::from_secs(30),
            body_window: Duration::from_secs(10),
            body_window_bytes_min: 10 << 10,
            write_stall: Duration::from_secs(30),
            stall_cost: StallCost::Connection,
            linger: Duration::from_secs(2),
            connections_per_address_max: 256,
            streams_max: 64,
            unseen_resets_max: 20,
            glitches_max: 20,
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(10),
            control_frames_max: 100,
            control_window: Duration::from_secs(10),
        }
    }
}
