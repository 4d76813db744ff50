//! Encodes hints as notification texts, decodes other replicas' hints, and streams them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::broadcast;

use super::columns::id_of;
use crate::replica::Incarnation;
use crate::store::tasks::StoreHint;
use crate::task::{Principal, TaskKey};

/// Below PostgreSQL's limit of 8,000 bytes.
const TEXT_LEN_MAX: usize = 7_900;

pub(super) fn channel(schema: &str) -> String {
    format!("taskgate_{schema}")
}

/// A lagging receiver gets [`StoreHint::Missed`].
pub(super) fn stream(hints: broadcast::Receiver<StoreHint>) -> BoxStream<'static, StoreHint> {
    let next = |mut hints: broadcast::Receiver<StoreHint>| async move {
        match hints.recv().await {
            Ok(hint) => Some((hint, hints)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some((StoreHint::Missed, hints)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    };
    stream::unfold(hints, next).boxed()
}

/// Encodes the hint that this replica changed a row. Omits a key that is too long.
pub(super) fn text(holder: Incarnation, key: &TaskKey) -> String {
    let mut bytes = holder.0.to_be_bytes().to_vec();
    bytes.extend_from_slice(&key.id.bits().to_be_bytes());
    bytes.extend_from_slice(key.owner.as_str().as_bytes());
    let text = URL_SAFE_NO_PAD.encode(&bytes);
    if text.len() <= TEXT_LEN_MAX { text } else { keyless(holder) }
}

pub(super) fn keyless(holder: Incarnation) -> String {
    URL_SAFE_NO_PAD.encode(holder.0.to_be_bytes())
}

/// Decodes a hint; `None` for the replica's own. An invalid text counts as [`StoreHint::Missed`].
pub(super) fn read(text: &str, own: Incarnation) -> Option<StoreHint> {
    let read = || {
        let text = Some(text).filter(|text| text.len() <= TEXT_LEN_MAX)?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (holder, rest) = bytes.split_first_chunk::<8>()?;
        if rest.is_empty() {
            return Some((u64::from_be_bytes(*holder), None));
        }
        let (id, owner) = rest.split_first_chunk::<16>()?;
        let owner = Principal::new(std::str::from_utf8(owner).ok()?);
        Some((u64::from_be_bytes(*holder), Some(TaskKey { owner, id: id_of(id) })))
    };
    match read() {
        Some((holder, _)) if holder == own.0 => None,
        Some((_, Some(key))) => Some(StoreHint::Changed(key)),
        Some((_, None)) | None => Some(StoreHint::Missed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TaskId;

    #[test]
    fn a_hint_is_read_as_it_was_written_and_nothing_else_is_one() {
        let key = |owner: &str| TaskKey { owner: Principal::new(owner), id: TaskId::from_bits(7) };
        let (one, other) = (Incarnation(1), Incarnation(2));
        assert_eq!(read(&text(one, &key("a\0ä")), other), Some(StoreHint::Changed(key("a\0ä"))));
        assert_eq!(read(&text(one, &key("")), other), Some(StoreHint::Changed(key(""))));
        assert_eq!(read(&text(one, &key("a")), one), None);
        let long = text(one, &key(&"o".repeat(8_000)));
        assert!(long.len() < 8_000);
        assert_eq!(read(&long, other), Some(StoreHint::Missed));
        for wrong in ["", "x", "no key", &"A".repeat(8_000), "AAAAAAAAAAAAAAA"] {
            assert_eq!(read(wrong, one), Some(StoreHint::Missed), "{wrong}");
        }
    }
}
