//! Makes others' text fit for a terminal: whatever a server, a gateway or a file says goes through here on its way to
//! one.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Text that cannot move the cursor, recolour the screen, break the line, or turn its order round so that an address reads
/// like another one: such characters are blanks in it, and so are those that nobody sees.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_hidden) {
        text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

/// The same for text of several lines.
pub(super) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// JSON with such characters written as escapes, so that it says the same.
pub(super) fn printable_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\r' | '\t') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// Control characters of both sets, those that change the direction of text, and those without a width.
const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
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
