//! Sanitises foreign text to one line.

use std::sync::Arc;

use super::{Object, Payload};

/// Longest status text that is kept, in bytes (U26).
pub const STATUS_BYTES_MAX: usize = 1024;
/// Longest name that is quoted in a sentence, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// A status line of an upstream's text: without control or bidi-override characters, cut at [`STATUS_BYTES_MAX`].
pub fn status_text(words: &str) -> Option<Arc<str>> {
    let mut text = String::with_capacity(words.len().min(STATUS_BYTES_MAX));
    for c in words.chars().filter(|c| !is_hidden(*c)) {
        if text.len() + c.len_utf8() > STATUS_BYTES_MAX {
            break;
        }
        text.push(c);
    }
    (!text.is_empty()).then(|| Arc::from(text))
}

/// As [`status_text`], for a name to be quoted: at most [`NAME_BYTES_MAX`] bytes, and a mark where it was cut.
pub fn name(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(NAME_BYTES_MAX));
    for c in text.chars().filter(|c| !is_hidden(*c)) {
        if shown.len() + c.len_utf8() > NAME_BYTES_MAX {
            shown.push('…');
            break;
        }
        shown.push(c);
    }
    shown
}

/// A terminal line of a peer's text: blanks for control and bidi-override characters, cut with a mark at `bytes_max`.
pub fn shown(text: &str, bytes_max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(bytes_max) + '…'.len_utf8());
    for c in text.chars() {
        if shown.len() + c.len_utf8() > bytes_max {
            shown.push('…');
            break;
        }
        shown.push(if is_hidden(c) { ' ' } else { c });
    }
    shown
}

/// The beginning of a text: at most `bytes_max` bytes, cut between characters.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rfind(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// The first text block of a tool's result. Takes time linear to the result's size.
pub fn first_text(result: &Payload) -> Option<String> {
    let content = Object::of(result)?.get("content")?;
    content.items().find_map(|block| {
        let block = Object::of(&block)?;
        block.get_str("type").filter(|kind| kind == "text")?;
        block.get_lossy("text")
    })
}

/// Characters that change how a terminal or a page displays the others.
fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Controls, marks of direction, and characters without width.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_text_loses_escapes_and_overrides_and_is_cut_between_characters() {
        assert_eq!(status_text("a\u{1b}[31mb\u{202e}c\n").as_deref(), Some("a[31mbc"));
        assert_eq!(status_text("\u{7}\n"), None);
        let long = "é".repeat(STATUS_BYTES_MAX);
        let cut = status_text(&long).unwrap();
        assert_eq!(cut.len(), STATUS_BYTES_MAX);
        assert!(cut.chars().all(|c| c == 'é'));
    }

    #[test]
    fn a_text_on_a_terminal_keeps_its_blanks_and_is_cut() {
        assert_eq!(shown("  a\u{1b}[2J\tb\u{202e}\nc", 64), "  a [2J b  c");
        assert_eq!(shown("éé", 3), "é…");
    }

    #[test]
    fn a_name_in_a_sentence_is_short_and_plain() {
        assert_eq!(name("ad\u{1b}[31mmin\u{202e}\n"), "ad[31mmin");
        assert_eq!(name(&"é".repeat(64)), "é".repeat(64));
        assert_eq!(name(&"é".repeat(65)), format!("{}…", "é".repeat(64)));
    }
}
