//! Encodes the token of a forwarded request: its caller, and a digest of the request.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use http::{HeaderMap, Method};

use super::gateway_id::{TokenReader, put};
use super::{GatewayId, IdKind, OpenedId, Sealer};
use crate::face::headers;
use crate::replica::Incarnation;
use crate::task::digest::{Digest, digest};
use crate::task::{Caller, Claims, Principal, Timestamp};

const NO_ADDRESS: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardToken {
    pub target: Incarnation,
    /// The sending replica, and its number for the request.
    pub sender: Incarnation,
    pub number: u64,
    pub issued_at: Timestamp,
    /// [`digest_of_request`].
    pub request: Digest,
    pub caller: Caller,
    pub client: Option<IpAddr>,
}

impl Sealer {
    /// `None` if the caller has too many or too long names.
    pub fn seal_forward(&self, token: &ForwardToken) -> Option<String> {
        let random = (u128::from(token.sender.0) << 64) | u128::from(token.number);
        self.seal(&GatewayId::in_memory(IdKind::Forward, Some(token.target), random), None, &token.payload())
    }

    pub fn open_forward(&self, sealed: &str) -> Option<ForwardToken> {
        ForwardToken::read(&self.open(IdKind::Forward, None, sealed)?)
    }
}

impl ForwardToken {
    fn payload(&self) -> Vec<u8> {
        let (kind, address) = match self.client {
            None => (NO_ADDRESS, Ipv6Addr::UNSPECIFIED),
            Some(IpAddr::V4(address)) => (IPV4, address.to_ipv6_mapped()),
            Some(IpAddr::V6(address)) => (IPV6, address),
        };
        let mut out = vec![kind];
        out.extend_from_slice(&address.octets());
        out.extend_from_slice(&self.issued_at.as_millis().to_be_bytes());
        out.extend_from_slice(&self.request.0);
        put(&mut out, self.caller.principal.as_str().as_bytes());
        out.extend_from_slice(&self.caller.until.map_or(0, Timestamp::as_millis).to_be_bytes());
        out.push(u8::from(self.caller.claims.is_some()));
        if let Some(claims) = &self.caller.claims {
            put_claims(&mut out, claims);
        }
        out
    }

    fn read(opened: &OpenedId) -> Option<Self> {
        let (mut rest, id) = (opened.reader(), &opened.id);
        let ([kind], address) = (rest.take()?, Ipv6Addr::from(rest.take::<16>()?));
        let client = match kind {
            NO_ADDRESS => None,
            IPV4 => Some(IpAddr::V4(address.to_ipv4_mapped()?)),
            IPV6 => Some(IpAddr::V6(address)),
            _ => return None,
        };
        let token = Self {
            target: id.replica?,
            sender: Incarnation((id.random >> 64) as u64),
            number: id.random as u64,
            client,
            issued_at: Timestamp::from_millis(u64::from_be_bytes(rest.take()?)),
            request: Digest(rest.take()?),
            caller: read_caller(&mut rest)?,
        };
        rest.is_empty().then_some(token)
    }
}

fn put_claims(out: &mut Vec<u8>, Claims { scopes, groups, issuer, is_bound }: &Claims) {
    out.push(u8::from(*is_bound));
    let issuer = issuer.as_slice();
    for names in
        [&mut issuer.iter() as &mut dyn ExactSizeIterator<Item = &Arc<str>>, &mut scopes.iter(), &mut groups.iter()]
    {
        let count = u32::try_from(names.len()).expect("a credential has far fewer names");
        out.extend_from_slice(&count.to_be_bytes());
        names.for_each(|name| put(out, name.as_bytes()));
    }
}

fn read_caller(rest: &mut TokenReader<'_>) -> Option<Caller> {
    let (principal, until) = (Principal::new(&rest.text()?), u64::from_be_bytes(rest.take()?));
    let claims = match rest.take()? {
        [0] => None,
        [1] => Some(Arc::new(read_claims(rest)?)),
        [_] => return None,
    };
    let until = (until != 0).then(|| Timestamp::from_millis(until));
    // The path that it asked follows.
    Some(Caller { claims, until, ..Caller::of(principal) })
}

fn read_claims(rest: &mut TokenReader<'_>) -> Option<Claims> {
    let is_bound = match rest.take()? {
        [0] => false,
        [1] => true,
        [_] => return None,
    };
    let mut names = || -> Option<Vec<Arc<str>>> {
        let count = u32::from_be_bytes(rest.take()?);
        (0..count).map(|_| rest.text().map(Arc::from)).collect()
    };
    let (issuer, scopes, groups) = (names()?, names()?, names()?);
    Some(Claims {
        issuer: issuer.into_iter().next(),
        scopes: scopes.into_iter().collect(),
        groups: groups.into_iter().collect(),
        is_bound,
    })
}

/// Identifies a request by method, path, query and session id.
pub fn digest_of_request(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Digest {
    // A request with several is refused.
    let session = headers.get(headers::SESSION_ID).map_or(&b""[..], |session| session.as_bytes());
    let query = query.unwrap_or_default();
    digest([b"forwarded request", method.as_str().as_bytes(), path.as_bytes(), query.as_bytes(), session])
}
