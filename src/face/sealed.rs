//! Seals and opens the ids that clients keep: gateway state that the client returns. Read [`GatewayId`], then
//! [`SessionToken`] and [`StateToken`]. Pure except for the random nonce.

mod gateway_id;
mod keys;
mod state_token;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use http::{HeaderMap, Method};

use super::headers;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::random;
use crate::replica::Incarnation;
use crate::task::digest::{Digest, digest};
use crate::task::{Caller, Claims, Principal, Timestamp};
use crate::wire::{Payload, ProtocolVersion};
use gateway_id::{FORMAT, TokenReader, put};

pub use gateway_id::{GatewayId, IdKind, OpenedId, event_id, read_event_id, sealed_in};
pub use keys::{KEY_LEN, KeyError, KeyPrint, SealingKeys};
use keys::{SaltedKeys, aes};
pub use state_token::{StateContent, StateScope, StateToken};

/// The overhead of sealing: format, nonce, tag.
const OVERHEAD: usize = 1 + NONCE_LEN + AES_256_GCM_TAG_LEN;
const AES_256_GCM_TAG_LEN: usize = 16;

/// Seals and opens ids: AES-256-GCM, base64url without padding. Key schedules are computed once; a request costs one
/// pass over a few hundred bytes. Nonces are random, so a key may seal 2³² ids (NIST SP 800-38D, 8.3): 136 years of one
/// a second. More frequent ids have derived keys, from the ring's and a salt (`SaltedKeys`).
pub struct Sealer {
    /// The first key seals. Never empty.
    keys: Vec<LessSafeKey>,
    salted: SaltedKeys,
}

impl Sealer {
    pub fn new(keys: SealingKeys) -> Self {
        let ring = keys.into_keys();
        Self { keys: ring.iter().map(aes).collect(), salted: SaltedKeys::new(&ring) }
    }
}

fn sealed_with(key: &LessSafeKey, associated: Aad<Vec<u8>>, plain: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE_LEN] = random::bytes();
    let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD);
    sealed.push(FORMAT);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let content = &mut sealed[1 + NONCE_LEN..];
    let tag = key
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), associated, content)
        .expect("an id is far shorter than the limit of one nonce");
    sealed.extend_from_slice(tag.as_ref());
    sealed
}

fn opened_with(key: &LessSafeKey, associated: Aad<Vec<u8>>, sealed: &[u8]) -> Option<Vec<u8>> {
    let (&format, rest) = sealed.split_first()?;
    let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>()?;
    if format != FORMAT {
        return None;
    }
    // A wrong key destroys the buffer, so each one gets a copy.
    let mut content = content.to_vec();
    let len = key.open_in_place(Nonce::assume_unique_for_key(*nonce), associated, &mut content).ok()?.len();
    content.truncate(len);
    Some(content)
}

debug_members!(Sealer, |sealer| keys: sealer.keys.len());

const HAS_CLIENT_INFO: u8 = 1;
const HAS_UPSTREAM_SESSION: u8 = 1 << 1;
/// Flags for the upstream's declared task support.
const TASK_CALLS: u8 = 1 << 2;
const TASK_CANCEL: u8 = 1 << 3;
const CLIENT_TASKS: u8 = 1 << 4;
const ALL_FLAGS: u8 = HAS_CLIENT_INFO | HAS_UPSTREAM_SESSION | TASK_CALLS | TASK_CANCEL | CLIENT_TASKS;

/// One client's session. Its id has all of this: enough to reopen the upstream's session without a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToken {
    /// The upstream's name, or the endpoint's path.
    pub upstream: String,
    /// Its owner: the id opens for that principal only.
    pub principal: Principal,
    /// Identifies the session; the key of all in-memory state about it.
    pub nonce: u128,
    pub client_version: ProtocolVersion,
    pub upstream_version: ProtocolVersion,
    /// The client's capabilities, as sent to the upstream.
    pub capabilities: Payload,
    /// Absent if it was too long.
    pub client_info: Option<Payload>,
    pub issued_at: Timestamp,
    /// The replica that owns the session, if there are several.
    pub replica: Option<Incarnation>,
    pub upstream_session: Option<String>,
    /// Declared by the upstream, in any version.
    pub tasks: UpstreamTaskSupport,
    pub declares_tasks: bool,
}

impl Sealer {
    /// Leaves out the client's name if the id is too long with it. `None` if the client's capabilities are too long.
    pub fn seal_session(&self, token: &SessionToken) -> Option<String> {
        let (upstream, random) = (token.upstream.clone(), token.nonce);
        let id = GatewayId { kind: IdKind::Session, replica: token.replica, upstream, random };
        let seal = |client_info| self.seal(&id, Some(&token.principal), &token.payload(client_info));
        seal(token.client_info.as_ref()).or_else(|| seal(None))
    }

