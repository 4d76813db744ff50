//! Makes foreign text safe for a terminal: texts of servers, gateways and files.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::wire::one_line::is_invisible;

/// Replaces characters by blanks that could move the cursor, change colours, break the line, reorder the text or are invisible.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_invisible) {
        text.chars().map(|c| if is_invisible(c) { ' ' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

pub(super) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// JSON with such characters escaped, so that its value is unchanged.
pub(super) fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_invisible(c) && !matches!(c, '\n' | '\r' | '\t') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{9b}d"), "a [2Jb  c d");
        assert_eq!(printable("pay\u{202e}moc.live\u{2066}\u{200b}\u{feff}x"), "pay moc.live   x");
        assert_eq!(printable("größe 数 👍"), "größe 数 👍");
        assert_eq!(printable_json("[\"a\u{9b}\u{e0041}\u{7f}ü\"]\n"), "[\"a\\u009b\\udb40\\udc41\\u007fü\"]\n");
        assert_eq!(printable_lines("a\u{7}\nb\u{9d}\r\n"), "a \nb  \n");
    }
}
