//! Encodes a session id's content: enough to reopen the upstream's session without a table.

use super::gateway_id::put;
use super::{GatewayId, IdKind, OpenedId, Sealer};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::replica::Incarnation;
use crate::task::{Principal, Timestamp};
use crate::wire::{Payload, ProtocolVersion};

const HAS_CLIENT_INFO: u8 = 1;
const HAS_UPSTREAM_SESSION: u8 = 1 << 1;
/// Flags for the upstream's declared task support.
const TASK_CALLS: u8 = 1 << 2;
const TASK_CANCEL: u8 = 1 << 3;
const CLIENT_TASKS: u8 = 1 << 4;
const ALL_FLAGS: u8 = HAS_CLIENT_INFO | HAS_UPSTREAM_SESSION | TASK_CALLS | TASK_CANCEL | CLIENT_TASKS;

/// One client's session. All stored state about it is in its id.
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
