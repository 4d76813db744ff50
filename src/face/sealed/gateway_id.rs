//! Makes and opens the ids that clients keep: session ids, states, cursors, questions, streams. All have one layout:
//! replica, 128 bits, upstream, payload. An id opens only as its own kind, and for its principal, if any.

use aws_lc_rs::aead::Aad;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use tokio::time::Instant;

use super::keys::SALT_LEN;
use super::{Sealer, opened_with, sealed_with};
use crate::replica::Incarnation;
use crate::task::{Principal, TaskId};
use crate::wire::{Payload, ScanLimits};

/// The version of all layouts: an id's first byte, and the last of its associated data before the principal.
pub(super) const FORMAT: u8 = 2;

named_variants! {
    /// Authenticated with the content, by a label. No label is a prefix of another.
    pub enum IdKind, label {
        /// A session id, with the payload of a [`super::SessionToken`].
        Session = "session",
        /// A `requestState`, with the payload of a [`super::StateToken`].
        RequestState = "request state",
        Cursor = "cursor",
        /// A question of a task. Any replica accepts the answer.
        TaskQuestion = "task question",
        /// A question of a call that one process holds.
        Question = "question",
        SseStream = "sse stream",
        /// A stream that can be resumed. The ids of its events begin with it.
        EventStream = "event stream",
        /// A request that one replica forwards to another, with the payload of a [`super::ForwardToken`]. No client keeps it.
        Forward = "forward",
    }
}

impl IdKind {
    /// In bytes.
    pub const fn text_len_max(self) -> usize {
        match self {
            Self::Session => 2 << 10,
            Self::RequestState => 64 << 10,
            Self::Cursor | Self::TaskQuestion | Self::Question | Self::SseStream | Self::EventStream => 256,
            Self::Forward => 8 << 10,
        }
    }

    /// Whether there may be more ids of this kind than one key may seal.
    const fn is_frequent(self) -> bool {
        matches!(self, Self::Question | Self::EventStream | Self::Forward)
    }

    fn associated(self, owner: Option<&Principal>) -> Aad<Vec<u8>> {
        let owner = owner.map_or("", Principal::as_str);
        Aad::from([b"taskgate ", self.label().as_bytes(), &[FORMAT], owner.as_bytes()].concat())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayId {
    pub kind: IdKind,
    /// The replica with the object's in-memory state; `None` for a single gateway.
    pub replica: Option<Incarnation>,
    /// The name of its upstream or the path of its endpoint; empty if the rest identifies it.
    pub upstream: String,
    /// Random bits: the session's nonce, the stream, the task's id.
    pub random: u128,
}

impl GatewayId {
    pub const fn in_memory(kind: IdKind, replica: Option<Incarnation>, random: u128) -> Self {
        Self { kind, replica, upstream: String::new(), random }
    }

    /// For a task, which all replicas know.
    pub fn of_task(kind: IdKind, task: TaskId) -> Self {
        Self::in_memory(kind, None, task.bits())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.replica.is_some())];
        out.extend(self.replica.iter().flat_map(|replica| replica.0.to_be_bytes()));
        out.extend_from_slice(&self.random.to_be_bytes());
        put(&mut out, self.upstream.as_bytes());
        out
    }

    fn decode(kind: IdKind, rest: &mut TokenReader<'_>) -> Option<Self> {
        let replica = match rest.take()? {
            [0] => None,
            [1] => Some(Incarnation(u64::from_be_bytes(rest.take()?))),
            _ => return None,
        };
        Some(Self { kind, replica, random: u128::from_be_bytes(rest.take()?), upstream: rest.text()? })
    }
}

#[derive(Debug)]
pub struct OpenedId {
    pub id: GatewayId,
    payload: Bytes,
}

impl OpenedId {
    pub(super) fn reader(&self) -> TokenReader<'_> {
        TokenReader(&self.payload)
    }

    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl Sealer {
    /// Seals an id for its owner, if any: visible ASCII, different each time. `None` if it is too long for its kind.
    /// Panics without randomness from the system: a repeated nonce would reveal the key.
    pub fn seal(&self, id: &GatewayId, owner: Option<&Principal>, payload: &[u8]) -> Option<String> {
        let mut plain = id.encode();
        plain.extend_from_slice(payload);
        let associated = id.kind.associated(owner);
        let text = if id.kind.is_frequent() {
            let (salt, key) = self.salted.for_sealing(Instant::now());
            URL_SAFE_NO_PAD.encode([&salt[..], &sealed_with(&key, associated, &plain)].concat())
        } else {
            let key = self.keys.first().expect("a ring has a key");
            URL_SAFE_NO_PAD.encode(sealed_with(key, associated, &plain))
        };
        (text.len() <= id.kind.text_len_max()).then_some(text)
    }

    /// Opens an id. `None` unless it was sealed as this kind for this owner, with a key of the ring.
    pub fn open(&self, kind: IdKind, owner: Option<&Principal>, text: &str) -> Option<OpenedId> {
        if text.len() > kind.text_len_max() {
            return None;
        }
        let sealed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let plain = if kind.is_frequent() {
            let (salt, sealed) = sealed.split_first_chunk::<SALT_LEN>()?;
            self.salted.open(salt, |key| opened_with(key, kind.associated(owner), sealed))?
        } else {
            self.keys.iter().find_map(|key| opened_with(key, kind.associated(owner), &sealed))?
        };
        let mut rest = TokenReader(&plain);
        let id = GatewayId::decode(kind, &mut rest)?;
        let head_len = plain.len() - rest.0.len();
        Some(OpenedId { id, payload: Bytes::from(plain).slice(head_len..) })
    }
}

/// The id behind the prefix of the gateway's own requests and the mark of an endpoint of several upstreams.
pub fn sealed_in(text: &str) -> &str {
    text.rsplit(':').next().unwrap_or_default()
}

/// Separates the stream from the event's number; no character of base64url.
const NUMBER: char = '.';

/// Names its stream, so that no other stream's event is ever replayed.
pub fn event_id(sealed: &str, number: u64) -> String {
    format!("{sealed}{NUMBER}{number}")
}

/// The sealed stream of an event's id, with or without the mark of an endpoint, and the event's number.
pub fn read_event_id(text: &str) -> Option<(&str, u64)> {
    let (sealed, number) = sealed_in(text).split_once(NUMBER)?;
    Some((sealed, number.parse().ok()?))
}

/// Appends a part after its length.
pub(super) fn put(out: &mut Vec<u8>, part: &[u8]) {
    let len = u32::try_from(part.len()).expect("parts of a request are far shorter than 4 GiB");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(part);
}

pub(super) struct TokenReader<'a>(&'a [u8]);

impl<'a> TokenReader<'a> {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(u32::from_be_bytes(self.take()?)).ok()?;
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(super) fn payload(&mut self) -> Option<Payload> {
        Payload::parse(&Bytes::copy_from_slice(self.bytes()?), ScanLimits::CLIENT).ok()
    }
}