    /// `None` if the id is foreign. The caller checks its upstream.
    pub fn open_session(&self, principal: &Principal, sealed: &str) -> Option<SessionToken> {
        SessionToken::read(&self.open(IdKind::Session, Some(principal), sealed)?, principal)
    }
}

impl SessionToken {
    fn payload(&self, client_info: Option<&Payload>) -> Vec<u8> {
        let flag = |present: bool, flag| if present { flag } else { 0 };
        let flags = flag(client_info.is_some(), HAS_CLIENT_INFO)
            | flag(self.upstream_session.is_some(), HAS_UPSTREAM_SESSION)
            | flag(self.tasks.calls, TASK_CALLS)
            | flag(self.tasks.cancel, TASK_CANCEL)
            | flag(self.declares_tasks, CLIENT_TASKS);
        let mut out = vec![flags, self.client_version.traits().number, self.upstream_version.traits().number];
        out.extend_from_slice(&self.issued_at.as_millis().to_be_bytes());
        put(&mut out, self.capabilities.bytes());
        let client_info = client_info.map(|info| info.bytes().as_ref());
        let upstream_session = self.upstream_session.as_deref().map(str::as_bytes);
        client_info.into_iter().chain(upstream_session).for_each(|text| put(&mut out, text));
        out
    }

    fn read(opened: &OpenedId, principal: &Principal) -> Option<Self> {
        let mut rest = opened.reader();
        let [flags, client_version, upstream_version] = rest.take()?;
        if flags & !ALL_FLAGS != 0 {
            return None;
        }
        let token = Self {
            upstream: opened.id.upstream.clone(),
            principal: principal.clone(),
            nonce: opened.id.random,
            replica: opened.id.replica,
            client_version: version_of(client_version)?,
            upstream_version: version_of(upstream_version)?,
            issued_at: Timestamp::from_millis(u64::from_be_bytes(rest.take()?)),
            capabilities: rest.payload()?,
            client_info: if flags & HAS_CLIENT_INFO == 0 { None } else { Some(rest.payload()?) },
            upstream_session: if flags & HAS_UPSTREAM_SESSION == 0 { None } else { Some(rest.text()?) },
            tasks: UpstreamTaskSupport { calls: flags & TASK_CALLS != 0, cancel: flags & TASK_CANCEL != 0 },
            declares_tasks: flags & CLIENT_TASKS != 0,
        };
        rest.is_empty().then_some(token)
    }
}

fn version_of(number: u8) -> Option<ProtocolVersion> {
    ProtocolVersion::ALL.into_iter().find(|version| version.traits().number == number)
}

const NO_ADDRESS: u8 = 0;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// The token of a forwarded request: its caller, and a digest of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardToken {
    pub target: Incarnation,
    /// The sending replica, and its number for the request.
    pub sender: Incarnation,
    pub number: u64,
    pub issued_at: Timestamp,
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

fn put_claims(out: &mut Vec<u8>, Claims { scopes, groups, issuer, client, is_bound }: &Claims) {
    out.push(u8::from(*is_bound) | (u8::from(client.is_some()) << 1));
    out.extend(client.iter().flat_map(|client| client.0));
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
    let [has_claims @ 0..=1] = rest.take()? else { return None };
    let claims = if has_claims == 0 { None } else { Some(Arc::new(read_claims(rest)?)) };
    let until = (until != 0).then(|| Timestamp::from_millis(until));
    // The path that it asked follows.
    Some(Caller { claims, until, ..Caller::of(principal) })
}

fn read_claims(rest: &mut TokenReader<'_>) -> Option<Claims> {
    let [flags @ 0..=3] = rest.take()? else { return None };
    let client = if flags & 2 == 0 { None } else { Some(Digest(rest.take()?)) };
    let mut names = || -> Option<Vec<Arc<str>>> {
        let count = u32::from_be_bytes(rest.take()?);
        (0..count).map(|_| rest.text().map(Arc::from)).collect()
    };
    let (issuer, scopes, groups) = (names()?, names()?, names()?);
    Some(Claims {
        issuer: issuer.into_iter().next(),
        scopes: scopes.into_iter().collect(),
        groups: groups.into_iter().collect(),
        client,
        is_bound: flags & 1 != 0,
    })
}

pub fn digest_of_request(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Digest {
    // A request with several is refused.
    let session = headers.get(headers::SESSION_ID).map_or(&b""[..], |session| session.as_bytes());
    let query = query.unwrap_or_default();
    digest([b"forwarded request", method.as_str().as_bytes(), path.as_bytes(), query.as_bytes(), session])
}
