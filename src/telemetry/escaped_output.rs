//! Escapes terminal controls and bidirectional marks in log lines.
//!
//! Covers the C1 controls: the formatters escape the C0 controls, ESC included.

use std::io::{self, Write};

/// Wraps the log's output. Each line is written at once.
pub(super) struct EscapedOutput<W>(pub(super) W);

impl<W: Write> Write for EscapedOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if has_obeyed(text) => self.0.write_all(escaped(text).as_bytes())?,
            Ok(_) | Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a text has a character that a terminal obeys. Only candidates by their first byte are examined, to be fast.
fn has_obeyed(text: &str) -> bool {
    memchr::memchr3_iter(0xc2, 0xd8, 0xe2, text.as_bytes()).any(|at| text[at..].starts_with(is_obeyed))
}

const fn is_obeyed(character: char) -> bool {
    matches!(
        character,
        '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// The JSON escapes, as a line may be JSON.
fn escaped(text: &str) -> String {
    use std::fmt::Write as _;

    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_obeyed(character) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_that_a_terminal_obeys_is_found() {
        for character in '\0'..=char::MAX {
            let text = format!("é…{character}x");
            assert_eq!(has_obeyed(&text), is_obeyed(character), "{character:?}");
        }
    }

    #[test]
    fn b175_what_a_terminal_obeys_is_escaped_and_json_reads_the_same() {
        let name = "a\u{9b}31mb\u{85}\u{202e}c\u{2066}d\u{200f}é\u{1f980}";
        let line = serde_json::json!({ "tool": name }).to_string();
        let mut written = Vec::new();
        EscapedOutput(&mut written).write_all(line.as_bytes()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, r#"{"tool":"a\u009b31mb\u0085\u202ec\u2066d\u200fé🦀"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap()["tool"], name);
    }
}
