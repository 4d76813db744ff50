//! Suites that call public methods of the engine and of what stands around it.

mod duplex;
mod oracle;
mod random;
mod replicas;
mod scenarios;
mod two_lives;

use std::sync::LazyLock;

use tracing::Dispatch;

/// Has every place that logs be listened to as long as the process lives, for tests that read what is logged. Such a place asks once,
/// when it is come by first, whether anybody listens, and again with each new subscriber: one that another thread comes by in the moment
/// in which a test begins to listen may miss that, and stay silent for it.
fn listen_to_logs() {
    static LISTENER: LazyLock<Dispatch> =
        LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish()));
    LazyLock::force(&LISTENER);
}
