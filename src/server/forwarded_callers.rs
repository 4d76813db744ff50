//! Finds out whose request another replica passes on, by what is sealed with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use parking_lot::Mutex;

use super::refusal::ForwardRefusal;
use crate::face::sealed::{ForwardToken, digest_of_request};
use crate::face::session_homes::{FORWARD, SessionHomes};
use crate::replica::{ForwardedNumberRefusal, ForwardedNumbers};

/// How long before and after it was sealed a request is good: what the clock of tasks may differ by between two replicas, and
/// what a request may be under way.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// Those whose requests other replicas pass on. Clones are one.
#[derive(Clone)]
pub struct ForwardedCallers(Arc<ForwardedCallersState>);

struct ForwardedCallersState {
    homes: Arc<SessionHomes>,
    /// Which requests came.
    numbers: Mutex<ForwardedNumbers>,
}

impl ForwardedCallers {
    #[must_use]
    pub fn new(homes: Arc<SessionHomes>) -> Self {
        Self(Arc::new(ForwardedCallersState { homes, numbers: Mutex::default() }))
    }

    /// Who asks, and where that client is.
    ///
    /// # Errors
    /// Unless a replica sealed just this request for this one, a moment ago, and it comes for the first time.
    pub(super) fn identify<B>(&self, request: &Request<B>) -> Result<ForwardToken, ForwardRefusal> {
        let ForwardedCallersState { homes, numbers } = &*self.0;
        let mut sealed = request.headers().get_all(FORWARD).iter();
        let (Some(sealed), None) = (sealed.next(), sealed.next()) else { return Err(ForwardRefusal::Unsealed) };
        let token = sealed.to_str().ok().and_then(|sealed| homes.open(sealed)).ok_or(ForwardRefusal::Unsealed)?;
        if token.target != homes.own() {
            return Err(ForwardRefusal::Misdirected);
        }
        let now = homes.clock().now();
        if now.since(token.issued_at) > GOOD_FOR || token.issued_at.since(now) > GOOD_FOR {
            return Err(ForwardRefusal::Untimely);
        }
        let uri = request.uri();
        if token.request != digest_of_request(request.method(), uri.path(), uri.query(), request.headers()) {
            return Err(ForwardRefusal::Altered);
        }
        // Last: nothing else of a token is remembered.
        let taken = numbers.lock().take((token.sender, token.number), now, GOOD_FOR);
        taken.map(|()| token).map_err(|refusal| match refusal {
            ForwardedNumberRefusal::Repeated => ForwardRefusal::Repeated,
            ForwardedNumberRefusal::TooManySenders => ForwardRefusal::Crowded,
        })
    }
}

impl fmt::Debug for ForwardedCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardedCallers").field("homes", &self.0.homes).finish_non_exhaustive()
    }
}
