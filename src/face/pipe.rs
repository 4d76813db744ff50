//! Passes the bodies of answers on, to clients of either era: as they come, or with single events edited.

pub(super) mod body;
pub(super) mod held_call;
pub(super) mod pipe_metrics;
pub(super) mod stream_tail;
