//! Makes tasks that are written to a store without a call behind them.

use std::sync::Arc;
use std::time::Duration;

use taskgate::task::{
    Attempt, CallOrigin, ClientKind, InputKey, Phase, Principal, Recovery, Task, TaskId, TaskKey, TaskVisibility,
    Timestamp, TreePlace,
};

/// A task that runs, made at a time, by the number of its id.
pub fn working(owner: Principal, id: u128, now: Timestamp) -> Task {
    Task {
        key: TaskKey { owner, id: TaskId::from_bits(id) },
        shown: TaskVisibility::Handle,
        origin: CallOrigin { upstream: Arc::from("up"), tool: Arc::from("work"), maker: ClientKind::Stateless },
        created_at: now,
        updated_at: now,
        ttl: Duration::from_secs(3_600),
        keep_result_min: Duration::from_secs(60),
        poll_interval: Duration::from_secs(1),
        attempt: Attempt::FIRST,
        phase: Phase::Working,
        next_key: InputKey::default(),
        status_message: None,
        recovery: Recovery::default(),
        idempotency: None,
        chosen: None,
        tree: TreePlace::default(),
    }
}
