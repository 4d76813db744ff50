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

/// A `ping` that is owed. Dropped without a verdict, the next refusal asks again.
#[derive(Debug)]
#[must_use]
pub(super) struct OwedPing<'a>(&'a SessionRefusals);

impl SessionRefusals {
    /// Counts a refusal; the `ping` with which the server has to be asked now, if it has.
    pub(super) fn count(&self) -> Option<OwedPing<'_>> {
        let add = |count: u8| (count <= REFUSALS_MAX).then(|| count + 1);
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        (counted == Ok(REFUSALS_MAX - 1)).then_some(OwedPing(self))
    }

    /// The server took a request.
    pub(super) fn forget(&self) {
        // Read first: a session that works writes nothing.
        if self.is_any() {
            self.set(0);
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

    /// A session that is over stays so.
    fn set(&self, count: u8) {
        let next = |before: u8| (before != OVER).then_some(count);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

impl OwedPing<'_> {
    /// Takes the answer to the `ping`; whether the session is of no use any more.
    pub(super) fn settle(self, verdict: PingVerdict) -> bool {
        match verdict {
            PingVerdict::Alive => self.0.set(0),
            PingVerdict::Unknown => (),
            PingVerdict::Refused => self.0.set(OVER),
        }
        verdict == PingVerdict::Refused
    }
}

impl Drop for OwedPing<'_> {
    fn drop(&mut self) {
        // Unless the answer said more.
        let owed = |count: u8| (count >= REFUSALS_MAX && count != OVER).then_some(REFUSALS_MAX - 1);
        let _ = self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, owed);
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
        assert!(refusals.count().is_none());
        let owed = refusals.count().unwrap();
        assert!(refusals.count().is_none(), "it is asked already");
        assert!(!owed.settle(PingVerdict::Alive));
        assert!(!refusals.is_any() && refusals.count().is_none());
        assert!(!refusals.count().unwrap().settle(PingVerdict::Unknown));
        let owed = refusals.count().expect("a ping that met no server is repeated with the next refusal");
        refusals.forget();
        assert!(refusals.count().is_none());
        assert!(owed.settle(PingVerdict::Refused));
        refusals.forget();
        assert!(refusals.is_over() && refusals.count().is_none(), "a session that is over stays so");
    }

    #[test]
    fn a_ping_that_is_dropped_midway_is_made_with_the_next_refusal() {
        let refusals = SessionRefusals::default();
        assert!(refusals.count().is_none());
        drop(refusals.count().unwrap());
        assert!(refusals.count().is_some());
    }
}
