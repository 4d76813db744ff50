//! Reads strings, numbers and literals of JSON text. Positions in, positions out.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::ScanError;

pub(super) const fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Integers of so many characters fit a double with any digits.
const SURELY_FINITE_CHARS: usize = 300;

/// The number of bytes that are inspected before a search with a higher fixed cost.
const NEAR: usize = 64;

/// The number of bytes that are compared with one branch.
const BLOCK: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted {
    /// Just past the closing quotation mark.
    pub(super) end: usize,
    pub(super) escaped: bool,
    /// The first lone surrogate.
    pub(super) lone: Option<usize>,
}

/// Reads the string that opens at `at`. `Syntax` at the first raw control character, unknown escape or missing end.
#[inline]
pub(super) fn string(text: &[u8], at: usize) -> Result<Quoted, ScanError> {
    match near_end(text, at + 1) {
        Some(end) => Ok(Quoted { end, escaped: false, lone: None }),
        None => long_string(text, at + 1),
    }
}

/// Just past the end of a string that is short and has no escapes, as most are.
fn near_end(text: &[u8], start: usize) -> Option<usize> {
    let near = &text[start..text.len().min(start + NEAR)];
    let found = stop_near::<true>(near);
    (near.get(found) == Some(&b'"')).then_some(start + found + 1)
}

/// As [`string`], for any string that begins at `start`: search and check read many bytes at once.
fn long_string(text: &[u8], start: usize) -> Result<Quoted, ScanError> {
    let read = rest_of_string(text, start);
    let passed = match read {
        Ok(Quoted { end, .. }) => end,
        Err(at) => at,
    };
    match control(&text[start..passed]) {
        Some(control) => Err(ScanError::Syntax { at: start + control }),
        None => read.map_err(|at| ScanError::Syntax { at }),
    }
}

/// Reads on from `at` inside a string up to its end or the first invalid escape; control characters are not checked.
fn rest_of_string(text: &[u8], mut at: usize) -> Result<Quoted, usize> {
    let (mut escaped, mut lone) = (false, None);
    loop {
        at = mark(text, at);
        match text.get(at) {
            Some(b'\\') => {
                escaped = true;
                let read = escape(text, at)?;
                if read.is_lone {
                    lone.get_or_insert(at);
                }
                at = read.end;
            }
            Some(_) => return Ok(Quoted { end: at + 1, escaped, lone }),
            None => return Err(at),
        }
    }
}

/// The end of a string in scanned text, of which `start` is inside. Past the near bytes only quotation marks are searched
/// for: the backslashes before one tell whether it is escaped.
pub(in crate::wire) fn string_end(text: &[u8], start: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    let mut at = stop_near::<false>(&rest[..rest.len().min(NEAR)]);
    if rest.get(at) == Some(&b'"') {
        return start + at + 1;
    }
    loop {
        let quote = memchr(b'"', &rest[at..]).map_or(rest.len(), |found| at + found);
        let escapes = rest[..quote].iter().rev().take_while(|byte| **byte == b'\\').count() % 2;
        at = quote + 1;
        if escapes == 0 || quote == rest.len() {
            return start + at + escapes;
        }
    }
}

/// The next quotation mark or backslash from `at` on, or the end. Escapes cluster, so near bytes are inspected first.
pub(in crate::wire) fn mark(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let (near, far) = rest.split_at(rest.len().min(NEAR));
    match stop_near::<false>(near) {
        found if found < near.len() => at + found,
        passed => at + passed + memchr2(b'"', b'\\', far).unwrap_or(far.len()),
    }
}

/// Whether a text needs no escapes in a JSON string.
pub(in crate::wire) fn needs_no_escape(text: &[u8]) -> bool {
    stop_near::<true>(text) == text.len()
}

fn control(text: &[u8]) -> Option<usize> {
    // The least byte of a block is found without a branch, many bytes at once.
    let is_clean = |block: &[u8]| block.iter().fold(u8::MAX, |least, &b| least.min(b)) >= 0x20;
    let (blocks, tail) = text.as_chunks::<BLOCK>();
    if blocks.iter().all(|block| is_clean(block)) && is_clean(tail) {
        return None;
    }
    text.iter().position(|&b| b < 0x20)
}

/// The next quotation mark or backslash, or control character if `CONTROLS`, or the end of the text. Reads eight bytes
/// at a time. In each sum a borrow can only spoil bytes after the first hit, and only the first hit is used.
fn stop_near<const CONTROLS: bool>(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    let below = |word: u64, least: u64| word.wrapping_sub(ONES * least) & !word;
    let (words, tail) = text.as_chunks::<8>();
    for (number, eight) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        // With bit 1 flipped, the quotation mark follows the control characters.
        let quote = if CONTROLS { below(word ^ (ONES * 2), 0x21) } else { below(word ^ (ONES * 0x22), 1) };
        let hits = (quote | below(word ^ (ONES * 0x5c), 1)) & HIGH;
        if hits != 0 {
            return number * 8 + (hits.trailing_zeros() / 8) as usize;
        }
    }
    let is_stop = |&b: &u8| b == b'"' || b == b'\\' || (CONTROLS && b < 0x20);
    words.len() * 8 + tail.iter().position(is_stop).unwrap_or(tail.len())
}

