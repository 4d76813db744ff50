//! Makes tasks that are written to a store without a call behind them.

use std::sync::Arc;
use std::time::Duration;

use taskgate::task::{
    CallOrigin, ClientKind, Phase, Principal, Task, TaskId, TaskKey, TaskTimes, TaskVisibility, Timestamp,
};

/// A task that runs, made at a time, by the number of its id.
pub fn working(owner: Principal, id: u128, now: Timestamp) -> Task {
    let key = TaskKey { owner, id: TaskId::from_bits(id) };
    let origin = CallOrigin { upstream: Arc::from("up"), tool: Arc::from("work"), client: ClientKind::Stateless };
    let times = TaskTimes {
        ttl: Duration::from_secs(3_600),
        keep_result_min: Duration::from_secs(60),
        poll_interval: Duration::from_secs(1),
    };
    Task { phase: Phase::Working, ..Task::queued(key, TaskVisibility::Handle, origin, now, times) }
}
