//! Suites that call public methods of the engine and of its surroundings.

mod duplex;
mod oracle;
mod random;
mod replicas;
mod scenarios;
mod two_lives;

use std::sync::LazyLock;

use tracing::Dispatch;

/// Keeps a subscriber for every callsite of `tracing` as long as the process lives, for tests that read the log. A
/// callsite asks for subscribers once, when it is first reached, and again at each new one: if another thread reaches
/// it while a test subscribes, it may miss that subscriber and stay silent.
fn listen_to_logs() {
    static LISTENER: LazyLock<Dispatch> =
        LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish()));
    LazyLock::force(&LISTENER);
}
