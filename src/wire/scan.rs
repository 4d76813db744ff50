//! Scans a text strictly in one pass: decides whether it may be carried, and locates its members.
//!
//! `serde_json` carries duplicate keys, `1e400` and bottomless nesting inside a raw value without a
//! word; other parsers then disagree about what they read. The scan refuses all of that
//! (B78 to B88, U07, U27, U28) without recursion and without a tree. On its way
//! it notes where the members stand that the gateway reads, so that nobody looks for them again.
//!
//! Half of a surrogate pair (`"\ud83d"`) is what tools write that cut a text inside an emoji, and what clients read: as
//! the value of a string it passes. A key with one is refused, and a string with one is none for whoever decodes it
//! here: no id, method or name has one.

mod keys;
mod lexeme;
pub(in crate::wire) mod locate;
mod pass;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

pub(in crate::wire) use lexeme::{
    StringPiece, decode_lossy, decode_string, inside, mark, needs_no_escape, pieces, string_end,
};

/// Bounds of one scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    /// Deepest nesting of objects and arrays.
    pub depth_max: usize,
    /// Values in all.
    pub nodes_max: usize,
    /// Members of one object.
    pub members_max: usize,
    /// Items of one array.
    pub items_max: usize,
    /// Characters of one number.
    pub number_chars_max: usize,
}

impl ScanLimits {
    /// What a client may send.
    pub const CLIENT: Self =
        Self { depth_max: 64, nodes_max: 200_000, members_max: 10_000, items_max: 1_000_000, number_chars_max: 64 };
    /// What an upstream may answer where the gateway keeps it; its size in bytes is bounded elsewhere.
    pub const UPSTREAM: Self = Self {
        depth_max: 128,
        nodes_max: usize::MAX,
        members_max: usize::MAX,
        items_max: usize::MAX,
        number_chars_max: usize::MAX,
    };
}

/// Why a text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    #[error("not valid JSON (at byte {at})")]
    Syntax { at: usize },
    #[error("not valid UTF-8 (at byte {at})")]
    Utf8 { at: usize },
    #[error("a key holds half of a surrogate pair (at byte {at})")]
    LoneSurrogate { at: usize },
    #[error("nested too deeply (at byte {at})")]
    TooDeep { at: usize },
    #[error("an object names a member twice (at byte {at})")]
    DuplicateKey { at: usize },
    #[error("a number is out of range or too long (at byte {at})")]
    NumberRange { at: usize },
    #[error("too many values (at byte {at})")]
    TooManyNodes { at: usize },
}

impl ScanError {
    /// The byte of the text at which it was seen.
    #[must_use]
    pub const fn at(self) -> usize {
        match self {
            Self::Syntax { at }
            | Self::Utf8 { at }
            | Self::LoneSurrogate { at }
            | Self::TooDeep { at }
            | Self::DuplicateKey { at }
            | Self::NumberRange { at }
            | Self::TooManyNodes { at } => at,
        }
    }
}

/// The objects whose members a scan locates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum ObjectPlace {
    /// The text itself.
    Root,
    /// The root's member of that name.
    Params,
    Result,
    Error,
    /// `_meta` of `params`, and of `result`.
    ParamsMeta,
    ResultMeta,
}

impl ObjectPlace {
    /// Where the value of `key` belongs if it turns out to be an object.
    pub(in crate::wire) fn child(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Root, "params") => Some(Self::Params),
            (Self::Root, "result") => Some(Self::Result),
            (Self::Root, "error") => Some(Self::Error),
            (Self::Params, "_meta") => Some(Self::ParamsMeta),
            (Self::Result, "_meta") => Some(Self::ResultMeta),
            _ => None,
        }
    }
}

/// One located member. The positions count from the start of the scanned text.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Member {
    pub(in crate::wire) place: ObjectPlace,
    /// The key between its quotation marks, as written.
    pub(in crate::wire) key: Range<usize>,
    /// Whether the key is written with escapes.
    pub(in crate::wire) escaped: bool,
    pub(in crate::wire) value: Range<usize>,
}

impl Member {
    /// The key, decoded; `raw` is what stands at [`Member::key`].
    pub(in crate::wire) fn decode<'t>(&self, raw: &'t str) -> Cow<'t, str> {
        if self.escaped { Cow::Owned(lexeme::unescape(raw)) } else { Cow::Borrowed(raw) }
    }
}

/// Where the members of one object stand, perhaps among those of other objects of one message.
#[derive(Clone, Debug)]
pub(in crate::wire) struct LocatedMembers {
    /// Where the object begins, counted as the members' positions are.
    pub(in crate::wire) base: usize,
    pub(in crate::wire) place: ObjectPlace,
    pub(in crate::wire) members: Arc<[Member]>,
}

/// Located members in the order of the text; room for those of a usual request without allocating.
pub(in crate::wire) type Members = SmallVec<[Member; 16]>;

/// What a scan found in a text that is well-formed.
#[derive(Debug)]
pub(in crate::wire) struct ObjectOutline {
    /// The value without the whitespace around it.
    pub(in crate::wire) root: Range<usize>,
    pub(in crate::wire) members: Members,
    /// The first breach of a rule that still lets the rest be read: a key named twice below the root or with half of a
    /// surrogate pair, a number out of range, too many values. The text is refused, but its `id` may be echoed.
    pub(in crate::wire) flaw: Option<ScanError>,
}

impl ObjectOutline {
    /// # Errors
    /// The flaw, if there is one.
    pub(in crate::wire) fn flawless(self) -> Result<Self, ScanError> {
        match self.flaw {
            None => Ok(self),
            Some(flaw) => Err(flaw),
        }
    }
}

/// Scans a text once, in time linear to its length; memory grows with the nesting and with the
/// members of open objects, both within `limits`.
///
/// # Errors
/// What makes the text unreadable or its members ambiguous at the root; see [`ObjectOutline::flaw`] for the rest.
pub(in crate::wire) fn scan(text: &[u8], limits: ScanLimits) -> Result<ObjectOutline, ScanError> {
    let text = simdutf8::compat::from_utf8(text).map_err(|error| ScanError::Utf8 { at: error.valid_up_to() })?;
    pass::ScanPass::new(text, limits).run()
}
