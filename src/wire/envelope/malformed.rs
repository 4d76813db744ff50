//! Recovers the request id from a text that is no valid message.

use bytes::Bytes;

use crate::wire::{Payload, RequestId, ScanLimits};

const TEXTS_MAX: usize = 1_000;
const MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MalformedMessage {
    /// The id, if the object has exactly one.
    pub id: Option<RequestId>,
    /// Whether the object has a method, so that its id is its sender's.
    pub is_call: bool,
    /// Whether the object has `result` or `error`, or `jsonrpc` and no method. A log line has neither.
    pub is_answer: bool,
}

/// Reads the members of each outermost object in one pass, as far as possible, in any text: cut off, or two messages.
pub fn glimpse(text: &[u8]) -> Vec<MalformedMessage> {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        // Only the punctuation of an array may separate objects.
        let is_between = |byte: &u8| matches!(byte, b'[' | b']' | b',') || byte.is_ascii_whitespace();
        at += text[at..].iter().take_while(|byte| is_between(byte)).count();
        if text.get(at) != Some(&b'{') || found.len() >= TEXTS_MAX {
            return found;
        }
        let mut look = MalformedMessageReader { text, at, ..MalformedMessageReader::default() };
        look.object();
        at = look.at;
        found.push(look.into_message());
    }
}

/// The id of the only request in an invalid text, if it can be read.
pub fn asked_in(text: &[u8]) -> Option<RequestId> {
    let mut all = glimpse(text).into_iter();
    let (only, None) = (all.next().filter(|seen| seen.is_call)?, all.next()) else { return None };
    only.id
}

#[derive(Debug, Default)]
struct MalformedMessageReader<'t> {
    text: &'t [u8],
    at: usize,
    id: Option<RequestId>,
    has_two_ids: bool,
    has_version: bool,
    has_method: bool,
    has_outcome: bool,
}

impl MalformedMessageReader<'_> {
    /// Advances past the object's closing brace, or to the end.
    fn object(&mut self) {
        let (mut depth, mut wants_key) = (0_usize, false);
        while let Some(&byte) = self.text.get(self.at) {
            let start = self.at;
            self.at = if byte == b'"' { self.string_end() } else { start + 1 };
            match byte {
                b'{' | b'[' => {
                    depth += 1;
                    wants_key = depth == 1;
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return;
                    }
                }
                b',' if depth == 1 => wants_key = true,
                b'"' if depth == 1 && wants_key => {
                    wants_key = false;
                    self.key(start + 1..self.at.saturating_sub(1));
                }
                _ => (),
            }
        }
    }

    fn key(&mut self, key: std::ops::Range<usize>) {
        match self.text.get(key).unwrap_or_default() {
            b"jsonrpc" => self.has_version = true,
            b"method" => self.has_method = true,
            b"result" | b"error" => self.has_outcome = true,
            b"id" => {
                let id = self.value();
                self.has_two_ids |= id.is_none() || self.id.as_ref().is_some_and(|other| id.as_ref() != Some(other));
                self.id = id;
            }
            _ => (),
        }
    }

    fn value(&self) -> Option<RequestId> {
        let rest = self.text.get(self.at..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let end = match rest.first()? {
            b'"' => Self { text: rest, ..Self::default() }.string_end(),
            _ => rest.iter().position(|byte| matches!(byte, b',' | b'}') || byte.is_ascii_whitespace())?,
        };
        let value = Payload::parse(&Bytes::copy_from_slice(rest.get(..end)?), ScanLimits::CLIENT).ok()?;
        RequestId::from_payload(&value).or_else(|| {
            // Some servers write whole numbers with a fraction.
            let (whole, rest) = value.as_str().split_once('.')?;
            rest.bytes().all(|digit| digit == b'0').then(|| whole.parse().ok().map(RequestId::number))?
        })
    }

    /// The end of the string that begins here, or the end of the text.
    fn string_end(&self) -> usize {
        let mut at = self.at + 1;
        while let Some(found) = self.text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
            at += found;
            if self.text[at] == b'"' {
                return at + 1;
            }
            at += 2;
        }
        self.text.len()
    }

    fn into_message(self) -> MalformedMessage {
        MalformedMessage {
            is_call: self.has_method && !self.has_outcome,
            is_answer: self.has_outcome || (self.has_version && !self.has_method),
            id: if self.has_two_ids { None } else { self.id },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &[u8]) -> Vec<String> {
        let one = |glimpse: &MalformedMessage| {
            let id = glimpse.id.as_ref().map_or("?", RequestId::as_json);
            let kind = if glimpse.is_answer {
                "answer"
            } else if glimpse.is_call {
                "call"
            } else {
                "nothing"
            };
            format!("{kind} {id}")
        };
        glimpse(text).iter().map(one).collect()
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_still_known_as_one() {
        for (text, expected) in [
            (br#"{"jsonrpc":"2.0","id":7,"result":{"a":"#.as_slice(), ["answer 7"].as_slice()),
            (br#"{"jsonrpc":"2.0","result":{"id":3,"a":[{"id":4}]},"id":"x",}"#, &[r#"answer "x""#]),
            (b"{\"result\":\"\xe4 \\\" \\\\\",\"id\":7.0}", &["answer 7"]),
            (b"\xef\xbb\xbf {\"id\" : 7 , \"error\": NaN}", &["answer 7"]),
            (br#"{"id":7,"result":{}}{"id":8,"result":{}}"#, &["answer 7", "answer 8"]),
            (br#"[{"id":7,"result":x},{"id":8,"method":"m"}]"#, &["answer 7", "call 8"]),
            (br#"{"id":7,"id":7,"result":{}}"#, &["answer 7"]),
            (br#"{"id":7,"id":8,"result":{}}"#, &["answer ?"]),
            (br#"{"jsonrpc":"2.0","res"#, &["answer ?"]),
            (br#"{"level":"info","id":7}"#, &["nothing 7"]),
            (br#"{"jsonrpc":"2.0","id":7,"method":"m","x":1}"#, &["call 7"]),
            (br#"[debug] sent {"jsonrpc":"2.0","id":7,"result":{}}"#, &[]),
            (br#"{"a":"{\"id\":7,\"result\":1}"}"#, &["nothing ?"]),
            (b"", &[]),
            (b"{", &["nothing ?"]),
            (b"{\"id\"", &["nothing ?"]),
            (b"{\"id\":\"\\", &["nothing ?"]),
        ] {
            assert_eq!(seen(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn many_texts_and_deep_ones_take_one_pass() {
        assert_eq!(glimpse(&b"{}".repeat(100_000)).len(), TEXTS_MAX);
        let deep = [b"{\"a\":".repeat(100_000), b"}".repeat(100_000)].concat();
        assert_eq!(glimpse(&deep).len(), 1);
    }
}
