//! Limits open streams: each holds a connection, a session's subscriber and its watches.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::face::http::ResponseBody;
use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, PrincipalCounts, Reason};

pub const LISTENERS_MAX: usize = 4_096;

#[derive(Debug)]
pub struct ListenPermits {
    taken: Mutex<PrincipalCounts>,
    limits: SharedLimits,
    listens_end: CancellationToken,
}

impl ListenPermits {
    /// Cancelling `listens_end` ends every stream with its result, and prevents new ones.
    pub fn new(listens_end: CancellationToken, limits: SharedLimits) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::default(), limits, listens_end })
    }

    pub(crate) const fn listens_end(&self) -> &CancellationToken {
        &self.listens_end
    }

    /// `owner` counts the requests; its limit is checked before the total (B159). `Draining` or `TooManyListeners`.
    pub(in crate::face) fn take(
        self: &Arc<Self>,
        owner: &Principal,
        upstream: &Arc<str>,
    ) -> Result<ListenPermit, GatewayFault> {
        if self.listens_end.is_cancelled() {
            return Err(GatewayFault::new(Reason::Draining, Executed::No));
        }
        let own_max = self.limits.of(owner).streams_max;
        let mut taken = self.taken.lock();
        if taken.of(owner) >= own_max || taken.all() >= LISTENERS_MAX {
            metrics::counter!(metric::LISTENERS_REFUSED, "upstream" => Arc::clone(upstream)).increment(1);
            if taken.of(owner) >= own_max {
                self.limits.refused(owner, "streams_per_principal_max", &own_max);
            }
            return Err(GatewayFault::new(Reason::TooManyListeners, Executed::No));
        }
        taken.add(owner);
        metrics::gauge!(metric::LISTENERS, "upstream" => Arc::clone(upstream)).increment(1.0);
        Ok(ListenPermit { listeners: Arc::clone(self), owner: owner.clone(), upstream: Arc::clone(upstream) })
    }
}

#[derive(Debug)]
#[must_use]
pub(in crate::face) struct ListenPermit {
    listeners: Arc<ListenPermits>,
    owner: Principal,
    upstream: Arc<str>,
}

impl ListenPermit {
    /// Holds the permit until the body ends or is dropped.
    pub(in crate::face) fn keep(self, body: ResponseBody) -> ResponseBody {
        let holding = move |error| {
            let _permit = &self;
            error
        };
        ResponseBody::new(body.map_err(holding))
    }
}

impl Drop for ListenPermit {
    fn drop(&mut self) {
        metrics::gauge!(metric::LISTENERS, "upstream" => Arc::clone(&self.upstream)).decrement(1.0);
        self.listeners.taken.lock().remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::PrincipalLimits;

    #[test]
    fn b159_a_principal_meets_its_own_bound_and_all_meet_theirs() {
        let listeners = ListenPermits::new(CancellationToken::new(), SharedLimits::default());
        let of_each = PrincipalLimits::default().streams_max;
        let upstream: Arc<str> = Arc::from("reports");
        let owners: Vec<_> = (0..=LISTENERS_MAX / of_each).map(|n| Principal::new(&format!("key:{n}"))).collect();
        let (last, full) = owners.split_last().unwrap();
        let mut permits: Vec<_> = full
            .iter()
            .flat_map(|owner| (0..of_each).map(move |_| owner))
            .map(|owner| listeners.take(owner, &upstream).unwrap())
            .collect();
        let refused = |owner| listeners.take(owner, &upstream).unwrap_err().reason;
        assert_eq!((permits.len(), refused(last)), (LISTENERS_MAX, Reason::TooManyListeners));
        permits.pop();
        assert_eq!(refused(&full[0]), Reason::TooManyListeners, "its own bound");
        drop(listeners.take(last, &upstream).unwrap());
        permits.clear();
        assert!(listeners.taken.lock().is_empty());
        listeners.listens_end.cancel();
        assert_eq!(refused(last), Reason::Draining);
    }
}
