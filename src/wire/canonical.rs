//! Writes equal JSON values as equal bytes, for comparisons.

use std::borrow::Cow;
use std::ops::Range;

use super::Payload;
use super::payload::write_string;
use super::scan::{self, StringPiece};
use super::walk::{ValueWalk, WalkedKind};

/// Writes the value with sorted keys, without whitespace. Equal strings are written alike, however escaped; numbers
/// keep their text: `1.0` is not `1`. Unsorted objects' members are copied once more for each enclosing object.
pub fn canonical(value: &Payload) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    write(&mut ValueWalk::of(value), &mut out, &mut Vec::new());
    out
}

/// `spare` is scratch space for members that move.
fn write(walk: &mut ValueWalk<'_>, out: &mut Vec<u8>, spare: &mut Vec<u8>) {
    match walk.kind() {
        WalkedKind::Object => {
            walk.enter();
            out.push(b'{');
            let from = out.len();
            let mut members = Vec::new();
            while let Some(key) = walk.member() {
                let start = out.len();
                write_string(out, &key.name);
                out.push(b':');
                write(walk, out, spare);
                out.push(b',');
                members.push((key.name, start..out.len()));
            }
            put_in_order(members, from, out, spare);
            out.truncate(out.len() - usize::from(out.len() > from));
            out.push(b'}');
        }
        WalkedKind::Array => {
            walk.enter();
            out.push(b'[');
            let from = out.len();
            while walk.advance_to_item() {
                write(walk, out, spare);
                out.push(b',');
            }
            out.truncate(out.len() - usize::from(out.len() > from));
            out.push(b']');
        }
        WalkedKind::Scalar => write_scalar(walk.skip().as_bytes(), out),
    }
}

fn write_scalar(value: &[u8], out: &mut Vec<u8>) {
    match (scan::decode_string(value), scan::inside(value)) {
        (Some(text), _) => write_string(out, &text),
        (None, None) => out.extend_from_slice(value),
        // A lone surrogate has one spelling, which no other text has: backslashes of text are doubled.
        (None, Some(raw)) => {
            out.push(b'"');
            scan::pieces(raw, |piece| match piece {
                StringPiece::Text(text) => {
                    let mut quoted = Vec::with_capacity(text.len() + 2);
                    write_string(&mut quoted, text);
                    out.extend_from_slice(&quoted[1..quoted.len() - 1]);
                }
                StringPiece::Half(unit) => out.extend_from_slice(format!("\\u{unit:04x}").as_bytes()),
            });
            out.push(b'"');
        }
    }
}

/// Sorts the members in `out` from `from` on; a comma follows each.
fn put_in_order(mut members: Vec<(Cow<'_, str>, Range<usize>)>, from: usize, out: &mut Vec<u8>, spare: &mut Vec<u8>) {
    if members.is_sorted_by(|(one, _), (next, _)| one < next) {
        return;
    }
    members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    spare.clear();
    spare.extend_from_slice(&out[from..]);
    out.truncate(from);
    for (_, place) in members {
        out.extend_from_slice(&spare[place.start - from..place.end - from]);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;
    use crate::wire::ScanLimits;

    #[test]
    fn values_that_say_the_same_are_spelt_the_same() {
        for (text, expected) in [
            (r#" { "b" : [ 1.10 , {} , [ ] ] , "a" : null } "#, r#"{"a":null,"b":[1.10,{},[]]}"#),
            (r#"{"\u0061":"\u0041\/"}"#, r#"{"a":"A/"}"#),
            ("12345678901234567890123", "12345678901234567890123"),
            ("[1,1.0,1e0]", "[1,1.0,1e0]"),
            (r#"{"a":{"z":1,"y":{"x":"\n"}}}"#, r#"{"a":{"y":{"x":"\n"},"z":1}}"#),
            (r#""""#, r#""""#),
            (
                r#"{"b":0,"\u0062a":1,"\u00e4":2,"a\"":3,"a":[{"d":4,"c":{}}],"":5}"#,
                r#"{"":5,"a":[{"c":{},"d":4}],"a\"":3,"b":0,"ba":1,"ä":2}"#,
            ),
            (r#"["\uD83D","\ud83D\u0041","\u00e4\udc00\n\ud83d\ude00"]"#, r#"["\ud83d","\ud83dA","ä\udc00\n😀"]"#),
            (r#"["\\ud83d","\ud83e"]"#, r#"["\\ud83d","\ud83e"]"#),
        ] {
            let value = Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap();
            assert_eq!(String::from_utf8(canonical(&value)).unwrap(), expected, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\/\n\u{e4}\u{1f600}]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ab\"\u{e4}]{0,3}", inner), 0..6)
                    .prop_map(|members| Value::from(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    /// The same value with its members reversed, spread over lines, and every character escaped.
    fn odd(value: &Value) -> String {
        let text = |text: &str| {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
            format!("\"{}\"", units.collect::<String>())
        };
        match value {
            Value::Object(members) => {
                let members = members.iter().rev().map(|(key, value)| format!("\n{} : {}", text(key), odd(value)));
                format!("{{{}\t}}", members.collect::<Vec<_>>().join(" ,"))
            }
            Value::Array(items) => format!("[ {} ]", items.iter().map(odd).collect::<Vec<_>>().join("\r\n,")),
            Value::String(string) => text(string),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        }
    }

    proptest! {
        /// `serde_json` sorts the members of a tree, and writes it without whitespace.
        #[test]
        fn a_value_is_spelt_as_its_tree_is(value in value()) {
            for text in [value.to_string(), odd(&value), serde_json::to_string_pretty(&value).unwrap()] {
                let payload = Payload::parse(&Bytes::from(text), ScanLimits::CLIENT).unwrap();
                prop_assert_eq!(String::from_utf8(canonical(&payload)).unwrap(), value.to_string());
            }
        }
    }
}
