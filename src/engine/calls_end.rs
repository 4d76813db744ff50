//! Says when calls in progress end with the gateway, and why.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::task::{Executed, GatewayFault, Reason};

/// Clones are of one end.
#[derive(Clone, Debug, Default)]
pub struct CallsEnd {
    token: CancellationToken,
    reason: Arc<OnceLock<Reason>>,
}

impl CallsEnd {
    /// No call is waited for any more. The first reason counts.
    pub(super) fn end(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// Cancelled then.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// What is told of a call that ended so.
    #[must_use]
    pub fn fault(&self, executed: Executed) -> GatewayFault {
        GatewayFault::new(self.reason.get().copied().unwrap_or(Reason::GatewayRestart), executed)
    }
}
