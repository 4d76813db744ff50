//! Forwards response bodies to clients of either era: unchanged, or with single events edited.

pub(super) mod body;
pub(super) mod forward;
