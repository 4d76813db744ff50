//! Counts how often in a row a server refused requests in one session: after two it is asked with a `ping`.
//!
//! A server that forgot a session may say so in any words. Known words ([`reply`](crate::upstream::reply)) renew a session
//! at once; all others lead here. A response to the request itself is no refusal of its session.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::task::GatewayFault;
use crate::upstream::own_ids;
use crate::wire::{RequestId, envelope, method};

/// Refusals in a row after which the server is asked.
const REFUSALS_MAX: u8 = 2;
/// The count of a session after a refused `ping`.
const OVER: u8 = u8::MAX;
/// How long the answer to a `ping` may take. Without one the next refusal asks again.
pub(super) const PING_MAX: Duration = Duration::from_secs(5);
/// Largest answer to a `ping`.
pub(super) const PING_BYTES_MAX: usize = 64 * 1024;

/// The refusals in a row in one session.
#[derive(Debug, Default)]
pub(super) struct SessionRefusals(AtomicU8);

/// The verdict on a session by the server's answer to a `ping` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingVerdict {
    Alive,
    Refused,
    /// The `ping` met no server.
    Unknown,
}

impl SessionRefusals {
    /// Counts a refusal; whether the server has to be asked now.
    pub(super) fn count(&self) -> bool {
        let add = |count: u8| (count <= REFUSALS_MAX).then(|| count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) == Ok(REFUSALS_MAX - 1)
    }

    /// The server took a request.
    pub(super) fn forget(&self) {
        // Read first: a session that works writes nothing.
        if self.is_any() && !self.is_over() {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the server refused the last request.
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether the server refused a `ping` as well.
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }

    /// Takes the answer to a `ping`; whether the session is of no use any more.
    pub(super) fn settle(&self, verdict: PingVerdict) -> bool {
        let count = match verdict {
            PingVerdict::Alive => 0,
            PingVerdict::Unknown => REFUSALS_MAX - 1,
            PingVerdict::Refused => OVER,
        };
        self.0.store(count, Ordering::Relaxed);
        verdict == PingVerdict::Refused
    }
}

/// A `ping` of the gateway's own.
pub(super) fn ping() -> (RequestId, Bytes) {
    let id = own_ids::mint();
    let message = envelope::request(&id, method::PING, None);
    (id, message)
}

/// Whether a refusing status may be about the session. The statuses left out are about a credential, the server's load, or a
/// proxy in front of the server.
pub(super) const fn may_be_about_session(fault: &GatewayFault) -> bool {
    match fault.http_status {
        Some(status) => status >= 400 && !matches!(status, 401 | 403 | 407 | 408 | 425 | 429 | 502 | 503 | 504),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_refusal_in_a_row_asks_once_and_an_answer_counts_anew() {
        let refusals = SessionRefusals::default();
        assert_eq!([refusals.count(), refusals.count(), refusals.count()], [false, true, false]);
        assert!(!refusals.settle(PingVerdict::Alive));
        assert_eq!([refusals.count(), refusals.count()], [false, true]);
        assert!(!refusals.settle(PingVerdict::Unknown));
        assert!(refusals.count(), "a ping that met no server is repeated with the next refusal");
        assert!(refusals.settle(PingVerdict::Refused));
        refusals.forget();
        assert!(refusals.is_over() && !refusals.count(), "a session that is over stays so");
    }
}
