//! Describes the listener for other replicas of the gateway, which pass on what is at home here.
//!
//! It serves what the clients' listener serves, to nobody but replicas: each request is sealed for this one. Whoever asks was
//! authenticated, and counted, where the client came in.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;

use super::forwarded_callers::ForwardedCallers;
use super::listener::ListenerSpec;
use super::principal::Authenticator;
use super::{ListenSettings, ListenerLimits, ListenerRole, Routes, StallCost};
use crate::task::Timestamp;
use crate::tls::{IdentityFiles, TlsFileError, read_roots};

/// Each replica has one connection, and another while that one ends.
const CONNECTIONS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// Requests that one replica passes on at a time: more than all who may listen there. The other side keeps to less by itself.
pub(super) const REQUESTS_MAX: u32 = 8_192;
/// What a request may have beside what its client sent: what seals it.
const HEAD_BYTES_MORE: usize = 4 << 10;
const HEADERS_MORE: usize = 8;
/// Over HTTP/2 each field counts for 32 bytes more than it has.
const FIELD_BYTES: usize = 32;
/// How long an answer may be left unread before it is reset. A client that reads nothing at all loses its own connection sooner, and
/// its answer here with it; one that reads very slowly does not, as what it has taken is told here only by the half of a window.
const WRITE_STALL: Duration = Duration::from_secs(120);
/// The refusals of many clients come over one connection.
const GLITCHES_MAX: u32 = 10_000;
/// Many clients may leave at once.
const UNSEEN_RESETS_MAX: usize = 1_024;

/// The certificates that replicas show one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTls {
    /// This replica's own, shown by both of its sides. It names the address that others reach it by.
    pub identity: IdentityFiles,
    /// Who vouches for all of them, in a PEM file. Nobody else is trusted.
    pub ca: PathBuf,
}

impl ReplicaTls {
    /// What is in the files: this replica's own, and who vouches for the others.
    ///
    /// # Errors
    /// As [`IdentityFiles::read`] and [`read_roots`].
    pub fn read(&self, now: Timestamp) -> Result<(Arc<CertifiedKey>, RootCertStore), TlsFileError> {
        Ok((self.identity.read(now)?, read_roots(&self.ca)?))
    }
}

/// The listener for replicas at `address`: with certificates, or in clear where it is loopback's. `body_bytes_max` is that of the
/// clients' listener, as are the routes.
#[must_use]
pub fn site(
    address: SocketAddr,
    tls: Option<ReplicaTls>,
    body_bytes_max: NonZeroUsize,
    callers: ForwardedCallers,
    routes: Routes,
) -> ListenerSpec {
    let (identity, peers_ca) = tls.map(|tls| (tls.identity, tls.ca)).unzip();
    let settings = ListenSettings {
        address,
        tls: identity,
        plaintext: false,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        public_url: None,
        trusted_proxies: Vec::new(),
        body_bytes_max,
        connections_max: CONNECTIONS_MAX,
        drain_max: Duration::ZERO,
    };
    let (role, callers) = (ListenerRole::Replicas, Authenticator::Replicas(callers));
    ListenerSpec { role, settings, limits: limits(), callers, routes, peers_ca }
}

/// Those of the clients' listener, with room for what is added to a request and for many clients over one connection.
fn limits() -> ListenerLimits {
    let of_clients = ListenerLimits::default();
    let head_bytes_max = of_clients.head_bytes_max + HEAD_BYTES_MORE;
    let headers_max = of_clients.headers_max + HEADERS_MORE;
    ListenerLimits {
        head_bytes_max,
        header_list_bytes_max: u32::try_from(head_bytes_max + headers_max * FIELD_BYTES).unwrap_or(u32::MAX),
        headers_max,
        write_stall: WRITE_STALL,
        stall_cost: StallCost::Answer,
        streams_max: REQUESTS_MAX,
        unseen_resets_max: UNSEEN_RESETS_MAX,
        glitches_max: GLITCHES_MAX,
        ..of_clients
    }
}
