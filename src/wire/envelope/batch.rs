//! Reads JSON-RPC batches, which only 2025-03-26 has (LEG-12).

use std::borrow::Cow;

use bytes::Bytes;

use super::{EnvelopeError, Message, read};
use crate::wire::scan::{self, ScanError, ScanLimits, locate};

/// Reads a batch, or one message as a batch of one. An invalid item does not affect the others. Fails if the text is
/// refused as a whole, is an empty array or has more than `messages_max` items.
pub fn read_batch(
    text: &Bytes,
    limits: ScanLimits,
    messages_max: usize,
) -> Result<Vec<Result<Message, EnvelopeError>>, EnvelopeError> {
    if !is_batch(text) {
        return read(text, limits).map(|message| vec![Ok(message)]);
    }
    Ok(split_batch(text, limits, messages_max)?.iter().map(|item| read(item, limits)).collect())
}

/// Whether a text can only be a batch.
#[must_use]
pub fn is_batch(text: &Bytes) -> bool {
    text.trim_ascii_start().starts_with(b"[")
}

/// The items of a batch, verbatim and unparsed. Fails as [`read_batch`].
pub fn split_batch(text: &Bytes, limits: ScanLimits, messages_max: usize) -> Result<Vec<Bytes>, EnvelopeError> {
    let refused = |error| EnvelopeError::Scan { error, id: None };
    let array_limits = ScanLimits { depth_max: limits.depth_max + 1, ..limits };
    let outline = scan::scan(text, array_limits).and_then(scan::ObjectOutline::flawless).map_err(refused)?;
    let array = text.slice(outline.root);
    let spans: Vec<_> = locate::items(&array).take(messages_max.saturating_add(1)).collect();
    if spans.is_empty() {
        return Err(EnvelopeError::Shape { what: Cow::Borrowed("a batch is empty"), id: None });
    }
    if spans.len() > messages_max {
        return Err(refused(ScanError::TooManyNodes { at: spans[messages_max].start }));
    }
    Ok(spans.into_iter().map(|span| array.slice(span)).collect())
}
