//! Escapes terminal controls and bidirectional marks in log lines.
//!
//! Covers the C1 controls. The formatters escape ESC and the other C0 controls, since they write escape sequences for colours
//! themselves.

use std::io::{self, Write};

/// Wraps the log's output. Each line is written at once.
pub(super) struct EscapedOutput<W>(pub(super) W);

impl<W: Write> Write for EscapedOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Most lines are ASCII, and checking each character would cost as much as writing them.
        if line.is_ascii() {
            self.0.write_all(line)?;
            return Ok(line.len());
        }
        match std::str::from_utf8(line) {
            Ok(text) if text.contains(is_obeyed) => self.0.write_all(escaped(text).as_bytes())?,
            Ok(_) | Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
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
