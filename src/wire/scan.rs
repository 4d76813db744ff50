//! Scans a text strictly in one pass: accepts or refuses it, and locates its members.
//! `serde_json` accepts duplicate keys, `1e400` and unbounded nesting in a raw value; other parsers disagree about
//! these. The scan refuses them (B78 to B88, U07, U27, U28), and notes the positions of members that the gateway reads.
//! Tools that cut a text inside an emoji write a lone surrogate (`"\ud83d"`): as a string value it passes. A key with
//! one is refused, and a string with one does not decode here: no id, method or name has one.

mod lexeme;
mod pass;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::meta::CLIENT_CAPABILITIES;
use lexeme::is_whitespace;
pub(in crate::wire) use lexeme::{
    StringPiece, decode_lossy, decode_string, inside, mark, needs_no_escape, pieces, string_end,
};

#[derive(Clone, Copy, Debug)]
pub struct ScanLimits {
    /// Deepest nesting of objects and arrays.
    pub depth_max: usize,
    pub nodes_max: usize,
    pub members_max: usize,
    pub items_max: usize,
    pub number_chars_max: usize,
}

impl ScanLimits {
    pub const CLIENT: Self =
        Self { depth_max: 64, nodes_max: 200_000, members_max: 10_000, items_max: 1_000_000, number_chars_max: 64 };
    /// Limits for kept responses of upstreams; bytes are bounded elsewhere. A member's entry can outweigh its text.
    pub const UPSTREAM: Self = Self {
        depth_max: 128,
        nodes_max: usize::MAX,
        members_max: 500_000,
        items_max: usize::MAX,
        number_chars_max: usize::MAX,
    };
}

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

/// The objects of which a scan locates the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum ObjectPlace {
    Root,
    Params,
    Result,
    Error,
    /// `_meta` of `params`, and of `result`.
    ParamsMeta,
    ResultMeta,
    /// The client's capabilities in `_meta` of `params`, and their `extensions`.
    Capabilities,
    CapabilityExtensions,
}

impl ObjectPlace {
    pub(in crate::wire) fn child(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Root, "params") => Some(Self::Params),
            (Self::Root, "result") => Some(Self::Result),
            (Self::Root, "error") => Some(Self::Error),
            (Self::Params, "_meta") => Some(Self::ParamsMeta),
            (Self::Result, "_meta") => Some(Self::ResultMeta),
            (Self::ParamsMeta, CLIENT_CAPABILITIES) => Some(Self::Capabilities),
            (Self::Capabilities, "extensions") => Some(Self::CapabilityExtensions),
            _ => None,
        }
    }
}

/// One located member. Positions count from the start of the scanned text.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Member {
    pub(in crate::wire) place: ObjectPlace,
    /// The key between its quotation marks, as written.
    pub(in crate::wire) key: Range<usize>,
    pub(in crate::wire) escaped: bool,
    pub(in crate::wire) value: Range<usize>,
}

impl Member {
    /// The key, decoded; `raw` is the text at [`Member::key`].
    pub(in crate::wire) fn decode<'t>(&self, raw: &'t str) -> Cow<'t, str> {
        if self.escaped { Cow::Owned(lexeme::unescape(raw)) } else { Cow::Borrowed(raw) }
    }
}

/// The positions of an object's members, perhaps among members of the message's other objects.
#[derive(Clone, Debug)]
pub(in crate::wire) struct LocatedMembers {
    /// The object's start, counted as the members' positions are.
    pub(in crate::wire) base: usize,
    pub(in crate::wire) place: ObjectPlace,
    pub(in crate::wire) members: Arc<[Member]>,
}

/// Located members in text order; inline room for a usual request.
pub(in crate::wire) type Members = SmallVec<[Member; 16]>;

#[derive(Debug)]
pub(in crate::wire) struct ObjectOutline {
    /// The value without surrounding whitespace.
    pub(in crate::wire) root: Range<usize>,
    pub(in crate::wire) members: Members,
    /// The first breach after which the rest is still read: a duplicate key or one with a lone surrogate below the
    /// root, a number out of range, too many values. The text is refused, but its `id` may be echoed.
    pub(in crate::wire) flaw: Option<ScanError>,
}

impl ObjectOutline {
    pub(in crate::wire) fn flawless(self) -> Result<Self, ScanError> {
        match self.flaw {
            None => Ok(self),
            Some(flaw) => Err(flaw),
        }
    }
}

/// Scans a text once, in linear time; memory grows with nesting and with members of open objects, both within `limits`.
/// Fails if the text is unreadable or its root's members are ambiguous; see [`ObjectOutline::flaw`] for the rest.
pub(in crate::wire) fn scan(text: &[u8], limits: ScanLimits) -> Result<ObjectOutline, ScanError> {
    let text = simdutf8::compat::from_utf8(text).map_err(|error| ScanError::Utf8 { at: error.valid_up_to() })?;
    // Neither is moved as a whole: both have inline room for a usual message.
    let mut pass = pass::ScanPass::new(text, limits);
    let root = pass.run()?;
    Ok(ObjectOutline { root, members: pass.members, flaw: pass.flaw })
}

/// The members of the outermost object, located without checking the text again, or `None` if the text is no object.
pub(in crate::wire) fn members(text: &[u8]) -> Option<Members> {
    let mut members = Members::new();
    if text.first() != Some(&b'{') {
        return None;
    }
    let mut at = 0;
    loop {
        // `at` is at the opening brace or the comma before a member.
        let key_start = skip_whitespace(text, at + 1);
        if text.get(key_start) != Some(&b'"') {
            return Some(members);
        }
        let key_end = string_end(text, key_start + 1);
        let key = key_start + 1..key_end - 1;
        let start = skip_whitespace(text, skip_whitespace(text, key_end) + 1);
        let end = value_end(text, start);
        let escaped = text[key.clone()].contains(&b'\\');
        members.push(Member { place: ObjectPlace::Root, key, escaped, value: start..end });
        at = skip_whitespace(text, end);
        if text.get(at) != Some(&b',') {
            return Some(members);
        }
    }
}

/// The items of the outermost array; none if the text is no array.
pub(in crate::wire) fn items(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    // `at` is at the opening bracket or the comma before an item.
    let mut at = text.starts_with(b"[").then_some(0);
    std::iter::from_fn(move || {
        let start = skip_whitespace(text, at? + 1);
        if text.get(start) == Some(&b']') {
            return None;
        }
        let end = value_end(text, start);
        let separator = skip_whitespace(text, end);
        at = (text.get(separator) == Some(&b',')).then_some(separator);
        Some(start..end)
    })
}

pub(in crate::wire) fn value_end(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    loop {
        match text.get(at) {
            Some(b'"') => at = string_end(text, at + 1),
            Some(b'{' | b'[') => {
                depth += 1;
                at += 1;
                continue;
            }
            Some(b'}' | b']') => {
                depth -= 1;
                at += 1;
            }
            Some(b',' | b':' | b' ' | b'\t' | b'\n' | b'\r') => {
                at += 1;
                continue;
            }
            Some(_) => at = scalar_end(text, at),
            None => return at,
        }
        if depth == 0 {
            return at;
        }
    }
}

fn scalar_end(text: &[u8], at: usize) -> usize {
    let rest = &text[at..];
    at + rest.iter().position(|&b| is_whitespace(b) || matches!(b, b',' | b']' | b'}')).unwrap_or(rest.len())
}

pub(in crate::wire) fn skip_whitespace(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|&b| is_whitespace(b)) {
        at += 1;
    }
    at
}