#[derive(Clone, Copy, Debug)]
struct Escape {
    end: usize,
    is_lone: bool,
}

/// Reads the escape with its backslash at `at`; a surrogate pair is one. The error is an invalid escape's offset.
fn escape(text: &[u8], at: usize) -> Result<Escape, usize> {
    let whole = |end| Ok(Escape { end, is_lone: false });
    match text.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => return whole(at + 2),
        Some(b'u') => (),
        Some(_) | None => return Err(at),
    }
    let lone = Ok(Escape { end: at + 6, is_lone: true });
    match code_unit(text, at)? {
        0xd800..=0xdbff => (),
        0xdc00..=0xdfff => return lone,
        _ => return whole(at + 6),
    }
    if !text.get(at + 6..).is_some_and(|rest| rest.starts_with(b"\\u")) {
        return lone;
    }
    match code_unit(text, at + 6)? {
        0xdc00..=0xdfff => whole(at + 12),
        _ => lone,
    }
}

fn code_unit(text: &[u8], at: usize) -> Result<u32, usize> {
    let digits = text.get(at + 2..at + 6).ok_or(at)?;
    digits.iter().try_fold(0, |unit, &digit| {
        let value = char::from(digit).to_digit(16).ok_or(at)?;
        Ok(unit * 16 + value)
    })
}

/// A scanned string value, decoded; `None` for other values, and for text with a lone surrogate, which cannot be compared.
pub(in crate::wire) fn decode_string(value: &[u8]) -> Option<Cow<'_, str>> {
    let raw = inside(value)?;
    if raw.contains('\\') { serde_json::from_slice(value).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(raw)) }
}

/// As [`decode_string`], with U+FFFD for each lone surrogate: for text that is displayed, and decides nothing.
pub(in crate::wire) fn decode_lossy(value: &[u8]) -> Option<Cow<'_, str>> {
    if let Some(text) = decode_string(value) {
        return Some(text);
    }
    let mut out = String::with_capacity(value.len());
    pieces(inside(value)?, |piece| match piece {
        StringPiece::Text(text) => out.push_str(text),
        StringPiece::Half(_) => out.push(char::REPLACEMENT_CHARACTER),
    });
    Some(Cow::Owned(out))
}

/// The text between the quotation marks of a scanned value, if it is a string.
pub(in crate::wire) fn inside(value: &[u8]) -> Option<&str> {
    let raw = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    Some(std::str::from_utf8(raw).expect("scanned text is UTF-8"))
}

#[derive(Clone, Copy, Debug)]
pub(in crate::wire) enum StringPiece<'t> {
    Text(&'t str),
    Half(u32),
}

/// Decodes the inside of a scanned string, lone surrogates included.
pub(in crate::wire) fn pieces(raw: &str, mut take: impl FnMut(StringPiece<'_>)) {
    let bytes = raw.as_bytes();
    let (mut from, mut at) = (0, 0);
    while let Some(found) = memchr(b'\\', &bytes[at..]) {
        at += found;
        let Ok(Escape { end, is_lone }) = escape(bytes, at) else { break };
        if is_lone {
            take(StringPiece::Text(&unescape(&raw[from..at])));
            code_unit(bytes, at).into_iter().for_each(|unit| take(StringPiece::Half(unit)));
            from = end;
        }
        at = end;
    }
    take(StringPiece::Text(&unescape(&raw[from..])));
}

/// Decodes the inside of a scanned key: it has no lone surrogate.
pub(super) fn unescape(raw: &str) -> String {
    serde_json::from_str(&format!("\"{raw}\"")).expect("a scanned string decodes")
}

/// Reads the number at `at` and returns its end. [`is_carried`] decides whether the value may be carried.
pub(super) fn number(text: &[u8], at: usize) -> Result<usize, ScanError> {
    let mut end = at + usize::from(text[at] == b'-');
    end = match text.get(end) {
        Some(b'0') => end + 1,
        _ => digits(text, end)?,
    };
    if text.get(end) == Some(&b'.') {
        end = digits(text, end + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        end = digits(text, end + 1 + sign)?;
    }
    Ok(end)
}

fn digits(text: &[u8], at: usize) -> Result<usize, ScanError> {
    let rest = text.get(at..).unwrap_or_default();
    match rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len()) {
        0 => Err(ScanError::Syntax { at }),
        count => Ok(at + count),
    }
}

/// Whether a number is short enough and finite as a double, so that every receiver can read it (B86, B87).
pub(super) fn is_carried(number: &str, chars_max: usize) -> bool {
    let exponent = || number.bytes().any(|b| b == b'e' || b == b'E');
    number.len() <= chars_max
        && ((number.len() <= SURELY_FINITE_CHARS && !exponent()) || number.parse::<f64>().is_ok_and(f64::is_finite))
}
