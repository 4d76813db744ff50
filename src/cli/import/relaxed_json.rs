//! Reads JSON as hosts write it: with comments, trailing commas and a byte order mark. Replaces them by blanks, so that
//! the rest is JSON with every byte at its offset.

use bytes::Bytes;

use crate::wire::{Payload, ScanError, ScanLimits};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RelaxedJsonError {
    #[error("a comment begins with /* and does not end")]
    OpenComment { at: usize },
    #[error("{0}")]
    Json(ScanError),
}

impl RelaxedJsonError {
    /// The line of the error, from 1.
    pub(super) fn line(self, text: &str) -> usize {
        let at = match self {
            Self::OpenComment { at } => at,
            Self::Json(error) => error.at(),
        };
        1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

pub(super) fn parse(text: &str) -> Result<Payload, RelaxedJsonError> {
    let strict = strict(text).map_err(|at| RelaxedJsonError::OpenComment { at })?;
    Payload::parse(&Bytes::from(strict), ScanLimits::CLIENT).map_err(RelaxedJsonError::Json)
}

/// The bytes with comments and commas blanked; or the start of an unclosed comment.
fn strict(text: &str) -> Result<Vec<u8>, usize> {
    let mut bytes = text.as_bytes().to_vec();
    // The last byte that is neither blank nor comment, and the offset of the comma after a value.
    let (mut last, mut comma) = (b'{', None);
    let mut at = if text.starts_with('\u{feff}') { blank(&mut bytes, 0, '\u{feff}'.len_utf8()) } else { 0 };
    while let Some(byte) = bytes.get(at).copied() {
        let end = match (byte, bytes.get(at + 1)) {
            (b'"', _) => string_end(&bytes, at),
            (b'/', Some(b'/')) => {
                let end = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| at + line);
                at = blank(&mut bytes, at, end);
                continue;
            }
            (b'/', Some(b'*')) => {
                let inner = text.as_bytes().get(at + 2..).unwrap_or_default();
                let length = inner.windows(2).position(|pair| pair == b"*/").ok_or(at)?;
                at = blank(&mut bytes, at, at + 2 + length + 2);
                continue;
            }
            (b' ' | b'\t' | b'\r' | b'\n', _) => {
                at += 1;
                continue;
            }
            _ => at + 1,
        };
        if let (b'}' | b']', Some(comma)) = (byte, comma) {
            bytes[comma] = b' ';
        }
        comma = (byte == b',' && !b"{[,:".contains(&last)).then_some(at);
        last = byte;
        at = end;
    }
    Ok(bytes)
}

/// Blanks a part except its line ends, and returns its end.
fn blank(bytes: &mut [u8], from: usize, to: usize) -> usize {
    for byte in bytes[from..to].iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
    to
}

/// The offset after the string that begins at `from`; the end of the text if it is unclosed.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// JSON is unchanged, with any strings in it.
        #[test]
        fn json_stays_what_it_is(texts in prop::collection::vec("[a-z,/*\\\\\"\\[\\]{}:\u{feff}ü]{0,12}", 0..6)) {
            let json = serde_json::json!({ "all": texts }).to_string();
            prop_assert_eq!(strict(&json), Ok(json.clone().into_bytes()));
        }

        /// No text panics, and no byte moves.
        #[test]
        fn no_byte_moves(text in "[a,/*\\\\\"\\[\\]{}:\n ü]{0,40}") {
            if let Ok(bytes) = strict(&text) {
                prop_assert_eq!(bytes.len(), text.len());
            }
        }
    }

    #[test]
    fn comments_and_last_commas_are_no_mistakes_and_all_else_is() {
        for (text, read) in [
            ("{}", Ok("{}")),
            ("\u{feff}{\"a\": 1}\n", Ok("{\"a\": 1}")),
            ("// ä\n{\"a\": [1, 2, ], }", Ok("{\"a\": [1, 2  ]  }")),
            ("{\"a\": 1, // why\n}", Ok("{\"a\": 1        \n}")),
            ("{\"a\": /* x\n */ 1}", Ok("{\"a\":     \n    1}")),
            ("{\"//\": \"/* , } */\", \"\\\",}\": 2}", Ok("{\"//\": \"/* , } */\", \"\\\",}\": 2}")),
            ("{\"a\": 1}\n// end", Ok("{\"a\": 1}")),
            ("{\n\"a\": }", Err(2)),
            ("{,}", Err(1)),
            ("[1,,]", Err(1)),
            ("{\"a\": 1\n,\n,}", Err(3)),
            ("{\n/* x", Err(2)),
            ("{\n\n\"a", Err(3)),
            ("{\"a\": 1,\n\"a\": 2}", Err(2)),
            ("{'a': 1}", Err(1)),
            ("", Err(1)),
        ] {
            let found = parse(text);
            let found = found.as_ref().map(Payload::as_str).map_err(|error| error.line(text));
            assert_eq!(found, read, "{text:?}");
        }
    }
}
