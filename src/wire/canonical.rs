//! One spelling for values that say the same, to compare them by.

use std::borrow::Cow;

use super::payload::write_string;
use super::{Object, Payload};

/// The value with its keys in order and no whitespace. Strings are written alike however they were
/// escaped; numbers stay the text that they are, so `1.0` and `1` differ and no digit is lost.
///
/// Takes time in proportion to the length times the nesting, which the scan has bounded.
#[must_use]
pub fn canonical(value: &Payload) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    write(value, &mut out);
    out
}

fn write(value: &Payload, out: &mut Vec<u8>) {
    if let Some(object) = Object::of(value) {
        let mut entries: Vec<(Cow<'_, str>, Payload)> = object.entries().collect();
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let before = out.len();
        for (key, member) in &entries {
            out.push(if out.len() == before { b'{' } else { b',' });
            write_string(out, key);
            out.push(b':');
            write(member, out);
        }
        out.extend_from_slice(if entries.is_empty() { b"{}" } else { b"}" });
    } else if value.bytes().starts_with(b"[") {
        out.push(b'[');
        for (index, item) in value.items().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write(&item, out);
        }
        out.push(b']');
    } else {
        match value.read::<Cow<'_, str>>() {
            Ok(text) => write_string(out, &text),
            Err(_) => out.extend_from_slice(value.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

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
        ] {
            let value = Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap();
            assert_eq!(String::from_utf8(canonical(&value)).unwrap(), expected, "{text}");
        }
    }
}
