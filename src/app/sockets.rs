//! Listening sockets that are there before a gateway is. A service manager's listen before the process starts and after it has
//! ended, so that no connection is refused during a restart. Those of a gateway whose life on a shared store has ended are taken
//! by the one that begins anew in its place: let go of, their ports could be another's meanwhile.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

use crate::config::Config;
use crate::server::api_keys::AuthSettings;
use crate::task::Principal;

/// Names of the sockets, separated by colons in their order: `clients` and `admin`.
const NAMES: &str = "LISTEN_FDNAMES";

/// The sockets to listen on instead of the addresses of the configuration. A service manager has the first two alone.
#[derive(Debug, Default)]
pub struct Sockets {
    pub clients: Option<TcpListener>,
    pub admin: Option<TcpListener>,
    pub metrics: Option<TcpListener>,
    pub replicas: Option<TcpListener>,
}

/// Why a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{0} sockets were handed over; there are two at most, the clients' and the admin listener's")]
    TooMany(usize),
    #[error("the socket named {0:?} is neither \"clients\" nor \"admin\", or is there twice")]
    Name(String),
    #[error("socket {0} that was handed over is no listening TCP socket")]
    Kind(usize, #[source] io::Error),
    #[error("other machines can reach {0}, where the clients' socket listens, while `auth.mode` is \"none\"")]
    Open(SocketAddr),
    #[error(
        "key `listen.plaintext`: other machines can reach {0}, where clients are served, and their keys would come in \
         clear; write [listen.tls], or `plaintext = true` in [listen] if a proxy in front of it speaks TLS"
    )]
    Plain(SocketAddr),
    #[error(
        "other machines can reach {0}, where operators are served, and nobody there is asked for a token; write [[admin.tokens]]"
    )]
    AdminOpen(SocketAddr),
}

impl Sockets {
    /// Takes the sockets of `LISTEN_FDS` that are meant for this process: by their names, or without names the
    /// clients' first. Call once, before anything else looks at the environment.
    ///
    /// # Errors
    /// If there are others than these two.
    pub fn from_environment() -> Result<Self, SocketError> {
        let names = std::env::var(NAMES).unwrap_or_default();
        let mut handed = ListenFd::from_env();
        let count = handed.len();
        if count > 2 {
            return Err(SocketError::TooMany(count));
        }
        let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
        let mut sockets = Self::default();
        for index in 0..count {
            let socket = handed.take_tcp_listener(index).map_err(|error| SocketError::Kind(index, error))?;
            let place = match names.get(index).copied() {
                // What a manager calls a socket that nobody gave a name.
                None | Some("unknown") if index == 0 => &mut sockets.clients,
                None | Some("unknown" | "admin") => &mut sockets.admin,
                Some("clients") => &mut sockets.clients,
                Some(other) => return Err(SocketError::Name(other.to_owned())),
            };
            if place.is_some() {
                return Err(SocketError::Name(names.get(index).map_or_else(String::new, |&name| name.to_owned())));
            }
            *place = socket;
        }
        Ok(sockets)
    }

    /// The same once more, for a start that may have to be made again; without those for which the process has no descriptor left.
    pub(super) fn again(&self) -> Self {
        let again = |socket: &Option<TcpListener>| socket.as_ref().and_then(|socket| socket.try_clone().ok());
        Self {
            clients: again(&self.clients),
            admin: again(&self.admin),
            metrics: again(&self.metrics),
            replicas: again(&self.replicas),
        }
    }

    /// Holds the sockets to the rules that hold for addresses.
    ///
    /// # Errors
    /// If anybody could come who is not asked for credentials.
    pub(super) fn check(&self, config: &Config) -> Result<(), SocketError> {
        if let Some(at) = self.clients.as_ref().and_then(|socket| socket.local_addr().ok()) {
            check_reach(at, config)?;
        }
        match self.admin.as_ref().and_then(|socket| socket.local_addr().ok()) {
            Some(at) => check_admin_reach(at, config),
            None => Ok(()),
        }
    }
}

/// Whether operators may be served at an address as a configuration says, whatever address stands in it.
pub(super) fn check_admin_reach(at: SocketAddr, config: &Config) -> Result<(), SocketError> {
    let is_open = !at.ip().to_canonical().is_loopback() && config.admin.tokens.is_empty();
    if is_open { Err(SocketError::AdminOpen(at)) } else { Ok(()) }
}

/// Whether clients may be served at an address as a configuration says, whatever address stands in it.
pub(super) fn check_reach(at: SocketAddr, config: &Config) -> Result<(), SocketError> {
    if at.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let is_plain = config.listen.tls.is_none() && !config.listen.plaintext;
    match &config.auth {
        AuthSettings::Everyone(who) if *who == Principal::local() => Err(SocketError::Open(at)),
        AuthSettings::ApiKeys(_) if is_plain => Err(SocketError::Plain(at)),
        AuthSettings::Everyone(_) | AuthSettings::ApiKeys(_) => Ok(()),
    }
}
