//! Encodes a session id's content: enough to reopen the upstream's session without a table.

use super::TokenPurpose;
use super::layout::{TokenReader, hex_digest, put};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::replica::Incarnation;
use crate::task::{Principal, Timestamp};
use crate::wire::{Payload, ProtocolVersion};

/// The version of the layout below.
const LAYOUT: u8 = 1;
/// Flags of the members that may be absent.
const HAS_CLIENT_INFO: u8 = 1;
const HAS_UPSTREAM_SESSION: u8 = 1 << 1;
/// Flags for the upstream's declared task support.
const TASK_CALLS: u8 = 1 << 2;
const TASK_CANCEL: u8 = 1 << 3;
/// Whether the client declared tasks.
const CLIENT_TASKS: u8 = 1 << 4;
/// Whether the session has an owner. A single gateway writes none, so that its ids are as before owners existed.
const HAS_HOME: u8 = 1 << 5;
const ALL_FLAGS: u8 = HAS_CLIENT_INFO | HAS_UPSTREAM_SESSION | TASK_CALLS | TASK_CANCEL | CLIENT_TASKS | HAS_HOME;

/// One client's session. All stored state about it is in its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToken {
    /// The upstream's name.
    pub upstream: String,
    /// [`digest_of`] its owner. The session exists for that principal only.
    pub principal: String,
    /// Identifies the session; the key of all in-memory state about it.
    pub nonce: u128,
    pub client_version: ProtocolVersion,
    pub upstream_version: ProtocolVersion,
    /// The client's capabilities, as sent to the upstream.
    pub capabilities: Payload,
    /// The client's `clientInfo`; absent if it was too long.
    pub client_info: Option<Payload>,
    pub issued_at: Timestamp,
    /// The replica that owns the session, if there are several: the in-memory state is there.
    pub home: Option<Incarnation>,
    /// The upstream's session id, if it issued one.
    pub upstream_session: Option<String>,
    /// The upstream's declared task support, in any version.
    pub tasks: UpstreamTaskSupport,
    /// Whether the client declared tasks in its handshake, and so understands them.
    pub declares_tasks: bool,
}

impl SessionToken {
    /// Encodes the token, without `client_info` if that would not fit into a session id; [`super::Sealer::seal_session`] checks
    /// the rest.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let whole = self.write(self.client_info.as_ref());
        if whole.len() <= TokenPurpose::Session.plain_len_max() { whole } else { self.write(None) }
    }

    fn write(&self, client_info: Option<&Payload>) -> Vec<u8> {
        let flag = |present: bool, flag| if present { flag } else { 0 };
        let flags = flag(client_info.is_some(), HAS_CLIENT_INFO)
            | flag(self.upstream_session.is_some(), HAS_UPSTREAM_SESSION)
            | flag(self.tasks.calls, TASK_CALLS)
            | flag(self.tasks.cancel, TASK_CANCEL)
            | flag(self.declares_tasks, CLIENT_TASKS)
            | flag(self.home.is_some(), HAS_HOME);
        let mut out = vec![LAYOUT, flags, self.client_version.traits().number, self.upstream_version.traits().number];
        out.extend_from_slice(&self.nonce.to_be_bytes());
        out.extend_from_slice(&self.issued_at.as_millis().to_be_bytes());
        out.extend(self.home.iter().flat_map(|home| home.0.to_be_bytes()));
        let always = [self.upstream.as_bytes(), self.principal.as_bytes(), self.capabilities.bytes()];
        let client_info = client_info.map(|info| info.bytes().as_ref());
        let upstream_session = self.upstream_session.as_deref().map(str::as_bytes);
        for text in always.into_iter().chain(client_info).chain(upstream_session) {
            put(&mut out, text);
        }
        out
    }

    /// Decodes only owner and nonce, which are enough to forward a request.
    #[must_use]
    pub fn decode_home(bytes: &[u8]) -> Option<(Option<Incarnation>, u128)> {
        let mut rest = TokenReader::new(bytes);
        let [layout, flags, _, _] = rest.take()?;
        let (nonce, _issued_at) = (u128::from_be_bytes(rest.take()?), rest.take::<8>()?);
        let home = if flags & HAS_HOME == 0 { None } else { Some(Incarnation(u64::from_be_bytes(rest.take()?))) };
        (layout == LAYOUT).then_some((home, nonce))
    }

    /// Reads what [`SessionToken::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenReader::new(bytes);
        let [layout, flags, client_version, upstream_version] = rest.take()?;
        if layout != LAYOUT || flags & !ALL_FLAGS != 0 {
            return None;
        }
        // In the order of the bytes.
        let token = Self {
            client_version: version_of(client_version)?,
            upstream_version: version_of(upstream_version)?,
            nonce: u128::from_be_bytes(rest.take()?),
            issued_at: Timestamp::from_millis(u64::from_be_bytes(rest.take()?)),
            home: if flags & HAS_HOME == 0 { None } else { Some(Incarnation(u64::from_be_bytes(rest.take()?))) },
            upstream: rest.text()?,
            principal: rest.text()?,
            capabilities: rest.payload()?,
            client_info: if flags & HAS_CLIENT_INFO == 0 { None } else { Some(rest.payload()?) },
            upstream_session: if flags & HAS_UPSTREAM_SESSION == 0 { None } else { Some(rest.text()?) },
            tasks: UpstreamTaskSupport { calls: flags & TASK_CALLS != 0, cancel: flags & TASK_CANCEL != 0 },
            declares_tasks: flags & CLIENT_TASKS != 0,
        };
        rest.is_empty().then_some(token)
    }
}

/// A digest of the owner: 64 hex digits.
#[must_use]
pub fn digest_of(principal: &Principal) -> String {
    hex_digest(principal.as_str().as_bytes())
}

fn version_of(number: u8) -> Option<ProtocolVersion> {
    ProtocolVersion::ALL.into_iter().find(|version| version.traits().number == number)
}
