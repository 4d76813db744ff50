//! Waits for a state, on a machine of any speed.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The longest wait for any state; machines are busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks: a look may start a process that asks the database.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// Waits until something is so.
pub(super) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    assert!(is_in_time(is_so).await, "not so in time: {what}");
}

/// Waits until none of many is left, for as long as there are fewer of them from time to time: how long all of them take is a matter
/// of the machine.
pub(super) async fn until_none_is_left(what: &str, mut left: impl AsyncFnMut() -> usize) {
    let (mut fewest, mut since) = (usize::MAX, Instant::now());
    loop {
        match left().await {
            0 => return,
            now if now < fewest => (fewest, since) = (now, Instant::now()),
            now => assert!(since.elapsed() < PATIENCE, "not so in time: {what}, {now} are left"),
        }
        sleep(LOOK).await;
    }
}

pub(super) async fn is_in_time(mut is_so: impl AsyncFnMut() -> bool) -> bool {
    let waited = async {
        while !is_so().await {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, waited).await.is_ok()
}
