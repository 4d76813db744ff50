//! Limits the bytes that one client has not read yet. A large message takes room before it is read from the server, and holds it
//! until the client has received it: if a client sends requests and does not read, the server waits, and the gateway's memory
//! does not grow.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Messages up to this size need no room: their number is bounded.
pub(super) const FREE_BYTES: usize = 16 * 1024;
/// Room for all large messages of one client. One more message, of any permitted size, may be in progress beside them.
const ROOM_BYTES: usize = 8 << 20;
/// The unit of room, in bytes.
const UNIT: usize = 1024;

#[derive(Debug)]
pub(super) struct OutgoingBudget {
    units: Arc<Semaphore>,
    /// Its holder may continue without room, so that one of several half-read messages can finish.
    turn: Arc<Semaphore>,
}

impl Default for OutgoingBudget {
    fn default() -> Self {
        Self { units: Arc::new(Semaphore::new(ROOM_BYTES / UNIT)), turn: Arc::new(Semaphore::new(1)) }
    }
}

/// The room of one message; released when dropped.
#[derive(Debug, Default)]
pub struct OutgoingPermit {
    units: Option<OwnedSemaphorePermit>,
    turn: Option<OwnedSemaphorePermit>,
}

impl OutgoingPermit {
    fn units(&self) -> usize {
        self.units.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Releases the room that a message of `bytes` does not need.
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
    /// Waits until there is room for a message that has `bytes` so far. Cancel safe.
    pub(super) async fn grow(&self, held: &mut OutgoingPermit, bytes: usize) {
        let wanted = units_of(bytes);
        let more = wanted.saturating_sub(held.units());
        if more == 0 || held.turn.is_some() {
            return;
        }
        let fits = wanted <= ROOM_BYTES / UNIT;
        // Neither semaphore is ever closed.
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

    /// Creates a message from its text, with the room that it needs. Cancel safe.
    pub(super) async fn message(&self, text: Bytes, mut held: OutgoingPermit) -> OutgoingMessage {
        self.grow(&mut held, text.len()).await;
        held.shrink(text.len());
        OutgoingMessage { text, held }
    }
}

const fn units_of(bytes: usize) -> usize {
    if bytes <= FREE_BYTES { 0 } else { bytes.div_ceil(UNIT) }
}

/// A whole JSON text for a client, with its room until the client has read it.
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

    /// The text, and its room: drop that once the text is written.
    #[must_use]
    pub fn into_parts(self) -> (Bytes, OutgoingPermit) {
        (self.text, self.held)
    }
}

/// A small message of the gateway itself.
impl From<Bytes> for OutgoingMessage {
    fn from(text: Bytes) -> Self {
        Self { text, held: OutgoingPermit::default() }
    }
}
