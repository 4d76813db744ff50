//! Walks once through a value, for callers that read all its parts. Reads each byte once; nested [`super::Object`]s
//! read it once a level. Validates nothing: the text has passed a scan.

use std::borrow::Cow;
use std::ops::Range;

use super::Payload;
use super::scan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkedKind {
    Object,
    Array,
    Scalar,
}

/// One member of an object; the walk is at its value.
#[derive(Clone, Debug)]
pub struct WalkedKey<'t> {
    pub name: Cow<'t, str>,
    /// The position of the opening brace or comma before the member.
    separator: usize,
}

/// A cursor before a value. The caller enters objects and arrays, or skips values, and so reads each byte once.
#[derive(Debug)]
pub struct ValueWalk<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> ValueWalk<'t> {
    pub fn of(value: &'t Payload) -> Self {
        Self { text: value.as_str(), at: 0 }
    }

    pub fn kind(&self) -> WalkedKind {
        match self.text.as_bytes().get(self.at) {
            Some(b'{') => WalkedKind::Object,
            Some(b'[') => WalkedKind::Array,
            Some(_) | None => WalkedKind::Scalar,
        }
    }

    /// Enters the object or array, up to its first member or item.
    pub const fn enter(&mut self) {
        self.at += 1;
    }

    pub fn member(&mut self) -> Option<WalkedKey<'t>> {
        let separator = self.next_separator()?;
        let bytes = self.text.as_bytes();
        let quoted = self.at..scan::string_end(bytes, self.at + 1);
        let colon = scan::skip_whitespace(bytes, quoted.end);
        self.at = scan::skip_whitespace(bytes, colon + 1);
        let name = scan::decode_string(&bytes[quoted]).unwrap_or_default();
        Some(WalkedKey { name, separator })
    }

    /// Advances to the next item of the entered array; false at its end.
    pub fn advance_to_item(&mut self) -> bool {
        self.next_separator().is_some()
    }

    /// Advances past the value; returns its text.
    pub fn skip(&mut self) -> &'t str {
        let start = self.at;
        self.at = scan::value_end(self.text.as_bytes(), start);
        &self.text[start..self.at]
    }

    /// The text range to delete so that the member just skipped is gone. Ranges of two members of one object may overlap.
    pub fn extent(&self, key: &WalkedKey<'_>) -> Range<usize> {
        let bytes = self.text.as_bytes();
        let next = scan::skip_whitespace(bytes, self.at);
        match (bytes[key.separator], bytes.get(next)) {
            (b',', _) => key.separator..self.at,
            (_, Some(b',')) => key.separator + 1..next + 1,
            (_, Some(_) | None) => key.separator + 1..self.at,
        }
    }

    /// Advances to the next member or item; returns the position of the bracket or comma before it, or `None` at the end.
    fn next_separator(&mut self) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut before = self.at - 1;
        self.at = scan::skip_whitespace(bytes, self.at);
        if bytes.get(self.at) == Some(&b',') {
            before = self.at;
            self.at = scan::skip_whitespace(bytes, self.at + 1);
        }
        if matches!(bytes.get(self.at), Some(b'}' | b']') | None) {
            self.at += 1;
            return None;
        }
        Some(before)
    }
}

/// A value without these ranges (see [`ValueWalk::extent`]), which are in order and do not overlap.
pub fn without(value: &Payload, parts: &[Range<usize>]) -> Payload {
    let text = value.bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for part in parts {
        out.extend_from_slice(text.get(from..part.start).unwrap_or_default());
        from = from.max(part.end);
    }
    out.extend_from_slice(&text[from..]);
    Payload::from_scanned(out.into())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).expect(text)
    }

    /// The parts of a value, each key and scalar once.
    fn parts(walk: &mut ValueWalk<'_>, out: &mut Vec<String>) {
        match walk.kind() {
            WalkedKind::Object => {
                walk.enter();
                while let Some(key) = walk.member() {
                    out.push(format!("{}:", key.name));
                    parts(walk, out);
                }
            }
            WalkedKind::Array => {
                walk.enter();
                while walk.advance_to_item() {
                    parts(walk, out);
                }
            }
            WalkedKind::Scalar => out.push(walk.skip().to_owned()),
        }
    }

    #[test]
    fn a_walk_meets_every_part_once() {
        let text = r#"{ "a" : [ 1.10 , { } , [ ] , "x\"]" ] , "\u0062":{"c":null,"d":{"e":[true]}},"f":"" }"#;
        let mut found = Vec::new();
        let value = payload(text);
        let mut walk = ValueWalk::of(&value);
        parts(&mut walk, &mut found);
        assert_eq!(found.join(" "), r#"a: 1.10 "x\"]" b: c: null d: e: true f: """#);
        assert_eq!(walk.at, value.len());
    }

    #[test]
    fn a_member_goes_with_one_comma() {
        for (text, left) in [
            (r#"{"x":1}"#, "{}"),
            (r#"{ "x" : [1] }"#, "{ }"),
            (r#"{"x":1, "a":2}"#, r#"{ "a":2}"#),
            (r#"{"a":2 ,"x":1}"#, r#"{"a":2 }"#),
            (r#"{"a":2,"x":{"x":1} , "b":3}"#, r#"{"a":2 , "b":3}"#),
        ] {
            let value = payload(text);
            let mut walk = ValueWalk::of(&value);
            let mut gone = Vec::new();
            walk.enter();
            while let Some(key) = walk.member() {
                walk.skip();
                if key.name == "x" {
                    gone.push(walk.extent(&key));
                }
            }
            assert_eq!(without(&value, &gone).as_str(), left, "{text}");
            payload(left);
        }
    }
}
