//! Keeps one copy of equal claims: most tokens of an issuer have the same scopes and groups.
//!
//! Rules know a caller by the address of its claims, so a lookup there costs no comparison of names.

use std::mem::size_of;
use std::sync::Arc;

use moka::sync::Cache;

use crate::task::Claims;

const WEIGHT_MAX: u64 = 4 << 20;
/// The bytes that the cache needs for an entry.
const ENTRY_BYTES: usize = 512;

pub(in crate::server) struct SharedClaims(Cache<Arc<Claims>, Arc<Claims>>);

impl Default for SharedClaims {
    fn default() -> Self {
        let weight = |claims: &Arc<Claims>, _: &Arc<Claims>| {
            u32::try_from(ENTRY_BYTES + size_of::<Claims>() + claims.bytes()).unwrap_or(u32::MAX)
        };
        Self(Cache::builder().max_capacity(WEIGHT_MAX).weigher(weight).build())
    }
}

debug_members!(SharedClaims, |claims| entries: claims.0.entry_count());

impl SharedClaims {
    /// The copy of these claims that earlier tokens have, if it is still known.
    pub(in crate::server) fn of(&self, claims: Claims) -> Arc<Claims> {
        self.0.get(&claims).unwrap_or_else(|| {
            let claims = Arc::new(claims);
            self.0.insert(Arc::clone(&claims), Arc::clone(&claims));
            claims
        })
    }
}
