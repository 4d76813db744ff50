//! Tells from bytes that pass by whether an event stream is between two events.

/// Watches an event stream go by. Holds nothing of it.
#[derive(Clone, Copy, Debug)]
pub struct EventBoundary {
    /// No byte of the line under way has come.
    at_line_start: bool,
    /// Nothing but line ends has come since the last event.
    between_events: bool,
    /// Whether a line feed that comes next belongs to the carriage return before it.
    after_return: bool,
    gave_ids: bool,
}

impl Default for EventBoundary {
    fn default() -> Self {
        Self { at_line_start: true, between_events: true, after_return: false, gave_ids: false }
    }
}

impl EventBoundary {
    /// Takes note of the next bytes.
    pub fn pass(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = memchr::memchr2(b'\r', b'\n', rest);
            if end != Some(0) {
                // A field is told by its first letter: the others that there are begin otherwise.
                self.gave_ids |= self.at_line_start && first == b'i';
                self.between_events = false;
                self.at_line_start = false;
            }
            let Some(end) = end else { return };
            self.between_events |= self.at_line_start;
            self.at_line_start = true;
            self.after_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
        }
    }

    /// Whether an event or a comment may be put in here.
    #[must_use]
    pub const fn is_between_events(self) -> bool {
        self.between_events && self.at_line_start
    }

    /// Whether an event had an id, so that the stream can be taken up again.
    #[must_use]
    pub const fn gave_ids(self) -> bool {
        self.gave_ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, between: bool, ids: bool) {
        for cut in 0..=text.len() {
            let mut boundary = EventBoundary::default();
            boundary.pass(&text.as_bytes()[..cut]);
            boundary.pass(&text.as_bytes()[cut..]);
            assert_eq!((boundary.is_between_events(), boundary.gave_ids()), (between, ids), "{text:?} cut at {cut}");
        }
    }

    #[test]
    fn an_event_ends_with_an_empty_line_however_lines_end_and_wherever_it_is_cut() {
        check("", true, false);
        check("data: 1\n\n", true, false);
        check("data: 1\r\n\r\n", true, false);
        check("data: 1\r\r", true, false);
        check("data: 1\n", false, false);
        check("data: 1\r\n", false, false);
        check("data: 1\n\ndata: 2", false, false);
        check(":\n\n", true, false);
        check("id: 7\ndata: 1\n\n", true, true);
        check("data: id\n\n", true, false);
    }
}
