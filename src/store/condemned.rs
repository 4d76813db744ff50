//! Builds the failed task that replaces one with a damaged record (F56).

use std::sync::Arc;
use std::time::Duration;

use crate::task::{
    CallOrigin, ClientKind, Executed, Failure, GatewayFault, Outcome, Phase, Reason, Task, TaskKey, TaskTimes,
    TaskVisibility, Timestamp,
};

/// Minimum, if the original was not settled.
const CONDEMNED_FOR: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Copy, Debug)]
pub(super) struct LostRow {
    pub(super) is_settled: bool,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

pub(super) fn condemned(key: TaskKey, outline: LostRow, now: Timestamp) -> Task {
    let nothing: Arc<str> = Arc::from("");
    let ttl = outline.expires_at.since(outline.created_at);
    let readable = if outline.is_settled { Duration::ZERO } else { now.since(outline.created_at) + CONDEMNED_FOR };
    let origin = CallOrigin { upstream: Arc::clone(&nothing), tool: nothing, maker: ClientKind::Stateless };
    let times =
        TaskTimes { ttl: ttl.max(readable), keep_result_min: Duration::ZERO, poll_interval: Duration::from_secs(1) };
    let failure = Failure::Gateway(GatewayFault::new(Reason::StoreCorrupt, Executed::Unknown));
    Task {
        updated_at: now.max(outline.created_at),
        phase: Phase::Settled(Outcome::Faulted(failure)),
        ..Task::queued(key, TaskVisibility::Handle, origin, outline.created_at, times)
    }
}
