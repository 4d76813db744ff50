//! Holds listening sockets that exist before the gateway. A service manager's sockets outlive processes: no restart
//! refuses a connection. A successor keeps them.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

use crate::config::Config;
use crate::server::api_keys::AuthSettings;
use crate::task::Principal;

/// The names of the sockets in order, separated by colons: `clients` and `admin`.
const NAMES: &str = "LISTEN_FDNAMES";

/// Sockets to use instead of the configured addresses. A service manager passes only the first two.
#[derive(Debug, Default)]
pub struct Sockets {
    pub clients: Option<TcpListener>,
    pub admin: Option<TcpListener>,
    pub metrics: Option<TcpListener>,
    pub replicas: Option<TcpListener>,
}

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{0} sockets were passed; there are two at most, the clients' and the admin listener's")]
    TooMany(usize),
    #[error("the socket named {0:?} is neither \"clients\" nor \"admin\", or is passed twice")]
    Name(String),
    #[error("passed socket {0} is not a listening TCP socket")]
    Kind(usize, #[source] io::Error),
    #[error("other machines can reach {0}, where the clients' socket listens, while `auth.mode` is \"none\"")]
    Open(SocketAddr),
    #[error(
        "key `listen.plaintext`: other machines can reach {0}, where clients are served, and their keys would come in \
         clear; write [listen.tls], or `plaintext = true` in [listen] if a proxy in front of it speaks TLS"
    )]
    Plain(SocketAddr),
    #[error("other machines can reach {0}, where operators are served without a token; write [[admin.tokens]]")]
    AdminOpen(SocketAddr),
}

impl Sockets {
    /// Takes the `LISTEN_FDS` sockets, by name, or the client listener's first; fails for others. Call first and once.
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
                // systemd's name for an unnamed socket.
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

    /// Duplicates for a start that may be repeated; without the sockets for which the process has no descriptor left.
    pub(super) fn again(&self) -> Self {
        let again = |socket: &Option<TcpListener>| socket.as_ref().and_then(|socket| socket.try_clone().ok());
        Self {
            clients: again(&self.clients),
            admin: again(&self.admin),
            metrics: again(&self.metrics),
            replicas: again(&self.replicas),
        }
    }

    /// Fails if a client without credentials could connect from another machine.
    pub(super) fn check(&self, config: &Config) -> Result<(), SocketError> {
        if let Some(at) = self.clients.as_ref().and_then(|socket| socket.local_addr().ok()) {
            check_reach(at, config)?;
        }
        let admin = self.admin.as_ref().and_then(|socket| socket.local_addr().ok());
        admin.map_or(Ok(()), |at| check_admin_reach(at, config))
    }
}

pub(super) fn check_admin_reach(at: SocketAddr, config: &Config) -> Result<(), SocketError> {
    let is_open = !at.ip().to_canonical().is_loopback() && config.admin.tokens.is_empty();
    if is_open { Err(SocketError::AdminOpen(at)) } else { Ok(()) }
}

pub(super) fn check_reach(at: SocketAddr, config: &Config) -> Result<(), SocketError> {
    if at.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let is_plain = config.listen.tls.is_none() && !config.listen.plaintext;
    match &config.auth {
        AuthSettings::Everyone(who) if *who == Principal::local() => Err(SocketError::Open(at)),
        AuthSettings::Everyone(_) => Ok(()),
        AuthSettings::ApiKeys(_) | AuthSettings::Tokens(..) | AuthSettings::Certificates(..) if is_plain => {
            Err(SocketError::Plain(at))
        }
        AuthSettings::ApiKeys(_) | AuthSettings::Tokens(..) | AuthSettings::Certificates(..) => Ok(()),
    }
}
