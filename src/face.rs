//! Serves clients: decodes requests, forwards them or asks the engine, encodes responses. Read [`endpoint`] first (a
//! served path and its faces), then [`stateless`] (no sessions) and [`session`] (handshake).

mod admitted_request;
mod affinity;
pub mod answer;
mod array_answer;
pub mod arrival;
pub mod call_stream;
pub mod catalog;
pub mod client_login;
pub mod combined;
mod dev_requests;
pub mod endpoint;
mod fallback;
pub(crate) mod handle_delay;
pub mod headers;
pub mod http;
pub mod idempotency_key;
mod intake;
mod item_refusal;
mod lazy_timer;
mod list_walks;
pub mod listen_permits;
mod named_item;
mod notification_subscriber;
pub mod operators;
pub mod own_metadata;
/// Forwards response bodies to clients of either era: unchanged, or with single events edited.
mod pipe {
    pub(super) mod body;
    pub(super) mod forward;
}
pub mod rates;
mod reachable_tools;
mod replica_array;
pub mod rewrite;
pub mod sealed;
pub mod served;
pub mod session;
pub mod session_owners;
pub mod sse;
pub mod stateless;
pub mod stdio;
pub mod stream_client;
pub mod tool_renames;
pub mod unmatched_rules;
