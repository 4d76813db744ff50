//! Locates members and items in a scanned value, without checking it again.

use std::ops::Range;

use super::lexeme::{is_whitespace, string_end};
use super::{Member, Members, ObjectPlace};

/// The members of the outermost object, or `None` if the text is no object.
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
        let key_end = string_end(text, key_start);
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

/// The end of the value that begins at `at`.
pub(in crate::wire) fn value_end(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    loop {
        match text.get(at) {
            Some(b'"') => at = string_end(text, at),
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

/// The end of a number or literal.
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
