//! Runs real peers: their installation, their processes, and the reports of a run.

use std::time::Duration;

pub mod bridge;
pub mod cells;
pub mod coverage;
pub mod gateway;
pub mod install;
pub mod login;
pub mod prefork;
pub mod process;
pub mod report;
pub mod upstream;

/// The longest that a test waits for a real peer. Interpreters are slow on a busy machine, which can stand still for a
/// minute; a fault still fails the test. No promise of the gateway is measured by it.
pub const WAIT_MAX: Duration = Duration::from_mins(3);

/// Waits for a real peer within [`WAIT_MAX`].
///
/// # Panics
/// If it does not.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("the peer does it in time")
}
