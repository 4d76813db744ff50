//! Counts consecutive refusals in one session: after two, a `ping` tests the session. A server that forgot a session
//! may refuse in any form. Known texts ([`reply`](crate::upstream::reply)) renew a session at once; others are counted
//! here. A response to the request itself is no refusal.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::task::GatewayFault;
use crate::upstream::own_ids;
use crate::wire::{RequestId, envelope, method};

const REFUSALS_MAX: u8 = 2;
/// The count of a session after a refused `ping`, or if the server has no sessions any more.
pub(super) const OVER: u8 = u8::MAX;
/// How long the response to a `ping` may take. Without one the next refusal sends another.
pub(super) const PING_MAX: Duration = Duration::from_secs(5);
pub(super) const PING_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct SessionRefusals(AtomicU8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingVerdict {
    Alive,
    Refused,
    /// The `ping` did not reach the server.
    Unknown,
}

/// A `ping` that must be sent. If dropped without a verdict, the next refusal sends one.
#[derive(Debug)]
#[must_use]
pub(super) struct OwedPing<'a>(&'a SessionRefusals);

impl SessionRefusals {
    /// Counts a refusal; returns the `ping` to send now, if one is due.
    pub(super) fn count(&self) -> Option<OwedPing<'_>> {
        let add = |count: u8| (count <= REFUSALS_MAX).then(|| count + 1);
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        (counted == Ok(REFUSALS_MAX - 1)).then_some(OwedPing(self))
    }

    pub(super) fn reset(&self) {
        // Read first: a working session writes nothing.
        if self.is_any() {
            self.set(0);
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }

    /// A session that is over stays over.
    pub(super) fn set(&self, count: u8) {
        let next = |before: u8| (before != OVER).then_some(count);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

impl OwedPing<'_> {
    /// Records the verdict of the `ping`; returns whether the session is over.
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
        // Unless a response has changed the count.
        let owed = |count: u8| (count >= REFUSALS_MAX && count != OVER).then_some(REFUSALS_MAX - 1);
        let _ = self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, owed);
    }
}

pub(super) fn ping() -> (RequestId, Bytes) {
    let id = own_ids::mint();
    let message = envelope::request(&id, method::PING, None);
    (id, message)
}

/// Whether a refusing status may be about the session, not about a credential, the server's load, or a proxy before it.
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
        refusals.reset();
        assert!(refusals.count().is_none());
        assert!(owed.settle(PingVerdict::Refused));
        refusals.reset();
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
