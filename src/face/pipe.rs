//! Forwards response bodies to clients of either era: unchanged, or with single events edited.

pub(super) mod body;
pub(super) mod forward;
pub(super) mod held_call;
pub(super) mod pipe_metrics;
pub(super) mod stream_tail;
