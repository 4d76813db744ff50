//! Authenticates requests that another replica forwards, by their seal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use parking_lot::Mutex;

use super::refusal::ForwardRefusal;
use crate::face::sealed::{ForwardToken, digest_of_request};
use crate::face::session_owners::{FORWARD, SessionOwners};
use crate::replica::{ForwardedNumberRefusal, ForwardedNumbers};

/// How far a request's seal may be in the past or the future: allows for clock skew between replicas and for transit.
const GOOD_FOR: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct ForwardedCallers(Arc<ForwardedCallersState>);

struct ForwardedCallersState {
    owners: Arc<SessionOwners>,
    numbers: Mutex<ForwardedNumbers>,
}

impl ForwardedCallers {
    #[must_use]
    pub fn new(owners: Arc<SessionOwners>) -> Self {
        Self(Arc::new(ForwardedCallersState { owners, numbers: Mutex::default() }))
    }

    /// The principal of a forwarded request, and its client's address. Fails unless a replica sealed exactly this
    /// request for this replica, recently, and it arrives for the first time.
    pub(super) fn identify<B>(&self, request: &Request<B>) -> Result<ForwardToken, ForwardRefusal> {
        let ForwardedCallersState { owners, numbers } = &*self.0;
        let mut sealed = request.headers().get_all(FORWARD).iter();
        let (Some(sealed), None) = (sealed.next(), sealed.next()) else { return Err(ForwardRefusal::Unsealed) };
        let token = sealed.to_str().ok().and_then(|sealed| owners.open(sealed)).ok_or(ForwardRefusal::Unsealed)?;
        if token.target != owners.own() {
            return Err(ForwardRefusal::Misdirected);
        }
        let now = owners.clock().now();
        if now.since(token.issued_at) > GOOD_FOR || token.issued_at.since(now) > GOOD_FOR {
            return Err(ForwardRefusal::Untimely);
        }
        let uri = request.uri();
        if token.request != digest_of_request(request.method(), uri.path(), uri.query(), request.headers()) {
            return Err(ForwardRefusal::Altered);
        }
        // The last check, since it stores the token's number.
        let taken = numbers.lock().take((token.sender, token.number), now, GOOD_FOR);
        taken.map(|()| token).map_err(|refusal| match refusal {
            ForwardedNumberRefusal::Repeated => ForwardRefusal::Repeated,
            ForwardedNumberRefusal::TooManySenders => ForwardRefusal::Crowded,
        })
    }
}

impl fmt::Debug for ForwardedCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardedCallers").field("owners", &self.0.owners).finish_non_exhaustive()
    }
}
