//! Counts in bytes what one client has not read yet. A large message takes room before it is read from the server, and
//! keeps it until the client has it: a client that asks and does not read makes the server wait, and the gateway's
//! memory does not grow.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a message may have without asking for room: bounded by how many there are.
pub(super) const FREE_BYTES: usize = 16 * 1024;
/// Room for all large messages of one client. One more, of any size that a message may have, may be on its way beside.
const ROOM_BYTES: usize = 8 << 20;
/// What room is counted in.
const UNIT: usize = 1024;

/// The room of one client.
#[derive(Debug)]
pub(super) struct OutgoingBudget {
    units: Arc<Semaphore>,
    /// Whoever has it may go on where there is no room: so that one of several that are half read gets to its end.
    turn: Arc<Semaphore>,
}

impl Default for OutgoingBudget {
    fn default() -> Self {
        Self { units: Arc::new(Semaphore::new(ROOM_BYTES / UNIT)), turn: Arc::new(Semaphore::new(1)) }
    }
}

/// The room of one message; given back when dropped.
#[derive(Debug, Default)]
pub struct OutgoingPermit {
    units: Option<OwnedSemaphorePermit>,
    turn: Option<OwnedSemaphorePermit>,
}

impl OutgoingPermit {
    fn units(&self) -> usize {
        self.units.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Gives back what is more than a message of `bytes` needs.
    fn shrink(&mut self, bytes: usize) {
        let wanted = units_of(bytes);
        let excess = self.units().saturating_sub(wanted);
        drop(self.units.as_mut().and_then(|units| units.split(excess)));
        if self.units() >= wanted {
            self.turn = None;
        }
    }
}

impl OutgoingBudget {
    /// Waits until there is room for a message that has `bytes` by now. Cancel safe.
    pub(super) async fn grow(&self, held: &mut OutgoingPermit, bytes: usize) {
        let wanted = units_of(bytes);
        let more = wanted.saturating_sub(held.units());
        if more == 0 || held.turn.is_some() {
            return;
        }
        let fits = wanted <= ROOM_BYTES / UNIT;
        // Neither is ever closed.
        tokio::select! {
            biased;
            Ok(units) = Arc::clone(&self.units).acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX)), if fits => {
                match &mut held.units {
                    Some(own) => own.merge(units),
                    none => *none = Some(units),
                }
            }
            Ok(turn) = Arc::clone(&self.turn).acquire_owned() => held.turn = Some(turn),
        }
    }

    /// Makes a message of its text, with as much room as it needs. Cancel safe.
    pub(super) async fn message(&self, text: Bytes, mut held: OutgoingPermit) -> OutgoingMessage {
        self.grow(&mut held, text.len()).await;
        held.shrink(text.len());
        OutgoingMessage { text, held }
    }
}

const fn units_of(bytes: usize) -> usize {
    if bytes <= FREE_BYTES { 0 } else { bytes.div_ceil(UNIT) }
}

/// One message to a client: a whole JSON text, and the room that it has until the client has read it.
#[derive(Debug)]
pub struct OutgoingMessage {
    text: Bytes,
    held: OutgoingPermit,
}

impl OutgoingMessage {
    #[must_use]
    pub const fn text(&self) -> &Bytes {
        &self.text
    }

    /// The text, and what is to be dropped once it is written.
    #[must_use]
    pub fn into_parts(self) -> (Bytes, OutgoingPermit) {
        (self.text, self.held)
    }
}

/// A small message of the gateway's own.
impl From<Bytes> for OutgoingMessage {
    fn from(text: Bytes) -> Self {
        Self { text, held: OutgoingPermit::default() }
    }
}
