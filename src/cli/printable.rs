//! Makes foreign text safe for a terminal, and formats lists for people: aligned columns, and ages.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use crate::task::Timestamp;
use crate::wire::one_line::is_invisible;

/// Replaces characters by blanks that could move the cursor, change colours, break the line, reorder the text or are invisible.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_invisible) {
        text.chars().map(|c| if is_invisible(c) { ' ' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

const SHOWN_MAX: usize = 200;

pub(super) fn shortened(text: &str) -> String {
    let text = printable(text);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.into_owned(),
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

/// A duration in its two largest units.
pub(super) fn in_short(span: Duration) -> String {
    let all = span.as_secs();
    let (days, hours, minutes, seconds) = (all / 86_400, all / 3_600 % 24, all / 60 % 60, all % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

/// The age of an RFC 3339 time in UTC; `None` for any other text.
pub(super) fn since(written: &str, now: Timestamp) -> Option<Duration> {
    let at = humantime::parse_rfc3339(&written.replace("+00:00", "Z")).ok()?;
    let at = u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?;
    Some(now.since(Timestamp::from_millis(at)))
}

/// The age as text; empty if unknown.
pub(super) fn ago(written: &str, now: Timestamp) -> String {
    since(written, now).map(|span| format!("{} ago", in_short(span))).unwrap_or_default()
}

/// The aligned lines. All rows have as many cells as the first.
pub(super) fn aligned_lines(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{9b}d"), "a [2Jb  c d");
        assert_eq!(printable("pay\u{202e}moc.live\u{2066}\u{200b}\u{feff}x"), "pay moc.live   x");
        assert_eq!(printable("größe 数 👍"), "größe 数 👍");
        assert_eq!(printable_json("[\"a\u{9b}\u{e0041}\u{7f}ü\"]\n"), "[\"a\\u009b\\udb40\\udc41\\u007fü\"]\n");
        assert_eq!(printable_lines("a\u{7}\nb\u{9d}\r\n"), "a \nb  \n");
    }

    #[test]
    fn an_age_has_its_two_largest_units() {
        for (seconds, words) in
            [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3_600, "1h 0m"), (90_061, "1d 1h"), (864_000, "10d 0h")]
        {
            assert_eq!(in_short(Duration::from_secs(seconds)), words);
        }
        let now = Timestamp::from_millis(61_000);
        for (written, words) in [
            ("1970-01-01T00:00:00Z", "1m 1s ago"),
            ("1970-01-01T00:00:59.999+00:00", "1s ago"),
            ("1970-01-01T00:10:00Z", "0s ago"),
            ("yesterday", ""),
        ] {
            assert_eq!(ago(written, now), words, "{written}");
        }
    }
}
