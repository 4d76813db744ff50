//! Signals when and why calls in progress end with the gateway.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::task::{Executed, GatewayFault, Reason};

/// Signals the end of all calls. Clones share one signal.
#[derive(Clone, Debug, Default)]
pub struct CallsEnd {
    token: CancellationToken,
    reason: Arc<OnceLock<Reason>>,
}

impl CallsEnd {
    /// Ends all calls. The first reason counts.
    pub(super) fn end(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    #[must_use]
    pub fn fault(&self, executed: Executed) -> GatewayFault {
        GatewayFault::new(self.reason.get().copied().unwrap_or(Reason::GatewayRestart), executed)
    }
}
