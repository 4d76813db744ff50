//! Finds HTTP/2 frame boundaries in a byte stream, and counts control frames. hyper answers every PING and SETTINGS and
//! cannot count them (B41 to B43): this module reads each frame's header.

use std::time::Duration;

use tokio::time::Instant;

const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// WINDOW_UPDATE frames that one response frame may cause, for its stream and for the connection.
const UPDATES_PER_FRAME: u32 = 64;
/// The same for a request: some clients widen the window of each stream as they open it.
const UPDATES_PER_REQUEST: u32 = 2;

#[derive(Clone, Debug, Default)]
pub(super) struct FrameCursor {
    head: [u8; HEAD],
    held: usize,
    skip: usize,
}

impl FrameCursor {
    /// A cursor that first skips `preface` bytes.
    pub(super) const fn after(preface: usize) -> Self {
        Self { head: [0; HEAD], held: 0, skip: preface }
    }

    /// Advances over `bytes`, and reports the type of each frame with a header that ends in them.
    pub(super) fn advance(&mut self, mut bytes: &[u8], mut seen: impl FnMut(u8)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let taken = (HEAD - self.held).min(bytes.len());
            self.head[self.held..self.held + taken].copy_from_slice(&bytes[..taken]);
            self.held += taken;
            bytes = &bytes[taken..];
            if self.held == HEAD {
                let [high, middle, low, kind, ..] = self.head;
                self.held = 0;
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                seen(kind);
            }
        }
    }

    pub(super) const fn at_boundary(&self) -> bool {
        self.held == 0 && self.skip == 0
    }
}

/// Counts control frames in windows of fixed length.
#[derive(Clone, Debug)]
pub(super) struct ControlBudget {
    max: u32,
    window: Duration,
    window_ends: Instant,
    spent: u32,
    /// WINDOW_UPDATE frames that responses have caused and that have not arrived yet.
    updates_due: u32,
}

impl ControlBudget {
    pub(super) fn new(max: u32, window: Duration) -> Self {
        Self { max, window, window_ends: Instant::now() + window, spent: 0, updates_due: 0 }
    }

    pub(super) const fn sent(&mut self, kind: u8) {
        if matches!(kind, DATA | HEADERS) {
            self.updates_due = self.updates_due.saturating_add(UPDATES_PER_FRAME);
        }
    }

    pub(super) fn spend(&mut self, kind: u8) {
        if kind == HEADERS {
            self.updates_due = self.updates_due.saturating_add(UPDATES_PER_REQUEST);
        }
        let is_due = kind == WINDOW_UPDATE && self.updates_due > 0;
        if is_due {
            self.updates_due -= 1;
        } else if matches!(kind, PRIORITY | SETTINGS | PING | WINDOW_UPDATE) {
            let now = Instant::now();
            if now >= self.window_ends {
                self.window_ends = now + self.window;
                self.spent = 0;
            }
            self.spent += 1;
        }
    }

    pub(super) const fn is_overdrawn(&self) -> bool {
        self.spent > self.max
    }
}

/// A GOAWAY frame with `ENHANCE_YOUR_CALM` that also covers accepted streams (RFC 9113, 6.8).
pub(super) const CALM_DOWN: [u8; HEAD + 8] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11];

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_wherever_the_bytes_are_cut() {
        let mut stream = b"preface".to_vec();
        stream.extend([0, 0, 3, 0, 0, 0, 0, 0, 1, 7, 7, 7]);
        stream.extend([0, 0, 8, PING, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        stream.extend([0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]);
        for cut in 1..stream.len() {
            let mut cursor = FrameCursor::after(7);
            let mut kinds = Vec::new();
            for piece in stream.chunks(cut) {
                cursor.advance(piece, |kind| kinds.push(kind));
            }
            assert_eq!(kinds, [0, PING, SETTINGS], "cut every {cut}");
            assert!(cursor.at_boundary());
        }
        let mut cursor = FrameCursor::default();
        cursor.advance(&stream[7..15], |_| ());
        assert!(!cursor.at_boundary());
    }

    #[tokio::test(start_paused = true)]
    async fn window_updates_are_counted_beyond_those_that_answers_cause() {
        let mut budget = ControlBudget::new(2, Duration::from_secs(10));
        for kind in [HEADERS, DATA, DATA, PING, SETTINGS] {
            budget.sent(kind);
        }
        for _ in 0..3 * UPDATES_PER_FRAME + 2 {
            budget.spend(WINDOW_UPDATE);
        }
        assert!(!budget.is_overdrawn());
        budget.spend(WINDOW_UPDATE);
        assert!(budget.is_overdrawn());
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_is_per_window() {
        let mut budget = ControlBudget::new(2, Duration::from_secs(10));
        for kind in [PING, 0, 1, SETTINGS] {
            budget.spend(kind);
        }
        assert!(!budget.is_overdrawn());
        tokio::time::advance(Duration::from_secs(10)).await;
        budget.spend(PING);
        budget.spend(PRIORITY);
        assert!(!budget.is_overdrawn());
        budget.spend(PING);
        assert!(budget.is_overdrawn());
    }
}
