//! Holds the stored position of an exchange, and when to compare it.

use std::time::Duration;

use tokio::time::Instant;

use crate::wire::Payload;

/// How soon after an event of the call its position is stored.
const SOON: Duration = Duration::from_secs(1);
/// The longest interval between checks of a silent call.
const RARELY: Duration = Duration::from_secs(32);

#[derive(Debug)]
pub(super) struct Checkpoint {
    written: Option<Payload>,
    due: Option<Instant>,
    pause: Duration,
}

impl Checkpoint {
    /// Not due until a row exists that outlives this process.
    pub(super) const fn new() -> Self {
        Self { written: None, due: None, pause: SOON }
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn check_soon(&mut self) {
        self.pause = SOON;
        let soon = Instant::now() + SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    pub(super) fn record_position(&mut self, position: Option<Payload>) {
        self.written = position;
    }

    pub(super) fn rest(&mut self) {
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RARELY);
    }

    /// A position of the exchange, if it differs from the row's.
    pub(super) fn new_position(&self, position: Payload) -> Option<Payload> {
        (self.written.as_ref() != Some(&position)).then(|| position.detached())
    }

    pub(super) const fn has_position(&self) -> bool {
        self.written.is_some()
    }
}
