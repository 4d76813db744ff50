//! Encodes what a session id holds: enough to open the upstream's session anew, with no table anywhere.

use super::TokenPurpose;
use super::layout::{TokenReader, hex_digest, put};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::replica::Incarnation;
use crate::task::{Principal, Timestamp};
use crate::wire::{Payload, ProtocolVersion};

/// The layout below. Another number means another one.
const LAYOUT: u8 = 1;
/// Flags of the members that may be absent.
const HAS_CLIENT_INFO: u8 = 1;
const HAS_UPSTREAM_SESSION: u8 = 1 << 1;
/// Flags of what the upstream declared of its tasks.
const TASK_CALLS: u8 = 1 << 2;
const TASK_CANCEL: u8 = 1 << 3;
/// Whether the client declared tasks.
const CLIENT_TASKS: u8 = 1 << 4;
/// Whether the session has a home. A gateway that is alone writes none, so that its ids are what they were before there were homes.
const HAS_HOME: u8 = 1 << 5;
const ALL_FLAGS: u8 = HAS_CLIENT_INFO | HAS_UPSTREAM_SESSION | TASK_CALLS | TASK_CANCEL | CLIENT_TASKS | HAS_HOME;

/// One client's session (design of the session face: all that is known about it travels in its id).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToken {
    /// The name of the upstream that it was opened for.
    pub upstream: String,
    /// [`digest_of`] its owner. A request of anybody else does not have this session.
    pub principal: String,
    /// Tells sessions apart; the key of whatever memory holds about this one.
    pub nonce: u128,
    pub client_version: ProtocolVersion,
    pub upstream_version: ProtocolVersion,
    /// What the client can do, as it was told to the upstream.
    pub capabilities: Payload,
    /// What the client calls itself; absent where it was too long to keep.
    pub client_info: Option<Payload>,
    pub issued_at: Timestamp,
    /// The replica that it was begun at, where there are several: what memory holds about it is there.
    pub home: Option<Incarnation>,
    /// The upstream's own id of the session, if it gave one.
    pub upstream_session: Option<String>,
    /// What the upstream declared of tasks of its own, whatever version it was said in.
    pub tasks: UpstreamTaskSupport,
    /// Whether the client declared tasks in its handshake: then it knows what they are.
    pub declares_tasks: bool,
}

impl SessionToken {
    /// The token as bytes. `client_info` is left out where with it they would not fit into a session id;
    /// whether the rest fits, [`super::Sealer::seal_session`] checks.
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

    /// Home and nonce alone of what [`SessionToken::encode`] wrote: whoever passes a request on needs no more of it.
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
        // In the order in which the bytes stand.
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

/// Whose session it is, without saying who: 64 hex digits.
#[must_use]
pub fn digest_of(principal: &Principal) -> String {
    hex_digest(principal.as_str().as_bytes())
}

fn version_of(number: u8) -> Option<ProtocolVersion> {
    ProtocolVersion::ALL.into_iter().find(|version| version.traits().number == number)
}
