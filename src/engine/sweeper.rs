//! Ends what is overdue and frees what is gone, a little at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Engine, TaskError};
use crate::metric;
use crate::task::Event;

/// Rows looked at before other work gets its turn.
const BATCH: usize = 1_000;

const INTERVAL: Duration = Duration::from_secs(1);

/// Sweeps until told to stop.
pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = sweep(&engine).await {
            tracing::warn!(%error, "the sweep did not finish");
        }
    }
}

/// One sweep: unsettled tasks past their time settle as a fault, settled ones are freed.
///
/// # Errors
/// If the store fails; what was done stays done.
pub async fn sweep(engine: &Engine) -> Result<(), TaskError> {
    loop {
        let now = engine.clock.now();
        let overdue = engine.store.overdue(now, BATCH).await?;
        for key in &overdue {
            match engine.apply(key, Event::TtlElapsed).await {
                // Settled and swept by somebody else in between.
                Ok(_) | Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        crate::failpoint::hit("sweeping");
        let freed = engine.store.sweep(now, BATCH).await?;
        let usage = engine.store.usage();
        metrics::gauge!(metric::STORE_ROWS).set(usage.tasks as f64);
        metrics::gauge!(metric::STORE_BYTES).set(usage.bytes as f64);
        if overdue.len() < BATCH && freed < BATCH {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}
