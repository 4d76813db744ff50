//! Holds the limits of principals that are in force, which a reload replaces.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::task::{Principal, PrincipalLimitTable, PrincipalLimits};

/// The limits that are in force. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct SharedLimits(Arc<RwLock<Arc<PrincipalLimitTable>>>);

impl SharedLimits {
    #[must_use]
    pub fn new(table: Arc<PrincipalLimitTable>) -> Self {
        Self(Arc::new(RwLock::new(table)))
    }

    /// Holds from the next request on.
    pub fn replace(&self, table: Arc<PrincipalLimitTable>) {
        *self.0.write() = table;
    }

    #[must_use]
    pub fn of(&self, principal: &Principal) -> PrincipalLimits {
        self.0.read().of(principal)
    }

    /// How many of `max` places one of several principals may have.
    #[must_use]
    pub fn places(&self, owner: &Principal, max: usize) -> usize {
        self.of(owner).places.of(max)
    }
}
