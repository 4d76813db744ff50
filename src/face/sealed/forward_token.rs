//! Encodes the token of a forwarded request: its principal, and a digest of the request.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, Method};

use super::layout::{TokenReader, put};
use crate::face::headers;
use crate::replica::Incarnation;
use crate::task::digest::{Digest, digest};
use crate::task::{Principal, Timestamp};

/// The version of the layout below.
const LAYOUT: u8 = 1;
/// The kind of a client's address.
const NO_ADDRESS: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// A request that one replica forwards to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardToken {
    /// The receiving replica.
    pub target: Incarnation,
    /// The sending replica, and its number for the request.
    pub sender: Incarnation,
    pub number: u64,
    pub issued_at: Timestamp,
    /// [`digest_of_request`].
    pub request: Digest,
    /// The principal that the sender authenticated.
    pub principal: Principal,
    /// The client's address.
    pub client: Option<IpAddr>,
}

impl ForwardToken {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, address) = match self.client {
            None => (NO_ADDRESS, Ipv6Addr::UNSPECIFIED),
            Some(IpAddr::V4(address)) => (IPV4, address.to_ipv6_mapped()),
            Some(IpAddr::V6(address)) => (IPV6, address),
        };
        let mut out = vec![LAYOUT, kind];
        for number in [self.target.0, self.sender.0, self.number, self.issued_at.as_millis()] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.request.0);
        out.extend_from_slice(&address.octets());
        put(&mut out, self.principal.as_str().as_bytes());
        out
    }

    /// Reads what [`ForwardToken::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenReader::new(bytes);
        let [layout, kind] = rest.take()?;
        if layout != LAYOUT {
            return None;
        }
        let mut number = || rest.take().map(u64::from_be_bytes);
        let (target, sender) = (Incarnation(number()?), Incarnation(number()?));
        let (number, issued_at) = (number()?, Timestamp::from_millis(number()?));
        let request = Digest(rest.take()?);
        let address = Ipv6Addr::from(rest.take::<16>()?);
        let client = match kind {
            NO_ADDRESS => None,
            IPV4 => Some(IpAddr::V4(address.to_ipv4_mapped()?)),
            IPV6 => Some(IpAddr::V6(address)),
            _ => return None,
        };
        let principal = Principal::new(&rest.text()?);
        rest.is_empty().then_some(Self { target, sender, number, issued_at, request, principal, client })
    }
}

/// Identifies a request by method, path, query and session id.
#[must_use]
pub fn digest_of_request(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Digest {
    // A request with several is refused.
    let session = headers.get(headers::SESSION_ID).map_or(&b""[..], |session| session.as_bytes());
    let query = query.unwrap_or_default();
    digest([b"forwarded request", method.as_str().as_bytes(), path.as_bytes(), query.as_bytes(), session])
}
