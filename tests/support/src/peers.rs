//! Runs real peers: where they are installed, their processes, and what a run with them leaves behind.

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
/// minute; what never happens fails the test all the same. Nothing that the gateway promises is measured by it.
pub const WAIT_MAX: Duration = Duration::from_mins(3);

/// Waits for what a real peer does within [`WAIT_MAX`].
///
/// # Panics
/// If it does not.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("the peer does it in time")
}
