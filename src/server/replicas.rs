//! Describes the replica listener, which serves requests that other replicas forward. It has the client listener's
//! routes; each request is sealed for this replica by the one that authenticated its client.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;

use super::listener::ListenerSpec;
use super::principal::{Authenticator, ForwardedCallers};
use super::{ListenSettings, ListenerLimits, ListenerRole, Routes, header_list_bytes};
use crate::face::sealed::IdKind;
use crate::tls::{CertificateNeed, ClientCertificateFiles, IdentityFiles, TlsFileError, read_roots};

/// Each replica has one connection, and another while the first ends.
const CONNECTIONS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// Concurrent requests per replica: more than the number of permitted streams. The sender limits itself to fewer.
pub(super) const REQUESTS_MAX: u32 = 8_192;
/// Room for the longest seal and other added headers, besides the headers that the client sent.
const HEAD_BYTES_MORE: usize = IdKind::Forward.text_len_max() + (1 << 10);
const HEADERS_MORE: usize = 8;
/// How long a response may stay unread before it is reset. A client that reads nothing loses its own connection sooner, and the
/// response here with it. A client that reads very slowly keeps it, as its progress is reported here only by half a window.
const WRITE_STALL: Duration = Duration::from_secs(120);
/// One connection carries the refusals of many clients.
const GLITCHES_MAX: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTls {
    /// The certificate of this replica, used as server and as client. It names the address at which others reach it.
    pub identity: IdentityFiles,
    /// The CA of all replicas, a PEM file. No other CA is trusted.
    pub ca: PathBuf,
}

impl ReplicaTls {
    pub fn read(&self) -> Result<(Arc<CertifiedKey>, RootCertStore), TlsFileError> {
        Ok((self.identity.read()?, read_roots(&self.ca)?))
    }
}

/// The replica listener at `address`: with TLS, or in the clear on loopback. Routes and body limit are the clients'.
pub fn site(
    address: SocketAddr,
    tls: Option<ReplicaTls>,
    body_bytes_max: NonZeroUsize,
    callers: ForwardedCallers,
    routes: Routes,
) -> ListenerSpec {
    let files = |ReplicaTls { identity, ca }| {
        (identity, ClientCertificateFiles { ca, crl: None, need: CertificateNeed::Required })
    };
    let (identity, peers) = tls.map(files).unzip();
    let settings = ListenSettings { tls: identity, ..ListenSettings::new(address, body_bytes_max, CONNECTIONS_MAX) };
    let (role, callers) = (ListenerRole::Replicas, Authenticator::Replicas(callers));
    ListenerSpec { role, settings, limits: limits(), callers, routes, peers, audit: None }
}

/// The client listener's limits, with room for added headers and for many clients per connection.
fn limits() -> ListenerLimits {
    let of_clients = ListenerLimits::default();
    let head_bytes_max = of_clients.head_bytes_max + HEAD_BYTES_MORE;
    let headers_max = of_clients.headers_max + HEADERS_MORE;
    ListenerLimits {
        head_bytes_max,
        header_list_bytes_max: header_list_bytes(head_bytes_max, headers_max),
        headers_max,
        write_stall: WRITE_STALL,
        streams_max: REQUESTS_MAX,
        unseen_resets_max: of_clients.shared_resets_max,
        glitches_max: GLITCHES_MAX,
        ..of_clients
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;
    use crate::face::session_owners::FORWARD;
    use crate::server::head::HeadGuard;
    use crate::server::refusal::Refusal;

    #[test]
    fn sec_59_the_largest_head_of_a_client_fits_with_its_seal() {
        let value = |bytes: usize| HeaderValue::try_from("x".repeat(bytes)).unwrap();
        let mut request = Request::post("/mcp").body(()).unwrap();
        let of_clients = HeadGuard::new(ListenerLimits::default());
        let fixed = "/mcp".len() + "authorization".len() + 4;
        request.headers_mut().insert("authorization", value((32 << 10) - fixed));
        assert!(of_clients.check(&request).is_ok());
        request.headers_mut().insert("authorization", value((32 << 10) - fixed + 1));
        assert_eq!(of_clients.check(&request).err(), Some(Refusal::HeadTooLarge));
        request.headers_mut().insert("authorization", value((32 << 10) - fixed));
        request.headers_mut().insert(FORWARD, value(IdKind::Forward.text_len_max()));
        assert!(HeadGuard::new(limits()).check(&request).is_ok());
    }
}
