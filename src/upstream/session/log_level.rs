//! Chooses the log level of one session at the upstream.
//!
//! It is the lowest level that a client asked for; each client's messages are filtered by its own level (MOD-23).

use tokio::sync::Mutex;

use super::UpstreamSession;
use crate::upstream::own_ids;
use crate::wire::{Object, Payload, envelope, method};

/// From the least severe on; an index into this list is a level's rank.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The rank that the upstream was sent; `None` while it decides by itself.
#[derive(Debug, Default)]
pub(super) struct SessionLogLevel(Mutex<Option<usize>>);

impl UpstreamSession {
    /// Asks the upstream for messages of this level too, unless it has. A refusal costs messages, not the call.
    pub(crate) async fn lower_log_level(&self, level: &str) {
        let Some(rank) = LEVELS.iter().position(|known| *known == level) else { return };
        if !self.logs() {
            return;
        }
        let mut lowest = self.level.0.lock().await;
        if lowest.is_some_and(|lowest| lowest <= rank) {
            return;
        }
        let params = Payload::of(&serde_json::json!({ "level": level }));
        if self.tell(envelope::request(&own_ids::mint(), method::SET_LEVEL, Some(&params))).await.is_ok() {
            *lowest = Some(rank);
        } else {
            self.link.dropped("log_level_failed");
        }
    }

    fn logs(&self) -> bool {
        let capabilities = self.facts().and_then(|facts| Object::of(&facts.capabilities));
        capabilities.is_some_and(|capabilities| capabilities.contains("logging"))
    }
}
