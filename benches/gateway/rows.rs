//! Rows that a bench puts into a store on disk itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use taskgate::store::{DiskSettings, DiskStore, TaskStore};
use taskgate::task::{
    CallOrigin, ClientKind, Clock as _, Outcome, Phase, Principal, Recovery, StoredCall, SystemClock, Task, TaskId,
    TaskKey, TaskTimes, TaskVisibility, Timestamp,
};
use taskgate::wire::Payload;

/// Writes that are under way at the same time while a store is filled.
const AT_ONCE: usize = 500;
/// What a call brings along, and what a result holds.
const TEXT_BYTES: usize = 400;

/// The lines of a configuration that put the store into a folder.
pub(crate) fn store_in(folder: &Path) -> String {
    format!("store.path = \"{}\"\nstore.ephemeral = true", folder.display())
}

pub(crate) fn settings(folder: &Path) -> DiskSettings {
    let mut settings = DiskSettings::new(folder.to_owned(), usize::MAX);
    settings.is_ephemeral = true;
    settings
}

/// Makes a store with `count` rows and leaves it closed.
pub(crate) async fn fill(folder: &Path, count: usize, row: fn(usize) -> Task) -> anyhow::Result<()> {
    let store = DiskStore::open(settings(folder)).await?;
    for first in (0..count).step_by(AT_ONCE) {
        let together: Vec<Task> = (first..count.min(first + AT_ONCE)).map(row).collect();
        try_join_all(together.iter().map(|task| store.insert(task))).await?;
    }
    store.close().await;
    Ok(())
}

/// A task whose call was sent and has no answer.
pub(crate) fn live(number: usize) -> Task {
    let now = SystemClock.now();
    let params = serde_json::json!({"name": "small", "arguments": {"text": "x".repeat(TEXT_BYTES)}});
    let key = TaskKey { owner: Principal::local(), id: id(number) };
    let origin = CallOrigin { upstream: Arc::from("tasks"), tool: Arc::from("small"), client: ClientKind::Stateless };
    let times = TaskTimes {
        ttl: Duration::from_secs(86_400),
        keep_result_min: Duration::from_secs(900),
        poll_interval: Duration::from_secs(1),
    };
    let call = StoredCall {
        params: Payload::of(&params),
        capabilities: Payload::empty_object(),
        progress: false,
        log_level: None,
        is_repeatable: false,
        is_native: false,
    };
    Task {
        phase: Phase::Working,
        recovery: Recovery { call: Some(call), dispatched_at: Some(now), ..Recovery::default() },
        ..Task::queued(key, TaskVisibility::Handle, origin, now, times)
    }
}

/// A task that has its result.
pub(crate) fn settled(number: usize) -> Task {
    let result = serde_json::json!({"content": [{"type": "text", "text": "x".repeat(TEXT_BYTES)}]});
    let outcome = Outcome::Returned { result: Payload::of(&result), is_error: false };
    Task { phase: Phase::Settled(outcome), recovery: Recovery::default(), ..live(number) }
}

/// A task that has ended: one of each eight was cancelled. They were made within the last two hours, and ended after
/// milliseconds, or minutes.
pub(crate) fn listed(number: usize) -> Task {
    let number_of = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let millis = |number| Duration::from_millis(number_of(number));
    let began = SystemClock.now().as_millis().saturating_sub(number_of(7_200_000));
    let created_at = Timestamp::from_millis(began).after(millis(number * 36));
    let updated_at = created_at.after(millis((number * 7_919 % 1_000) << (3 * (number / 8 % 4))));
    let task = settled(number);
    let phase = if number.is_multiple_of(8) { Phase::Settled(Outcome::Cancelled) } else { task.phase };
    Task { created_at, updated_at, phase, ..task }
}

/// Spread over all ids, as random ones are.
pub(crate) fn id(number: usize) -> TaskId {
    TaskId::from_bits((number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}
